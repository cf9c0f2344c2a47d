"""Measures the rows of a results file: the steps and the yardstick by their executables, PyTorch in a process of its
own, one configuration after the other, so that each ratio is of runs that lie seconds apart. Needs the standard library
only."""

import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import signal
import time

from plots.measuring import compare_pytorch
from plots.programs import PRODUCTS, methods_of, products_of
from plots.results import batch_of, empty_row, heads_of, on_product, set_of
from plots.script import Stop, call, last_line

TORCH_METHODS = ("eager", "SDPA efficient", "SDPA flash", "SDPA cuDNN")
DTYPES = ("fp32", "fp16", "bf16")
HEADLINE = 4096
SEQLENS = (4096, 16384, 1024, 512, 8192, 2048)  # what documents show comes first: a run that ends early lacks the rest
SCALING_SEQLENS = (131072, 65536, 32768, 16384, 8192, 4096, 2048, 1024)
LONG_SEQLENS = tuple(1 << n for n in range(12, 21))  # of one head
HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
SECONDS = 600  # no run takes so long; one that hangs must not hold the GPU


# ---- which problems, and who runs at them


def problems(dtypes, head_dims, causals, seqlens, full, batch=None, heads=None):
    """The configurations in the order in which they are measured; `full` adds those against N and the heads, which are
    fp16's at d 64 without a mask."""
    in_order = sorted(seqlens, key=lambda n: SEQLENS.index(n) if n in SEQLENS else len(SEQLENS))
    of = lambda dtype, b, h, n, d, causal: dict(dtype=dtype, batch=b, heads=h, seqlen=n, head_dim=d, causal=causal)
    found = [
        of(dtype, batch or batch_of(n), heads or heads_of(d), n, d, causal)
        for n in in_order
        for dtype in dtypes
        for d in head_dims
        for causal in causals
    ]
    if full:
        lines = [(16, n) for n in SCALING_SEQLENS] + [(h, HEADLINE) for h in HEADS] + [(1, n) for n in LONG_SEQLENS]
        after_headline = sum(problem["seqlen"] == HEADLINE for problem in found)
        found[after_headline:after_headline] = [of("fp16", 1, h, n, 64, False) for h, n in dict.fromkeys(lines)]
    return found


def methods_at(problem):
    """(programs, PyTorch's methods) of a configuration that a few tell all of; (None, TORCH_METHODS) where all run."""
    if set_of(problem) == "scaling" and problem["seqlen"] != HEADLINE:
        return ("step02", "step04"), ("eager", "SDPA flash")  # an N x N matrix in HBM, and none: the article's two
    if problem["seqlen"] >= 1 << 20:
        return ("step09",), ("SDPA flash", "SDPA cuDNN")  # a single chain is not exact there: docs/09-split-keys.md
    if problem["seqlen"] >= 1 << 17:
        return ("step04", "step09"), ("SDPA flash", "SDPA cuDNN")
    return None, TORCH_METHODS


def runs_of(programs, problem):
    """[(program, product)] in the order in which they run; a product is fp32's alone, else None."""
    chosen, _ = methods_at(problem)
    here = [p for p in programs if p["kind"] != "device" and (chosen is None or p["id"] in chosen)]
    runs = [(program, product) for program in here for product in products_of(program, problem["dtype"])]
    return sorted(runs, key=lambda run: PRODUCTS.index(run[1] or PRODUCTS[0]))


def passes_of(problem):
    return ("forward", "backward") if methods_at(problem)[0] is None else ("forward",)


# ---- rows


def worst_of(values):
    """The largest; None when there is none or one is not finite."""
    values = list(values)
    return None if not values or None in values else max(values)


def step_row(run, method, problem, product):
    """The row of one method of a step's --json."""
    several = len(run["methods"]) > 1
    name, title = (f"{run['step']} {method['name']}", method["name"]) if several else (run["step"], run["title"])
    row = empty_row(name, title, True, "backward" if method["backward"] else "forward", product, problem)
    if not method["ran"]:
        return row | {"not_run": method.get("not_run_reason", "no reason given")}
    checks = method["exactness"]
    if not checks or not all(check["pass"] for check in checks) or not run["verdict"].startswith("PASS"):
        wrong = [f"{check['output']}: {check['reason']}" for check in checks if not check["pass"]]
        what = "its result was wrong" if wrong else "its result was right, but"
        why = f"{what}: {'; '.join(wrong + list(run['failures'])) or run['verdict']}"
        return row | {"not_run": why, "verified": False}
    traffic, timed = method["traffic"], method["time"]
    told = lambda source, *keys: {key: source[key] for key in keys}
    by_tensor = {
        tensor: sum(entry["hbm_expected_bytes"].values())
        for tensor, entry in traffic["by_tensor"].items()
        if "hbm_expected_bytes" in entry
    }
    of_kernel = ("name", "time_ms", "executed_flops", "hbm_expected_bytes", "hbm_measured_bytes")
    row |= {
        "emulated": timed["emulated"],
        "verified": True,
        "verdict": run["verdict"],
        "time": told(timed, "median_ms", "p10_ms", "p90_ms", "runs"),
        "flops": told(method["flops"], "useful", "executed"),
        **told(traffic, "hbm_expected_bytes", "hbm_at_least"),
        "by_tensor": by_tensor,
        **told(method["memory"], "extra_bytes", "grows"),
        "error": {key: worst_of(check[key] for check in checks) for key in ("relative_l2", "max_abs")}
        | {"worst_share": worst_of(check["worst"] for check in checks)},
        "kernels": [told(kernel, *of_kernel) for kernel in method["kernels"]],
        "kernel_count": len(method["kernels"]),
    }
    for key, source, reason in (  # what a run may not know, and where it says why
        ("tile", run, "tile_reason"),
        ("predicted_ms", timed, "predicted_ms_reason"),
        ("tflops", timed, "tflops_reason"),
        ("requested_expected_bytes", traffic, "requested_expected_bytes_reason"),
        ("requested_measured_bytes", traffic, "requested_measured_reason"),
        ("hbm_measured_bytes", traffic, "hbm_measured_reason"),
        ("l2_to_sm_measured_bytes", traffic, "l2_to_sm_measured_reason"),
        ("spill_bytes", traffic, "spill_reason"),
    ):
        row[key] = source[key]
        if row[key] is None:
            row[f"{key}_reason"] = source.get(reason) or "no reason given"
    return row


# ---- the steps' executables


def device_figures(folder):
    """(step00's object, why there is no GPU or None). Measures the GPU in a few seconds: predictions come from it."""
    step00 = pathlib.Path(folder, "step00").resolve()
    if not step00.is_file():
        raise Stop(f"{folder}: no step00 there; `make table` builds all that is needed, --folder names another build")
    code, stdout, stderr = call([step00, "--json", "-"], SECONDS)
    if code != 0:
        raise Stop(f"step00: {last_line(stderr)}", code if code in (2, 4) else 4)
    figures = json.loads(stdout)
    return figures, figures["gpu_reason"] if figures["gpu"] is None else None


def flags_of(problem, product=None):
    sizes = (f"--{key.replace('_', '-')} {problem[key]}" for key in ("dtype", "batch", "heads", "seqlen", "head_dim"))
    return f"{' '.join(sizes)}{' --causal' * problem['causal']}{f' --product {product}' if product else ''}".split()


def expected_methods(program):
    """[(method, pass)] of the rows that a program gives."""
    return [(name, "backward" if backward else "forward") for name, backward in methods_of(program)]


def program_rows(program, product, problem, counters):
    """The rows of one executable at one problem; `counters` is --traffic's value."""
    flags = ["--json", "-", *flags_of(problem, product), *"--device gpu --check sample:64 --traffic".split()]
    code, stdout, stderr = call([program["path"], *flags, counters], SECONDS)
    signalled = -code if code < 0 and counters != "off" else None  # the profiler's libraries run inside of the program
    if signalled:
        code, stdout, stderr = call([program["path"], *flags, "off"], SECONDS)
    if code == 2:
        raise Stop(last_line(stderr))
    wanted = expected_methods(program)
    if not stdout.strip().startswith("{"):
        why = {"not_run": last_line(stderr) or f"exit {code}", "verified": False if code == 1 else None}
        return [empty_row(name, program["title"], True, which, product, problem) | why for name, which in wanted]
    run = json.loads(stdout)
    rows = [step_row(run, method, problem, product) for method in run["methods"]]
    rows = [row for row in rows if (row["method"], row["pass"]) in wanted]
    for row in rows if signalled else []:
        if row["not_run"] is None:
            why = f"the run with counters was ended by signal {signalled}; this one had none"
            row["hbm_measured_bytes_reason"] = why
    return rows


def sweep(program, problem):
    """(what a program's --sweep-tiles tells, why it does not, seconds)."""
    began = time.monotonic()
    flags = [*"--sweep-tiles --device gpu --check sample:64 --json -".split(), *flags_of(problem)]
    all_tiles = program["path"].parent / "tiles" / program["path"].name  # make step04-tiles
    code, stdout, stderr = call([all_tiles if all_tiles.exists() else program["path"], *flags], SECONDS)
    found = json.loads(stdout) if code == 0 else None
    return found, last_line(stderr) or f"exit {code}", time.monotonic() - began


# ---- PyTorch


class Torch:
    """compare_pytorch in a process of its own: import and CUDA context are paid for once, and between two
    configurations it holds no tensors, so that the steps find the memory free. `missing` says why there are no PyTorch
    rows."""

    def __init__(self):
        self.pool = None
        first = self._ask(compare_pytorch.begin)
        self.versions, self.missing = first.get("versions"), first.get("missing") or first.get("failed")

    def _ask(self, function, *arguments):
        if self.pool is None:
            self.pool = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
            self.pid = self.pool.submit(os.getpid).result()
        try:
            answer = self.pool.submit(function, *arguments).result(SECONDS)
        except concurrent.futures.TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            answer = {"failed": f"PyTorch's process gave no answer in {SECONDS} s"}
        except concurrent.futures.process.BrokenProcessPool:
            answer = {"failed": "PyTorch's process ended"}
        if "failed" in answer:  # a CUDA error leaves a process unusable
            self.close()
        return answer

    def rows(self, problem):
        """All of PyTorch's rows at a problem, those that could not run with their reason."""
        passes, (_, names) = passes_of(problem), methods_at(problem)
        answer = self._ask(compare_pytorch.rows_of, problem, passes, names)
        rows = {(row["method"], row["pass"]): row for row in answer.get("rows", [])}
        why_not = {"not_run": answer.get("failed", "this PyTorch has no such backend")}
        absent = lambda name, which: empty_row(name, f"PyTorch {name}", False, which, None, problem) | why_not
        return [rows.get((name, which)) or absent(name, which) for which in passes for name in names]

    def close(self):
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None


def measure_problem(programs, problem, torch):
    """(rows, [(what ran, seconds)]): ours, then PyTorch's, at one problem."""
    rows, parts = [], []
    # The counters take several passes: at the headline, and at what somebody asks for by --batch or --heads.
    with_counters = {"sizes": problem["seqlen"] == HEADLINE, "other": problem["seqlen"] < 1 << 15}
    counters = "auto" if with_counters.get(set_of(problem)) else "off"
    tasks = [
        (on_product(program["id"], product), program_rows, (program, product, problem, counters))
        for program, product in runs_of(programs, problem)
    ]
    for name, task, arguments in tasks + ([("PyTorch", torch.rows, (problem,))] if torch.versions else []):
        began = time.monotonic()
        rows += task(*arguments)
        parts.append((name, time.monotonic() - began))
    return rows, parts


def expected_keys(programs, problem, with_torch):
    """{(method, pass, product)} of a complete configuration."""
    keys = {(*key, product) for program, product in runs_of(programs, problem) for key in expected_methods(program)}
    torch = {(name, which, None) for which in passes_of(problem) for name in methods_at(problem)[1]}
    return keys | torch if with_torch else keys
