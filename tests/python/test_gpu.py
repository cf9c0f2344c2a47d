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

    def script(self, name, *flags):
        command = [sys.executable, REPOSITORY / "plots" / "measuring" / name, *flags, "--library", self.steps.path]
        return subprocess.run([str(word) for word in command], capture_output=True, encoding="utf-8")

    def test_every_step(self):
        """Each in each product and shape that it serves; at least one shape of every step that is for this GPU."""
        served = set()
        for dtype in self.dtypes:
            for seqlen, head_dim, causal in ((300, 64, True), (77, 40, False), (129, 128, True)):
                problem = compare_pytorch.parse(
                    [
                        "--dtype",
                        dtype,
                        "--batch",
                        "2",
                        "--heads",
                        "3",
                        "--seqlen",
                        str(seqlen),
                        "--head-dim",
                        str(head_dim),
                    ]
                )
                tensors = compare_pytorch.make_tensors(problem)
                truth = torch_measure.reference(*tensors, causal)
                for method in compare_pytorch.step_methods(self.steps, self.programs, dtype, causal):
                    with self.subTest(dtype=dtype, seqlen=seqlen, head_dim=head_dim, method=method.name):
                        which = method.passes[0]
                        try:
                            outputs = compare_pytorch.work_of(which, method, tensors)[1]()
                        except StepError as error:
                            self.assertEqual(error.code, 3, error)
                            continue
                        served.add((method.step, dtype))
                        found = torch_measure.errors(
                            dict(zip(("o",) if which == "forward" else ("dq", "dk", "dv"), outputs)), truth
                        )
                        self.assertLess(torch_measure.worst_error(found, "relative_l2"), BOUND[dtype])
        here = {
            (program["id"], dtype)
            for program in self.programs
            if runs_here(program)
            for dtype in program["dtypes"]
            if dtype in self.dtypes
        }
        self.assertEqual(served, here)

    def test_refused(self):
        q = torch.zeros(1, 1, 8, 64, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()), self.assertRaisesRegex(ValueError, "default stream"):
            self.steps.forward("step04", q, q, q)
        with self.assertRaisesRegex(ValueError, "where q is"):
            self.steps.forward("step04", q, q.cpu(), q)

    def test_swap(self):
        for program in self.programs:
            with self.subTest(step=program["id"]):
                done = self.script("swap_check.py", "--device", "gpu", "--step", program["id"])
                self.assertEqual(done.returncode, 0 if runs_here(program) else 3, done.stdout + done.stderr)
                self.assertIn("swap check: PASS" if runs_here(program) else program["id"], done.stdout + done.stderr)

    def test_compare(self):
        for dtype in self.dtypes:
            with self.subTest(dtype=dtype), tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "result.json"
                done = self.script(
                    "compare_pytorch.py",
                    "--dtype",
                    dtype,
                    "--batch",
                    "1",
                    "--heads",
                    "4",
                    "--seqlen",
                    "512",
                    "--causal",
                    "--repeat",
                    "3",
                    "--json",
                    path,
                )
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                result = json.loads(path.read_text(encoding="utf-8"))
                rows = {row["method"]: row for which in ("forward", "backward") for row in result[which] if row["ours"]}
                self.assertEqual(
                    set(rows),
                    {method.name for method in compare_pytorch.step_methods(self.steps, self.programs, dtype, True)},
                )
                for program in (
                    program for program in self.programs if dtype in program["dtypes"] and runs_here(program)
                ):
                    for name, row in ((name, row) for name, row in rows.items() if name.startswith(program["id"])):
                        self.assertIsNone(row["not_run"], name)
                        self.assertGreater(row["time"]["median_ms"], 0)
                        if dtype == "fp32":
                            self.assertLess(max(error["worst_share"] for error in row["errors"].values()), 1, name)
                scores, rows_bytes = 4 * 512 * 512 * (4 if dtype == "fp32" else 2), 4 * 512 * 4
                self.assertEqual(rows["step02"]["extra_bytes"], 2 * scores + rows_bytes)
                self.assertEqual(rows["step04"]["extra_bytes"], rows_bytes)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        sys.exit(SKIPPED)
    unittest.main()
