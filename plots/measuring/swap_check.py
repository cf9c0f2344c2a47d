#!/usr/bin/env python3
"""The swap check: a small trained GPT (plots/swap/) whose attention is replaced by step04's and its backward by step05's.

    python3 plots/swap_check.py [--device auto|gpu|cpu] [--product cuda-cores|tensor-cores] [--library build/libattention_steps.so]
    python3 plots/swap_check.py --step step06|step07|step08          # which are for 16 bits: the attention in fp16, forward alone

The same weights and test text go through the model three times: in float64 (the truth), in fp32 with eager attention (three lines),
and in fp32 with the steps. It passes when, measured against float64,
  - the largest logit difference of the steps is at most twice that of eager,
  - so is the relative L2 difference of the weights' gradients,
  - the test loss is the same to six digits.
In fp16 the attention's inputs and outputs are fp16 in both, the rest stays fp32; instead of gradients the relative L2 difference of the
logits is judged, and the loss is the same to three digits.
With PyTorch the fp32 models are PyTorch's (on the GPU where there is one); without it they are NumPy's, on the CPU executor.
Exit codes: 0 passed, 1 not, 2 bad arguments, 3 something is missing here, 4 a CUDA error.
"""
import argparse
import importlib.util
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parent / "swap")]
from attention_steps import LibraryMissing, StepError, Steps
from measure_rows import IN_HALF_ALONE
from script import OneLineParser

FORWARD, BACKWARD, METHOD = "step04", "step05", "recompute backward"
TIMES_EAGER = 2  # a second correct fp32 implementation rounds differently, so equal errors cannot be asked for
SIX_DIGITS = 5e-7  # relative: half a unit of the sixth digit at its widest
THREE_DIGITS = 5e-4
LEAST_HEAD_DIM = {"step07": 64, "step08": 64}


class Unavailable(Exception):
    pass


class StepsAttention:
    """model.py's attention by the steps."""

    def __init__(self, steps, product):
        self.steps, self.product = steps, product

    def forward(self, q, k, v):
        o, lse = self.steps.forward(FORWARD, q, k, v, causal=True, product=self.product, nan=True)
        return o, (q, k, v, o, lse)

    def backward(self, saved, d_o):
        return self.steps.backward(BACKWARD, *saved, d_o, method=METHOD, causal=True, product=self.product, nan=True)


class HalfSteps:
    """model.py's attention by a step in fp16, on tensors that `fp32` (the fp32 model) converts. The loss's gradients would need a scale of
    their own in fp16: forward alone."""

    def __init__(self, steps, step, fp32):
        self.steps, self.step, self.fp32 = steps, step, fp32

    def forward(self, q, k, v):
        """Zeros in added columns change no score, and give columns of O that are cut off again."""
        head_dim = q.shape[-1]
        wide = max(head_dim, LEAST_HEAD_DIM.get(self.step, 0))
        o, _ = self.steps.forward(self.step, *(self.fp32.to_half(x, wide) for x in (q, k, v)), causal=True, softmax_scale=head_dim ** -0.5, nan=True)
        return self.fp32.to_single(o[..., :head_dim]), None


class HalfEager:
    """The three lines in fp16 as a library computes them: sums in fp32, each line's result rounded. For NumPy, whose own fp16 sums in fp16."""

    @staticmethod
    def forward(q, k, v):
        import model
        rounded = lambda x: x.astype("float16").astype("float32")
        return model.EagerAttention.forward(rounded(q), rounded(k), rounded(v), rounded)


class NumpyModel:
    """The fp32 model without PyTorch."""

    def __init__(self, weights, config, inputs, targets):
        import numpy
        self.name = f"NumPy {numpy.__version__} on the CPU"
        self.data = weights, config, inputs, targets

    def run(self, attention, gradients=True):
        import model
        return model.run(*self.data, attention, gradients)

    def eager(self):
        import model
        return self.run(model.EagerAttention)

    def swapped(self, steps, product):
        return self.run(StepsAttention(steps, product))

    def in_half(self, steps, step):
        """(eager's, the step's) result with an attention in fp16, without gradients."""
        return self.run(HalfEager, gradients=False), self.run(HalfSteps(steps, step, self), gradients=False)

    @staticmethod
    def to_half(x, head_dim):
        """In fp16, zeros behind the columns up to head_dim."""
        import numpy as np
        return np.ascontiguousarray(np.pad(x, ((0, 0),) * 3 + ((0, head_dim - x.shape[-1]),)).astype(np.float16))

    @staticmethod
    def to_single(x):
        return x.astype("float32")


class TorchModel:
    """The fp32 model in PyTorch, on `device`."""

    def __init__(self, weights, config, inputs, targets, device):
        import torch
        torch.set_float32_matmul_precision("highest")  # no TF32
        self.name = f"PyTorch {torch.__version__} on {torch.cuda.get_device_name() if device == 'cuda' else 'the CPU'}"
        self.weights = {name: torch.from_numpy(w).to(device).requires_grad_() for name, w in weights.items()}
        self.config, self.inputs, self.targets = config, torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)

    def run(self, attention, gradients=True):
        import torch
        from model_torch import logits_of, loss_of
        with torch.set_grad_enabled(gradients):
            logits = logits_of(self.weights, self.config, self.inputs, attention)
            loss = loss_of(logits, self.targets)
        found = torch.autograd.grad(loss, list(self.weights.values())) if gradients else ()
        to_numpy = lambda x: x.detach().cpu().numpy()
        return to_numpy(logits), loss.item(), dict(zip(self.weights, map(to_numpy, found)))

    def eager(self):
        from model_torch import eager_attention
        return self.run(eager_attention)

    def in_half(self, steps, step):
        """(eager's, the step's) result with an attention in fp16, without gradients."""
        from model_torch import eager_attention
        by_step = HalfSteps(steps, step, self)
        in_half = lambda q, k, v: eager_attention(q.half(), k.half(), v.half()).float()
        return self.run(in_half, gradients=False), self.run(lambda q, k, v: by_step.forward(q, k, v)[0], gradients=False)

    @staticmethod
    def to_half(x, head_dim):
        """In fp16, zeros behind the columns up to head_dim."""
        import torch
        return torch.nn.functional.pad(x, (0, head_dim - x.shape[-1])).half().contiguous()

    @staticmethod
    def to_single(x):
        return x.float().contiguous()

    def swapped(self, steps, product):
        import torch
        by_steps = StepsAttention(steps, product)

        class Attention(torch.autograd.Function):
            @staticmethod
            def forward(ctx, q, k, v):
                o, saved = by_steps.forward(q, k, v)
                ctx.save_for_backward(*saved)
                return o

            @staticmethod
            def backward(ctx, d_o):
                return by_steps.backward(ctx.saved_tensors, d_o.contiguous())

        return self.run(Attention.apply)


def differences(result, truth):
    """What the verdict is about: against the float64 model's logits and loss, and gradients where `result` has any."""
    import numpy as np
    logits, loss, gradients = result
    true_logits, true_loss, true_gradients = truth
    squares = lambda arrays: sum(float(np.sum(x ** 2)) for x in arrays)

    def largest_and_l2(ours, true):  # NaN stays NaN
        off = [x.astype(np.float64) - t for x, t in zip(ours, true)]
        return float(np.max([np.abs(x).max() for x in off])), (squares(off) / squares(true)) ** 0.5

    found = {"loss": abs(loss - true_loss) / true_loss}
    found["logits"], found["logits L2"] = largest_and_l2([logits], [true_logits])
    if gradients:
        found["gradients"], found["gradients L2"] = largest_and_l2([gradients[name] for name in true_gradients], list(true_gradients.values()))
    return found


def print_losses(truth, eager, swapped):
    sequences, seqlen, _ = truth[0].shape
    print(f"test set {sequences} x {seqlen} characters; test loss {truth[1]:.9f} in float64, {eager[1]:.9f} eager, {swapped[1]:.9f} ours (nats per character)")


def report(model, truth, eager, swapped, product="cuda-cores"):
    """Prints the comparison; returns whether it passed."""
    import numpy as np
    true_logits, _, true_gradients = truth
    e, s = differences(eager, truth), differences(swapped, truth)
    largest_logit, largest_gradient = np.abs(true_logits).max(), max(np.abs(g).max() for g in true_gradients.values())
    judged = [
        ("largest logit difference", e["logits"], s["logits"], TIMES_EAGER * e["logits"]),
        ("  of the largest logit", e["logits"] / largest_logit, s["logits"] / largest_logit, None),
        ("test loss difference, relative", e["loss"], s["loss"], SIX_DIGITS),
        ("gradients, relative L2", e["gradients L2"], s["gradients L2"], TIMES_EAGER * e["gradients L2"]),
        ("  largest, of the largest", e["gradients"] / largest_gradient, s["gradients"] / largest_gradient, None)]
    print(f"fp32 model: {model.name}; attention by {FORWARD}, its backward by {BACKWARD} ({METHOD}), on {product.replace('-', ' ')}")
    print_losses(truth, eager, swapped)
    return verdict_of(judged)


def report_half(model, truth, eager, swapped, step):
    """As report(), of the forward alone with an attention in fp16."""
    e, s = differences(eager, truth), differences(swapped, truth)
    print(f"fp32 model: {model.name}; attention in fp16 by {step}, forward")
    print_losses(truth, eager, swapped)
    return verdict_of([("largest logit difference", e["logits"], s["logits"], TIMES_EAGER * e["logits"]),
                       ("logits, relative L2", e["logits L2"], s["logits L2"], TIMES_EAGER * e["logits L2"]),
                       ("test loss difference, relative", e["loss"], s["loss"], THREE_DIGITS)])


def verdict_of(judged):
    """Prints (what, eager's, ours, what may be) line by line; returns whether all is as it may be. NaN is not."""
    print(f"{'against float64':32} {'eager':>9} {'ours':>9} {'allowed':>9}")
    passed = True
    for what, of_eager, ours, allowed in judged:
        verdict = "" if allowed is None else "ok" if ours <= allowed else "FAIL"
        passed = passed and verdict != "FAIL"
        print(f"{what:32} {of_eager:9.2e} {ours:9.2e} {'' if allowed is None else f'{allowed:.2e}':>9}  {verdict}".rstrip())
    print(f"swap check: {'PASS' if passed else 'FAIL'}")
    return passed


def choose_model(device, *data):
    has_torch = importlib.util.find_spec("torch") is not None
    if device != "cpu" and has_torch:
        import torch
        if torch.cuda.is_available():
            return TorchModel(*data, "cuda")
    if device == "gpu":
        raise Unavailable("--device gpu: " + ("PyTorch sees no GPU" if has_torch else "PyTorch is not installed") + "; --device cpu runs the check on the CPU executor")
    return TorchModel(*data, "cpu") if has_torch else NumpyModel(*data)


def check(options):
    if importlib.util.find_spec("numpy") is None:
        raise Unavailable("NumPy is not installed: python3 -m pip install numpy")
    import numpy as np
    import model
    steps = Steps.load(options.library)
    weights, config = model.load_model()
    inputs, targets = model.sequences(model.encode((model.FOLDER / "test.txt").read_text(), config), config["context"])
    data = weights, config, inputs, targets
    fp32 = NumpyModel(*data) if options.numpy else choose_model(options.device, *data)
    in_half = options.step in IN_HALF_ALONE
    truth = model.run({name: w.astype(np.float64) for name, w in weights.items()}, config, inputs, targets, model.EagerAttention, gradients=not in_half)
    print(f"library: {steps.path} ({steps.build})")
    if in_half:
        return report_half(fp32, truth, *fp32.in_half(steps, options.step), options.step)
    return report(fp32, truth, fp32.eager(), fp32.swapped(steps, options.product), options.product)


def main():
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto")
    parser.add_argument("--step", choices=(FORWARD, *IN_HALF_ALONE), default=FORWARD, help=f"whose attention ({FORWARD}; the others in fp16)")
    parser.add_argument("--product", choices=("cuda-cores", "tensor-cores"), default="cuda-cores", help="where the steps' fp32 tile products are computed (cuda-cores)")
    parser.add_argument("--library", help="libattention_steps.so (the newest in build*/)")
    parser.add_argument("--numpy", action="store_true", help="the NumPy model on the CPU, although PyTorch is installed")
    parser.add_argument("--expect-rejected", action="store_true", help="for a library with a mistake in it: exit 0 when the check fails, 1 when it passes")
    options = parser.parse_args()
    if options.step in IN_HALF_ALONE and options.product != "cuda-cores":
        parser.error(f"--product {options.product} is for fp32, {options.step} for fp16")
    if options.numpy and options.device == "gpu":
        parser.error("--numpy runs on the CPU, --device gpu does not")
    try:
        passed = check(options)
    except (Unavailable, LibraryMissing) as error:
        parser.exit(3, f"{error}\n")
    except StepError as error:
        parser.exit(error.code, f"{error}\n")
    except RuntimeError as error:  # PyTorch's, for CUDA errors too
        parser.exit(4, f"{str(error).strip().splitlines()[0]}\n")
    sys.exit(passed == options.expect_rejected)


if __name__ == "__main__":
    main()
