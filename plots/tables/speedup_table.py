#!/usr/bin/env python3
"""The speedup table: measures it, prints it, and keeps the documents' figures equal to the results.

    python3 plots/speedup_table.py --run [--dtype fp16] [--full]     measures (make table), writes docs/results/<gpu>.json and the documents
    python3 plots/speedup_table.py [docs/results/*.json]             prints the tables, with several GPUs also a column per GPU
    python3 plots/speedup_table.py --each seats/*.json               a line per file: many machines, also with the same GPU
    python3 plots/speedup_table.py --write | --check                 rewrites the documents' figures | fails when one digit differs
    python3 plots/speedup_table.py shard*.json --merge FILE          makes one file of a GPU's shards

Without files: all of docs/results/. docs/results/README.md describes the files and the markers in the documents. Without a GPU --run
prints what the CPU executor can tell, traffic and exactness, and writes nothing.
Exit codes: 0 ok, 1 a result was wrong or a document differs, 2 bad arguments or files, 4 CUDA error.
"""
import argparse
import datetime
import os
import pathlib
import platform
import sys

import measure_rows
import result_markers
import result_tables
from measure_rows import CannotRun
from results import CONFIGURATION, SCHEMA, ResultsError, configuration, configuration_text, driver_version, load, name_of, read, save, slug
from script import OneLineParser, positive

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "docs" / "results"
EXECUTOR_PROBLEM = {"batch": 1, "heads": 2, "seqlen": 512}


# ---- printing -------------------------------------------------------------------------------------------------------------------


def print_tables(results):
    for result in results.values():
        print(f"{result['gpu']}, {result['date']}, commit {result['commit'] or 'n/a'}: " + ", ".join(f"{key} {value}" for key, value in result["versions"].items() if value and not key.endswith("_reason")))
        for chosen in dict.fromkeys(((row["gpu"], row["pass"], *configuration(row)) for row in result["rows"])):
            print_configuration(results, dict(zip(("gpu", "pass", *CONFIGURATION), chosen)))
        if result["versions"].get("torch") is None:
            print(f"\nPyTorch rows: n/a: {result['versions'].get('torch_reason', 'not measured')}")
        print()
    if len(results) > 1:
        print_gpus_beside_each_other(results)


def print_configuration(results, wanted):
    print(f"\n{configuration_text(wanted)}, {wanted['pass']}")
    print("\n".join(result_tables.text(result_tables.speedup_table(results, **wanted))))


def configurations(results):
    """Each (pass, configuration) that some GPU has, as selectors, with the method that its speedups are over."""
    for chosen in {(row["pass"], *configuration(row)): row for result in results.values() for row in result["rows"]}:
        wanted = dict(zip(("pass", *CONFIGURATION), chosen))
        yield wanted, result_tables.OVER[wanted["pass"]][0][0]


def print_gpus_beside_each_other(results):
    for wanted, over in configurations(results):
        print(f"\n{configuration_text(wanted)}, {wanted['pass']}: ms (speedup over {over})")
        print("\n".join(result_tables.text(result_tables.times_table(results, ["gpu"], over, **wanted))))


def print_class(results):
    for wanted, over in configurations(results):
        print(f"\n{configuration_text(wanted)}, {wanted['pass']}: ms (speedup over {over})")
        print("\n".join(result_tables.text(result_tables.class_table(results, over, **wanted))))
    print(f"\n{len(results)} files")


# ---- measuring --------------------------------------------------------------------------------------------------------------


def chosen_problems(options, dtypes):
    """All configurations of the command line, in order, and of these the shard's."""
    dtypes, head_dims = options.dtype or dtypes, options.head_dim or (64, 128)
    causals = (False, True) if options.causal is None else (options.causal,)
    seqlens = options.seqlen or (measure_rows.SEQLENS if options.full else (measure_rows.HEADLINE,))
    scaling = options.full and "fp16" in dtypes and 64 in head_dims and False in causals
    return dealt(measure_rows.problems(dtypes, head_dims, causals, seqlens, scaling, options.batch, options.heads), options)


def chosen_sweeps(options, dtypes):
    """The problems at which step04's tiles are swept: the headline's, not causal. bf16 has the shapes and the times of fp16."""
    wanted = [dtype for dtype in options.dtype or dtypes if dtype != "bf16"]
    seqlens = options.seqlen or (measure_rows.HEADLINE,)
    if options.causal or measure_rows.HEADLINE not in seqlens:
        return []
    return dealt(measure_rows.problems(wanted, options.head_dim or (64, 128), (False,), (measure_rows.HEADLINE,), False, options.batch, options.heads), options)


def dealt(everything, options):
    """The shard's part: there and back, as one deals cards; else one shard of four had all of d 64."""
    shard, shards = options.shard
    return [problem for n, problem in enumerate(everything) if shard == (n % shards if n // shards % 2 == 0 else shards - 1 - n % shards)]


def chosen_commit(built, given):
    if built and given and built != given:
        raise ResultsError(f"--commit {given}: the steps were built from {built}")
    return built or given


def begin(path, options, figures, torch):
    """The results object that this run adds to: that of the file where it is the same commit's, else an empty one."""
    commit = chosen_commit(figures["versions"]["git_commit"], options.commit)
    versions = {"driver": driver_version(), "cuda_toolkit": figures["versions"]["cuda_toolkit"], "compiler": figures["versions"]["compiler"], "python": platform.python_version(),
                **{key: (torch.versions or {}).get(key) for key in ("torch", "cuda_of_torch", "cudnn", "triton")}}
    reasons = {"driver": "nvidia-smi does not tell", "cuda_toolkit": "built without CUDA", "triton": "not installed"}
    versions |= {f"{key}_reason": reasons.get(key) if torch.versions or key in ("driver", "cuda_toolkit") else torch.missing for key, value in versions.items() if value is None}
    measured = {key: value for key, value in figures.items() if key != "findings"}  # what step00 found to do is this machine's, with its paths
    result = {"schema": SCHEMA, "gpu": figures["gpu"]["name"], "date": datetime.date.today().isoformat(), "commit": commit, "versions": versions, "device": measured, "rows": [], "sweeps": []}
    if commit is None:
        result["commit_reason"] = "built outside of a git repository"
    if path.is_file():
        old = read(path)
        if all(old[key] == result[key] for key in ("gpu", "commit", "versions")):
            result["rows"], result["sweeps"] = old["rows"], old["sweeps"]
        else:
            print(f"{path}: {len(old['rows'])} rows of {old['gpu']}, commit {old['commit']}, of another commit or other versions than this run's, are replaced")
    return result


def measure(options, figures):
    """Runs the chosen configurations, saves after each; returns (path, whether every result was right)."""
    torch = measure_rows.Torch()
    try:
        path = options.out or RESULTS / f"{slug(figures['gpu']['name'])}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        result = begin(path, options, figures, torch)
        if torch.missing:
            print(f"no PyTorch rows: {torch.missing}")
        for problem in chosen_sweeps(options, served_dtypes(figures)):
            name = f"tiles of step04, {configuration_text(problem)}"
            others = [sweep for sweep in result["sweeps"] if configuration(sweep) != configuration(problem)]
            if options.resume and len(others) < len(result["sweeps"]):
                print(f"{name}: kept", flush=True)
                continue
            sweep, reason, seconds = measure_rows.sweep(options.folder, problem)
            if sweep:
                result["sweeps"] = others + [sweep]
                save(result, path)
            print(f"{name}: {seconds:.1f} s" + (f", best {sweep['best']}" if sweep else f", not swept: {reason}"), flush=True)
        chosen = chosen_problems(options, served_dtypes(figures))
        for n, problem in enumerate(chosen, 1):
            have = {(row["method"], row["pass"], row["product"]) for row in result["rows"] if configuration(row) == configuration(problem)}
            name = f"[{n}/{len(chosen)}] {configuration_text(problem)}"
            if options.resume and measure_rows.expected_keys(problem, bool(torch.versions)) <= have:
                print(f"{name}: kept", flush=True)
                continue
            rows, parts = measure_rows.measure_problem(options.folder, problem, torch)
            result["rows"] = [row for row in result["rows"] if configuration(row) != configuration(problem)] + rows
            save(result, path)
            ran = [row for row in rows if row["not_run"] is None]
            took = f"{sum(seconds for _, seconds in parts):.1f} s ({', '.join(f'{what} {seconds:.1f}' for what, seconds in parts)})"
            print(f"{name}: {took}, {len(ran)} of {len(rows)} rows" + "".join(f"\n    {name_of(row)} {row['pass']}: {row['not_run']}" for row in rows if row["not_run"]), flush=True)
    finally:
        torch.close()
    return path, not any(row["verified"] is False for row in result["rows"])


def served_dtypes(figures):
    """The dtypes whose products step00 has measured: those that this GPU has."""
    served = {rate["dtype"] for rate in figures["tile_products"]}
    return [dtype for dtype in measure_rows.DTYPES if dtype in served]


def run(options):
    figures, no_gpu = measure_rows.device_figures(options.folder)
    if no_gpu:
        return run_executor(options, no_gpu)
    path, right = measure(options, figures)
    print()
    print_tables(load([path]))
    if options.out is None:
        changes = result_markers.renew(REPOSITORY, load(sorted(RESULTS.glob("*.json"))), write=True)
        print(f"\ndocuments: {len(changes)} lines between markers rewritten")
    print(f"\nresults: {path}")
    return 0 if right else 1


def run_executor(options, no_gpu):
    """Traffic and exactness by the CPU executor: no time, no speedup, no file."""
    print(f"{no_gpu}: traffic and exactness by the CPU executor. Times and speedups need a GPU; no results file is written")
    right = True
    for problem in [{"dtype": dtype, **EXECUTOR_PROBLEM, "head_dim": head_dim, "causal": causal} for dtype in options.dtype or measure_rows.DTYPES
                    for head_dim in options.head_dim or (64,) for causal in ((False, True) if options.causal is None else (options.causal,))]:
        rows = []
        for program, product in measure_rows.programs_of(problem):
            if program != "yardstick":  # which is a GPU's alone
                rows += measure_rows.program_rows(options.folder, program, product, problem, ["--device", "cpu"])
        lines = [["method", "exact", "of allowance", "relative L2", "HBM expected", "requested", "extra memory", "kernels"]]
        for row in rows:
            if row["not_run"] is not None:
                right = right and row["verified"] is not False
                lines.append([result_tables.label(row), ("FAIL: " if row["verified"] is False else "n/a: ") + row["not_run"]])
                continue
            requested = row["requested_expected_bytes"]
            lines.append([result_tables.label(row), "PASS", result_tables.share(row), result_tables.error(row), result_tables.size(row["hbm_expected_bytes"], row["hbm_at_least"]),
                          result_tables.size(requested["load"] + requested["store"]), f"{result_tables.size(row['extra_bytes'])} ({row['grows']})", str(row["kernel_count"])])
        print(f"\n{configuration_text(problem)}")
        print("\n".join(result_tables.text(lines)), flush=True)
    return 0 if right else 1


# ---- command line -----------------------------------------------------------------------------------------------------------


def shard(text):
    part, slash, parts = text.partition("/")
    if not slash or not 0 <= int(part) < int(parts):
        raise ValueError
    return int(part), int(parts)


def parse(arguments):
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="results files (docs/results/*.json)")
    do = parser.add_mutually_exclusive_group()
    do.add_argument("--run", action="store_true", help="measure")
    do.add_argument("--write", action="store_true", help="rewrite the figures between markers in README.md and docs/")
    do.add_argument("--check", action="store_true", help="exit 1 when a document and the results differ")
    do.add_argument("--merge", type=pathlib.Path, metavar="FILE", help="write the files of one GPU as one")
    do.add_argument("--each", action="store_true", help="print a line per file, also where several are of one GPU")
    parser.add_argument("--folder", default="build", type=pathlib.Path, help="where the executables are (build)")
    parser.add_argument("--dtype", nargs="+", choices=measure_rows.DTYPES, help="(all that the GPU has)")
    parser.add_argument("--head-dim", nargs="+", type=positive, help="(64 128)")
    parser.add_argument("--causal", action=argparse.BooleanOptionalAction, help="(both)")
    parser.add_argument("--seqlen", nargs="+", type=positive, help=f"({measure_rows.HEADLINE})")
    parser.add_argument("--batch", type=positive, help="(4, from 8192 tokens 1)")
    parser.add_argument("--heads", type=positive, help="(2048 / head_dim)")
    parser.add_argument("--full", action="store_true", help=f"N of {', '.join(map(str, sorted(measure_rows.SEQLENS)))}, and time and memory against N up to {max(measure_rows.SCALING_SEQLENS)}")
    parser.add_argument("--shard", type=shard, default=(0, 1), metavar="I/N", help="the I-th of N parts of the configurations (0/1), for several GPUs; give each its --out")
    parser.add_argument("--out", type=pathlib.Path, help="the results file (docs/results/<gpu>.json, and then the documents are rewritten too)")
    parser.add_argument("--resume", action="store_true", help="measure only what the file lacks")
    parser.add_argument("--commit", help="the sources' commit, where they are no git repository")
    options = parser.parse_args(arguments)
    if options.run and options.files:
        parser.error(f"{options.files[0]}: --run reads no files")
    out = options.out or options.merge
    if out and not (out.parent.is_dir() and os.access(out.parent, os.W_OK) and not out.is_dir()):
        parser.error(f"{out}: cannot be written")
    if options.run and options.shard != (0, 1) and options.out is None:
        parser.error("--shard needs --out: each shard a file of its own")
    return parser, options


def report(options):
    results = load(options.files or sorted(RESULTS.glob("*.json")), options.each)
    if options.merge:
        if len(results) != 1:
            raise ResultsError(f"--merge takes files of one GPU, these are of {', '.join(results) or 'none'}")
        save(next(iter(results.values())), options.merge)
        return 0
    if options.write or options.check:
        differences = result_markers.renew(REPOSITORY, results, options.write)
        if options.check:
            print("".join(f"{line}\n" for line in differences), end="")
            return 1 if differences else 0
        return 0
    if not results:
        raise ResultsError(f"no results in {RESULTS.relative_to(REPOSITORY)}: `make table` on a GPU machine measures them")
    print_class(results) if options.each else print_tables(results)
    return 0


def main(arguments=None):
    parser, options = parse(arguments)
    try:
        code = run(options) if options.run else report(options)
    except ResultsError as error:
        parser.exit(2, f"{error}\n")
    except CannotRun as error:
        parser.exit(error.code, f"{error}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
