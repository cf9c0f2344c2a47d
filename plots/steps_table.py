#!/usr/bin/env python3
"""Runs every step and prints their table. Flags it does not know go to the steps.

    python3 plots/steps_table.py --folder build --seqlen 1024 --causal

Every figure comes from the steps' --json; a value that a run does not have shows n/a.
"""
import argparse
import json
import pathlib
import subprocess
import sys

from script import OneLineParser

CANNOT_SERVE = 3


def bytes_text(count):
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def both(load_store):
    return "n/a" if load_store is None else bytes_text(load_store["load"] + load_store["store"])


def row(run, method, first, dtype):
    """One line of the table: a step with one method, or one method of step05. `dtype` is what the table's heading says."""
    time = method["time"]
    failed = any(not check["pass"] for check in method["exactness"])
    exact = "n/a" if not method["ran"] else "FAIL" if failed else "PASS" if method["exactness"] else "not checked"
    worst = max((check["worst"] for check in method["exactness"] if check["worst"] is not None), default=None)
    hbm = bytes_text(method["traffic"]["hbm_expected_bytes"])
    return [
        run["step"] if first else "",
        (run["title"] if len(run["methods"]) == 1 else method["name"]) + (f" ({run['dtype']})" if run["dtype"] != dtype else ""),
        exact,
        "n/a" if worst is None else f"{worst:.2f}",
        both(method["traffic"]["requested_expected_bytes"]),
        (">= " if method["traffic"]["hbm_at_least"] else "") + hbm,
        f"{bytes_text(method['memory']['extra_bytes'])} ({method['memory']['grows']})",
        "n/a" if time is None else f"{time['median_ms']:.3g} ms",
    ]


def main():
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="build", help="where the executables are (build)")
    options, step_flags = parser.parse_known_args()
    programs = sorted(path for path in pathlib.Path(options.folder).glob("step[0-9][0-9]") if path.is_file() and path.name != "step00")  # step00 is no attention
    if not programs:
        parser.exit(2, f"no step in {options.folder}: build them first (make steps)\n")

    runs, worst_code = [], 0
    for program in programs:
        done = subprocess.run([str(program.resolve()), "--json", "-", *step_flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            worst_code = worst_code or (done.returncode if done.returncode != CANNOT_SERVE else 0)  # one that refuses this problem is left out
            print(f"{program.name}: exit {done.returncode}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ''}", file=sys.stderr)
        if done.stdout:
            runs.append(json.loads(done.stdout))
    if runs:
        first = runs[0]
        problem, emulated = first["problem"], first["device"] == "cpu"
        print(f"{first['device_name']}: {first['dtype']}{' on tensor cores' if (first['dtype'], first['product']) == ('fp32', 'tensor-cores') else ''}, batch {problem['batch']}, heads {problem['heads']}, N {problem['seqlen_q']}"
              f"{'' if problem['seqlen_q'] == problem['seqlen_k'] else ' x ' + str(problem['seqlen_k'])}, d {problem['head_dim']}{', causal' if problem['causal'] else ''}")
        table = [["step", "method", "exact", "of allowance", "requested", "HBM expected", "extra memory", "emulated (no GPU time)" if emulated else "time"]]
        for run in runs:
            table += [row(run, method, n == 0, runs[0]["dtype"]) for n, method in enumerate(run["methods"])]
        widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
        for line in table:
            print("  ".join(cell.ljust(width) if n < 3 else cell.rjust(width) for n, (cell, width) in enumerate(zip(line, widths))).rstrip())
    sys.exit(worst_code if runs else worst_code or CANNOT_SERVE)


if __name__ == "__main__":
    main()
