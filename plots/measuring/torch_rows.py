#!/usr/bin/env python3
"""PyTorch's side of the speedup table, as a process of its own: import and CUDA context are paid for once, and between two
configurations it holds no tensors, so that the steps find the memory free.

First line out: {"versions": {...}}, or {"missing": "why there are no PyTorch rows"} and the end. Then for each line in,
    {"dtype": "fp16", "batch": 4, "heads": 32, "seqlen": 4096, "head_dim": 64, "causal": false, "passes": ["forward"], "methods": ["eager"]}
one line out: {"forward": [rows of compare_pytorch.run_pass()], "backward": [...]}, or {"failed": "why nothing could be measured"}.
"""
import json
import os
import sys
import types

import compare_pytorch
from compare_pytorch import torch

SECONDS = 0.3  # of timed runs per method: eight methods share about three seconds; compare_pytorch.py, with one configuration, takes more


def measure_configuration(problem):
    """{"forward": rows, "backward": rows} of the passes asked for. Raises RuntimeError (out of memory too)."""
    options = types.SimpleNamespace(**problem, repeat=None, seed=0)
    tensors = compare_pytorch.make_tensors(options)
    methods = [method for method in compare_pytorch.torch_methods(options.seqlen, options.causal, "cuda") if method.name in options.methods]
    truth = compare_pytorch.reference(*tensors[:3], tensors[3] if "backward" in options.passes else None, options.causal)
    clock = compare_pytorch.Clock(torch.cuda.get_device_properties(0).L2_cache_size)
    return {which: compare_pytorch.run_pass(which, methods, tensors, truth, clock, options, SECONDS) for which in options.passes}


def answer(problem):
    """(the answer, whether this process can go on): after a CUDA error other than a lack of memory it cannot."""
    try:
        return measure_configuration(problem), True
    except RuntimeError as error:
        return {"failed": compare_pytorch.first_line(error)}, isinstance(error, torch.cuda.OutOfMemoryError)


def serve(requests, say):
    if torch is None:
        return say({"missing": f"PyTorch is not installed ({compare_pytorch.why_no_torch})"})
    if not torch.cuda.is_available():
        return say({"missing": f"PyTorch {torch.__version__} sees no CUDA GPU"})
    torch.set_float32_matmul_precision("highest")  # no TF32 in eager's products
    say({"versions": compare_pytorch.versions(None, None)})
    compare_pytorch.forget_imports()
    for line in requests:
        found, usable = answer(json.loads(line))
        if usable:
            compare_pytorch.forget_imports()  # the first configuration imports more
            torch.cuda.empty_cache()
        say(found)
        if not usable:
            sys.exit(4)


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer

    def say(value):
        out.write(json.dumps(value, allow_nan=False) + "\n")
        out.flush()

    serve(sys.stdin, say)


if __name__ == "__main__":
    main()
