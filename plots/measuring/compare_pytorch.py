#!/usr/bin/env python3
"""PyTorch's attention and this repository's steps in one process, on the same tensors: time, memory, error, kernels.

    python3 plots/measuring/compare_pytorch.py --dtype fp16 --batch 4 --heads 32 --seqlen 4096 --head-dim 64 [--causal] [--json FILE]

Rows: eager (softmax(q k^T scale) v), torch.compile of it, SDPA with each of its backends and as PyTorch chooses, and
every step that has the dtype, through libattention_steps.so, in fp32 on each of its products: forward, backward, and
both as a training step takes them. Without the library PyTorch alone is compared, and the report says so. What a dtype,
a GPU or this PyTorch lacks shows n/a and why. docs/compare-pytorch.md defines every column. Exit codes: 0 ok, 1 a
step's error is too large, 2 bad arguments, 3 no CUDA GPU or no PyTorch, 4 CUDA error or out of memory."""

import gc
import importlib.util
import json
import math
import pathlib
import platform
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.attention_steps import LibraryMissing, StepError, Steps
from plots.programs import CANNOT_SERVE, PRODUCTS, described, methods_of, products_of
from plots.results import CONFIGURATION, driver_version, empty_row, name_of, slug
from plots.script import OneLineParser, Stop, end_with, positive, table_text, write_whole
from plots.tables.result_tables import speedup_table

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from plots.measuring import torch_measure
    from plots.measuring.torch_measure import first_line
except ImportError as error:
    torch, why_no_torch = None, str(error)

TORCH_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
# The steps' bounds on the relative L2 error (docs/exactness.md): in fp32 of their own, in half precision beside
# eager's.
FP32_BOUND = {"forward": 1e-6, "backward": 2e-6, "both": 2e-6}
TIMES_EAGER = 2
FLOPS = {"forward": 1, "backward": 2.5, "both": 3.5}  # of the forward's, by convention
SECONDS = {"compare": 0.5, "table": 0.3}  # of timed runs per method: one configuration may take more than each of many
ON_CPU = "./step04 and plots/measuring/swap_check.py run without a GPU, on the CPU executor"


# ---- the methods: forward(q, k, v) -> o, and begin_backward(q, k, v, d_o) -> a function that returns (dq, dk, dv)


class TorchMethod:
    """A function of q, k, v that autograd can go through."""

    ours, product, passes = False, None, ("forward", "backward", "both")

    def __init__(self, name, function):
        self.name, self.title, self.function = name, f"PyTorch {name}", function

    def forward(self, q, k, v):
        with torch.no_grad():
            return self.function(q, k, v)

    def begin_backward(self, q, k, v, d_o):
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        o = self.function(q, k, v)
        return lambda: torch.autograd.grad(o, (q, k, v), d_o)


class StepMethod:
    """A step's forward or, with `backward`, that method of it behind the forward of `before`."""

    ours = True

    def __init__(self, steps, program, name, causal, product, backward=None, before=None, deterministic=False):
        self.steps, self.step, self.name, self.product = steps, program["id"], name, product
        self.title, self.method, self.before = backward or program["title"], backward, before or program["id"]
        self.problem = {"causal": causal, "product": product, "deterministic": deterministic}
        # The standard backward's P is computed anew after the forward: both together would have one product too many.
        self.passes = ("forward",) if not backward else ("backward", "both")[: 1 + (backward != "standard backward")]

    def forward(self, q, k, v, nan=False):
        return self.steps.forward(self.step, q, k, v, **self.problem, nan=nan)[0]

    def begin_backward(self, q, k, v, d_o, nan=False):
        o, lse = self.steps.forward(self.before, q, k, v, **self.problem, nan=nan)
        run = self.steps.prepare(self.step, q, k, v, o, lse, method=self.method, **self.problem)
        return lambda: run(d_o, nan=nan)


def step_methods(steps, programs, dtype, causal, deterministic=False):
    """Every described step that has the dtype: its backwards where it has any, else its forward; in fp32 those on
    tensor cores come after all on CUDA cores."""
    methods = []
    here = [program for program in programs if program["kind"] == "attention"]
    for product in PRODUCTS if dtype == "fp32" else (None,):
        served = [program for program in here if product in products_of(program, dtype)]
        for program in served:
            forwards = [other["id"] for other in [program, *served] if "forward" in other["passes"]]
            backwards = [method["name"] for method in program["methods"] if method["backward"]]
            for (name, backward), method in zip(methods_of(program), backwards or [None]):
                if forwards or not backward:
                    before = forwards[0] if backward else None
                    methods.append(StepMethod(steps, program, name, causal, product, method, before, deterministic))
    return methods


def torch_methods(seqlen, causal, device):
    """eager, torch.compile(eager) and SDPA. Eager's causal mask is made once, as a model keeps it."""
    hidden = torch.ones(seqlen, seqlen, dtype=torch.bool, device=device).triu(1) if causal else None

    def eager(q, k, v):
        s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if hidden is not None:
            s = s.masked_fill(hidden, -math.inf)
        return torch.softmax(s, -1) @ v

    def its_choice(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def sdpa(backend):
        def function(q, k, v):
            with sdpa_kernel(backend):
                return its_choice(q, k, v)

        return function

    backends = {
        name: getattr(SDPBackend, backend)
        for name, backend in (
            ("SDPA math", "MATH"),
            ("SDPA efficient", "EFFICIENT_ATTENTION"),
            ("SDPA flash", "FLASH_ATTENTION"),
            ("SDPA cuDNN", "CUDNN_ATTENTION"),
        )
        if hasattr(SDPBackend, backend)
    }
    functions = {
        "eager": eager,
        "torch.compile(eager)": torch.compile(eager),
        **{name: sdpa(backend) for name, backend in backends.items()},
        "SDPA, its choice": its_choice,
    }
    return [TorchMethod(name, function) for name, function in functions.items()]


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


def start_of(which, method, tensors, **nan):
    """A function that does what is not timed and returns the run, which returns its outputs. `nan` fills ours with NaN
    beforehand."""
    q, k, v, d_o = tensors
    if which == "forward":
        return lambda: lambda: (method.forward(q, k, v, **nan),)
    begin = lambda: method.begin_backward(q, k, v, d_o, **nan)
    return begin if which == "backward" else lambda: lambda: begin()()


def outputs_of(which):
    return ("o",) if which == "forward" else ("dq", "dk", "dv")


def try_once(row, which, method, tensors, truth):
    """Sets the row's extra memory, or why it cannot run. Returns (start_of(), the errors of each output)."""
    start, found = start_of(which, method, tensors), None
    size = lambda *xs: sum(x.numel() * x.element_size() for x in xs)
    results = size(tensors[0]) if which == "forward" else size(tensors[0], *tensors[:3])  # o; o, dq, dk, dv
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outputs = start_of(which, method, tensors, **({"nan": True} if method.ours else {}))()()
            found = torch_measure.errors(dict(zip(outputs_of(which), outputs)), truth)
            del outputs
            # This was the first call: what that allocates once and keeps is no method's memory.
            row["extra_bytes"] = torch_measure.extra_bytes(lambda: start()(), results)
        except StepError as error:
            if error.code != CANNOT_SERVE:
                raise
            row["not_run"] = str(error)
        except (RuntimeError, ImportError) as error:
            row["not_run"] = why_sdpa_refused(caught, method.name) or first_line(error)
    gc.collect()
    torch.cuda.synchronize()  # raises when the CUDA context is lost: then nothing that follows would be a result
    if row["not_run"]:
        torch.cuda.empty_cache()
    return start, found


def profile(row, start):
    """Sets the row's kernels, or why they are not known."""
    try:
        work = start()
        torch.cuda.synchronize()
        kernels = torch_measure.kernels_of(work)
        if not kernels:
            raise RuntimeError("torch.profiler recorded no kernel")
        untold = {"hbm_expected_bytes": None, "hbm_measured_bytes": None}
        row["kernels"] = [{"name": name, "time_ms": us / 1000, **untold} for name, us in kernels]
        row["kernel_count"] = len(kernels)
    except RuntimeError as error:
        row["kernels_reason"] = row["kernel_count_reason"] = first_line(error)
        torch.cuda.synchronize()


def run_pass(which, methods, tensors, truth, clock, problem, repeat=None, seconds=0.5):
    """(rows of `which`, in the methods' order, {name: runs that came late}); `seconds` of timed runs per method, and at
    least 20 runs."""
    rows, starts, found = [], {}, {}
    for method in methods:
        if which not in method.passes:
            continue
        row = empty_row(method.name, method.title, method.ours, which, method.product, problem)
        start, errors = try_once(row, which, method, tensors, truth)
        rows.append(row)
        if not row["not_run"]:
            starts[name_of(row)], found[name_of(row)] = start, errors
    times, lost = torch_measure.measure(starts, clock, repeat, seconds)
    n, late = problem["seqlen"], {}
    pairs = n * (n + 1) // 2 if problem["causal"] else n * n
    flops = FLOPS[which] * 4 * problem["head_dim"] * problem["batch"] * problem["heads"] * pairs
    for row in rows:
        name = name_of(row)
        row["not_run"] = row["not_run"] or lost.get(name)
        if row["not_run"]:
            continue
        late[name] = times[name].pop("late_runs")
        row["time"], row["tflops"] = times[name], flops / times[name]["median_ms"] / 1e9
        row["flops"] = {"useful": flops, "executed": None, "executed_reason": "this comparison does not tell"}
        keys = ("relative_l2", "max_abs", "worst_share")
        row["error"] = {key: torch_measure.worst_error(found[name], key) for key in keys}
        if problem["dtype"] != "fp32":
            why = "told in fp32 alone: in 16 bits the allowance depends on what a method stores"
            row["error"]["worst_share_reason"] = why
        if row["ours"]:
            row["verified"] = right(which, found[name], found.get("eager"), problem)
        profile(row, starts[name])
        for key, value in list(row.items()):
            if value is None and key not in ("not_run", "verified", "product"):
                row.setdefault(f"{key}_reason", "this comparison does not tell")
    return rows, late


def right(which, errors, eager, problem):
    """Whether the errors are as small as they must be; None where there is nothing to judge by."""
    n, d = problem["seqlen"], problem["head_dim"]
    if n < 16 or d < 8 or problem["batch"] * problem["heads"] * n * d < 1024:
        return None  # too small: a correct result's errors need not average out
    if problem["dtype"] == "fp32":
        bounds = dict.fromkeys(errors, FP32_BOUND[which] * math.sqrt(max(1, n / 4096)))
    elif eager:
        bounds = {name: TIMES_EAGER * (error["relative_l2"] or math.inf) for name, error in eager.items()}
    else:
        return None
    found = {name: error["relative_l2"] for name, error in errors.items()}
    return all(value is not None and value <= bounds[name] for name, value in found.items())


def versions():
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
    }


def make_tensors(problem, seed=0, device="cuda"):
    """q, k, v, d_o: standard normal, v with mean 0.5 (with mean 0 the outputs shrink as 1/sqrt(N) and hide errors)."""
    generator = torch.Generator(device).manual_seed(seed)
    shape = [problem[key] for key in ("batch", "heads", "seqlen", "head_dim")]
    q, k, v, d_o = (torch.randn(shape, generator=generator, device=device) for _ in range(4))
    return tuple(x.to(getattr(torch, TORCH_DTYPES[problem["dtype"]])) for x in (q, k, v + 0.5, d_o))


def every_pass(problem, methods, passes, seconds, seed=0, repeat=None):
    """Yields (pass, rows, late runs, the clock) of the methods at one problem. Raises RuntimeError (out of memory
    too)."""
    torch.set_float32_matmul_precision("highest")  # no TF32 in eager's products
    torch_measure.forget_imports()
    tensors = make_tensors(problem, seed)
    truth = torch_measure.reference(*tensors[:3], tensors[3] if "backward" in passes else None, problem["causal"])
    clock = torch_measure.Clock(torch.cuda.get_device_properties(0).L2_cache_size)
    for which in passes:
        yield which, *run_pass(which, methods, tensors, truth, clock, problem, repeat, seconds), clock


# ---- PyTorch's rows of the speedup table: measure_rows.py calls these in a process of their own


def begin():
    """{"versions": ...}, or {"missing": why there are no PyTorch rows}."""
    if torch is None:
        return {"missing": f"PyTorch is not installed ({why_no_torch})"}
    if not torch.cuda.is_available():
        return {"missing": f"PyTorch {torch.__version__} sees no CUDA GPU"}
    return {"versions": versions()}


def rows_of(problem, passes, names):
    """{"rows": those of the passes and methods asked for}; {"failed": why} after an error that leaves the process
    unusable."""
    methods = [m for m in torch_methods(problem["seqlen"], problem["causal"], "cuda") if m.name in names]
    try:
        rows = [row for _, found, *_ in every_pass(problem, methods, passes, SECONDS["table"]) for row in found]
    except torch.cuda.OutOfMemoryError as error:
        empty = lambda method, which: empty_row(method.name, method.title, False, which, None, problem)
        rows = [empty(method, which) | {"not_run": first_line(error)} for which in passes for method in methods]
    except RuntimeError as error:
        return {"failed": first_line(error)}
    torch.cuda.empty_cache()
    return {"rows": rows}


# ---- command line


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
    methods = step_methods(steps, programs, options.dtype, options.causal, options.deterministic)
    return methods, steps.build, None


def report(which, rows, gpu):
    """A pass as lines for a terminal: the table that documents have, then what PyTorch ran, and what failed."""
    of_pass = {gpu: {"rows": [{**row, "gpu": gpu, "set": "other"} for row in rows]}}
    yield f"\n{which}" + (" (extra memory: forward and backward, beyond o, dq, dk, dv)" if which != "forward" else "")
    yield from table_text(speedup_table(of_pass))
    for row in rows:
        if row["kernels"] and not row["ours"]:
            longest = max(row["kernels"], key=lambda kernel: kernel["time_ms"])["name"]
            yield f"longest kernel of {row['method']}: {longest.removeprefix('void ')[:80]}"


def compare(options):
    """Runs everything; returns (result, ok)."""
    ours, build, why_no_steps = our_methods(options)
    problem = {key: getattr(options, key) for key in CONFIGURATION}
    v = versions() | {"steps": build, "steps_reason": why_no_steps}
    print(
        f"{v['gpu']}, driver {v['driver'] or 'n/a'}; PyTorch {v['torch']} (CUDA {v['cuda_of_torch']}, "
        f"cuDNN {v['cudnn']}, Triton {v['triton'] or 'n/a'}), Python {v['python']}\n"
        f"steps: {build or 'n/a: ' + why_no_steps}\n"
        f"{options.dtype}, batch {options.batch}, heads {options.heads}, N {options.seqlen}, d {options.head_dim}"
        f"{', causal' if options.causal else ''}; TF32 off"
        f"{'; the steps deterministic' if options.deterministic else ''}"
    )
    passes = ("forward",) if options.no_backward else tuple(FLOPS)
    methods, rows = [*torch_methods(options.seqlen, options.causal, "cuda"), *ours], []
    for which, found, late, clock in every_pass(
        problem, methods, passes, SECONDS["compare"], options.seed, options.repeat
    ):
        print("\n".join(report(which, found, slug(v["gpu"]))), flush=True)
        if told := ", ".join(f"{name} {count}" for name, count in late.items() if count):
            print(f"runs that the GPU reached before the host had enqueued them (launch time in the figure): {told}")
        rows += found
    flush = {"bytes": clock.flush_bytes, "passes": clock.passes, "ms": clock.passes * clock.pass_ms}
    print(f"\nL2 flush before each run: {flush['passes']} reads of {flush['bytes'] / 1e6:.0f} MB, {flush['ms']:.2f} ms")
    failed = [f"{name_of(row)} ({row['pass']})" for row in rows if row["verified"] is False]
    rule = "1e-6, gradients 2e-6 (times sqrt(N/4096) beyond 4096)" if options.dtype == "fp32" else "twice eager's"
    verdict = "PASS" if any(row["verified"] for row in rows) else "not judged"
    if failed:
        verdict = f"FAIL: {', '.join(failed)}"
    print(f"exactness of the steps (relative L2 at most {rule}): {verdict}")
    asked = {**problem, "seed": options.seed, "deterministic": options.deterministic}
    told = {"kind": "compare_pytorch", "versions": v, "problem": asked}
    return {**told, "rows": rows, "flush": flush}, not failed


def parse(arguments=None):
    parser = OneLineParser(__doc__)
    parser.add_argument("--dtype", choices=tuple(TORCH_DTYPES), default="fp16")
    for flag, usual in (("--batch", 4), ("--heads", 32), ("--seqlen", 4096), ("--head-dim", 64)):
        parser.add_argument(flag, type=positive, default=usual)
    fixed = "the steps' blocks add in a fixed order, where they share a sum"
    for flag, what in (
        ("--causal", None),
        ("--no-backward", None),
        ("--no-steps", "PyTorch alone"),
        ("--deterministic", fixed),
    ):
        parser.add_argument(flag, action="store_true", help=what)
    parser.add_argument("--library", help="libattention_steps.so, its programs beside it (the newest in build*/)")
    parser.add_argument("--repeat", type=positive, help="rounds of timed runs (20, and half a second per method)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=pathlib.Path, help="writes everything, kernels' names too, to this file")
    options = parser.parse_args(arguments)
    parser.writable(options.json)
    return options


def main():
    options = parse()
    if missing := begin().get("missing"):
        needed = "and there is nothing to time without both (PyTorch 2.3 or newer)"
        raise Stop(f"{missing}, {needed}; {ON_CPU}", CANNOT_SERVE)
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
