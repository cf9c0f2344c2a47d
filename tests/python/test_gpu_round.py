"""tests/gpu_round.py on programs that stand for a build's and for the tools: what runs, what fails, what is left
out."""

from need import REPOSITORY, InFolder

import json
import os
import pathlib
import subprocess
import sys
import unittest

from plots import results

sys.path.insert(0, str(REPOSITORY / "tests"))
import gpu_round

GPU_ROUND = REPOSITORY / "tests" / "gpu_round.py"
FAKE_STEP = pathlib.Path(__file__).with_name("fake_step.py")


class GpuRound(InFolder):
    def round(self, only, **environment):
        """(exit code, stdout and stderr, {log: text})."""
        fake = f'exec "{sys.executable}" -ES "{FAKE_STEP}"'
        tools = {
            "nvidia-smi": "echo 9.0",
            "ctest": "echo 100% tests passed; exit ${CTEST-0}",
            "compute-sanitizer": 'case "$*" in *racecheck*step42*) exit 9;; esac',
        }
        for program, text in {**tools, **{f"step{n}": f'{fake} step{n} "$@"' for n in ("00", "04", "42")}}.items():
            self.program(program, text)
        words = [GPU_ROUND, "--folder", self.folder, "--out", self.folder / "out", "--only", only]
        environment |= {"PATH": f"{self.folder}:{os.environ['PATH']}", "FAKE_STEP_LOG": str(self.folder / "log")}
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, encoding="utf-8", env={**os.environ, **environment}
        )
        logs = {path.name: path.read_text(encoding="utf-8") for path in self.folder.glob("out/*")}
        return done.returncode, done.stdout + done.stderr, logs

    def test_passes(self):
        code, text, logs = self.round("figures,tests,steps,edges")
        self.assertEqual(code, 0, text)
        self.assertIn("not in this round: build, sanitizer, speed", text)
        self.assertIn("gpu", json.loads(logs["step00.json"]))
        self.assertIn("-L gpu", logs["tests.log"])
        for what in (
            "step04 fp32",
            "step04 fp32 on tensor cores",
            "step04 fp16",
            "step42 fp16",
            "step42 --no-trick",
        ):  # as they describe
            self.assertRegex(text, rf"ok +{what} +worst 0.50 of the allowance")
        self.assertNotIn("step42 fp32", text)
        self.assertEqual(logs["steps.log"].count("$ "), 3 * 4 + 3 * 2 + 1)  # outlier columns in fp32 alone

    def test_what_fails(self):
        for only, environment, what in (
            ("tests", {"CTEST": "8"}, "ctest -L gpu"),
            ("steps", {"FAKE_STEP_WRONG": "step42"}, "exactness"),
            ("sanitizer", {}, "compute-sanitizer racecheck"),
        ):
            code, text, _ = self.round(only, **environment)
            self.assertEqual(code, 1, text)
            self.assertTrue(text.rstrip().endswith(f"1 failed: {what}"), text)

    def test_speed_against_the_stored_results(self):
        stored = results.load([REPOSITORY / "docs" / "results" / "nvidia-h200.json"])
        sizes = dict(dtype="fp16", head_dim=64, seqlen=4096, causal=False, set="sizes")
        row = results.one_row(stored, method="step04", **sizes, **{"pass": "forward"})
        ratio = results.beside(stored, row, "eager")["time"]["median_ms"] / row["time"]["median_ms"]
        for factor, state in ((1, True), (0.95, "slower"), (0.8, False)):
            self.assertEqual(gpu_round.judged(factor * ratio, 1, row, stored)[0], state, factor)
        self.assertEqual(gpu_round.judged(2, 1, None, stored), (None, "1.000 ms, 2.00x eager; not in docs/results"))

    def test_bad_arguments(self):
        code, text, _ = self.round("tests,sped")
        self.assertEqual((code, text.count("\n")), (2, 1), text)


if __name__ == "__main__":
    unittest.main()
