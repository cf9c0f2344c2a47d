#!/usr/bin/env python3
"""Measures every program of a build folder and PyTorch on this GPU, and keeps the documents' figures equal to the
results.

    make table                                                                  builds, and runs this with TABLE_FLAGS
    python3 plots/measuring/measure.py [--dtype fp16] [--full]                  writes docs/results/<gpu>.json and the documents

Without a GPU it prints what the CPU executor can tell, traffic and exactness, and writes nothing.
docs/results/README.md describes the files. Exit codes: 0 ok, 1 a result was wrong, 2 bad arguments or files, 4 CUDA
error."""

import argparse
import contextlib
import datetime
import fcntl
import pathlib
import platform
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.documents import measured
from plots.measuring import measure_rows
from plots.programs import CANNOT_SERVE, PRODUCTS, described
from plots.results import SCHEMA, ResultsError, configuration, configuration_text, driver_version, load, name_of
from plots.results import read, save, slug
from plots.script import REPOSITORY, OneLineParser, Stop, end_with, positive
from plots.tables import steps_table
from plots.tables.speedup_table import RESULTS, print_tables

EXECUTOR_PROBLEM = {"batch": 1, "heads": 2, "seqlen": 512}


# ---- which problems


def chosen_problems(options, dtypes):
    """All configurations of the command line, in order, and of these the shard's."""
    dtypes, head_dims = options.dtype or dtypes, options.head_dim or (64, 128)
    causals = (False, True) if options.causal is None else (options.causal,)
    seqlens = options.seqlen or (measure_rows.SEQLENS if options.full else (measure_rows.HEADLINE,))
    full = options.full and "fp16" in dtypes and 64 in head_dims and False in causals
    sizes = (options.batch, options.heads)
    return dealt(measure_rows.problems(dtypes, head_dims, causals, seqlens, full, *sizes), options)


def chosen_sweeps(options, dtypes):
    """The problems at which step04's tiles are swept: the headline's, not causal. bf16 has the shapes and the times of
    fp16."""
    wanted, headline = [dtype for dtype in options.dtype or dtypes if dtype != "bf16"], [measure_rows.HEADLINE]
    if options.causal or not set(headline) <= set(options.seqlen or headline):
        return []
    sizes = (options.batch, options.heads)
    found = measure_rows.problems(wanted, options.head_dim or (64, 128), (False,), headline, False, *sizes)
    return dealt(found, options)


def dealt(everything, options):
    """The shard's part: there and back, as one deals cards; else one shard of four had all of d 64."""
    shard, shards = options.shard
    mine = lambda n: n % shards if n // shards % 2 == 0 else shards - 1 - n % shards
    return [problem for n, problem in enumerate(everything) if mine(n) == shard]


# ---- measuring


@contextlib.contextmanager
def only_writer(path):
    """One run at a time adds to a results file. Raises Stop where there is another."""
    lock = path.with_name(f".{path.name}.lock")
    with open(lock, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Stop(f"{path}: another run writes this file; give this one its own --out") from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def begin(path, options, figures, torch):
    """The results object that this run adds to: that of the file where it is the same commit's, else an empty one."""
    built = figures["versions"]["git_commit"]
    if built and options.commit and built != options.commit:
        raise ResultsError(f"--commit {options.commit}: the steps were built from {built}")
    commit = built or options.commit
    here, of_torch = figures["versions"], torch.versions or {}
    versions = {
        "driver": driver_version(),
        **{key: here[key] for key in ("cuda_toolkit", "compiler")},
        "python": platform.python_version(),
        **{key: of_torch.get(key) for key in ("torch", "cuda_of_torch", "cudnn", "triton")},
    }
    reasons = {"driver": "nvidia-smi does not tell", "cuda_toolkit": here.get("cuda_toolkit_reason")}
    reasons |= {"triton": "not installed"} if torch.versions else {}
    versions |= {f"{key}_reason": reasons.get(key, torch.missing) for key, value in versions.items() if value is None}
    result = {
        "schema": SCHEMA,
        "gpu": figures["gpu"]["name"],
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "versions": versions,
        "device": {
            key: value for key, value in figures.items() if key != "findings"
        },  # which have this machine's paths
        "rows": [],
        "sweeps": [],
    }
    if commit is None:
        result["commit_reason"] = here.get("git_commit_reason", "step00 does not tell")
    if path.is_file():
        old = read(path)
        if all(old[key] == result[key] for key in ("gpu", "commit", "versions")):
            result["rows"], result["sweeps"] = old["rows"], old["sweeps"]
        else:
            print(
                f"{path}: {len(old['rows'])} rows of {old['gpu']}, commit {old['commit']}, of another commit or "
                "other versions than this run's, are replaced"
            )
    return result


def measure(options, programs, figures, path, torch):
    """Runs the chosen configurations, saves after each; returns whether every result was right."""
    result = begin(path, options, figures, torch)
    if torch.missing:
        print(f"no PyTorch rows: {torch.missing}")
    served = {rate["dtype"] for rate in figures["tile_products"]}  # what step00 has measured, so what this GPU has
    dtypes = [dtype for dtype in measure_rows.DTYPES if dtype in served]
    swept = next((program for program in programs if program["id"] == "step04"), None)
    for problem in chosen_sweeps(options, dtypes) if swept else []:
        name = f"tiles of step04, {configuration_text(problem)}"
        others = [sweep for sweep in result["sweeps"] if configuration(sweep) != configuration(problem)]
        if options.resume and len(others) < len(result["sweeps"]):
            print(f"{name}: kept", flush=True)
            continue
        sweep, reason, seconds = measure_rows.sweep(swept, problem)
        if sweep:
            result["sweeps"] = others + [sweep]
            save(result, path)
        print(f"{name}: {seconds:.1f} s, {'best ' + sweep['best'] if sweep else 'not swept: ' + reason}", flush=True)
    chosen = chosen_problems(options, dtypes)
    for n, problem in enumerate(chosen, 1):
        others = [row for row in result["rows"] if configuration(row) != configuration(problem)]
        mine = [row for row in result["rows"] if configuration(row) == configuration(problem)]
        have = {(row["method"], row["pass"], row["product"]) for row in mine}
        name = f"[{n}/{len(chosen)}] {configuration_text(problem)}"
        if options.resume and measure_rows.expected_keys(programs, problem, bool(torch.versions)) <= have:
            print(f"{name}: kept", flush=True)
            continue
        rows, parts = measure_rows.measure_problem(programs, problem, torch)
        result["rows"] = others + rows
        save(result, path)
        took = f"{sum(seconds for _, seconds in parts):.1f} s"
        each = ", ".join(f"{what} {seconds:.1f}" for what, seconds in parts)
        ran = sum(row["not_run"] is None for row in rows)
        print(f"{name}: {took} ({each}), {ran} of {len(rows)} rows", flush=True)
        for row in rows:
            if row["not_run"]:
                print(f"    {name_of(row)} {row['pass']}: {row['not_run']}", flush=True)
    return not any(row["verified"] is False for row in result["rows"])


def run(options, programs, figures):
    path = options.out or RESULTS / f"{slug(figures['gpu']['name'])}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with only_writer(path):
        torch = measure_rows.Torch()
        try:
            right = measure(options, programs, figures, path, torch)
        finally:
            torch.close()
    print()
    print_tables(load([path]))
    if options.out is None:
        changes = measured.renew(REPOSITORY, load(sorted(RESULTS.glob("*.json"))), write=True)
        print(f"\ndocuments: {len(changes)} figures and lines of tables rewritten")
    print(f"\nresults: {path}")
    return 0 if right else 1


def run_executor(options, no_gpu):
    """Traffic and exactness by the CPU executor: no speedup, no file."""
    print(
        f"{no_gpu}: traffic and exactness by the CPU executor. Times and speedups need a GPU; no results file is written"
    )
    here, codes = [p for p in steps_table.steps_in(options.folder) if p["devices"]["cpu"]], set()
    options.head_dim = options.head_dim or [64]
    for key, usual in EXECUTOR_PROBLEM.items():
        setattr(options, key, getattr(options, key) or ([usual] if key == "seqlen" else usual))
    for problem in chosen_problems(options, measure_rows.DTYPES):
        for product in PRODUCTS if problem["dtype"] == "fp32" else (None,):
            print()
            codes.add(steps_table.show(here, ["--device", "cpu", *measure_rows.flags_of(problem, product)]))
    return max(codes - {CANNOT_SERVE}, default=0)


# ---- command line


def shard(text):
    part, slash, parts = text.partition("/")
    if not slash or not 0 <= int(part) < int(parts):
        raise ValueError
    return int(part), int(parts)


def main():
    parser = OneLineParser(__doc__)
    every_n = ", ".join(map(str, sorted(measure_rows.SEQLENS)))
    add = parser.add_argument
    add("--folder", default=REPOSITORY / "build", type=pathlib.Path, help="where the executables are (build)")
    add("--dtype", nargs="+", choices=measure_rows.DTYPES, help="(all that the GPU has)")
    add("--head-dim", nargs="+", type=positive, help="(64 128)")
    add("--causal", action=argparse.BooleanOptionalAction, help="(both)")
    add("--seqlen", nargs="+", type=positive, help=f"({measure_rows.HEADLINE})")
    add("--batch", type=positive, help="(4, from 8192 tokens 1)")
    add("--heads", type=positive, help="(2048 / head_dim)")
    against = f"and 16 heads up to {max(measure_rows.SCALING_SEQLENS)}, one up to {max(measure_rows.LONG_SEQLENS)}"
    add(
        "--full",
        action="store_true",
        help=f"N of {every_n}, {against} tokens, and 1 to {max(measure_rows.HEADS)} heads",
    )
    parts = "the I-th of N parts of the configurations (0/1), for several GPUs; give each its --out"
    add("--shard", type=shard, default=(0, 1), metavar="I/N", help=parts)
    out = "the results file (docs/results/<gpu>.json, and then the documents are rewritten too)"
    add("--out", type=pathlib.Path, help=out)
    add("--resume", action="store_true", help="measure only what the file lacks")
    add("--commit", help="the sources' commit, where they are no git repository")
    options = parser.parse_args()
    parser.writable(options.out)
    if options.shard != (0, 1) and options.out is None:
        parser.error("--shard needs --out: each shard a file of its own")
    figures, no_gpu = measure_rows.device_figures(options.folder)
    return run_executor(options, no_gpu) if no_gpu else run(options, described(options.folder), figures)


if __name__ == "__main__":
    end_with(main)
