"""Results files, the tables made from them, and the figures that documents take: on the stored results, and on changed
copies."""

from need import REPOSITORY, InFolder, script

import copy
import json
import re
import shutil
import unittest

from plots import results
from plots.documents import measured
from plots.measuring import store_profiles
from plots.script import table_text
from plots.tables import result_tables

STORED = REPOSITORY / "docs" / "results" / "nvidia-h200.json"
RAW = json.loads(STORED.read_text(encoding="utf-8"))
[LOADED] = results.load([STORED]).values()
BY_GPU = {"nvidia-h200": LOADED}
HEADLINE = {"dtype": "fp16", "head_dim": 64, "seqlen": 4096, "causal": False, "batch": 4, "heads": 32}


def raw(method, **wanted):
    """One row of the stored file, read without plots/results.py."""
    wanted = {"method": method, "pass": "forward", **HEADLINE, "product": None, **wanted}
    [row] = [row for row in RAW["rows"] if all(row[key] == value for key, value in wanted.items())]
    return copy.deepcopy(row)


def small(*rows, **changes):
    """A results file with these rows alone."""
    return copy.deepcopy({**RAW, "rows": list(rows), "sweeps": [], **changes})


def timed(method, ms, **changes):
    row = raw(method)
    return {**row, "time": {**row["time"], "median_ms": ms}, **changes}


def words(**selectors):
    return {"gpu": "nvidia-h200", "pass": "forward", "set": "sizes", **HEADLINE, **selectors}


class WithResults(InFolder):
    def load(self, *files):
        return results.load([self.write(f"{n}.json", file) for n, file in enumerate(files)])


class Results(WithResults):
    def test_refusals(self):
        row, fp32 = raw("step04"), raw("step04", dtype="fp32", product="cuda-cores")
        other = {**row, "seqlen": 512}
        for text, *files in (
            ("an emulated row", small({**row, "emulated": True})),
            ("not verified", small({**row, "verified": False})),
            ("not verified", small({**row, "verified": None})),
            ("schema", small(row, schema="attention-results-1")),
            ("schema", {}),
            ("cannot be read as JSON", "{"),
            ("are of commit", small(), small(row, commit="def456")),
            ("is in another file", small(row), small(row)),
            ("a row lacks", small({"method": "step04"})),
            ("twice", small(row, row)),
            ("driver 2.2", small(row), small(other, versions={"driver": "2.2"})),
            ("have cuda-cores or tensor-cores, others null", small({**fp32, "product": None})),
            ("have cuda-cores or tensor-cores, others null", small({**row, "product": "tensor-cores"})),
            ("not as docs/results/README.md describes it", small(rows=[3])),
        ):
            with self.subTest(text=text), self.assertRaisesRegex(results.ResultsError, text):
                self.load(*files)
        self.load(small({**row, "not_run": "why", "verified": False}))  # a row without figures

    def test_shards_become_one_file(self):
        first, second = small(*RAW["rows"][0::2]), small(*RAW["rows"][1::2], date="2002-02-02", device=None)
        second["versions"] = {**RAW["versions"], "torch": None, "torch_reason": "not here"}
        [merged] = self.load(first, second).values()
        for key in ("date", "device", "versions"):
            self.assertEqual(merged[key], RAW[key])
        results.save(merged, self.folder / "all.json")
        written = json.loads((self.folder / "all.json").read_text(encoding="utf-8"))["rows"]
        in_order = lambda rows: sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))
        self.assertEqual(in_order(written), in_order(RAW["rows"]))

    def test_selecting(self):
        self.assertEqual(results.one_row(BY_GPU, **words(method="step04"))["time"], raw("step04")["time"])
        self.assertIsNone(results.one_row(BY_GPU, **words(method="step42")))
        found = {row["method"] for row in results.rows(BY_GPU, set="scaling", seqlen=131072)}
        self.assertEqual(found, {"step02", "step04", "eager", "SDPA flash"})
        with self.assertRaisesRegex(results.ResultsError, "rows fit"):
            results.one_row(BY_GPU, method="step04")
        fast = results.one_row(BY_GPU, **words(method="step04", dtype="fp32", product="tensor-cores"))
        self.assertEqual(results.name_of(fast), "step04 on tensor cores")
        base = results.beside(BY_GPU, fast, "step02")
        self.assertEqual(base["product"], "cuda-cores", "the base stands in all tables")


class Tables(WithResults):
    def test_speedup(self):
        lines = result_tables.speedup_table(BY_GPU, **words())
        names = [line[0].split()[0] for line in lines[1:]]
        steps = [name for name in names if name.startswith("step")]
        self.assertEqual(names, [*sorted(steps), "yardstick", *4 * ["PyTorch"]])
        self.assertLessEqual({"step01", "step04", "step08"}, {*steps})
        ms = {name: raw(name)["time"]["median_ms"] for name in ("step01", "step02", "step04", "yardstick", "eager")}
        row = dict(zip(lines[0], lines[names.index("step04") + 1]))
        for base, heading in result_tables.OVER["forward"]:
            self.assertEqual(row[heading], f"{ms[base] / ms['step04']:.2f}x")
        found = [row[key] for key in ("method", "kernels", "extra memory")]
        self.assertEqual(found, ["step04 online softmax", "1", "2.1 MB (N)"])
        self.assertEqual(lines[0][-1], "over step01", "beside the others")
        alone = result_tables.speedup_table(self.load(small(raw("step01"), raw("step04"))))
        self.assertNotIn("over step01", alone[0], "never alone")
        self.assertNotIn("of allowance", lines[0], "PyTorch has no such figure in 16 bits")
        with self.assertRaisesRegex(results.ResultsError, "several configurations"):
            result_tables.speedup_table(BY_GPU, dtype="fp16")
        self.assertIsNone(result_tables.speedup_table(BY_GPU, method="step42"))

    def test_fp32_on_both_products_and_what_did_not_run(self):
        lines = result_tables.speedup_table(BY_GPU, **words(dtype="fp32"))
        self.assertEqual(lines[5][0], "step04 online softmax on tensor cores")
        self.assertIn("of allowance", lines[0])
        flash = next(line for line in lines if line[0] == "PyTorch SDPA flash")
        self.assertTrue(len(flash) == 2 and flash[1].startswith("n/a: Expected query"), flash)
        self.assertRegex("\n".join(table_text(lines)), r"PyTorch SDPA flash +n/a: Expected query")
        self.assertIn("\n\nn/a:\n\n- PyTorch SDPA flash: Expected", result_tables.markdown(lines))

    def test_times(self):
        wanted = {key: value for key, value in words().items() if key not in ("dtype", "head_dim", "heads", "pass")}
        lines = result_tables.times_table(BY_GPU, ["dtype", "head_dim"], "eager", **wanted)
        columns = [f"{dtype} d {head_dim}" for dtype in ("fp32", "fp16", "bf16") for head_dim in (64, 128)]
        self.assertEqual(lines[0], ["ms", *columns])
        line = next(line for line in lines if line[0] == "step06 asynchronous pipeline forward")
        self.assertEqual((line[1], line[3]), ("n/a", f"{raw('step06')['time']['median_ms']:.4g} (6.86x)"))
        notes = [line[0] for line in lines if len(line) == 1]
        told = r"^PyTorch SDPA flash forward, .*SDPA cuDNN backward \(fp32 d 64, fp32 d 128\): Expected"
        self.assertEqual(len([note for note in notes if "PyTorch" in note]), 1, "a reason is told once")
        self.assertRegex("\n".join(notes), re.compile(told, re.MULTILINE))
        with self.assertRaisesRegex(results.ResultsError, "several rows fit"):
            result_tables.times_table(BY_GPU, ["dtype"], **wanted)

    def test_a_column_per_gpu_and_a_line_per_file(self):
        other = small(timed("step02", 9.0), gpu="NVIDIA Other")
        loaded = self.load(small(timed("step02", 8.0), timed("step04", 2.0)), other)
        lines = result_tables.times_table(loaded, ["gpu"], "step02")
        self.assertEqual(lines[0], ["ms", "nvidia-h200", "nvidia-other"])
        self.assertEqual(lines[2], ["step04 online softmax", "2 (4.00x)", "n/a"])
        self.assertEqual(result_tables.class_table(loaded, "step02")[2], ["nvidia-other", "NVIDIA Other", "9", "n/a"])

    def test_exponent(self):
        self.assertAlmostEqual(result_tables.exponent([(n, 7 * n**2) for n in (512, 1024, 4096)]), 2)
        self.assertAlmostEqual(result_tables.exponent([(1, 1), (2, 1), (4, 4)]), 1)  # by hand: x -1 0 1, y 0 0 2
        self.assertIsNone(result_tables.exponent([(512, 9), (1024, 0)]))

    def test_article(self):
        lines = measured.TABLES["article"](BY_GPU, "gpu=nvidia-h200 dtype=fp16 head_dim=64")
        self.assertEqual(lines[1][1:], ["3", "5", "1", "1"])
        for line, column, text in (
            (2, 1, "in HBM: 2.0 of them"),
            (2, 3, "never whole"),
            (3, 1, "N^2.00"),
            (3, 3, "N^1.00"),
        ):
            self.assertIn(text, lines[line][column])


FIGURES = """
time.median_ms method=step04 fmt=.2f unit=ms | 2.01 ms
time.median_ms method=step04 over=eager fmt=.1f unit=x | 5.5x
time.median_ms method=step04 over=step42 | n/a
time.median_ms method=step04 dtype=fp32 product=tensor-cores over=step02 over.product=cuda-cores fmt=.2f | 3.86
time.median_ms method='step05 recompute backward' unit=ms | 8.2 ms
time.median_ms method=step04 set=scaling seqlen=4096 over.seqlen=8192 fmt=.2f | 3.07
hbm_measured_bytes method=step02 per=hbm_expected_bytes fmt=.3f | 1.001
kernels.softmax.time_ms method=step02 per=time.median_ms fmt=.0% | 48%
verdict method=step04 | PASS
device.bytes_per_second.hbm_copy unit=TB/s fmt=.2f | 4.26 TB/s
device.tile_products.flops_per_second unit=TFLOP/s | 577 TFLOP/s
device.tile_products.flops_per_second head_dim=40 | n/a
model.bytes_ms method=step02 per=model.flops_ms fmt=.1f | 4.3
model.flops_ms method=eager | n/a
sweep.best | 128x128
sweep.tiles.64x64.time.median_ms per=sweep.fastest.time.median_ms fmt=.2f | 1.26
versions.torch | 2.11.0+cu130
"""
WRONG = """
time.mean method=step04 | no field
tflops method=step04 unit=miles | miles
tflops method=step04 fmt=.2q | fmt
tflops causal=maybe | maybe
tflops method=step04 product=vector-cores | vector-cores
tflops colour=red | colour
tflops step04 | key=value
tflops seqlen=long | long
tflops head_dim=64 | say more
tflops method='step04 | quotation
sweep.tiles.7x7.time | no field
"""


class Figures(unittest.TestCase):
    def test_figures(self):
        for line in FIGURES.strip().split("\n"):
            definition, text = line.split(" | ")
            field, _, rest = definition.partition(" ")
            defaults = " ".join(word for word in ("dtype=fp16", "head_dim=64") if word.split("=")[0] + "=" not in rest)
            with self.subTest(definition):
                self.assertEqual(measured.figure(BY_GPU, "nvidia-h200", f"{field} {defaults} {rest}"), text)

    def test_wrong_words(self):
        for line in WRONG.strip().split("\n"):
            definition, text = line.split(" | ")
            words_of_it = f"{definition} dtype=fp16 {'' if 'head_dim' in definition else 'head_dim=64'}"
            with self.subTest(definition), self.assertRaisesRegex(results.ResultsError, text):
                measured.figure(BY_GPU, "nvidia-h200", words_of_it)
        with self.assertRaisesRegex(results.ResultsError, "columns=product"):
            measured.times(BY_GPU, "columns=product")


DOCUMENT = """# Title
<!-- results:speedup gpu=nvidia-h200 dtype=fp16 head_dim=64 causal=no pass=forward -->
old
<!-- /results -->
Text: [old][1] and **[][t] kernels**, [2.50
ms][1], a[i][1] in `a[i][1]`.
```
<!-- results:pie --> and [x][1]
```
    <!-- results:pie is code -->x<!-- /results -->

`<!-- /results -->`.
<!-- results:times gpu=nvidia-none columns=seqlen -->
<!-- /results -->

[1]: docs/results/nvidia-h200.json "time.median_ms method=step04 fmt=.2f unit=ms"
[t]: docs/results/nvidia-h200.json "kernel_count method=step02"
[elsewhere]: https://example.org "a title"
"""


class Documents(InFolder):
    """check_docs.py --write and --only figures, on documents of our own."""

    def setUp(self):
        super().setUp()
        self.readme = self.write("README.md", DOCUMENT.replace(", a[i][1] in", ", in"))
        self.chapter = self.write(
            "docs/one.md", "<!-- results:article gpu=nvidia-h200 dtype=fp16 head_dim=64 -->\n<!-- /results -->\n"
        )
        self.write("docs/results/nvidia-h200.json", small(timed("step02", 40.0), timed("step04", 2.5)))

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
        for there in (
            "| step04 online softmax | 2.5 | 16.00x |",
            "Text: [2.50 ms][1] and **[3][t] kernels**, [2.50\nms][1],",
            "<!-- results:pie --> and [x][1]",
            "<!-- results:pie is code -->x<",
            result_tables.NOTHING,
            '[elsewhere]: https://example.org "a title"',
        ):
            self.assertIn(there, text)
        self.assertIn("| kernels | 3 | 1 |", self.chapter.read_text(encoding="utf-8"))
        self.call("--write")
        self.assertEqual(self.text(), text)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["README.md", "docs"])

    def test_one_digit(self):
        self.call("--write")
        whole = self.text()
        for was, now, line in (
            ("16.00x", "16.01x", 6),
            ("[2.50 ms]", "[2.51 ms]", 8),
            ("[2.50\n", "[2.51\n", 8),
            ("[3][t]", "[4][t]", 8),
        ):
            with self.subTest(now=now):
                self.write("README.md", whole.replace(was, now, 1))
                code, out = self.call(*self.check)
                self.assertEqual(code, 1)
                self.assertTrue(out.startswith(f"README.md:{line}: "), out)
                self.assertEqual(self.text(), whole.replace(was, now, 1), "a check writes nothing")
        self.write("README.md", whole)
        self.write("docs/results/nvidia-h200.json", small(timed("step02", 40.0), timed("step04", 2.51)))
        self.assertEqual(self.call(*self.check)[0], 1)

    def test_what_is_broken(self):
        defined = '[1]: docs/results/nvidia-h200.json "'
        for text, what in (
            ("\n<!-- results:times -->1\n", "README.md:2: a marker without"),
            ("1<!-- /results -->", "README.md:1: a marker without"),
            ("<!-- results:pie -->\n<!-- /results -->", "README.md:1: results:pie"),
            (f'\n\n{defined}tflops"\n', "README.md:3: [1]: no figure of this page"),
            (f'[1][1]\n\n{defined}time.mean method=step04"\n', "README.md:3: no field time.mean"),
            (f'[1][1]\n\n{defined}tflops colour=red"\n', "README.md:3: colour: unknown"),
        ):
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
        self.assertIn("Text: [n/a][1] and **[n/a][t] kernels**", self.text())
        self.assertEqual(self.call(*self.check), (0, ""))

    def test_profile(self):
        output = """==PROF== Connected to process 7 (/home/a/build/step04)
[7] step04@127.0.0.1
  void attention<Tile>(Mask) (4096, 1, 1)x(128, 1, 1), Context 1
    -------------------- ----------- ------------
    dram__bytes_read.sum       Mbyte         1.50
    Warning: no clocks locked
==WARNING== Found outstanding GPU clock reset
"""
        kernel, metric = (output.split("\n")[line] for line in (2, 4))
        self.assertEqual(store_profiles.profiler_part("step04", output), f"step04\n{kernel}\n{metric}\n")
        self.assertEqual(store_profiles.profiler_part("step05", output), "", "no kernel of that step")


class Printing(InFolder):
    """speedup_table.py."""

    def call(self, *flags):
        return script("tables/speedup_table.py", *flags)

    def test_print_and_merge(self):
        first = self.write("first.json", small(timed("step02", 40.0), timed("step04", 2.5)))
        other = self.write("other.json", small(timed("step02", 9.0), gpu="NVIDIA Other"))
        code, out, err = self.call(first, other)
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"step04 online softmax +2.5 +16.00x")
        self.assertRegex(out, r"step02 fused row softmax +40 +9\n")
        shard = self.write("shard.json", small(raw("step03")))
        self.assertEqual(self.call(first, shard, "--merge", self.folder / "all.json")[0], 0)
        [merged] = results.load([self.folder / "all.json"]).values()
        self.assertEqual([row["method"] for row in merged["rows"]], ["step02", "step04", "step03"])
        code, out, err = self.call(self.folder / "all.json", other, "--merge", self.folder / "no.json")
        self.assertEqual((code, err.count("\n"), (self.folder / "no.json").exists()), (2, 1, False))

    def test_many_machines(self):
        seat = lambda n: small(timed("step02", 40.0), timed("step04", 10.0 * n), commit=f"c{n}")
        seats = [self.write(f"seat{n}.json", seat(n)) for n in (1, 2)]
        self.assertEqual(self.call(*seats)[0], 2, "the same GPU twice")
        code, out, err = self.call("--each", *seats)
        self.assertEqual((code, err), (0, ""))
        lines = r"seat1 +NVIDIA H200 +40 +10 \(4.00x\)\nseat2 +NVIDIA H200 +40 +20 \(2.00x\)\n\n2 files\n"
        self.assertRegex(out, lines)

    def test_refusals(self):
        row = timed("step02", 9.0)
        for change in ({"time": {"median": 3}}, {"error": 3}, {"emulated": True}):
            code, _, err = self.call(self.write("bad.json", small({**row, **change})))
            self.assertEqual((code, err.count("\n")), (2, 1), err)
        bad = self.write("bad.json", small(row, versions=3))
        for flags in (("no.json",), ("--merge", "/nowhere/x.json"), ("--run",), (bad,)):
            code, out, err = self.call(*flags)
            self.assertEqual((code, out, err.count("\n")), (2, "", 1), err)


if __name__ == "__main__":
    unittest.main()
