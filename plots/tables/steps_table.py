#!/usr/bin/env python3
"""Runs every step and prints their table. Flags it does not know go to the steps.

    python3 plots/tables/steps_table.py --seqlen 1024 --causal

Every figure comes from the steps' --json; a value that a run does not have shows n/a.
"""

import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.programs import CANNOT_SERVE, described
from plots.script import REPOSITORY, OneLineParser, bytes_text, call, end_with, last_line, table_text


def size(load_store):
    return "n/a" if load_store is None else bytes_text(load_store["load"] + load_store["store"])


def exactness(method):
    """PASS, FAIL or why there is no verdict, of the outputs alone: bytes have a column of their own."""
    checks = method["exactness"]
    failed = any(not check["pass"] for check in checks)
    return "n/a" if not method["ran"] else "FAIL" if failed else "PASS" if checks else "not checked"


def row(run, method, first, dtype):
    """One line: a step with one method, or one method of several. `dtype` is what the table's heading says."""
    time, traffic = method["time"], method["traffic"]
    name = run["title"] if len(run["methods"]) == 1 else method["name"]
    worst = max((check["worst"] for check in method["exactness"] if check["worst"] is not None), default=None)
    return [
        run["step"] if first else "",
        name + (f" ({run['dtype']})" if run["dtype"] != dtype else ""),
        exactness(method),
        "n/a" if worst is None else f"{worst:.2f}",
        size(traffic["requested_expected_bytes"]),
        (">= " if traffic["hbm_at_least"] else "") + bytes_text(traffic["hbm_expected_bytes"]),
        f"{bytes_text(method['memory']['extra_bytes'])} ({method['memory']['grows']})",
        "n/a" if time is None else f"{time['median_ms']:.3g} ms",
    ]


def heading(run):
    problem = run["problem"]
    product = " on tensor cores" if (run["dtype"], run["product"]) == ("fp32", "tensor-cores") else ""
    length = str(problem["seqlen_q"])
    if problem["seqlen_q"] != problem["seqlen_k"]:
        length += f" x {problem['seqlen_k']}"
    return (
        f"{run['device_name']}: {run['dtype']}{product}, batch {problem['batch']}, heads "
        f"{problem['heads']}, N {length}, "
        f"d {problem['head_dim']}{', causal' if problem['causal'] else ''}"
    )


def main():
    parser = OneLineParser(__doc__)
    parser.add_argument(
        "--folder", type=pathlib.Path, default=REPOSITORY / "build", help="where the executables are (build)"
    )
    options, step_flags = parser.parse_known_args()
    there = lambda program: any(REPOSITORY.glob(f"steps/{program['id']}_*.cu"))  # a deleted step's program may be left
    programs = [program for program in described(options.folder) if program["kind"] == "attention" and there(program)]
    if not programs:
        parser.exit(2, f"no step in {options.folder}: build them first (make steps)\n")

    runs, refused, worst_code = [], [], 0
    for program in programs:
        command = [program["path"], *step_flags, "--json", "-"]
        code, stdout, stderr = call(command)
        if code == CANNOT_SERVE:  # its reason, without what to do instead
            reason = re.split(r"[:;] ", re.sub(rf"^{program['id']}:? ", "", last_line(stderr)))[0]
            refused.append([program["id"], program["title"], f"n/a: {reason}"])
        elif code != 0:
            worst_code = worst_code or code
            print(f"{program['id']}: exit {code}: {last_line(stderr)}", file=sys.stderr)
        if stdout:
            runs.append(json.loads(stdout))
    if any("methods" not in run for run in runs):
        parser.error("--sweep-tiles asks a step for another report than this table's: run the step itself")
    if runs:
        print(heading(runs[0]))
        time = "emulated (no GPU time)" if runs[0]["device"] == "cpu" else "time"
        lines = [["step", "method", "exact", "of allowance", "requested", "HBM expected", "extra memory", time]]
        for run in runs:
            lines += [row(run, method, n == 0, runs[0]["dtype"]) for n, method in enumerate(run["methods"])]
        lines += refused
        print("\n".join(table_text(lines, left=3)))
    for line in refused if not runs else []:
        print(" ".join(line), file=sys.stderr)
    return worst_code if runs else worst_code or CANNOT_SERVE


if __name__ == "__main__":
    end_with(main)
