"""The speedup table: results files, tables, the markers in documents, and the runner on executables that stand for a GPU's."""
from need import REPOSITORY

import contextlib
import copy
import importlib.util
import io
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import measure_rows
import result_markers
import result_tables
import results
import speedup_table
import store_profiles

STEPS = pathlib.Path(os.environ.get("ATTN_STEP_FOLDER", REPOSITORY / "build"))
FAKE_STEP = pathlib.Path(__file__).with_name("fake_step.py")
CONFIGURATION = {"dtype": "fp16", "batch": 4, "heads": 32, "seqlen": 4096, "head_dim": 64, "causal": False}


def made_up_row(method, ms, which="forward", not_run=None, **changes):
    """A row whose figures are plainly no measurement."""
    row = measure_rows.not_run_row(method, "title", not method.startswith(("eager", "SDPA")), which, {**CONFIGURATION, **{k: v for k, v in changes.items() if k in CONFIGURATION}}, not_run)
    row["product"] = results.CUDA_CORES if row["ours"] and row["dtype"] == "fp32" else None
    if not_run is None:
        row |= {"verified": True if row["ours"] else None, "verdict": "PASS" if row["ours"] else None, "time": {"median_ms": ms, "p10_ms": ms, "p90_ms": ms, "runs": 3}, "tflops": 111.1,
                "hbm_expected_bytes": 22_000_000, "hbm_at_least": False, "hbm_measured_bytes": 33_000_000, "extra_bytes": 44_000_000, "grows": "N", "by_tensor": {"S": 5_000_000, "P": 1_000_000},
                "error": {"relative_l2": 5.5e-5, "max_abs": 6.6e-6, "worst_share": 0.77}, "kernels": [{"name": "one", "time_ms": ms / 2}, {"name": "two", "time_ms": ms / 4}], "kernel_count": 2}
    return row | {k: v for k, v in changes.items() if k not in CONFIGURATION}


def made_up_file(*rows, gpu="NVIDIA Made Up 1", commit="abc123", **changes):
    return {"schema": "attention-results-2", "gpu": gpu, "date": "2001-02-03", "commit": commit, "versions": {"driver": "1.1", "torch": "9.9", "cudnn": None, "cudnn_reason": "none"},
            "device": {"bytes_per_second": {"hbm_copy": 1.5e12}}, "rows": list(rows), "sweeps": [], **changes}


class InFolder(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def write(self, name, value):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    def load(self, *files):
        return results.load([self.write(f"{n}.json", file) for n, file in enumerate(files)])


class Results(InFolder):
    def test_rows_by_gpu_and_set(self):
        loaded = self.load(made_up_file(made_up_row("step04", 5), made_up_row("step04", 6, batch=1, heads=16)), made_up_file(made_up_row("step04", 7), gpu="NVIDIA Other"))
        self.assertEqual([row["time"]["median_ms"] for row in results.rows(loaded, method="step04", set="sizes")], [5, 7])
        self.assertEqual([row["gpu"] for row in results.rows(loaded, method="step04")], ["nvidia-made-up-1", "nvidia-made-up-1", "nvidia-other"])
        self.assertEqual(results.one_row(loaded, gpu="nvidia-made-up-1", set="scaling")["time"]["median_ms"], 6)
        with self.assertRaisesRegex(results.ResultsError, "2 rows fit"):
            results.one_row(loaded, gpu="nvidia-made-up-1")

    def test_shards_become_one_file(self):
        first, second = made_up_file(made_up_row("step04", 5)), made_up_file(made_up_row("step04", 6, causal=True), date="2002-02-02", device=None, device_reason="not asked")
        second["versions"] = {"driver": "1.1", "torch": None, "torch_reason": "not here", "cudnn": "8"}
        [merged] = self.load(first, second).values()
        self.assertEqual((len(merged["rows"]), merged["date"], merged["device"]), (2, "2002-02-02", first["device"]))
        self.assertEqual(merged["versions"], {"driver": "1.1", "torch": "9.9", "cudnn": "8"})
        results.save(merged, self.folder / "all.json")
        self.assertEqual(json.loads((self.folder / "all.json").read_text())["rows"], first["rows"] + second["rows"])
        self.assertFalse(list(self.folder.glob("*.part")))

    def test_refusals(self):
        row = made_up_row("step04", 5)
        other = made_up_row("step04", 5, seqlen=512)
        for files, text in (([made_up_file(row | {"emulated": True})], "emulated"), ([made_up_file(row | {"verified": False})], "not verified"), ([made_up_file(row | {"verified": None})], "not verified"),
                            ([made_up_file(row, schema="attention-results-1")], "schema"), ([{}], "schema"), (["{"], "JSON"), ([made_up_file(), made_up_file(row, commit="def456"), made_up_file(row)], "commit"),
                            ([made_up_file(row), made_up_file(row)], "in another file"), ([made_up_file({"method": "step04"})], "lacks"), ([made_up_file(row, rows=[row, row])], "twice"),
                            ([made_up_file(row), made_up_file(other, versions={"driver": "2.2"})], "driver 2.2")):
            with self.subTest(text=text), self.assertRaisesRegex(results.ResultsError, text):
                self.load(*files)
        self.load(made_up_file(row, row | {"method": "step03", "not_run": "why", "verified": False}, made_up_row("eager", 9)))  # a row without figures, and PyTorch's

    def test_products(self):
        one, other = made_up_row("step04", 8, dtype="fp32"), made_up_row("step04", 2, dtype="fp32") | {"product": "tensor-cores"}
        loaded = self.load(made_up_file(one, other, made_up_row("eager", 9, dtype="fp32")))
        self.assertEqual([results.name_of(row) for row in results.rows(loaded)], ["step04", "step04 on tensor cores", "eager"])
        self.assertEqual([row["time"]["median_ms"] for row in results.rows(loaded, product="tensor-cores")], [2, 9], "PyTorch's rows fit either")
        self.assertEqual(results.beside(loaded, results.rows(loaded)[1], "step04")["product"], "cuda-cores")
        for row in (one | {"product": None}, one | {"product": "vector-cores"}, made_up_row("step04", 8) | {"product": "tensor-cores"}, made_up_row("eager", 9, dtype="fp32") | {"product": "cuda-cores"}):
            with self.subTest(row=results.name_of(row)), self.assertRaisesRegex(results.ResultsError, "product .* have cuda-cores or tensor-cores, others null"):
                self.load(made_up_file(row))
        with self.assertRaisesRegex(results.ResultsError, "step04 on tensor cores .*twice"):
            self.load(made_up_file(one, other, other))

    def test_paths(self):
        row = made_up_row("step04", 8)
        self.assertEqual([results.at(row, path) for path in ("time.median_ms", "kernels.two.time_ms", "kernels.0.name", "predicted_ms", "flops.useful")], [8, 2, "one", None, None])
        with self.assertRaisesRegex(results.ResultsError, "no field time.mean"):
            results.at(row, "time.mean")


class Tables(InFolder):
    def lines(self, *rows, **wanted):
        return result_tables.speedup_table(self.load(made_up_file(*rows)), **wanted)

    def test_forward(self):
        lines = self.lines(made_up_row("eager", 50.0), made_up_row("step04", 10.0), made_up_row("step01", 800.0, hbm_at_least=True), made_up_row("step02", 40.0),
                           made_up_row("yardstick", 25.0, hbm_measured_bytes=None), made_up_row("step03", None, not_run="no room"))
        self.assertEqual(lines[0], ["method", "ms", "over step02", "over cuBLAS", "over eager", "TFLOP/s", "HBM expected", "HBM measured", "extra memory", "relative L2", "kernels", "over step01"])
        self.assertEqual([line[0].split()[0] for line in lines[1:]], ["step01", "step02", "step03", "step04", "yardstick", "PyTorch"])
        self.assertEqual(lines[1][6], ">= 22.0 MB")
        self.assertEqual(lines[3], ["step03 title", "n/a: no room"])
        self.assertEqual(lines[4], ["step04 title", "10", "4.00x", "2.50x", "5.00x", "111", "22.0 MB", "33.0 MB", "44.0 MB (N)", "5.5e-05", "2", "80.00x"])
        self.assertEqual(lines[5][7], "n/a")
        self.assertIn("| step03 title | n/a | n/a |", result_tables.markdown(lines))
        self.assertTrue(result_tables.markdown(lines).endswith(" |\n\nn/a:\n\n- step03 title: no room"))
        self.assertTrue(next(line for line in result_tables.text(lines) if line.startswith("step03")).endswith("n/a: no room"))

    def test_fp32_on_both_products(self):
        on_tensor_cores = {"dtype": "fp32", "product": "tensor-cores"}
        lines = self.lines(made_up_row("eager", 50.0, dtype="fp32", error={"relative_l2": 4e-7, "worst_share": 0.5}), made_up_row("step04", 5.0, **on_tensor_cores), made_up_row("yardstick", 30.0, dtype="fp32"),
                           made_up_row("step04", 10.0, dtype="fp32"), made_up_row("step02", 40.0, dtype="fp32"), made_up_row("step02", 1.0, **on_tensor_cores))
        self.assertEqual([line[:4] for line in lines], [["method", "ms", "over step02", "over cuBLAS"], ["step02 title", "40", "1.00x", "0.75x"], ["step04 title", "10", "4.00x", "3.00x"],
                                                        ["step02 title on tensor cores", "1", "40.00x", "30.00x"], ["step04 title on tensor cores", "5", "8.00x", "6.00x"],
                                                        ["yardstick title", "30", "1.33x", "1.00x"], ["PyTorch eager", "50", "0.80x", "0.60x"]])
        self.assertEqual([line[-3:-1] for line in lines[:2] + lines[-1:]], [["relative L2", "of allowance"], ["5.5e-05", "0.77"], ["4.0e-07", "0.50"]])
        self.assertNotIn("of allowance", self.lines(made_up_row("step04", 5.0))[0], "PyTorch has no such figure in 16 bits")
        loaded = self.load(made_up_file(made_up_row("step02", 40.0, dtype="fp32"), made_up_row("step04", 10.0, dtype="fp32"), made_up_row("step04", 5.0, **on_tensor_cores), made_up_row("step04", 2.0),
                                        made_up_row("step02", None, **on_tensor_cores, not_run="no room")))
        self.assertEqual(result_tables.times_table(loaded, ["dtype"], "step02")[1:],
                         [["step02 title", "40", "n/a"], ["step04 title", "10 (4.00x)", "2"], ["step02 title on tensor cores", "n/a", "n/a"], ["step04 title on tensor cores", "5 (8.00x)", "n/a"],
                          ["step02 title on tensor cores forward (fp32): no room"]])
        self.assertEqual(result_tables.class_table(loaded, "step02", dtype="fp32"), [["ms", "GPU", "step02", "step04", "step02 on tensor cores", "step04 on tensor cores"],
                                                                                    ["nvidia-made-up-1", "NVIDIA Made Up 1", "40", "10 (4.00x)", "n/a", "5 (8.00x)"]])
        self.assertEqual(result_markers.times(loaded, "gpu=nvidia-made-up-1 columns=dtype")[-2], ["step04 title on tensor cores", "5", "n/a"])
        self.assertEqual(result_markers.times(loaded, "gpu=nvidia-made-up-1 columns=dtype product=cuda-cores")[-1], ["step04 title", "10", "2"])

    def test_over_step01_never_alone(self):
        self.assertNotIn("over step01", self.lines(made_up_row("step01", 8.0), made_up_row("step04", 1.0))[0])

    def test_backward(self):
        lines = self.lines(made_up_row("step05 recompute backward", 10.0, "backward"), made_up_row("step05 standard backward", 30.0, "backward"), made_up_row("step02", 1.0), **{"pass": "backward"})
        self.assertEqual((lines[0][:3], lines[2][:3]), (["method", "ms", "over standard"], ["step05 recompute backward", "10", "3.00x"]))

    def test_one_configuration_only(self):
        with self.assertRaisesRegex(results.ResultsError, "several configurations"):
            self.lines(made_up_row("step04", 1.0), made_up_row("step04", 1.0, causal=True))
        self.assertIsNone(self.lines())

    def test_a_column_per_gpu(self):
        loaded = self.load(made_up_file(made_up_row("step02", 8.0), made_up_row("step04", 2.0)), made_up_file(made_up_row("step02", 9.0), gpu="NVIDIA Other"))
        self.assertEqual(result_tables.times_table(loaded, ["gpu"], "step02"), [["ms", "nvidia-made-up-1", "nvidia-other"], ["step02 title", "8", "9"], ["step04 title", "2 (4.00x)", "n/a"]])

    def test_why_a_cell_is_empty(self):
        loaded = self.load(made_up_file(made_up_row("step04", 2.0), *(made_up_row("SDPA flash", None, dtype=dtype, not_run="only half") for dtype in ("fp32", "fp16"))))
        lines = result_tables.times_table(loaded, ["dtype", "head_dim"])
        self.assertEqual(lines[1:], [["step04 title", "n/a", "2"], ["PyTorch SDPA flash", "n/a", "n/a"], ["PyTorch SDPA flash forward (fp32 d 64, fp16 d 64): only half"]])
        self.assertEqual(list(result_tables.text(lines))[-1], lines[3][0])
        self.assertTrue(result_tables.markdown(lines).endswith("| PyTorch SDPA flash | n/a | n/a |\n\nn/a:\n\n- " + lines[3][0]))

    def test_columns_in_order(self):
        loaded = self.load(made_up_file(*(made_up_row("step04", n / 1000, dtype=dtype, seqlen=n) for dtype in ("bf16", "fp16", "fp32") for n in (1024, 512))))
        self.assertEqual(result_tables.times_table(loaded, ["dtype", "seqlen"])[0], ["ms", "fp32 N 512", "fp32 N 1024", "fp16 N 512", "fp16 N 1024", "bf16 N 512", "bf16 N 1024"])
        with self.assertRaisesRegex(results.ResultsError, "several rows fit"):
            result_tables.times_table(loaded, ["dtype"])
        loaded = self.load(made_up_file(*(made_up_row("SDPA flash", None, dtype="fp32", seqlen=n, not_run="only half") for n in (1024, 4096, 512))))
        self.assertEqual(result_tables.times_table(loaded, ["seqlen"])[-1], ["PyTorch SDPA flash forward (N 512, N 1024, N 4096): only half"])

    def test_exponent(self):
        self.assertAlmostEqual(result_tables.exponent([(n, 7 * n ** 2) for n in (512, 1024, 4096)]), 2)
        self.assertAlmostEqual(result_tables.exponent([(1, 1), (2, 1), (4, 4)]), 1)  # by hand: x -1 0 1, y 0 0 2
        self.assertIsNone(result_tables.exponent([(512, 9), (1024, 0)]))

    def test_article(self):
        matrix = 4 * 32 * 4096 ** 2 * 2
        scaling = [made_up_row(method, 1.0, batch=1, heads=16, seqlen=n, extra_bytes=factor * n ** power)
                   for method, factor, power in (("step02", 3, 2), ("step04", 5, 1)) for n in (1024, 2048, 8192)]
        lines = self.lines_of_article(made_up_row("step02", 8.0, extra_bytes=2 * matrix, kernel_count=3), made_up_row("step04", 2.0, extra_bytes=matrix // 100, kernel_count=1), *scaling)
        self.assertEqual(lines, [["", "naive: step02 title", "flash: step04 title"], ["kernels", "3", "1"],
                                 ["N × N matrix", "in HBM: 2.0 of them per head, 6.0 MB moved", "never whole: the extra memory is 1.00% of one"],
                                 ["memory beyond Q, K, V, O", "8.6 GB, N^2.00 fitted over N 1024 to 8192", "42.9 MB, N^1.00 fitted over N 1024 to 8192"],
                                 ["exactness (relative L2 against float64)", "5.5e-05, PASS", "5.5e-05, PASS"]])

    def lines_of_article(self, *rows):
        return result_markers.article(self.load(made_up_file(*rows)), "gpu=nvidia-made-up-1 dtype=fp16 head_dim=64")


class Labels(unittest.TestCase):
    def test_methods(self):
        for method, title, label in (("step04", "online softmax", "step04 online softmax"), ("step05 forward", "recompute backward", "step05 forward"), ("yardstick", None, "yardstick"),
                                     ("step05 recompute backward", "recompute backward", "step05 recompute backward"), ("eager", "eager", "PyTorch eager")):
            self.assertEqual(result_tables.label({"method": method, "title": title, "ours": method != "eager", "product": None}), label)
        on_tensor_cores = {"method": "step04", "title": "online softmax", "ours": True, "product": results.TENSOR_CORES}
        self.assertEqual(result_tables.label(on_tensor_cores), "step04 online softmax on tensor cores")
        self.assertEqual(result_tables.label(on_tensor_cores | {"method": "step05 recompute backward"}), "step05 recompute backward on tensor cores")


class Figures(InFolder):
    def setUp(self):
        super().setUp()
        self.loaded = self.load(made_up_file(made_up_row("step04", 2.5), made_up_row("eager", 10.0), made_up_row("step03", None, not_run="why"), made_up_row("step05 recompute backward", 7.0, "backward"),
                                             *(made_up_row("step04", ms, batch=1, heads=16, seqlen=n) for n, ms in ((1024, 1.0), (2048, 4.0)))))

    def value(self, name, words):
        return result_markers.value(self.loaded, name, "gpu=nvidia-made-up-1 dtype=fp16 " + words)

    def test_values(self):
        for name, words, text in (("time.median_ms", "method=step04 fmt=.2f unit=ms", "2.50 ms"), ("time.median_ms", "method=step04 over=eager fmt=.1f unit=x", "4.0x"), ("tflops", "method=step04", "111"),
                                  ("hbm_measured_bytes", "method=step04 unit=MB fmt=.1f", "33.0 MB"), ("hbm_measured_bytes", "method=step04 per=hbm_expected_bytes fmt=.3f", "1.500"),
                                  ("time.median_ms", "method='step05 recompute backward'", "7"), ("time.median_ms", "method=step03", "n/a"), ("time.median_ms", "method=step02", "n/a"),
                                  ("time.median_ms", "method=step04 over=step03", "n/a"), ("time.median_ms", "method=step04 set=scaling seqlen=1024 over.seqlen=2048 fmt=.2f", "4.00"),
                                  ("predicted_ms", "method=step04", "n/a"), ("kernels.two.time_ms", "method=step04 fmt=.3f", "0.625"), ("verdict", "method=step04", "PASS"),
                                  ("device.bytes_per_second.hbm_copy", "unit=TB/s fmt=.1f", "1.5 TB/s"), ("versions.torch", "", "9.9"), ("commit", "", "abc123")):
            with self.subTest(name=name, words=words):
                self.assertEqual(self.value(name, words), text)

    def test_of_the_gpu_the_model_and_a_sweep(self):
        device = {"bytes_per_second": {"hbm_copy": 2e12, "sram_read": 8e12}, "tile_products": [{"dtype": dtype, "head_dim": d, "flops_per_second": rate * 1e12, "flops_per_byte_of_bandwidth": rate / 2}
                                                                                              for dtype, d, rate in (("fp32", 64, 5), ("fp16", 64, 50), ("fp16", 128, 60))]}
        tile = lambda name, ms: {"tile": name, "sram_bytes": 4096, "blocks_per_sm": 2, "requested_bytes": 7000, "time": ms and {"median_ms": ms}, "not_run": None if ms else "no room"}
        sweep = {"step": "step04", **CONFIGURATION, "tiles": [tile("64x64", 3.0), tile("128x64", 2.0), tile("256x64", None)], "best": "128x64"}
        row = made_up_row("step04", 2.5, flops={"useful": 1, "executed": 100e9}, hbm_expected_bytes=1e9, kernels=[{"name": "dK dV", "time_ms": 1.0}, {"name": "dQ", "time_ms": 0.5}])
        self.loaded = self.load(made_up_file(row, made_up_row("eager", 10.0), device=device, sweeps=[sweep, {**sweep, "head_dim": 128}, {**sweep, "seqlen": 512, "best": None}, {**sweep, "batch": 1, "heads": 1, "best": "64x64"}]))
        product = "device.tile_products."
        for name, words, text in ((product + "flops_per_second", "head_dim=64 unit=TFLOP/s", "50 TFLOP/s"), (product + "flops_per_byte_of_bandwidth", "head_dim=128", "30"),
                                  (product + "flops_per_second", "head_dim=64 over.dtype=fp32 fmt=.2f", "0.10"), (product + "flops_per_second", "head_dim=40", "n/a"),
                                  ("device.bytes_per_second.sram_read", "per=device.bytes_per_second.hbm_copy", "4"), ("kernels.dK_dV.time_ms+kernels.dQ.time_ms", "method=step04", "1.5"),
                                  ("kernels.dQ.time_ms", "method=step04 per=time.median_ms fmt=.0%", "20%"), ("model.flops_ms", "method=step04", "2"), ("model.bytes_ms", "method=step04", "0.5"),
                                  ("model.bytes_ms", "method=step04 per=model.flops_ms", "0.25"), ("model.flops_ms", "method=eager", "n/a"), ("sweep.best", "head_dim=64", "128x64"), ("sweep.best", "head_dim=64 set=other", "64x64"),
                                  ("sweep.tiles.64x64.time.median_ms", "head_dim=64 per=sweep.fastest.time.median_ms", "1.5"), ("sweep.tiles.256x64.time.median_ms", "head_dim=64", "n/a"),
                                  ("sweep.fastest.time.median_ms", "head_dim=64 seqlen=512", "n/a"), ("sweep.best", "head_dim=64 seqlen=1024", "n/a")):
            with self.subTest(name=name, words=words):
                self.assertEqual(self.value(name, words), text)
        for name, words, text in ((product + "flops_per_second", "", "choose the product"), ("sweep.best", "set=any", "say more"), ("sweep.tiles.7x7.time", "head_dim=64", "no field"), ("time.median_ms+no.such", "method=step04", "no field")):
            with self.subTest(words=words), self.assertRaisesRegex(results.ResultsError, text):
                self.value(name, words)
        lines = result_tables.tiles_table(self.loaded, gpu="nvidia-made-up-1", dtype="fp16", head_dim=64, seqlen=4096, set="sizes")
        self.assertEqual(lines[1:], [["64x64", "4.1 kB", "2", "7.0 kB", "3", "1.50x"], ["128x64", "4.1 kB", "2", "7.0 kB", "2", "1.00x"], ["256x64", "n/a: no room"]])
        self.loaded = self.load(made_up_file(row, device=None, device_reason="why"))
        self.assertEqual([self.value(product + "flops_per_second", "head_dim=64"), self.value("model.flops_ms", "method=step04"), self.value("sweep.best", "head_dim=64")], 3 * ["n/a"])

    def test_products(self):
        device = {"bytes_per_second": {"hbm_copy": 2e12}, "split_tile_products": [{"dtype": "fp32", "head_dim": 64, "flops_per_second": 25e12}],
                  "tile_products": [{"dtype": dtype, "head_dim": 64, "flops_per_second": rate * 1e12} for dtype, rate in (("fp32", 5), ("fp16", 50))]}
        known = {"dtype": "fp32", "flops": {"useful": 1, "executed": 100e9}, "hbm_expected_bytes": 1e9}
        self.loaded = self.load(made_up_file(made_up_row("step04", 8.0, **known), made_up_row("step04", 2.0, **known, product="tensor-cores"), made_up_row("step02", 16.0, **known),
                                             made_up_row("eager", 20.0, dtype="fp32"), made_up_row("step04", 1.0), device=device))
        value = lambda name, words: result_markers.value(self.loaded, name, "gpu=nvidia-made-up-1 head_dim=64 " + words)
        product = "device.tile_products.flops_per_second"
        for name, words, text in (("time.median_ms", "method=step04 dtype=fp32", "8"), ("time.median_ms", "method=step04 dtype=fp32 product=tensor-cores", "2"),
                                  ("time.median_ms", "method=step04 dtype=fp32 product=tensor-cores over=eager", "10"), ("time.median_ms", "method=step04 dtype=fp32 product=tensor-cores over.product=cuda-cores", "4"),
                                  ("time.median_ms", "method=step04 dtype=fp32 product=tensor-cores over=step02 over.product=cuda-cores", "8"), ("time.median_ms", "method=step04 dtype=fp16", "1"),
                                  ("time.median_ms", "method=step04 dtype=fp32 product=tensor-cores over=step02", "n/a"), ("model.flops_ms", "method=step04 dtype=fp32", "20"),
                                  ("model.flops_ms", "method=step04 dtype=fp32 product=tensor-cores", "4"), (product, "dtype=fp32 unit=TFLOP/s", "5 TFLOP/s"),
                                  (product, "dtype=fp32 product=tensor-cores unit=TFLOP/s", "25 TFLOP/s"), (product, "dtype=fp16 product=tensor-cores unit=TFLOP/s", "50 TFLOP/s")):
            with self.subTest(name=name, words=words):
                self.assertEqual(value(name, words), text)
        del self.loaded["nvidia-made-up-1"]["device"]["split_tile_products"]
        self.assertEqual(value(product, "dtype=fp32 product=tensor-cores"), "n/a", "step00 of an older build")
        for words, text in (("method=step04 dtype=fp32 product=any", "say more"), ("method=step04 product=vector-cores", "vector-cores")):
            with self.subTest(words=words), self.assertRaisesRegex(results.ResultsError, text):
                value("tflops", words)
        with self.assertRaisesRegex(results.ResultsError, "columns=product"):
            result_markers.times(self.loaded, "columns=product")

    def test_bad_words(self):
        for name, words, text in (("time.mean", "method=step04", "no field"), ("tflops", "method=step04 unit=miles", "miles"), ("tflops", "method=step04 fmt=.2q", "fmt"), ("tflops", "causal=maybe", "maybe"),
                                  ("tflops", "colour=red", "colour"), ("tflops", "step04", "key=value"), ("tflops", "seqlen=long", "long"), ("tflops", "", "say more"), ("tflops", "method='step04", "quotation")):
            with self.subTest(words=words), self.assertRaisesRegex(results.ResultsError, text):
                self.value(name, words)


DOCUMENT = """# Title
<!-- results:speedup gpu=nvidia-made-up-1 dtype=fp16 head_dim=64 causal=no pass=forward -->
old
<!-- /results -->
Text: <!-- value:time.median_ms gpu=nvidia-made-up-1 method=step04 fmt=.2f unit=ms -->old<!-- /value --> and <!-- value:tflops gpu=nvidia-made-up-1 method=step04 --><!-- /value -->.
```
<!-- value:time.median_ms is code -->x<!-- /value -->
```
    <!-- results:pie is code -->x<!-- /results -->

`<!-- value:tflops is code -->x<!-- /value -->`, and `<!-- /results -->`.
<!-- results:times gpu=nvidia-none columns=seqlen -->
<!-- /results -->
"""


class Documents(InFolder):
    """The command line, on a repository of its own."""

    def setUp(self):
        super().setUp()
        shutil.copytree(REPOSITORY / "plots", self.folder / "plots", ignore=shutil.ignore_patterns("swap", "__pycache__"))
        self.readme = self.write("README.md", DOCUMENT)
        self.chapter = self.write("docs/one.md", "<!-- results:article gpu=nvidia-made-up-1 dtype=fp16 head_dim=64 -->\n<!-- /results -->\n")
        self.write("docs/results/nvidia-made-up-1.json", made_up_file(made_up_row("step02", 40.0), made_up_row("step04", 2.5)))

    def call(self, *flags):
        done = subprocess.run([sys.executable, self.folder / "plots" / "speedup_table.py", *flags], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def test_write_then_check(self):
        self.assertEqual(self.call("--check")[0], 1)
        self.assertEqual(self.call("--write"), (0, "", ""))
        self.assertEqual(self.call("--check"), (0, "", ""))
        text = self.readme.read_text()
        self.assertIn("| step04 title | 2.5 | 16.00x |", text)
        self.assertIn("unit=ms -->2.50 ms<!-- /value --> and", text)
        self.assertIn("<!-- value:time.median_ms is code -->x<!-- /value -->", text)
        self.assertIn(result_tables.NOTHING, text)
        self.assertIn("| kernels | 2 | 2 |", self.chapter.read_text())
        self.assertEqual(self.call("--write")[0], 0)
        self.assertEqual(self.readme.read_text(), text)
        self.assertFalse(list(self.folder.rglob("*.part")))

    def test_one_digit(self):
        self.call("--write")
        whole = self.readme.read_text()
        for was, now, line in (("16.00x", "16.01x", 6), (">2.50 ms<", ">2.51 ms<", 8), (">111<", ">112<", 8)):
            with self.subTest(now=now):
                self.assertIn(was, whole)
                self.readme.write_text(whole.replace(was, now))
                code, out, _ = self.call("--check")
                self.assertEqual((code, out.count("\n")), (1, 1), out)
                self.assertTrue(out.startswith(f"README.md:{line}: "), out)
                self.assertIn(now.strip("<>"), out)
                self.assertEqual(self.readme.read_text(), whole.replace(was, now), "--check writes nothing")
        self.readme.write_text(whole)
        self.write("docs/results/nvidia-made-up-1.json", made_up_file(made_up_row("step02", 40.0), made_up_row("step04", 2.51)))
        self.assertEqual(self.call("--check")[0], 1)

    def test_broken_markers(self):
        for text, what in (("\n<!-- value:tflops method=step04 -->1\n", "README.md:2: a marker without"), ("1<!-- /value -->", "README.md:1: a marker without"), ("<!-- results:pie -->\n<!-- /results -->", "results:pie"),
                           ("<!-- value:a -->1<!-- value:tflops -->2<!-- /value -->", "README.md:1: a marker without")):
            with self.subTest(text=text):
                self.readme.write_text(text)
                before = self.chapter.read_text()
                code, out, err = self.call("--write")
                self.assertEqual((code, out, err.count("\n")), (2, "", 1))
                self.assertIn(what, err)
                self.assertEqual((self.readme.read_text(), self.chapter.read_text()), (text, before))

    def test_profile(self):
        self.readme.write_text("<!-- results:profile step=step04 -->\n<!-- /results -->\n")
        self.assertEqual(self.call("--write"), (0, "", ""))
        self.assertIn("n/a: not profiled (docs/results/profiler/step04.txt", self.readme.read_text())
        self.write("docs/results/profiler/step04.txt", "==PROF== Connected to process 7 (/home/a/step04)\n[7] step04@127.0.0.1\n  attention (32, 1, 1)\n    dram__bytes_read.sum  Mbyte 1.5\n\n")
        self.assertEqual(self.call("--check")[0], 1)
        self.call("--write")
        self.assertEqual(self.readme.read_text(), "<!-- results:profile step=step04 -->\n```console\n  attention (32, 1, 1)\n    dram__bytes_read.sum  Mbyte 1.5\n```\n<!-- /results -->\n")
        self.assertEqual(self.call("--check"), (0, "", ""))
        self.readme.write_text("<!-- results:profile step=../x -->\n<!-- /results -->\n")
        self.assertEqual(self.call("--write")[0], 2)

    def test_what_is_stored_of_a_profile(self):
        output = """==PROF== Connected to process 7 (/home/a/build/step04)
step04 online softmax 0.5 ms
==PROF== Profiling "attention": 0%....100% - 1 pass
[7] step04@127.0.0.1
  void attention<Tile>(Mask) (4096, 1, 1)x(128, 1, 1), Context 1
    Section: Command line profiler metrics
    -------------------- ----------- ------------
    Metric Name          Metric Unit Metric Value
    -------------------- ----------- ------------
    dram__bytes_read.sum       Mbyte         1.50
    -------------------- ----------- ------------
    Warning: no clocks locked

==WARNING== Found outstanding GPU clock reset
==PROF== Disconnected from process 7
"""
        stored = store_profiles.profiler_part("step04", output)
        self.assertEqual(stored, "step04\n  void attention<Tile>(Mask) (4096, 1, 1)x(128, 1, 1), Context 1\n    Section: Command line profiler metrics\n"
                                 "    Metric Name          Metric Unit Metric Value\n    dram__bytes_read.sum       Mbyte         1.50\n")
        self.assertEqual("\n".join(result_markers.profiler_lines(stored)) + "\n", stored, "nothing is left to take out of what is stored")
        self.assertEqual(store_profiles.profiler_part("step05", output), "", "no kernel of that step")
        self.assertEqual(store_profiles.profiler_part("step04", "==PROF== Connected to process 7\n==WARNING== No kernels were profiled.\n"), "")

    def test_print_and_merge(self):
        other = self.write("other.json", made_up_file(made_up_row("step02", 9.0), gpu="NVIDIA Other"))
        code, out, err = self.call(self.folder / "docs/results/nvidia-made-up-1.json", other)
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"step04 title +2.5 +16.00x")
        self.assertRegex(out, r"step02 title +40 +9\n")
        shard = self.write("shard.json", made_up_file(made_up_row("step03", 7.0)))
        self.assertEqual(self.call(self.folder / "docs/results/nvidia-made-up-1.json", shard, "--merge", self.folder / "all.json")[0], 0)
        self.assertEqual([row["method"] for row in json.loads((self.folder / "all.json").read_text())["rows"]], ["step02", "step04", "step03"])
        code, out, err = self.call(self.folder / "all.json", other, "--merge", self.folder / "no.json")
        self.assertEqual((code, err.count("\n"), (self.folder / "no.json").exists()), (2, 1, False))

    def test_many_machines(self):
        seats = [self.write(f"seats/seat{n}.json", made_up_file(made_up_row("step02", 40.0), made_up_row("step04", ms), commit=commit)) for n, ms, commit in ((1, 10.0, "abc"), (2, 20.0, "def"))]
        self.assertEqual(self.call(*seats)[0], 2, "the same GPU twice")
        code, out, err = self.call("--each", *seats)
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"seat1 +NVIDIA Made Up 1 +40 +10 \(4.00x\)\nseat2 +NVIDIA Made Up 1 +40 +20 \(2.00x\)\n\n2 files\n")
        self.assertEqual(self.call("--each", seats[0], self.write("other/seat1.json", made_up_file()))[0], 2)

    def test_refusals_and_bad_arguments(self):
        emulated = self.write("emulated.json", made_up_file(made_up_row("step02", 9.0) | {"emulated": True}))
        for flags, text in (((emulated,), "emulated"), (("no.json",), "no.json"), (("--run", "--shard", "0/2"), "--out"), (("--shard", "2/2"), "--shard"), (("--run", "--out", "/nowhere/x.json"), "cannot be written"),
                            (("--dtype", "fp8"), "fp8"), (("--check", "--write"), "not allowed"), (("--run", "x.json"), "reads no files"),
                            (("--run", "--folder", self.folder), "no step00")):
            with self.subTest(flags=flags):
                code, out, err = self.call(*flags)
                self.assertEqual((code, out, err.count("\n")), (2, "", 1), err)
                self.assertIn(text, err)

    def test_without_results(self):
        shutil.rmtree(self.folder / "docs/results")
        self.assertEqual(self.call()[0], 2)
        self.assertEqual(self.call("--write")[0], 0)
        self.assertIn("method=step04 fmt=.2f unit=ms -->n/a<!-- /value -->", self.readme.read_text())
        self.assertEqual(self.call("--check")[0], 0)


FAKE_TORCH = """
import json, sys
print(json.dumps({"versions": {"torch": "9.9", "cuda_of_torch": "13.0", "cudnn": 91000, "triton": None}}), flush=True)
for line in sys.stdin:
    problem = json.loads(line)
    if problem["seqlen"] == 8192:
        sys.exit("CUDA error: made up")
    row = lambda name: {"method": name, "not_run": None, "time": {"median_ms": 500, "p10_ms": 1, "p90_ms": 2, "runs": 10, "late_runs": 0}, "flops": 5, "tflops": 1.5, "extra_bytes": 9,
                        "errors": {"dq": {"relative_l2": 1e-3, "max_abs": None}, "dk": {"relative_l2": 2e-3, "max_abs": 1.0}}, "kernels": [{"name": "gemm", "us": 1500}]}
    print(json.dumps({which: [row(name) if name != "SDPA flash" else {"method": name, "not_run": "dtype"} for name in problem["methods"] if name != "SDPA cuDNN"] for which in problem["passes"]}), flush=True)
"""


class Runner(InFolder):
    """--run on fake executables: which configurations, what is kept, what a row holds."""

    def setUp(self):
        super().setUp()
        self.build = self.folder / "build"
        self.build.mkdir()
        for name in ("step00", *measure_rows.PROGRAMS):
            path = self.write(f"build/{name}", f'#!/bin/sh\nexec "{sys.executable}" -ES "{FAKE_STEP}" {name} "$@"\n')
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        self.log, self.out = self.folder / "log", self.folder / "out.json"
        real = measure_rows.Torch
        for patch in (mock.patch.dict(os.environ, {"FAKE_STEP_LOG": str(self.log)}), mock.patch.object(measure_rows, "Torch", lambda: real((sys.executable, "-c", FAKE_TORCH)))):
            patch.start()
            self.addCleanup(patch.stop)

    def run_table(self, *flags, out=None, **environment):
        """(exit code, stdout, calls of the executables without step00's)."""
        self.log.write_text("")
        text = io.StringIO()
        with mock.patch.dict(os.environ, environment), contextlib.redirect_stdout(text), contextlib.redirect_stderr(text), self.assertRaises(SystemExit) as end:
            speedup_table.main(["--run", "--folder", str(self.build), "--out", str(out or self.out), *flags])
        return end.exception.code, text.getvalue(), [line for line in self.log.read_text().splitlines() if not line.startswith("step00")]

    def rows(self, path=None):
        return json.loads((path or self.out).read_text())["rows"]

    def test_headline(self):
        code, out, calls = self.run_table()
        self.assertEqual(code, 0, out)
        self.assertEqual(len(calls), (9 + 8) * 4 + 4, "fp16, and fp32 on both products; and four sweeps: two dtypes that step00 found, two head_dims, causal or not")
        self.assertIn("--dtype fp16 --batch 4 --heads 16 --seqlen 4096 --head-dim 128 --causal --device gpu --check sample:64 --traffic auto", "\n".join(calls))
        [loaded] = results.load([self.out]).values()
        self.assertEqual((loaded["gpu"], loaded["commit"], loaded["versions"]["torch"], loaded["device"]["bytes_per_second"]["hbm_copy"]), ("NVIDIA Made Up 1", "abc123", "9.9", 1.5e12))
        self.assertEqual(len(loaded["rows"]), 4 * (10 + 8) + 4 * (7 + 3 + 8))
        self.assertRegex(out, r"\[1/8\] fp32.*: \d+\.\d s \(step01 \d+\.\d, .*yardstick \d+\.\d, step04 on tensor cores \d+\.\d, step05 on tensor cores \d+\.\d, PyTorch \d+\.\d\), \d+ of 18 rows\n")
        for heading in ("over step02", "over cuBLAS", "over eager", "over step01"):
            self.assertIn(heading, out)
        self.assertRegex(out, r"step04 title of step04 +100 +4.00x +2.00x +5.00x +10 +5.0 MB +5.1 MB +4.1 kB \(N\) +3.0e-03 +1 +8.00x")
        self.assertRegex(out, r"step05 recompute backward +150 +4.00x +3.33x")
        self.assertRegex(out, r"PyTorch SDPA flash +n/a: dtype\n")

    def test_rows(self):
        self.run_table("--dtype", "fp16", "--head-dim", "64", "--no-causal", "--seqlen", "512")
        rows = {(row["method"], row["pass"]): row for row in self.rows()}
        keys = {"method", "title", "ours", "pass", *results.CONFIGURATION, "tile", "not_run", "emulated", "verified", "verdict", *measure_rows.MEASURED}
        for row in rows.values():
            self.assertLessEqual(keys, set(row))
            if row["not_run"] is None:
                self.assertEqual([key for key in keys if row[key] is None and f"{key}_reason" not in row and key not in ("not_run", "verified")], [], row["method"])
        step = rows["step05 recompute backward", "backward"]
        self.assertEqual((step["time"], step["error"], step["by_tensor"], step["hbm_measured_bytes"], step["hbm_measured_bytes_reason"]),
                         ({"median_ms": 18.75, "p10_ms": 17.75, "p90_ms": 19.75, "runs": 20}, {"relative_l2": 3e-3, "max_abs": 6e-3, "worst_share": 0.5}, {"Q": 12}, None, "counters are off"))
        eager = rows["eager", "backward"]
        self.assertEqual((eager["error"]["relative_l2"], eager["error"]["max_abs"], eager["kernels"][0]["time_ms"], eager["kernel_count"], eager["extra_bytes"]), (2e-3, None, 1.5, 1, 9))
        self.assertEqual(rows["SDPA cuDNN", "forward"]["not_run"], "this PyTorch has no such backend")
        shortage = {"method": "eager", "not_run": "CUDA out of memory. Tried to allocate 512.00 GiB. GPU 0 has a total capacity of 139 GiB. Process 17 has"}
        self.assertEqual(measure_rows.torch_row(shortage, "forward", CONFIGURATION)["not_run"], "CUDA out of memory. Tried to allocate 512.00 GiB")
        self.assertNotIn(("step05 forward", "forward"), rows)

    def test_fp32_on_tensor_cores(self):
        flags = ["--head-dim", "64", "--seqlen", "512", "--no-causal"]
        _, out, calls = self.run_table("--dtype", "fp32", *flags)
        self.assertEqual([(line.split()[0], line.split("--product ")[1].split()[0]) for line in calls],
                         [(program, "cuda-cores") for program in measure_rows.PROGRAMS if program not in measure_rows.IN_HALF_ALONE] + [("step04", "tensor-cores"), ("step05", "tensor-cores")])
        ms = {(row["method"], row["product"]): row["time"]["median_ms"] for row in self.rows() if row["ours"]}
        self.assertEqual({key: value for key, value in ms.items() if key[1] == "tensor-cores"},
                         {("step04", "tensor-cores"): 6.25, ("step05 standard backward", "tensor-cores"): 37.5, ("step05 recompute backward", "tensor-cores"): 9.375})
        self.assertEqual((ms["step04", "cuda-cores"], len(ms)), (12.5, 10))
        self.assertEqual({row["product"] for row in self.rows() if not row["ours"]}, {None})
        self.assertRegex(out, r"step04 title of step04 on tensor cores +6.25 +8.00x +4.00x +80.00x .* 0.50 +1 +16.00x\n")
        self.assertRegex(out, r"step05 recompute backward on tensor cores +9.375 +8.00x")
        results.load([self.out])
        broken = json.loads(self.out.read_text())
        broken["rows"] = [row for row in broken["rows"] if row["product"] != "tensor-cores" or row["method"] != "step04"]
        self.out.write_text(json.dumps(broken))
        self.assertEqual(len(self.run_table("--dtype", "fp32", *flags, "--resume")[2]), 8, "a row of the other product does not stand in")
        self.assertEqual(self.run_table("--dtype", "fp32", *flags, "--resume")[2], [])
        self.run_table("--dtype", "fp32", *flags, FAKE_STEP_WRONG="step04")
        self.assertEqual([row["product"] for row in self.rows() if row["verified"] is False], ["cuda-cores", "tensor-cores"])
        self.run_table("--dtype", "fp32", "--head-dim", "64", "--no-causal", FAKE_STEP_TOO_LARGE="4096")
        (self.build / "step05").unlink()
        self.run_table("--dtype", "fp32", *flags)
        results.load([self.out])
        self.assertFalse([line for line in self.run_table("--dtype", "fp16", *flags)[2] if "--product" in line], "no choice in 16 bits")

    def test_counters(self):
        for flags, counters in ((("--seqlen", "512"), "off"), (("--seqlen", "512", "--batch", "1", "--heads", "1"), "auto"), (("--seqlen", "4096"), "auto")):
            with self.subTest(flags=flags):
                _, _, calls = self.run_table("--dtype", "fp16", "--head-dim", "64", "--no-causal", *flags)
                self.assertEqual({call.split()[-1] for call in calls if "--sweep-tiles" not in call}, {counters})

    def test_what_does_not_fit_and_what_is_not_built(self):
        (self.build / "yardstick").unlink()
        code, out, _ = self.run_table("--dtype", "fp16", "--head-dim", "64", "--no-causal", FAKE_STEP_TOO_LARGE="4096")
        self.assertEqual(code, 0)
        rows = {row["method"]: row for row in self.rows()}
        self.assertEqual(rows["step01"]["not_run"], "step01: S and P need 9 bytes, 8 are free; step03 needs none of them")
        self.assertEqual(rows["yardstick"]["not_run"], "not built: `make yardstick` builds it where CMake finds cuBLAS")
        self.assertRegex(out, r"yardstick +n/a: not built")

    def test_counters_that_end_a_program(self):
        self.run_table("--dtype", "fp16", "--head-dim", "64", "--no-causal", FAKE_STEP_CRASH="step04")
        reasons = {row["method"]: row.get("hbm_measured_bytes_reason") for row in self.rows() if row["ours"]}
        self.assertEqual((reasons["step04"], reasons["step03"]), ("the run with counters was ended by signal 6; this one had none", None))
        self.assertIsNone(next(row for row in self.rows() if row["method"] == "step04")["not_run"])

    def test_a_wrong_result_is_no_figure(self):
        code, out, _ = self.run_table("--dtype", "fp16", "--head-dim", "64", "--no-causal", FAKE_STEP_WRONG="step03")
        row = next(row for row in self.rows() if row["method"] == "step03")
        self.assertEqual((code, row["verified"], row["time"]), (1, False, None))
        self.assertRegex(out, r"step03 .*n/a: its result was wrong: dq: worst at 1,2,3")
        results.load([self.out])

    def test_full_and_its_order(self):
        options = speedup_table.parse(["--run", "--full", "--out", str(self.out)])[1]
        chosen = speedup_table.chosen_problems(options, measure_rows.DTYPES)
        self.assertEqual(len(chosen), 72 + 8)
        self.assertTrue(all(problem["seqlen"] == 4096 for problem in chosen[:12]))
        self.assertEqual([(p["batch"], p["heads"]) for p in chosen if (p["dtype"], p["head_dim"], p["causal"]) == ("bf16", 128, True)], [(4, 16), (1, 16), (4, 16), (4, 16), (1, 16), (4, 16)])
        scaling = chosen[12:20]
        self.assertEqual({p["seqlen"] for p in scaling}, {1024 << n for n in range(8)})
        self.assertEqual({results.set_of(p) for p in scaling}, {"scaling"})
        self.assertEqual({results.set_of(p) for p in chosen[:12] + chosen[20:]}, {"sizes"})
        for flags, count in ((("--dtype", "fp32"), 24), (("--causal",), 36), (("--shard", "1/3"), 27)):
            options = speedup_table.parse(["--run", "--full", "--out", str(self.out), *flags])[1]
            self.assertEqual(len(speedup_table.chosen_problems(options, measure_rows.DTYPES)), count, flags)
        self.assertEqual(measure_rows.expected_keys(scaling[0], True), {(name, "forward", None) for name in ("step02", "step04", "eager", "SDPA flash")})

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
        flags = ["--dtype", "fp16", "bf16", "--seqlen", "4096"]
        out, calls = self.run_table(*flags)[1:]
        self.assertEqual([line.split()[0] for line in calls if "--sweep-tiles" in line], ["step04"] * 2, "d 64 and 128, not in bf16, not causal")
        sweeps = json.loads(self.out.read_text())["sweeps"]
        self.assertEqual([(sweep["dtype"], sweep["head_dim"], sweep["causal"], sweep["best"]) for sweep in sweeps], [("fp16", 64, False, "64x64"), ("fp16", 128, False, "64x64")])
        self.assertIn("best 64x64", out)
        self.assertNotIn("/home/a", self.out.read_text(), "no path of the machine")
        self.assertEqual(self.run_table(*flags, "--resume")[2], [])
        self.assertIn("not swept: a tile's result was wrong", self.run_table(*flags, FAKE_STEP_WRONG="step04")[1])
        self.assertEqual(json.loads(self.out.read_text())["sweeps"], sweeps, "what was measured before stays")
        for others in (["--seqlen", "512"], ["--causal"]):
            self.assertFalse([line for line in self.run_table(*flags[:3], *others, out=self.folder / "other.json")[2] if "--sweep-tiles" in line], others)

    def test_resume(self):
        flags = ["--dtype", "fp16", "--head-dim", "64", "--seqlen", "512", "1024"]
        self.run_table(*flags, "--no-causal")
        before = self.rows()
        broken = json.loads(self.out.read_text())
        broken["rows"] = [row for row in before if not (row["method"] == "eager" and row["seqlen"] == 512)]
        self.out.write_text(json.dumps(broken))
        code, out, calls = self.run_table(*flags, "--resume")
        self.assertEqual((code, out.count(": kept")), (0, 1))
        self.assertEqual(sorted({(line.split("--seqlen ")[1].split()[0], "--causal" in line) for line in calls}), [("1024", True), ("512", False), ("512", True)])
        self.assertEqual(len(self.rows()), 2 * len(before))
        self.assertEqual(self.run_table(*flags, "--resume")[2], [])
        self.assertEqual(len(self.run_table(*flags, "--no-causal")[2]), 18, "without --resume all is measured again")
        self.assertEqual(len(self.rows()), 2 * len(before), "and what was not asked for stays")
        self.assertEqual(len(self.run_table(*flags, "--no-causal", "--resume", FAKE_STEP_COMMIT="def456")[2]), 18, "another commit's rows are not kept")
        self.assertEqual(len(self.rows()), len(before))

    def test_commit(self):
        flags = ["--dtype", "fp16", "--head-dim", "64", "--seqlen", "512", "--no-causal"]
        for built, given, code, commit in (("", "feed01", 0, "feed01"), ("", None, 0, None), ("abc123", "feed01", 2, None), ("abc123", None, 0, "abc123")):
            with self.subTest(built=built, given=given):
                self.out.unlink(missing_ok=True)
                found, out, _ = self.run_table(*flags, *(["--commit", given] if given else []), FAKE_STEP_COMMIT=built)
                self.assertEqual(found, code, out)
                if code == 0:
                    self.assertEqual(json.loads(self.out.read_text())["commit"], commit)

    def test_saved_after_each_configuration(self):
        seen, real = [], measure_rows.measure_problem
        def watched(*arguments):
            seen.append(len(self.rows()) if self.out.exists() else 0)
            return real(*arguments)
        with mock.patch.object(measure_rows, "measure_problem", watched):
            self.run_table("--dtype", "fp16", "--head-dim", "64", "--seqlen", "512", "1024", "--no-causal")
        self.assertEqual(seen, [0, 18])

    def test_pytorch_that_dies(self):
        self.run_table("--dtype", "fp16", "--head-dim", "64", "--seqlen", "8192", "512", "--no-causal")
        eager = {row["seqlen"]: row["not_run"] for row in self.rows() if row["method"] == "eager"}
        self.assertEqual(eager, {8192: "PyTorch's process ended (exit 1): CUDA error: made up", 512: None})

    def test_without_pytorch(self):
        real = measure_rows.Torch.__closure__[0].cell_contents
        with mock.patch.object(measure_rows, "Torch", lambda: real((sys.executable, "-c", 'print(\'{"missing": "PyTorch is not installed"}\')'))):
            code, out, _ = self.run_table("--dtype", "fp16", "--head-dim", "64", "--no-causal")
        self.assertEqual(code, 0)
        self.assertIn("PyTorch rows: n/a: PyTorch is not installed", out)
        self.assertNotIn("over eager", out)
        self.assertEqual({row["ours"] for row in self.rows()}, {True})


class TorchRows(unittest.TestCase):
    def test_answers(self):
        """What the process says, with measuring replaced: it goes on after a lack of memory and ends after another error."""
        if not importlib.util.find_spec("torch"):
            self.skipTest("PyTorch is not installed")
        import torch
        import torch_rows
        for error, usable in ((torch.cuda.OutOfMemoryError("CUDA out of memory. Tried"), True), (RuntimeError("CUDA error: illegal\nmore"), False)):
            with mock.patch.object(torch_rows, "measure_configuration", side_effect=error):
                self.assertEqual(torch_rows.answer({}), ({"failed": str(error).splitlines()[0]}, usable))

    def test_rows_of_a_pass(self):
        """measure_configuration() with a clock and memory that need no GPU, through to the results' rows."""
        if not importlib.util.find_spec("torch"):
            self.skipTest("PyTorch is not installed")
        import compare_pytorch
        import torch
        import torch_measure
        import torch_rows
        clock = types.SimpleNamespace(allow_for=lambda ms: None, time=lambda work: (2.0, work() is None))
        on_cpu = {"Clock": lambda size: clock, "extra_bytes": lambda work, size: 77, "kernels_of": lambda work: ([("gemm", 5.0)], 0), "still_alive": lambda: None}
        real_tensors, real_methods = compare_pytorch.make_tensors, compare_pytorch.torch_methods
        with contextlib.ExitStack() as stack:
            for name, replacement in on_cpu.items():
                stack.enter_context(mock.patch.object(compare_pytorch, name, replacement))
            stack.enter_context(mock.patch.object(compare_pytorch, "make_tensors", lambda options: real_tensors(options, "cpu")))
            stack.enter_context(mock.patch.object(compare_pytorch, "torch_methods", lambda n, causal, device: real_methods(n, causal, "cpu")))
            for name in ("synchronize", "empty_cache"):
                stack.enter_context(mock.patch.object(torch.cuda, name, lambda: None))
            stack.enter_context(mock.patch.object(torch.cuda, "get_device_properties", lambda n: types.SimpleNamespace(L2_cache_size=1)))
            stack.enter_context(mock.patch.object(torch_rows, "SECONDS", 0))
            problem = {"dtype": "fp32", "batch": 1, "heads": 2, "seqlen": 64, "head_dim": 64, "causal": True}
            found = torch_rows.measure_configuration({**problem, "passes": ["forward", "backward"], "methods": ["eager"]})
        self.assertEqual({which: [row["method"] for row in rows] for which, rows in found.items()}, {"forward": ["eager"], "backward": ["eager"]})
        row = measure_rows.torch_row(found["backward"][0], "backward", problem)
        self.assertEqual((row["time"]["runs"], row["time"]["median_ms"], row["extra_bytes"], row["kernel_count"]), (20, 2.0, 77, 1))
        self.assertEqual(row["flops"]["useful"], 2.5 * 4 * 64 * 2 * 64 * 65 // 2)
        self.assertLess(row["error"]["relative_l2"], 2e-6)
        self.assertTrue(0 < row["error"]["worst_share"] < 1, row["error"])


class WithoutGpu(unittest.TestCase):
    def test_steps_table(self):
        if not (STEPS / "step04").is_file():
            self.skipTest(f"no steps in {STEPS}")
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "step04").symlink_to((STEPS / "step04").resolve())
            for flags, heading in (((), "fp32, batch 1, heads 2, N 64, d 64"), (("--product", "tensor-cores"), "fp32 on tensor cores, batch 1, heads 2, N 64, d 64"), (("--dtype", "fp16"), "fp16, batch 1, heads 2, N 64, d 64")):
                done = subprocess.run([sys.executable, REPOSITORY / "plots" / "steps_table.py", "--folder", folder, "--device", "cpu", "--seqlen", "64", *flags], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""), flags)
                self.assertTrue(done.stdout.splitlines()[0].endswith(": " + heading), done.stdout)
                self.assertRegex(done.stdout, r"step04 +online softmax +PASS")

    def test_executor(self):
        if not all((STEPS / name).is_file() for name in ("step00", "step01", "step02", "step03", "step04", "step05")):
            self.skipTest(f"no steps in {STEPS}")
        before = sorted(REPOSITORY.glob("docs/results/*"))
        done = subprocess.run([sys.executable, REPOSITORY / "plots" / "speedup_table.py", "--run", "--folder", STEPS, "--dtype", "fp32", "--causal"], capture_output=True, text=True,
                              env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertRegex(done.stdout, r"step04 online softmax +PASS +0\.\d\d +\S+e-\d\d +1\.1 MB +1\.8 MB +4\.1 kB \(N\) +1\n")
        self.assertRegex(done.stdout, r"step04 online softmax on tensor cores +PASS +0\.\d\d +\S+e-\d\d +1\.1 MB +1\.8 MB")
        self.assertEqual(done.stdout.count("PASS"), 9)
        self.assertNotRegex(done.stdout, r"\bms\b|over |TFLOP")
        self.assertEqual(sorted(REPOSITORY.glob("docs/results/*")), before)


@unittest.skipUnless(shutil.which("make"), "no make")
class MakeTable(InFolder):
    """`make table` with programs that stand for CMake, for setup.sh and for two Pythons, of which some have Matplotlib."""

    def setUp(self):
        super().setUp()
        shutil.copy(REPOSITORY / "Makefile", self.folder)
        self.write("build/CMakeCache.txt", "")
        self.write("docs/results/one.json", "{}")
        self.program("cmake", "")
        self.program("setup.sh", "echo setup.sh $1 >> log; [ ! -e installs ] || touch other.matplotlib")
        for name in ("python3", "other"):
            self.program(name, f"""case "$1" in -c) [ -e {name}.matplotlib ] || exit 1;; *) echo {name} $1 >> log;; esac
case "$1" in *speedup_table.py) [ ! -e fails ] || exit 4; [ ! -e measures ] || echo '{{"new": 1}}' > docs/results/one.json;; esac""")

    def program(self, name, text):
        self.write(name, f"#!/bin/sh\n{text}\n").chmod(0o755)

    def made(self, *there):
        for name in there:
            (self.folder / name).touch()
        # The PATH alone: `make test BUILD=folder` hands its BUILD down to every make below it.
        done = subprocess.run(["make", "table", "PYTHONS=python3 other"], cwd=self.folder, capture_output=True, text=True, env={"PATH": f"{self.folder}:{os.environ['PATH']}"})
        return done.returncode, (self.folder / "log").read_text().splitlines()

    def test_nothing_measured_is_nothing_to_draw(self):
        self.assertEqual(self.made(), (0, ["python3 plots/speedup_table.py"]))

    def test_what_fails_is_not_drawn(self):
        code, log = self.made("fails")
        self.assertEqual((code, log), (2, ["python3 plots/speedup_table.py"]))

    def test_drawn_by_a_python_with_matplotlib(self):
        self.assertEqual(self.made("measures", "python3.matplotlib", "other.matplotlib"), (0, ["python3 plots/speedup_table.py", "python3 plots/draw_all.py"]))

    def test_drawn_by_the_other_python(self):
        self.assertEqual(self.made("measures", "other.matplotlib"), (0, ["python3 plots/speedup_table.py", "other plots/draw_all.py"]))

    def test_matplotlib_is_installed_for_the_other_python(self):
        self.assertEqual(self.made("measures", "installs"), (0, ["python3 plots/speedup_table.py", "setup.sh plots", "other plots/draw_all.py"]))

    def test_without_matplotlib_draw_all_says_so(self):
        self.assertEqual(self.made("measures"), (0, ["python3 plots/speedup_table.py", "setup.sh plots", "python3 plots/draw_all.py"]))


if __name__ == "__main__":
    unittest.main()
