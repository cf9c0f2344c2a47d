#!/usr/bin/env python3
"""Runs the profiler line of each chapter and stores what it prints in docs/results/profiler/, for readers who may not read counters.

    python3 plots/store_profiles.py --folder build [--out docs/results/profiler]

The line is the chapter's own, `$ ncu ... ./step04 ...`; the file holds it and the profiler's part of the output. Needs a GPU, ncu and
the permission to read counters. Exit codes: 0 stored, 2 bad arguments, 3 no ncu, 4 the profiler failed (nothing is stored for that step).
"""
import argparse
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

from result_markers import profiler_lines
from script import OneLineParser, write_whole

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent


def commands(repository):
    """{"step04": its chapter's profiler line}."""
    lines = [match[1] for chapter in sorted((repository / "docs").glob("0[0-9]-*.md")) for match in re.finditer(r"^\$ (ncu .*)$", chapter.read_text(), re.MULTILINE)]
    return {re.search(r"\./(step\d\d)", line)[1]: line for line in lines}


def profiler_part(step, output):
    """The kernels and their metrics: what follows the step's own report. Empty when ncu found no kernel."""
    kernels = output.partition(f"] {step}@")[2].partition("\n")[2]
    return "\n".join([step, *profiler_lines(kernels)]).rstrip() + "\n" if kernels else ""


def main():
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build"), help="where the executables are (build)")
    parser.add_argument("--out", type=pathlib.Path, default=REPOSITORY / "docs" / "results" / "profiler")
    options = parser.parse_args()
    if not options.folder.is_dir():
        parser.exit(2, f"{options.folder}: no such folder\n")
    if not shutil.which("ncu"):
        parser.exit(3, "ncu (Nsight Compute) is not on the PATH\n")
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for step, line in commands(REPOSITORY).items():
        done = subprocess.run(shlex.split(line), cwd=options.folder, capture_output=True, text=True)
        text = profiler_part(step, done.stdout)
        if done.returncode != 0 or not text:
            print(f"{step}: exit {done.returncode}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}", file=sys.stderr)
            failed = 4
            continue
        write_whole(options.out / f"{step}.txt", f"$ {line}\n{text}")
        print(f"{step}: {text.count('Section:')} kernels")
    sys.exit(failed)


if __name__ == "__main__":
    main()
