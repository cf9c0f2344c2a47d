"""The parts of compare_pytorch.py that need no GPU."""

from need import BUILD, LIBRARY, REPOSITORY, need, script

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
from plots.measuring import compare_pytorch, measure_rows, torch_measure
from plots.programs import described

DATA = REPOSITORY / "tests" / "data"


def options(*flags):
    return compare_pytorch.parse(list(flags))


class Compare(unittest.TestCase):
    def test_reference_in_chunks(self):
        for case in ("ragged_causal", "ragged_d40"):
            causal = json.loads((DATA / case / "case.json").read_text(encoding="utf-8"))["causal"]
            q, k, v, d_o = (
                torch.from_numpy(np.load(DATA / case / f"{name}.npy").astype(np.float32))
                for name in ("q", "k", "v", "do")
            )
            if q.shape != k.shape:
                k, v, causal = k[:, :, : q.shape[2]].contiguous(), v[:, :, : q.shape[2]].contiguous(), True
            x = [t.double().requires_grad_() for t in (q, k, v)]
            o = torch.nn.functional.scaled_dot_product_attention(*x, is_causal=causal)
            truth = dict(zip(("o", "dq", "dk", "dv"), (o.detach(), *torch.autograd.grad(o, x, d_o.double()))))
            for chunk in (1, 10_000, 1 << 30):
                with self.subTest(case=case, chunk=chunk):
                    found = torch_measure.reference(q, k, v, d_o, causal, chunk)
                    for name in truth:
                        self.assertLess((found[name] - truth[name]).abs().max().item(), 1e-12)

    def test_every_method_gives_the_same(self):
        o = options("--dtype", "fp32", "--batch", "1", "--heads", "2", "--seqlen", "77", "--head-dim", "40", "--causal")
        tensors = compare_pytorch.make_tensors(o, "cpu")
        truth = torch_measure.reference(*tensors, causal=True)
        steps = Steps.load(LIBRARY)
        methods = [
            m
            for m in compare_pytorch.torch_methods(77, True, "cpu")
            if m.name in ("eager", "SDPA math", "SDPA, its choice")
        ]
        programs = described(BUILD)
        methods += compare_pytorch.step_methods(steps, programs, "fp32", True)
        names = [m.name for m in methods]
        for name in ("step01", "step04", "step05 standard backward", "step05 recompute backward"):
            self.assertLess(names.index(name), names.index(f"{name} on tensor cores"))
        self.assertNotIn("step05", names, "a backward's forward is there to save what it needs")
        by_name = {m.name: m for m in methods}
        self.assertFalse(
            torch.equal(*(by_name[f"step04{on}"].forward(*tensors[:3]) for on in ("", " on tensor cores"))),
            "two products round differently",
        )
        self.assertFalse(
            [m.name for m in compare_pytorch.step_methods(steps, programs, "fp16", True) if "tensor" in m.name]
        )
        for method in methods:
            with self.subTest(method=method.name):
                outputs = {}
                if "forward" in method.passes:
                    outputs["o"] = method.forward(*tensors[:3])
                if "backward" in method.passes:
                    outputs |= zip(("dq", "dk", "dv"), method.begin_backward(*tensors)())
                found = torch_measure.errors(outputs, truth)
                self.assertLess(torch_measure.worst_error(found, "relative_l2"), 2e-6)
                self.assertLess(torch_measure.worst_error(found, "worst_share"), 1)

    def test_allowances_are_those_of_the_steps(self):
        """The share of the allowance, computed here and by step05 of the same tensors: two programs, one definition."""
        program = BUILD / "step05"
        if not program.is_file():
            self.skipTest(f"no steps in {BUILD}")
        for flags in (("--causal",), (), ("--causal", "large")):
            o = options(
                "--dtype", "fp32", "--batch", "1", "--heads", "2", "--seqlen", "77", "--head-dim", "16", *flags[:1]
            )  # 1/sqrt(16) is the same number in fp32
            q, k, v, d_o = compare_pytorch.make_tensors(o, "cpu")
            q = q * 40 if "large" in flags else q  # weights above 1 of all three kinds
            with self.subTest(flags=flags), tempfile.TemporaryDirectory() as folder:
                for name, x in (("q", q), ("k", k), ("v", v), ("do", d_o)):
                    np.save(pathlib.Path(folder) / f"{name}.npy", x.numpy())
                done = subprocess.run(
                    [
                        program,
                        "--device",
                        "cpu",
                        "--load",
                        folder,
                        "--save",
                        folder,
                        "--thread-order",
                        "0",
                        "--json",
                        "-",
                        "--check",
                        "full",
                        *flags[:1],
                    ],
                    capture_output=True,
                    encoding="utf-8",
                )
                self.assertEqual(done.returncode, 0, done.stderr)
                methods = json.loads(done.stdout)["methods"]
                told = {
                    check["output"]: check["worst"]
                    for method in (methods[0], methods[-1])
                    for check in method["exactness"]
                }
                outputs = {
                    name: torch.from_numpy(np.load(pathlib.Path(folder) / f"{name}.npy"))
                    for name in ("o", "dq", "dk", "dv")
                }
                for chunk in (10_000, 1 << 30):
                    found = torch_measure.errors(outputs, torch_measure.reference(q, k, v, d_o, o.causal, chunk))
                    for name, error in found.items():
                        self.assertAlmostEqual(error["worst_share"], told[name], delta=1e-5 * told[name], msg=name)

    def test_what_is_not_finite_is_no_error_figure(self):
        shape, truth = (1, 1, 2, 1), {"o": torch.ones(1, 1, 2, 1, dtype=torch.float64)}
        found = torch_measure.errors({"o": torch.tensor([1.0, float("nan")]).reshape(shape)}, truth)
        self.assertEqual(found, {"o": {"relative_l2": None, "max_abs": None}})
        self.assertEqual(torch_measure.worst_error(found, "max_abs"), float("inf"))
        self.assertIsNone(torch_measure.worst_error(found, "worst_share"))
        for values, allowance, share in (
            ((1.0, float("nan")), (1, 1), None),
            ((1.0, 1.0), (1, 0), 0),
            ((1.0, 2.0), (1, 0), None),
            ((1.0, 1.5), (1, 1e6), 0.5),
        ):
            truth["allowance of o"] = torch.tensor(allowance, dtype=torch.float64).reshape(shape)
            self.assertEqual(
                torch_measure.errors({"o": torch.tensor(values).reshape(shape)}, truth)["o"]["worst_share"],
                share,
                values,
            )
        self.assertEqual([torch_measure.tolerance(n) for n in (1, 4096, 16384)], [1e-6, 1e-6, 2e-6])

    def test_no_allowance_in_16_bits(self):
        tensors = compare_pytorch.make_tensors(
            options("--dtype", "fp16", "--batch", "1", "--heads", "1", "--seqlen", "8", "--head-dim", "8"), "cpu"
        )
        self.assertEqual(set(torch_measure.reference(*tensors, causal=False)), {"o", "dq", "dk", "dv"})

    def test_judgement(self):
        def row(method, ours, error):
            return {
                "method": method,
                "ours": ours,
                "not_run": None,
                "errors": {"o": {"relative_l2": error, "max_abs": error}},
            }

        for dtype, eager, ours, passes in (
            ("fp32", 1e-6, 9e-7, True),
            ("fp32", 1e-6, 1.1e-6, False),
            ("fp16", 1e-3, 1.9e-3, True),
            ("fp16", 1e-3, 2.1e-3, False),
            ("fp32", 1e-6, None, False),
        ):
            rows = [row("eager", False, eager), row("step04", True, ours)]
            compare_pytorch.judge("forward", rows, options("--dtype", dtype))
            self.assertEqual(rows[1]["pass"], passes, (dtype, ours))
        rows = [row("step04", True, 1e-3)]
        compare_pytorch.judge("forward", rows, options())
        self.assertIsNone(rows[0]["pass"], "half precision has nothing to be judged by without eager")

    def test_table(self):
        ran = {
            "method": "eager",
            "ours": False,
            "not_run": None,
            "errors": {"o": {"relative_l2": 1e-7, "max_abs": None}},
            "extra_bytes": 1 << 20,
            "time": {"median_ms": 2.0, "p10_ms": 1.9, "p90_ms": 2.1, "runs": 20, "late_runs": 0},
            "tflops": 12.34,
            "kernels": [{"name": "void a::gemm<float>(int)", "us": 3}, {"name": "b", "us": 1}],
        }
        lines = list(compare_pytorch.table([ran, {"method": "SDPA flash", "ours": False, "not_run": "dtype float"}]))
        self.assertRegex(
            lines[1], r"eager +2\.000 +1\.900 +2\.100 +12\.3 +1\.00 +1\.0 +1\.0e-07 +not finite +n/a +2 +a::gemm<float>"
        )
        self.assertRegex(lines[2], r"SDPA flash +n/a: dtype float")

    def test_why_sdpa_refused(self):
        caught = [
            types.SimpleNamespace(message=text)
            for text in (
                "Memory efficient kernel not used because: (Triggered internally at sdp_utils.cpp:1.)",
                "Memory efficient attention has been runtime disabled. (Triggered internally at x)",
                "Flash attention kernel not used because: (Triggered internally at y)",
                "Expected query, key and value to all be of dtype: {Half, BFloat16}. (Triggered internally at z)",
                "CuDNN attention kernel not used because:",
                "CuDNN attention has been runtime disabled.",
            )
        ]
        self.assertEqual(
            compare_pytorch.why_sdpa_refused(caught, "SDPA flash"),
            "Expected query, key and value to all be of dtype: {Half, BFloat16}.",
        )
        self.assertEqual(compare_pytorch.why_sdpa_refused(caught, "SDPA cuDNN"), "")
        self.assertEqual(compare_pytorch.why_sdpa_refused([], "eager"), "")

    def test_few_runs_of_what_is_slow(self):
        for seconds, runs in ((0, 3), (0.06, 2)):
            begun = []
            with mock.patch.object(torch.cuda, "synchronize", lambda: None):
                host = torch_measure.host_ms(lambda: begun.append(1) or (lambda: time.sleep(seconds)))
            self.assertEqual(len(begun), runs)
            self.assertGreaterEqual(host, 1e3 * seconds)

    def test_rows_of_the_speedup_table(self):
        """rows_of() with a clock and memory that need no GPU, through to the results' rows."""
        clock = types.SimpleNamespace(allow_for=lambda ms: None, time=lambda work: (2.0, work() is None))
        real_tensors, real_methods = compare_pytorch.make_tensors, compare_pytorch.torch_methods
        replaced = {
            "Clock": lambda size: clock,
            "extra_bytes": lambda work, size: 77,
            "kernels_of": lambda work: ([("gemm", 5.0)], 0),
            "still_alive": lambda: None,
            "make_tensors": lambda problem: real_tensors(problem, "cpu"),
            "torch_methods": lambda n, causal, device: real_methods(n, causal, "cpu"),
            "SECONDS": {"table": 0},
        }
        on_cuda = {
            "synchronize": lambda: None,
            "empty_cache": lambda: None,
            "get_device_properties": lambda n: types.SimpleNamespace(L2_cache_size=1),
        }
        problem = {"dtype": "fp32", "batch": 1, "heads": 2, "seqlen": 64, "head_dim": 64, "causal": True}
        asked = {**problem, "passes": ["forward", "backward"], "methods": ["eager"]}
        with mock.patch.multiple(compare_pytorch, **replaced), mock.patch.multiple(torch.cuda, **on_cuda):
            found = compare_pytorch.rows_of(asked)
            for error, answer in (
                (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried"), "forward"),
                (RuntimeError("CUDA error: illegal\nmore"), "failed"),
            ):
                with mock.patch.object(compare_pytorch, "run_pass", side_effect=error):
                    self.assertIn(answer, compare_pytorch.rows_of(asked))
        row = measure_rows.torch_row(found["backward"][0], "backward", problem)
        self.assertEqual(
            (row["method"], row["time"]["runs"], row["time"]["median_ms"], row["extra_bytes"], row["kernel_count"]),
            ("eager", 20, 2.0, 77, 1),
        )
        self.assertEqual(row["flops"]["useful"], 2.5 * 4 * 64 * 2 * 64 * 65 // 2)
        self.assertLess(row["error"]["relative_l2"], 2e-6)
        self.assertTrue(0 < row["error"]["worst_share"] < 1, row["error"])

    def test_bad_arguments(self):
        for flags, text in (
            (("--heads", "0"), "--heads"),
            (("--dtype", "fp8"), "fp8"),
            (("--json", "/nowhere/x.json"), "cannot be written"),
        ):
            code, out, err = script("measuring/compare_pytorch.py", *flags)
            self.assertEqual((code, out, err.count("\n")), (2, "", 1), err)
            self.assertIn(text, err)

    def test_without_a_gpu(self):
        code, out, err = script("measuring/compare_pytorch.py")
        self.assertEqual((code, out, err.count("\n")), (3, "", 1), err)
        self.assertIn("sees no CUDA GPU", err)


if __name__ == "__main__":
    unittest.main()
