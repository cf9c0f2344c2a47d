#!/usr/bin/env python3
"""Runs the profiler line of each chapter and stores what it prints in docs/results/profiler/, for readers who may not
read counters.

    python3 plots/measuring/store_profiles.py --folder build [--out docs/results/profiler]

The line is the chapter's own, `$ ncu ... ./step04 ...`; the file holds it and the profiler's part of the output. Needs
a GPU, ncu and the permission to read counters. Exit codes: 0 stored, 2 bad arguments, 3 no ncu, 4 the profiler failed
(nothing is stored for that step)."""

import pathlib
import re
import shlex
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.script import REPOSITORY, OneLineParser, Stop, call, end_with, last_line, read_text, write_whole


def commands(repository):
    """{"step04": its chapter's profiler line}."""
    lines = [
        match[1]
        for chapter in sorted((repository / "docs").glob("[0-9][0-9]-*.md"))
        for match in re.finditer(r"^\$ (ncu .*)$", read_text(chapter), re.MULTILINE)
    ]
    return {re.search(r"\./(step\d\d)", line)[1]: line for line in lines}


def profiler_part(step, output):
    """The kernels and their metrics, which follow the step's own report: no line that names a process or a path of the
    machine, no warning, no rule of a table. Empty when ncu found no kernel."""
    hidden = re.compile(r"==(?:PROF|WARNING)==|\[\d+\] |.*Warning:|\s*-+ -+ -+\s*$")
    kernels = output.partition(f"] {step}@")[2].partition("\n")[2]
    lines = [line.rstrip() for line in kernels.splitlines() if not hidden.match(line)]
    return "\n".join([step, *lines]).rstrip() + "\n" if kernels else ""


def main():
    parser = OneLineParser(__doc__)
    parser.add_argument(
        "--folder", type=pathlib.Path, default=REPOSITORY / "build", help="where the executables are (build)"
    )
    parser.add_argument("--out", type=pathlib.Path, default=REPOSITORY / "docs" / "results" / "profiler")
    options = parser.parse_args()
    if not options.folder.is_dir():
        raise Stop(f"{options.folder}: no such folder")
    if not shutil.which("ncu"):
        raise Stop("ncu (Nsight Compute) is not on the PATH", 3)
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for step, line in commands(REPOSITORY).items():
        code, stdout, stderr = call(shlex.split(line), cwd=options.folder)
        text = profiler_part(step, stdout)
        if code != 0 or not text:
            print(f"{step}: exit {code}: {last_line(stderr or stdout)}", file=sys.stderr)
            failed = 4
            continue
        write_whole(options.out / f"{step}.txt", f"$ {line}\n{text}")
        print(f"{step}: {text.count('Section:')} kernels")
    return failed


if __name__ == "__main__":
    end_with(main)
