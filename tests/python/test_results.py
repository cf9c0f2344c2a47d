"""Results files, the tables made from them, and the figures that documents take: on rows that are plainly no measurement."""
from need import script

import json
import pathlib
import shutil
import tempfile
import unittest

from plots import results
from plots.documents import measured
from plots.measuring import measure_rows, store_profiles
from plots.programs import CUDA_CORES, TENSOR_CORES
from plots.script import table_text
from plots.tables import result_tables

CONFIGURATION = {"dtype": "fp16", "batch": 4, "heads": 32, "seqlen": 4096, "head_dim": 64, "causal": False}


def made_up_row(method, ms, which="forward", not_run=None, **changes):
    """A row whose figures are plainly no measurement."""
    row = measure_rows.not_run_row(method, "title", not method.startswith(("eager", "SDPA")), which, {**CONFIGURATION, **{k: v for k, v in changes.items() if k in CONFIGURATION}}, not_run)
    row["product"] = CUDA_CORES if row["ours"] and row["dtype"] == "fp32" else None
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
        path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
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
        self.assertEqual(json.loads((self.folder / "all.json").read_text(encoding="utf-8"))["rows"], first["rows"] + second["rows"])
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
        self.assertTrue(next(line for line in table_text(lines) if line.startswith("step03")).endswith("n/a: no room"))

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
        self.assertEqual(measured.times(loaded, "gpu=nvidia-made-up-1 columns=dtype")[-2], ["step04 title on tensor cores", "5", "n/a"])
        self.assertEqual(measured.times(loaded, "gpu=nvidia-made-up-1 columns=dtype product=cuda-cores")[-1], ["step04 title", "10", "2"])

    def test_over_step01_never_alone(self):
        self.assertNotIn("over step01", self.lines(made_up_row("step01", 8.0), made_up_row("step04", 1.0))[0])

    def test_backward(self):
        lines = self.lines(made_up_row("step05 recompute backward", 10.0, "backward"), made_up_row("step05 standard backward", 30.0, "backward"), made_up_row("step02", 1.0), **{"pass": "backward"})
        self.assertEqual((lines[0][:3], lines[1][:3]), (["method", "ms", "over standard"], ["step05 recompute backward", "10", "3.00x"]))

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
        self.assertEqual(list(table_text(lines))[-1], lines[3][0])
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
        return measured.TABLES["article"](self.load(made_up_file(*rows)), "gpu=nvidia-made-up-1 dtype=fp16 head_dim=64")


class Labels(unittest.TestCase):
    def test_methods(self):
        for method, title, label in (("step04", "online softmax", "step04 online softmax"), ("step05 forward", "recompute backward", "step05 forward"), ("yardstick", None, "yardstick"),
                                     ("step05 recompute backward", "recompute backward", "step05 recompute backward"), ("eager", "eager", "PyTorch eager")):
            self.assertEqual(result_tables.label({"method": method, "title": title, "ours": method != "eager", "product": None}), label)
        on_tensor_cores = {"method": "step04", "title": "online softmax", "ours": True, "product": TENSOR_CORES}
        self.assertEqual(result_tables.label(on_tensor_cores), "step04 online softmax on tensor cores")
        self.assertEqual(result_tables.label(on_tensor_cores | {"method": "step05 recompute backward"}), "step05 recompute backward on tensor cores")


class Figures(InFolder):
    def setUp(self):
        super().setUp()
        self.loaded = self.load(made_up_file(made_up_row("step04", 2.5), made_up_row("eager", 10.0), made_up_row("step03", None, not_run="why"), made_up_row("step05 recompute backward", 7.0, "backward"),
                                             *(made_up_row("step04", ms, batch=1, heads=16, seqlen=n) for n, ms in ((1024, 1.0), (2048, 4.0)))))

    def value(self, name, words):
        return measured.figure(self.loaded, "nvidia-made-up-1", f"{name} dtype=fp16 {words}")

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
        value = lambda name, words: measured.figure(self.loaded, "nvidia-made-up-1", f"{name} head_dim=64 {words}")
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
            measured.times(self.loaded, "columns=product")

    def test_bad_words(self):
        for name, words, text in (("time.mean", "method=step04", "no field"), ("tflops", "method=step04 unit=miles", "miles"), ("tflops", "method=step04 fmt=.2q", "fmt"), ("tflops", "causal=maybe", "maybe"),
                                  ("tflops", "colour=red", "colour"), ("tflops", "step04", "key=value"), ("tflops", "seqlen=long", "long"), ("tflops", "", "say more"), ("tflops", "method='step04", "quotation")):
            with self.subTest(words=words), self.assertRaisesRegex(results.ResultsError, text):
                self.value(name, words)


DOCUMENT = """# Title
<!-- results:speedup gpu=nvidia-made-up-1 dtype=fp16 head_dim=64 causal=no pass=forward -->
old
<!-- /results -->
Text: [old][1] and **[][t] TFLOP/s**, [2.50
ms][1], a[i][1] in `a[i][1]`.
```
<!-- results:pie --> and [x][1]
```
    <!-- results:pie is code -->x<!-- /results -->

`<!-- /results -->`.
<!-- results:times gpu=nvidia-none columns=seqlen -->
<!-- /results -->

[1]: docs/results/nvidia-made-up-1.json "time.median_ms method=step04 fmt=.2f unit=ms"
[t]: docs/results/nvidia-made-up-1.json "tflops method=step04"
[elsewhere]: https://example.org "a title"
"""


class Documents(InFolder):
    """check_docs.py --write and --only figures, on documents of our own."""

    def setUp(self):
        super().setUp()
        self.readme = self.write("README.md", DOCUMENT.replace(", a[i][1] in", ", in"))
        self.chapter = self.write("docs/one.md", "<!-- results:article gpu=nvidia-made-up-1 dtype=fp16 head_dim=64 -->\n<!-- /results -->\n")
        self.write("docs/results/nvidia-made-up-1.json", made_up_file(made_up_row("step02", 40.0), made_up_row("step04", 2.5)))

    def call(self, *flags):
        code, out, err = script("documents/check_docs.py", "--root", self.folder, *flags)
        return code, out + err

    check = ("--only", "figures")

    def text(self):
        return self.readme.read_text(encoding="utf-8")

    def test_write_then_check(self):
        self.assertEqual(self.call(*self.check)[0], 1)
        self.assertEqual(self.call("--write"), (0, ""))
        self.assertEqual(self.call(*self.check), (0, ""))
        text = self.text()
        for there in ("| step04 title | 2.5 | 16.00x |", "Text: [2.50 ms][1] and **[111][t] TFLOP/s**, [2.50\nms][1],", "<!-- results:pie --> and [x][1]",
                      "<!-- results:pie is code -->x<", result_tables.NOTHING, '[elsewhere]: https://example.org "a title"'):
            self.assertIn(there, text)
        self.assertIn("| kernels | 2 | 2 |", self.chapter.read_text(encoding="utf-8"))
        self.call("--write")
        self.assertEqual(self.text(), text)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["README.md", "docs"])

    def test_one_digit(self):
        self.call("--write")
        whole = self.text()
        for was, now, line in (("16.00x", "16.01x", 6), ("[2.50 ms]", "[2.51 ms]", 8), ("[2.50\n", "[2.51\n", 8), ("[111]", "[112]", 8)):
            with self.subTest(now=now):
                self.write("README.md", whole.replace(was, now, 1))
                code, out = self.call(*self.check)
                self.assertEqual((code, out.count("\n") > 0), (1, True), out)
                self.assertTrue(out.startswith(f"README.md:{line}: "), out)
                self.assertEqual(self.text(), whole.replace(was, now, 1), "a check writes nothing")
        self.write("README.md", whole)
        self.write("docs/results/nvidia-made-up-1.json", made_up_file(made_up_row("step02", 40.0), made_up_row("step04", 2.51)))
        self.assertEqual(self.call(*self.check)[0], 1)

    def test_what_is_broken(self):
        defined = '[1]: docs/results/nvidia-made-up-1.json "'
        for text, what in (("\n<!-- results:times -->1\n", "README.md:2: a marker without"), ("1<!-- /results -->", "README.md:1: a marker without"),
                           ("<!-- results:pie -->\n<!-- /results -->", "README.md:1: results:pie"),
                           (f'\n\n{defined}tflops"\n', "README.md:3: [1]: no figure of this page"),
                           (f'[1][1]\n\n{defined}time.mean method=step04"\n', "README.md:3: no field time.mean"),
                           (f'[1][1]\n\n{defined}tflops colour=red"\n', "README.md:3: colour: unknown")):
            with self.subTest(text=text):
                self.write("README.md", text)
                before = self.chapter.read_text(encoding="utf-8")
                code, out = self.call("--write")
                self.assertEqual((code, out.count("\n")), (2, 1), out)
                self.assertIn(what, out)
                self.assertEqual((self.text(), self.chapter.read_text(encoding="utf-8")), (text, before))

    def test_without_results(self):
        shutil.rmtree(self.folder / "docs/results")
        self.assertEqual(self.call("--write"), (0, ""))
        self.assertIn("Text: [n/a][1] and **[n/a][t] TFLOP/s**", self.text())
        self.assertEqual(self.call(*self.check), (0, ""))

    def test_profile(self):
        self.write("README.md", "<!-- results:profile step=step04 -->\n<!-- /results -->\n")
        self.call("--write")
        self.assertIn("n/a: not profiled (docs/results/profiler/step04.txt", self.text())
        output = """==PROF== Connected to process 7 (/home/a/build/step04)
[7] step04@127.0.0.1
  void attention<Tile>(Mask) (4096, 1, 1)x(128, 1, 1), Context 1
    -------------------- ----------- ------------
    dram__bytes_read.sum       Mbyte         1.50
    Warning: no clocks locked
==WARNING== Found outstanding GPU clock reset
"""
        stored = store_profiles.profiler_part("step04", output)
        self.assertEqual(stored, "step04\n  void attention<Tile>(Mask) (4096, 1, 1)x(128, 1, 1), Context 1\n    dram__bytes_read.sum       Mbyte         1.50\n")
        self.assertEqual(store_profiles.profiler_part("step05", output), "", "no kernel of that step")
        self.write("docs/results/profiler/step04.txt", stored)
        self.assertEqual(self.call(*self.check)[0], 1)
        self.call("--write")
        self.assertEqual(self.text(), f"<!-- results:profile step=step04 -->\n```console\n{stored}```\n<!-- /results -->\n")


class Printing(InFolder):
    """speedup_table.py."""

    def call(self, *flags):
        return script("tables/speedup_table.py", *flags)

    def test_print_and_merge(self):
        first = self.write("first.json", made_up_file(made_up_row("step02", 40.0), made_up_row("step04", 2.5)))
        other = self.write("other.json", made_up_file(made_up_row("step02", 9.0), gpu="NVIDIA Other"))
        code, out, err = self.call(first, other)
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"step04 title +2.5 +16.00x")
        self.assertRegex(out, r"step02 title +40 +9\n")
        shard = self.write("shard.json", made_up_file(made_up_row("step03", 7.0)))
        self.assertEqual(self.call(first, shard, "--merge", self.folder / "all.json")[0], 0)
        merged = json.loads((self.folder / "all.json").read_text(encoding="utf-8"))["rows"]
        self.assertEqual([row["method"] for row in merged], ["step02", "step04", "step03"])
        code, out, err = self.call(self.folder / "all.json", other, "--merge", self.folder / "no.json")
        self.assertEqual((code, err.count("\n"), (self.folder / "no.json").exists()), (2, 1, False))

    def test_many_machines(self):
        seats = [self.write(f"seats/seat{n}.json", made_up_file(made_up_row("step02", 40.0), made_up_row("step04", ms), commit=commit)) for n, ms, commit in ((1, 10.0, "abc"), (2, 20.0, "def"))]
        self.assertEqual(self.call(*seats)[0], 2, "the same GPU twice")
        code, out, err = self.call("--each", *seats)
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"seat1 +NVIDIA Made Up 1 +40 +10 \(4.00x\)\nseat2 +NVIDIA Made Up 1 +40 +20 \(2.00x\)\n\n2 files\n")

    def test_refusals(self):
        row = made_up_row("step02", 9.0)
        for content, text in ((made_up_file(row | {"emulated": True}), "emulated"), ("[", "JSON"), (made_up_file(rows=[3]), "not as docs"), (made_up_file(rows=3), "not as docs"),
                              (made_up_file(row | {"time": {"median": 3}}), "not as docs"), (made_up_file(row | {"error": 3}), "not as docs"), (made_up_file(row, versions=3), "not as docs")):
            code, _, err = self.call(self.write("bad.json", content))
            self.assertEqual((code, err.count("\n")), (2, 1), err)
            self.assertIn(text, err)
        for flags in (("no.json",), ("--merge", "/nowhere/x.json"), ("--run",)):
            code, out, err = self.call(*flags)
            self.assertEqual((code, out, err.count("\n")), (2, "", 1), err)


if __name__ == "__main__":
    unittest.main()
