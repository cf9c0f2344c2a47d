#!/usr/bin/env python3
"""PyTorch's times for tests/gpu_round.py, measured as plots/compare_pytorch.py measures: medians of runs with the L2 flushed, in turn.

    python3 tests/pytorch_times.py fp16 '[[4, 32, 4096, 64], ...]' '[...]'          batch, heads, N, head_dim of each shape

Prints {"4 32 4096 64": {"eager": ms, "fused": ms, "fused causal": ms, "eager backward": ms}, ...}. The fused kernel is SDPA's efficient one
in fp32 (TF32 off), and in fp16 FlashAttention-2, beside which stand "cuDNN" and "cuDNN causal" where PyTorch has them. The second list of
shapes is measured with one kernel alone: fp32's fused one, fp16's cuDNN.
"""
import json
import pathlib
import sys
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "plots"))
import compare_pytorch

CUDNN = "SDPA cuDNN"
SECONDS = 0.3  # of timed runs per method, and at least 20 runs


def times(dtype, fused, eager, batch, heads, seqlen, head_dim, clock):
    tensors = compare_pytorch.make_tensors(types.SimpleNamespace(dtype=dtype, batch=batch, heads=heads, seqlen=seqlen, head_dim=head_dim, seed=0))
    named = lambda causal: {method.name: method for method in compare_pytorch.torch_methods(seqlen, causal, "cuda")}
    full, causal = named(False), named(True)
    wanted = {}
    if eager:
        wanted |= {"eager": ("forward", full["eager"]), "eager backward": ("backward", full["eager"])}
    if fused:
        wanted |= {"fused": ("forward", full[fused]), "fused causal": ("forward", causal[fused])}
    if dtype == "fp16" and CUDNN in full:
        wanted |= {"cuDNN": ("forward", full[CUDNN]), "cuDNN causal": ("forward", causal[CUDNN])}
    starts = {name: compare_pytorch.work_of(*what, tensors)[0] for name, what in wanted.items()}
    for name in [name for name in starts if name.startswith("cuDNN")]:
        try:
            starts[name]()()
        except RuntimeError:  # not on this GPU
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
    dtype, shapes, others = sys.argv[1], *(json.loads(text) for text in sys.argv[2:4])
    fused = {"fp32": "SDPA efficient", "fp16": "SDPA flash"}[dtype]
    wanted = [(fused, True, shape) for shape in shapes] + [(fused if dtype == "fp32" else None, False, shape) for shape in others]
    print(json.dumps({" ".join(map(str, shape)): times(dtype, fused, eager, *shape, clock) for fused, eager, shape in wanted}))


if __name__ == "__main__":
    main()
