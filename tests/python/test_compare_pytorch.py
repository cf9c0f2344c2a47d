"""The parts of compare_pytorch.py that need no GPU."""

from need import BUILD, LIBRARY, need, script

need("torch", "numpy")
import json
import pathlib
import subprocess
import tempfile
import time
import types
import unittest
from unittest import mock

import numpy as np
import torch

from plots.attention_steps import Steps
from plots.measuring import compare_pytorch, torch_measure
from plots.programs import described

PASSES = ("forward", "backward", "both")


def problem(dtype="fp16", batch=1, heads=2, seqlen=77, head_dim=40, causal=False):
    return dict(dtype=dtype, batch=batch, heads=heads, seqlen=seqlen, head_dim=head_dim, causal=causal)


class Compare(unittest.TestCase):
    def test_every_method_gives_the_same(self):
        """Of PyTorch and of every step on the executor, each in each pass that it has."""
        steps, programs = Steps.load(LIBRARY), [p for p in described(BUILD) if p["devices"]["cpu"]]
        on_cpu = ("eager", "SDPA math", "SDPA, its choice")
        for dtype, head_dim, bound in (("fp32", 40, 2e-6), ("fp16", 64, 2e-3)):
            here = problem(dtype, head_dim=head_dim, causal=True)
            tensors = compare_pytorch.make_tensors(here, device="cpu")
            truth = torch_measure.reference(*tensors, causal=True)
            of_torch = [m for m in compare_pytorch.torch_methods(77, True, "cpu") if m.name in on_cpu]
            ours = compare_pytorch.step_methods(steps, programs, dtype, True)
            for method in of_torch + ours:
                for which in method.passes:
                    with self.subTest(dtype=dtype, method=method.name, product=method.product, which=which):
                        outputs = compare_pytorch.start_of(which, method, tensors)()()
                        found = torch_measure.errors(dict(zip(compare_pytorch.outputs_of(which), outputs)), truth)
                        self.assertLess(torch_measure.worst_error(found, "relative_l2"), bound)
                        if dtype == "fp32":
                            self.assertLess(torch_measure.worst_error(found, "worst_share"), 1)
            passes = {(method.name, method.product): method.passes for method in ours}
            if dtype == "fp32":
                names = list(passes)
                for name in ("step01", "step04", "step05 standard backward", "step05 recompute backward"):
                    self.assertLess(names.index((name, "cuda-cores")), names.index((name, "tensor-cores")))
                self.assertEqual(passes["step05 standard backward", "cuda-cores"], ("backward",))
                self.assertNotIn("step05", dict(names), "a backward's forward is there to save what it needs")
            else:
                self.assertEqual({product for _, product in passes}, {None})
                self.assertEqual(passes["step09", None], ("forward",))
                for name in ("step05 recompute", "step10 one-pass", "step11 Hopper"):
                    self.assertEqual(passes[f"{name} backward", None], ("backward", "both"))

    def test_allowances_are_those_of_the_steps(self):
        """The share of the allowance, computed here and by step05 of the same tensors: two programs, one definition."""
        for flags in ("--causal", "", "--causal large"):
            q, k, v, d_o = compare_pytorch.make_tensors(
                problem("fp32", head_dim=16), device="cpu"
            )  # 1/sqrt(16) is exact
            q = q * 40 if "large" in flags else q  # weights above 1 of all three kinds
            with self.subTest(flags=flags), tempfile.TemporaryDirectory() as name:
                folder = pathlib.Path(name)
                for tensor, x in (("q", q), ("k", k), ("v", v), ("do", d_o)):
                    np.save(folder / f"{tensor}.npy", x.numpy())
                usual = f"--device cpu --load {name} --save {name} --thread-order 0 --check full --json -"
                words = [BUILD / "step05", *usual.split(), *(["--causal"] if flags else [])]
                done = subprocess.run(words, capture_output=True, encoding="utf-8")
                self.assertEqual(done.returncode, 0, done.stderr)
                methods = json.loads(done.stdout)["methods"]
                told = {c["output"]: c["worst"] for m in (methods[0], methods[-1]) for c in m["exactness"]}
                outputs = {x: torch.from_numpy(np.load(folder / f"{x}.npy")) for x in ("o", "dq", "dk", "dv")}
                for chunk in (10_000, 1 << 30):
                    found = torch_measure.errors(outputs, torch_measure.reference(q, k, v, d_o, bool(flags), chunk))
                    for name, error in found.items():
                        self.assertAlmostEqual(error["worst_share"], told[name], delta=1e-5 * told[name], msg=name)

    def test_what_is_not_finite_is_no_error_figure(self):
        shape, truth = (1, 1, 2, 1), {"o": torch.ones(1, 1, 2, 1, dtype=torch.float64)}
        found = torch_measure.errors({"o": torch.tensor([1.0, float("nan")]).reshape(shape)}, truth)
        self.assertEqual(found, {"o": {"relative_l2": None, "max_abs": None}})
        self.assertIsNone(torch_measure.worst_error(found, "max_abs"))
        self.assertIs(compare_pytorch.right("forward", found, found, problem()), False)
        for values, allowance, share in (
            ((1.0, float("nan")), (1, 1), None),
            ((1.0, 1.0), (1, 0), 0),
            ((1.0, 2.0), (1, 0), None),
            ((1.0, 1.5), (1, 1e6), 0.5),
        ):
            truth["allowance of o"] = torch.tensor(allowance, dtype=torch.float64).reshape(shape)
            found = torch_measure.errors({"o": torch.tensor(values).reshape(shape)}, truth)
            self.assertEqual(found["o"]["worst_share"], share, values)
        self.assertEqual([torch_measure.tolerance(n) for n in (1, 4096, 16384)], [1e-6, 1e-6, 2e-6])

    def test_judgement(self):
        errors = lambda value: {"o": {"relative_l2": value}}
        for dtype, eager, ours, passes in (
            ("fp32", 1e-6, 9e-7, True),
            ("fp32", 1e-6, 1.1e-6, False),
            ("fp16", 1e-3, 1.9e-3, True),
            ("fp16", 1e-3, 2.1e-3, False),
            ("fp32", 1e-6, None, False),
        ):
            found = compare_pytorch.right("forward", errors(ours), errors(eager), problem(dtype))
            self.assertEqual(found, passes, (dtype, ours))
        self.assertIsNone(compare_pytorch.right("forward", errors(1e-3), None, problem()), "no eager to be judged by")

    def test_why_sdpa_refused(self):
        texts = """Memory efficient kernel not used because: (Triggered internally at sdp_utils.cpp:1.)
Memory efficient attention has been runtime disabled. (Triggered internally at x)
Flash attention kernel not used because: (Triggered internally at y)
Expected query, key and value to all be of dtype: {Half, BFloat16}. (Triggered internally at z)
CuDNN attention kernel not used because:
CuDNN attention has been runtime disabled."""
        caught = [types.SimpleNamespace(message=text) for text in texts.split("\n")]
        why = "Expected query, key and value to all be of dtype: {Half, BFloat16}."
        self.assertEqual(compare_pytorch.why_sdpa_refused(caught, "SDPA flash"), why)
        self.assertEqual(compare_pytorch.why_sdpa_refused(caught, "SDPA cuDNN"), "")
        shortage = "CUDA out of memory. Tried to allocate 512.00 GiB"
        self.assertEqual(torch_measure.first_line(f"{shortage}. GPU 0 has 139 GiB. Process 17 has\nmore"), shortage)

    def test_few_runs_of_what_is_slow(self):
        for seconds, runs in ((0, 3), (0.06, 2)):
            begun = []
            with mock.patch.object(torch.cuda, "synchronize", lambda: None):
                host = torch_measure.host_ms(lambda: begun.append(1) or (lambda: time.sleep(seconds)))
            self.assertEqual(len(begun), runs)
            self.assertGreaterEqual(host, 1e3 * seconds)

    def test_rows_and_report(self):
        """rows_of() and compare()'s report with a clock and memory that need no GPU."""
        clock = types.SimpleNamespace(allow_for=lambda ms: None, time=lambda work: (2.0, work() is None))
        real_tensors, real_methods = compare_pytorch.make_tensors, compare_pytorch.torch_methods
        measuring = {
            "Clock": lambda size: clock,
            "extra_bytes": lambda work, size: 77,
            "kernels_of": lambda work: [("void gemm<float>", 5.0)],
        }
        replaced = {
            "make_tensors": lambda problem, seed: real_tensors(problem, seed, "cpu"),
            "torch_methods": lambda n, causal, device: real_methods(n, causal, "cpu"),
            "SECONDS": {"table": 0},
        }
        on_cuda = {
            "synchronize": lambda: None,
            "empty_cache": lambda: None,
            "get_device_properties": lambda n: types.SimpleNamespace(L2_cache_size=1),
        }
        here = problem("fp32", seqlen=64, head_dim=64, causal=True)
        with (
            mock.patch.multiple(compare_pytorch, **replaced),
            mock.patch.multiple(torch_measure, **measuring),
            mock.patch.multiple(torch.cuda, **on_cuda),
        ):
            rows = compare_pytorch.rows_of(here, PASSES, ["eager", "SDPA math"])["rows"]
            for error, answer in (
                (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried"), "rows"),
                (RuntimeError("CUDA error: illegal\nmore"), "failed"),
            ):
                with mock.patch.object(compare_pytorch, "run_pass", side_effect=error):
                    self.assertEqual([*compare_pytorch.rows_of(here, PASSES, ["eager"])], [answer])
        self.assertEqual([(row["method"], row["pass"]) for row in rows[::2]], [("eager", which) for which in PASSES])
        json.dumps(rows, allow_nan=False)
        row, both = rows[2], rows[4]
        self.assertEqual(row["time"], {"median_ms": 2.0, "p10_ms": 2.0, "p90_ms": 2.0, "runs": 20})
        self.assertEqual((row["extra_bytes"], row["kernel_count"], row["kernels"][0]["time_ms"]), (77, 1, 0.005))
        self.assertEqual(row["flops"]["useful"], 2.5 * 4 * 64 * 2 * 64 * 65 // 2)
        self.assertEqual(both["flops"]["useful"], 3.5 * 4 * 64 * 2 * 64 * 65 // 2)
        self.assertLess(row["error"]["relative_l2"], 2e-6)
        self.assertTrue(0 < row["error"]["worst_share"] < 1, row["error"])
        lines = "\n".join(compare_pytorch.report("both", rows[4:], "a-gpu"))
        self.assertRegex(lines, r"PyTorch eager +2 +1\.00x .* 77 B +\d\.\de-07 +0\.\d\d +1\n")
        self.assertIn("longest kernel of SDPA math: gemm<float>", lines)

    def test_bad_arguments(self):
        for flags, text in (
            ("--heads 0", "--heads"),
            ("--dtype fp8", "fp8"),
            ("--json /nowhere/x.json", "cannot be written"),
        ):
            code, out, err = script("measuring/compare_pytorch.py", *flags.split())
            self.assertEqual((code, out, err.count("\n")), (2, "", 1), err)
            self.assertIn(text, err)
        code, out, err = script("measuring/compare_pytorch.py")
        self.assertEqual((code, out, err.count("\n")), (3, "", 1), err)
        self.assertIn("sees no CUDA GPU", err)


if __name__ == "__main__":
    unittest.main()
