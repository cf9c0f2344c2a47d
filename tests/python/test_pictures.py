"""docs/pictures: stored as the script draws them, and with the bytes that the steps' own formulas give."""
import contextlib
import io
import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree

from need import REPOSITORY

import draw_pictures

STEPS = pathlib.Path(os.environ.get("ATTN_STEP_FOLDER", REPOSITORY / "build"))


def plan(step):
    """The last method of a step at the pictures' shape: (HBM bytes, requested bytes)."""
    tile = "64x64" if step == "step05" else "128x64"
    command = [STEPS / step, "--plan", "--device", "cpu", "--batch", "1", "--heads", "16", "--seqlen", "4096", "--head-dim", "64", "--tile", tile, "--json", "-"]
    kernels = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["kernels"]
    return sum(kernel["hbm_expected_bytes"] for kernel in kernels), sum(sum(kernel["requested_expected_bytes"].values()) for kernel in kernels)


class Pictures(unittest.TestCase):
    def test_the_stored_pictures_are_what_the_script_draws(self):
        self.assertEqual(draw_pictures.main(["--check"]), 0)

    def test_they_are_well_formed_and_none_is_left_over(self):
        stored = {path.stem: path for path in draw_pictures.FOLDER.glob("*.svg")}
        self.assertEqual(set(stored), set(draw_pictures.PICTURES))
        for path in stored.values():
            self.assertEqual(xml.etree.ElementTree.parse(path).getroot().tag, "{http://www.w3.org/2000/svg}svg")

    def test_check_finds_what_is_missing_or_edited_and_writes_nothing(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(draw_pictures, "FOLDER", pathlib.Path(folder)), contextlib.redirect_stderr(io.StringIO()) as err:
            self.assertEqual(draw_pictures.main(["--check"]), 1)
            self.assertEqual(list(draw_pictures.FOLDER.iterdir()), [])
            self.assertEqual(draw_pictures.main([]), 0)
            self.assertEqual(draw_pictures.main(["--check"]), 0)
            edited = draw_pictures.FOLDER / "step04.svg"
            edited.write_text(edited.read_text().replace("1.09 GB", "1.10 GB"))
            self.assertEqual(draw_pictures.main(["--check"]), 1)
            self.assertEqual(err.getvalue().splitlines()[-1], "docs/pictures: step04.svg: not what plots/draw_pictures.py draws; run it")

    def test_the_bytes_are_those_of_the_steps(self):
        for step, expected in draw_pictures.figures().items():
            with self.subTest(step):
                self.assertEqual(plan(step), expected)


if __name__ == "__main__":
    unittest.main()
