"""Measures the rows of a results file: the steps and the yardstick by their executables, PyTorch in a process of its
own, one configuration after the other, so that each ratio is of runs that lie seconds apart. Needs the standard library
only."""

import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import re
import signal
import time

from plots.measuring import compare_pytorch
from plots.programs import PRODUCTS, methods_of, products_of
from plots.results import batch_of, heads_of, on_product, set_of
from plots.script import Stop, call, last_line

TORCH_METHODS = ("eager", "SDPA efficient", "SDPA flash", "SDPA cuDNN")
SCALING, SCALING_TORCH = (
    ("step02", "step04"),
    ("eager", "SDPA flash"),
)  # an N x N matrix in HBM, and none: the article's two
DTYPES = ("fp32", "fp16", "bf16")
HEADLINE = 4096
SEQLENS = (
    4096,
    16384,
    1024,
    512,
    8192,
    2048,
)  # what documents show comes first: a run that ends early lacks the sizes between
SCALING_SEQLENS = (131072, 65536, 32768, 16384, 8192, 4096, 2048, 1024)
SECONDS = 600  # no run takes so long; one that hangs must not hold the GPU
MEASURED = tuple(
    (
        "time predicted_ms tflops flops hbm_expected_bytes hbm_at_least hbm_measured_bytes requested_expected_bytes "
        "requested_measured_bytes l2_to_sm_measured_bytes spill_bytes by_tensor extra_bytes grows error kernels "
        "kernel_count"
    ).split()
)


# ---- which problems, and who runs at them
# -----------------------------------------------------------------------------


def problems(dtypes, head_dims, causals, seqlens, scaling, batch=None, heads=None):
    """The configurations in the order in which they are measured."""
    in_order = sorted(seqlens, key=lambda n: SEQLENS.index(n) if n in SEQLENS else len(SEQLENS))
    found = [
        {
            "dtype": dtype,
            "batch": batch or batch_of(n),
            "heads": heads or heads_of(d),
            "seqlen": n,
            "head_dim": d,
            "causal": causal,
        }
        for n in in_order
        for dtype in dtypes
        for d in head_dims
        for causal in causals
    ]
    after_headline = sum(problem["seqlen"] == HEADLINE for problem in found)
    if scaling:
        found[after_headline:after_headline] = [
            {"dtype": "fp16", "batch": 1, "heads": 16, "seqlen": n, "head_dim": 64, "causal": False}
            for n in SCALING_SEQLENS
        ]
    return found


def runs_of(programs, problem):
    """[(program, product)] in the order in which they run; a product is fp32's alone, else None."""
    here = [program for program in programs if program["kind"] != "device"]
    if set_of(problem) == "scaling":
        here = [program for program in here if program["id"] in SCALING]
    runs = [(program, product) for program in here for product in products_of(program, problem["dtype"])]
    return sorted(runs, key=lambda run: PRODUCTS.index(run[1] or PRODUCTS[0]))


def torch_methods_of(problem):
    return SCALING_TORCH if set_of(problem) == "scaling" else TORCH_METHODS


def passes_of(problem):
    return ("forward",) if set_of(problem) == "scaling" else ("forward", "backward")


# ---- rows
# ---------------------------------------------------------------------------------------------------------------------


def not_run_row(method, title, ours, which, problem, reason, verified=None, product=None):
    return {
        "method": method,
        "title": title,
        "ours": ours,
        "pass": which,
        "product": product,
        **problem,
        "tile": None,
        "not_run": reason,
        "emulated": False,
        "verified": verified,
        "verdict": None,
        **dict.fromkeys(MEASURED),
    }


def put(row, key, value, reason):
    """A value, or null with its reason."""
    row[key] = value
    if value is None:
        row[f"{key}_reason"] = reason or "no reason given"


def worst_of(values):
    """The largest; None when there is none or one is not finite."""
    values = list(values)
    return None if not values or None in values else max(values)


def step_row(run, method, problem, product):
    """The row of one method of a step's --json."""
    several = len(run["methods"]) > 1
    which = "backward" if method["backward"] else "forward"
    name, title = (f"{run['step']} {method['name']}", method["name"]) if several else (run["step"], run["title"])
    if not method["ran"]:
        return not_run_row(
            name, title, True, which, problem, method.get("not_run_reason", "no reason given"), product=product
        )
    checks = method["exactness"]
    verified = bool(checks) and all(check["pass"] for check in checks) and run["verdict"].startswith("PASS")
    if not verified:
        wrong = [f"{check['output']}: {check['reason']}" for check in checks if not check["pass"]]
        what = "its result was wrong" if wrong else "its result was right, but"
        why = f"{what}: {'; '.join(wrong + list(run['failures'])) or run['verdict']}"
        return not_run_row(name, title, True, which, problem, why, verified=False, product=product)
    traffic, timed = method["traffic"], method["time"]
    row = {
        "method": name,
        "title": title,
        "ours": True,
        "pass": which,
        "product": product,
        **problem,
        "not_run": None,
        "emulated": timed["emulated"],
        "verified": True,
        "verdict": run["verdict"],
        "time": {key: timed[key] for key in ("median_ms", "p10_ms", "p90_ms", "runs")},
    }
    put(row, "tile", run["tile"], run.get("tile_reason"))
    put(row, "predicted_ms", timed["predicted_ms"], timed.get("predicted_ms_reason"))
    put(row, "tflops", timed["tflops"], timed.get("tflops_reason"))
    row["flops"] = {"useful": method["flops"]["useful"], "executed": method["flops"]["executed"]}
    row["hbm_expected_bytes"], row["hbm_at_least"] = traffic["hbm_expected_bytes"], traffic["hbm_at_least"]
    put(row, "hbm_measured_bytes", traffic["hbm_measured_bytes"], traffic.get("hbm_measured_reason"))
    put(
        row,
        "requested_expected_bytes",
        traffic["requested_expected_bytes"],
        traffic.get("requested_expected_bytes_reason"),
    )
    put(row, "requested_measured_bytes", traffic["requested_measured_bytes"], traffic.get("requested_measured_reason"))
    put(row, "l2_to_sm_measured_bytes", traffic["l2_to_sm_measured_bytes"], traffic.get("l2_to_sm_measured_reason"))
    put(row, "spill_bytes", traffic["spill_bytes"], traffic.get("spill_reason"))
    row["by_tensor"] = {
        tensor: sum(entry["hbm_expected_bytes"].values())
        for tensor, entry in traffic["by_tensor"].items()
        if "hbm_expected_bytes" in entry
    }
    row["extra_bytes"], row["grows"] = method["memory"]["extra_bytes"], method["memory"]["grows"]
    row["error"] = {key: worst_of(check[key] for check in checks) for key in ("relative_l2", "max_abs")} | {
        "worst_share": worst_of(check["worst"] for check in checks)
    }
    row["kernels"] = [
        {key: kernel[key] for key in ("name", "time_ms", "executed_flops", "hbm_expected_bytes", "hbm_measured_bytes")}
        for kernel in method["kernels"]
    ]
    row["kernel_count"] = len(row["kernels"])
    return row


def torch_row(measured, which, problem):
    """The row of one method of compare_pytorch.run_pass()."""
    name, title = measured["method"], f"PyTorch {measured['method']}"
    if measured["not_run"]:
        shortage = re.match(
            r"CUDA out of memory\. Tried to allocate [\d.]+ \w+", measured["not_run"]
        )  # processes follow
        return not_run_row(name, title, False, which, problem, shortage.group() if shortage else measured["not_run"])
    row = not_run_row(name, title, False, which, problem, None)
    row["time"] = {key: measured["time"][key] for key in ("median_ms", "p10_ms", "p90_ms", "runs")}
    row["tflops"], row["extra_bytes"] = measured["tflops"], measured["extra_bytes"]
    row["flops"] = {"useful": measured["flops"], "executed": None, "executed_reason": "PyTorch does not tell"}
    row["error"] = {
        key: worst_of(output.get(key) for output in measured["errors"].values())
        for key in ("relative_l2", "max_abs", "worst_share")
    }
    if problem["dtype"] != "fp32":
        row["error"]["worst_share_reason"] = (
            "told in fp32 alone: in 16 bits the allowance depends on what a method stores"
        )
    if measured["kernels"] is not None:
        row["kernels"] = [
            {
                "name": kernel["name"],
                "time_ms": kernel["us"] / 1000,
                "hbm_expected_bytes": None,
                "hbm_measured_bytes": None,
            }
            for kernel in measured["kernels"]
        ]
        row["kernel_count"] = len(row["kernels"])
    untold = {
        "kernels": measured.get("kernels_reason"),
        "kernel_count": measured.get("kernels_reason"),
        "grows": "told by the fit over N, not by one size",
    }
    for key in ("tile", "verdict", *MEASURED):
        if row[key] is None:
            put(row, key, None, untold.get(key, "not told of PyTorch's kernels"))
    return row


# ---- the steps' executables
# -------------------------------------------------------------------------------------------


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
    sizes = [
        word
        for key in ("dtype", "batch", "heads", "seqlen", "head_dim")
        for word in (f"--{key.replace('_', '-')}", problem[key])
    ]
    return [*sizes, *(["--causal"] if problem["causal"] else []), *(["--product", product] if product else [])]


def expected_methods(program):
    """[(method, pass)] of the rows that a program gives."""
    return [(name, "backward" if backward else "forward") for name, backward in methods_of(program)]


def program_rows(program, product, problem, device_flags, counters="off"):
    """The rows of one executable at one problem; `counters` is --traffic's value."""
    flags = ["--json", "-", *flags_of(problem, product), *device_flags, "--traffic"]
    code, stdout, stderr = call([program["path"], *flags, counters], SECONDS)
    lost_with_counters = (
        code if code < 0 and counters != "off" else 0
    )  # a signal: the profiler's libraries run inside of the program
    if lost_with_counters:
        code, stdout, stderr = call([program["path"], *flags, "off"], SECONDS)
    if code == 2:
        raise Stop(last_line(stderr))
    wanted = expected_methods(program)
    if not stdout.strip().startswith("{"):
        why, verified = last_line(stderr) or f"exit {code}", False if code == 1 else None
        return [
            not_run_row(name, program["title"], True, which, problem, why, verified, product) for name, which in wanted
        ]
    run = json.loads(stdout)
    rows = [
        row
        for row in (step_row(run, method, problem, product) for method in run["methods"])
        if (row["method"], row["pass"]) in wanted
    ]
    for row in rows:
        if lost_with_counters and row["not_run"] is None:
            row["hbm_measured_bytes_reason"] = (
                f"the run with counters was ended by signal {-lost_with_counters}; this one had none"
            )
    return rows


def sweep(program, problem):
    """(what a program's --sweep-tiles tells, why it does not, seconds)."""
    began = time.monotonic()
    flags = ["--sweep-tiles", "--json", "-", *flags_of(problem), "--device", "gpu", "--check", "sample:64"]
    all_tiles = program["path"].parent / "tiles" / program["path"].name  # make step04-tiles
    code, stdout, stderr = call([all_tiles if all_tiles.exists() else program["path"], *flags], SECONDS)
    found = json.loads(stdout) if code == 0 else None
    return found, last_line(stderr) or f"exit {code}", time.monotonic() - began


# ---- PyTorch
# ----------------------------------------------------------------------------------------------------------


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
        answer = self._ask(
            compare_pytorch.rows_of, {**problem, "passes": passes_of(problem), "methods": torch_methods_of(problem)}
        )
        found = []
        for which in passes_of(problem):
            measured = {row["method"]: row for row in answer.get(which, [])}
            for name in torch_methods_of(problem):
                why_not = {"method": name, "not_run": answer.get("failed", "this PyTorch has no such backend")}
                found.append(torch_row(measured.get(name, why_not), which, problem))
        return found

    def close(self):
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None


def measure_problem(programs, problem, torch):
    """(rows, [(what ran, seconds)]): ours, then PyTorch's, at one problem."""
    rows, parts = [], []
    # The counters take several passes: at the headline, and at what somebody asks for by --batch or --heads.
    at_headline = problem["seqlen"] == HEADLINE and set_of(problem) == "sizes"
    counters = "auto" if at_headline or set_of(problem) == "other" else "off"
    tasks = [
        (
            on_product(program["id"], product),
            program_rows,
            (program, product, problem, ["--device", "gpu", "--check", "sample:64"], counters),
        )
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
    torch = {(name, which, None) for which in passes_of(problem) for name in torch_methods_of(problem)}
    return keys | torch if with_torch else keys
