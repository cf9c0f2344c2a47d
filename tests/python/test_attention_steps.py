"""The steps through the C interface and ctypes, on the CPU executor, against attention that PyTorch computed in
float64."""

from need import BUILD, LIBRARY, REPOSITORY, need

need("numpy")
import json
import unittest

import numpy as np
from plots import programs
from plots.attention_steps import LibraryMissing, StepError, Steps

DATA = REPOSITORY / "tests" / "data"
CASES = sorted(folder.name for folder in DATA.iterdir() if (folder / "case.json").is_file())
# Far below any mistake (a scale off by 1e-3 fails it) and above rounding: exactness to 1e-6 is the steps' own check,
# not this file's.
# Two cases have large scores, whose rounding error becomes a relative error of P.
TOLERANCE = {"large_scores": 1e-4, "rising_scores": 1e-4}


def close(got, truth, case):
    """True where the two are within the tolerance of the largest magnitude, at least 1; equal infinities are equal."""
    finite = np.isfinite(truth)
    scale = max(1.0, float(np.abs(truth[finite]).max(initial=0)))
    return (
        np.array_equal(got[~finite], truth[~finite])
        and float(np.abs(got[finite] - truth[finite]).max(initial=0)) <= TOLERANCE.get(case, 2e-6) * scale
    )


class OnTheExecutor(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.steps = Steps.load(LIBRARY)
        here = [p for p in programs.described(BUILD) if p["kind"] == "attention" and p["devices"]["cpu"]]
        cls.programs = [p for p in here if "cuda-cores" in p["products"].get("fp32", [])]  # which take any head_dim

    def read(self, case):
        names = "q k v do o lse dq dk dv".split()
        tensors = {name: np.load(DATA / case / f"{name}.npy").astype(np.float32) for name in names}
        return tensors, json.loads((DATA / case / "case.json").read_text(encoding="utf-8"))["causal"]

    def test_forward_of_every_step(self):
        for case in CASES:
            t, causal = self.read(case)
            for step in (program["id"] for program in self.programs if "forward" in program["passes"]):
                with self.subTest(case=case, step=step):
                    o, lse = self.steps.forward(step, t["q"], t["k"], t["v"], causal=causal, nan=True)
                    self.assertTrue(close(o, t["o"], case))
                    self.assertTrue(close(lse, t["lse"], case))

    def test_every_backward(self):
        found = [(p["id"], method["name"]) for p in self.programs for method in p["methods"] if method["backward"]]
        self.assertIn(("step05", "recompute backward"), found)
        for case in CASES:
            t, causal = self.read(case)
            o, lse = self.steps.forward("step04", t["q"], t["k"], t["v"], causal=causal)
            for step, method in found:
                with self.subTest(case=case, step=step, method=method):
                    inputs = (t["q"], t["k"], t["v"], o, lse, t["do"])
                    gradients = self.steps.backward(step, *inputs, method=method, causal=causal, nan=True)
                    for name, gradient in zip(("dq", "dk", "dv"), gradients):
                        self.assertTrue(close(gradient, t[name], case), name)

    def test_deterministic(self):
        fixed = [
            (p["id"], method["name"])
            for p in programs.described(BUILD)
            if any(technique["option"] == "--deterministic" for technique in p["techniques"])
            for method in p["methods"]
            if method["backward"]
        ]
        generator = np.random.default_rng(1)
        q, k, v, d_o = (generator.standard_normal((1, 1, 300, 64)).astype(np.float16) for _ in range(4))
        o, lse = self.steps.forward("step04", q, k, v, causal=True)
        for step, method in fixed:
            with self.subTest(step=step):
                size = lambda **how: self.steps.plan(step, method, q, k, causal=True, **how).workspace_bytes
                self.assertGreater(size(deterministic=True), size(), "counters order the additions")
                run = lambda: self.steps.backward(
                    step, q, k, v, o, lse, d_o, method=method, causal=True, deterministic=True, nan=True
                )
                for once, again in zip(run(), run()):
                    self.assertFalse(np.isnan(once).any())
                    self.assertTrue(np.array_equal(once, again))

    def test_products(self):
        t, causal = self.read("ragged_d40")
        how, qkv = {"causal": causal, "nan": True}, (t["q"], t["k"], t["v"])
        run = lambda product: self.steps.forward("step04", *qkv, product=product, **how)
        (o, lse), (usual, _), (told, _) = run("tensor-cores"), run(None), run("cuda-cores")
        self.assertTrue(close(o, t["o"], "ragged_d40") and close(lse, t["lse"], "ragged_d40"))
        self.assertTrue(np.array_equal(usual, told), "fp32 takes the CUDA cores unless told")
        self.assertFalse(np.array_equal(usual, o), "another product rounds differently")
        for method in ("standard backward", "recompute backward"):
            backward = lambda product: self.steps.backward(
                "step05", *qkv, o, lse, t["do"], method=method, product=product, **how
            )
            found, told = backward("tensor-cores"), backward("cuda-cores")
            self.assertTrue(all(close(x, t[name], "ragged_d40") for name, x in zip(("dq", "dk", "dv"), found)), method)
            self.assertFalse(all(map(np.array_equal, found, told)), method)

    def test_scale_and_tile(self):
        t, causal = self.read("ragged_causal")
        o, _ = self.steps.forward("step04", t["q"], t["k"], t["v"], causal=causal, tile=(128, 64), nan=True)
        self.assertTrue(close(o, t["o"], "ragged_causal"))
        _, lse = self.steps.forward("step04", 0 * t["q"], t["k"], t["v"], softmax_scale=0.5, nan=True)
        self.assertTrue(np.allclose(lse, np.log(t["k"].shape[2]), atol=1e-6))

    def test_plan(self):
        q = k = np.zeros((2, 3, 200, 40), np.float32)
        plan = self.steps.plan("step04", "forward", q, k)
        self.assertEqual((plan.kernels, plan.workspace_bytes, plan.useful_flops), (1, 0, 4 * 2 * 3 * 200 * 200 * 40))
        for step, method, size in (
            ("step02", "forward", 2 * 960000),  # S and P: 2 * 3 * 200 * 200 * 4 bytes each
            ("step05", "standard backward", 3 * 960000),
            ("step05", "recompute backward", 4864),  # delta: 4800, in whole pieces of 256
        ):
            self.assertEqual(self.steps.plan(step, method, q, k).workspace_bytes, size, method)
        self.assertIn("commit", self.steps.build)

    def test_refusals(self):
        q, wide = np.zeros((1, 2, 8, 16), np.float32), np.zeros((1, 1, 2, 300), np.float32)
        wide_product = "no fp32 on tensor cores for head_dim 200; it runs with --product cuda-cores"
        half, narrower = q.astype(np.float16), wide[..., :200].copy()
        step04 = lambda *tensors, **how: lambda: self.steps.forward("step04", *tensors, **how)
        for code, text, call in (
            (2, "no step42 here; there are step01", lambda: self.steps.forward("step42", q, q, q)),
            (2, 'no method "sideways"', lambda: self.steps.plan("step04", "sideways", q, q)),
            (2, "finite", step04(q, q, q, softmax_scale=float("nan"))),
            (2, "tile 64x0", step04(q, q, q, tile=(64, 0))),
            (3, "compiled in:", step04(q, q, q, tile=(7, 7))),
            (3, wide_product, step04(narrower, narrower, narrower, product="tensor-cores")),
            (3, "--product cuda-cores is for fp32", step04(half, half, half, product="cuda-cores")),
            (3, "not 300", step04(wide, wide, wide)),
        ):
            with self.subTest(text=text):
                with self.assertRaises(StepError) as caught:
                    call()
                self.assertEqual(caught.exception.code, code)
                self.assertIn(text, str(caught.exception))
                self.assertNotIn("\n", str(caught.exception))

    def test_unaligned_tensor(self):
        memory = np.zeros(1 * 2 * 8 * 16 + 1, np.float32)
        q = np.zeros((1, 2, 8, 16), np.float32)
        odd = memory[1:].reshape(q.shape) if memory.ctypes.data % 16 == 0 else memory[:-1].reshape(q.shape)
        with self.assertRaisesRegex(StepError, "k is not aligned to 16 bytes"):
            self.steps.forward("step04", q, odd, q)

    def test_tensors_that_do_not_fit(self):
        q = np.zeros((1, 2, 8, 16), np.float32)
        for text, call in (
            ("differ", lambda: self.steps.forward("step04", q, q[:, :1], q)),
            ("v must have the shape \\(1, 2, 8, 16\\), not", lambda: self.steps.forward("step04", q, q, q[:, :, :4])),
            ("k must be contiguous", lambda: self.steps.forward("step04", q, np.asfortranarray(q + 1), q)),
            ("v must be float32, not float16", lambda: self.steps.forward("step04", q, q, q.astype(np.float16))),
            ("sizes must be positive", lambda: self.steps.plan("step04", "forward", q[:, :, :0], q)),
            ("sizes must be positive", lambda: self.steps.forward("step04", *[q[..., :0]] * 3)),
            ("float64", lambda: self.steps.forward("step04", *[q.astype(float)] * 3)),
            ("product 'vector-cores'", lambda: self.steps.forward("step04", q, q, q, product="vector-cores")),
            ("must be \\[batch", lambda: self.steps.forward("step04", q[0], q[0], q[0])),
        ):
            with self.subTest(text=text), self.assertRaisesRegex(ValueError, text):
                call()

    def test_no_library(self):
        with self.assertRaisesRegex(LibraryMissing, "does not exist"):
            Steps.load("nowhere/libattention_steps.so")
        with self.assertRaisesRegex(LibraryMissing, "cannot be used"):
            Steps.load(__file__)


if __name__ == "__main__":
    unittest.main()
