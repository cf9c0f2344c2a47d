"""The figures, from artificial results: what they say is what the data say, what is missing is named, files come out whole and equal."""
from need import REPOSITORY, need

need("matplotlib", "numpy")
import contextlib
import copy
import io
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

import artificial_results
import draw_all
import figure_bytes
import figure_roofline
import figure_scaling
import figure_speedup
import figure_style
import figure_tiles
import results as results_file
from matplotlib.text import Text

FIGURES = (figure_speedup, figure_bytes, figure_scaling, figure_roofline, figure_tiles)


def loaded(raw):
    """The object as a figure gets it: through results.py."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "results.json"
        path.write_text(json.dumps(raw))
        (result,) = results_file.load([path]).values()
        return result


def fresh():
    return copy.deepcopy(RESULTS)


def find(result, method, **wanted):
    """The one row of a method with these values; the headline size in fp16 at d 64 unless told."""
    wanted = {"dtype": "fp16", "head_dim": 64, "causal": False, "seqlen": 4096, "set": "sizes", **wanted}
    (row,) = [row for row in result["rows"] if row["method"] == method and all(row[key] == value for key, value in wanted.items())]
    return row


def without(result, **wanted):
    result["rows"] = [row for row in result["rows"] if not all(row[key] == value for key, value in wanted.items())]
    return result


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def axes_with(figure, title):
    (ax,) = [ax for ax in figure.axes if ax.get_title(loc="left").startswith(title)]
    return ax


def texts_at(ax, y):
    """What stands in line y of a bar chart."""
    return [text.get_text() for text in ax.texts if abs((text.xy if hasattr(text, "xy") else text.get_position())[1] - y) < 0.01]


RESULTS = loaded(artificial_results.results())


class Speedup(unittest.TestCase):
    def line(self, result, method, title="fp16, d 64"):
        figure = figure_speedup.picture(result, "forward", False)
        labels = [label.get_text() for label in figure.axes[2].get_yticklabels()]
        (y,) = [y for y, label in enumerate(labels) if label.startswith(method)]
        return texts_at(axes_with(figure, title), y)

    def test_numbers(self):
        result = fresh()
        for method, ms in (("eager", 11.0), ("step02", 8.0), ("step04", 2.5)):
            find(result, method, **{"pass": "forward"})["time"]["median_ms"] = ms
        self.assertEqual(self.line(result, "step04"), ["4.40x", "2.50", "3.20x"])
        self.assertEqual(self.line(result, "step02"), ["1.38x", "8.00", "1.00x"])
        self.assertEqual(self.line(result, "eager"), ["1.00x", "11.0", "0.73x"])

    def test_bars_are_as_long_as_they_say(self):
        result = fresh()
        ax = axes_with(figure_speedup.picture(result, "forward", True), "bf16, d 128")
        wanted = {method: find(result, method, dtype="bf16", head_dim=128, causal=True, **{"pass": "forward"})["time"]["median_ms"] for method in ("eager", "step01", "SDPA cuDNN")}
        widths = [patch.get_width() for patch in ax.patches]
        self.assertEqual(len(widths), 13)
        for method, ms in wanted.items():
            self.assertTrue(any(abs(width - wanted["eager"] / ms) < 1e-9 for width in widths), method)

    def test_causal_and_backward_are_apart(self):
        pictures = figure_speedup.draw(without(fresh(), causal=True, **{"pass": "backward"}))
        self.assertEqual([name for name, picture in pictures.items() if not isinstance(picture, str)], ["speedup-forward", "speedup-forward-causal", "speedup-backward"])
        self.assertIn("no causal backward rows", pictures["speedup-backward-causal"])
        self.assertIn("step05 recompute backward", texts(pictures["speedup-backward"]))
        self.assertNotIn("step05 recompute backward", texts(pictures["speedup-forward"]))

    def test_without_eager_step02_is_the_one(self):
        figure = figure_speedup.picture(without(fresh(), method="eager"), "forward", False)
        self.assertIn("times as fast as step02", texts(figure))

    def test_nothing_to_compare_with(self):
        result = without(without(fresh(), method="eager"), method="step02")
        self.assertIn("neither eager nor step02 ran", figure_speedup.picture(result, "forward", False))

    def test_a_row_that_did_not_run(self):
        result = fresh()
        row = find(result, "step01", **{"pass": "forward"})
        row.update(artificial_results.not_run(row, "the moon is full"))
        self.assertEqual(self.line(result, "step01"), ["n/a"])
        self.assertIn("n/a  fp16, d 64, step01: the moon is full", "\n".join(texts(figure_speedup.picture(result, "forward", False))))

    def test_the_scaling_rows_are_not_mixed_in(self):
        result = fresh()
        find(result, "step04", set="scaling")["time"]["median_ms"] = 123456
        self.assertNotIn("123456", texts(figure_speedup.picture(result, "forward", False)))

    def test_another_n_is_no_headline(self):
        result = fresh()
        for row in result["rows"]:
            row["seqlen"] = 2048
        self.assertIn("with N 4096 (there are N 2048)", figure_speedup.picture(result, "forward", False))

    def test_both_products(self):
        result = fresh()
        wanted = {"dtype": "fp32", "pass": "forward", "set": "sizes", "head_dim": 64, "causal": False, "seqlen": 4096}
        for (method, product), ms in {("eager", None): 30.0, ("step02", "cuda-cores"): 20.0, ("step04", "cuda-cores"): 15.0, ("step04", "tensor-cores"): 5.0}.items():
            find(result, method, **wanted, product=product)["time"]["median_ms"] = ms
        ax = axes_with(figure_speedup.picture(result, "forward", False), "fp32, d 64")
        labels = [label.get_text() for label in ax.get_yticklabels()]
        self.assertEqual(labels[3:6], ["step04  online softmax", "step04 on tensor cores", "step05 forward"])
        self.assertEqual([texts_at(ax, y) for y in (3, 4)], [["2.00x", "15.0", "1.33x"], ["6.00x", "5.00", "4.00x"]])
        backward = [label.get_text() for label in axes_with(figure_speedup.picture(result, "backward", False), "fp32, d 64").get_yticklabels()]
        self.assertEqual(backward[:4], ["step05 standard backward", "step05 recompute backward", "step05 standard on tensor cores", "step05 recompute on tensor cores"])


class Bytes(unittest.TestCase):
    def test_numbers(self):
        # fp32, d 64, batch 4, 32 heads, N 4096: an X is 134,217,728 bytes, an L 2,097,152, an S 8,589,934,592
        found = texts(figure_bytes.picture(RESULTS, "forward", 64))
        self.assertIn("539.0 MB; measured 549.7 MB", found)           # 4X + L
        self.assertIn("34.9 GB; measured 35.6 GB", found)             # 4X + 4S + L
        self.assertTrue(any(text.startswith("at least 52.1 GB") for text in found))
        self.assertTrue({"S", "P", "Q", "K", "V", "O"} <= set(found))

    def test_stacked_to_the_expected_bytes(self):
        left = axes_with(figure_bytes.picture(RESULTS, "backward", 128), "fp16, d 128")
        for y, method in enumerate(("step05 standard backward", "step05 recompute backward")):
            row = find(RESULTS, method, head_dim=128)
            bars = [bar for bar in left.patches if abs(bar.get_y() + bar.get_height() / 2 - y) < 0.01]
            self.assertEqual(len(bars), len(row["by_tensor"]))
            self.assertEqual(max(bar.get_x() + bar.get_width() for bar in bars), row["hbm_expected_bytes"])
            self.assertEqual(sorted(bar.get_width() for bar in bars), sorted(row["by_tensor"].values()))

    def test_the_diamond_is_the_measured_bytes(self):
        left = axes_with(figure_bytes.picture(RESULTS, "forward", 64), "fp16, d 64")
        diamonds = sorted(line.get_xdata()[0] for line in left.lines if line.get_marker() == "D")
        measured = sorted(row["hbm_measured_bytes"] for row in figure_style.headline(RESULTS, "forward", False)["fp16", 64].values() if row["hbm_measured_bytes"])
        self.assertEqual(diamonds, measured)
        self.assertEqual(len(diamonds), 9)

    def test_the_magnifier_says_how_much(self):
        figure = figure_bytes.picture(RESULTS, "forward", 64)
        left, right = figure.axes[:2]
        self.assertEqual(right.get_title(loc="left"), f"the same, magnified {left.get_xlim()[1] / right.get_xlim()[1]:.0f} times")

    def test_not_measured(self):
        figure = figure_bytes.picture(loaded(artificial_results.results(measured=False)), "forward", 64)
        found = texts(figure)
        self.assertIn("539.0 MB; measured n/a", found)
        self.assertIn("measured n/a: no permission", "\n".join(found))
        self.assertFalse([line for ax in figure.axes for line in ax.lines if line.get_marker() == "D"])

    def test_a_step_that_did_not_run_is_named(self):
        result = fresh()
        row = find(result, "step02", **{"pass": "forward"})
        row.update(artificial_results.not_run(row, "S is too large"))
        self.assertIn("not drawn  fp16, step02: S is too large", "\n".join(texts(figure_bytes.picture(result, "forward", 64))))

    def test_nothing_there(self):
        self.assertIn("no backward row", figure_bytes.draw(without(fresh(), **{"pass": "backward"}))["bytes-backward-d64"])
        self.assertIn("says which tensors", figure_bytes.draw(without(fresh(), ours=True))["bytes-forward-d64"])


class Scaling(unittest.TestCase):
    def test_ratios(self):
        self.assertEqual(figure_scaling.ratios([(512, 3), (1024, 12), (4096, 100), (8192, 250)]), [(1024, 4), (8192, 2.5)])
        self.assertEqual(figure_scaling.ratios([(1024, 3)]), [])

    def test_lines_are_the_rows(self):
        time, memory = figure_scaling.draw(RESULTS)["scaling"].axes
        for method in ("step02", "step04", "eager", "SDPA flash"):
            rows = sorted((row for row in RESULTS["rows"] if row["method"] == method and row["set"] == "scaling" and not row["not_run"]), key=lambda row: row["seqlen"])
            for ax, values in ((time, [row["time"]["median_ms"] for row in rows]), (memory, [row["extra_bytes"] for row in rows])):
                (line,) = [line for line in ax.lines if line.get_label() == method]
                self.assertEqual(list(line.get_xdata()), [row["seqlen"] for row in rows])
                self.assertEqual(list(line.get_ydata()), values)

    def test_memory_grows_as_n_squared_and_as_n(self):
        memory = [text.get_text() for text in figure_scaling.draw(RESULTS)["scaling"].axes[1].texts]
        self.assertEqual(memory.count("4.00"), 5)  # step02 ran at six N
        self.assertEqual(memory.count("2.00"), 7)  # step04 at eight
        self.assertTrue({"step02  x4.00", "eager  x4.00", "step04  x2.00", "SDPA flash  x2.00"} <= set(memory))

    def test_a_ratio_follows_its_data(self):
        result = fresh()
        find(result, "step04", set="scaling", seqlen=131072)["extra_bytes"] *= 1.5
        self.assertIn("step04  x3.00", texts(figure_scaling.draw(result)["scaling"]))

    def test_where_step02_and_eager_end(self):
        figure = figure_scaling.draw(RESULTS)["scaling"]
        for ax in figure.axes:
            self.assertEqual([list(line.get_xdata()) for line in ax.lines if line.get_linestyle() == ":"], [[65536, 65536]])
        self.assertIn("step02 and eager\nno longer run", texts(figure))
        self.assertIn("step02 at N 65536: S and P need 274877906944 bytes", "\n".join(texts(figure)))

    def test_nothing_ends_where_all_ran(self):
        result = without(without(fresh(), seqlen=65536), seqlen=131072)
        figure = figure_scaling.draw(result)["scaling"]
        self.assertFalse([line for ax in figure.axes for line in ax.lines if line.get_linestyle() == ":"])

    def test_too_few(self):
        self.assertIn("there are 0", figure_scaling.draw(without(fresh(), set="scaling"))["scaling"])


class Roofline(unittest.TestCase):
    def points(self, result, title, method, kernel=False):
        """(filled, hollow) places of a method's markers."""
        ax = axes_with(figure_roofline.picture(result, "fp16"), title)
        mine = [line for line in ax.lines if line.get_marker() == figure_style.method_style(method)[2] and (line.get_markersize() < 5) == kernel]
        place = lambda lines: [(line.get_xdata()[0], line.get_ydata()[0]) for line in lines]
        return place(line for line in mine if line.get_markerfacecolor() != "white"), place(line for line in mine if line.get_markerfacecolor() == "white")

    def test_the_roof_is_step00s(self):
        found = texts(figure_roofline.picture(RESULTS, "fp16"))
        self.assertTrue({"HBM: 4.20 TB/s", "tensor cores: 635 TFLOP/s", "our tile product: 572 TFLOP/s"} <= set(found))
        self.assertTrue({"CUDA cores: 64.0 TFLOP/s", "our tile product: 48.0 TFLOP/s"} <= set(texts(figure_roofline.picture(RESULTS, "fp32", "cuda-cores"))))

    def test_fp32_on_tensor_cores_has_a_picture_of_its_own(self):
        found = texts(figure_roofline.picture(RESULTS, "fp32", "tensor-cores"))
        self.assertTrue({"fp32 on tensor cores, d 64", "tensor cores, three products for one: 212 TFLOP/s", "our tile product: 150 TFLOP/s", "step04", "step05 recompute"} <= set(found))
        self.assertFalse({"step02", "yardstick"} & set(found))
        # of the picture's rows alone: on CUDA cores step04 reaches 0.6 of the product's 48 TFLOP/s, on tensor cores 0.6 of 150
        rates = {product: max(line.get_ydata()[0] for line in axes_with(figure_roofline.picture(RESULTS, "fp32", product), title).lines if line.get_marker() == "o")
                 for product, title in (("cuda-cores", "fp32, d 64"), ("tensor-cores", "fp32 on tensor cores, d 64"))}
        self.assertTrue(27 < rates["cuda-cores"] < 48 < 80 < rates["tensor-cores"] < 90, rates)
        drawn = figure_roofline.draw(without(fresh(), product="tensor-cores"))
        self.assertEqual(list(drawn), ["roofline-fp32", "roofline-fp32-tensor-cores", "roofline-fp16", "roofline-bf16"])
        self.assertIn("no fp32 on tensor cores row", drawn["roofline-fp32-tensor-cores"])
        result = fresh()
        del result["device"]["split_tile_products"]  # an older step00
        self.assertNotIn("our tile product", "\n".join(texts(figure_roofline.picture(result, "fp32", "tensor-cores"))))

    def test_places(self):
        # 4 N²d FLOPs for 128 heads over 4X + L = 270,532,608 bytes; measured 1.02 times as many
        result = fresh()
        find(result, "step04", **{"pass": "forward"})["time"]["median_ms"] = 2.0
        ((x, y),), ((x_measured, y_measured),) = self.points(result, "fp16, d 64", "step04")
        flops = 4 * 4096 ** 2 * 64 * 128
        self.assertAlmostEqual(x, flops / 270532608)
        self.assertAlmostEqual(y, flops / 2.0 / 1e9)
        self.assertAlmostEqual(x_measured, flops / int(1.02 * 270532608))
        self.assertEqual(y, y_measured)

    def test_each_kernel_of_several(self):
        filled, hollow = self.points(RESULTS, "fp16, d 128", "step02", kernel=True)
        self.assertEqual((len(filled), len(hollow)), (2, 2))  # scores and PV; softmax has no products
        found = "\n".join(texts(figure_roofline.picture(RESULTS, "fp16")))
        self.assertIn("step02 scores, PV", found)
        self.assertIn("no products, so no FLOPs: step01 softmax, step02 softmax", found)

    def test_kernels_without_flops_are_named(self):
        result = fresh()
        for row in result["rows"]:
            for kernel in row["kernels"] or []:
                kernel.pop("executed_flops", None)
        self.assertEqual(self.points(result, "fp16, d 64", "step02", kernel=True), ([], []))
        self.assertEqual(len(self.points(result, "fp16, d 64", "step02")[0]), 1)
        self.assertIn("not drawn, executed FLOPs not in the results: step01 scores", "\n".join(texts(figure_roofline.picture(result, "fp16"))))

    def test_at_least_has_an_arrow_unless_measured(self):
        arrows = lambda result: [text for text in axes_with(figure_roofline.picture(result, "fp16"), "fp16, d 64").texts if text.get_text() == ""]
        self.assertEqual(len(arrows(RESULTS)), 0)
        self.assertEqual(len(arrows(loaded(artificial_results.results(measured=False)))), 1)

    def test_without_step00(self):
        result = fresh()
        result.update(device=None, device_reason="step00 was not built")
        self.assertIn("step00 was not built", figure_roofline.picture(result, "fp32", "cuda-cores"))

    def test_without_tensor_core_rate(self):
        result = fresh()
        result["device"]["flops_per_second"]["mma_bf16"] = None
        self.assertFalse([text for text in texts(figure_roofline.picture(result, "bf16")) if text.startswith("tensor cores")])


class Tiles(unittest.TestCase):
    def frames(self, ax):
        """[(Bc index, Br index, dashed)] of the frames."""
        return [(round(patch.get_x()), round(patch.get_y()), patch.get_linestyle() != "solid") for patch in ax.patches if patch.get_facecolor()[3] == 0]

    def test_marks(self):
        ax = axes_with(figure_tiles.draw(RESULTS)["tiles"], "step04, fp16, d 64")
        self.assertEqual([label.get_text() for label in ax.get_yticklabels()], ["32", "64", "128", "256"])
        self.assertEqual([label.get_text() for label in ax.get_xticklabels()], ["32", "64", "128"])
        self.assertEqual(self.frames(ax), [(1, 2, False), (1, 1, True)])  # 128x64 is the best; 64x64

    def test_numbers(self):
        result = fresh()
        entry = next(entry for sweep in result["sweeps"] if (sweep["dtype"], sweep["head_dim"]) == ("fp16", 128) for entry in sweep["tiles"] if entry["tile"] == "32x128")
        entry.update(requested_bytes=7654321000, time={"median_ms": 9.87})
        ax = axes_with(figure_tiles.draw(result)["tiles"], "step04, fp16, d 128")
        placed = {text.get_text(): text.get_position() for text in ax.texts}
        self.assertEqual([round(x) for x in placed["9.87 ms"]], [2, 0])
        self.assertEqual([round(x) for x in placed["7.7 GB"]], [2, 0])

    def test_the_best_is_the_brightest(self):
        ax = axes_with(figure_tiles.draw(RESULTS)["tiles"], "step04, fp16, d 64")
        cells = [patch for patch in ax.patches if patch.get_facecolor()[3] == 1]
        brightest = max(cells, key=lambda cell: sum(cell.get_facecolor()[:2]))
        self.assertEqual((brightest.get_x(), brightest.get_y()), (0.5, 1.5))

    def test_what_does_not_fit(self):
        figure = figure_tiles.draw(RESULTS)["tiles"]
        self.assertEqual(sum(text.get_text() == "did not run" for text in axes_with(figure, "step04, fp32, d 128").texts), 3)
        self.assertIn("fp32, d 128, 256x128: needs 278528 bytes of SRAM, a block has 232448", "\n".join(texts(figure)))

    def test_a_wrong_tile_has_no_time(self):
        result = fresh()
        result["sweeps"][0]["tiles"][0].update(verified=False, time={"median_ms": 0.001})
        found = texts(figure_tiles.draw(result)["tiles"])
        self.assertIn("n/a", found)
        self.assertNotIn("0.001 ms", found)

    def test_an_emulated_sweep_is_none(self):
        result = fresh()
        for sweep in result["sweeps"]:
            sweep["gpu"] = None
        self.assertIn("only emulated ones", figure_tiles.draw(result)["tiles"])

    def test_no_sweep(self):
        result = fresh()
        result["sweeps"] = []
        self.assertIn("--sweep-tiles", figure_tiles.draw(result)["tiles"])


class Readable(unittest.TestCase):
    """The pictures laid out: no text runs out of the picture, no two inside one field lie on each other."""

    def boxes(self, objects):
        return [(text.get_text(), Text.get_window_extent(text)) for text in objects if text.get_text().strip()]  # Text's: without an annotation's arrow

    def ticks(self, axis):
        low, high = sorted(axis.get_view_interval())
        return [label for place, label in zip(axis.get_majorticklocs(), axis.get_ticklabels()) if low <= place <= high]

    def check(self, name, figure):
        figure.draw_without_rendering()
        width, height = figure.bbox.width, figure.bbox.height
        for ax in filter(lambda ax: ax.axison, figure.axes):
            inside = self.boxes(ax.texts)
            around = self.boxes([*self.ticks(ax.xaxis), *self.ticks(ax.yaxis), ax.xaxis.label, ax.yaxis.label, *(child for child in ax.get_children() if isinstance(child, Text) and child not in ax.texts)])
            for text, box in [*inside, *around, *self.boxes(figure.texts)]:
                self.assertTrue(-1 <= box.x0 and box.x1 <= width + 1 and -1 <= box.y0 and box.y1 <= height + 1, f"{name}: {text!r} is cut off")
            for (one, a), (other, b) in itertools.combinations(inside, 2):
                self.assertFalse(min(min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)) > 2, f"{name}: {one!r} lies on {other!r}")

    def test_measured(self):
        for module in FIGURES:
            for name, figure in module.draw(RESULTS).items():
                self.check(name, figure)

    def test_not_measured(self):
        result = loaded(artificial_results.results(measured=False))
        self.check("bytes", figure_bytes.picture(result, "forward", 64))
        self.check("roofline", figure_roofline.picture(result, "fp32", "cuda-cores"))

    def test_one_small_panel_and_long_reasons(self):
        result = fresh()
        result["rows"] = [row for row in result["rows"] if (row["dtype"], row["head_dim"]) == ("fp16", 64)]
        result["sweeps"] = result["sweeps"][:1]
        why = "the reason that a library gives in very many words: " + 20 * "and on it goes, "
        for row in result["rows"]:
            if row["method"] in ("step01", "SDPA cuDNN", "step05 standard backward"):
                row.update(artificial_results.not_run(row, why))
        result["sweeps"][0]["tiles"][0].update(time=None, not_run=why)
        for module in FIGURES:
            for name, figure in module.draw(result).items():
                if isinstance(figure, str):
                    self.assertIn(name, ("roofline-fp32", "roofline-fp32-tensor-cores", "roofline-bf16"), figure)
                else:
                    self.check(name, figure)

    def test_the_check_sees_both(self):
        figure = figure_style.new_figure(3)
        ax = figure.subplots()
        ax.text(0.5, 0.5, "one")
        ax.text(0.5, 0.5, "other")
        with self.assertRaisesRegex(AssertionError, "lies on"):
            self.check("", figure)
        ax.texts[0].remove()
        figure.suptitle(20 * "much wider than paper ")
        with self.assertRaisesRegex(AssertionError, "is cut off"):
            self.check("", figure)

    def test_spread(self):
        self.assertEqual(figure_style.spread([0, 10, 20], 1), [0, 10, 20])
        self.assertEqual(figure_style.spread([5, 5, 5], 2), [3, 5, 7])
        self.assertEqual(figure_style.spread([5, 5.5], 2, highest=5), [3, 5])


class CommandLine(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path, self.out = pathlib.Path(self.folder.name) / "results.json", pathlib.Path(self.folder.name) / "out"

    def run_script(self, script, raw=None, **environment):
        if raw is not None:
            self.path.write_text(raw if isinstance(raw, str) else json.dumps(raw))
        return subprocess.run([sys.executable, REPOSITORY / "plots" / script, self.path, "--out", self.out], capture_output=True, text=True, env={**os.environ, **environment})

    def run_here(self, figures, raw):
        """The same without a new process: (exit code, stderr)."""
        self.path.write_text(json.dumps(raw))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
            code = figure_style.main(figures, "", [str(self.path), "--out", str(self.out)])
        return code, errors.getvalue()

    def files(self):
        return {path.name: path.read_bytes() for path in self.out.glob("*")}

    def test_all_figures_and_again_the_same_bytes(self):
        raw = artificial_results.results()
        raw["rows"] = [row for row in raw["rows"] if row["head_dim"] == 64]
        done = self.run_script("draw_all.py", raw, PYTHONHASHSEED="1")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        first = self.files()
        names = [f"speedup-{which}{causal}" for which in ("forward", "backward") for causal in ("", "-causal")]
        names += ["bytes-forward-d64", "bytes-backward-d64", "scaling", "roofline-fp32", "roofline-fp32-tensor-cores", "roofline-fp16", "roofline-bf16", "tiles"]
        self.assertEqual(set(first), {f"artificial-gpu-{name}.{kind}" for name in names for kind in ("svg", "png")})
        for name, content in first.items():
            self.assertTrue(content.startswith(b"\x89PNG") if name.endswith("png") else xml.etree.ElementTree.fromstring(content) is not None, name)
        self.run_script("draw_all.py", PYTHONHASHSEED="2")
        self.assertEqual(self.files(), first)

    def test_the_svg_holds_its_text(self):
        self.run_here([lambda results: {"speedup-forward": figure_speedup.picture(results, "forward", False)}], artificial_results.results())
        root = xml.etree.ElementTree.fromstring((self.out / "artificial-gpu-speedup-forward.svg").read_bytes())
        found = ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("step04  online softmax", [text.replace("\N{NO-BREAK SPACE}", " ") for text in found])
        row = lambda method: find(RESULTS, method, **{"pass": "forward"})["time"]["median_ms"]
        self.assertIn(f"{row('eager') / row('step04'):.2f}x", found)

    def test_other_data_another_picture(self):
        def change(raw, module):
            if module is figure_tiles:
                raw["sweeps"][0]["tiles"][0]["time"]["median_ms"] *= 1.1
            for row in raw["rows"]:
                if row["method"] == "step04":
                    row["time"]["median_ms"] *= 1.1
                    row["by_tensor"]["Q"] += 10 ** 8
            return raw
        def fewer(raw):  # a picture of each kind is enough
            raw["rows"] = [row for row in raw["rows"] if (row["dtype"], row["head_dim"], row["causal"], row["pass"]) == ("fp16", 64, False, "forward")]
            return raw
        for module in FIGURES:
            self.run_here([module.draw], fewer(artificial_results.results()))
            before = self.files()
            self.run_here([module.draw], change(fewer(artificial_results.results()), module))
            after = self.files()
            for kind in ("svg", "png"):
                self.assertTrue(any(after[name] != content for name, content in before.items() if name.endswith(kind)), module.__name__)
            for path in self.out.glob("*"):
                path.unlink()

    def test_a_missing_kind_is_exit_3_with_its_reason(self):
        raw = {**artificial_results.results(), "sweeps": [], "device": None, "device_reason": "no step00", "rows": []}
        for module in FIGURES:
            code, errors = self.run_here([module.draw], raw)
            self.assertEqual(code, 3, module.__name__)
            self.assertTrue(errors and all(" not drawn: " in line for line in errors.splitlines()), errors)
        self.assertEqual(self.run_here([module.draw for module in FIGURES], raw)[0], 3)
        self.assertEqual(self.files(), {})

    def test_the_rest_is_drawn(self):
        done = self.run_script("draw_all.py", {**artificial_results.results(), "sweeps": [], "rows": [row for row in artificial_results.results()["rows"] if row["heads"] == 16 and row["batch"] == 1]})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(set(self.files()), {"artificial-gpu-scaling.svg", "artificial-gpu-scaling.png"})
        self.assertIn("artificial-gpu-tiles: not drawn: the results hold no sweep of tile sizes on a GPU (step04", done.stderr)

    def test_bad_files(self):
        lacking = artificial_results.results()
        for row in lacking["rows"]:
            row.pop("by_tensor")
        emulated = artificial_results.results()
        emulated["rows"][0]["emulated"] = True
        words = artificial_results.results()
        for row in words["rows"]:
            row["time"] = "fast"
        cases = {"no JSON": "{", "another schema": {"schema": "x"}, "a key is missing": lacking, "emulated": emulated, "words": words, "a list": [1], "rows of nothing": {**artificial_results.results(), "rows": None}}
        for name, raw in cases.items():
            with self.subTest(name):
                done = self.run_script("figure_bytes.py" if name == "a key is missing" else "figure_speedup.py", raw)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertEqual(self.files(), {})
        with self.subTest("one bad part, and nothing is written"):
            raw = artificial_results.results()
            raw["rows"] = [row for row in raw["rows"] if row["head_dim"] == 64 and row["dtype"] == "fp16"]
            del raw["sweeps"][0]["tiles"][0]["time"]
            self.assertEqual(self.run_script("draw_all.py", raw).returncode, 2)
            self.assertEqual(self.files(), {})
        self.path.unlink()
        self.assertEqual(self.run_script("draw_all.py").returncode, 2)

    def test_matplotlib_missing(self):
        hidden = pathlib.Path(self.folder.name) / "hidden"
        hidden.mkdir()
        (hidden / "matplotlib.py").write_text("raise ImportError('No module named matplotlib')")
        for script in ("draw_all.py", "figure_tiles.py"):
            done = self.run_script(script, artificial_results.results(), PYTHONPATH=str(hidden))
            self.assertEqual(done.returncode, 3)
            self.assertEqual(len(done.stderr.splitlines()), 1)
            self.assertIn("python3-matplotlib", done.stderr)

    def test_a_failed_write_leaves_the_old_file(self):
        code, _ = self.run_here([figure_scaling.draw], artificial_results.results())
        self.assertEqual(code, 0)
        before = self.files()

        class Broken(figure_style.Figure):
            def savefig(self, path, **_):
                pathlib.Path(path).write_text("half")
                raise OSError("disk full")
        code, errors = self.run_here([lambda results: {"scaling": Broken()}], artificial_results.results())
        self.assertEqual((code, errors), (2, "disk full\n"))
        self.assertEqual(self.files(), before)


if __name__ == "__main__":
    unittest.main()
