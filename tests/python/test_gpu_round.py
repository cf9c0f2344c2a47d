"""tests/gpu_round.py on programs that stand for the steps and the tools: what runs on which GPU, and what runs at the same time."""
from need import REPOSITORY

import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.path.insert(0, str(REPOSITORY / "tests"))
import pytorch_times

PROGRAM = """#!/bin/sh
echo "$(basename $0) $* | ${CUDA_VISIBLE_DEVICES-any}" >> LOG
"""
# Each ctest notes its end too. The one of the tests ends well only when a measurement (ncu) runs before its own end.
CTEST = PROGRAM + """
case "$*" in *-LE*) n=0; while [ ! -e LOG.ncu ] && [ $n -lt 100 ]; do sleep 0.1; n=$((n + 1)); done; [ -e LOG.ncu ] || code=1; sleep 2;; esac
echo "ctest ends" >> LOG
echo "100% tests passed"
exit ${code-0}
"""


class Gpus(unittest.TestCase):
    def round(self, gpus, visible=None):
        """(the lines of the log, what the round printed)."""
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        folder = pathlib.Path(holder.name)
        log = folder / "log"

        def program(name, text):
            (folder / name).write_text(text.replace("LOG", str(log)))
            (folder / name).chmod(0o755)

        program("nvidia-smi", "#!/bin/sh\n" + "".join(f"echo {n}\n" for n in range(gpus)))
        for name in ("step00", "step01", "step02", "step03", "step04", "step05", "step06", "compute-sanitizer"):
            program(name, PROGRAM + "exit 4\n")
        program("ncu", PROGRAM + "touch LOG.ncu\n")
        program("ctest", CTEST)
        program("torch.py", "raise ImportError('hidden: nothing here may measure')\n")
        environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"} | {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(folder)}
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        done = subprocess.run([sys.executable, REPOSITORY / "tests" / "gpu_round.py", "--folder", folder, "--out", folder], capture_output=True, text=True, env=environment)
        self.assertIn("failed:", done.stdout, done.stderr)  # the steps printed no result
        return log.read_text().splitlines(), done.stdout

    def seen(self, log, matches):
        """The CUDA_VISIBLE_DEVICES of the programs whose line matches."""
        return {line.rpartition("| ")[2] for line in log if "| " in line and matches(line)}

    def test_one_gpu(self):
        for gpus, visible in ((1, None), (2, "1")):
            log, printed = self.round(gpus, visible)
            self.assertEqual(self.seen(log, lambda line: True), {visible or "any"})
            self.assertRegex(printed, r"ok +ctest, alone on the GPU: 100% tests passed")
            self.assertRegex(printed, r"ok +ctest: 100% tests passed")

    def test_two_gpus(self):
        for visible, first, second in ((None, "any", "1"), ("3,5", "3,5", "5")):
            log, printed = self.round(2, visible)
            for part in ("step00", "ncu", " -L alone", "--traffic auto"):  # what measures
                self.assertEqual(self.seen(log, lambda line: part in line), {first}, part)
            for part in ("compute-sanitizer", " -LE alone", "--init", "--seqlen 131072"):  # what is only right or wrong
                self.assertEqual(self.seen(log, lambda line: part in line), {second}, part)
            self.assertRegex(printed, r"ok +ctest: 100% tests passed", "the tests run while the first GPU measures")
            self.assertEqual([line == "ctest ends" for line in log if line.startswith("ctest")], [False, True, False, True], "one ctest after the other")


class PyTorchTimes(unittest.TestCase):
    """What is measured under which name: the methods of compare_pytorch.py, here told apart by made-up times."""
    MS = {("eager", False, "forward"): 4.0, ("SDPA flash", False, "forward"): 1.0, ("SDPA flash", True, "forward"): 0.5, ("eager", False, "backward"): 9.0}

    def times(self, lost):
        methods = lambda seqlen, causal, device: [types.SimpleNamespace(name=name, causal=causal) for name in ("eager", "SDPA efficient", "SDPA flash")]
        work_of = lambda which, method, tensors: ((method.name, method.causal, which), None, 0)
        measure = lambda starts, clock, repeat, seconds: ({name: {"median_ms": self.MS[start], "p10_ms": 0.0} for name, start in starts.items() if name not in lost}, lost)
        with mock.patch.multiple(pytorch_times.compare_pytorch, create=True, make_tensors=lambda options: (), torch_methods=methods, work_of=work_of, measure=measure):
            return pytorch_times.times("fp16", "SDPA flash", True, 4, 32, 4096, 64, None)

    def test_names(self):
        self.assertEqual(self.times({}), {"eager": 4.0, "fused": 1.0, "fused causal": 0.5, "eager backward": 9.0})

    def test_out_of_memory(self):
        with self.assertRaisesRegex(SystemExit, "eager backward: no memory"):
            self.times({"eager backward": "no memory"})


if __name__ == "__main__":
    unittest.main()
