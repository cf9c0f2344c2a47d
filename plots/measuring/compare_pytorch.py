#!/usr/bin/env python3
"""PyTorch's attention and this repository's steps in one process, on the same tensors: time, memory, error, kernels.

    python3 plots/measuring/compare_pytorch.py --dtype fp16 --batch 4 --heads 32 --seqlen 4096 --head-dim 64 [--causal] [--json FILE]

Rows: eager (softmax(q k^T scale) v), torch.compile of it, SDPA with each of its backends and as PyTorch chooses, and
every step that has the dtype, through libattention_steps.so, in fp32 on each of its products. Without the library
PyTorch alone is compared, and the report says so. What a dtype, a GPU or this PyTorch lacks shows n/a and why.
docs/compare-pytorch.md defines every column. Exit codes: 0 ok, 1 a step's error is too large, 2 bad arguments, 3 no
CUDA GPU or no PyTorch, 4 CUDA error or out of memory."""

import gc
import importlib.util
import json
import math
import pathlib
import platform
import sys
import types
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.attention_steps import LibraryMissing, StepError, Steps
from plots.programs import CANNOT_SERVE, PRODUCTS, described, methods_of, products_of
from plots.results import driver_version, on_product
from plots.script import OneLineParser, Stop, end_with, positive, table_text, write_whole

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from plots.measuring.torch_measure import (
        Clock,
        errors,
        extra_bytes,
        first_line,
        forget_imports,
        kernels_of,
        measure,
        reference,
        worst_error,
    )
except ImportError as error:
    torch, why_no_torch = None, str(error)

TORCH_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
# The steps' bounds on the relative L2 error (docs/exactness.md): in fp32 of their own, in half precision beside
# eager's.
FP32_BOUND = {"forward": 1e-6, "backward": 2e-6}
TIMES_EAGER = 2
BACKWARD_FLOPS = 2.5  # of the forward's, by convention
SECONDS = {"compare": 0.5, "table": 0.3}  # of timed runs per method: one configuration may take more than each of many


# ---- the methods: forward(q, k, v) -> o, and begin_backward(q, k, v, d_o) -> a function that returns (dq, dk, dv)
# -------------


class TorchMethod:
    """A function of q, k, v that autograd can go through."""

    ours, passes = False, ("forward", "backward")

    def __init__(self, name, function):
        self.name, self.function = name, function

    def forward(self, q, k, v):
        with torch.no_grad():
            return self.function(q, k, v)

    def begin_backward(self, q, k, v, d_o):
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        o = self.function(q, k, v)
        return lambda: torch.autograd.grad(o, (q, k, v), d_o)


class StepForward:
    ours, passes = True, ("forward",)

    def __init__(self, steps, step, causal, product=None):
        self.name, self.steps, self.step = on_product(step, product), steps, step
        self.problem = {"causal": causal, "product": product}

    def forward(self, q, k, v, nan=False):
        return self.steps.forward(self.step, q, k, v, **self.problem, nan=nan)[0]


class StepBackward:
    """A method of a step's backward; o and lse come from `before`, a step with a forward."""

    ours, passes = True, ("backward",)

    def __init__(self, steps, name, step, method, before, causal, product=None):
        self.name = on_product(name, product)
        self.steps, self.step, self.method, self.before = steps, step, method, before
        self.problem = {"causal": causal, "product": product}

    def begin_backward(self, q, k, v, d_o, nan=False):
        o, lse = self.steps.forward(self.before, q, k, v, **self.problem, nan=nan)
        run = self.steps.prepare(self.step, q, k, v, o, lse, method=self.method, **self.problem)
        return lambda: run(d_o, nan=nan)


def step_methods(steps, programs, dtype, causal):
    """Every described step that has the dtype: its backwards where it has any, else its forward; in fp32 those on
    tensor cores come after all on CUDA cores."""
    methods = []
    here = [program for program in programs if program["kind"] == "attention"]
    for product in PRODUCTS if dtype == "fp32" else (None,):
        served = [program for program in here if product in products_of(program, dtype)]
        for program in served:
            step = program["id"]
            forwards = [other["id"] for other in [program, *served] if "forward" in other["passes"]]
            backwards = [method["name"] for method in program["methods"] if method["backward"]]
            names = [name for name, _ in methods_of(program)]
            for name, method in zip(names, backwards if forwards else ()):
                methods.append(StepBackward(steps, name, step, method, forwards[0], causal, product))
            methods += [] if backwards else [StepForward(steps, step, causal, product)]
    return methods


def torch_methods(seqlen, causal, device):
    """eager, torch.compile(eager) and SDPA. Eager's causal mask is made once, as a model keeps it."""
    hidden = torch.ones(seqlen, seqlen, dtype=torch.bool, device=device).triu(1) if causal else None

    def eager(q, k, v):
        s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if hidden is not None:
            s = s.masked_fill(hidden, -math.inf)
        return torch.softmax(s, -1) @ v

    def sdpa(backend):
        def function(q, k, v):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return function

    methods = [TorchMethod("eager", eager), TorchMethod("torch.compile(eager)", torch.compile(eager))]
    for name, backend in (
        ("math", "MATH"),
        ("efficient", "EFFICIENT_ATTENTION"),
        ("flash", "FLASH_ATTENTION"),
        ("cuDNN", "CUDNN_ATTENTION"),
    ):
        if hasattr(SDPBackend, backend):
            methods.append(TorchMethod(f"SDPA {name}", sdpa(getattr(SDPBackend, backend))))
    methods.append(
        TorchMethod("SDPA, its choice", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal))
    )
    return methods


def why_sdpa_refused(caught, name):
    """SDPA says why a backend cannot serve in warnings, a heading per backend; "" when there are none for this one."""
    wanted = {"SDPA efficient": "memory efficient", "SDPA flash": "flash attention", "SDPA cuDNN": "cudnn"}.get(name)
    reasons, mine = [], False
    for warning in caught:
        text = str(warning.message).split(" (Triggered internally")[0].strip()
        if "not used because" in text:
            mine = wanted is not None and text.lower().startswith(wanted)
        elif mine and "runtime disabled" not in text:
            reasons.append(text)
    return "; ".join(dict.fromkeys(reasons))


# ---- one pass over all methods
# ------------------------------------------------------------------------------------------------


def still_alive():
    """Raises when the CUDA context is lost: then nothing that follows would be a result."""
    torch.cuda.synchronize()


def work_of(which, method, tensors):
    """(start, checked, bytes of the results): start() does what is not timed and returns the run; checked() runs all of
    it once and returns the outputs, ours filled with NaN beforehand."""
    q, k, v, d_o = tensors
    size = lambda *xs: sum(x.numel() * x.element_size() for x in xs)
    nan = {"nan": True} if method.ours else {}
    if which == "forward":
        return lambda: lambda: method.forward(q, k, v), lambda: (method.forward(q, k, v, **nan),), size(q)
    return (
        lambda: method.begin_backward(q, k, v, d_o),
        lambda: method.begin_backward(q, k, v, d_o, **nan)(),
        size(q, q, k, v),
    )  # o, dq, dk, dv


def try_once(row, which, method, tensors, truth):
    """Sets the row's errors and extra memory, or why it cannot run. Returns its start() of work_of()."""
    start, checked, results = work_of(which, method, tensors)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outputs = dict(zip(("o",) if which == "forward" else ("dq", "dk", "dv"), checked()))
            row["errors"] = errors(outputs, truth)
            del outputs
            # checked() was the first call: what that allocates once and keeps is no method's memory.
            row["extra_bytes"] = extra_bytes(lambda: start()(), results)
        except StepError as error:
            if error.code != CANNOT_SERVE:
                raise
            row["not_run"] = str(error)
        except (RuntimeError, ImportError) as error:
            row["not_run"] = why_sdpa_refused(caught, method.name) or first_line(error)
    gc.collect()
    still_alive()
    if row["not_run"]:
        torch.cuda.empty_cache()
    return start


def profile(row, start):
    """Sets the row's kernels, or why they are not known."""
    try:
        work = start()
        torch.cuda.synchronize()
        kernels, row["copies"] = kernels_of(work)
        if not kernels:
            raise RuntimeError("torch.profiler recorded no kernel")
        row["kernels"] = [{"name": kernel, "us": us} for kernel, us in kernels]
    except RuntimeError as error:
        row["kernels"], row["kernels_reason"] = None, first_line(error)
        still_alive()


def run_pass(which, methods, tensors, truth, clock, options, seconds=0.5):
    """The rows of `which` ("forward" or "backward"), in the methods' order; `seconds` of timed runs per method, and at
    least 20 runs."""
    rows, starts = [], {}
    for method in methods:
        if which in method.passes:
            rows.append({"method": method.name, "ours": method.ours, "not_run": None})
            start = try_once(rows[-1], which, method, tensors, truth)
            if not rows[-1]["not_run"]:
                starts[method.name] = start

    times, lost = measure(starts, clock, options.repeat, seconds)
    flops = (
        4
        * options.head_dim
        * options.batch
        * options.heads
        * visible_pairs(options.seqlen, options.causal)
        * (BACKWARD_FLOPS if which == "backward" else 1)
    )
    for row in rows:
        name = row["method"]
        row["not_run"] = row["not_run"] or lost.get(name)
        if not row["not_run"]:
            row["time"], row["flops"], row["tflops"] = times[name], flops, flops / times[name]["median_ms"] / 1e9
            profile(row, starts[name])
    judge(which, rows, options)
    return rows


def visible_pairs(n, causal):
    return n * (n + 1) // 2 if causal else n * n


def judge(which, rows, options):
    """Sets "pass" of our rows, None where there is nothing to judge by."""
    eager = next((row for row in rows if row["method"] == "eager" and not row["not_run"]), None)
    for row in rows:
        if not row["ours"] or row["not_run"]:
            continue
        if (
            min(
                options.seqlen / 16,
                options.head_dim / 8,
                options.batch * options.heads * options.seqlen * options.head_dim / 1024,
            )
            < 1
        ):
            row["pass"] = None  # too small: a correct result's errors need not average out
        elif options.dtype == "fp32":
            bound = FP32_BOUND[which] * math.sqrt(max(1, options.seqlen / 4096))
            row["pass"] = all(
                error["relative_l2"] is not None and error["relative_l2"] <= bound for error in row["errors"].values()
            )
        elif eager:
            row["pass"] = all(
                error["relative_l2"] is not None
                and error["relative_l2"] <= TIMES_EAGER * (eager["errors"][name]["relative_l2"] or math.inf)
                for name, error in row["errors"].items()
            )
        else:
            row["pass"] = None


# ---- the report
# -----------------------------------------------------------------------------------------------------------------


def table(rows):
    """A heading and a line per method."""
    eager = next((row["time"]["median_ms"] for row in rows if row["method"] == "eager" and not row["not_run"]), None)
    lines = ["method|ms|p10|p90|TFLOP/s|x eager|extra MiB|relative L2|max abs|of allowance|kernels|longest".split("|")]
    for row in rows:
        if row["not_run"]:
            lines.append([row["method"], f"n/a: {row['not_run']}"])
            continue
        ms, kernels = row["time"], row["kernels"]
        worst = {key: worst_error(row["errors"], key) for key in ("relative_l2", "max_abs", "worst_share")}
        text = lambda key, form: (
            "n/a" if worst[key] is None else "not finite" if math.isinf(worst[key]) else format(worst[key], form)
        )
        verdict = " FAIL" if row.get("pass") is False else ""
        lines.append(
            [
                row["method"],
                *(f"{ms[key]:.3f}" for key in ("median_ms", "p10_ms", "p90_ms")),
                f"{row['tflops']:.3g}",
                "n/a" if eager is None else f"{eager / ms['median_ms']:.2f}",
                f"{row['extra_bytes'] / 2**20:.1f}",
                text("relative_l2", ".1e") + verdict,
                text("max_abs", ".1e"),
                text("worst_share", ".2f"),
                "n/a" if kernels is None else str(len(kernels)),
                row["kernels_reason"]
                if kernels is None
                else max(kernels, key=lambda kernel: kernel["us"])["name"].removeprefix("void ")[:60],
            ]
        )
    return table_text(lines, free=True)


def versions(build, why_no_steps):
    triton = None
    if importlib.util.find_spec("triton"):
        import triton as module

        triton = module.__version__
    return {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "cuda_of_torch": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "triton": triton,
        "driver": driver_version(),
        "python": platform.python_version(),
        "steps": build,
        "steps_reason": why_no_steps,
    }


def make_tensors(problem, device="cuda"):
    """q, k, v, d_o: standard normal, v with mean 0.5 (with mean 0 the outputs shrink as 1/sqrt(N) and hide errors)."""
    generator = torch.Generator(device).manual_seed(problem.seed)
    shape = (problem.batch, problem.heads, problem.seqlen, problem.head_dim)
    q, k, v, d_o = (torch.randn(shape, generator=generator, device=device) for _ in range(4))
    return tuple(x.to(getattr(torch, TORCH_DTYPES[problem.dtype])) for x in (q, k, v + 0.5, d_o))


def both_passes(problem, methods, passes, seconds, told=lambda which, rows: None):
    """({pass: rows}, the clock) of the methods at one problem. Raises RuntimeError (out of memory too)."""
    torch.set_float32_matmul_precision("highest")  # no TF32 in eager's products
    forget_imports()
    tensors = make_tensors(problem)
    truth = reference(*tensors[:3], tensors[3] if "backward" in passes else None, problem.causal)
    clock = Clock(torch.cuda.get_device_properties(0).L2_cache_size)
    found = {}
    for which in passes:
        found[which] = run_pass(which, methods, tensors, truth, clock, problem, seconds)
        told(which, found[which])
    return found, clock


# ---- PyTorch's rows of the speedup table: measure_rows.py calls these in a process of their own
# -----------------------------


def begin():
    """{"versions": ...}, or {"missing": why there are no PyTorch rows}."""
    if torch is None:
        return {"missing": f"PyTorch is not installed ({why_no_torch})"}
    if not torch.cuda.is_available():
        return {"missing": f"PyTorch {torch.__version__} sees no CUDA GPU"}
    return {"versions": versions(None, None)}


def rows_of(asked):
    """{pass: rows} of the passes and methods asked for; {"failed": why} after an error that leaves the process
    unusable."""
    problem = types.SimpleNamespace(**asked, repeat=None, seed=0)
    methods = [
        method for method in torch_methods(problem.seqlen, problem.causal, "cuda") if method.name in problem.methods
    ]
    try:
        found, _ = both_passes(problem, methods, problem.passes, SECONDS["table"])
    except torch.cuda.OutOfMemoryError as error:
        rows = [{"method": method.name, "not_run": first_line(error)} for method in methods]
        found = dict.fromkeys(problem.passes, rows)
    except RuntimeError as error:
        return {"failed": first_line(error)}
    torch.cuda.empty_cache()
    return found


# ---- command line
# -----------------------------------------------------------------------------------------------------


def our_methods(options):
    """(methods, library's build, why there are none)."""
    if options.no_steps:
        return [], None, "not asked for (--no-steps)"
    try:
        steps = Steps.load(options.library)
    except LibraryMissing as error:
        return [], None, str(error)
    programs = described(steps.path.parent)
    if not programs:
        return [], None, f"no programs beside {steps.path} to say what the steps serve; make steps builds them"
    return step_methods(steps, programs, options.dtype, options.causal), steps.build, None


def compare(options):
    """Runs everything; returns (result, ok)."""
    ours, build, why_no_steps = our_methods(options)
    problem = {
        key: getattr(options, key) for key in ("dtype", "batch", "heads", "seqlen", "head_dim", "causal", "seed")
    }
    v = versions(build, why_no_steps)
    print(
        f"{v['gpu']}, driver {v['driver'] or 'n/a'}; PyTorch {v['torch']} (CUDA {v['cuda_of_torch']}, "
        f"cuDNN {v['cudnn']}, "
        f"Triton {v['triton'] or 'n/a'}), Python {v['python']}"
    )
    print(f"steps: {build or 'n/a: ' + why_no_steps}")
    print(
        f"{options.dtype}, batch {options.batch}, heads {options.heads}, N {options.seqlen}, d {options.head_dim}"
        f"{', causal' if options.causal else ''}; TF32 off"
    )

    def told(which, rows):
        print(
            f"\n{which}{'' if which == 'forward' else ' (extra MiB: forward and backward together, beyond o, dq, dk, dv)'}"
        )
        print("\n".join(table(rows)), flush=True)

    passes = ("forward",) if options.no_backward else ("forward", "backward")
    methods = [*torch_methods(options.seqlen, options.causal, "cuda"), *ours]
    found, clock = both_passes(options, methods, passes, SECONDS["compare"], told)
    flush = {"bytes": clock.flush_bytes, "passes": clock.passes, "ms": clock.passes * clock.pass_ms}
    print(f"\nL2 flush before each run: {flush['passes']} reads of {flush['bytes'] / 1e6:.0f} MB, {flush['ms']:.2f} ms")
    ran = [row for rows in found.values() for row in rows if not row["not_run"]]
    late = ", ".join(f"{row['method']} {row['time']['late_runs']}" for row in ran if row["time"]["late_runs"])
    if late:
        print(f"runs that the GPU reached before the host had enqueued them (launch time in the figure): {late}")
    failed = [row["method"] for row in ran if row.get("pass") is False]
    judged = any(row.get("pass") for row in ran)
    rule = (
        "at most 1e-6, gradients 2e-6 (times sqrt(N/4096) beyond 4096)"
        if options.dtype == "fp32"
        else f"at most {TIMES_EAGER}x eager's"
    )
    print(
        f"exactness of the steps (relative L2 {rule}): "
        f"{'FAIL: ' + ', '.join(failed) if failed else 'PASS' if judged else 'not judged'}"
    )
    return {"kind": "compare_pytorch", "versions": v, "problem": problem, **found, "flush": flush}, not failed


def parse(arguments=None):
    parser = OneLineParser(__doc__)
    parser.add_argument("--dtype", choices=tuple(TORCH_DTYPES), default="fp16")
    parser.add_argument("--batch", type=positive, default=4)
    parser.add_argument("--heads", type=positive, default=32)
    parser.add_argument("--seqlen", type=positive, default=4096)
    parser.add_argument("--head-dim", type=positive, default=64)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--no-backward", action="store_true")
    parser.add_argument("--no-steps", action="store_true", help="PyTorch alone")
    parser.add_argument("--library", help="libattention_steps.so, its programs beside it (the newest in build*/)")
    parser.add_argument(
        "--repeat", type=positive, help="rounds of timed runs (at least 20, and half a second per method)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=pathlib.Path, help="writes everything, kernels' names too, to this file")
    options = parser.parse_args(arguments)
    parser.writable(options.json)
    return options


def main():
    options = parse()
    instead = "./step04 and plots/measuring/swap_check.py run without a GPU, on the CPU executor"
    missing = begin().get("missing")
    if missing:
        raise Stop(
            f"{missing}, and there is nothing to time without both (PyTorch 2.3 or newer); {instead}", CANNOT_SERVE
        )
    try:
        result, ok = compare(options)
    except StepError as error:
        raise Stop(error, error.code) from error
    except RuntimeError as error:
        raise Stop(first_line(error), 4) from error
    if options.json:
        write_whole(options.json, json.dumps(result, indent=1, allow_nan=False) + "\n")
    return 0 if ok else 1


if __name__ == "__main__":
    end_with(main)
