"""tests/gpu_round.py on programs that stand for the steps and the tools: what runs on which GPU, and what runs at the same time."""
from need import REPOSITORY

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.path.insert(0, str(REPOSITORY / "tests"))
import gpu_round
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
    def start(self, gpus, visible=None, *flags):
        """(the lines of the log, the ended process)."""
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
        done = subprocess.run([sys.executable, REPOSITORY / "tests" / "gpu_round.py", "--folder", folder, "--out", folder, *flags], capture_output=True, text=True, env=environment)
        return log.read_text().splitlines() if log.exists() else [], done

    def round(self, gpus, visible=None):
        """(the lines of the log, what the round printed)."""
        log, done = self.start(gpus, visible)
        self.assertIn("failed:", done.stdout, done.stderr)  # the steps printed no result
        self.assertNotIn("not in this round", done.stdout)
        return log, done.stdout

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

    def test_pieces(self):
        log, done = self.start(1, None, "--only", "roofline,tests_alone")
        self.assertEqual({line.split()[0] for line in log}, {"step00", "ctest"})
        self.assertIn("not in this round: speed_fp32, speed_fp16, counters, traffic, tests, special, exactness, sanitizer\n", done.stdout)
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (1, "1 failed: step00"))  # this step00 ends with 4

    def test_an_unknown_piece_is_refused(self):
        log, done = self.start(1, None, "--only", "roofline,exactnes")
        self.assertEqual((done.returncode, log, done.stdout), (2, [], ""))
        self.assertRegex(done.stderr, r"\A.*no part 'exactnes'.*\n\Z")


class PyTorchTimes(unittest.TestCase):
    """What is measured under which name: the methods of compare_pytorch.py, here told apart by (name, causal, pass) in place of a time."""

    def times(self, dtype="fp16", first=True, fails={}, lost={}):
        made = lambda names, causal, ours: [types.SimpleNamespace(name=name, causal=causal, ours=ours) for name in names]
        torch_methods = lambda seqlen, causal, device: made(("eager", "SDPA efficient", "SDPA flash", "SDPA cuDNN"), causal, False)
        step_methods = lambda steps, dtype, causal: made(("step04", "step06", "step07", "step08", "step05 standard", "step05 recompute", "step04 on tensor cores", "step05 recompute on tensor cores"), causal, True)

        class Start(tuple):
            def __call__(self):
                def run():
                    if self[0] in fails:
                        raise fails[self[0]]
                return run

        measure = lambda starts, clock, repeat, seconds: ({name: {"median_ms": tuple(start), "p10_ms": 0.0} for name, start in starts.items() if name not in lost}, lost)
        with mock.patch.multiple(pytorch_times.compare_pytorch, create=True, make_tensors=lambda options: (), torch_methods=torch_methods, step_methods=step_methods, measure=measure,
                                 work_of=lambda which, method, tensors: (Start((method.name, method.causal, which)), None, 0), first_line=str):
            return pytorch_times.times(dtype, first, 4, 32, 4096, 64, None, None)

    def test_half(self):
        found = self.times()
        self.assertEqual(found["eager backward"], ("eager", False, "backward"))
        self.assertEqual(found["step05 recompute backward"], ("step05 recompute", False, "backward"))
        self.assertEqual((found["step07"], found["step07 causal"]), (("step07", False, "forward"), ("step07", True, "forward")))
        self.assertEqual(found["SDPA flash causal"], ("SDPA flash", True, "forward"))
        self.assertEqual(set(self.times(first=False)), {f"{name}{label}" for name in ("SDPA cuDNN", "step07", "step08") for label in ("", " causal")})

    def test_fp32(self):
        forwards = {f"{name}{label}" for name in ("SDPA efficient", "step04 on tensor cores") for label in ("", " causal")}
        self.assertEqual(set(self.times("fp32")), forwards | {"eager", "eager backward", "step05 recompute on tensor cores backward"})
        self.assertEqual(set(self.times("fp32", first=False)), forwards)

    def test_what_is_not_here_is_missing(self):
        found = self.times(fails={"step08": pytorch_times.StepError(3, "needs a Hopper GPU"), "SDPA cuDNN": RuntimeError("No available kernel")})
        self.assertEqual({name for name in self.times() if name not in found}, {"step08", "step08 causal", "SDPA cuDNN", "SDPA cuDNN causal"})

    def test_what_fails_ends_it(self):
        for fails, line in (({"step08": pytorch_times.StepError(4, "illegal address")}, "step08: illegal address"), ({"step04": RuntimeError("lost")}, "step04: lost"),
                            ({"SDPA flash": RuntimeError("none")}, "SDPA flash: none")):
            with self.assertRaisesRegex(SystemExit, line):
                self.times(fails=fails)

    def test_out_of_memory(self):
        with self.assertRaisesRegex(SystemExit, "eager backward: no memory"):
            self.times(lost={"eager backward": "no memory"})


class Speed(unittest.TestCase):
    """How the round judges times, here made up: a goal is reached, missed by less than 7 %, or failed."""

    def judged(self, dtype, rival=1.0):
        """{line: state}; every one of PyTorch's times is 10 ms times `rival`, each step's 1 ms."""
        pytorch = lambda name: name.startswith(("SDPA", "eager"))
        with tempfile.TemporaryDirectory() as folder:
            round_ = gpu_round.Round(pathlib.Path(folder), pathlib.Path(folder))
            names = lambda first: [f"{name}{label}" for name in pytorch_times.METHODS[dtype][0 if first else 1] for label in ("", " causal")] + [
                *([f"{name} backward" for name in pytorch_times.BACKWARDS[dtype]] + ["eager"] if first else [])]
            beside = {" ".join(map(str, shape[1:])): {name: 10 * rival if pytorch(name) else 2.0 if "standard" in name else 1.0 for name in names(shape in gpu_round.PEER_SHAPES)}
                      for shape in (*gpu_round.PEER_SHAPES, *gpu_round.LONG_SHAPES, *gpu_round.SHORT_SHAPES)}
            time = {"median_ms": 1.0, "tflops": 1.0}
            run = {"time": time, "methods": [{"name": "recompute backward", "time": time, "exactness": [{"worst": 0.1}]}], "kernels": [{"name": name, "time_ms": 1.0} for name in ("scores", "values")]}
            with mock.patch.object(round_, "call", lambda command, timeout=300: (0, json.dumps(beside), "", 0)), mock.patch.object(round_, "run", lambda *flags: (run, 0, "")), \
                    mock.patch.object(gpu_round, "hopper", lambda: gpu_round.HOPPER), mock.patch("builtins.print"):
                getattr(gpu_round, f"speed_{dtype}")(round_)
            return {name: state for name, state, _ in round_.lines}

    def test_reached(self):
        for dtype in ("fp32", "fp16"):
            self.assertEqual(set(self.judged(dtype).values()), {"ok", "n/a"}, dtype)

    def test_missed_and_failed(self):
        lines = self.judged("fp16", 0.1)  # as fast as PyTorch
        self.assertEqual(lines["step08 beside cuDNN, B4 H16 N4096 d128"], "ok")  # the goal is 1.0
        self.assertEqual(lines["step08 beside cuDNN, B4 H32 N4096 d64"], "missed")  # 1.05
        self.assertEqual(lines["step08 beside cuDNN, B1 H32 N16384 d64"], "FAILED")  # 1.15
        self.assertEqual(lines["step06 fp16, B4 H32 N4096 d64"], "missed")  # 5x eager
        lines = self.judged("fp32", 0.15)
        self.assertEqual(lines["step05 fp32 on tensor cores, B4 H16 N4096 d128, over eager's backward"], "ok")
        self.assertEqual(lines["step04 fp32 on tensor cores, B4 H16 N4096 d128, over fused"], "FAILED")


if __name__ == "__main__":
    unittest.main()
