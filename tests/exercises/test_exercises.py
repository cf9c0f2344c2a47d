"""What the exercises' own checks do not see: that a drifted exercise is noticed, that the bug hunts show what their page says, that the
playground compares, and that `make diffNN` shows the change."""
import difflib
import os
import pathlib
import pty
import re
import shutil
import subprocess
import tempfile
import unittest

from fill_exercise import HOLE, Drifted, fill, untouched

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ATTN_BUILD", REPOSITORY / "build"))
HUNTS = os.environ.get("ATTN_HUNTS", "").split(",")
EXERCISES = sorted((REPOSITORY / "docs/exercises").glob("exercise*.cu"))


def step_of(exercise):
    return REPOSITORY / "steps" / exercise.name.replace("exercise", "step")


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


class Drift(unittest.TestCase):
    def setUp(self):
        exercise = REPOSITORY / "docs/exercises/exercise04_online_softmax.cu"
        self.exercise, self.step = exercise.read_text(), step_of(exercise).read_text()
        if not untouched(self.exercise):
            self.skipTest("exercise04 has been worked on")

    def test_there_is_one_exercise_per_step_of_the_workshop(self):
        steps = [step for step in sorted((REPOSITORY / "steps").glob("step0[1-5]*.cu"))]  # the later ones are for reading
        self.assertEqual([step_of(exercise) for exercise in EXERCISES], steps)

    def test_a_filled_exercise_is_the_step(self):
        filled = fill(self.exercise, self.step)
        self.assertNotIn("// TODO", filled)
        kernel = re.search(r"\n/// O = softmax.*?\n}\n", self.step, re.DOTALL)[0]
        self.assertIn(kernel, filled)

    def test_a_change_of_the_step_outside_of_the_holes_must_be_carried_over(self):
        self.assertIn("mask.apply(s, q0, k0);", self.exercise)
        with self.assertRaisesRegex(Drifted, "carry the step's change over"):
            fill(self.exercise, self.step.replace("mask.apply(s, q0, k0);", "mask.apply(s, q0, k0);  // changed"))

    def test_a_change_inside_of_a_hole_is_the_step_s_alone(self):
        changed = self.step.replace("l[i] = alpha * l[i] + sum;", "l[i] = sum + alpha * l[i];")
        self.assertIn("l[i] = sum + alpha * l[i];", fill(self.exercise, changed))

    def test_a_reader_s_file_is_known_as_such(self):
        self.assertFalse(untouched(self.exercise.replace("      // end of TODO 2\n", "")))
        self.assertFalse(untouched(re.sub(r" *// TODO 2.*?// end of TODO 2\n", "", self.exercise, flags=re.DOTALL)))


def same_shown(shown, line):
    """Whether a line of the page is what came out. Where a finding names lines and threads, to the letter, but for how many blocks had
    one before the run was stopped, which depends on how many run at once; of a check's verdict without its numbers, since the last
    digits depend on the processor."""
    if "allowance" not in shown:
        others = re.compile(r" \(blocks with findings: \d+\)$")
        return others.sub("", shown) == others.sub("", line)
    numbers = re.compile(r"-?(?:nan|inf|\d[\d.]*(?:e[-+]\d+)?)")
    return numbers.sub("#", shown) == numbers.sub("#", line)


class Readme(unittest.TestCase):
    def test_it_shows_how_an_exercise_fails(self):
        page = (REPOSITORY / "docs/exercises/README.md").read_text()
        shown = re.search(r"```\n(forward: .*)\n```", page)[1]
        if untouched((REPOSITORY / "docs/exercises/exercise04_online_softmax.cu").read_text()):
            ran = run(BUILD / "exercise04", "--device", "cpu")
            self.assertTrue(same_shown(shown, ran.stderr.rstrip("\n")), ran.stderr)

    def test_its_table_has_every_hole(self):
        page = (REPOSITORY / "docs/exercises/README.md").read_text()
        for exercise in EXERCISES:
            if untouched(exercise.read_text()):
                holes = len(HOLE.findall(exercise.read_text()))
                rows = re.search(rf"^\| \[{exercise.name.split('_')[0]}\]\({exercise.name}\).*\n(?:\| \| .*\n)*", page, re.MULTILINE)[0]
                self.assertEqual(re.findall(r"\| (\d): ", rows), [str(n) for n in range(1, holes + 1)], exercise.name)


class BugHunts(unittest.TestCase):
    page = (REPOSITORY / "docs/exercises/bug-hunts.md").read_text()
    sections = dict(re.findall(r"^## (hunt\d)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE))

    def test_the_page_and_make_know_every_hunt(self):
        self.assertEqual(sorted(self.sections), sorted(HUNTS))
        makefile = (REPOSITORY / "Makefile").read_text()
        self.assertIn(f"$(addprefix hunt,{' '.join(hunt[4:] for hunt in sorted(HUNTS))})", makefile)

    def test_the_page_shows_what_comes_out(self):
        for hunt, text in self.sections.items():
            runs = re.findall(rf"^    (?:make {hunt} && )?\./{hunt}([^\n]*)\n\n```\n(.*?)```", text, re.DOTALL | re.MULTILINE)
            self.assertTrue(runs, hunt)
            codes = []
            for flags, shown in runs:
                with self.subTest(hunt=hunt, flags=flags):
                    ran = run(BUILD / hunt, "--device", "cpu", *flags.split())
                    codes.append(ran.returncode)
                    came_out = ran.stdout.splitlines() + ran.stderr.splitlines()
                    for line in shown.splitlines():
                        self.assertTrue(any(same_shown(line, other) for other in came_out), f"the page shows\n{line}\nbut this came out:\n" + "\n".join(came_out))
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
            difference = [line for line in difflib.ndiff(wrong.read_text().splitlines(), right.read_text().splitlines()) if line[0] in "+-"]
            answer = re.search(r"<details><summary>The answer</summary>\n\n```diff\n(.*?)```", text, re.DOTALL)
            with self.subTest(hunt=hunt):
                self.assertEqual([line[0] + line[2:] for line in difference], answer[1].splitlines())


class Playground(unittest.TestCase):
    def play(self, *flags):
        return run(BUILD / "playground", "--device", "cpu", *flags)

    def test_it_passes_and_shows_the_page_s_table(self):
        ran = self.play()
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        shown = re.search(r"```\n(compared .*?)```", (REPOSITORY / "docs/playground.md").read_text(), re.DOTALL)[1]
        self.assertIn(shown, ran.stdout)

    def test_edges_and_types(self):
        for flags in ("--causal --seqlen-q 96 --seqlen-k 64 --head-dim 40", "--dtype fp16 --seqlen 70", "--dtype bf16 --seqlen 70 --causal", "--init abs --seqlen-q 4 --seqlen-k 4096",
                      "--seqlen 1 --init const:133120"):
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
        added = {"diff02": "m = row_max(m, sram.max);", "diff03": "multiply_ab(o, s, sram.p, sram.v);", "diff04": "const float alpha = exp2_or_zero(scale * (m[i] - base));",
                 "diff05": "delta_of_rows("}
        for target, line in added.items():
            with self.subTest(target=target):
                ran = run("make", target, cwd=REPOSITORY)
                self.assertEqual(ran.returncode, 0, ran.stderr)
                self.assertNotIn("\033", ran.stdout)  # a pipe is no terminal
                self.assertTrue(any(change[0] == "+" and line in change for change in self.changed(ran.stdout)), ran.stdout)
                self.assertIn(f"step{int(target[-2:]) - 1:02d}_", ran.stdout.splitlines()[0])

    def test_outside_of_a_git_repository_and_without_git(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(REPOSITORY / "steps", pathlib.Path(folder) / "steps")
            shutil.copy(REPOSITORY / "Makefile", folder)
            programs = pathlib.Path(folder) / "bin"
            programs.mkdir()
            for program in ("make", "sh", "ls", "grep", "diff", "nproc"):
                (programs / program).symlink_to(shutil.which(program))
            for path in (os.environ["PATH"], str(programs)):
                ran = run("make", "diff04", cwd=folder, env={**os.environ, "PATH": path})
                self.assertEqual(ran.returncode, 0, ran.stderr)
                self.assertIn("+      m[i] = m_new[i];", ran.stdout)

    @unittest.skipUnless(shutil.which("git"), "no git, no colour")
    def test_in_colour_on_a_terminal(self):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(["make", "diff04"], cwd=REPOSITORY, stdout=theirs, env={**os.environ, "TERM": "xterm"})
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
