"""plots/measuring/measure.py on executables that stand for a GPU's: what runs, what is kept, what a row holds."""

from need import BUILD, REPOSITORY, script

import contextlib
import fcntl
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

from plots import results
from plots.measuring import compare_pytorch, measure, measure_rows
from plots.script import Stop

FAKE_STEP = pathlib.Path(__file__).with_name("fake_step.py")
PROGRAMS = tuple(
    "step00 step01 step02 step04 step05 step42 yardstick".split()
)  # step42: in fp16 alone, and a backward alone
ONE = ("--dtype", "fp16", "--head-dim", "64", "--no-causal")
CONFIGURATION = {"dtype": "fp16", "batch": 4, "heads": 32, "seqlen": 4096, "head_dim": 64, "causal": False}


class FakeTorch:
    """PyTorch's rows without PyTorch."""

    versions, missing = {"torch": "9.9", "cuda_of_torch": "13.0", "cudnn": 91000, "triton": None}, None

    def rows(self, problem):
        ran = {
            "not_run": None,
            "time": {"median_ms": 500, "p10_ms": 1, "p90_ms": 2, "runs": 10},
            "flops": 5,
            "tflops": 1.5,
            "extra_bytes": 9,
            "errors": {"dq": {"relative_l2": 1e-3, "max_abs": None}, "dk": {"relative_l2": 2e-3, "max_abs": 1.0}},
            "kernels": [{"name": "gemm", "us": 1500}],
        }
        return [
            measure_rows.torch_row(
                {"method": name, **(ran if name != "SDPA flash" else {"not_run": "dtype"})}, which, problem
            )
            for which in measure_rows.passes_of(problem)
            for name in measure_rows.torch_methods_of(problem)
        ]

    def close(self):
        pass


class Runner(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        for name in PROGRAMS:
            path = self.folder / name
            path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -ES "{FAKE_STEP}" {name} "$@"\n', encoding="utf-8")
            path.chmod(0o755)
        self.log, self.out, self.torch = self.folder / "log", self.folder / "out.json", FakeTorch()
        for patch in (
            mock.patch.dict(os.environ, {"FAKE_STEP_LOG": str(self.log)}),
            mock.patch.object(measure_rows, "Torch", lambda: self.torch),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def run_table(self, *flags, out=None, **environment):
        """(exit code, stdout, calls of the executables without step00's)."""
        self.log.write_text("", encoding="utf-8")
        text, flags = io.StringIO(), ["measure.py", "--folder", str(self.folder), "--out", str(out or self.out), *flags]
        with (
            mock.patch.dict(os.environ, environment),
            contextlib.redirect_stdout(text),
            mock.patch.object(sys, "argv", flags),
        ):
            code = measure.main()
        return (
            code,
            text.getvalue(),
            [line for line in self.log.read_text(encoding="utf-8").splitlines() if not line.startswith("step00")],
        )

    def rows(self, path=None):
        return json.loads((path or self.out).read_text(encoding="utf-8"))["rows"]

    def test_headline(self):
        """Every program of the folder in every product that it describes, and PyTorch: a new step needs no entry
        anywhere."""
        code, out, calls = self.run_table()
        self.assertEqual(code, 0, out)
        self.assertEqual(
            len(calls),
            4 * (9 + 6) + 4,
            "fp32 on both products, fp16; and sweeps of two dtypes and head_dims, not causal",
        )
        self.assertIn(
            "step42 --json - --dtype fp16 --batch 4 --heads 16 --seqlen 4096 --head-dim 128 --causal "
            "--device gpu --check sample:64 --traffic auto",
            calls,
        )
        self.assertEqual(
            {call.split()[0] for call in calls if "fp32" in call}, {"step01", "step02", "step04", "step05", "yardstick"}
        )
        [loaded] = results.load([self.out]).values()
        self.assertEqual(
            (loaded["gpu"], loaded["commit"], loaded["versions"]["torch"]), ("NVIDIA Made Up 1", "abc123", "9.9")
        )
        self.assertEqual(len(loaded["rows"]), 4 * (6 + 5 + 8) + 4 * (7 + 8))
        self.assertRegex(
            out,
            r"\[1/8\] fp32.*: \d+\.\d s \(step01 \d+\.\d, .*yardstick \d+\.\d, step01 on tensor cores "
            r".*PyTorch \d+\.\d\), \d+ of 19 rows\n",
        )
        self.assertRegex(
            out,
            r"step04 title of step04 +100 +4.00x +2.00x +5.00x +10 +5.0 MB +5.1 MB +4.1 kB \(N\) +3.0e-03 +1 +8.00x",
        )
        self.assertRegex(out, r"step04 title of step04 on tensor cores +50 +8.00x +4.00x +10.00x .* 0.50 +1 +16.00x\n")
        self.assertRegex(out, r"step05 recompute backward +150 +4.00x +3.33x")
        self.assertRegex(out, r"step42 title of step42 +300 ")
        self.assertRegex(out, r"PyTorch SDPA flash +n/a: dtype\n")
        self.assertNotIn("/home/a", self.out.read_text(encoding="utf-8"), "no path of the machine")

    def test_rows(self):
        self.run_table(*ONE, "--seqlen", "512")
        rows = {(row["method"], row["pass"]): row for row in self.rows()}
        keys = {
            "method",
            "title",
            "ours",
            "pass",
            *results.CONFIGURATION,
            "tile",
            "not_run",
            "emulated",
            "verified",
            "verdict",
            *measure_rows.MEASURED,
        }
        for row in rows.values():
            self.assertLessEqual(keys, set(row))
            if row["not_run"] is None:
                without = [
                    key for key in keys - {"not_run", "verified"} if row[key] is None and f"{key}_reason" not in row
                ]
                self.assertEqual(without, [], row["method"])
        step = rows["step05 recompute backward", "backward"]
        self.assertEqual(
            (step["time"], step["error"], step["by_tensor"]),
            (
                {"median_ms": 18.75, "p10_ms": 17.75, "p90_ms": 19.75, "runs": 20},
                {"relative_l2": 3e-3, "max_abs": 6e-3, "worst_share": 0.5},
                {"Q": 12},
            ),
        )
        self.assertEqual((step["hbm_measured_bytes"], step["hbm_measured_bytes_reason"]), (None, "counters are off"))
        eager = rows["eager", "backward"]
        self.assertEqual(
            (
                eager["error"]["relative_l2"],
                eager["error"]["max_abs"],
                eager["kernels"][0]["time_ms"],
                eager["extra_bytes"],
            ),
            (2e-3, None, 1.5, 9),
        )
        shortage = {
            "method": "eager",
            "not_run": "CUDA out of memory. Tried to allocate 512.00 GiB. GPU 0 has 139 GiB. Process 17 has",
        }
        self.assertEqual(
            measure_rows.torch_row(shortage, "forward", CONFIGURATION)["not_run"],
            "CUDA out of memory. Tried to allocate 512.00 GiB",
        )
        self.assertNotIn(("step05 forward", "forward"), rows, "a backward's forward is there to save what it needs")

    def test_counters(self):
        for flags, counters in (
            (("--seqlen", "512"), "off"),
            (("--seqlen", "512", "--batch", "1", "--heads", "1"), "auto"),
            (("--seqlen", "4096"), "auto"),
        ):
            calls = self.run_table(*ONE, *flags)[2]
            self.assertEqual({call.split()[-1] for call in calls if "--sweep-tiles" not in call}, {counters}, flags)

    def test_what_does_not_fit_crashes_or_is_wrong(self):
        code, out, _ = self.run_table(
            *ONE, FAKE_STEP_TOO_LARGE="4096", FAKE_STEP_CRASH="step05", FAKE_STEP_WRONG="step04"
        )
        rows = {row["method"]: row for row in self.rows()}
        self.assertEqual(
            rows["step01"]["not_run"], "step01: S and P need 9 bytes, 8 are free; step03 needs none of them"
        )
        self.assertEqual(
            rows["step05 standard backward"]["hbm_measured_bytes_reason"],
            "the run with counters was ended by signal 6; this one had none",
        )
        self.assertEqual((code, rows["step04"]["verified"], rows["step04"]["time"]), (1, False, None))
        self.assertRegex(out, r"step04 .*n/a: its result was wrong: dq: worst at 1,2,3")
        results.load([self.out])

    def test_full_and_its_order(self):
        options = types.SimpleNamespace(
            full=True, dtype=None, head_dim=None, causal=None, seqlen=None, batch=None, heads=None, shard=(0, 1)
        )
        chosen = measure.chosen_problems(options, measure_rows.DTYPES)
        self.assertEqual(len(chosen), 72 + 8)
        self.assertTrue(all(problem["seqlen"] == 4096 for problem in chosen[:12]))
        self.assertEqual(
            [
                (p["batch"], p["heads"])
                for p in chosen
                if (p["dtype"], p["head_dim"], p["causal"]) == ("bf16", 128, True)
            ],
            [(4, 16), (1, 16), (4, 16), (4, 16), (1, 16), (4, 16)],
        )
        scaling = chosen[12:20]
        self.assertEqual({p["seqlen"] for p in scaling}, {1024 << n for n in range(8)})
        self.assertEqual({results.set_of(p) for p in scaling}, {"scaling"})
        self.assertEqual({results.set_of(p) for p in chosen[:12] + chosen[20:]}, {"sizes"})
        options.shard = (1, 3)
        self.assertEqual(len(measure.chosen_problems(options, measure_rows.DTYPES)), 27)

    def test_shards_and_merge(self):
        flags, paths = ["--dtype", "fp16", "--seqlen", "512", "1024"], [self.folder / f"{n}.json" for n in range(3)]
        self.run_table(*flags)
        for n, path in enumerate(paths):
            self.run_table(*flags, "--shard", f"{n}/3", out=path)
        self.assertEqual([len({results.configuration(row) for row in self.rows(path)}) for path in paths], [3, 3, 2])
        [merged], [alone] = results.load(paths).values(), results.load([self.out]).values()
        by_key = lambda rows: sorted(rows, key=lambda row: str(results.row_key(row)))
        self.assertEqual(by_key(merged["rows"]), by_key(alone["rows"]))

    def test_sweeps(self):
        flags = ["--dtype", "fp16", "--seqlen", "4096"]
        self.assertEqual(
            [line.split()[0] for line in self.run_table(*flags)[2] if "--sweep-tiles" in line],
            ["step04"] * 2,
            "d 64 and 128",
        )
        sweeps = json.loads(self.out.read_text(encoding="utf-8"))["sweeps"]
        self.assertEqual(
            [(sweep["head_dim"], sweep["causal"], sweep["best"]) for sweep in sweeps],
            [(64, False, "64x64"), (128, False, "64x64")],
        )
        self.assertIn("not swept: a tile's result was wrong", self.run_table(*flags, FAKE_STEP_WRONG="step04")[1])
        self.assertEqual(
            json.loads(self.out.read_text(encoding="utf-8"))["sweeps"], sweeps, "what was measured before stays"
        )
        for others in (["--seqlen", "512"], ["--causal"]):
            self.assertFalse(
                [line for line in self.run_table("--dtype", "fp16", *others)[2] if "--sweep-tiles" in line], others
            )

    def test_resume(self):
        flags = ["--dtype", "fp16", "--head-dim", "64", "--seqlen", "512", "1024"]
        self.run_table(*flags, "--no-causal")
        before = self.rows()
        broken = json.loads(self.out.read_text(encoding="utf-8"))
        broken["rows"] = [row for row in before if not (row["method"] == "eager" and row["seqlen"] == 512)]
        self.out.write_text(json.dumps(broken), encoding="utf-8")
        code, out, calls = self.run_table(*flags, "--resume")
        self.assertEqual((code, out.count(": kept")), (0, 1))
        self.assertEqual(
            {(line.split("--seqlen ")[1].split()[0], "--causal" in line) for line in calls},
            {("1024", True), ("512", False), ("512", True)},
        )
        self.assertEqual(len(self.rows()), 2 * len(before))
        self.assertEqual(self.run_table(*flags, "--resume")[2], [])
        self.assertEqual(len(self.run_table(*flags, "--no-causal")[2]), 12, "without --resume all is measured again")
        self.assertEqual(len(self.rows()), 2 * len(before), "and what was not asked for stays")
        self.assertEqual(
            len(self.run_table(*flags, "--no-causal", "--resume", FAKE_STEP_COMMIT="def456")[2]),
            12,
            "another commit's rows are not kept",
        )
        self.assertEqual(len(self.rows()), len(before))

    def test_saved_after_each_configuration(self):
        seen, real = [], measure_rows.measure_problem
        watched = lambda *arguments: seen.append(len(self.rows()) if self.out.exists() else 0) or real(*arguments)
        with mock.patch.object(measure_rows, "measure_problem", watched):
            self.run_table(*ONE, "--seqlen", "512", "1024")
        self.assertEqual(seen, [0, 15])

    def test_commit(self):
        for built, given, commit in (("", "feed01", "feed01"), ("", None, None), ("abc123", None, "abc123")):
            self.out.unlink(missing_ok=True)
            self.run_table(*ONE, "--seqlen", "512", *(["--commit", given] if given else []), FAKE_STEP_COMMIT=built)
            self.assertEqual(json.loads(self.out.read_text(encoding="utf-8"))["commit"], commit)
        with self.assertRaisesRegex(Stop, "built from abc123"):
            self.run_table(*ONE, "--commit", "feed01")

    def test_a_second_writer_is_refused(self):
        with open(self.folder / ".out.json.lock", "w", encoding="utf-8") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with self.assertRaisesRegex(Stop, "another run writes this file"):
                self.run_table(*ONE)
        self.run_table(*ONE, "--seqlen", "512")
        self.assertFalse(list(self.folder.glob(".out*")), "no lock and no part is left")

    def test_without_pytorch(self):
        self.torch.versions, self.torch.missing = None, "PyTorch is not installed"
        code, out, _ = self.run_table(*ONE)
        self.assertEqual(code, 0)
        self.assertIn("PyTorch rows: n/a: PyTorch is not installed", out)
        self.assertNotIn("over eager", out)
        self.assertEqual({row["ours"] for row in self.rows()}, {True})

    def test_bad_arguments(self):
        for flags, text in (
            (("--shard", "0/2"), "--out"),
            (("--shard", "2/2"), "--shard"),
            (("--out", "/nowhere/x.json"), "cannot be written"),
            (("--dtype", "fp8"), "fp8"),
            (("x.json",), "x.json"),
            (("--folder", "/nowhere"), "no step00"),
        ):
            code, out, err = script("measuring/measure.py", *flags)
            self.assertEqual((code, out, err.count("\n")), (2, "", 1), err)
            self.assertIn(text, err)


class TorchProcess(unittest.TestCase):
    def test_a_process_that_dies_is_replaced(self):
        with (
            mock.patch.object(compare_pytorch, "begin", os.getpid),
            mock.patch.object(measure_rows.Torch, "__init__", lambda self: setattr(self, "pool", None)),
        ):
            torch = measure_rows.Torch()
            self.addCleanup(torch.close)
            self.assertEqual(torch._ask(os._exit, 3), {"failed": "PyTorch's process ended"})
            self.assertEqual(torch._ask(dict, [("a", 1)]), {"a": 1})


class WithoutGpu(unittest.TestCase):
    """The real steps on the CPU executor."""

    def setUp(self):
        if not (BUILD / "step04").is_file():
            self.skipTest(f"no steps in {BUILD}")
        self.holder = tempfile.TemporaryDirectory()
        self.addCleanup(self.holder.cleanup)
        for name in ("step00", "step04", "step06"):
            (pathlib.Path(self.holder.name) / name).symlink_to((BUILD / name).resolve())

    def left_over(self):
        """A program whose step has been deleted."""
        program = pathlib.Path(self.holder.name, "step77")
        described = '{"id": "step77", "kind": "attention", "title": ""}'
        program.write_text(f"#!/bin/sh\necho '{described}'\n", encoding="utf-8")
        program.chmod(0o755)

    def test_steps_table(self):
        self.left_over()
        for flags, heading in (
            (("--dtype", "fp32"), "fp32"),
            (("--product", "tensor-cores"), "fp32 on tensor cores"),
            (("--dtype", "fp16"), "fp16"),
        ):
            code, out, err = script(
                "tables/steps_table.py", "--folder", self.holder.name, "--device", "cpu", "--seqlen", "64", *flags
            )
            self.assertEqual((code, err), (0, ""), flags)
            self.assertTrue(out.splitlines()[0].endswith(f": {heading}, batch 1, heads 2, N 64, d 64"), out)
            self.assertRegex(out, r"step04 +online softmax +PASS")
            if heading == "fp32":
                self.assertRegex(
                    out, r"step06 +asynchronous pipeline +n/a: [^:;]*fp16[^:;]*\n$", "why, in a row of the table"
                )
            else:
                self.assertRegex(out, r"step06 .*PASS")
        code, out, err = script(
            "tables/steps_table.py", "--folder", self.holder.name, "--device", "cpu", "--sweep-tiles", "--seqlen", "64"
        )
        self.assertIn((code, out), ((2, ""), (3, "")), err)  # 3: a build with the default tiles has nothing to sweep
        self.assertNotIn("Traceback", err)

    def test_executor(self):
        before = sorted(REPOSITORY.glob("docs/results/*"))
        code, out, err = script(
            "measuring/measure.py",
            "--folder",
            self.holder.name,
            "--dtype",
            "fp32",
            "--causal",
            "--seqlen",
            "128",
            "--heads",
            "1",
        )
        self.assertEqual((code, err), (0, ""), out)
        self.assertIn("fp32, B 1, H 1, N 128, d 64, causal", out)
        self.assertRegex(out, r"step04 online softmax on tensor cores +PASS +0\.\d\d +\S+e-\d\d +131\.6 kB")
        self.assertEqual(out.count("PASS"), 2)
        self.assertNotRegex(out, r"\bms\b|over |TFLOP")
        self.assertEqual(sorted(REPOSITORY.glob("docs/results/*")), before)


@unittest.skipUnless(shutil.which("make"), "no make")
class MakeTable(unittest.TestCase):
    """`make table` with programs that stand for CMake and Python: what is drawn, and that nothing is installed."""

    def test_drawn_where_something_was_measured(self):
        for new, drawn in (
            ("", []),
            ("echo '{\"new\": 1}' > docs/results/one.json", ["python3 plots/figures/draw_all.py"]),
        ):
            with tempfile.TemporaryDirectory() as name:
                folder = pathlib.Path(name)
                (folder / "docs/results").mkdir(parents=True)
                (folder / "build").mkdir()
                (folder / "bin").mkdir()
                shutil.copy(REPOSITORY / "Makefile", folder)
                shutil.copytree(REPOSITORY / "cmake", folder / "cmake")
                for path in ("build/CMakeCache.txt", "docs/results/one.json"):
                    (folder / path).touch()
                python = f'case "$1" in -c) exit 1;; *) echo python3 $1 >> log;; esac; case "$1" in *measure.py) {new or ":"};; esac'
                for program, text in (("bin/cmake", ""), ("setup.sh", "echo setup.sh >> log"), ("bin/python3", python)):
                    (folder / program).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
                    (folder / program).chmod(0o755)
                environment = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "PYTHONS": "python3"}
                done = subprocess.run(
                    ["make", "table"], cwd=folder, capture_output=True, encoding="utf-8", env=environment
                )
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(
                    (folder / "log").read_text(encoding="utf-8").splitlines(),
                    ["python3 plots/measuring/measure.py", *drawn],
                )


if __name__ == "__main__":
    unittest.main()
