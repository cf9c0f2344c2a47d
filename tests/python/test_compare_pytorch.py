"""The parts of compare_pytorch.py that need no GPU."""
from need import LIBRARY, REPOSITORY, need

need("torch", "numpy")
import contextlib
import gc
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import types
import unittest
import weakref
from unittest import mock

import compare_pytorch
import numpy as np
import torch
import torch_measure
from attention_steps import Steps

DATA = REPOSITORY / "tests" / "data"
STEPS = pathlib.Path(os.environ.get("ATTN_STEP_FOLDER", REPOSITORY / "build"))


def options(*flags):
    return compare_pytorch.parse(list(flags))[1]


class Compare(unittest.TestCase):
    def test_reference_in_chunks(self):
        for case in ("ragged_causal", "ragged_d40"):
            causal = json.loads((DATA / case / "case.json").read_text())["causal"]
            q, k, v, d_o = (torch.from_numpy(np.load(DATA / case / f"{name}.npy").astype(np.float32)) for name in ("q", "k", "v", "do"))
            if q.shape != k.shape:
                k, v, causal = k[:, :, :q.shape[2]].contiguous(), v[:, :, :q.shape[2]].contiguous(), True
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
        methods = [m for m in compare_pytorch.torch_methods(77, True, "cpu") if m.name in ("eager", "SDPA math", "SDPA, its choice")]
        methods += compare_pytorch.step_methods(steps, "fp32", True)
        self.assertEqual([m.name for m in methods[3:]], ["step02", "step03", "step04", "step05 standard", "step05 recompute", "step04 on tensor cores", "step05 standard on tensor cores", "step05 recompute on tensor cores"])
        by_name = {m.name: m for m in methods}
        self.assertFalse(torch.equal(*(by_name[f"step04{on}"].forward(*tensors[:3]) for on in ("", " on tensor cores"))), "two products round differently")
        for name in ("step05 standard", "step05 recompute"):
            self.assertFalse(torch.equal(*(by_name[f"{name}{on}"].begin_backward(*tensors)()[1] for on in ("", " on tensor cores"))), name)
        self.assertFalse([m.name for m in compare_pytorch.step_methods(steps, "fp16", True) if "tensor" in m.name])
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
        program = STEPS / "step05"
        if not program.is_file():
            self.skipTest(f"no steps in {STEPS}")
        for flags in (("--causal",), (), ("--causal", "large")):
            o = options("--dtype", "fp32", "--batch", "1", "--heads", "2", "--seqlen", "77", "--head-dim", "16", *flags[:1])  # 1/sqrt(16) is the same number in fp32
            q, k, v, d_o = compare_pytorch.make_tensors(o, "cpu")
            q = q * 40 if "large" in flags else q  # weights above 1 of all three kinds
            with self.subTest(flags=flags), tempfile.TemporaryDirectory() as folder:
                for name, x in (("q", q), ("k", k), ("v", v), ("do", d_o)):
                    np.save(pathlib.Path(folder) / f"{name}.npy", x.numpy())
                done = subprocess.run([program, "--device", "cpu", "--load", folder, "--save", folder, "--thread-order", "0", "--json", "-", "--check", "full", *flags[:1]], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                methods = json.loads(done.stdout)["methods"]
                told = {check["output"]: check["worst"] for method in (methods[0], methods[-1]) for check in method["exactness"]}
                outputs = {name: torch.from_numpy(np.load(pathlib.Path(folder) / f"{name}.npy")) for name in ("o", "dq", "dk", "dv")}
                for chunk in (10_000, 1 << 30):
                    found = torch_measure.errors(outputs, torch_measure.reference(q, k, v, d_o, o.causal, chunk))
                    for name, error in found.items():
                        self.assertAlmostEqual(error["worst_share"], told[name], delta=1e-5 * told[name], msg=name)

    def test_what_is_not_finite_is_no_error_figure(self):
        shape, truth = (1, 1, 2, 1), {"o": torch.ones(1, 1, 2, 1, dtype=torch.float64)}
        found = torch_measure.errors({"o": torch.tensor([1.0, float("nan")]).reshape(shape)}, truth)
        self.assertEqual(found, {"o": {"relative_l2": None, "max_abs": None}})
        self.assertEqual(torch_measure.worst_error(found, "max_abs"), float("inf"))
        for values, allowance, share in (((1.0, float("nan")), (1, 1), None), ((1.0, 1.0), (1, 0), 0), ((1.0, 2.0), (1, 0), None), ((1.0, 1.5), (1, 1e6), 0.5)):
            truth["allowance of o"] = torch.tensor(allowance, dtype=torch.float64).reshape(shape)
            self.assertEqual(torch_measure.errors({"o": torch.tensor(values).reshape(shape)}, truth)["o"]["worst_share"], share, values)
        self.assertEqual([torch_measure.tolerance(n) for n in (1, 4096, 16384)], [1e-6, 1e-6, 2e-6])

    def test_no_allowance_in_16_bits(self):
        tensors = compare_pytorch.make_tensors(options("--dtype", "fp16", "--batch", "1", "--heads", "1", "--seqlen", "8", "--head-dim", "8"), "cpu")
        self.assertEqual(set(torch_measure.reference(*tensors, causal=False)), {"o", "dq", "dk", "dv"})

    def test_judgement(self):
        def row(method, ours, error):
            return {"method": method, "ours": ours, "not_run": None, "errors": {"o": {"relative_l2": error, "max_abs": error}}}

        for dtype, eager, ours, passes in (("fp32", 1e-6, 9e-7, True), ("fp32", 1e-6, 1.1e-6, False), ("fp16", 1e-3, 1.9e-3, True), ("fp16", 1e-3, 2.1e-3, False), ("fp32", 1e-6, None, False)):
            rows = [row("eager", False, eager), row("step04", True, ours)]
            compare_pytorch.judge("forward", rows, options("--dtype", dtype))
            self.assertEqual(rows[1]["pass"], passes, (dtype, ours))
        rows = [row("step04", True, 1e-3)]
        compare_pytorch.judge("forward", rows, options())
        self.assertIsNone(rows[0]["pass"], "half precision has nothing to be judged by without eager")

    def test_table(self):
        ran = {"method": "eager", "ours": False, "not_run": None, "errors": {"o": {"relative_l2": 1e-7, "max_abs": None}}, "extra_bytes": 1 << 20,
               "time": {"median_ms": 2.0, "p10_ms": 1.9, "p90_ms": 2.1, "runs": 20, "late_runs": 0}, "tflops": 12.34, "kernels": [{"name": "void a::gemm<float>(int)", "us": 3}, {"name": "b", "us": 1}]}
        lines = list(compare_pytorch.table([ran, {"method": "SDPA flash", "ours": False, "not_run": "dtype float"}]))
        self.assertRegex(lines[1], r"eager +2\.000 +1\.900 +2\.100 +12\.3 +1\.00 +1\.0 +1\.0e-07 +not finite +n/a +2 +gemm")
        self.assertRegex(lines[2], r"SDPA flash +n/a: dtype float")
        for share, text in ((0.256, r"0\.26"), (None, "not finite")):
            ran["errors"]["o"]["worst_share"] = share
            self.assertRegex(list(compare_pytorch.table([ran]))[1], rf"not finite +{text} +2 +gemm")

    def test_names_of_kernels(self):
        for kernel, name in (("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Traits<64>, false>(pytorch_flash::Flash_fwd_params)", "flash_fwd_kernel"),
                             ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)", "fmha_cutlassF_f32_aligned_64x64_rf_sm80"),
                             ("void (anonymous namespace)::softmax_warp_forward<float, 10>(float*, int)", "softmax_warp_forward"),
                             ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(cutlass_80_simt::Params)", "cutlass_80_simt_sgemm_128x64_8x5_nn_align1"),
                             ("void attention::on_gpu::step04::attention<attention::on_gpu::Tile<float, 128>>(attention::on_gpu::Mask)", "attention"),
                             ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16")):
            self.assertEqual(torch_measure.short_name(kernel), name)

    def test_why_sdpa_refused(self):
        caught = [types.SimpleNamespace(message=text) for text in (
            "Memory efficient kernel not used because: (Triggered internally at sdp_utils.cpp:1.)", "Memory efficient attention has been runtime disabled. (Triggered internally at x)",
            "Flash attention kernel not used because: (Triggered internally at y)", "Expected query, key and value to all be of dtype: {Half, BFloat16}. (Triggered internally at z)",
            "CuDNN attention kernel not used because:", "CuDNN attention has been runtime disabled.")]
        self.assertEqual(compare_pytorch.why_sdpa_refused(caught, "SDPA flash"), "Expected query, key and value to all be of dtype: {Half, BFloat16}.")
        self.assertEqual(compare_pytorch.why_sdpa_refused(caught, "SDPA cuDNN"), "")
        self.assertEqual(compare_pytorch.why_sdpa_refused([], "eager"), "")

    def test_few_runs_of_what_is_slow(self):
        for seconds, runs in ((0, 3), (0.06, 2)):
            begun = []
            with mock.patch.object(torch.cuda, "synchronize", lambda: None):
                host = torch_measure.host_ms(lambda: begun.append(1) or (lambda: time.sleep(seconds)))
            self.assertEqual(len(begun), runs)
            self.assertGreaterEqual(host, 1e3 * seconds)

    def test_collections_pass_over_imports(self):
        torch_measure.forget_imports()
        self.addCleanup(gc.unfreeze)
        self.assertGreater(gc.get_freeze_count(), 10_000)

        class Ring:
            pass

        ring = Ring()
        ring.itself, gone = ring, weakref.ref(ring)
        del ring
        gc.collect()
        self.assertIsNone(gone(), "what is made afterwards is collected")

    def test_quantiles(self):
        self.assertEqual([torch_measure.quantile([3, 1, 2], q) for q in (0, 0.25, 0.5, 1)], [1, 1.5, 2, 3])

    def test_bad_arguments(self):
        for flags, text in ((("--heads", "0"), "--heads"), (("--dtype", "fp8"), "fp8"), (("--json", "/nowhere/x.json"), "cannot be written"), (("--sequence", "3"), "--sequence")):
            with self.subTest(flags=flags), contextlib.redirect_stderr(io.StringIO()) as line, self.assertRaises(SystemExit) as end:
                options(*flags)
            self.assertEqual((end.exception.code, line.getvalue().count("\n")), (2, 1))
            self.assertIn(text, line.getvalue())

    def test_without_a_gpu(self):
        done = subprocess.run([sys.executable, REPOSITORY / "plots" / "compare_pytorch.py"], capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (3, "", 1), done.stderr)
        self.assertIn("sees no CUDA GPU", done.stderr)


if __name__ == "__main__":
    unittest.main()
