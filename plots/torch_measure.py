"""What compare_pytorch.py measures with, on PyTorch tensors: errors against float64, times between CUDA events, memory, kernels."""
import gc
import math
import re
import time

import torch


# ---- error: the float64 truth -----------------------------------------------------------------------------------------------


def reference(q, k, v, d_o, causal, chunk_bytes=1 << 30):
    """{"o", "dq", "dk", "dv"} in float64 (the gradients only with d_o), head by head, in chunks of query rows whose scores take
    at most chunk_bytes. Causal is for seqlen_q = seqlen_k."""
    heads = lambda x: x.flatten(0, 1)
    scale, n_q, n_k = q.shape[-1] ** -0.5, q.shape[2], k.shape[2]
    rows = max(1, min(n_q, chunk_bytes // (8 * n_k)))
    result = {"o": torch.empty_like(q, dtype=torch.float64)}
    if d_o is not None:
        result |= {"dq": torch.empty_like(q, dtype=torch.float64), "dk": torch.zeros_like(k, dtype=torch.float64), "dv": torch.zeros_like(v, dtype=torch.float64)}
    keys = torch.arange(n_k, device=q.device)
    for head in range(q.shape[0] * q.shape[1]):
        k64, v64 = heads(k)[head].double(), heads(v)[head].double()
        for row in range(0, n_q, rows):
            part = slice(row, row + rows)
            q64 = heads(q)[head, part].double()
            s = q64 @ k64.T * scale
            if causal:
                s.masked_fill_(keys > torch.arange(n_q, device=q.device)[part, None], -math.inf)
            p = torch.softmax(s, -1)
            heads(result["o"])[head, part] = p @ v64
            if d_o is None:
                continue
            do64 = heads(d_o)[head, part].double()
            dp = do64 @ v64.T
            ds = scale * p * (dp - (p * dp).sum(-1, keepdim=True))
            heads(result["dq"])[head, part] = ds @ k64
            heads(result["dk"])[head] += ds.T @ q64
            heads(result["dv"])[head] += p.T @ do64
    return result


def errors(outputs, truth):
    """{"o": {"relative_l2", "max_abs"}, ...}; None where the output holds something that is not finite."""
    found = {}
    for name, output in outputs.items():
        difference = output.double() - truth[name]
        values = {"relative_l2": (difference.norm() / truth[name].norm()).item(), "max_abs": difference.abs().max().item()}
        found[name] = {key: value if math.isfinite(value) else None for key, value in values.items()}
    return found


def worst_error(found, key):
    """The largest of the outputs' errors; infinite when one of them is not finite."""
    return max(math.inf if error[key] is None else error[key] for error in found.values())


# ---- time, memory, kernels ------------------------------------------------------------------------------------------------


class Clock:
    """Times single runs between two CUDA events. Before each run the L2 is flushed by reads of foreign memory, queued until the GPU
    has work for longer than the slowest method's launch calls take on the host: a time then holds no launch time of the framework."""

    def __init__(self, l2_bytes):
        self.flush_bytes = max(4 * l2_bytes, 64 << 20)
        self.buffer = torch.zeros(self.flush_bytes // 4, device="cuda")
        self.sum = torch.empty((), device="cuda")
        self.passes = 1
        self._flush_pass()
        self.pass_ms = min(self._pass_ms() for _ in range(5))

    def _flush_pass(self):
        torch.sum(self.buffer, dim=0, out=self.sum)

    def _pass_ms(self):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(10):
            self._flush_pass()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 10

    def allow_for(self, host_ms):
        """The host needs `host_ms` to enqueue a run: half as much again, plus 0.3 ms."""
        self.passes = max(self.passes, math.ceil((1.5 * host_ms + 0.3) / self.pass_ms))

    def time(self, work):
        """(ms, late): late when the GPU had reached the run before the host had enqueued all of it."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(self.passes):
            self._flush_pass()
        begin.record()
        result = work()
        end.record()
        late = begin.query()
        end.synchronize()
        del result
        return begin.elapsed_time(end), late


def host_ms(start):
    """The shortest time in which the host enqueues a run; `start` does the untimed part and returns the run."""
    times = []
    for _ in range(3):
        work = start()
        torch.cuda.synchronize()
        began = time.perf_counter()
        result = work()
        times.append(1e3 * (time.perf_counter() - began))
        torch.cuda.synchronize()
        del work, result
    return min(times)


def quantile(values, q):
    values = sorted(values)
    place = q * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])


def measure(starts, clock, repeat, seconds=0.5):
    """{name: time} of the methods, one run of each in turn, so that clocks and heat fall on all alike. At least 20 rounds and `seconds`
    per method, or `repeat` rounds. A method that runs out of memory on the way has its reason instead of a time."""
    runs, lost = {name: [] for name in starts}, {}

    def turn(act):
        """act(name, start) for every method that still runs."""
        for name, start in starts.items():
            if name in lost:
                continue
            try:
                act(name, start)
            except torch.cuda.OutOfMemoryError as error:
                lost[name] = first_line(error)
            if name in lost:  # after the exception, whose traceback holds tensors
                gc.collect()
                torch.cuda.empty_cache()

    turn(lambda name, start: clock.allow_for(host_ms(start)))
    began, rounds = time.perf_counter(), 0
    while rounds < repeat if repeat else rounds < 20 or time.perf_counter() - began < seconds * len(starts):
        rounds += 1
        turn(lambda name, start: runs[name].append(clock.time(start())))
    times = {}
    for name, measured in runs.items():
        if name not in lost:
            ms = [run[0] for run in measured]
            times[name] = {"median_ms": quantile(ms, 0.5), "p10_ms": quantile(ms, 0.1), "p90_ms": quantile(ms, 0.9), "runs": len(ms), "late_runs": sum(run[1] for run in measured)}
    return times, lost


def extra_bytes(work, result_bytes):
    """Peak of what PyTorch's allocator handed out during `work` beyond what was there and the results."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = work()
    torch.cuda.synchronize()
    del result
    return max(0, torch.cuda.max_memory_allocated() - before - result_bytes)


def kernels_of(work):
    """[(name, microseconds)] of the kernels that `work` launches, in order, and the number of copies and fills. By torch.profiler,
    which sees every kernel of the process, the steps' too."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        result = work()
        torch.cuda.synchronize()
    del result
    events = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    kernels = [(event.name, event.time_range.elapsed_us()) for event in events if not re.match(r"Mem(cpy|set)", event.name)]
    return kernels, len(events) - len(kernels)


def short_name(kernel):
    """The function's own name: no return type, namespaces, template or call arguments; CUTLASS's Kernel2<name> is `name`."""
    name = kernel.replace("(anonymous namespace)::", "").removeprefix("void ")
    head, bracket, rest = name.partition("<")
    if "(" in head:
        head, bracket = head.partition("(")[0], ""
    own = head.split("::")[-1]
    return re.split(r"[,<>(]", rest)[0].split("::")[-1].strip() if bracket and re.fullmatch(r"Kernel2?", own) else own


def first_line(error):
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
