"""python3 barriers.py folder: every barrier of steps/ and common/tile/ is needed. Leaves out one after the other (the executor's
ATTN_LEAVE_OUT_BARRIER) and demands, of every program of the folder that comes to it, that one of the runs below ends with exit 1."""
import json
import os
import pathlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BARRIER = re.compile(r"^[^/]*?\b(?:__syncthreads\(\)|__syncwarp\(\)|wait_copies<\d>\(\));")
# The default; fp32 on tensor cores; several key tiles, and blocks that see none.
RUNS = ([], ["--product", "tensor-cores", "--head-dim", "63"], ["--causal", "--seqlen-q", "700", "--seqlen-k", "300"])


def barriers():
    for source in sorted([*REPOSITORY.glob("steps/*.cu"), *REPOSITORY.glob("steps/*.h"), *REPOSITORY.glob("common/tile/*.h")]):
        for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), 1):
            if BARRIER.match(line):
                yield source, f"{source.name}:{number}"


def try_without(program, place):
    """How the program fares without the barrier: "" where it does not come to it, else what it said."""
    survived = ""
    for flags in RUNS:
        ran = subprocess.run([program, "--device", "cpu", *flags], capture_output=True, text=True, encoding="utf-8", env={**os.environ, "ATTN_LEAVE_OUT_BARRIER": place})
        if f"left out: the barrier at {place}" not in ran.stderr:
            continue
        if ran.returncode == 1:
            return f"exit 1  {ran.stderr.strip().splitlines()[-1]}"
        survived = "SURVIVES"
    return survived


def main(folder):
    programs = {}
    for program in sorted(pathlib.Path(folder).resolve().glob("step[0-9][0-9]")):
        described = json.loads(subprocess.run([program, "--describe"], capture_output=True, text=True, check=True).stdout)
        if described["devices"]["cpu"]:
            programs[program.name] = program
    jobs = [(source, place, name) for source, place in barriers() for name in programs if source.parent.name != "steps" or source.name.startswith(name) or not source.name.startswith("step")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(lambda job: try_without(programs[job[2]], job[1]), jobs))
    reached, survivors = set(), []
    for (_, place, name), outcome in zip(jobs, outcomes):
        if outcome:
            reached.add(place)
            print(f"{place} {name}: {outcome}")
        if outcome == "SURVIVES":
            survivors.append(f"{place} ({name})")
    never = [place for _, place in barriers() if place not in reached]
    if survivors or never:
        sys.exit("".join(f"no run notices that this barrier is missing: {place}\n" for place in survivors) + "".join(f"no run comes to this barrier: {place}\n" for place in never))
    print(f"{len(reached)} barriers, each left out: all noticed")


if __name__ == "__main__":
    main(*sys.argv[1:])
