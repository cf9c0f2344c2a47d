"""Measures the rows of a results file: the steps and the yardstick by their executables, PyTorch by torch_rows.py, one
configuration after the other, so that each ratio is of runs that lie seconds apart. Needs the standard library only.
"""
import json
import pathlib
import re
import select
import subprocess
import sys
import tempfile
import time

from results import CUDA_CORES, TENSOR_CORES, batch_of, heads_of, on_product, set_of

PROGRAMS = ("step01", "step02", "step03", "step04", "step05", "step06", "step07", "step08", "yardstick")
IN_HALF_ALONE = ("step06", "step07", "step08")  # fp16 and bf16
ON_TENSOR_CORES = ("step04", "step05")  # run in fp32 on tensor cores as well: the ladder's first steps would say the same once more
BACKWARD = ("standard backward", "recompute backward")  # of step05; its forward is step04's
TORCH_METHODS = ("eager", "SDPA efficient", "SDPA flash", "SDPA cuDNN")
SCALING_PROGRAMS, SCALING_TORCH_METHODS = ("step02", "step04"), ("eager", "SDPA flash")
DTYPES = ("fp32", "fp16", "bf16")
HEADLINE = 4096
SEQLENS = (4096, 16384, 1024, 512, 8192, 2048)  # what documents show comes first: a run that ends early lacks the sizes between
SCALING_SEQLENS = (131072, 65536, 32768, 16384, 8192, 4096, 2048, 1024)
STEP_SECONDS, TORCH_SECONDS = 600, 600  # no run takes so long; one that hangs must not hold the GPU
MEASURED = ("time", "predicted_ms", "tflops", "flops", "hbm_expected_bytes", "hbm_at_least", "hbm_measured_bytes", "requested_expected_bytes", "requested_measured_bytes",
            "l2_to_sm_measured_bytes", "spill_bytes", "by_tensor", "extra_bytes", "grows", "error", "kernels", "kernel_count")


class CannotRun(Exception):
    """The table cannot be measured here; `code` is the exit code."""

    def __init__(self, code, line):
        super().__init__(line)
        self.code = code


# ---- which problems -----------------------------------------------------------------------------------------------------------


def problems(dtypes, head_dims, causals, seqlens, scaling, batch=None, heads=None):
    """The configurations in the order in which they are measured."""
    found = [{"dtype": dtype, "batch": batch or batch_of(n), "heads": heads or heads_of(d), "seqlen": n, "head_dim": d, "causal": causal}
             for n in sorted(seqlens, key=lambda n: SEQLENS.index(n) if n in SEQLENS else len(SEQLENS)) for dtype in dtypes for d in head_dims for causal in causals]
    after_headline = sum(problem["seqlen"] == HEADLINE for problem in found)
    if scaling:
        found[after_headline:after_headline] = [{"dtype": "fp16", "batch": 1, "heads": 16, "seqlen": n, "head_dim": 64, "causal": False} for n in SCALING_SEQLENS]
    return found


def programs_of(problem):
    """[(program, product)] in the order in which they run; a product is fp32's alone, else None."""
    if problem["dtype"] != "fp32":
        return [(program, None) for program in (SCALING_PROGRAMS if set_of(problem) == "scaling" else PROGRAMS)]
    return [(program, CUDA_CORES) for program in PROGRAMS if program not in IN_HALF_ALONE] + [(program, TENSOR_CORES) for program in ON_TENSOR_CORES]


def torch_methods_of(problem):
    return SCALING_TORCH_METHODS if set_of(problem) == "scaling" else TORCH_METHODS


def passes_of(problem):
    return ("forward",) if set_of(problem) == "scaling" else ("forward", "backward")


# ---- rows ---------------------------------------------------------------------------------------------------------------------


def not_run_row(method, title, ours, which, problem, reason, verified=None, product=None):
    return {"method": method, "title": title, "ours": ours, "pass": which, "product": product, **problem, "tile": None, "not_run": reason, "emulated": False, "verified": verified,
            "verdict": None, **dict.fromkeys(MEASURED)}


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
        return not_run_row(name, title, True, which, problem, method.get("not_run_reason", "no reason given"), product=product)
    checks = method["exactness"]
    verified = bool(checks) and all(check["pass"] for check in checks) and run["verdict"].startswith("PASS")
    if not verified:
        failures = "; ".join([f"{check['output']}: {check['reason']}" for check in checks if not check["pass"]] + list(run["failures"]))
        return not_run_row(name, title, True, which, problem, f"its result was wrong: {failures or run['verdict']}", verified=False, product=product)
    traffic, timed = method["traffic"], method["time"]
    row = {"method": name, "title": title, "ours": True, "pass": which, "product": product, **problem, "not_run": None, "emulated": timed["emulated"], "verified": True,
           "verdict": run["verdict"], "time": {key: timed[key] for key in ("median_ms", "p10_ms", "p90_ms", "runs")}}
    put(row, "tile", run["tile"], run.get("tile_reason"))
    put(row, "predicted_ms", timed["predicted_ms"], timed.get("predicted_ms_reason"))
    put(row, "tflops", timed["tflops"], timed.get("tflops_reason"))
    row["flops"] = {"useful": method["flops"]["useful"], "executed": method["flops"]["executed"]}
    row["hbm_expected_bytes"], row["hbm_at_least"] = traffic["hbm_expected_bytes"], traffic["hbm_at_least"]
    put(row, "hbm_measured_bytes", traffic["hbm_measured_bytes"], traffic.get("hbm_measured_reason"))
    put(row, "requested_expected_bytes", traffic["requested_expected_bytes"], traffic.get("requested_expected_bytes_reason"))
    put(row, "requested_measured_bytes", traffic["requested_measured_bytes"], traffic.get("requested_measured_reason"))
    put(row, "l2_to_sm_measured_bytes", traffic["l2_to_sm_measured_bytes"], traffic.get("l2_to_sm_measured_reason"))
    put(row, "spill_bytes", traffic["spill_bytes"], traffic.get("spill_reason"))
    row["by_tensor"] = {tensor: sum(entry["hbm_expected_bytes"].values()) for tensor, entry in traffic["by_tensor"].items() if "hbm_expected_bytes" in entry}
    row["extra_bytes"], row["grows"] = method["memory"]["extra_bytes"], method["memory"]["grows"]
    row["error"] = {key: worst_of(check[key] for check in checks) for key in ("relative_l2", "max_abs")} | {"worst_share": worst_of(check["worst"] for check in checks)}
    row["kernels"] = [{key: kernel[key] for key in ("name", "time_ms", "executed_flops", "hbm_expected_bytes", "hbm_measured_bytes")} for kernel in method["kernels"]]
    row["kernel_count"] = len(row["kernels"])
    return row


def torch_row(measured, which, problem):
    """The row of one method of compare_pytorch.run_pass()."""
    name, title = measured["method"], f"PyTorch {measured['method']}"
    if measured["not_run"]:
        shortage = re.match(r"CUDA out of memory\. Tried to allocate [\d.]+ \w+", measured["not_run"])  # what follows tells of processes
        return not_run_row(name, title, False, which, problem, shortage.group() if shortage else measured["not_run"])
    row = not_run_row(name, title, False, which, problem, None)
    row["time"] = {key: measured["time"][key] for key in ("median_ms", "p10_ms", "p90_ms", "runs")}
    row["tflops"], row["extra_bytes"] = measured["tflops"], measured["extra_bytes"]
    row["flops"] = {"useful": measured["flops"], "executed": None, "executed_reason": "PyTorch does not tell"}
    row["error"] = {key: worst_of(output.get(key) for output in measured["errors"].values()) for key in ("relative_l2", "max_abs", "worst_share")}
    if problem["dtype"] != "fp32":
        row["error"]["worst_share_reason"] = "told in fp32 alone: in 16 bits the allowance depends on what a method stores"
    if measured["kernels"] is not None:
        row["kernels"] = [{"name": kernel["name"], "time_ms": kernel["us"] / 1000, "hbm_expected_bytes": None, "hbm_measured_bytes": None} for kernel in measured["kernels"]]
        row["kernel_count"] = len(row["kernels"])
    untold = {"kernels": measured.get("kernels_reason"), "kernel_count": measured.get("kernels_reason"), "grows": "told by the fit over N, not by one size"}
    for key in ("tile", "verdict", *MEASURED):
        if row[key] is None:
            put(row, key, None, untold.get(key, "not told of PyTorch's kernels"))
    return row


# ---- the steps' executables -------------------------------------------------------------------------------------------------


def call(command, seconds=STEP_SECONDS):
    """(exit code, stdout, last line of stderr)."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return 124, "", f"stopped: longer than {seconds} s"
    return done.returncode, done.stdout, (done.stderr.strip().splitlines() or [""])[-1]


def device_figures(folder):
    """(step00's object, why there is no GPU or None). Measures the GPU in a few seconds: predictions come from it."""
    step00 = pathlib.Path(folder, "step00").resolve()
    if not step00.is_file():
        raise CannotRun(2, f"{folder}: no step00 there; `make table` builds all that is needed, --folder names another build")
    code, stdout, line = call([step00, "--json", "-"])
    if code != 0:
        raise CannotRun(code if code in (2, 4) else 4, f"step00: {line}")
    figures = json.loads(stdout)
    return figures, figures["gpu_reason"] if figures["gpu"] is None else None


def flags_of(problem, product=None):
    return ["--dtype", problem["dtype"], "--batch", problem["batch"], "--heads", problem["heads"], "--seqlen", problem["seqlen"], "--head-dim", problem["head_dim"],
            *(["--causal"] if problem["causal"] else []), *(["--product", product] if product else [])]


def expected_methods(program):
    """[(method, pass)] of the rows that a program gives."""
    return [(f"{program} {name}", "backward") for name in BACKWARD] if program == "step05" else [(program, "forward")]


def program_rows(folder, program, product, problem, device_flags, counters="off"):
    """The rows of one executable at one problem; `counters` is --traffic's value."""
    path = pathlib.Path(folder, program).resolve()
    if not path.is_file():
        missing = "not built: `make yardstick` builds it where CMake finds cuBLAS" if program == "yardstick" else "not built"
        return [not_run_row(name, program, True, which, problem, missing, product=product) for name, which in expected_methods(program)]
    flags = ["--json", "-", *flags_of(problem, product), *device_flags, "--traffic"]
    code, stdout, line = call([path, *flags, counters])
    lost_with_counters = code < 0 and counters != "off"  # a signal: the profiler's libraries run inside of the program
    if lost_with_counters:
        signal = -code
        code, stdout, line = call([path, *flags, "off"])
    if code == 2:
        raise CannotRun(2, line)
    if not stdout.strip().startswith("{"):
        return [not_run_row(name, program, True, which, problem, line or f"exit {code}", False if code == 1 else None, product) for name, which in expected_methods(program)]
    run = json.loads(stdout)
    wanted = expected_methods(program)
    rows = [row for row in (step_row(run, method, problem, product) for method in run["methods"]) if (row["method"], row["pass"]) in wanted]
    if lost_with_counters:
        for row in (row for row in rows if row["not_run"] is None):
            row["hbm_measured_bytes_reason"] = f"the run with counters was ended by signal {signal}; this one had none"
    return rows


def sweep(folder, problem):
    """(what step04 --sweep-tiles tells, why it does not, seconds)."""
    began = time.monotonic()
    code, stdout, line = call([pathlib.Path(folder, "step04").resolve(), "--sweep-tiles", "--json", "-", *flags_of(problem), "--device", "gpu", "--check", "sample:64"])
    found = json.loads(stdout) if code == 0 else None
    return found, line or f"exit {code}", time.monotonic() - began


# ---- PyTorch ------------------------------------------------------------------------------------------------------------------


class Torch:
    """torch_rows.py at the other end of two pipes. `versions` is None and `missing` says why where there are no PyTorch rows."""

    def __init__(self, command=(sys.executable, str(pathlib.Path(__file__).with_name("torch_rows.py")))):
        self.command = command
        first = self._start()
        self.versions, self.missing = first.get("versions"), first.get("missing") or first.get("failed")

    def _start(self):
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        return self._read()

    def _read(self):
        ready, _, _ = select.select([self.process.stdout], [], [], TORCH_SECONDS)
        line = self.process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        self.close()
        if not ready:
            return {"failed": f"PyTorch's process gave no answer in {TORCH_SECONDS} s"}
        self.log.seek(0)
        return {"failed": f"PyTorch's process ended (exit {self.process.returncode}): {(self.log.read().strip().splitlines() or ['no word'])[-1]}"}

    def rows(self, problem):
        """All of PyTorch's rows at a problem, those that could not run with their reason."""
        if self.process.poll() is not None:  # a CUDA error leaves a process unusable
            self._start()
        request = {**problem, "passes": passes_of(problem), "methods": torch_methods_of(problem)}
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = self._read()
        except (OSError, ValueError):  # a pipe that is broken, or closed because the process did not start again
            self.close()
            answer = {"failed": "PyTorch's process ended"}
        found = []
        for which in passes_of(problem):
            measured = {row["method"]: row for row in answer.get(which, [])}
            for name in torch_methods_of(problem):
                why_not = {"method": name, "not_run": answer.get("failed", "this PyTorch has no such backend")}
                found.append(torch_row(measured.get(name, why_not), which, problem))
        return found

    def close(self):
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except OSError:
                pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def measure_problem(folder, problem, torch):
    """(rows, [(what ran, seconds)]): ours, then PyTorch's, at one problem."""
    rows, parts = [], []

    def part(name, measure):
        began = time.monotonic()
        rows.extend(measure())
        parts.append((name, time.monotonic() - began))

    # The counters take several passes: at the headline, and at what somebody asks for by --batch or --heads.
    counters = "auto" if set_of(problem) == "other" or (problem["seqlen"] == HEADLINE and set_of(problem) == "sizes") else "off"
    for program, product in programs_of(problem):
        part(on_product(program, product),
             lambda: program_rows(folder, program, product, problem, ["--device", "gpu", "--check", "sample:64"], counters))
    if torch.versions:
        part("PyTorch", lambda: torch.rows(problem))
    return rows, parts


def expected_keys(problem, with_torch):
    """{(method, pass, product)} of a complete configuration."""
    keys = {(*key, product) for program, product in programs_of(problem) for key in expected_methods(program)}
    return keys | {(name, which, None) for which in passes_of(problem) for name in torch_methods_of(problem)} if with_torch else keys
