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
from plots.results import on_product
from plots.script import REPOSITORY, OneLineParser, Stop, bytes_text, call, end_with, last_line, table_text


def exactness(method):
    """PASS, FAIL or why there is no verdict, of the outputs alone: bytes have a column of their own."""
    checks = method["exactness"]
    failed = any(not check["pass"] for check in checks)
    return "n/a" if not method["ran"] else "FAIL" if failed else "PASS" if checks else "not checked"


def row(run, method, dtype):
    """One line: a step with one method, or one method of several. `dtype` is what the table's heading says."""
    time, traffic, memory = method["time"], method["traffic"], method["memory"]
    name = run["title"] if len(run["methods"]) == 1 else method["name"]
    worst = max((check["worst"] for check in method["exactness"] if check["worst"] is not None), default=None)
    requested = traffic["requested_expected_bytes"]
    return [
        run["step"] if method is run["methods"][0] else "",
        name + (f" ({run['dtype']})" if run["dtype"] != dtype else ""),
        exactness(method),
        "n/a" if worst is None else f"{worst:.2f}",
        "n/a" if requested is None else bytes_text(requested["load"] + requested["store"]),
        (">= " if traffic["hbm_at_least"] else "") + bytes_text(traffic["hbm_expected_bytes"]),
        f"{bytes_text(memory['extra_bytes'])} ({memory['grows']})",
        "n/a" if time is None else f"{time['median_ms']:.3g} ms",
    ]


def heading(run):
    problem, dtype = run["problem"], run["dtype"]
    product = run["product"] if dtype == "fp32" else None
    length = " x ".join(map(str, dict.fromkeys((problem["seqlen_q"], problem["seqlen_k"]))))
    return (
        f"{run['device_name']}: {on_product(dtype, product)}, batch {problem['batch']}, heads {problem['heads']}, "
        f"N {length}, d {problem['head_dim']}{', causal' if problem['causal'] else ''}"
    )


def show(programs, flags):
    """Runs the steps among described programs with these flags and prints their table. Returns the exit code."""
    runs, refused, worst_code = [], [], 0
    for program in programs:
        code, stdout, stderr = call([program["path"], *flags, "--json", "-"])
        if code == CANNOT_SERVE:  # its reason, without what to do instead
            reason = re.split(r"[:;] ", re.sub(rf"^{program['id']}:? ", "", last_line(stderr)))[0]
            refused.append([program["id"], program["title"], f"n/a: {reason}"])
        elif code != 0:
            worst_code = worst_code or code
            print(f"{program['id']}: exit {code}: {last_line(stderr)}", file=sys.stderr)
        if stdout:
            runs.append(json.loads(stdout))
    if any("methods" not in run for run in runs):
        raise Stop("--sweep-tiles asks a step for another report than this table's: run the step itself")
    if runs:
        print(heading(runs[0]))
        time = "emulated (no GPU time)" if runs[0]["device"] == "cpu" else "time"
        lines = [["step", "method", "exact", "of allowance", "requested", "HBM expected", "extra memory", time]]
        lines += [row(run, method, runs[0]["dtype"]) for run in runs for method in run["methods"]]
        print("\n".join(table_text(lines + refused, left=3)), flush=True)
    for line in refused if not runs else []:
        print(" ".join(line), file=sys.stderr)
    return worst_code if runs else worst_code or CANNOT_SERVE


def steps_in(folder):
    """The steps of a build folder. A deleted step's program may be left there, and is none."""
    there = lambda program: any(REPOSITORY.glob(f"steps/{program['id']}_*.cu"))
    found = [program for program in described(folder) if program["kind"] == "attention" and there(program)]
    if not found:
        raise Stop(f"no step in {folder}: build them first (make steps)")
    return found


def main():
    parser = OneLineParser(__doc__)
    parser.add_argument("--folder", type=pathlib.Path, default=REPOSITORY / "build", help="the executables' (build)")
    options, flags = parser.parse_known_args()
    return show(steps_in(options.folder), flags)


if __name__ == "__main__":
    end_with(main)
