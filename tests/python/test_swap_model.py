"""The NumPy model of the swap check: its hand-written backward, its text, and the verdict on a wrong attention."""
from need import need

need("numpy")
import contextlib
import io
import unittest

import model
import numpy as np
import swap_check


def small_model(dtype=np.float64):
    """Two layers, 2 heads of 4, context 6, 5 characters, with random weights; inputs and targets [2, 6]."""
    draw = np.random.default_rng(1)
    width, characters, context = 8, 5, 6
    weights = {"token": (characters, width), "position": (context, width), "norm": (width,), "bias": (width,), "head": (width, characters)}
    for layer in range(2):
        weights |= {f"{layer}.qkv": (width, 3 * width), f"{layer}.out": (width, width), f"{layer}.up": (width, 4 * width), f"{layer}.down": (4 * width, width)}
        weights |= {f"{layer}.{name}": (width,) for name in ("norm1", "bias1", "norm2", "bias2")}
    weights = {name: draw.normal(size=shape).astype(dtype) for name, shape in weights.items()}
    return weights, {"layers": 2, "heads": 2, "context": context}, draw.integers(characters, size=(2, context)), draw.integers(characters, size=(2, context))


class Model(unittest.TestCase):
    def test_gradients_are_the_losss_slopes(self):
        weights, *rest = small_model()
        _, _, gradients = model.run(weights, *rest, model.EagerAttention)
        self.assertEqual(set(gradients), set(weights))
        draw, step = np.random.default_rng(2), 1e-5
        for name in weights:  # along a random direction, by central differences: their error is of the order of step^2
            direction = draw.normal(size=weights[name].shape)
            losses = [model.run({**weights, name: weights[name] + sign * step * direction}, *rest, model.EagerAttention)[1] for sign in (1, -1)]
            slope = (losses[0] - losses[1]) / (2 * step)
            self.assertAlmostEqual(float((gradients[name] * direction).sum()), slope, delta=1e-7 * max(1, abs(slope)), msg=name)

    def test_fp32_stays_fp32(self):
        logits, _, gradients = model.run(*small_model(np.float32), model.EagerAttention)
        self.assertEqual(logits.dtype, np.float32)
        self.assertEqual({g.dtype for g in gradients.values()}, {np.dtype(np.float32)})

    def test_texts(self):
        weights, config = model.load_model()
        train, test = ((model.FOLDER / name).read_text() for name in ("train.txt", "test.txt"))
        self.assertTrue(set(test) <= set(config["characters"]))
        self.assertFalse(set(train.strip().split("\n\n")) & set(test.strip().split("\n\n")), "a test scene stands in the training set")
        self.assertLess((model.FOLDER / "weights.npz").stat().st_size, 1_000_000)
        with self.assertRaisesRegex(ValueError, "does not know"):
            model.encode("§", config)
        with self.assertRaisesRegex(ValueError, "context"):
            model.sequences(np.arange(10), 256)

    def test_the_model_is_trained(self):
        weights, config = model.load_model()
        tokens = model.encode((model.FOLDER / "test.txt").read_text(), config)
        _, loss, _ = model.run(weights, config, *model.sequences(tokens, config["context"]), model.EagerAttention)
        frequencies = np.bincount(tokens) / len(tokens)
        entropy = -sum(p * np.log(p) for p in frequencies if p > 0)  # the loss of one who only knows how often each character comes
        self.assertLess(loss, entropy / 4)

    def test_verdict(self):
        truth = model.run(*small_model(), model.EagerAttention)
        eager = model.run(*small_model(np.float32), model.EagerAttention)
        fp32 = swap_check.NumpyModel(*small_model(np.float32))

        class Wrong(model.EagerAttention):
            factor, in_backward = 1.0, 1.0

            @classmethod
            def forward(cls, q, k, v):
                o, saved = model.EagerAttention.forward(q, k, v)
                return o * np.float32(cls.factor), saved

            @classmethod
            def backward(cls, saved, d_o):
                dq, dk, dv = model.EagerAttention.backward(saved, d_o)
                return dq * np.float32(cls.in_backward), dk, dv

        for factor, in_backward, passes in ((1, 1, True), (1.0001, 1, False), (np.nan, 1, False), (1, 1.0001, False), (1, np.nan, False)):
            Wrong.factor, Wrong.in_backward = factor, in_backward
            with self.subTest(factor=factor, in_backward=in_backward), contextlib.redirect_stdout(io.StringIO()) as printed:
                swapped = model.run(*small_model(np.float32), Wrong)
                self.assertEqual(swap_check.report(fp32, truth, eager, swapped), passes)
                self.assertIn("PASS" if passes else "FAIL", printed.getvalue())


    def test_the_product_reaches_the_steps(self):
        asked, saved = [], []  # layer after layer, and back

        class Steps:
            def forward(self, step, q, k, v, *, causal, product, nan):
                asked.append((step, product))
                o, kept = model.EagerAttention.forward(q, k, v)
                saved.append(kept)
                return o, None

            def backward(self, step, q, k, v, o, lse, d_o, *, method, causal, product, nan):
                asked.append((step, product))
                return model.EagerAttention.backward(saved.pop(), d_o)

        swap_check.NumpyModel(*small_model(np.float32)).swapped(Steps(), "tensor-cores")
        self.assertEqual(set(asked), {("step04", "tensor-cores"), ("step05", "tensor-cores")})


class InHalf(unittest.TestCase):
    class Steps:
        """Right attention in fp32 on what it is handed, times `factor`; notes the shapes."""

        def __init__(self, factor=1.0):
            self.factor, self.seen = factor, set()

        def forward(self, step, q, k, v, *, causal, softmax_scale, nan):
            self.seen.add((step, q.dtype.name, q.shape[-1], softmax_scale))
            q, k, v = (x.astype(np.float32) for x in (q, k, v))
            o, _ = model.EagerAttention.forward(q * np.float32(softmax_scale * q.shape[-1] ** 0.5), k, v)
            return (o * np.float32(self.factor)).astype(np.float16), None

    def judged(self, step, factor):
        truth = model.run(*small_model(), model.EagerAttention)
        fp32, steps = swap_check.NumpyModel(*small_model(np.float32)), self.Steps(factor)
        with contextlib.redirect_stdout(io.StringIO()):
            return swap_check.report_half(fp32, truth, *fp32.in_half(steps, step), step), steps.seen

    def test_columns_are_added_where_a_step_needs_them(self):
        for step, head_dim in (("step06", 4), ("step07", 64), ("step08", 64)):
            passed, seen = self.judged(step, 1)
            self.assertTrue(passed)
            self.assertEqual(seen, {(step, "float16", head_dim, 0.5)})

    def test_a_wrong_attention_is_rejected(self):
        for factor in (1.02, np.nan):
            self.assertFalse(self.judged("step06", factor)[0])


if __name__ == "__main__":
    unittest.main()
