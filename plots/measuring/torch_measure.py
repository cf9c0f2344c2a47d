"""What compare_pytorch.py measures with, on PyTorch tensors: errors against float64, times between CUDA events, memory,
kernels."""

import gc
import math
import re
import statistics
import time
import warnings

import torch


def forget_imports():
    """Takes what lives now out of the garbage collector's sight. With PyTorch imported a collection looks at a million
    objects, a tenth of a second each time, and one stands before every measurement of memory."""
    gc.collect()
    gc.freeze()


# ---- error: the float64 truth


FLUSHED = 2.0**-126 / 1e-6  # in units of tol: what fp32 may lose of one weight

# What an element may be off by in units of tol stands beside the truth under "allowance of o" and so on, in fp32 alone:
# there it is the sum of docs/exactness.md, while in 16 bits it also depends on what a method stores between its kernels.
ALLOWANCE = "allowance of "


def tolerance(seqlen):
    return 1e-6 * math.sqrt(max(1, seqlen / 4096))


def reference(q, k, v, d_o, causal, chunk_bytes=1 << 30):
    """{"o", "dq", "dk", "dv"} in float64 (the gradients only with d_o) and, in fp32, each one's allowance; head by
    head, in chunks of query rows whose scores take at most chunk_bytes. Causal is for seqlen_q = seqlen_k."""
    heads = lambda x: x.flatten(0, 1)
    scale, n_q, n_k = q.shape[-1] ** -0.5, q.shape[2], k.shape[2]
    rows = max(1, min(n_q, chunk_bytes // (8 * n_k)))
    allowances = q.dtype == torch.float32
    result = {}
    for name, like in (("o", q), *((("dq", q), ("dk", k), ("dv", v)) if d_o is not None else ())):
        for key in (name, *([ALLOWANCE + name] if allowances else [])):
            result[key] = torch.zeros_like(like, dtype=torch.float64)
    keys = torch.arange(n_k, device=q.device)
    for head in range(q.shape[0] * q.shape[1]):
        k64, v64 = heads(k)[head].double(), heads(v)[head].double()
        for row in range(0, n_q, rows):
            part = slice(row, row + rows)
            q64 = heads(q)[head, part].double()
            s = q64 @ k64.T * scale
            hidden = keys > torch.arange(n_q, device=q.device)[part, None] if causal else None
            weighted = weights(s, q64, k64, scale, hidden) if allowances else None
            if causal:
                s.masked_fill_(hidden, -math.inf)
            p = torch.softmax(s, -1)
            lse = torch.logsumexp(s, -1, keepdim=True)
            del s
            heads(result["o"])[head, part] = o64 = p @ v64
            if allowances:
                weighted.mul_(p).add_(FLUSHED)  # P_ij w_ij, and as much for a pair that is hidden
                heads(result[ALLOWANCE + "o"])[head, part] = weighted @ v64.abs()
            if d_o is None:
                continue
            do64 = heads(d_o)[head, part].double()
            dp = do64 @ v64.T
            ds = scale * p * (dp - (p * dp).sum(-1, keepdim=True))
            heads(result["dq"])[head, part] = ds @ k64
            heads(result["dk"])[head] += ds.T @ q64
            heads(result["dv"])[head] += p.T @ do64
            if allowances:
                # A backward that recomputes P takes LSE as it was rounded.
                weighted = weighted.maximum(p * lse.abs() / 3 + FLUSHED)
                heads(result[ALLOWANCE + "dv"])[head] += weighted.T @ do64.abs()
                weighted *= scale * (do64.abs() @ v64.abs().T + (do64 * o64).abs().sum(-1, keepdim=True))
                heads(result[ALLOWANCE + "dq"])[head, part] = weighted @ k64.abs()
                heads(result[ALLOWANCE + "dk"])[head] += weighted.T @ q64.abs()
    return result


def weights(s, q64, k64, scale, hidden):
    """w_ij = max(1, A_ij / 3, max_j |s_ij| / 3) of the keys that are seen, with A_ij = scale sum_c |q_ic k_jc|."""
    largest = s.abs() if hidden is None else s.abs().masked_fill_(hidden, 0)
    return (q64.abs() @ k64.abs().T).mul_(scale / 3).maximum((largest.amax(-1, keepdim=True) / 3).clamp_(min=1))


def errors(outputs, truth):
    """{"o": {"relative_l2", "max_abs", "worst_share"}, ...}; None where the output holds something that is not finite. The share is
    the largest of |out - ref| / (tol allowance); without allowances (16 bits) the key is missing."""
    found = {}
    for name, output in outputs.items():
        difference = (output.double() - truth[name]).abs_()
        values = {"relative_l2": (difference.norm() / truth[name].norm()).item(), "max_abs": difference.max().item()}
        if ALLOWANCE + name in truth:
            share = difference / (tolerance(output.shape[2]) * truth[ALLOWANCE + name])
            values["worst_share"] = share.masked_fill_(difference == 0, 0).max().item()  # 0 of 0 is no error
        found[name] = {key: value if math.isfinite(value) else None for key, value in values.items()}
    return found


def worst_error(found, key):
    """The largest of the outputs' errors; None when one of them is not finite, or not told."""
    values = [error.get(key) for error in found.values()]
    return None if None in values else max(values)


# ---- time, memory, kernels


class Clock:
    """Times single runs between two CUDA events. Before each run the L2 is flushed by reads of foreign memory, queued
    until the GPU has work for longer than the slowest method's launch calls take on the host: a time then holds no
    launch time of the framework."""

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
    """The shortest time in which the host enqueues a run, of three runs, or of two where they take a tenth of a second;
    `start` does the untimed part and returns the run. Not of one: the first may be the one in which a library wakes
    up."""
    times, end = [], time.perf_counter() + 0.1
    while len(times) < 2 or (len(times) < 3 and time.perf_counter() < end):
        work = start()
        torch.cuda.synchronize()
        began = time.perf_counter()
        result = work()
        times.append(1e3 * (time.perf_counter() - began))
        torch.cuda.synchronize()
        del work, result
    return min(times)


def measure(starts, clock, repeat, seconds=0.5):
    """{name: time} of the methods, one run of each in turn, so that clocks and heat fall on all alike. At least 20
    rounds and `seconds` per method, or `repeat` rounds. A method that runs out of memory on the way has its reason
    instead of a time."""
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
            tenths = statistics.quantiles(ms, n=10, method="inclusive") if len(ms) > 1 else 9 * ms
            times[name] = {
                "median_ms": tenths[4],
                "p10_ms": tenths[0],
                "p90_ms": tenths[8],
                "runs": len(ms),
                "late_runs": sum(run[1] for run in measured),
            }
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
    """[(name, microseconds)] of the kernels that `work` launches, in order, without copies and fills. By
    torch.profiler, which sees every kernel of the process, the steps' too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of cycles, which this has one of
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            result = work()
            torch.cuda.synchronize()
    del result
    events = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    copy = re.compile(r"Mem(cpy|set)")
    return [(event.name, event.time_range.elapsed_us()) for event in events if not copy.match(event.name)]


def first_line(error):
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    # Which processes hold the GPU's memory follows, and is nobody's business.
    return re.sub(r"(CUDA out of memory\. Tried to allocate [\d.]+ \w+).*", r"\1", line)
