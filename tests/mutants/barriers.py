"""python3 barriers.py folder: every barrier of steps/ and common/tile/ is needed, and what Hopper's are told is needed
as it is. Leaves out one after the other (the executor's ATTN_LEAVE_OUT_BARRIER), makes each count, parity and number of
bytes one off (ATTN_OFF_BY_ONE), and demands, of every program of the folder that comes to it (ATTN_LIST_BARRIERS), that
one of the runs below ends with exit 1."""

import json
import os
import pathlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
# Barriers and waits of a block, and what Hopper's units are told: waits, arrivals, fences, commits, named barriers.
BARRIER = re.compile(
    r"^[^/]*?(?:\b(?:__syncthreads|__syncwarp|wait_copies<\d>|barriers_are_ready|stores_visible_to_engines"
    r"|begin_products|commit_products|wait_products<\d>|commit_copies_back|wait_until_copies_back_have_read|named_sync"
    r"|named_arrive)|\.(?:wait|arrive|arrive_and_expect))\("
)
COUNTED = re.compile(r"^[^/]*?(?:\.(?:init|wait|arrive_and_expect)|\bnamed_(?:sync|arrive))\(")
WAIT_FOR_PRODUCTS = re.compile(r"^[^/]*?\bwait_products<\d>\(")
LEAVE_OUT, OFF_BY_ONE = "ATTN_LEAVE_OUT_BARRIER", "ATTN_OFF_BY_ONE"
# What may be so without a wrong result: the mistake, the file, the end of the line before and the line, and why.
HARMLESS = (
    (
        LEAVE_OUT,
        "step07_hopper_twin_blocks.cu",
        "__syncwarp();",
        "behind a leader's branch: on a GPU its warp would be held up, nothing else",
    ),
    (
        LEAVE_OUT,
        "step11_kernels.h",
        "sram.d_o_empty[i].wait(ring.parity ^ 1);",
        "the wait for q_empty, at which the same lanes arrive first, says as much",
    ),
    (
        OFF_BY_ONE,
        "step11_kernels.h",
        "sram.d_o_empty[i].init(4 * kConsumers);",
        "one arrival too few, at the barrier whose wait may go",
    ),
    (
        LEAVE_OUT,
        "step11_kernels.h",
        "sram.ds_full[i].wait(parity); begin_products();",
        "no register is touched since the one before",
    ),
)
# A small problem, which shows most mistakes; what survives it meets the default; fp32 on tensor cores, of any head_dim
# and of one that step08 takes; several key tiles, and blocks that see none; wide heads. And without each of the step's
# techniques.
RUNS = (
    ["--heads", "1", "--seqlen", "300"],
    [],
    ["--product", "tensor-cores", "--head-dim", "63"],
    ["--product", "tensor-cores", "--dtype", "fp32", "--heads", "1", "--seqlen", "300"],
    ["--causal", "--seqlen-q", "700", "--seqlen-k", "300"],
    ["--head-dim", "128"],
)


def mistakes():
    """(source, the line before it and its line, without comments, the environment variable, its value) of each."""
    for source in sorted(
        [
            *REPOSITORY.glob("steps/*.cu"),
            *REPOSITORY.glob("steps/*.cuh"),
            *REPOSITORY.glob("steps/*.h"),
            *REPOSITORY.glob("common/tile/*.h"),
        ]
    ):
        if source.name.startswith("step00_"):  # for GPUs alone
            continue
        before = ""
        for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), 1):
            place = f"{source.name}:{number}"
            code = line.split("//")[0].strip()
            context, before = f"{before} {code}", code
            if BARRIER.match(line):
                yield source, context, LEAVE_OUT, place
            if COUNTED.match(line) or WAIT_FOR_PRODUCTS.match(line):
                yield source, context, OFF_BY_ONE, f"{place}+1"
            if COUNTED.match(line) and ".wait(" not in line:
                yield source, context, OFF_BY_ONE, f"{place}-1"


def run(program, flags, **environment):
    return subprocess.run(
        [program, "--device", "cpu", *flags],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, **environment},
    )


def places(program, flags):
    """The barriers that the program comes to with these flags: one order of threads tells, and no check."""
    ran = run(
        program,
        [*flags, "--check", "none", "--race-check", "none", "--thread-order", "0", "--repeat", "1"],
        ATTN_LIST_BARRIERS="1",
    )
    return set(re.findall(r"^comes to: (.*)$", ran.stderr, re.MULTILINE))


def try_with(program, runs, variable, value):
    """How the program fares with the mistake in the runs that come to it: "" without any, else what it said."""
    survived = ""
    for flags in runs:
        ran = run(program, flags, **{variable: value})
        if f"{value}\n" not in ran.stderr:
            sys.exit(f"{program} {' '.join(flags)} does not say that it made the mistake {variable}={value}")
        if ran.returncode == 1:
            return f"exit 1  {ran.stderr.strip().splitlines()[-1]}"
        survived = "SURVIVES"
    return survived


def runs_of(program):
    """The runs that meet a program's mistakes; none, where the executor does not run it."""
    described = json.loads(subprocess.run([program, "--describe"], capture_output=True, text=True, check=True).stdout)
    if not described["devices"]["cpu"]:
        return []
    return [*RUNS, *([technique["option"]] for technique in described["techniques"])]


def to_try(programs, pool):
    """(mistake, program, the flags of those of its runs that come to the mistake) of each mistake and program."""
    runs = [(program, flags) for program in programs for flags in runs_of(program)]
    come_to = list(zip(runs, pool.map(lambda run: places(*run), runs)))
    return [
        (
            mistake,
            program,
            [flags for (who, flags), found in come_to if who == program and re.sub(r"[+-]1$", "", mistake[3]) in found],
        )
        for mistake in mistakes()
        for program in programs
        if not mistake[0].name.startswith("step") or mistake[0].name.startswith(program.name)
    ]


def why_harmless(mistake):
    """The reason of HARMLESS, or None."""
    source, context, variable, _ = mistake
    named = (variable, source.name)
    return next((why for *known, end, why in HARMLESS if tuple(known) == named and context.endswith(end)), None)


def main(folder):
    programs = sorted(pathlib.Path(folder).resolve().glob("step[0-9][0-9]"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = to_try(programs, pool)
        outcomes = list(pool.map(lambda job: try_with(job[1], job[2], *job[0][2:]), jobs))
    reached, survivors, harmless = set(), [], 0
    for (mistake, program, _), outcome in zip(jobs, outcomes):
        variable, value = mistake[2:]
        name, reason = program.name, why_harmless(mistake)
        if outcome:
            reached.add((variable, value))
            why = f" (harmless: {reason})" if reason and outcome == "SURVIVES" else ""
            print(f"{variable}={value} {name}: {outcome}{why}")
        if outcome == "SURVIVES" and not reason:
            survivors.append(f"{variable}={value} ({name})")
        harmless += outcome == "SURVIVES" and reason is not None
    never = [f"{variable}={value}" for _, _, variable, value in mistakes() if (variable, value) not in reached]
    if survivors or never:
        sys.exit(
            "".join(f"no run notices {mistake}\n" for mistake in survivors)
            + "".join(f"no run comes to {mistake}\n" for mistake in never)
        )
    print(f"{len(reached)} mistakes, one at a time: {len(reached) - harmless} noticed, {harmless} harmless")


if __name__ == "__main__":
    main(*sys.argv[1:])
