#!/usr/bin/env python3
"""PyTorch's attention and this repository's steps in one process, on the same tensors: time, memory, error, kernels.

    python3 plots/compare_pytorch.py --dtype fp16 --batch 4 --heads 32 --seqlen 4096 --head-dim 64 [--causal] [--json FILE]

Rows: eager (softmax(q k^T scale) v), torch.compile of it, SDPA with each of its backends and as PyTorch chooses, and the steps from
02 on through libattention_steps.so, in fp32 step04 and step05 on tensor cores too (--product of the steps). Without the library PyTorch
alone is compared, and the report says so. What a dtype, a GPU or this PyTorch lacks shows n/a and why. docs/compare-pytorch.md defines every column.
Exit codes: 0 ok, 1 a step's error is too large, 2 bad arguments, 3 no CUDA GPU or no PyTorch, 4 CUDA error or out of memory.
"""
import argparse
import gc
import importlib.util
import json
import math
import os
import pathlib
import platform
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from attention_steps import LibraryMissing, StepError, Steps
from measure_rows import IN_HALF_ALONE, ON_TENSOR_CORES
from results import CUDA_CORES, PRODUCTS, TENSOR_CORES, driver_version, on_product
from script import OneLineParser, positive, write_whole

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from torch_measure import Clock, errors, extra_bytes, first_line, forget_imports, kernels_of, measure, reference, short_name, worst_error
except ImportError as error:
    torch, why_no_torch = None, str(error)

TORCH_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
FORWARD_STEPS = ("step02", "step03", "step04", "step06", "step07", "step08")
BACKWARD_METHODS = (("step05", "standard backward"), ("step05", "recompute backward"))
# The steps' bounds on the relative L2 error (docs/exactness.md): in fp32 of their own, in half precision beside eager's.
FP32_BOUND = {"forward": 1e-6, "backward": 2e-6}
TIMES_EAGER = 2
BACKWARD_FLOPS = 2.5  # of the forward's, by convention


# ---- the methods: forward(q, k, v) -> o, and begin_backward(q, k, v, d_o) -> a function that returns (dq, dk, dv) -------------


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
    ours, passes = True, ("backward",)

    def __init__(self, steps, step, method, causal, product=None):
        self.name, self.steps, self.step, self.method = on_product(f"{step} {method.split()[0]}", product), steps, step, method
        self.problem = {"causal": causal, "product": product}

    def begin_backward(self, q, k, v, d_o, nan=False):
        o, lse = self.steps.forward("step04", q, k, v, **self.problem, nan=nan)
        run = self.steps.prepare(self.step, q, k, v, o, lse, method=self.method, **self.problem)
        return lambda: run(d_o, nan=nan)


def step_methods(steps, dtype, causal):
    """Our forwards and backwards; in fp32 those that are told on tensor cores come after all on CUDA cores."""
    methods = []
    for product in PRODUCTS if dtype == "fp32" else (None,):
        told = lambda step: {TENSOR_CORES: step in ON_TENSOR_CORES, CUDA_CORES: step not in IN_HALF_ALONE}.get(product, True)
        methods += [StepForward(steps, step, causal, product) for step in FORWARD_STEPS if told(step)]
        methods += [StepBackward(steps, step, method, causal, product) for step, method in BACKWARD_METHODS if told(step)]
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
    for name, backend in (("math", "MATH"), ("efficient", "EFFICIENT_ATTENTION"), ("flash", "FLASH_ATTENTION"), ("cuDNN", "CUDNN_ATTENTION")):
        if hasattr(SDPBackend, backend):
            methods.append(TorchMethod(f"SDPA {name}", sdpa(getattr(SDPBackend, backend))))
    methods.append(TorchMethod("SDPA, its choice", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)))
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


# ---- one pass over all methods ------------------------------------------------------------------------------------------------


def still_alive():
    """Raises when the CUDA context is lost: then nothing that follows would be a result."""
    torch.cuda.synchronize()


def work_of(which, method, tensors):
    """(start, checked, bytes of the results): start() does what is not timed and returns the run; checked() runs all of it once and
    returns the outputs, ours filled with NaN beforehand."""
    q, k, v, d_o = tensors
    size = lambda *xs: sum(x.numel() * x.element_size() for x in xs)
    nan = {"nan": True} if method.ours else {}
    if which == "forward":
        return lambda: lambda: method.forward(q, k, v), lambda: (method.forward(q, k, v, **nan),), size(q)
    return lambda: method.begin_backward(q, k, v, d_o), lambda: method.begin_backward(q, k, v, d_o, **nan)(), size(q, q, k, v)  # o, dq, dk, dv


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
            if error.code != 3:
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
    """The rows of `which` ("forward" or "backward"), in the methods' order; `seconds` of timed runs per method, and at least 20 runs."""
    rows, starts = [], {}
    for method in methods:
        if which in method.passes:
            rows.append({"method": method.name, "ours": method.ours, "not_run": None})
            start = try_once(rows[-1], which, method, tensors, truth)
            if not rows[-1]["not_run"]:
                starts[method.name] = start

    times, lost = measure(starts, clock, options.repeat, seconds)
    flops = 4 * options.head_dim * options.batch * options.heads * visible_pairs(options.seqlen, options.causal) * (BACKWARD_FLOPS if which == "backward" else 1)
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
        if min(options.seqlen / 16, options.head_dim / 8, options.batch * options.heads * options.seqlen * options.head_dim / 1024) < 1:
            row["pass"] = None  # too small: a correct result's errors need not average out
        elif options.dtype == "fp32":
            bound = FP32_BOUND[which] * math.sqrt(max(1, options.seqlen / 4096))
            row["pass"] = all(error["relative_l2"] is not None and error["relative_l2"] <= bound for error in row["errors"].values())
        elif eager:
            row["pass"] = all(error["relative_l2"] is not None and error["relative_l2"] <= TIMES_EAGER * (eager["errors"][name]["relative_l2"] or math.inf)
                              for name, error in row["errors"].items())
        else:
            row["pass"] = None


# ---- the report -----------------------------------------------------------------------------------------------------------------


def table(rows):
    """Lines: a heading, one line per method."""
    eager = next((row["time"]["median_ms"] for row in rows if row["method"] == "eager" and not row["not_run"]), None)
    lines = [["method", "ms", "p10", "p90", "TFLOP/s", "x eager", "extra MiB", "relative L2", "max abs", "of allowance", "kernels", "longest kernel"]]
    last = len(lines[0]) - 1
    notes = {}
    for row in rows:
        if row["not_run"]:
            notes[len(lines)] = f"n/a: {row['not_run']}"
            lines.append([row["method"]] + [""] * last)
            continue
        ms, kernels = row["time"], row["kernels"]
        error = lambda key, form=".1e": "not finite" if math.isinf(worst_error(row["errors"], key)) else f"{worst_error(row['errors'], key):{form}}"
        shares = all("worst_share" in output for output in row["errors"].values())
        verdict = "" if row.get("pass") is not False else " FAIL"
        lines.append([row["method"], f"{ms['median_ms']:.3f}", f"{ms['p10_ms']:.3f}", f"{ms['p90_ms']:.3f}", f"{row['tflops']:.3g}",
                      "n/a" if eager is None else f"{eager / ms['median_ms']:.2f}", f"{row['extra_bytes'] / 2**20:.1f}", error("relative_l2") + verdict,
                      error("max_abs"), error("worst_share", ".2f") if shares else "n/a", "n/a" if kernels is None else str(len(kernels)),
                      row["kernels_reason"] if kernels is None else short_name(max(kernels, key=lambda kernel: kernel["us"])["name"])])
    widths = [max(len(line[column]) for n, line in enumerate(lines) if n not in notes or column == 0) for column in range(last + 1)]
    for n, line in enumerate(lines):
        if n in notes:
            yield f"{line[0].ljust(widths[0])}  {notes[n]}"
        else:
            yield "  ".join(cell.ljust(width) if column in (0, last) else cell.rjust(width) for column, (cell, width) in enumerate(zip(line, widths))).rstrip()


def versions(steps, why_no_steps):
    triton = None
    if importlib.util.find_spec("triton"):
        import triton as module
        triton = module.__version__
    return {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "cuda_of_torch": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "triton": triton,
            "driver": driver_version(), "python": platform.python_version(), "steps": steps.build if steps else None, "steps_reason": why_no_steps}


def make_tensors(options, device="cuda"):
    """q, k, v, d_o: standard normal, v with mean 0.5 (with mean 0 the outputs shrink as 1/sqrt(N) and hide errors)."""
    generator = torch.Generator(device).manual_seed(options.seed)
    shape = (options.batch, options.heads, options.seqlen, options.head_dim)
    q, k, v, d_o = (torch.randn(shape, generator=generator, device=device) for _ in range(4))
    return tuple(x.to(getattr(torch, TORCH_DTYPES[options.dtype])) for x in (q, k, v + 0.5, d_o))


def compare(options):
    """Runs everything; returns (result, ok)."""
    torch.set_float32_matmul_precision("highest")  # no TF32 in eager's products
    steps, why_no_steps = None, "not asked for (--no-steps)"
    if not options.no_steps:
        try:
            steps, why_no_steps = Steps.load(options.library), None
        except LibraryMissing as error:
            why_no_steps = str(error)
    result = {"kind": "compare_pytorch", "versions": versions(steps, why_no_steps),
              "problem": {key: getattr(options, key) for key in ("dtype", "batch", "heads", "seqlen", "head_dim", "causal", "seed")}}
    v = result["versions"]
    print(f"{v['gpu']}, driver {v['driver'] or 'n/a'}; PyTorch {v['torch']} (CUDA {v['cuda_of_torch']}, cuDNN {v['cudnn']}, Triton {v['triton'] or 'n/a'}), Python {v['python']}")
    print(f"steps: {v['steps'] or 'n/a: ' + why_no_steps}")
    print(f"{options.dtype}, batch {options.batch}, heads {options.heads}, N {options.seqlen}, d {options.head_dim}{', causal' if options.causal else ''}; TF32 off")

    forget_imports()
    tensors = make_tensors(options)
    methods = torch_methods(options.seqlen, options.causal, "cuda")
    if steps:
        methods += step_methods(steps, options.dtype, options.causal)
    truth = reference(*tensors[:3], None if options.no_backward else tensors[3], options.causal)
    clock = Clock(torch.cuda.get_device_properties(0).L2_cache_size)
    for which in ("forward",) if options.no_backward else ("forward", "backward"):
        rows = result[which] = run_pass(which, methods, tensors, truth, clock, options)
        print(f"\n{which}{'' if which == 'forward' else ' (extra MiB: forward and backward together, beyond o, dq, dk, dv)'}")
        print("\n".join(table(rows)))
    result["flush"] = {"bytes": clock.flush_bytes, "passes": clock.passes, "ms": clock.passes * clock.pass_ms}
    print(f"\nL2 flush before each run: {clock.passes} reads of {clock.flush_bytes / 1e6:.0f} MB, {clock.passes * clock.pass_ms:.2f} ms")
    ran = [row for which in ("forward", "backward") for row in result.get(which, []) if not row["not_run"]]
    late = {row["method"]: row["time"]["late_runs"] for row in ran if row["time"]["late_runs"]}
    if late:
        print("runs that the GPU reached before the host had enqueued them (launch time in the figure): " + ", ".join(f"{name} {count}" for name, count in late.items()))
    failed = [row["method"] for row in ran if row.get("pass") is False]
    rule = "relative L2 at most 1e-6, gradients 2e-6 (times sqrt(N/4096) beyond 4096)" if options.dtype == "fp32" else f"relative L2 at most {TIMES_EAGER}x eager's"
    print(f"exactness of the steps ({rule}): " + ("FAIL: " + ", ".join(failed) if failed else "PASS" if any(row.get("pass") for row in ran) else "not judged"))
    return result, not failed


def parse(arguments=None):
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=tuple(TORCH_DTYPES), default="fp16")
    parser.add_argument("--batch", type=positive, default=4)
    parser.add_argument("--heads", type=positive, default=32)
    parser.add_argument("--seqlen", type=positive, default=4096)
    parser.add_argument("--head-dim", type=positive, default=64)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--no-backward", action="store_true")
    parser.add_argument("--no-steps", action="store_true", help="PyTorch alone")
    parser.add_argument("--library", help="libattention_steps.so (the newest in build*/)")
    parser.add_argument("--repeat", type=positive, help="rounds of timed runs (at least 20, and half a second per method)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=pathlib.Path, help="writes everything, kernels' names too, to this file")
    options = parser.parse_args(arguments)
    if options.json and not (options.json.parent.is_dir() and os.access(options.json.parent, os.W_OK) and not options.json.is_dir()):
        parser.error(f"--json {options.json}: cannot be written")
    return parser, options


def main():
    parser, options = parse()
    instead = "./step04 and plots/swap_check.py run without a GPU, on the CPU executor"
    if torch is None:
        parser.exit(3, f"PyTorch 2.3 or newer is needed (python3 -m pip install torch): {why_no_torch}; {instead}\n")
    if not torch.cuda.is_available():
        parser.exit(3, f"PyTorch {torch.__version__} sees no CUDA GPU, and there is nothing to time without one; {instead}\n")
    try:
        result, ok = compare(options)
    except StepError as error:
        parser.exit(error.code, f"{error}\n")
    except RuntimeError as error:
        parser.exit(4, f"{first_line(error)}\n")
    if options.json:
        write_whole(options.json, json.dumps(result, indent=1, allow_nan=False) + "\n")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
