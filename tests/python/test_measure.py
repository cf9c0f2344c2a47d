"""plots/measuring/measure.py on executables that stand for a GPU's: what runs, what is kept, what a row holds."""

from need import BUILD, REPOSITORY, InFolder, script

import contextlib
import fcntl
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import types
import unittest
from unittest import mock

from plots import results
from plots.measuring import compare_pytorch, measure, measure_rows
from plots.script import Stop

FAKE_STEP = pathlib.Path(__file__).with_name("fake_step.py")
PROGRAMS = "step00 step01 step02 step04 step05 step42 yardstick".split()  # step42: in fp16, and a backward, alone
ONE = "--dtype fp16 --head-dim 64 --no-causal "


class FakeTorch:
    """PyTorch's rows without PyTorch."""

    versions, missing = {"torch": "9.9", "cuda_of_torch": "13.0", "cudnn": 91000, "triton": None}, None

    def rows(self, problem):
        ran = {"time": {"median_ms": 500}, "tflops": 1.5, "extra_bytes": 9}
        ran["error"] = {"relative_l2": 2e-3, "worst_share": None}
        row = lambda name, which: results.empty_row(name, f"PyTorch {name}", False, which, None, problem)
        return [
            row(name, which) | ({"not_run": "dtype"} if name == "SDPA flash" else ran)
            for which in measure_rows.passes_of(problem)
            for name in measure_rows.methods_at(problem)[1]
        ]

    def close(self):
        pass


class Runner(InFolder):
    def setUp(self):
        super().setUp()
        for name in PROGRAMS:
            self.program(name, f'exec "{sys.executable}" -ES "{FAKE_STEP}" {name} "$@"')
        self.log, self.out, self.torch = self.folder / "log", self.folder / "out.json", FakeTorch()
        for patch in (
            mock.patch.dict(os.environ, {"FAKE_STEP_LOG": str(self.log)}),
            mock.patch.object(measure_rows, "Torch", lambda: self.torch),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def run_table(self, flags="", out=None, **environment):
        """(exit code, stdout, calls of the executables without step00's)."""
        self.log.write_text("", encoding="utf-8")
        words = ["measure.py", "--folder", str(self.folder), "--out", str(out or self.out), *flags.split()]
        with (
            mock.patch.dict(os.environ, environment),
            contextlib.redirect_stdout(io.StringIO()) as text,
            mock.patch.object(sys, "argv", words),
        ):
            code = measure.main()
        calls = self.log.read_text(encoding="utf-8").splitlines()
        return code, text.getvalue(), [line for line in calls if not line.startswith("step00")]

    def read(self, key="rows", path=None):
        return json.loads((path or self.out).read_text(encoding="utf-8"))[key]

    def test_headline(self):
        """Every program of the folder in every product that it describes, and PyTorch: a new step needs no entry
        anywhere."""
        code, out, calls = self.run_table()
        self.assertEqual(code, 0, out)
        self.assertEqual(len(calls), 4 * (9 + 6) + 4, "fp32 on both products, fp16; sweeps of two dtypes and head_dims")
        new = "step42 --json - --dtype fp16 --batch 4 --heads 16 --seqlen 4096 --head-dim 128 --causal --device gpu"
        self.assertIn(f"{new} --check sample:64 --traffic auto", calls)
        self.assertEqual({call.split()[0] for call in calls if "fp32" in call}, {*PROGRAMS} - {"step00", "step42"})
        [loaded] = results.load([self.out]).values()
        self.assertEqual((loaded["gpu"], loaded["versions"]["torch"]), ("NVIDIA Made Up 1", "9.9"))
        self.assertEqual(len(loaded["rows"]), 4 * (6 + 5 + 8) + 4 * (7 + 8))
        for line in (
            r"\[1/8\] fp32.*: \d+\.\d s \(step01 \d+\.\d, .*PyTorch \d+\.\d\), \d+ of 19 rows\n",
            r"step04 title of step04 +100 +4.00x +2.00x +5.00x +10 +5.0 MB +5.1 MB +4.1 kB \(N\) +3.0e-03 +1 +8.00x",
            r"step04 title of step04 on tensor cores +50 +8.00x +4.00x +10.00x .* 0.50 +1 +16.00x\n",
            r"step05 recompute backward +150 +4.00x +3.33x",
            r"step42 title of step42 +300 ",
            r"PyTorch SDPA flash +n/a: dtype\n",
        ):
            self.assertRegex(out, line)
        self.assertNotIn("/home/a", self.out.read_text(encoding="utf-8"), "no path of the machine")

    def test_rows(self):
        self.run_table(ONE + "--seqlen 512")
        rows = {(row["method"], row["pass"]): row for row in self.read()}
        for row in rows.values():
            self.assertLessEqual({*results.CONFIGURATION, *results.MEASURED, "tile", "verdict"}, set(row))
            if row["ours"] and row["not_run"] is None:
                empty = {key for key, value in row.items() if value is None and f"{key}_reason" not in row}
                self.assertLessEqual(empty, {"not_run", "product"}, row["method"])
        step = rows["step05 recompute backward", "backward"]
        self.assertEqual(step["time"], {"median_ms": 18.75, "p10_ms": 17.75, "p90_ms": 19.75, "runs": 20})
        self.assertEqual(step["error"], {"relative_l2": 3e-3, "max_abs": 6e-3, "worst_share": 0.5})
        self.assertEqual(step["by_tensor"], {"Q": 12})
        self.assertEqual((step["hbm_measured_bytes"], step["hbm_measured_bytes_reason"]), (None, "counters are off"))
        self.assertNotIn(("step05 forward", "forward"), rows, "a backward's forward is there to save what it needs")

    def test_counters(self):
        for flags, counters in (
            ("--seqlen 512", "off"),
            ("--seqlen 512 --batch 1 --heads 1", "auto"),
            ("--seqlen 4096", "auto"),
        ):
            calls = self.run_table(ONE + flags)[2]
            self.assertEqual({call.split()[-1] for call in calls if "--sweep-tiles" not in call}, {counters}, flags)

    def test_what_does_not_fit_crashes_or_is_wrong(self):
        strange = {"FAKE_STEP_TOO_LARGE": "4096", "FAKE_STEP_CRASH": "step05", "FAKE_STEP_WRONG": "step04"}
        code, out, _ = self.run_table(ONE, **strange)
        rows = {row["method"]: row for row in self.read()}
        shortage = "step01: S and P need 9 bytes, 8 are free; step03 needs none of them"
        self.assertEqual(rows["step01"]["not_run"], shortage)
        why = "the run with counters was ended by signal 6; this one had none"
        self.assertEqual(rows["step05 standard backward"]["hbm_measured_bytes_reason"], why)
        self.assertEqual((code, rows["step04"]["verified"], rows["step04"]["time"]), (1, False, None))
        self.assertRegex(out, r"step04 .*n/a: its result was wrong: dq: worst at 1,2,3")
        results.load([self.out])

    def test_full_and_its_order(self):
        unset = dict.fromkeys(("dtype", "head_dim", "causal", "seqlen", "batch", "heads"))
        options = types.SimpleNamespace(full=True, shard=(0, 1), **unset)
        chosen = measure.chosen_problems(options, measure_rows.DTYPES)
        lines = chosen[12:35]  # after the headline: 8 N of 16 heads, 7 more heads, 8 more N of one head
        self.assertEqual(len(chosen), 72 + len(lines))
        self.assertTrue(all(problem["seqlen"] == 4096 for problem in chosen[:12]))
        self.assertEqual({results.set_of(p) for p in chosen[:12] + chosen[35:]}, {"sizes"})
        self.assertEqual({p["seqlen"] for p in lines if p["heads"] == 16}, {1024 << n for n in range(8)})
        self.assertEqual({p["heads"] for p in lines if p["seqlen"] == 4096}, {1 << n for n in range(8)})
        self.assertEqual(max(p["seqlen"] for p in lines if p["heads"] == 1), 1 << 20)
        ran = lambda heads, n: next(
            measure_rows.methods_at(p)[0] for p in lines if (p["heads"], p["seqlen"]) == (heads, n)
        )
        self.assertEqual((ran(16, 131072), ran(1, 131072)), (("step02", "step04"), ("step04", "step09")))
        self.assertEqual((ran(1, 1 << 20), ran(16, 4096), ran(1, 16384)), (("step09",), None, None))
        options.shard = (1, 3)
        self.assertEqual(len(measure.chosen_problems(options, measure_rows.DTYPES)), 32)

    def test_shards_and_merge(self):
        flags, paths = "--dtype fp16 --seqlen 512 1024", [self.folder / f"{n}.json" for n in range(3)]
        self.run_table(flags)
        for n, path in enumerate(paths):
            self.run_table(f"{flags} --shard {n}/3", out=path)
        sizes = [len({results.configuration(row) for row in self.read(path=path)}) for path in paths]
        self.assertEqual(sizes, [3, 3, 2])
        [merged], [alone] = results.load(paths).values(), results.load([self.out]).values()
        by_key = lambda rows: sorted(rows, key=lambda row: str(results.row_key(row)))
        self.assertEqual(by_key(merged["rows"]), by_key(alone["rows"]))

    def test_sweeps(self):
        flags = "--dtype fp16 --seqlen 4096"
        swept = lambda calls: [line.split()[0] for line in calls if "--sweep-tiles" in line]
        self.assertEqual(swept(self.run_table(flags)[2]), ["step04"] * 2, "d 64 and 128")
        sweeps = self.read("sweeps")
        found = [(sweep["head_dim"], sweep["causal"], sweep["best"]) for sweep in sweeps]
        self.assertEqual(found, [(64, False, "64x64"), (128, False, "64x64")])
        self.assertIn("not swept: a tile's result was wrong", self.run_table(flags, FAKE_STEP_WRONG="step04")[1])
        self.assertEqual(self.read("sweeps"), sweeps, "what was measured before stays")
        for others in ("--seqlen 512", "--causal"):
            self.assertFalse(swept(self.run_table(f"--dtype fp16 {others}")[2]), others)

    def test_resume(self):
        flags = "--dtype fp16 --head-dim 64 --seqlen 512 1024"
        self.run_table(f"{flags} --no-causal")
        before = self.read()
        broken = json.loads(self.out.read_text(encoding="utf-8"))
        broken["rows"] = [row for row in before if not (row["method"] == "eager" and row["seqlen"] == 512)]
        self.out.write_text(json.dumps(broken), encoding="utf-8")
        code, out, calls = self.run_table(f"{flags} --resume")
        self.assertEqual((code, out.count(": kept")), (0, 1))
        ran = {(line.split("--seqlen ")[1].split()[0], "--causal" in line) for line in calls}
        self.assertEqual(ran, {("1024", True), ("512", False), ("512", True)})
        self.assertEqual(len(self.read()), 2 * len(before))
        self.assertEqual(self.run_table(f"{flags} --resume")[2], [])
        self.assertEqual(len(self.run_table(f"{flags} --no-causal")[2]), 12, "without --resume all is measured again")
        self.assertEqual(len(self.read()), 2 * len(before), "and what was not asked for stays")
        calls = self.run_table(f"{flags} --no-causal --resume", FAKE_STEP_COMMIT="def456")[2]
        self.assertEqual(len(calls), 12, "another commit's rows are not kept")
        self.assertEqual(len(self.read()), len(before))

    def test_saved_after_each_configuration(self):
        seen, real = [], measure_rows.measure_problem
        watched = lambda *arguments: seen.append(len(self.read()) if self.out.exists() else 0) or real(*arguments)
        with mock.patch.object(measure_rows, "measure_problem", watched):
            self.run_table(ONE + "--seqlen 512 1024")
        self.assertEqual(seen, [0, 15])

    def test_commit(self):
        for built, given, commit, reason in (
            ("", "--commit feed01", "feed01", None),
            ("", "", None, "no git here"),
            ("abc123", "", "abc123", None),
        ):
            self.out.unlink(missing_ok=True)
            self.run_table(f"{ONE} --seqlen 512 {given}", FAKE_STEP_COMMIT=built)
            written = json.loads(self.out.read_text(encoding="utf-8"))
            self.assertEqual((written["commit"], written.get("commit_reason")), (commit, reason))
        with self.assertRaisesRegex(Stop, "built from abc123"):
            self.run_table(ONE + "--commit feed01")

    def test_a_second_writer_is_refused(self):
        with open(self.folder / ".out.json.lock", "w", encoding="utf-8") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with self.assertRaisesRegex(Stop, "another run writes this file"):
                self.run_table(ONE)
        self.run_table(ONE + "--seqlen 512")
        self.assertFalse(list(self.folder.glob(".out*")), "no lock and no part is left")

    def test_without_pytorch(self):
        self.torch.versions, self.torch.missing = None, "PyTorch is not installed"
        code, out, _ = self.run_table(ONE)
        self.assertEqual(code, 0)
        self.assertIn("PyTorch rows: n/a: PyTorch is not installed", out)
        self.assertNotIn("over eager", out)
        self.assertEqual({row["ours"] for row in self.read()}, {True})

    def test_bad_arguments(self):
        for flags, text in (
            ("--shard 0/2", "--out"),
            ("--shard 2/2", "--shard"),
            ("--out /nowhere/x.json", "cannot be written"),
            ("--dtype fp8", "fp8"),
            ("x.json", "x.json"),
            ("--folder /nowhere", "no step00"),
        ):
            code, out, err = script("measuring/measure.py", *flags.split())
            self.assertEqual((code, out, err.count("\n")), (2, "", 1), err)
            self.assertIn(text, err)


class TorchProcess(unittest.TestCase):
    def test_a_process_that_dies_is_replaced(self):
        without_pool = lambda self: setattr(self, "pool", None)
        with (
            mock.patch.object(compare_pytorch, "begin", os.getpid),
            mock.patch.object(measure_rows.Torch, "__init__", without_pool),
        ):
            torch = measure_rows.Torch()
            self.addCleanup(torch.close)
            self.assertEqual(torch._ask(os._exit, 3), {"failed": "PyTorch's process ended"})
            self.assertEqual(torch._ask(dict, [("a", 1)]), {"a": 1})


class WithoutGpu(InFolder):
    """The real steps on the CPU executor."""

    def setUp(self):
        if not (BUILD / "step04").is_file():
            self.skipTest(f"no steps in {BUILD}")
        super().setUp()
        for name in ("step00", "step04", "step06"):
            (self.folder / name).symlink_to((BUILD / name).resolve())

    def test_steps_table(self):
        # A program whose step has been deleted.
        self.program("step77", """echo '{"id": "step77", "kind": "attention", "title": ""}'""")
        table = lambda flags: script(
            "tables/steps_table.py", "--folder", self.folder, "--device", "cpu", "--seqlen", "64", *flags.split()
        )
        for flags, heading, step06 in (
            ("--dtype fp32", "fp32", r"step06 +asynchronous pipeline +n/a: [^:;]*fp16[^:;]*\n$"),
            ("--product tensor-cores", "fp32 on tensor cores", r"step06 .*PASS"),
            ("--dtype fp16", "fp16", r"step06 .*PASS"),
        ):
            code, out, err = table(flags)
            self.assertEqual((code, err), (0, ""), flags)
            self.assertTrue(out.splitlines()[0].endswith(f": {heading}, batch 1, heads 2, N 64, d 64"), out)
            self.assertRegex(out, r"step04 +online softmax +PASS")
            self.assertRegex(out, step06)
        code, out, err = table("--sweep-tiles")
        self.assertIn((code, out), ((2, ""), (3, "")), err)  # 3: a build with the default tiles has nothing to sweep
        self.assertNotIn("Traceback", err)

    def test_executor(self):
        before = sorted(REPOSITORY.glob("docs/results/*"))
        flags = "--dtype fp32 --causal --seqlen 128 --heads 1".split()
        code, out, err = script("measuring/measure.py", "--folder", self.folder, *flags)
        self.assertEqual(code, 0, out + err)
        self.assertRegex(out, r"fp32 on tensor cores, batch 1, heads 1, N 128, d 64, causal\n.*\n?.*")
        self.assertEqual(len([line for line in out.splitlines() if "step04" in line and "PASS" in line]), 2)
        self.assertNotRegex(out, r"over |TFLOP")
        self.assertEqual(sorted(REPOSITORY.glob("docs/results/*")), before)


@unittest.skipUnless(shutil.which("make"), "no make")
class MakeTable(InFolder):
    """`make table` with programs that stand for CMake and Python: what is drawn, and that nothing is installed."""

    def test_drawn_where_something_was_measured(self):
        for new, drawn in ((":", []), ("echo '{\"new\": 1}' > docs/results/one.json", ["plots/figures/draw_all.py"])):
            for path in ("docs/results/one.json", "build/CMakeCache.txt", "log"):
                self.write(path, "")
            shutil.copy(REPOSITORY / "Makefile", self.folder)
            shutil.copytree(REPOSITORY / "cmake", self.folder / "cmake", dirs_exist_ok=True)
            python = f'[ "$1" = -c ] && exit 1; echo $1 >> log; case "$1" in *measure.py) {new};; esac'
            for program, text in (("bin/cmake", ""), ("setup.sh", "echo setup.sh >> log"), ("bin/python3", python)):
                self.program(program, text)
            environment = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "PYTHONS": "python3"}
            done = subprocess.run(["make", "table"], cwd=self.folder, capture_output=True, env=environment)
            self.assertEqual(done.returncode, 0, done.stderr)
            log = (self.folder / "log").read_text(encoding="utf-8").splitlines()
            self.assertEqual(log, ["plots/measuring/measure.py", *drawn])


if __name__ == "__main__":
    unittest.main()
