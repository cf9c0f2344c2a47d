#!/usr/bin/env python3
"""The swap check: a small trained GPT (plots/measuring/swap/) whose attention is replaced by a step's, forward and
backward.

    python3 plots/measuring/swap_check.py [--device auto|gpu|cpu] [--step step04] [--product cuda-cores|tensor-cores]

The same weights and test text go through the model three times: in float64 (the truth), in fp32 with eager attention
(three lines), and in fp32 with the steps. It passes when, measured against float64, the largest logit difference of the
steps is at most twice that of eager, so is the relative L2 difference of the weights' gradients, and the test loss is
the same to six digits. With a step that has no fp32 the attention's inputs and outputs are fp16 in both, forward and
backward, the loss is scaled so that fp16 keeps its gradients, and it is the same to three digits. A step without a
backward of its own takes that of the first that has one. The model is NumPy's, on the CPU. The steps run on the CPU
executor, or (where PyTorch carries the tensors there) on the GPU. Exit codes: 0 passed, 1 not, 2 bad arguments, 3
something is missing here, 4 a CUDA error."""

import contextlib
import importlib.util
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.attention_steps import LibraryMissing, StepError, Steps
from plots.programs import CANNOT_SERVE, PRODUCTS, backward_of, described
from plots.script import OneLineParser, Stop, end_with, last_line, read_text

TIMES_EAGER = 2  # a second correct implementation rounds differently, so equal errors cannot be asked for
DTYPES = {"fp32": "float32", "fp16": "float16"}
DIGITS = {"float32": ("six", 5e-7), "float16": ("three", 5e-4)}  # relative: half a unit of the last digit at its widest
# dO of the mean loss has medians of 1e-6 to 5e-5 and is 6e-3 at most; fp16 keeps all its digits from 6e-5 to 65504.
LOSS_SCALE = {"float32": 1, "float16": 1 << 13}
HEAD_DIMS = (64, 128)  # to widen a head to where a step has nothing narrower


class StepsAttention:
    """model.py's attention by the steps, on NumPy arrays: `backward` is (step, method). `head_dim` is that of the
    step's tensors: zeros in added columns change no score, and give columns of O that are cut off again."""

    def __init__(self, steps, step, backward, dtype, head_dim, product=None, on_gpu=False):
        self.steps, self.step, (self.backward_step, self.method) = steps, step, backward
        self.dtype, self.head_dim, self.product, self.on_gpu = dtype, head_dim, product, on_gpu

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
        gradients = self.steps.backward(self.backward_step, *tensors, self.there(d_o), method=self.method, **how)
        return tuple(self.back(x, d_o.shape[-1]) for x in gradients)


def half_eager(model):
    """The three lines in fp16 as a library computes them: sums in fp32, each line's result rounded."""
    rounded = lambda x: x.astype("float16").astype("float32")
    eager = model.EagerAttention

    class HalfEager:
        forward = staticmethod(lambda q, k, v: eager.forward(rounded(q), rounded(k), rounded(v), rounded))
        backward = staticmethod(lambda saved, d_o: eager.backward(saved, rounded(d_o), rounded))

    return HalfEager


def narrowest(steps, calls, head_dim, zeros, **how):
    """The first head_dim that all calls, (step, method), take: the model's, else a wider one. `zeros(width)` is a tensor
    to ask with. Raises StepError with the last refusal."""
    for width in (head_dim, *HEAD_DIMS):
        q = zeros(width)
        try:
            for step, method in calls:
                steps.plan(step, method, q, q, causal=True, **how)
            return width
        except StepError as error:
            if error.code != CANNOT_SERVE:
                raise
            refusal = error
    raise refusal


def served(steps, programs, step, head_dim, product, on_gpu):
    """The StepsAttention of the first dtype and head_dim that the step has. Raises StepError with its last refusal."""
    import numpy as np

    for name, dtype in DTYPES.items():
        backward = backward_of(programs, step, name)
        attention = lambda width: StepsAttention(steps, step, backward, dtype, width, product, on_gpu)
        zeros = lambda width: attention(width).there(np.zeros((1, 1, 1, width)))
        try:
            return attention(narrowest(steps, ((step, "forward"), backward), head_dim, zeros, product=product))
        except StepError as error:
            if error.code != CANNOT_SERVE:
                raise
            refusal = error
    raise refusal


def differences(result, truth):
    """What the verdict is about: logits, gradients and loss against the float64 model's. NaN stays NaN."""
    import numpy as np

    (logits, loss, gradients), (true_logits, true_loss, true_gradients) = result, truth
    off = lambda ours, true: ours.astype(np.float64) - true
    squares = lambda arrays: sum(float(np.sum(x**2)) for x in arrays)
    of_gradients = squares(off(gradients[name], true) for name, true in true_gradients.items())
    return {
        "largest": float(np.abs(off(logits, true_logits)).max()),
        "gradients": (of_gradients / squares(true_gradients.values())) ** 0.5,
        "loss": abs(loss - true_loss) / true_loss,
    }


def verdict(truth, eager, swapped, dtype):
    """Prints the comparison; returns whether all is as it may be. NaN is not."""
    e, s = differences(eager, truth), differences(swapped, truth)
    sequences, seqlen, _ = truth[0].shape
    print(
        f"test set {sequences} x {seqlen} characters; test loss {truth[1]:.9f} in float64, "
        f"{eager[1]:.9f} eager, {swapped[1]:.9f} ours (nats per character)"
    )
    digits, allowed_loss = DIGITS[dtype]
    print(f"{'against float64':36} {'eager':>9} {'ours':>9} {'allowed':>9}")
    passed = True
    for what, key, allowed in (
        ("largest logit difference", "largest", TIMES_EAGER * e["largest"]),
        ("gradients, relative L2", "gradients", TIMES_EAGER * e["gradients"]),
        (f"test loss, relative ({digits} digits)", "loss", allowed_loss),
    ):
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
    programs = described(steps.path.parent)
    swapped = served(steps, programs, options.step, head_dim, options.product, on_gpu(options.device))
    eager = model.EagerAttention if swapped.dtype == "float32" else half_eager(model)
    scale = LOSS_SCALE[swapped.dtype]
    run = lambda weights, attention: model.run(weights, config, inputs, targets, attention, loss_scale=scale)
    truth = run({name: w.astype("float64") for name, w in weights.items()}, model.EagerAttention)
    place = "the GPU" if swapped.on_gpu else "the CPU executor"
    print(
        f"library: {steps.path} ({steps.build})\n"
        f"attention in {swapped.dtype} by {options.step}, its backward by {swapped.backward_step} ({swapped.method}), "
        f"on {place}{', on ' + options.product if options.product else ''}"
        f"{'' if scale == 1 else f', the loss times {scale}'}"
    )
    return verdict(truth, run(weights, eager), run(weights, swapped), swapped.dtype)


@contextlib.contextmanager
def failures_as_stops():
    """What the steps' library and PyTorch raise ends the program: one line, and its exit code."""
    try:
        yield
    except LibraryMissing as error:
        raise Stop(error, CANNOT_SERVE) from error
    except StepError as error:
        raise Stop(error, error.code) from error
    except RuntimeError as error:  # PyTorch's
        raise Stop(last_line(str(error)), 4) from error


def main():
    parser = OneLineParser(__doc__)
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto")
    parser.add_argument("--step", default="step04", help="whose attention (step04); without fp32 in fp16")
    parser.add_argument("--product", choices=PRODUCTS, help="of the steps' fp32 tile products (cuda-cores)")
    parser.add_argument("--library", help="libattention_steps.so, its programs beside it (the newest in build*/)")
    rejected = "for a library with a mistake in it: exit 0 when the check fails, 1 when it passes"
    parser.add_argument("--expect-rejected", action="store_true", help=rejected)
    options = parser.parse_args()
    if importlib.util.find_spec("numpy") is None:
        raise Stop("NumPy is not installed: python3 -m pip install numpy", CANNOT_SERVE)
    with failures_as_stops():
        passed = check(options)
    return 0 if passed != options.expect_rejected else 1


if __name__ == "__main__":
    end_with(main)
