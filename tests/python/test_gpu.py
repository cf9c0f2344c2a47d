"""The C interface and compare_pytorch.py on a GPU. Skipped where PyTorch sees none; a library without GPU kernels fails."""
from need import LIBRARY, REPOSITORY, SKIPPED, need

need("torch", "numpy")
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import compare_pytorch
import torch
import torch_measure
from attention_steps import StepError, Steps

# Rounding of a right kernel, far below any mistake; half precision rounds P and the output to its type.
BOUND = {"fp32": 3e-6, "fp16": 3e-3, "bf16": 2e-2}


def served(steps, dtype):
    q = torch.zeros(1, 1, 1, 64, dtype=getattr(torch, compare_pytorch.TORCH_DTYPES[dtype]), device="cuda")
    try:
        steps.plan("step04", "forward", q, q)
        return True
    except StepError as error:
        if error.code != 3:
            raise
        return False


def runs_here(step):
    capability = torch.cuda.get_device_capability()
    return {"step06": capability >= (8, 0), "step07": capability == (9, 0), "step08": capability == (9, 0)}.get(step, True)


class OnTheGpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.steps = Steps.load(LIBRARY)
        cls.dtypes = [dtype for dtype in BOUND if served(cls.steps, dtype)]

    def test_every_step(self):
        for dtype in self.dtypes:
            for seqlen, head_dim, causal in ((300, 64, True), (77, 40, False), (129, 128, True)):
                o = compare_pytorch.parse(["--dtype", dtype, "--batch", "2", "--heads", "3", "--seqlen", str(seqlen), "--head-dim", str(head_dim)])[1]
                q, k, v, d_o = compare_pytorch.make_tensors(o)
                truth = torch_measure.reference(q, k, v, d_o, causal)
                for product in ("cuda-cores", "tensor-cores") if dtype == "fp32" else (None,):
                    problem = {"causal": causal, "product": product}
                    for step in ("step01", "step02", "step03", "step04", "step05"):
                        with self.subTest(dtype=dtype, seqlen=seqlen, head_dim=head_dim, step=step, product=product):
                            found = torch_measure.errors({"o": self.steps.forward(step, q, k, v, **problem, nan=True)[0]}, truth)
                            self.assertLess(torch_measure.worst_error(found, "relative_l2"), BOUND[dtype])
                    for method in ("standard backward", "recompute backward"):
                        with self.subTest(dtype=dtype, seqlen=seqlen, head_dim=head_dim, method=method, product=product):
                            out, lse = self.steps.forward("step04", q, k, v, **problem)
                            gradients = self.steps.backward("step05", q, k, v, out, lse, d_o, method=method, **problem, nan=True)
                            found = torch_measure.errors(dict(zip(("dq", "dk", "dv"), gradients)), truth)
                            self.assertLess(torch_measure.worst_error(found, "relative_l2"), BOUND[dtype])

    def test_another_stream_is_refused(self):
        q = torch.zeros(1, 1, 8, 64, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()), self.assertRaisesRegex(ValueError, "default stream"):
            self.steps.forward("step04", q, q, q)

    def test_a_host_tensor_among_them_is_refused(self):
        q = torch.zeros(1, 1, 8, 64, device="cuda")
        with self.assertRaisesRegex(ValueError, "where q is"):
            self.steps.forward("step04", q, q.cpu(), q)

    def test_swap(self):
        for step in ("step04", "step06", "step07", "step08"):
            with self.subTest(step=step):
                served = runs_here(step)
                done = subprocess.run([sys.executable, REPOSITORY / "plots" / "swap_check.py", "--device", "gpu", "--step", step, "--library", str(self.steps.path)], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0 if served else 3, done.stdout + done.stderr)
                self.assertIn("swap check: PASS" if served else step, done.stdout + done.stderr)

    def test_compare(self):
        for dtype in self.dtypes:
            with self.subTest(dtype=dtype), tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "result.json"
                flags = ["--dtype", dtype, "--batch", "1", "--heads", "4", "--seqlen", "512", "--causal", "--repeat", "3", "--library", str(self.steps.path), "--json", str(path)]
                done = subprocess.run([sys.executable, REPOSITORY / "plots" / "compare_pytorch.py", *flags], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                result = json.loads(path.read_text())
                rows = {row["method"]: row for which in ("forward", "backward") for row in result[which] if row["ours"]}
                on_tensor_cores = {f"{name} on tensor cores" for name in ("step04", "step05 standard", "step05 recompute")} if dtype == "fp32" else set()
                later = {"step06", "step07", "step08"} if dtype != "fp32" else set()
                self.assertEqual(set(rows), {"step02", "step03", "step04", "step05 standard", "step05 recompute"} | on_tensor_cores | later)
                for name in later:
                    if not runs_here(name):
                        self.assertIn("step04", rows.pop(name)["not_run"])  # what serves instead
                for name, row in rows.items():
                    self.assertIsNone(row["not_run"], name)
                    self.assertGreater(row["time"]["median_ms"], 0)
                    if row["kernels"] is not None:  # none where the machine forbids profiling
                        self.assertEqual(len(row["kernels"]), {"step02": 3, "step05 standard": 5, "step05 recompute": 3}.get(name.removesuffix(" on tensor cores"), 1), name)
                    if dtype == "fp32":
                        self.assertLess(max(error["worst_share"] for error in row["errors"].values()), 1, name)
                scores = 4 * 512 * 512 * (4 if dtype == "fp32" else 2)
                rows_bytes = 4 * 512 * 4
                self.assertEqual(rows["step02"]["extra_bytes"], 2 * scores + rows_bytes)
                self.assertEqual(rows["step04"]["extra_bytes"], rows_bytes)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        sys.exit(SKIPPED)
    unittest.main()
