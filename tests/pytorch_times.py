#!/usr/bin/env python3
"""Times of PyTorch's attention and of the steps that are judged beside it, for tests/gpu_round.py: in one process, on the same tensors, a run of
each in turn, as plots/compare_pytorch.py measures (medians, the L2 flushed before each run).

    python3 tests/pytorch_times.py fp16 build-gpu/libattention_steps.so '[[4, 32, 4096, 64], ...]' '[...]'          batch, heads, N, head_dim of each shape

Prints {"4 32 4096 64": {"eager": ms, "eager backward": ms, "SDPA flash": ms, "SDPA flash causal": ms, "step04": ms, ...}, ...}. The second list of
shapes is measured with fewer methods (METHODS below). What this GPU or this PyTorch does not have is missing; a step of ours that fails ends everything.
"""
import json
import pathlib
import sys
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "plots"))
import compare_pytorch
from attention_steps import StepError, Steps

SECONDS = 0.3  # of timed runs per method, and at least 20 runs
# Of the first shapes and of the others, by dtype: forwards, which are measured causal as well, and the methods of eager's and our backward.
METHODS = {"fp32": (("SDPA efficient", "step04 on tensor cores"), ("SDPA efficient", "step04 on tensor cores")),
           "fp16": (("SDPA flash", "SDPA cuDNN", "step04", "step06", "step07", "step08"), ("SDPA cuDNN", "step07", "step08"))}
BACKWARDS = {"fp32": ("eager", "step05 recompute on tensor cores"), "fp16": ("eager", "step05 recompute", "step05 standard")}
NOT_HERE = 3  # a StepError's code


def wanted_runs(dtype, first, seqlen, steps):
    """{name: (pass, method)} of a shape."""
    methods = lambda causal: {method.name: method for method in compare_pytorch.torch_methods(seqlen, causal, "cuda") + compare_pytorch.step_methods(steps, dtype, causal)}
    full, causal = methods(False), methods(True)
    wanted = {}
    if first:
        wanted |= {"eager": ("forward", full["eager"])} | {f"{name} backward": ("backward", full[name]) for name in BACKWARDS[dtype]}
    for name in METHODS[dtype][0 if first else 1]:
        if name in full:
            wanted |= {name: ("forward", full[name]), f"{name} causal": ("forward", causal[name])}
    return wanted


def times(dtype, first, batch, heads, seqlen, head_dim, steps, clock):
    """{name: ms} at one shape."""
    tensors = compare_pytorch.make_tensors(types.SimpleNamespace(dtype=dtype, batch=batch, heads=heads, seqlen=seqlen, head_dim=head_dim, seed=0))
    wanted = wanted_runs(dtype, first, seqlen, steps)
    starts = {name: compare_pytorch.work_of(*what, tensors)[0] for name, what in wanted.items()}
    for name, (_, method) in wanted.items():
        try:
            starts[name]()()
        except StepError as error:
            if error.code != NOT_HERE:
                sys.exit(f"{name}: {error}")
            del starts[name]
        except RuntimeError as error:
            if method.ours or not name.startswith("SDPA cuDNN"):
                sys.exit(f"{name}: {compare_pytorch.first_line(error)}")
            del starts[name]
    found, lost = compare_pytorch.measure(starts, clock, None, SECONDS)
    if lost:
        sys.exit("; ".join(f"{name}: {why}" for name, why in lost.items()))
    return {name: time["median_ms"] for name, time in found.items()}


def main():
    torch = compare_pytorch.torch
    if torch is None:
        sys.exit(f"PyTorch is not installed ({compare_pytorch.why_no_torch})")
    torch.set_float32_matmul_precision("highest")  # no TF32 in eager's products
    clock = compare_pytorch.Clock(torch.cuda.get_device_properties(0).L2_cache_size)
    dtype, steps, shapes, others = sys.argv[1], Steps.load(sys.argv[2]), *(json.loads(text) for text in sys.argv[3:5])
    wanted = [(True, shape) for shape in shapes] + [(False, shape) for shape in others]
    print(json.dumps({" ".join(map(str, shape)): times(dtype, first, *shape, steps, clock) for first, shape in wanted}))


if __name__ == "__main__":
    main()
