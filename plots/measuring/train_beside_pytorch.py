#!/usr/bin/env python3
"""Trains the swap check's model twice, from the same weights on the same batches: with a step's attention and its
backward in PyTorch's autograd (Steps.torch_function), and with PyTorch's own scaled_dot_product_attention.

    python3 plots/measuring/train_beside_pytorch.py [--step step10] [--dtype fp16] [--steps 200] [--out FILE]

Writes both loss curves as JSON: on a GPU to docs/results/training/<gpu>.json, of which `make plots` draws a figure; on
the CPU executor only where --out says. It passes when the means of the last tenth of both curves differ by at most 1 %.
Everything but the attention is NumPy's fp32. In 16 bits the loss is scaled. Exit codes: 0 passed, 1 not, 2 bad
arguments, 3 something is missing here, 4 a CUDA error."""

import datetime
import importlib.util
import json
import math
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.attention_steps import Steps
from plots.measuring.swap_check import LOSS_SCALE, failures_as_stops, narrowest, on_gpu
from plots.programs import CANNOT_SERVE, backward_of, described
from plots.results import slug
from plots.script import REPOSITORY, OneLineParser, Stop, end_with, positive, write_whole

SCHEMA = "attention-training-1"
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
APART = 0.01  # of the mean loss of the last tenth: rounding makes two right trainings drift apart, and no further


class InTorch:
    """model.py's attention as a function of PyTorch tensors, `attention(q, k, v)`, and autograd's backward of it. Heads
    are widened with zeros, which change no score and give columns of O that are cut off again."""

    def __init__(self, attention, dtype, head_dim, device):
        self.attention, self.dtype, self.head_dim, self.device = attention, dtype, head_dim, device

    def there(self, x):
        import torch

        x = torch.from_numpy(x).to(self.device, getattr(torch, self.dtype))
        return torch.nn.functional.pad(x, (0, self.head_dim - x.shape[-1])).contiguous()

    def forward(self, q, k, v):
        tensors = [self.there(x).requires_grad_() for x in (q, k, v)]
        o = self.attention(*tensors)
        return self.back(o, q.shape[-1]), (tensors, o)

    def backward(self, saved, d_o):
        import torch

        tensors, o = saved
        return tuple(self.back(x, d_o.shape[-1]) for x in torch.autograd.grad(o, tensors, self.there(d_o)))

    def back(self, x, head_dim):
        return x.detach()[..., :head_dim].float().cpu().numpy()


def curves(options):
    """The JSON object: both loss curves, and what they were computed with."""
    import torch

    from plots.measuring.swap import train

    steps, device = Steps.load(options.library), "cuda" if on_gpu(options.device) else "cpu"
    name, method = backward_of(described(steps.path.parent), options.step, options.dtype)
    dtype, scale = DTYPES[options.dtype], train.HEAD_DIM**-0.5
    zeros = lambda width: torch.zeros(1, 1, 1, width, dtype=getattr(torch, dtype), device=device)
    width = narrowest(steps, ((options.step, "forward"), (name, method)), train.HEAD_DIM, zeros)
    ours = steps.torch_function(options.step, name, method, causal=True, softmax_scale=scale)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    loss_scale, loss = LOSS_SCALE.get(dtype, 1), {}  # bf16 has fp32's exponents
    for label, attention in (
        (options.step, ours),
        ("SDPA", lambda q, k, v: sdpa(q, k, v, is_causal=True, scale=scale)),
    ):
        loss[label] = []
        through = InTorch(attention, dtype, width, device)
        for step, value, _ in train.training(through, options.steps, options.batch, loss_scale=loss_scale):
            loss[label].append(value)
            if step % 20 == 0 or step == options.steps:
                print(f"{label}: step {step}, loss {value:.4f} nats per character", flush=True)
    return {
        "schema": SCHEMA,
        "gpu": torch.cuda.get_device_name(0) if device == "cuda" else None,
        "date": datetime.date.today().isoformat(),
        "dtype": options.dtype,
        "step": options.step,
        "backward": f"{name} {method}",
        "batch": options.batch,
        "loss_scale": loss_scale,
        "versions": {"torch": torch.__version__, "steps": steps.build},
        "loss": loss,
    }


def passed(found):
    """Prints how far apart the curves are; returns whether that is as little as it must be. NaN is not."""
    ours, theirs = found["loss"].values()
    last = max(1, len(ours) // 10)
    apart = abs(statistics.fmean(ours[-last:]) / statistics.fmean(theirs[-last:]) - 1)
    furthest = max(abs(a / b - 1) for a, b in zip(ours, theirs))
    told = f"last {last} of {len(ours)} steps {apart:.2e} apart, {APART:.2e} allowed; furthest step {furthest:.2e}"
    right = apart <= APART and math.isfinite(furthest)
    print(f"{found['step']} beside SDPA, {found['dtype']}: {told}: {'PASS' if right else 'FAIL'}")
    return right


def main():
    parser = OneLineParser(__doc__)
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto")
    parser.add_argument("--step", default="step10", help="whose attention (step10)")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="fp16", help="of the attention (fp16)")
    parser.add_argument("--steps", type=positive, default=200, help="of the training (200)")
    parser.add_argument("--batch", type=positive, default=8, help="sequences of 256 characters to a step (8)")
    parser.add_argument("--library", help="libattention_steps.so, its programs beside it (the newest in build*/)")
    parser.add_argument("--out", type=pathlib.Path, help="the curves' file")
    options = parser.parse_args()
    parser.writable(options.out)
    for module in ("numpy", "torch"):
        if importlib.util.find_spec(module) is None:
            raise Stop(f"{module} is not installed: the training needs NumPy and PyTorch", CANNOT_SERVE)
    with failures_as_stops():
        found = curves(options)
    out = options.out
    if out is None and found["gpu"]:
        out = REPOSITORY / "docs" / "results" / "training" / f"{slug(found['gpu'])}.json"
        out.parent.mkdir(exist_ok=True)
    right = passed(found)
    if out and right:
        write_whole(out, json.dumps(found, indent=1, allow_nan=False) + "\n")
        print(out)
    return 0 if right else 1


if __name__ == "__main__":
    end_with(main)
