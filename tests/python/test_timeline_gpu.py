"""--timeline by a GPU's clock, of the steps that were built for it (stepNN-timeline). Skipped where there is none, and
without a GPU."""

import subprocess
import sys
import unittest

from need import BUILD, SKIPPED, InFolder, trace_of

PROGRAMS = sorted((BUILD / "timeline").glob("step[0-9][0-9]"))


def on_gpu(program, *flags):
    return subprocess.run([program, "--device", "gpu", *flags], capture_output=True, text=True)


class ByAGpusClock(InFolder):
    def test_tracks(self):
        for program in PROGRAMS:
            with self.subTest(program.name):
                path, stamps = self.folder / "tracks.json", self.folder / "tracks.stamps"
                done = on_gpu(program, "--dtype", "fp16", "--traffic", "off", "--timeline", path)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertRegex(done.stdout, r"timeline .* with timestamps, [0-9.]+ times the plain time")
                trace = trace_of(self, path)
                self.assertIn("clock of SM 0", trace["otherData"]["time"])
                kinds = {event["cat"] for event in trace["traceEvents"] if event["ph"] == "X"}
                self.assertLessEqual({"product", "softmax"}, kinds)
                self.assertTrue(kinds & {"load", "copy"}, kinds)
                self.assertEqual(on_gpu(program, "--timeline", stamps, "--traffic", "off").returncode, 0)
                self.assertEqual(on_gpu(program, "--stamps", stamps, "--timeline", path).returncode, 0)

    def test_a_usual_build_says_what_to_build(self):
        name = PROGRAMS[0].name
        done = on_gpu(BUILD / name, "--dtype", "fp16", "--timeline", self.folder / "tracks.svg")
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1))
        self.assertIn(f"make {name}-timeline", done.stderr)


if __name__ == "__main__":
    if not PROGRAMS:
        print(f"skipped: no stepNN-timeline in {BUILD}")
        sys.exit(SKIPPED)
    plan = on_gpu(PROGRAMS[0], "--plan")
    if plan.returncode == 3:
        print(f"skipped: {plan.stderr.strip()}")
        sys.exit(SKIPPED)
    unittest.main()
