#!/usr/bin/env python3
"""What tests/gpu.sh does once everything is built: runs the steps on a GPU and prints one table.

    python3 tests/gpu_round.py --folder build-gpu --out build-gpu/gpu-round

Needs the standard library only; PyTorch, ncu and compute-sanitizer are used where they are. With two GPUs or more, what is only right
or wrong runs on the second while the first one measures.
"""
import argparse
import concurrent.futures
import copy
import functools
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "plots"))
from script import OneLineParser

STEPS = ("step01", "step02", "step03", "step04", "step05")
IN_HALF = (*STEPS, "step06")  # which has fp16 and bf16 alone
HOPPER = ("step07", "step08")  # likewise, and head_dim 64 and 128 alone, on a Hopper GPU
SPLIT = "fp32 on tensor cores"
LONG_SHAPES = (("B1 H32 N16384 d64", 1, 32, 16384, 64), ("B1 H16 N16384 d128", 1, 16, 16384, 128))
SHORT_SHAPES = (("B4 H32 N1024 d64", 4, 32, 1024, 64), ("B4 H16 N1024 d128", 4, 16, 1024, 128))
PEER_SHAPES = (("B4 H32 N4096 d64", 4, 32, 4096, 64), ("B4 H16 N4096 d128", 4, 16, 4096, 128))


def dtype_flags(dtype):
    return ["--dtype", "fp32", "--product", "tensor-cores"] if dtype == SPLIT else ["--dtype", dtype]


@functools.cache
def hopper():
    """The Hopper steps that run on the first GPU: both or none."""
    found = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True).stdout.split()
    return HOPPER if found[:1] == ["9.0"] else ()


def steps_of(dtype):
    return (*IN_HALF, *hopper()) if dtype in ("fp16", "bf16") else STEPS


def second_gpu():
    """The second GPU that CUDA sees, as CUDA_VISIBLE_DEVICES names it; None where there is one alone."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True).stdout.split()
        visible = ",".join(str(n) for n in range(len(listed)))
    return visible.split(",")[1] if "," in visible else None


class Round:
    ctest_lock = threading.Lock()  # two ctests of one build folder would write the same log

    def __init__(self, folder, out):
        self.folder, self.out, self.lines, self.failures, self.gpu = folder.resolve(), out, [], [], None

    def on(self, gpu):
        """This round, with its lines, on another GPU than the first."""
        other = copy.copy(self)
        other.gpu = gpu
        return other

    def call(self, command, timeout=300):
        """(exit code, stdout, stderr, seconds)."""
        started = time.monotonic()
        environment = None if self.gpu is None else os.environ | {"CUDA_VISIBLE_DEVICES": self.gpu}
        try:
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout, env=environment)
            return done.returncode, done.stdout, done.stderr, time.monotonic() - started
        except subprocess.TimeoutExpired:
            return 124, "", f"longer than {timeout} s", timeout

    def run(self, step, *flags, timeout=300):
        """Runs a step on the GPU; returns its JSON (None when there is none), its exit code and stderr. The counters stay off
        unless --traffic is among the flags: one process at a time may hold them, and several run at once here."""
        traffic = [] if "--traffic" in flags else ["--traffic", "off"]
        code, stdout, stderr, seconds = self.call([self.folder / step, "--device", "gpu", *flags, *traffic, "--json", "-"], timeout)
        with open(self.out / "steps.log", "a") as log:
            log.write(f"$ {step} {' '.join(map(str, flags))}   exit {code}, {seconds:.1f} s\n{stderr}\n")
        return (json.loads(stdout) if stdout.strip().startswith("{") else None), code, stderr

    def goal(self, name, value, goal, text):
        """A line of a speed that should be reached beside a rival's; 7 % below it is a miss, and less is a failure."""
        state = "ok" if value >= goal else "missed" if value >= 0.93 * goal else False
        self.line(name, state, f"{text}, goal {goal}")

    def line(self, name, passed, text):
        """passed: True, False, None (not judged) or "missed"."""
        self.lines.append((name, {True: "ok", False: "FAILED", None: "n/a"}.get(passed, passed), text))
        print(f"{self.lines[-1][1]:7} {name}: {text}", flush=True)
        if passed is False:
            self.failures.append(name)


def worst(run):
    return max(check["worst"] if check["worst"] is not None else float("inf") for method in run["methods"] for check in method["exactness"])


def exactness(round_):
    """Every step. fp32: default inputs and abs, N = 64 ... 16384; fp16 and bf16: default inputs, N = 1000, 4096; fp32 on tensor cores: also
    abs and large scores, up to 16384. d 64 and 128, causal or not."""
    # step01 and step02 hold S and P: 2 heads at N=16384 are 4 GB.
    both = ((64, 128), (False, True))
    cases = [("fp32", *rest) for rest in itertools.product(STEPS, (64, 1000, 4096, 16384), *both, ("randn", "abs"))]
    cases += [(dtype, *rest) for dtype in ("fp16", "bf16") for rest in itertools.product(steps_of(dtype), (1000, 4096), *both, ("randn",))]
    cases += [(SPLIT, *rest) for rest in itertools.product(STEPS, (1000, 4096, 16384), *both, ("randn",))] + [(SPLIT, *rest) for rest in itertools.product(STEPS, (4096, 16384), *both, ("abs", "randn:4"))]

    def one(case):
        dtype, step, n, d, causal, init = case
        flags = [*dtype_flags(dtype), "--heads", 2, "--seqlen", n, "--head-dim", d, "--init", init, "--repeat", 2] + (["--causal"] if causal else [])
        run, code, stderr = round_.run(step, *flags)
        return case, code, worst(run) if run and code == 0 else None, stderr

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        results = list(pool.map(one, cases))
    for kind in (("fp32", "randn"), ("fp32", "abs"), ("fp16", "randn"), ("bf16", "randn"), (SPLIT, "randn"), (SPLIT, "abs"), (SPLIT, "randn:4")):
        mine = [result for result in results if (result[0][0], result[0][5]) == kind]
        for case, code, _, stderr in mine:
            if code != 0:
                print(f"    {case}: exit {code} {stderr.strip().splitlines()[-1:]}")
        by_step = {step: max((w for case, _, w, _ in mine if case[1] == step and w is not None), default=float("nan")) for step in steps_of(kind[0])}
        round_.line(f"exactness, {kind[0]} {kind[1]}", all(code == 0 for _, code, _, _ in mine),
                    f"{len(mine)} runs; worst share of the allowance: " + "  ".join(f"{s} {w:.2f}" for s, w in by_step.items()))


def long_sequence(round_, step, heads, causal):
    run, code, stderr = round_.run(step, "--seqlen", 131072, "--heads", heads, "--repeat", 1, "--check", "sample:64", *(["--causal"] if causal else []))
    text = f"exit {code}" if not run else f"{run['verdict']}, worst {worst(run):.2f}, extra memory {run['memory']['extra_bytes']} bytes, {run['exactness'][0]['checked']} elements of o checked"
    extra = heads * 131072 * 4 * (1 if step == "step04" else 2)
    round_.line(f"{step} N=131072 H{heads}{' causal' if causal else ''}", code == 0 and run["memory"]["extra_bytes"] == extra, text)


def standard_backward_too_large(round_):
    run, code, _ = round_.run("step05", "--seqlen", 131072, "--heads", 16, "--repeat", 1, "--check", "none")
    standard = next((m for m in run["methods"] if m["name"] == "standard backward"), None) if run else None
    round_.line("step05 N=131072 H16", code == 0 and standard is not None and not standard["ran"], f"exit {code}, standard backward: {standard and (standard.get('not_run') or standard.get('time_reason'))}")


def pairs_too_large(round_):
    started = time.monotonic()
    _, code, stderr = round_.run("step01", "--seqlen", 131072, "--heads", 16)
    round_.line("step01 N=131072 H16", code == 4 and "2199023255552" in stderr and time.monotonic() - started < 5, f"exit {code} after {time.monotonic() - started:.1f} s: {stderr.strip()}")
    run, code, stderr = round_.run("step01", "--seqlen", 16384, "--heads", 8, "--check", "sample:64", "--repeat", 1)
    round_.line("step01 2^31 elements of S", code == 0, f"exit {code}, worst {worst(run) if run else None}")
    run, code, _ = round_.run("step05", "--seqlen", 1024, "--heads", 2, "--head-dim", 128, "--causal", "--init", "randn:3", "--repeat", 30)
    round_.line("step05 30 repeats", code == 0, f"exit {code}: every gradient bitwise equal" if code == 0 else f"exit {code}")


EDGES = (["--batch", 4096, "--heads", 16, "--seqlen", 16, "--head-dim", 32, "--check", "sample:64"], ["--seqlen", 2048, "--heads", 32, "--check", "sample:64"],
         ["--seqlen-q", 2048, "--seqlen-k", 1024, "--heads", 2, "--causal"], ["--seqlen-q", 1001, "--seqlen-k", 503, "--heads", 2], ["--seqlen", 130, "--heads", 2, "--head-dim", 256],
         ["--seqlen", 130, "--heads", 2, "--head-dim", 63, "--causal"], ["--seqlen", 1, "--heads", 1, "--init", "const:133120"], ["--seqlen", 77, "--heads", 2, "--causal", "--repeat", 50])


def edges(round_):
    bad = []
    cases = list(itertools.product(STEPS, EDGES)) + [("step06", [*flags, "--dtype", "bf16"]) for flags in EDGES if 63 not in flags]
    cases += [(step, [*flags, "--dtype", "bf16"]) for step in hopper() for flags in (*EDGES, ["--batch", 4096, "--heads", 16, "--seqlen", 16, "--check", "sample:64"]) if "--head-dim" not in flags]
    for step, flags in cases:
        _, code, stderr = round_.run(step, *flags, *([] if "--repeat" in flags else ["--repeat", 2]))
        if code != 0:
            bad.append(f"{step} {' '.join(map(str, flags))}: exit {code} {stderr.strip().splitlines()[-1:]}")
    round_.line("edges", not bad, "; ".join(bad) or "B*H = 65536, rows without a key, d 63 (not step06) and 256 (neither for Hopper's steps), huge equal scores, 50 repeats: every step")


def special(round_):
    """What needs a large GPU, and the shapes at the edges."""
    tasks = [lambda: standard_backward_too_large(round_), lambda: long_sequence(round_, "step04", 16, False), lambda: long_sequence(round_, "step05", 2, False),
             lambda: long_sequence(round_, "step04", 2, True), lambda: long_sequence(round_, "step05", 2, True), lambda: pairs_too_large(round_), lambda: edges(round_)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda task: task(), tasks))


def roofline(round_):
    """step00 first: the other steps' predictions come from what it measures."""
    code, stdout, stderr, seconds = round_.call([round_.folder / "step00", "--json", "-"])
    (round_.out / "step00.json").write_text(stdout)
    (round_.out / "step00.log").write_text(stderr)
    round_.line("step00", code == 0, f"exit {code} after {seconds:.0f} s")


def sanitizer(round_):
    if not shutil.which("compute-sanitizer"):
        return round_.line("compute-sanitizer", None, "not on this machine")
    cases = list(itertools.product(("memcheck", "racecheck", "synccheck", "initcheck"), STEPS, (("fp32", False), ("fp32", True), ("fp16", True))))
    cases += list(itertools.product(("memcheck", "racecheck", "synccheck", "initcheck"), ("step06",), (("fp16", False), ("fp16", True))))
    # racecheck sees neither the copy engine nor the warpgroup products, so that it would say nothing of Hopper's steps.
    cases += list(itertools.product(("memcheck", "synccheck", "initcheck"), hopper(), (("fp16", False), ("fp16", True))))

    def one(case):
        tool, step, (dtype, causal) = case
        flags = ["--device", "gpu", "--dtype", dtype, "--seqlen", 77, "--heads", 2, "--head-dim", 64, "--repeat", 1, "--traffic", "off"] + (["--causal"] if causal else [])
        code, stdout, stderr, _ = round_.call(["compute-sanitizer", "--tool", tool, "--error-exitcode", 9, round_.folder / step, *flags], 280)
        return case, code, stdout + stderr

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        results = list(pool.map(one, cases))
    with open(round_.out / "sanitizer.log", "w") as log:
        log.writelines(f"==== {case} exit {code}\n{text}\n" for case, code, text in results)
    for tool in ("memcheck", "racecheck", "synccheck", "initcheck"):
        bad = [f"{case[1]} {case[2]} exit {code}" for case, code, _ in results if case[0] == tool and code != 0]
        round_.line(f"compute-sanitizer {tool}", not bad, ", ".join(bad) or f"clean in {sum(case[0] == tool for case, _, _ in results)} runs (N=77 d=64, five steps: fp32, fp32 causal, fp16 causal; step06{'' if tool == 'racecheck' or not hopper() else ', step07, step08'}: fp16, causal or not)")


def counters(round_):
    """Loads of step04 by the hardware counter against the formula, where rows are multiples of 32 bytes."""
    if not shutil.which("ncu"):
        return round_.line("requested bytes by counter", None, "ncu is not on this machine")
    for step, kernel, flags in (("step04", "attention", ["--seqlen", 1000, "--heads", 4, "--causal"]), ("step03", "attention", ["--seqlen", 1000, "--heads", 4]),
                                ("step02", "scores", ["--seqlen", 1024, "--heads", 4]), ("step02", "values", ["--seqlen", 1024, "--heads", 4])):
        metric = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
        code, stdout, stderr, _ = round_.call(["ncu", "--clock-control", "none", "--csv", "--metrics", metric, "-k", f"regex:^{kernel}", "-c", 1, round_.folder / step,
                                        "--device", "gpu", *flags, "--check", "none", "--repeat", 1, "--traffic", "off"], 200)
        rows = [line for line in stdout.splitlines() if metric in line]
        if not rows:
            round_.line("requested bytes by counter", None, f"ncu gave no figure: {(stdout + stderr).strip().splitlines()[-1:]}")
            return
        measured = int(float(rows[0].rsplit('","', 1)[1].strip('"').replace(",", ""))) * 32
        run, _, _ = round_.run(step, *flags, "--plan")
        expected = next(k["requested_expected_bytes"]["load"] for k in run["kernels"] if k["name"] == kernel)
        round_.line(f"loads of {step} {kernel}", measured == expected, f"counter {measured}, formula {expected} bytes ({' '.join(map(str, flags))})")


def traffic(round_):
    """Measured bytes beside expected ones, from the counters that each step reads itself; and what shows when it may not."""
    measure = ["--traffic", "auto", "--check", "none", "--repeat", 1]
    limits = {("fp32", "step02"): 0.03, ("fp32", "step03"): 0.10, ("fp32", "step04"): 0.10,  # fp32: spills may reach memory
              ("fp16", "step02"): 0.03, ("fp16", "step04"): 0.02, ("fp16", "step06"): 0.02, ("fp16", "step07"): 0.02, ("fp16", "step08"): 0.02}  # step01 moves partial lines
    for dtype, (shape, b, h, n, d) in itertools.product(("fp32", "fp16"), PEER_SHAPES):
        name = f"{dtype}, {shape}"
        for step in steps_of(dtype):
            run, code, stderr = round_.run(step, "--dtype", dtype, "--batch", b, "--heads", h, "--seqlen", n, "--head-dim", d, *measure)
            if not run:
                round_.line(f"traffic of {step}, {name}", False, f"exit {code}: {stderr.strip().splitlines()[-1:]}")
                continue
            for method in run["methods"]:
                bytes_ = method["traffic"]
                where = f"traffic of {step} {method['name']}, {name}"
                if bytes_["hbm_measured_bytes"] is None:
                    round_.line(where, None, bytes_["hbm_measured_reason"] if "hbm_measured_reason" in bytes_ else "no reason")
                    continue
                ratio = bytes_["hbm_measured_bytes"] / bytes_["hbm_expected_bytes"]
                loads = (bytes_["requested_measured_bytes"] or {}).get("load")
                round_.line(where, abs(ratio - 1) <= limits[dtype, step] if (dtype, step) in limits else None,
                            f"HBM {bytes_['hbm_measured_bytes']} measured, {bytes_['hbm_expected_bytes']} expected ({ratio:.3f}); loads {loads}, formula {bytes_['requested_expected_bytes']['load']}; "
                            f"L2→SM {bytes_['l2_to_sm_measured_bytes']}; spills {bytes_['spill_bytes']}")
                if step in ("step02", "step03", "step04") and loads is not None:
                    round_.line(f"loads to the byte, {step}, {name}", loads == bytes_["requested_expected_bytes"]["load"], f"{loads - bytes_['requested_expected_bytes']['load']:+} bytes")
                if step in HOPPER and bytes_["l2_to_sm_measured_bytes"] is not None:  # step08 also counts tiles, by atomics
                    extra = bytes_["l2_to_sm_measured_bytes"] - bytes_["requested_expected_bytes"]["load"]
                    round_.line(f"L2→SM to the byte, {step}, {name}", extra == 0 if step == "step07" else abs(extra) <= 0.001 * bytes_["requested_expected_bytes"]["load"], f"{extra:+} bytes beside what it asks for")
    run, code, _ = round_.run("step02", "--heads", 1, "--seqlen", 2048, *measure)
    if run:
        bytes_ = run["traffic"]
        fits = 2048 * 2048 * 4 <= run["l2_bytes"]
        round_.line("S in the L2", code == 0 and bool(bytes_["cache_regime"]) == fits, f"{bytes_['cache_regime']}: {bytes_['hbm_measured_bytes']} measured, {bytes_['hbm_expected_bytes']} expected")
    code, stdout, stderr, _ = round_.call(["env", "ATTN_CUPTI_FAKE_ERROR=35", round_.folder / "step04", "--device", "gpu", "--seqlen", 512, "--heads", 2])
    round_.line("counters refused", code == 0 and "n/a (no permission" in stdout, f"exit {code}")
    code, stdout, stderr, _ = round_.call(["env", "ATTN_CUPTI_LIBRARY=/no/such/libcupti.so", round_.folder / "step04", "--device", "gpu", "--seqlen", 512, "--heads", 2])
    round_.line("libcupti hidden", code == 0 and "n/a (" in stdout, f"exit {code}")


def beside_cudnn(round_, name, n, d, times):
    """Hopper's steps beside PyTorch's cuDNN, one shape."""
    goals = {("step07", 4096, 64): 1.05, ("step07", 4096, 128): 0.93, ("step08", 4096, 64): 1.05, ("step08", 4096, 128): 1.0, ("step08", 16384, 64): 1.15, ("step08", 16384, 128): 1.03}
    best = {}
    for step, label in itertools.product(hopper(), ("", " causal")):
        if f"SDPA cuDNN{label}" not in times:
            round_.line(f"{step}{label} beside cuDNN, {name}", None, "PyTorch has no cuDNN attention here")
            continue
        ms, rival = times[f"{step}{label}"], times[f"SDPA cuDNN{label}"]
        if label:
            best[step] = rival / ms
        text = f"{ms:.3f} ms, {rival / ms:.3f} of cuDNN's speed ({rival:.3f} ms)"
        if (step, n, d) in goals and not label:
            round_.goal(f"{step} beside cuDNN, {name}", rival / ms, goals[step, n, d], text)
        else:
            round_.line(f"{step}{label} beside cuDNN, {name}", None, text)
    if best and n == 4096:
        round_.goal(f"the better of the two causal beside cuDNN, {name}", max(best.values()), 1.05 if d == 64 else 1.03, f"{max(best.values()):.3f}")


def techniques(round_, name, flags):
    """What each technique of step08 is worth, one shape."""
    times = {}
    for left_out in ("", "pingpong", "overlap", "persistent"):
        run, code, stderr = round_.run("step08", *flags, *([f"--no-{left_out}"] if left_out else []))
        if not run:
            return round_.line(f"step08 without {left_out or 'nothing'}, {name}", False, f"exit {code}: {stderr.strip().splitlines()[-1:]}")
        times[left_out] = run["time"]["median_ms"]
        if left_out:
            round_.line(f"step08 without {left_out}, {name}", None, f"{times[left_out]:.3f} ms, with it {times['']:.3f} ms, worst {worst(run):.2f}")


def split_product(round_, name, n, d, flops, times):
    """fp32 on tensor cores beside PyTorch's efficient attention and, where it was timed, its three lines; one shape."""
    for label in ("", " causal"):
        ms, rival = times[f"step04 on tensor cores{label}"], times[f"SDPA efficient{label}"]
        where = f"step04{label} {SPLIT}, {name}"
        headline = "eager" in times and not label
        text = f"{ms:.2f} ms, {flops / (2 if label else 1) / ms / 1e9:.1f} TFLOP/s, {rival / ms:.2f}x fused ({rival:.2f} ms)"
        if n < 4096 and label:
            round_.line(f"{where}, over fused", None, text)
        else:
            round_.goal(f"{where}, over fused", rival / ms, (2.7 if d == 64 else 2) if headline else 2, text)
        if headline:
            round_.goal(f"{where}, TFLOP/s", flops / ms / 1e9, 95 if d == 64 else 90, text)
            round_.goal(f"{where}, over eager", times["eager"] / ms, 4 if d == 64 else 2.7, f"{times['eager'] / ms:.2f}x eager ({times['eager']:.2f} ms)")
    if "eager backward" in times:
        back = times["step05 recompute on tensor cores backward"]
        round_.goal(f"step05 {SPLIT}, {name}, over eager's backward", times["eager backward"] / back, 1.5,
                    f"{back:.2f} ms, {2.5 * flops / back / 1e9:.1f} TFLOP/s, {times['eager backward'] / back:.2f}x eager backward ({times['eager backward']:.2f} ms)")


def speed_fp32(round_):
    speed(round_, "fp32", (*LONG_SHAPES, *SHORT_SHAPES))


def speed_fp16(round_):
    speed(round_, "fp16", LONG_SHAPES)


def speed(round_, dtype, other_shapes):
    """Every step beside PyTorch's three lines and its fused kernel (fp32: efficient, TF32 off; fp16: FlashAttention-2). What is judged beside a fused
    kernel, and the backward, runs in turn with it (pytorch_times.py); the first steps are timed by their own executables."""
    script = pathlib.Path(__file__).resolve().with_name("pytorch_times.py")
    code, stdout, stderr, _ = round_.call([sys.executable, script, dtype, round_.folder / "libattention_steps.so", *(json.dumps([shape[1:] for shape in shapes]) for shapes in (PEER_SHAPES, other_shapes))])
    if code != 0:
        return round_.line(f"speed beside PyTorch, {dtype}", None if "PyTorch is not installed" in stderr else False, f"not run: {stderr.strip().splitlines()[-1:]}")
    beside = json.loads(stdout)
    (round_.out / f"times_{dtype}.json").write_text(stdout)
    fused = {"fp32": "SDPA efficient", "fp16": "SDPA flash"}[dtype]
    for name, b, h, n, d in PEER_SHAPES:
        times, flops = beside[f"{b} {h} {n} {d}"], 4 * b * h * n * n * d
        flags = ["--dtype", dtype, "--batch", b, "--heads", h, "--head-dim", d, "--check", "sample:64"]
        shape = f"{dtype}, {name}"
        runs = {step: round_.run(step, "--seqlen", n, *flags)[0] for step in STEPS if step not in times}
        if not all(runs.values()):
            round_.line(f"speed, {shape}", False, "a step did not run")
            continue
        ms = {step: run["time"]["median_ms"] for step, run in runs.items()} | {step: times[step] for step in steps_of(dtype) if step in times}
        for step in sorted(step for step in ms if step != "step05"):
            goal = None
            if dtype == "fp32" and step == "step02":
                goal = ms[step] <= 1.2 * times["eager"]
            if dtype == "fp32" and step == "step04":
                goal = flops / ms[step] / 1e9 >= 36 and times["eager"] / ms[step] >= (1.6 if d == 64 else 1.15)
            if dtype == "fp16" and step == "step02":
                goal = ms[step] <= times["eager"]
            if dtype == "fp16" and step == "step04":
                goal = times["eager"] / ms[step] >= (4.5 if d == 64 else 2.7) and times[fused] / ms[step] >= 0.8
            if step in HOPPER:
                goal = times["eager"] / ms[step] >= (8 if d == 64 else 5.5) or "missed"
            if step == "step06":
                goal = (times["eager"] / ms[step] >= (5 if d == 64 else 3.4) and times[fused] / ms[step] >= 1) or "missed"
            round_.line(f"{step} {shape}", goal, f"{ms[step]:.2f} ms, {flops / ms[step] / 1e9:.1f} TFLOP/s, {times['eager'] / ms[step]:.2f}x eager ({times['eager']:.2f} ms), "
                        f"{times[fused] / ms[step]:.2f}x fused ({times[fused]:.2f} ms)")
        for step in (step for step in ms if f"{step} causal" in times):
            ratio = times[f"{fused} causal"] / times[f"{step} causal"]
            goal = ratio >= 0.75 if step == "step04" else ratio >= 1 or "missed"
            round_.line(f"{step} causal {shape}", goal, f"{times[f'{step} causal']:.2f} ms, {ratio:.2f}x fused ({times[f'{fused} causal']:.2f} ms)")
        if dtype == "fp16":
            beside_cudnn(round_, name, n, d, times)
            if hopper():
                techniques(round_, name, ["--seqlen", n, *flags])
            standard, recompute, eager = (times[f"{method} backward"] for method in ("step05 standard", "step05 recompute", "eager"))
            round_.line(f"step05 {shape}", recompute < standard and recompute <= eager * (1 if d == 64 else 1.5),
                        f"standard backward {standard:.2f} ms  recompute backward {recompute:.2f} ms  eager backward {eager:.2f} ms")
            continue
        back = {m["name"]: m["time"]["median_ms"] for m in runs["step05"]["methods"] if m["time"]}
        round_.line(f"step05 {shape}", None, "  ".join(f"{m} {t:.2f} ms" for m, t in back.items()) + f"  eager backward {times['eager backward']:.2f} ms")
        split_product(round_, name, n, d, flops, times)
        kernel_ms = {(step, k["name"]): k["time_ms"] for step in ("step01", "step02") for k in runs[step]["kernels"]}
        for kernel in ("scores", "values"):
            first, second = kernel_ms["step01", kernel], kernel_ms["step02", kernel]
            round_.line(f"{kernel} in 01 and 02, {name}", abs(first / second - 1) < 0.05, f"{first:.2f} and {second:.2f} ms")
        for step in ("step03", "step04", "step05"):
            ragged = round_.run(step, "--seqlen", n - 1, *flags)[0]
            ratio = ragged["time"]["median_ms"] / ms[step]
            round_.line(f"{step} N={n - 1}, {name}", ratio <= 1.1, f"{ratio:.3f} of the time of N={n}")
    for name, b, h, n, d in other_shapes:
        times = beside[f"{b} {h} {n} {d}"]
        if dtype == "fp32":
            split_product(round_, name, n, d, 4 * b * h * n * n * d, times)
        else:
            beside_cudnn(round_, name, n, d, times)


def ctest(round_, name, *flags):
    with round_.ctest_lock:
        code, stdout, stderr, _ = round_.call(["ctest", "--test-dir", round_.folder, *flags, "--no-tests=error", "--output-on-failure"], 500)
    (round_.out / f"{name}.log").write_text(stdout + stderr)
    lines = stdout.splitlines()
    round_.line(name, code == 0, next((line for line in lines if "tests passed" in line), "no summary"))
    for line in lines:
        if any(word in line for word in ("***", "FAILED", "Skipped")):
            print("   ", line)


def tests_alone(round_):
    """The tests that measure the GPU."""
    ctest(round_, "ctest, alone on the GPU", "-L", "alone")


def tests(round_):
    """All other tests."""
    ctest(round_, "ctest", "-j", 6, "-LE", "alone")


# Times and counters need a GPU alone; right or wrong does not depend on what else it is doing. step00 comes before all: every step
# reads what it stores.
FIRST, ALONE, TOGETHER = (roofline,), (speed_fp32, speed_fp16, counters, traffic, tests_alone), (tests, special, exactness, sanitizer)


def main():
    parts = {part.__name__: part for part in FIRST + ALONE + TOGETHER}

    def named(text):
        for name in text.split(","):
            if name not in parts:
                raise argparse.ArgumentTypeError(f"no part {name!r}; there are {', '.join(parts)}")
        return text.split(",")

    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", type=named, default=list(parts), metavar="PART,...", help=f"of {', '.join(parts)}")
    options = parser.parse_args()
    round_ = Round(options.folder, options.out)

    def run_part(part, on):
        started = time.monotonic()
        part(on)
        print(f"        {part.__name__} took {time.monotonic() - started:.0f} s", flush=True)

    def run_together(parts, on):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda part: run_part(part, on), parts))

    chosen = lambda parts: [part for part in parts if part.__name__ in options.only]
    for part in chosen(FIRST):
        run_part(part, round_)
    second = second_gpu()
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        others = beside.submit(run_together, chosen(TOGETHER), round_.on(second)) if second else None
        for part in chosen(ALONE):
            run_part(part, round_)
        if others:
            others.result()
    if not second:
        run_together(chosen(TOGETHER), round_)
    print()
    for name, state, text in round_.lines:
        print(f"{state:7} {name:34} {text}")
    missed = [name for name, state, _ in round_.lines if state == "missed"]
    left_out = [name for name in parts if name not in options.only]
    print("\nnot in this round: " + ", ".join(left_out) if left_out else "")
    print(f"{len(missed)} goals missed: {', '.join(missed) or 'none'}")
    print(f"{len(round_.failures)} failed" + (": " + ", ".join(round_.failures) if round_.failures else ""))
    sys.exit(1 if round_.failures else 0)


if __name__ == "__main__":
    main()
