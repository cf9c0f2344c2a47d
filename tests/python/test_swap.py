"""The swap check's model and verdict: its hand-written backward, its text, and what a wrong attention gets."""

from need import need, script

need("numpy")
import contextlib
import io
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
    weights = {
        "token": (characters, width),
        "position": (context, width),
        "norm": (width,),
        "bias": (width,),
        "head": (width, characters),
    }
    for layer in range(2):
        weights |= {
            f"{layer}.qkv": (width, 3 * width),
            f"{layer}.out": (width, width),
            f"{layer}.up": (width, 4 * width),
            f"{layer}.down": (4 * width, width),
        }
        weights |= {f"{layer}.{name}": (width,) for name in ("norm1", "bias1", "norm2", "bias2")}
    weights = {name: draw.normal(size=shape).astype(dtype) for name, shape in weights.items()}
    return (
        weights,
        {"layers": 2, "heads": 2, "context": context},
        draw.integers(characters, size=(2, context)),
        draw.integers(characters, size=(2, context)),
    )


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
        dq, dk, dv = model.EagerAttention.backward(self.saved.pop(), d_o)
        return dq * np.float32(self.in_backward), dk, dv


def judged(steps, step="step04", product=None):
    """(verdict, its last line) of the swap check with these steps."""
    attention = swap_check.served(steps, step, 4, product, False)
    with_gradients = attention.dtype == "float32"
    truth = model.run(*small_model(), model.EagerAttention, with_gradients)
    eager = model.EagerAttention if with_gradients else swap_check.half_eager(model)
    results = [model.run(*small_model(np.float32), way, with_gradients) for way in (eager, attention)]
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
            self.assertEqual(steps.seen, {("step42", None, "float16", width, 0.5)})
        for factor in (1.02, np.nan):
            self.assertFalse(judged(FakeSteps(("float16",), factor=factor))[0])
        with self.assertRaisesRegex(StepError, "not float16 128"):
            judged(FakeSteps(()))

    def test_what_is_missing(self):
        for flags, code, text in (
            (("--library", "/nowhere.so"), 3, "does not exist"),
            (("--device", "gpu", "--library", "/nowhere.so"), 3, ""),
        ):
            found, out, err = script("measuring/swap_check.py", *flags)
            self.assertEqual((found, out, err.count("\n")), (code, "", 1), err)
            self.assertIn(text, err)


if __name__ == "__main__":
    unittest.main()
