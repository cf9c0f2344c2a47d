"""The exercises fail as they are made and survive an edit of their step; the bug hunts show what their page says; the
playground compares; `make diffNN` shows the change."""

import difflib
import os
import pathlib
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import unittest


REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ATTN_BUILD", REPOSITORY / "build"))
HUNTS = os.environ.get("ATTN_HUNTS", "").split(",")
HOLES = (REPOSITORY / "docs/exercises/exercises.txt").read_text(encoding="utf-8")
EXERCISES = re.findall(r"^== (\S+)", HOLES, re.MULTILINE)


def run(*command, **options):
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300, **options)


class Exercises(unittest.TestCase):
    def test_each_fails_as_it_is_made_and_says_what_to_do(self):
        for name in EXERCISES:
            for flags in ([], ["--seqlen-q", "70", "--seqlen-k", "133", "--head-dim", "40", "--causal"]):
                with self.subTest(name=name, flags=flags):
                    ran = run(BUILD / "tests/exercises" / f"{name}_untouched", "--device", "cpu", *flags)
                    self.assertEqual(ran.returncode, 1, ran.stdout + ran.stderr)
                    self.assertIn(" FAIL ", ran.stdout)
                    self.assertIn(f"fill in the TODOs of docs/exercises/{name}_", ran.stderr)

    def test_what_its_reader_wrote_stays(self):
        with tempfile.TemporaryDirectory() as folder:
            for part in ("steps", "cmake", "docs/exercises"):
                shutil.copytree(
                    REPOSITORY / part, pathlib.Path(folder) / part, ignore=shutil.ignore_patterns("exercise0*.cu")
                )
            make = pathlib.Path(folder) / "docs/exercises/make_exercise.py"
            made = make.with_name("exercise04_online_softmax.cu")
            for text in (None, "mine"):
                if text:
                    made.write_text(text, encoding="utf-8")
                self.assertEqual(run(sys.executable, make, "exercise04").stderr, "")
                self.assertEqual(made.read_text(encoding="utf-8") == "mine", text == "mine")

            step = next(pathlib.Path(folder).glob("steps/step04_*"))
            for old, new, problem in (
                ("m_new", "largest", ""),
                ("float sum = 0;", "float sum =\n 0;  // split", ""),
                ("row_max<Scores>(m_new);", "", "steps/step04_online_softmax.cu has `ATTN_UNROLL"),
            ):
                with self.subTest(old=old):
                    text = step.read_text(encoding="utf-8")
                    step.write_text(text.replace(old, new))
                    ran = run(sys.executable, make, "exercise04", pathlib.Path(folder) / "out.cu")
                    step.write_text(text, encoding="utf-8")
                    self.assertIn(problem, ran.stderr)
                    self.assertEqual(ran.stderr.count("\n"), 1 if problem else 0, ran.stderr)


def same_shown(shown, line):
    """Whether a line of the page is what came out. A finding to the letter, but for line numbers, which any edit above
    moves, and for how many blocks had one before the run was stopped, which depends on how many run at once; of a
    check's verdict without its numbers, since the last digits depend on the processor."""
    if "allowance" not in shown:
        others = re.compile(r" \(blocks with findings: \d+\)$|(?<=\.cu:)\d+|(?<=\.h:)\d+")
        return others.sub("", shown) == others.sub("", line)
    numbers = re.compile(r"-?(?:nan|inf|\d[\d.]*(?:e[-+]\d+)?)")
    return numbers.sub("#", shown) == numbers.sub("#", line)


class Readme(unittest.TestCase):
    def test_it_shows_how_an_exercise_fails(self):
        page = (REPOSITORY / "docs/exercises/README.md").read_text(encoding="utf-8")
        shown = re.search(r"```\n(forward: .*)\n```", page)[1]
        ran = run(BUILD / "tests/exercises/exercise04_untouched", "--device", "cpu")
        self.assertTrue(same_shown(shown, ran.stderr.rstrip("\n")), ran.stderr)

    def test_its_table_has_every_hole(self):
        page = (REPOSITORY / "docs/exercises/README.md").read_text(encoding="utf-8")
        for name, holes in re.findall(r"^== (\S+)[^\n]*\n(.*?)(?=^==|\Z)", HOLES, re.MULTILINE | re.DOTALL):
            rows = re.search(rf"^\| {name} .*\n(?:\| \| .*\n)*", page, re.MULTILINE)[0]
            self.assertEqual(re.findall(r"\| (\d): ", rows), [str(n + 1) for n in range(holes.count("\n? "))], name)


class BugHunts(unittest.TestCase):
    page = (REPOSITORY / "docs/exercises/bug-hunts.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (hunt\d)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE))

    def test_the_page_knows_every_hunt(self):
        self.assertEqual(sorted(self.sections), sorted(HUNTS))

    def test_the_page_shows_what_comes_out(self):
        for hunt, text in self.sections.items():
            runs = re.findall(
                rf"^    (?:make {hunt} && )?\./{hunt}([^\n]*)\n\n```\n(.*?)```", text, re.DOTALL | re.MULTILINE
            )
            self.assertTrue(runs, hunt)
            codes = []
            for flags, shown in runs:
                with self.subTest(hunt=hunt, flags=flags):
                    ran = run(BUILD / hunt, "--device", "cpu", *flags.split())
                    codes.append(ran.returncode)
                    came_out = ran.stdout.splitlines() + ran.stderr.splitlines()
                    for line in shown.splitlines():
                        self.assertTrue(
                            any(same_shown(line, other) for other in came_out),
                            f"the page shows\n{line}\nbut this came out:\n" + "\n".join(came_out),
                        )
            self.assertEqual(codes[-1], 1, f"{hunt}: the last run on its page must end with 1")

    def test_without_its_mistake_each_passes_what_the_hunt_does_not(self):
        for hunt, text in self.sections.items():
            step = re.search(r"step\d\d", text)[0]
            flags = re.findall(rf"\./{hunt}(.*)\n", text)[-1].split()
            with self.subTest(hunt=hunt, flags=flags):
                ran = run(BUILD / step, "--device", "cpu", *flags)
                self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    def test_the_answer_is_the_difference(self):
        for hunt, text in self.sections.items():
            step = re.search(r"step\d\d", text)[0]
            right = next((REPOSITORY / "steps").glob(f"{step}_*.cu"))
            wrong = BUILD / "variants" / hunt / "steps" / right.name
            difference = [
                line
                for line in difflib.ndiff(
                    wrong.read_text(encoding="utf-8").splitlines(), right.read_text(encoding="utf-8").splitlines()
                )
                if line[0] in "+-"
            ]
            answer = re.search(r"<details><summary>The answer</summary>\n\n```diff\n(.*?)```", text, re.DOTALL)
            with self.subTest(hunt=hunt):
                self.assertEqual([line[0] + line[2:] for line in difference], answer[1].splitlines())


class Playground(unittest.TestCase):
    def play(self, *flags):
        return run(BUILD / "playground", "--device", "cpu", *flags)

    def test_it_passes_and_shows_the_page_s_table(self):
        ran = self.play()
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        shown = re.search(
            r"```\n(compared .*?)```", (REPOSITORY / "docs/playground.md").read_text(encoding="utf-8"), re.DOTALL
        )[1]
        self.assertIn(shown, ran.stdout)

    def test_edges_and_types(self):
        for flags in (
            "--causal --seqlen-q 96 --seqlen-k 64 --head-dim 40",
            "--dtype fp16 --seqlen 70",
            "--dtype bf16 --seqlen 70 --causal",
            "--init abs --seqlen-q 4 --seqlen-k 4096",
            "--seqlen 1 --init const:133120",
        ):
            with self.subTest(flags=flags):
                ran = self.play(*flags.split(), "--heads", "1", "--race-check", "all")
                self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    def test_refusals_are_the_harness_s(self):
        for flags, code in (("--plan", 0), ("--tile 64x64", 3), ("--head-dim 128", 3), ("--seqlen 0", 2)):
            with self.subTest(flags=flags):
                ran = self.play(*flags.split())
                self.assertEqual(ran.returncode, code)
                self.assertEqual(ran.stderr.count("\n"), 1 if code else 0)

    def test_json_is_the_reader_s_kernel_alone(self):
        import json

        ran = self.play("--seqlen", "32", "--json", "-")
        self.assertEqual(json.loads(ran.stdout)["step"], "playground")
        self.assertIn("compared", ran.stderr)

    def test_save_writes_once(self):
        with tempfile.TemporaryDirectory() as folder:
            ran = self.play("--seqlen", "32", "--save", folder)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertEqual(ran.stdout.count("saved "), 2)


@unittest.skipUnless(shutil.which("make"), "no make")
class Diffs(unittest.TestCase):
    def changed(self, text):
        return [line for line in text.splitlines() if line[:1] in "+-"]

    def test_each_step_against_the_one_before(self):
        added = {
            "diff02": "m = row_max(m, sram.max);",
            "diff03": "multiply_ab(o, s, sram.p, sram.v);",
            "diff04": "const float alpha = exp2_or_zero(scale * (m[i] - base));",
            "diff05": "delta_of_rows(",
        }
        for target, line in added.items():
            with self.subTest(target=target):
                ran = run("make", target, cwd=REPOSITORY)
                self.assertEqual(ran.returncode, 0, ran.stderr)
                self.assertNotIn("\033", ran.stdout)  # a pipe is no terminal
                self.assertTrue(
                    any(change[0] == "+" and line in change for change in self.changed(ran.stdout)), ran.stdout
                )
                self.assertIn(f"step{int(target[-2:]) - 1:02d}_", ran.stdout.splitlines()[0])

    def test_outside_of_a_git_repository_and_without_git(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(REPOSITORY / "steps", pathlib.Path(folder) / "steps")
            shutil.copy(REPOSITORY / "Makefile", folder)
            programs = pathlib.Path(folder) / "bin"
            programs.mkdir()
            for program in ("make", "sh", "ls", "grep", "sed", "head", "diff", "nproc"):
                (programs / program).symlink_to(shutil.which(program))
            for path in (os.environ["PATH"], str(programs)):
                ran = run("make", "diff04", cwd=folder, env={**os.environ, "PATH": path})
                self.assertEqual(ran.returncode, 0, ran.stderr)
                self.assertIn("+      m[i] = m_new[i];", ran.stdout)

    @unittest.skipUnless(shutil.which("git"), "no git, no colour")
    def test_in_colour_on_a_terminal(self):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            ["make", "diff04"], cwd=REPOSITORY, stdout=theirs, env={**os.environ, "TERM": "xterm"}
        )
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:  # the end, on Linux
            pass
        os.close(ours)
        self.assertEqual(process.wait(), 0)
        self.assertIn(b"\033[32m", shown)


if __name__ == "__main__":
    unittest.main()
