"""What every script promises: it runs from anywhere, in any locale, under an old Python's eyes, into `head`."""

from need import REPOSITORY, script

import ast
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

from plots.script import write_whole

ALL = sorted(REPOSITORY.glob("plots/**/*.py")) + [REPOSITORY / "tests" / "gpu_round.py"]
PROGRAMS = [path for path in ALL if path.read_text(encoding="utf-8").startswith("#!") and "train.py" != path.name]

C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


class Everywhere(unittest.TestCase):
    def test_help_from_another_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in PROGRAMS:
                environment = {**os.environ, "PYTHONSAFEPATH": "1", **C_LOCALE}
                words = [sys.executable, path, "--help"]
                done = subprocess.run(words, cwd=folder, capture_output=True, env=environment)
                self.assertIn(done.returncode, (0, 3), (path, done.stderr))  # 3: Matplotlib is not there
                self.assertNotIn(b"Traceback", done.stderr, path)

    def test_utf8_in_any_locale(self):
        """A file opened in the locale's encoding is an error here."""
        strict = "-X warn_default_encoding -W error::EncodingWarning".split()
        run = lambda *words: script(*words, python=strict, **C_LOCALE)
        self.assertEqual(run("documents/check_docs.py", *"--only links code figures typed".split()), (0, "", ""))
        code, out, err = run("tables/speedup_table.py")
        self.assertEqual((code, err), (0, ""))
        with tempfile.TemporaryDirectory() as folder:
            stored = REPOSITORY / "docs" / "results" / "nvidia-h200.json"
            self.assertEqual(run("tables/speedup_table.py", stored, "--merge", f"{folder}/a.json"), (0, "", ""))
            self.assertEqual(pathlib.Path(folder, "a.json").read_bytes(), stored.read_bytes())

    def test_old_pythons_are_refused_in_a_line(self):
        for path in [*PROGRAMS, REPOSITORY / "plots" / "__init__.py"]:
            with self.subTest(path=path):
                # Else the refusal would be a syntax error.
                ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
        old = "import sys; sys.version_info = (3, 8, 0); import plots"
        done = subprocess.run([sys.executable, "-c", old], cwd=REPOSITORY, capture_output=True, encoding="utf-8")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        self.assertIn("need Python 3.10 or newer; this is 3.8", done.stderr)

    def test_a_reader_that_goes(self):
        for name in ("tables/speedup_table.py", "documents/check_docs.py"):
            command = f"'{sys.executable}' '{REPOSITORY}/plots/{name}' {'--help' if 'docs' in name else ''} | head -n 1"
            done = subprocess.run(["sh", "-c", command], capture_output=True, encoding="utf-8")
            self.assertEqual((done.stdout.count("\n"), done.stderr), (1, ""))


class Writing(unittest.TestCase):
    def test_two_writers(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "file")
            link = pathlib.Path(folder, "link")
            link.symlink_to(path)
            texts = [letter * 300_000 for letter in "abcdefgh"]
            threads = [threading.Thread(target=write_whole, args=(link, text)) for text in texts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertIn(path.read_text(encoding="utf-8"), texts)
            self.assertTrue(link.is_symlink(), "through a link to the file itself")
            self.assertEqual(sorted(entry.name for entry in pathlib.Path(folder).iterdir()), ["file", "link"])


if __name__ == "__main__":
    unittest.main()
