"""The figures of the stored results: each is drawn, the same on every machine, and no kernel stands above its roof."""

from need import REPOSITORY, need, script

need("matplotlib", "numpy")
import pathlib
import tempfile
import unittest
import xml.etree.ElementTree

from plots import results as results_file
from plots.figures import figure_roofline

STORED = REPOSITORY / "docs" / "results" / "nvidia-h200.json"


def files(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


class Figures(unittest.TestCase):
    def test_every_figure_on_every_machine(self):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            code, out, err = script("figures/draw_all.py", STORED, "--out", one)
            self.assertEqual((code, err), (0, ""))
            drawn = files(one)
            self.assertEqual(
                set(drawn),
                {path.name for path in (REPOSITORY / "docs" / "figures").glob("*.svg")},
                "those that are stored",
            )
            for name, picture in drawn.items():
                texts = " ".join(
                    "".join(text.itertext())
                    for text in xml.etree.ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")
                )
                self.assertIn("NVIDIA H200", texts, name)
                self.assertNotIn("nan", texts.split(), name)
            of_tiles = "nvidia-h200-tiles.svg"
            rc = pathlib.Path(other, "matplotlibrc")
            rc.write_text("text.usetex: True\ntext.color: white\nfont.size: 30\nsvg.fonttype: path\n", encoding="utf-8")
            strange = {
                "MPLBACKEND": "module://matplotlib_inline.backend_inline",
                "MATPLOTLIBRC": str(rc),
                "LC_ALL": "C",
            }
            self.assertEqual(script("figures/figure_tiles.py", STORED, "--out", other, **strange)[0], 0)
            self.assertEqual(files(other)[of_tiles], drawn[of_tiles])
            for flags, redrawn in (
                ((), False),
                (("--anew",), True),
            ):  # what was drawn from these results stays as it is
                before = pathlib.Path(one, of_tiles).stat().st_mtime_ns
                self.assertEqual(script("figures/figure_tiles.py", STORED, "--out", one, *flags)[0], 0)
                self.assertEqual(pathlib.Path(one, of_tiles).stat().st_mtime_ns != before, redrawn)

    def test_no_kernel_above_its_roof(self):
        [result] = results_file.load([STORED]).values()
        points = 0
        for dtype, product in figure_roofline.CEILINGS:
            for head_dim, of_panel in figure_roofline.panels_of(result, dtype, product, {}).items():
                roof = figure_roofline.roof(result["device"], dtype, product, head_dim, of_panel)
                for point in of_panel:
                    points += 1
                    with self.subTest(dtype=dtype, product=product, head_dim=head_dim, point=point.label):
                        self.assertLessEqual(point.tflops, max(rate for _, rate in roof))
        self.assertGreater(points, 50)

    def test_what_cannot_be_drawn(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "bad.json"
            for content, code in (
                ("{", 2),
                (
                    '{"schema": "attention-results-2", "gpu": "x", "date": "", "commit": "", "versions": {}, "rows": [], "sweeps": []}',
                    3,
                ),
            ):
                path.write_text(content, encoding="utf-8")
                found, out, err = script("figures/draw_all.py", path, "--out", folder)
                self.assertEqual((found, out), (code, ""), err)
            self.assertIn("not drawn", err)


if __name__ == "__main__":
    unittest.main()
