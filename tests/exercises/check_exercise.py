"""python3 check_exercise.py source program filled_program: the exercise as it stands in the repository fails the harness' check with a
line that says what to do; filled with the step's lines it passes. Exit 77 (skipped) once its reader has begun to fill it in."""
import pathlib
import subprocess
import sys

from fill_exercise import untouched

source, program, filled_program = (pathlib.Path(argument) for argument in sys.argv[1:])
if not untouched(source.read_text()):
    print(f"skipped: {source.name} has been worked on (not all of its TODOs are there)")
    sys.exit(77)


def run(which, *flags):
    return subprocess.run([which, "--device", "cpu", *flags], capture_output=True, text=True, timeout=300)


for flags in ([], ["--seqlen-q", "70", "--seqlen-k", "133", "--head-dim", "40", "--causal"]):
    empty = run(program, *flags)
    assert empty.returncode == 1, f"with empty holes it must fail, not end with {empty.returncode}\n{empty.stdout}{empty.stderr}"
    assert " FAIL " in empty.stdout, f"the check must find the result wrong\n{empty.stdout}"
    assert f"fill in the TODOs of docs/exercises/{source.name}" in empty.stderr and empty.stderr.count("\n") == 1, empty.stderr
    filled = run(filled_program, *flags)
    assert filled.returncode == 0 and " PASS " in filled.stdout, f"with the step's lines it must pass, not end with {filled.returncode}\n{filled.stdout}{filled.stderr}"
    print(f"{source.stem} {' '.join(flags)}: {empty.stderr.strip()}")
