"""Mutants, hunts and exercises outlive what their readers do to the steps: comments, other line breaks, renamed
variables. Where their place has gone they say so, in one line. (cmake/edit.py; nothing is compiled here.)"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "cmake"))
import edit

FILES = (REPOSITORY / "tests/mutants/mutants.txt", REPOSITORY / "docs/exercises/hunts.txt")


def commented(text):
    return re.sub(r";\n", ";  // a reader's note\n// and a line of it\n", text)


def split(text):
    code = [line.partition("//") for line in text.split("\n")]
    return "\n".join(re.sub(r"(?<=[,;{}]) (?=\S)", "\n      ", before) + mark + rest for before, mark, rest in code)


def renamed(text):
    for name in ("m_new", "alpha", "base", "k0", "q0"):
        text = re.sub(rf"\b{name}\b", f"my_{name}", text)
    return text


def indented(text):
    return text.replace("\n  ", "\n        ")


class Edits(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        for part in ("steps", "common/tile", "cmake", "docs/exercises"):
            shutil.copytree(
                REPOSITORY / part, self.folder / part, ignore=shutil.ignore_patterns("exercise0*.cu", "__pycache__")
            )

    def change(self, change):
        for path in [*self.folder.glob("steps/*"), *self.folder.glob("common/tile/*")]:
            path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")

    def outcome(self, *command):
        ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, encoding="utf-8")
        self.assertEqual(ran.stdout, "")
        return ran.stderr

    def test_harmless_changes_break_none(self):
        for change in (commented, split, renamed, indented):
            self.change(change)  # one after the other: all at once in the end
            for edits in FILES:
                for name in edit.read(edits):
                    with self.subTest(change=change.__name__, name=name):
                        edit.main(edits, name, self.folder, self.folder / "out" / name)
            if change is renamed:
                break  # the holes of exercises name some variables in their fillers
            for exercise in re.findall(
                r"^== (\S+)", (REPOSITORY / "docs/exercises/exercises.txt").read_text(), re.MULTILINE
            ):
                with self.subTest(change=change.__name__, exercise=exercise):
                    make = self.folder / "docs/exercises/make_exercise.py"
                    self.assertEqual(self.outcome(make, exercise, self.folder / "out.cu"), "")

    def test_the_edited_copy_is_the_step_but_for_the_edit(self):
        stale = self.folder / "out/common/tile/tile.h"
        stale.parent.mkdir(parents=True)
        stale.write_text("of an edit that was in another file")
        edit.main(FILES[0], "rescale_left_out", self.folder, self.folder / "out")
        self.assertFalse(stale.exists())
        step = next(self.folder.glob("steps/step04_*")).read_text(encoding="utf-8")
        made = next(self.folder.glob("out/steps/step04_*")).read_text(encoding="utf-8")
        changed = [(a, b) for a, b in zip(step.splitlines(), made.splitlines(), strict=True) if a != b]
        self.assertEqual([b.strip() for _, b in changed], ["const float alpha = 1;"])

    def test_what_has_gone_is_named_in_one_line_and_no_old_copy_stays(self):
        out = self.folder / "out"
        edit.main(FILES[0], "rescale_left_out", self.folder, out)
        self.change(lambda text: text.replace("const float alpha =", "const float alpha = 1; //"))
        said = self.outcome(self.folder / "cmake/edit.py", FILES[0], "rescale_left_out", self.folder, out)
        self.assertRegex(
            said, r"\Arescale_left_out: steps/step04_\w+\.cu has `\$alpha = exp2_or_zero.*` 0 times, .*\n\Z"
        )
        self.assertFalse(out.exists())

    def test_what_stands_twice_is_not_guessed(self):
        self.change(
            lambda text: text.replace(
                "m[i] = -INFINITY, l[i] = 0;", "m[i] = -INFINITY, l[i] = 0; m[i] = -INFINITY, l[i] = 0;"
            )
        )
        said = self.outcome(
            self.folder / "cmake/edit.py", FILES[0], "maximum_started_at_0", self.folder, self.folder / "out"
        )
        self.assertIn(" 2 times, and once is needed", said)


if __name__ == "__main__":
    unittest.main()
