"""The mistakes of barriers.py on a Hopper GPU, where nobody looks for them: does it hang, is the result wrong, or right
by luck? Each is tried once, in a process of its own that is ended after some seconds.

    python3 tests/mutants/gpu_barriers.py build build-gpu mistakes step07 step08     (builds and packs; needs no GPU)
    python3 tests/mutants/gpu_barriers.py run mistakes --json outcomes.json          (on the GPU)
    python3 tests/mutants/gpu_barriers.py table outcomes.json                        (as Markdown)

`build` needs a build folder, which it configures with -DATTN_GPU_MISTAKES=ON, and takes a second one beside it for the
mistakes that must be compiled in (common/device/gpu/mistakes.h), with the tiles for head_dim 64 alone. It also asks the
CPU executor what it says to each. `run` ends with exit 1 when a program without a mistake does not pass, before or
after."""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

import barriers

KINDS = (  # of mistakes: its variable, what its line calls, and what the table says
    (None, r"\.wait\(", "no wait at a barrier, or a wait for the other parity"),
    (barriers.OFF_BY_ONE, r"\.arrive_and_expect\(", "16 bytes too many or too few are announced"),
    (None, r"\.(?:arrive|arrive_and_expect|init)\(", "an arrival is missing, or a barrier takes one more or one fewer"),
    (None, r"\bnamed_", "no named barrier, or a warp too many or too few"),
    (None, r"\b__sync", "no `__syncthreads` or `__syncwarp`"),
    (None, r"\bbegin_products", "no `begin_products`"),
    (None, r"\bcommit_products", "no `commit_products`"),
    (None, r"\bwait_products", "no `wait_products`, or for one group fewer"),
    (None, r"\bbarriers_are_ready|\bstores_visible", "no `barriers_are_ready` or `stores_visible_to_engines`"),
    (None, r"copies_back", "no `commit_copies_back` or `wait_until_copies_back_have_read`"),
)
OUTCOMES = {"hang": "hangs", "wrong": "wrong", "error": "CUDA error", "right": "right"}
COMPILED_IN = re.compile(r"\b(?:begin|commit|wait)_products\b")
END_S = 20  # after which a process that was told to end has ended
# What a GPU is asked to do in a run beside the kernels' first launch: few repetitions, no counters.
FLAGS = ("--device", "gpu", "--traffic", "off", "--repeat", "5")


def call(*command):
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def pack(program, to):
    to.parent.mkdir(parents=True, exist_ok=True)
    call("strip", "-o", to, program)


def build(options):
    """The programs, and what is to be tried with them, in options.out."""
    folder, out = options.folder.resolve(), options.out.resolve()
    jobs = f"-j{options.jobs}"
    call("cmake", "-S", barriers.REPOSITORY, "-B", folder, "-DATTN_GPU_MISTAKES=ON")
    call("cmake", "--build", folder, jobs, "--target", *options.steps)
    programs = [folder / step for step in options.steps]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        jobs_to_try = [job for job in barriers.to_try(programs, pool) if job[2]]
        said = list(pool.map(lambda job: barriers.try_with(job[1], job[2], *job[0][2:]), jobs_to_try))
    jobs_to_try = sorted(zip(jobs_to_try, said), key=lambda job: programs.index(job[0][1]))
    for program in programs:
        pack(program, out / program.name)
    tries = []
    for (mistake, program, runs), executor in jobs_to_try:
        _, _, variable, value = mistake
        line = line_of(mistake)
        one = {"step": program.name, "variable": variable, "value": value, "line": line, "runs": runs}
        one |= {"executor": executor, "harmless": barriers.why_harmless(mistake)}
        if COMPILED_IN.search(line):
            one |= compile_in(folder, program.name, value, out, jobs)
        tries.append(one)
    (out / "tries.json").write_text(json.dumps(tries, indent=1), encoding="utf-8")
    print(f"{len(tries)} mistakes, {sum('program' in one for one in tries)} of them compiled in: {out}")


def line_of(mistake):
    source, _, _, value = mistake
    return source.read_text(encoding="utf-8").splitlines()[int(re.search(r":(\d+)", value)[1]) - 1].strip()


def compile_in(folder, step, place, out, jobs):
    """The program with that mistake in it, and what ptxas said of its products."""
    second = folder.with_name(folder.name + "-compiled")
    kept = [
        f"-D{name}={value}"
        for name, value in re.findall(
            r"^(CMAKE_CUDA_ARCHITECTURES|ATTN_NATIVE|ATTN_CUDA|CMAKE_CXX_FLAGS):\w+=(.*)$",
            (folder / "CMakeCache.txt").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    ]
    few = "-DCMAKE_CUDA_FLAGS=-DATTN_LARGEST_HEAD_DIM=64"
    call("cmake", "-S", barriers.REPOSITORY, "-B", second, f"-DATTN_GPU_MISTAKES={place}", few, *kept)
    call("cmake", "--build", second, jobs, "--target", step)
    program = f"{step}-{place.replace(':', '-')}"
    pack(second / step, out / program)
    log = (second / f"steps/{step}_gpu.log").read_text(encoding="utf-8")
    return {"program": program, "ptxas": sorted(set(re.findall(r"\((C75\d\d)\)", log)))}


class Gpu:
    """Runs programs for a limited time. When one cannot be ended, nothing more is started."""

    def __init__(self, folder, limit_s, until):
        self.folder, self.limit_s, self.until, self.stuck = folder, limit_s, until, threading.Event()

    def run(self, program, flags, **environment):
        """(outcome, the last line of what it said, all that it said, seconds)."""
        begin = time.monotonic()
        process = subprocess.Popen(
            [self.folder / program, *FLAGS, *flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **environment},
        )
        try:
            said = process.communicate(timeout=self.limit_s)[1]
            outcome = {0: "right", 1: "wrong", 3: "refused"}.get(process.returncode, "error")
        except subprocess.TimeoutExpired:
            process.kill()
            outcome, said = "hang", ""
            try:
                process.communicate(timeout=END_S)
            except subprocess.TimeoutExpired:
                self.stuck.set()
                outcome = "hang that cannot be ended"
        return outcome, (said.strip().splitlines() or [""])[-1], said, time.monotonic() - begin

    def attempt(self, one):
        """The outcome of the first of its runs that is not right; "right" where all are."""
        result = {**one, "gpu": "not run", "tried": 0}
        named = {} if "program" in one else {one["variable"]: one["value"]}
        for flags in one["runs"]:
            if self.stuck.is_set() or time.monotonic() > self.until:
                break
            outcome, last, said, seconds = self.run(one.get("program", one["step"]), flags, **named)
            if outcome == "refused":
                continue
            if outcome == "right" and named and f"{one['value']}\n" not in said:
                outcome = "not made"
                if result["gpu"] == "right":
                    continue
            result |= {"gpu": outcome, "says": last, "flags": " ".join(flags), "seconds": round(seconds, 2)}
            result["tried"] += 1
            if outcome not in ("right", "not made"):
                break
        return result

    def passes_without(self, tries, pool):
        """That each program passes without a mistake in each run that it takes, as many at a time as with one."""
        runs = sorted({(one["step"], tuple(flags)) for one in tries for flags in one["runs"]})
        ran = list(pool.map(lambda run: self.run(*run), runs))
        bad = [
            f"{step} {' '.join(flags)}: {outcome}, {last}"
            for (step, flags), (outcome, last, *_) in zip(runs, ran)
            if outcome not in ("right", "refused")
        ]
        passed = {step for (step, _), (outcome, *_) in zip(runs, ran) if outcome == "right"}
        bad += [f"{step}: refuses all" for step in sorted({step for step, _ in runs} - passed)]
        longest = max(seconds for *_, seconds in ran)
        print(f"without a mistake: {len(runs)} runs, the longest {longest:.1f} s, {len(bad)} bad")
        print("".join(f"  {line}\n" for line in bad), end="", flush=True)
        return not bad


def run(options):
    tries = json.loads((options.folder / "tries.json").read_text(encoding="utf-8"))
    gpu = Gpu(options.folder.resolve(), options.limit, time.monotonic() + options.seconds)
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.parallel) as pool:
        if not gpu.passes_without(tries, pool):
            sys.exit("a program fails without a mistake: nothing was tried")
        results = list(pool.map(gpu.attempt, tries))
        healthy = not gpu.stuck.is_set() and gpu.passes_without(tries, pool)
    for one in results:
        ptxas = f"  ptxas: {' '.join(one['ptxas'])}" if one.get("ptxas") else ""
        print(f"{one['step']}  {one['value']:38}  {one['gpu']:8}  {one.get('says', '')[:90]}{ptxas}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1), encoding="utf-8")
    counts = collections.Counter((one["step"], one["gpu"]) for one in results)
    for (step, outcome), count in sorted(counts.items()):
        print(f"{step}: {count} {outcome}")
    print(f"{len(results)} mistakes in {time.monotonic() - begin:.0f} s, {options.parallel} at a time")
    if not healthy:
        sys.exit("a program without a mistake fails afterwards")


def kind_of(one):
    return next(
        say for variable, call, say in KINDS if variable in (None, one["variable"]) and re.search(call, one["line"])
    )


def finding(one):
    """What the executor says, without places."""
    if one["executor"] == "SURVIVES":
        return f"nothing: {one['harmless']}"
    said = re.sub(r"^exit 1  .*?: block \d+, thread \d+, .*?: ", "", one["executor"])
    said = re.sub(r" \(.*?\)|(?: started)? at [\w.]+:\d+(?: < [\w.]+:\d+)*", "", said)
    said = "deadlock" if said.startswith("deadlock") else said
    return said if len(said) <= 90 else said[:90].rsplit(" ", 1)[0] + " ..."


def table(options):
    """How often each kind of mistake ended how, and a line for each mistake."""
    results = json.loads(options.outcomes.read_text(encoding="utf-8"))
    tried = [one for one in results if one["gpu"] in OUTCOMES]
    print(f"| mistake | tried | {' | '.join(OUTCOMES.values())} |\n|{'---|' * (2 + len(OUTCOMES))}")
    for *_, say in KINDS:
        counts = collections.Counter(one["gpu"] for one in tried if kind_of(one) == say)
        print(f"| {say} | {counts.total()} | {' | '.join(str(counts[outcome] or '') for outcome in OUTCOMES)} |")
    counts = collections.Counter(one["gpu"] for one in tried)
    print(f"| all | {len(tried)} | {' | '.join(str(counts[outcome]) for outcome in OUTCOMES)} |")
    for step in dict.fromkeys(one["step"] for one in results):
        print(f"\n## {step}\n\n| line | mistake | the executor says | the GPU shows |\n|---|---|---|---|")
        for one in results:
            if one["step"] == step:
                file, number = one["value"].split(":")
                number, sign, _ = re.fullmatch(r"(\d+)([+-]?)(1?)", number).groups()
                by = {"": "left out", "+": "one more", "-": "one fewer"}[sign]
                by = "the other parity" if sign and ".wait(" in one["line"] else by
                code = re.split(r" *//", one["line"])[0].rstrip(";")
                shown = OUTCOMES.get(one["gpu"], one["gpu"]) + remark(one)
                print(f"| {file}:{number} `{code}` | {by} | {finding(one)} | {shown} |")


def remark(one):
    """What ptxas says that it has done: put a fence (C7519) or a wait (C7517) where one is missing, or given up."""
    said = set(one.get("ptxas") or ())
    return ", ptxas puts one in" if said & {"C7517", "C7519"} else ", ptxas runs products one by one" if said else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("build")
    command.add_argument("folder", type=pathlib.Path)
    command.add_argument("out", type=pathlib.Path)
    command.add_argument("steps", nargs="+", help="in the order in which they are tried")
    command.add_argument("--jobs", type=int, default=os.cpu_count())
    command.set_defaults(do=build)
    command = commands.add_parser("run")
    command.add_argument("folder", type=pathlib.Path)
    command.add_argument("--json")
    command.add_argument("--parallel", type=int, default=4)
    command.add_argument("--limit", type=float, default=5, help="seconds of a run, which takes less than one by itself")
    command.add_argument("--seconds", type=float, default=300, help="after which nothing more is tried")
    command.set_defaults(do=run)
    command = commands.add_parser("table")
    command.add_argument("outcomes", type=pathlib.Path)
    command.set_defaults(do=table)
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
