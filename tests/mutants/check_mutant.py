"""python3 check_mutant.py edits name original mutant: fails unless the original passes with the flags of this edit and
the mutant exits with 1 and exactly what stands behind => found wrong. Where the mutant's text has gone from the
sources, says so in one line."""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cmake"))
import edit


def run(program, flags):
    return subprocess.run(
        [program, "--device", "cpu", *flags, "--json", "-"], capture_output=True, text=True, encoding="utf-8"
    )


def found_wrong(ran):
    if not ran.stdout.strip():
        return ["finding"]
    report = json.loads(ran.stdout)
    failures = "\n".join(report["failures"])
    return (
        [check["output"] for check in report["exactness"] if not check["pass"]]
        + ["bytes"] * ("counted minus expected bytes" in failures)
        + ["flops"] * ("FLOPs" in failures)
        + ["bits"] * ("is not the same in" in failures)
    )


def main(edits, name, original, mutant):
    if not pathlib.Path(mutant).exists():
        with tempfile.TemporaryDirectory() as folder:
            edit.main(edits, name, pathlib.Path(__file__).resolve().parents[2], folder)
        sys.exit(f"{mutant} is not built: cmake --build <build folder> --target mutant_{name} says why")
    flags, expected = edit.read(edits)[name][1].split(" => ")
    accepted = run(original, flags.split())
    if accepted.returncode != 0:
        sys.exit(f"the original is not accepted: exit {accepted.returncode}\n{accepted.stdout}{accepted.stderr}")
    rejected = run(mutant, flags.split())
    if rejected.returncode != 1:
        sys.exit(f"the mutant is not rejected: exit {rejected.returncode}\n{rejected.stderr}")
    if found_wrong(rejected) != expected.split():
        sys.exit(f"wrong in the mutant: {' '.join(found_wrong(rejected))}; expected: {expected}\n{rejected.stderr}")
    print(rejected.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
