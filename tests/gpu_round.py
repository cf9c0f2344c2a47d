#!/usr/bin/env python3
"""The whole round on a GPU, in one call: builds, runs all GPU tests, every program in each type that it describes,
edges, compute-sanitizer, and the speed beside PyTorch, in turn; a short table comes last.

    python3 tests/gpu_round.py --out round [--folder build-gpu] [--only build,tests,...]

Logs and JSON lie in the folder of --out. What a machine lacks (compute-sanitizer, PyTorch) shows as n/a with the
reason; anything that fails makes the exit code 1. Ten minutes on 16 cores; --only does a round in pieces. Needs the
standard library only."""

import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import shutil
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from plots.programs import CANNOT_SERVE, described, products_of, runs_on
from plots.results import CONFIGURATION, beside, heads_of, load, name_of, on_product, one_row, slug
from plots.script import REPOSITORY, OneLineParser, Stop, call, end_with, last_line, table_text

SHAPES = (
    "--head-dim 64",
    "--head-dim 128 --causal",
    "--head-dim 64 --seqlen 1000 --causal --init abs",
    "--head-dim 64 --seqlen 1000 --init outlier",
    "--head-dim 64 --seqlen 257 --causal --init outlier:2:20",
    "--head-dim 128 --seqlen 1000 --init outlier:4:12",
)
EDGES = (
    "--batch 65536 --heads 1 --seqlen 1 --check sample:64",
    "--seqlen-q 1 --seqlen-k 8192 --heads 2",
    "--seqlen-q 2048 --seqlen-k 64 --heads 2 --causal",
    "--seqlen-q 1001 --seqlen-k 503 --heads 2",
    *(f"--seqlen {n} --heads 3 --causal" for n in (2, 63, 64, 65, 127, 129, 193, 8191)),
    "--seqlen 130 --heads 2 --head-dim 63 --causal",
    "--seqlen 130 --heads 2 --head-dim 256",
    "--seqlen 1 --heads 1 --init const:133120",
    "--seqlen 77 --heads 2 --causal --repeat 200",
    "--seqlen 131072 --heads 4 --repeat 1 --check none",  # exit 4 where an N x N matrix finds no room
)
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
SPEEDS = (("fp32", 64), ("fp32", 128), ("fp16", 64), ("fp16", 128))  # batch 4, N 4096, heads of a model 2048 wide
SLOWER, FAILED = 0.97, 0.9  # of the stored ratio to eager: below the first it shows, below the second it fails


class Round:
    def __init__(self, folder, out):
        self.folder, self.out, self.lines = folder.resolve(), out, []
        out.mkdir(parents=True, exist_ok=True)

    def line(self, name, passed, text):
        """passed: True, False, None (not judged), or a word."""
        state = {True: "ok", False: "FAILED", None: "n/a"}.get(passed, passed)
        self.lines.append([state, name, text])
        print(f"{state:7} {name}: {text}", flush=True)

    def run(self, log, command, seconds=300, **options):
        """(exit code, stdout, stderr), and all of it in a log."""
        began = time.monotonic()
        code, stdout, stderr = call(command, seconds, **options)
        took = time.monotonic() - began
        with open(self.out / f"{log}.log", "a", encoding="utf-8") as file:
            file.write(f"$ {' '.join(map(str, command))}   exit {code}, {took:.1f} s\n{stdout}{stderr}\n")
        return code, stdout, stderr

    def programs(self):
        """Those with kernels for this GPU, and its compute capability."""
        code, stdout, _ = call(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", "--id=0"])
        capability = int(stdout.strip().replace(".", "")) if code == 0 else 0
        here = [p for p in described(self.folder) if p["kind"] != "device" and runs_on(p, capability)]
        if not here:
            which = f"compute capability {capability or 'unknown'}"
            raise Stop(f"{self.folder}: no program there has kernels for this GPU ({which})")
        return here

    def many(self, name, cases, log, right=(0,)):
        """Runs (label, command) six at a time; one line for all. Returns (label, stdout) of those that end with 0."""
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            done = list(pool.map(lambda case: (case[0], *self.run(log, case[1])), cases))
        bad = [f"{label}: exit {code} {last_line(stderr)}" for label, code, _, stderr in done if code not in right]
        ran = [(label, stdout) for label, code, stdout, _ in done if code == 0]
        told = f"{len(ran)} runs" + (f", {len(done) - len(ran)} refused in a line" if len(ran) < len(done) else "")
        self.line(name, bool(ran) and not bad, "; ".join(bad[:5]) or told)
        return ran


def build(r):
    began = time.monotonic()
    for command in (
        ["cmake", "-S", REPOSITORY, "-B", r.folder, "-DATTN_CUDA=ON"],
        ["cmake", "--build", r.folder, "-j", os.cpu_count()],
    ):
        code, stdout, stderr = r.run("build", command, 1200)
        if code != 0:
            errors = [line for line in (stdout + stderr).splitlines() if "rror" in line]
            raise Stop("\n".join(["the build failed:", *errors[:20]]), 1)
    r.line("build", True, f"{time.monotonic() - began:.0f} s")


def figures(r):
    """step00 first: every step's prediction comes from what it stores."""
    code, stdout, stderr = r.run("step00", [r.folder / "step00", "--json", "-"])
    (r.out / "step00.json").write_text(stdout, encoding="utf-8")
    r.line("step00", code == 0, last_line(stderr) or "measured this GPU")


def tests(r):
    """The tests that need a GPU; ctest runs alone what measures."""
    command = ["ctest", "--test-dir", r.folder, "-L", "gpu", "-j", 4, "--no-tests=error", "--output-on-failure"]
    code, stdout, _ = r.run("tests", command, 500)
    lines = stdout.splitlines()
    r.line("ctest -L gpu", code == 0, next((line for line in lines if "tests passed" in line), "no summary"))
    for line in lines:
        if "***" in line or "Skipped" in line:
            print("   ", line)


def command_of(program, dtype, product, flags):
    chosen = f"--device gpu --dtype {dtype} {f'--product {product}' if product else ''} --traffic off {flags}"
    return [program["path"], *chosen.split()]


def steps(r):
    """Every program in each type, product and head_dim that it describes, and without each of its techniques: exact,
    and by how much. What it describes it runs."""
    cases, worst = [], {}
    for program in r.programs():
        for dtype in program["dtypes"]:
            for product, shape in itertools.product(products_of(program, dtype), SHAPES):
                if "outlier" in shape and dtype != "fp32":
                    continue  # docs/exactness.md, "Small terms first"
                command = command_of(program, dtype, product, f"--heads 2 --repeat 2 {shape} --json -")
                cases.append((on_product(f"{program['id']} {dtype}", product), command))
        for technique in program["techniques"]:
            flags = f"--heads 2 --repeat 2 {SHAPES[0]} {technique['option']} --json -"
            command = command_of(program, program["default_dtype"], None, flags)
            cases.append((f"{program['id']} {technique['option']}", command))
    # Outlier columns are refused on tensor cores.
    for label, stdout in r.many("exactness", cases, "steps", right=(0, CANNOT_SERVE)):
        for method in json.loads(stdout)["methods"]:
            worst[label] = max([worst.get(label, 0), *(check["worst"] for check in method["exactness"])])
    for label, share in worst.items():
        r.line(label, share <= 1, f"worst {share:.2f} of the allowance")


def dtype_of(program, flags):
    """The program's own type; bf16 where fp16 cannot hold the inputs."""
    return "bf16" if "const:133120" in flags and program["default_dtype"] == "fp16" else program["default_dtype"]


def edges(r):
    programs = r.programs()
    repeated = lambda flags: flags + " --repeat 2" * ("--repeat" not in flags)
    command = lambda p, flags: command_of(p, dtype_of(p, flags), None, repeated(flags))
    cases = [(f"{p['id']} {flags}", command(p, flags)) for p in programs for flags in EDGES]
    r.many("edges", cases, "edges", right=(0, CANNOT_SERVE, 4))
    for label, kind, environment, code in (
        ("no GPU is visible", "attention", {"CUDA_VISIBLE_DEVICES": ""}, CANNOT_SERVE),
        ("TF32 forced", "yardstick", {"NVIDIA_TF32_OVERRIDE": "1"}, 1),
    ):
        program = next((p for p in programs if p["kind"] == kind), None)
        if program is None:
            r.line(label, None, f"no {kind} in this build")
            continue
        usual = command_of(program, program["default_dtype"], None, "")
        found, _, stderr = r.run("edges", usual, env={**os.environ, **environment})
        r.line(f"{program['id']}, {label}", found == code, f"exit {found}: {last_line(stderr)}")


def sanitizer(r):
    if not shutil.which("compute-sanitizer"):
        return r.line("compute-sanitizer", None, "not on this machine")
    for tool in TOOLS:
        cases = []
        for program in r.programs():
            if program["kind"] != "attention":
                continue  # cuBLAS is not ours to check
            if tool == "racecheck" and "capability_exactly" in program["devices"]["gpu"]:
                continue  # it sees neither the copy engine nor the warpgroup products: it would say nothing
            for dtype in dict.fromkeys((program["default_dtype"], "fp16")):
                for causal in ("", "--causal"):
                    flags = f"--seqlen 77 --heads 2 --head-dim 64 --repeat 1 {causal}"
                    under = ["compute-sanitizer", "--tool", tool, "--error-exitcode", 9]
                    cases.append((f"{program['id']} {dtype} {causal}", under + command_of(program, dtype, None, flags)))
        r.many(f"compute-sanitizer {tool}", cases, "sanitizer")


def speed(r):
    """Every step beside PyTorch, a run of each in turn; its speed over eager's is held against that of docs/results."""
    stored = load(sorted((REPOSITORY / "docs" / "results").glob("*.json")))
    script = REPOSITORY / "plots" / "measuring" / "compare_pytorch.py"
    for dtype, head_dim in SPEEDS:
        path, library = r.out / f"speed-{dtype}-d{head_dim}.json", r.folder / "libattention_steps.so"
        sizes = f"--dtype {dtype} --heads {heads_of(head_dim)} --head-dim {head_dim}".split()
        command = [sys.executable, script, *sizes, "--library", library, "--json", path]
        code, _, stderr = r.run("speed", command)
        if code not in (0, 1) or not path.is_file():
            return r.line(f"speed, {dtype}", None if code == CANNOT_SERVE else False, last_line(stderr))
        r.line(f"errors beside eager's, {dtype} d {head_dim}", code == 0, "see speed.log")
        measured = json.loads(path.read_text(encoding="utf-8"))
        here = {"gpu": slug(measured["versions"]["gpu"]), "set": "sizes"}
        ran = [row for row in measured["rows"] if not row["not_run"]]
        eager = {row["pass"]: row["time"]["median_ms"] for row in ran if row["method"] == "eager"}
        for row in (row for row in ran if row["ours"] and row["pass"] in eager):
            wanted = {key: row[key] for key in ("method", "pass", "product", *CONFIGURATION)}
            ms = row["time"]["median_ms"]
            found = judged(eager[row["pass"]] / ms, ms, one_row(stored, **here, **wanted), stored)
            r.line(f"{name_of(row)}{', both passes' * (row['pass'] == 'both')}, {dtype} d {head_dim}", *found)


def judged(ratio, ms, row, stored):
    """(state, text) of a method's speed over eager's."""
    eager = beside(stored, row, "eager") if row and not row["not_run"] else None
    if eager is None:
        return None, f"{ms:.3f} ms, {ratio:.2f}x eager; not in docs/results"
    before = eager["time"]["median_ms"] / row["time"]["median_ms"]
    state = True if ratio >= SLOWER * before else "slower" if ratio >= FAILED * before else False
    return state, f"{ms:.3f} ms, {ratio:.2f}x eager, {before:.2f}x in docs/results"


PARTS = {part.__name__: part for part in (build, figures, tests, steps, edges, sanitizer, speed)}


def main():
    def named(text):
        if not set(text.split(",")) <= set(PARTS):
            raise argparse.ArgumentTypeError(f"{text}: of {', '.join(PARTS)}")
        return text.split(",")

    parser = OneLineParser(__doc__)
    build_folder = REPOSITORY / "build-gpu"
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for logs and JSON")
    parser.add_argument("--folder", type=pathlib.Path, default=build_folder, help="build folder (build-gpu)")
    parser.add_argument("--only", type=named, default=list(PARTS), metavar="PART,...", help=f"of {', '.join(PARTS)}")
    options = parser.parse_args()
    r = Round(options.folder, options.out)
    for name in [name for name in PARTS if name in options.only]:
        began = time.monotonic()
        PARTS[name](r)
        print(f"        {name} took {time.monotonic() - began:.0f} s", flush=True)
    failed = [name for state, name, _ in r.lines if state == "FAILED"]
    print("\n" + "\n".join(table_text([["", "what", "found"], *r.lines], left=3)))
    left_out = [name for name in PARTS if name not in options.only]
    if left_out:
        print(f"\nnot in this round: {', '.join(left_out)}")
    print(": ".join([f"\n{len(failed)} failed", *([", ".join(failed)] if failed else [])]))
    return 1 if failed else 0


if __name__ == "__main__":
    end_with(main)
