"""The figures of the stored results: each is drawn, the same on every machine, and no kernel stands above its roof.
What the stored results do not hold yet is drawn from rows made up here."""

from need import REPOSITORY, need, script

need("matplotlib", "numpy")
import copy
import pathlib
import tempfile
import unittest
import xml.etree.ElementTree

from plots import results as results_file
from plots.figures import figure_lines, figure_roofline, figure_style

STORED = REPOSITORY / "docs" / "results" / "nvidia-h200.json"


def files(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


def texts(picture):
    elements = xml.etree.ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")
    return " ".join("".join(element.itertext()) for element in elements)


class Figures(unittest.TestCase):
    def test_every_figure_on_every_machine(self):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            code, out, err = script("figures/draw_all.py", STORED, "--out", one)
            self.assertEqual(code, 0, err)
            drawn, stored = files(one), {path.name for path in (REPOSITORY / "docs" / "figures").glob("*.svg")}
            missing = {f"{line.partition(':')[0]}.svg" for line in err.splitlines() if ": not drawn: " in line}
            self.assertEqual((set(drawn), len(missing)), (stored, err.count("\n")), "those that are stored")
            self.assertFalse(stored & missing)
            for name, picture in drawn.items():
                self.assertIn("NVIDIA H200", texts(picture), name)
                self.assertNotIn("nan", texts(picture).split(), name)
            of_tiles = "nvidia-h200-tiles.svg"
            rc = pathlib.Path(other, "matplotlibrc")
            rc.write_text("text.usetex: True\ntext.color: white\nfont.size: 30\nsvg.fonttype: path\n", encoding="utf-8")
            strange = {
                "MPLBACKEND": "module://matplotlib_inline.backend_inline",
                "MATPLOTLIBRC": str(rc),
                "LC_ALL": "C",
            }
            tiles = lambda out, *flags, **how: script(
                "figures/draw_all.py", STORED, "--only", "tiles", "--out", out, *flags, **how
            )
            self.assertEqual(tiles(other, **strange)[0], 0)
            self.assertEqual(files(other)[of_tiles], drawn[of_tiles])
            for flags, redrawn in ((), False), (("--anew",), True):  # what was drawn from these results stays as it is
                before = pathlib.Path(one, of_tiles).stat().st_mtime_ns
                self.assertEqual(tiles(one, *flags)[0], 0)
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

    def test_lines_of_step09(self):
        """Time against heads and error against N, with rows made up here."""
        [result] = results_file.load([STORED]).values()
        some = next(row for row in result["rows"] if row["method"] == "step04" and row["dtype"] == "fp16")
        usual = {"batch": 1, "heads": 1, "head_dim": 64, "causal": False, "seqlen": 4096, "not_run": None}

        def row(method, ms, **changes):
            made = copy.deepcopy(some) | usual | {"method": method, "ours": "step" in method} | changes
            return made | {"time": {**some["time"], "median_ms": ms}, "error": {"relative_l2": 1e-7 * made["seqlen"]}}

        heads = [1 << n for n in range(8)]
        rows = [row(method, h, heads=h) for h in heads for method in ("step04", "step09", "SDPA flash")]
        rows += [row(method, 1, seqlen=4096 << n) for n in range(1, 9) for method in ("step09", "SDPA cuDNN")]
        rows.append(row("SDPA flash", 1, seqlen=1 << 20) | {"time": None, "not_run": "out of memory"})
        for draw, named, ticks in (
            (figure_lines.few_heads, ("step04", "SDPA flash"), ("1", "128")),
            (figure_lines.long_rows, ("SDPA cuDNN",), ("4k", "1024k")),
        ):
            picture = draw({**result, "rows": rows})
            with tempfile.TemporaryDirectory() as folder:
                figure_style.write(picture, pathlib.Path(folder, "a.svg"), "made up")
                told = texts(files(folder)["a.svg"])
            for text in ("NVIDIA H200", "step09  x2.00", *named, *ticks):
                self.assertIn(text, told)
            without = [row for row in rows if row["method"] != "step09"]
            self.assertRegex(
                draw({**result, "rows": without}), "needs step09 at three or more, the results have it at 0"
            )

    def test_training(self):
        found = {"loss": {"step10": [3.0, 2.0, 1.5], "SDPA": [3.0, 2.1, 1.5]}, "backward": "step10 one-pass backward"}
        found |= {"dtype": "fp16", "loss_scale": 8192, "versions": {"torch": "9.9"}, "date": "2026-01-01"}
        with tempfile.TemporaryDirectory() as folder:
            figure_style.write(
                figure_lines.curves({"gpu": "NVIDIA X"}, found), pathlib.Path(folder, "a.svg"), "made up"
            )
            told = texts(files(folder)["a.svg"])
        for text in ("PyTorch SDPA", "step10, backward by step10 one-pass backward", "scaled by 8192"):
            self.assertIn(text, told)
        self.assertIn("training/nvidia-x.json", figure_lines.training({"gpu": "NVIDIA X"}))

    def test_what_cannot_be_drawn(self):
        empty = '{"schema": "attention-results-2", "gpu": "x", "date": "", "commit": "", "versions": {}, '
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "bad.json")
            for content, code in ("{", 2), (empty + '"rows": [], "sweeps": []}', 3):
                path.write_text(content, encoding="utf-8")
                found, out, err = script("figures/draw_all.py", path, "--out", folder)
                self.assertEqual((found, out), (code, ""), err)
            self.assertIn("not drawn", err)


if __name__ == "__main__":
    unittest.main()
