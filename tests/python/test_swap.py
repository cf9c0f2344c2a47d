"""The swap check's model and verdict: its hand-written backward, its text, and what a wrong attention gets."""

from need import LIBRARY, need, script

need("numpy")
import contextlib
import importlib.util
import io
import json
import pathlib
import tempfile
import unittest

import numpy as np

from plots.attention_steps import StepError
from plots.measuring import swap_check
from plots.measuring.swap import model
from plots.script import read_text


def small_model(dtype=np.float64):
    """Two layers, 2 heads of 4, context 6, 5 characters, with random weights; inputs and targets [2, 6]."""
    draw = np.random.default_rng(1)
    width, characters, context = 8, 5, 6
    weights = {"token": (characters, width), "position": (context, width), "head": (width, characters)}
    weights |= {"norm": (width,), "bias": (width,)}
    for layer in range(2):
        sizes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
        sizes |= dict.fromkeys(("norm1", "bias1", "norm2", "bias2"), (width,))
        weights |= {f"{layer}.{name}": shape for name, shape in sizes.items()}
    weights = {name: draw.normal(size=shape).astype(dtype) for name, shape in weights.items()}
    inputs, targets = (draw.integers(characters, size=(2, context)) for _ in range(2))
    return weights, {"layers": 2, "heads": 2, "context": context}, inputs, targets


PROGRAMS = [{"id": "step05", "methods": [{"name": "a backward", "backward": True}], "dtypes": ["fp32", "fp16"]}]


class FakeSteps:
    """Right attention on what it is handed, its output and dQ times a factor. It serves `dtypes`, and head_dims from
    `least` on."""

    def __init__(self, dtypes=("float32",), least=1, factor=1.0, in_backward=1.0):
        self.dtypes, self.least, self.factor, self.in_backward = dtypes, least, factor, in_backward
        self.seen, self.saved = set(), []

    def plan(self, step, method, q, k, *, causal, product):
        if q.dtype.name not in self.dtypes or q.shape[-1] < self.least:
            raise StepError(3, f"not {q.dtype.name} {q.shape[-1]}")

    def forward(self, step, q, k, v, *, causal, softmax_scale, product, nan):
        self.seen.add((step, product, q.dtype.name, q.shape[-1], softmax_scale))
        q32, k32, v32 = (x.astype(np.float32) for x in (q, k, v))
        o, saved = model.EagerAttention.forward(q32 * np.float32(softmax_scale * q.shape[-1] ** 0.5), k32, v32)
        self.saved.append(saved)
        return (o * np.float32(self.factor)).astype(q.dtype), None

    def backward(self, step, q, k, v, o, lse, d_o, *, method, causal, softmax_scale, product, nan):
        self.seen.add((step, product))
        dq, dk, dv = model.EagerAttention.backward(self.saved.pop(), d_o.astype(np.float32))
        wide = softmax_scale * q.shape[-1] ** 0.5  # the forward's factor of q
        return [(x * np.float32(by)).astype(q.dtype) for x, by in ((dq, wide * self.in_backward), (dk, 1), (dv, 1))]


def judged(steps, step="step04", product=None):
    """(verdict, its last line) of the swap check with these steps."""
    attention = swap_check.served(steps, PROGRAMS, step, 4, product, False)
    truth = model.run(*small_model(), model.EagerAttention)
    eager = model.EagerAttention if attention.dtype == "float32" else swap_check.half_eager(model)
    scale = swap_check.LOSS_SCALE[attention.dtype]
    results = [model.run(*small_model(np.float32), way, loss_scale=scale) for way in (eager, attention)]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        return swap_check.verdict(truth, *results, attention.dtype), printed.getvalue().splitlines()[-1]


class Model(unittest.TestCase):
    def test_gradients_are_the_losss_slopes(self):
        weights, *rest = small_model()
        _, _, gradients = model.run(weights, *rest, model.EagerAttention)
        self.assertEqual(set(gradients), set(weights))
        draw, step = np.random.default_rng(2), 1e-5
        for name in weights:  # along a random direction, by central differences: their error is of the order of step^2
            direction = draw.normal(size=weights[name].shape)
            losses = [
                model.run({**weights, name: weights[name] + sign * step * direction}, *rest, model.EagerAttention)[1]
                for sign in (1, -1)
            ]
            slope = (losses[0] - losses[1]) / (2 * step)
            self.assertAlmostEqual(
                float((gradients[name] * direction).sum()), slope, delta=1e-7 * max(1, abs(slope)), msg=name
            )

    def test_fp32_stays_fp32(self):
        logits, _, gradients = model.run(*small_model(np.float32), model.EagerAttention)
        self.assertEqual({logits.dtype, *(g.dtype for g in gradients.values())}, {np.dtype(np.float32)})

    def test_texts_and_weights(self):
        weights, config = model.load_model()
        train, test = (read_text(model.FOLDER / name) for name in ("train.txt", "test.txt"))
        self.assertTrue(set(test) <= set(config["characters"]))
        self.assertFalse(
            set(train.strip().split("\n\n")) & set(test.strip().split("\n\n")),
            "a test scene stands in the training set",
        )
        self.assertLess((model.FOLDER / "weights.npz").stat().st_size, 1_000_000)
        tokens = model.encode(test, config)
        _, loss, _ = model.run(
            weights, config, *model.sequences(tokens, config["context"]), model.EagerAttention, gradients=False
        )
        frequencies = np.bincount(tokens) / len(tokens)
        entropy = -sum(
            p * np.log(p) for p in frequencies if p > 0
        )  # the loss of one who only knows how often each character comes
        self.assertLess(loss, entropy / 4, "the model is trained")
        with self.assertRaisesRegex(ValueError, "does not know"):
            model.encode("§", config)
        with self.assertRaisesRegex(ValueError, "context"):
            model.sequences(np.arange(10), 256)


class Verdict(unittest.TestCase):
    def test_fp32(self):
        for factor, in_backward, passes in (
            (1, 1, True),
            (1.0001, 1, False),
            (np.nan, 1, False),
            (1, 1.0001, False),
            (1, np.nan, False),
        ):
            found = judged(FakeSteps(factor=factor, in_backward=in_backward))
            self.assertEqual(found, (passes, f"swap check: {'PASS' if passes else 'FAIL'}"), (factor, in_backward))

    def test_what_reaches_the_steps(self):
        steps = FakeSteps()
        judged(steps, "step04", "tensor-cores")
        self.assertEqual(steps.seen, {("step04", "tensor-cores", "float32", 4, 0.5), ("step05", "tensor-cores")})

    def test_half(self):
        for least, width in ((1, 4), (64, 64)):  # columns are added where a step needs them
            steps = FakeSteps(("float16",), least)
            self.assertTrue(judged(steps, "step42")[0])
            self.assertEqual(steps.seen, {("step42", None, "float16", width, 0.5), ("step05", None)})
        for wrong in ({"factor": 1.02}, {"factor": np.nan}, {"in_backward": 1.02}, {"in_backward": np.nan}):
            self.assertFalse(judged(FakeSteps(("float16",), **wrong))[0], wrong)
        with self.assertRaisesRegex(StepError, "not float16 128"):
            judged(FakeSteps(()))

    def test_the_loss_is_scaled_and_the_gradients_are_not(self):
        usual, scaled = (model.run(*small_model(), model.EagerAttention, loss_scale=scale) for scale in (1, 1 << 13))
        self.assertEqual(usual[1], scaled[1])
        for name, gradient in usual[2].items():
            self.assertTrue(np.allclose(gradient, scaled[2][name], rtol=1e-12, atol=0), name)

    def test_what_is_missing(self):
        for flags, code, text in (
            (("--library", "/nowhere.so"), 3, "does not exist"),
            (("--device", "gpu", "--library", "/nowhere.so"), 3, ""),
        ):
            found, out, err = script("measuring/swap_check.py", *flags)
            self.assertEqual((found, out, err.count("\n")), (code, "", 1), err)
            self.assertIn(text, err)


@unittest.skipUnless(importlib.util.find_spec("torch"), "no PyTorch")
class Training(unittest.TestCase):
    """train_beside_pytorch.py: a step in PyTorch's autograd, on the CPU executor."""

    def test_two_steps(self):
        for step, dtype, backward in (
            ("step10", "fp16", "step10 one-pass backward"),
            ("step04", "fp32", "step05 recompute backward"),
        ):
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, "curves.json")
                flags = f"--device cpu --steps 2 --batch 1 --step {step} --dtype {dtype} --out {path}"
                code, out, err = script("measuring/train_beside_pytorch.py", *flags.split(), "--library", LIBRARY)
                self.assertEqual(code, 0, out + err)
                found = json.loads(path.read_text(encoding="utf-8"))
                self.assertEqual((found["gpu"], found["backward"]), (None, backward))
                ours, theirs = found["loss"][step], found["loss"]["SDPA"]
                self.assertEqual((len(ours), len(theirs)), (2, 2))
                self.assertNotEqual(ours[0], ours[1], "it has learnt something")
                self.assertTrue(np.allclose(ours, theirs, rtol=1e-3), (ours, theirs))

    def test_what_fails(self):
        from plots.measuring import train_beside_pytorch

        nan = float("nan")
        for ours, passes in (([2.0, 1.0], True), ([2.0, 1.02], False), ([nan, 1.0], False), ([2.0, nan], False)):
            found = {"step": "step10", "dtype": "fp16", "loss": {"step10": ours, "SDPA": [2.0, 1.0]}}
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(train_beside_pytorch.passed(found), passes, ours)


if __name__ == "__main__":
    unittest.main()
