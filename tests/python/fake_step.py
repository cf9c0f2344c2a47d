"""Stands for a program of a build: prints a GPU's --json with figures that follow from the flags alone, so that
measuring is tested without a GPU. A wrapper script gives its name first: fake_step.py step04 --json - --dtype fp16 ...

Each call is noted in FAKE_STEP_LOG. FAKE_STEP_WRONG names a step whose result is wrong, FAKE_STEP_CRASH one that the
counters end, FAKE_STEP_TOO_LARGE the seqlen from which step01 and step02 do not fit."""

import argparse
import json
import os
import sys

NAME, FLAGS = sys.argv[1], sys.argv[2:]
METHODS = {
    "step00": [],
    "step05": [("forward", False), ("standard backward", True), ("recompute backward", True)],
    "step42": [("throw-away backward", True)],
}.get(NAME, [("forward", False)])
MS = {
    "step01": 800,
    "step02": 400,
    "step04": 100,
    "yardstick": 200,
    "standard backward": 600,
    "recompute backward": 150,
}
PROBLEM = ("dtype", "batch", "heads", "seqlen", "head_dim")


def description():
    dtypes = ["fp16"] if NAME == "step42" else ["fp32", "fp16"]
    products = {"fp32": ["cuda-cores"] + ["tensor-cores"] * (NAME != "yardstick"), "fp16": ["tensor-cores"]}
    return {
        "id": NAME,
        "kind": {"step00": "device", "yardstick": "yardstick"}.get(NAME, "attention"),
        "title": f"title of {NAME}",
        "methods": [{"name": name, "backward": backward} for name, backward in METHODS],
        "passes": sorted({"backward" if backward else "forward" for _, backward in METHODS}, reverse=True),
        "dtypes": dtypes,
        "default_dtype": dtypes[0],
        "techniques": [{"option": "--no-trick"}] if NAME == "step42" else [],
        "products": {dtype: products[dtype] for dtype in dtypes},
        "devices": {"cpu": NAME != "yardstick", "gpu": {"compiled": True}},
        "head_dims": dict.fromkeys(["fp32 on tensor cores", *dtypes], {"any_up_to": 128}),
    }


def device():
    commit = os.environ.get("FAKE_STEP_COMMIT", "abc123") or None
    versions = {"git_commit": commit, "cuda_toolkit": "13.0", "compiler": "made up 1"}
    return {
        "gpu": {"name": "NVIDIA Made Up 1"},
        "bytes_per_second": {"hbm_copy": 1.5e12},
        "findings": ["kept in /home/a"],
        "tile_products": [{"dtype": "fp32"}, {"dtype": "fp16"}],
        "versions": versions if commit else {**versions, "git_commit_reason": "no git here"},
    }


def method(name, backward, options, wrong):
    ms = MS.get(NAME, MS.get(name, 300)) * options.seqlen / 4096 / (2 if options.product == "tensor-cores" else 1)
    reason = {"hbm_measured_reason": "counters are off"} if options.traffic == "off" else {}
    check = {"pass": not wrong, "worst": 0.5, "reason": "worst at 1,2,3"}
    time = {"median_ms": ms, "p10_ms": ms - 1, "p90_ms": ms + 1, "runs": 20, "emulated": False, "tflops": 1000 / ms}
    traffic = {
        "requested_expected_bytes": {"load": 3000, "store": 1000},
        "hbm_expected_bytes": 5_000_000,
        "hbm_at_least": NAME == "step01",
        "hbm_measured_bytes": None if reason else 5_100_000,
        **reason,
        "requested_measured_bytes": None,
        "requested_measured_reason": "counters are off",
        "l2_to_sm_measured_bytes": 7,
        "spill_bytes": {"load": 0, "store": 0},
        "by_tensor": {"Q": {"hbm_expected_bytes": {"load": 10, "store": 2}}, "local": {}},
    }
    kernel = {"name": "attention", "time_ms": ms, "executed_flops": 22, "hbm_expected_bytes": 5_000_000}
    return {
        "name": name,
        "backward": backward,
        "ran": True,
        "exactness": [
            {"output": "dq", "relative_l2": 1e-3, "max_abs": 2e-3, **check},
            {"output": "dk", "relative_l2": 3e-3, "max_abs": 6e-3, **check},
        ],
        "traffic": traffic,
        "time": None if wrong else {**time, "predicted_ms": None, "predicted_ms_reason": "no figures"},
        "flops": {"useful": 11, "executed": 22},
        "memory": {"extra_bytes": 4096, "grows": "N"},
        "kernels": [{**kernel, "hbm_measured_bytes": None}],
    }


def main():
    if "--describe" in FLAGS:
        return print(json.dumps(description()))
    parser = argparse.ArgumentParser()
    for flag in ("--json", "--dtype", "--product", "--device", "--check", "--traffic", "--repeat", "--init"):
        parser.add_argument(flag)
    for flag in ("--batch", "--heads", "--seqlen", "--seqlen-q", "--seqlen-k", "--head-dim"):
        parser.add_argument(flag, type=int, default=4096 if flag == "--seqlen" else 1)
    for flag in ("--causal", "--sweep-tiles", "--no-trick"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args(FLAGS)
    if any(FLAGS.count(flag) > 1 for flag in FLAGS if flag.startswith("--")):
        sys.exit("a flag stands twice")
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" and options.device == "gpu":
        sys.exit(3)
    with open(os.environ["FAKE_STEP_LOG"], "a", encoding="utf-8") as log:
        log.write(" ".join(sys.argv[1:]) + "\n")
    wrong = os.environ.get("FAKE_STEP_WRONG") == NAME
    if NAME == "step00":
        return print(json.dumps(device()))
    if NAME in ("step01", "step02") and options.seqlen >= int(os.environ.get("FAKE_STEP_TOO_LARGE", 1 << 40)):
        print(f"a line before it\n{NAME}: S and P need 9 bytes, 8 are free; step03 needs none of them", file=sys.stderr)
        sys.exit(4)
    if options.sweep_tiles:
        if wrong:
            sys.exit("a tile's result was wrong")
        sizes = {key: getattr(options, key) for key in (*PROBLEM, "causal")}
        return print(json.dumps({"step": NAME, "gpu": "NVIDIA Made Up 1", "best": "64x64", **sizes}))
    if os.environ.get("FAKE_STEP_CRASH") == NAME and options.traffic != "off":
        os.abort()
    tile = {"tile": None, "tile_reason": "a library's"} if NAME == "yardstick" else {"tile": "128x64"}
    methods = [method(*names, options, wrong) for names in METHODS]
    told = {"step": NAME, "title": f"title of {NAME}", "verdict": "FAIL" if wrong else "PASS", "failures": []}
    print(json.dumps({**told, **tile, "methods": methods}))
    sys.exit(1 if wrong else 0)


main()
