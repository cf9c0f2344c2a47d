"""The C interface, compare_pytorch.py and the swap check on a GPU. Skipped where PyTorch sees none; a library without
GPU kernels fails."""

from need import BUILD, LIBRARY, REPOSITORY, SKIPPED, need

need("torch", "numpy")
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

from plots.attention_steps import StepError, Steps
from plots.measuring import compare_pytorch, torch_measure
from plots.programs import described, runs_on

# Rounding of a right kernel, far below any mistake; half precision rounds P and the output to its type.
BOUND = {"fp32": 3e-6, "fp16": 3e-3, "bf16": 2e-2}


def capability():
    return 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]


def runs_here(program):
    return runs_on(program, capability())


class OnTheGpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.steps = Steps.load(LIBRARY)
        cls.programs = [program for program in described(BUILD) if program["kind"] == "attention"]
        cls.dtypes = [dtype for dtype in BOUND if dtype != "bf16" or capability() >= 80]

    def script(self, name, flags):
        script = REPOSITORY / "plots" / "measuring" / name
        words = [sys.executable, script, *flags.split(), "--library", self.steps.path]
        return subprocess.run([str(word) for word in words], capture_output=True, encoding="utf-8")

    def test_every_step(self):
        """Each in each product, pass and shape that it serves; at least one shape of every step that is for this
        GPU."""
        served = set()
        for dtype in self.dtypes:
            for seqlen, head_dim, causal in ((300, 64, True), (77, 40, False), (129, 128, True)):
                problem = dict(dtype=dtype, batch=2, heads=3, seqlen=seqlen, head_dim=head_dim, causal=causal)
                tensors = compare_pytorch.make_tensors(problem)
                truth = torch_measure.reference(*tensors, causal)
                ours = compare_pytorch.step_methods(self.steps, self.programs, dtype, causal)
                for method, which in ((method, which) for method in ours for which in method.passes):
                    with self.subTest(**problem, method=method.name, product=method.product, which=which):
                        try:
                            outputs = compare_pytorch.start_of(which, method, tensors, nan=True)()()
                        except StepError as error:
                            self.assertEqual(error.code, 3, error)
                            continue
                        served.add((method.step, dtype))
                        found = torch_measure.errors(dict(zip(compare_pytorch.outputs_of(which), outputs)), truth)
                        self.assertLess(torch_measure.worst_error(found, "relative_l2"), BOUND[dtype])
        here = [program for program in self.programs if runs_here(program)]
        self.assertEqual(served, {(p["id"], dtype) for p in here for dtype in p["dtypes"] if dtype in self.dtypes})

    def test_refused(self):
        q = torch.zeros(1, 1, 8, 64, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()), self.assertRaisesRegex(ValueError, "default stream"):
            self.steps.forward("step04", q, q, q)
        with self.assertRaisesRegex(ValueError, "where q is"):
            self.steps.forward("step04", q, q.cpu(), q)

    def test_swap(self):
        for program in self.programs:
            with self.subTest(step=program["id"]):
                done = self.script("swap_check.py", f"--device gpu --step {program['id']}")
                self.assertEqual(done.returncode, 0 if runs_here(program) else 3, done.stdout + done.stderr)
                self.assertIn("swap check: PASS" if runs_here(program) else program["id"], done.stdout + done.stderr)

    def test_compare(self):
        for dtype in self.dtypes:
            with self.subTest(dtype=dtype), tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, "result.json")
                sizes = "--batch 1 --heads 4 --seqlen 512 --causal --repeat 3"
                done = self.script("compare_pytorch.py", f"--dtype {dtype} {sizes} --json {path}")
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                result = json.loads(path.read_text(encoding="utf-8"))
                rows = {(row["method"], row["product"], row["pass"]): row for row in result["rows"] if row["ours"]}
                ours = compare_pytorch.step_methods(self.steps, self.programs, dtype, True)
                self.assertEqual(set(rows), {(m.name, m.product, which) for m in ours for which in m.passes})
                here = {p["id"] for p in self.programs if dtype in p["dtypes"] and runs_here(p)}
                for key, row in ((key, row) for key, row in rows.items() if key[0].split()[0] in here):
                    self.assertIsNone(row["not_run"], key)
                    self.assertGreater(row["time"]["median_ms"], 0)
                    if dtype == "fp32":
                        self.assertLess(row["error"]["worst_share"], 1, key)
                scores, lse = 4 * 512 * 512 * (4 if dtype == "fp32" else 2), 4 * 512 * 4
                product = "cuda-cores" if dtype == "fp32" else None
                self.assertEqual(rows["step02", product, "forward"]["extra_bytes"], 2 * scores + lse)
                self.assertEqual(rows["step04", product, "forward"]["extra_bytes"], lse)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        sys.exit(SKIPPED)
    unittest.main()
