#!/usr/bin/env python3
"""The swap check: a small trained GPT (plots/measuring/swap/) whose attention is replaced by a step's and its backward
by step05's.

    python3 plots/measuring/swap_check.py [--device auto|gpu|cpu] [--step step04] [--product cuda-cores|tensor-cores]

The same weights and test text go through the model three times: in float64 (the truth), in fp32 with eager attention
(three lines), and in fp32 with the steps. It passes when, measured against float64, - the largest logit difference of
the steps is at most twice that of eager, - so is the relative L2 difference of the weights' gradients, - the test loss
is the same to six digits. With a step that has no fp32 the attention's inputs and outputs are fp16 in both, the rest
stays fp32; instead of gradients the relative L2 difference of the logits is judged, and the loss is the same to three
digits. The model is NumPy's, on the CPU. The steps run on the CPU executor, or (where PyTorch carries the tensors
there) on the GPU. Exit codes: 0 passed, 1 not, 2 bad arguments, 3 something is missing here, 4 a CUDA error."""

import importlib.util
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.attention_steps import LibraryMissing, StepError, Steps
from plots.programs import CANNOT_SERVE, PRODUCTS
from plots.script import OneLineParser, Stop, end_with, last_line, read_text

BACKWARD, METHOD = "step05", "recompute backward"
TIMES_EAGER = 2  # a second correct implementation rounds differently, so equal errors cannot be asked for
DIGITS = {"float32": ("six", 5e-7), "float16": ("three", 5e-4)}  # relative: half a unit of the last digit at its widest
HEAD_DIMS = (64, 128)  # to widen a head to where a step has nothing narrower


class StepsAttention:
    """model.py's attention by the steps, on NumPy arrays. `head_dim` is that of the step's tensors: zeros in added
    columns change no score, and give columns of O that are cut off again."""

    def __init__(self, steps, step, dtype, head_dim, product=None, on_gpu=False):
        self.steps, self.step, self.dtype, self.head_dim, self.product, self.on_gpu = (
            steps,
            step,
            dtype,
            head_dim,
            product,
            on_gpu,
        )

    def there(self, x):
        import numpy as np

        x = np.ascontiguousarray(np.pad(x, ((0, 0),) * 3 + ((0, self.head_dim - x.shape[-1]),)).astype(self.dtype))
        if self.on_gpu:
            import torch

            return torch.from_numpy(x).cuda()
        return x

    def back(self, x, head_dim):
        import numpy as np

        x = x.cpu().numpy() if self.on_gpu else x
        return np.ascontiguousarray(x[..., :head_dim].astype("float32"))

    def forward(self, q, k, v):
        how = {"causal": True, "softmax_scale": q.shape[-1] ** -0.5, "product": self.product, "nan": True}
        tensors = tuple(map(self.there, (q, k, v)))
        o, lse = self.steps.forward(self.step, *tensors, **how)
        return self.back(o, q.shape[-1]), (how, *tensors, o, lse)

    def backward(self, saved, d_o):
        how, *tensors = saved
        gradients = self.steps.backward(BACKWARD, *tensors, self.there(d_o), method=METHOD, **how)
        return tuple(self.back(x, d_o.shape[-1]) for x in gradients)


def half_eager(model):
    """The three lines in fp16 as a library computes them: sums in fp32, each line's result rounded."""
    rounded = lambda x: x.astype("float16").astype("float32")

    class HalfEager:
        forward = staticmethod(
            lambda q, k, v: model.EagerAttention.forward(rounded(q), rounded(k), rounded(v), rounded)
        )

    return HalfEager


def served(steps, step, head_dim, product, on_gpu):
    """The StepsAttention of the first dtype and head_dim that the step has. Raises StepError with its last refusal."""
    import numpy as np

    for dtype in DIGITS:
        for width in (head_dim, *HEAD_DIMS):
            attention = StepsAttention(steps, step, dtype, width, product, on_gpu)
            q = attention.there(np.zeros((1, 1, 1, head_dim)))
            try:
                steps.plan(step, "forward", q, q, causal=True, product=product)
                return attention
            except StepError as error:
                if error.code != CANNOT_SERVE:
                    raise
                refusal = error
    raise refusal


def differences(result, truth):
    """What the verdict is about: against the float64 model's logits and loss, and gradients where `result` has any."""
    import numpy as np

    logits, loss, gradients = result
    true_logits, true_loss, true_gradients = truth
    squares = lambda arrays: sum(float(np.sum(x**2)) for x in arrays)

    def largest_and_l2(ours, true):  # NaN stays NaN
        off = [x.astype(np.float64) - t for x, t in zip(ours, true)]
        return float(np.max([np.abs(x).max() for x in off])), (squares(off) / squares(true)) ** 0.5

    found = {"loss": abs(loss - true_loss) / true_loss}
    found["largest"], found["logits"] = largest_and_l2([logits], [true_logits])
    if gradients:
        names = list(true_gradients)
        _, found["gradients"] = largest_and_l2(
            [gradients[name] for name in names], [true_gradients[name] for name in names]
        )
    return found


def verdict(truth, eager, swapped, dtype):
    """Prints the comparison; returns whether all is as it may be. NaN is not."""
    e, s = differences(eager, truth), differences(swapped, truth)
    sequences, seqlen, _ = truth[0].shape
    print(
        f"test set {sequences} x {seqlen} characters; test loss {truth[1]:.9f} in float64, "
        f"{eager[1]:.9f} eager, {swapped[1]:.9f} ours "
        "(nats per character)"
    )
    digits, allowed_loss = DIGITS[dtype]
    judged = "gradients" if "gradients" in s else "logits"
    lines = [
        ("largest logit difference", "largest", TIMES_EAGER * e["largest"]),
        (f"{judged}, relative L2", judged, TIMES_EAGER * e[judged]),
        (f"test loss, relative ({digits} digits)", "loss", allowed_loss),
    ]
    print(f"{'against float64':36} {'eager':>9} {'ours':>9} {'allowed':>9}")
    passed = True
    for what, key, allowed in lines:
        right = s[key] <= allowed
        passed = passed and right
        print(f"{what:36} {e[key]:9.2e} {s[key]:9.2e} {allowed:9.2e}  {'ok' if right else 'FAIL'}")
    print(f"swap check: {'PASS' if passed else 'FAIL'}")
    return passed


def on_gpu(device):
    """Whether the steps run on a GPU. Raises Stop where one is asked for and cannot be had."""
    why = "PyTorch, which carries the tensors there, is not installed"
    if device != "cpu" and importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            return True
        why = "PyTorch sees no GPU"
    if device == "gpu":
        raise Stop(f"--device gpu: {why}; --device cpu runs the check on the CPU executor", CANNOT_SERVE)
    return False


def check(options):
    from plots.measuring.swap import model

    steps = Steps.load(options.library)
    weights, config = model.load_model()
    inputs, targets = model.sequences(model.encode(read_text(model.FOLDER / "test.txt"), config), config["context"])
    head_dim = weights["token"].shape[1] // config["heads"]
    swapped = served(steps, options.step, head_dim, options.product, on_gpu(options.device))
    with_gradients = swapped.dtype == "float32"
    eager = model.EagerAttention if with_gradients else half_eager(model)
    run = lambda weights, attention: model.run(weights, config, inputs, targets, attention, with_gradients)
    truth = run({name: w.astype("float64") for name, w in weights.items()}, model.EagerAttention)
    print(f"library: {steps.path} ({steps.build})")
    backward = f", its backward by {BACKWARD} ({METHOD})" if with_gradients else ", forward"
    place = "the GPU" if swapped.on_gpu else "the CPU executor"
    print(
        f"attention in {swapped.dtype} by {options.step}{backward}, on "
        f"{place}{', on ' + options.product if options.product else ''}"
    )
    return verdict(truth, run(weights, eager), run(weights, swapped), swapped.dtype)


def main():
    parser = OneLineParser(__doc__)
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto")
    parser.add_argument("--step", default="step04", help="whose attention (step04); without fp32 in fp16")
    parser.add_argument(
        "--product", choices=PRODUCTS, help="where the steps' fp32 tile products are computed (cuda-cores)"
    )
    parser.add_argument("--library", help="libattention_steps.so (the newest in build*/)")
    parser.add_argument(
        "--expect-rejected",
        action="store_true",
        help="for a library with a mistake in it: exit 0 when the check fails, 1 when it passes",
    )
    options = parser.parse_args()
    if importlib.util.find_spec("numpy") is None:
        raise Stop("NumPy is not installed: python3 -m pip install numpy", CANNOT_SERVE)
    try:
        passed = check(options)
    except LibraryMissing as error:
        raise Stop(error, CANNOT_SERVE) from error
    except StepError as error:
        raise Stop(error, error.code) from error
    except RuntimeError as error:  # PyTorch's
        raise Stop(last_line(str(error)), 4) from error
    return 0 if passed != options.expect_rejected else 1


if __name__ == "__main__":
    end_with(main)
