"""A results file for the tests of the figures, made by formulas: the shape of docs/results/<gpu>.json, and no measurement in it."""

# As fast as this GPU's step00 would say, had there been one.
DEVICE = {"schema": "attention-device-1", "gpu": {"name": "Artificial GPU", "hbm_bytes": 150e9},
          "bytes_per_second": {"hbm_read": 4.7e12, "hbm_copy": 4.2e12, "hbm_peak": 4.8e12},
          "flops_per_second": {"ffma_fp32": 64e12, "mma_fp16": 635e12, "mma_bf16": 634e12},
          "tile_products": [{"dtype": dtype, "head_dim": head_dim, "flops_per_second": rate} for dtype, rate in (("fp32", 48e12), ("fp16", 572e12), ("bf16", 573e12)) for head_dim in (64, 128)],
          "split_tile_products": [{"dtype": "fp32", "head_dim": head_dim, "flops_per_second": 150e12} for head_dim in (64, 128)]}
TITLES = {"step01": "naive three kernels", "step02": "fused row softmax", "step03": "tiled SRAM", "step04": "online softmax", "step05": "recompute backward", "step06": "asynchronous pipeline", "step07": "Hopper, twin blocks",
          "step08": "Hopper, specialised warps"}
# method: (kernels with their executed FLOPs in N²d, and their tensors in HBM as multiples of themselves, share of the tile product's rate)
FORWARD = {
    "step01": ([("scores", 2, {"Q": 1, "K": 1, "S": 1}), ("softmax", 0, {"S": 3, "P": 1, "LSE": 1}), ("PV", 2, {"P": 1, "V": 1, "O": 1})], 0.1),
    "step02": ([("scores", 2, {"Q": 1, "K": 1, "S": 1}), ("softmax", 0, {"S": 1, "P": 1, "LSE": 1}), ("PV", 2, {"P": 1, "V": 1, "O": 1})], 0.7),
    "step03": ([("attention", 6, {"Q": 1, "K": 1, "V": 1, "O": 1, "LSE": 1})], 0.62),
    "step04": ([("attention", 4, {"Q": 1, "K": 1, "V": 1, "O": 1, "LSE": 1})], 0.6),
    "step05 forward": ([("attention", 4, {"Q": 1, "K": 1, "V": 1, "O": 1, "LSE": 1})], 0.59),
    "step06": ([("attention", 4, {"Q": 1, "K": 1, "V": 1, "O": 1, "LSE": 1})], 0.7),
    "step07": ([("attention", 4, {"Q": 1, "K": 1, "V": 1, "O": 1, "LSE": 1})], 0.9),
    "step08": ([("attention", 4, {"Q": 1, "K": 1, "V": 1, "O": 1, "LSE": 1})], 0.95),
    "yardstick": ([("scores", 2, {"Q": 1, "K": 1, "S": 1}), ("softmax", 0, {"S": 1, "P": 1, "LSE": 1}), ("PV", 2, {"P": 1, "V": 1, "O": 1})], 0.9),
}
BACKWARD = {
    "step05 standard backward": ([("dV", 2, {"P": 1, "dO": 1, "dV": 1}), ("dP", 2, {"dO": 1, "V": 1, "dP": 1}), ("dS", 0, {"P": 1, "dP": 1, "dS": 1}), ("dQ", 2, {"dS": 1, "K": 1, "dQ": 1}),
                                  ("dK", 2, {"dS": 1, "Q": 1, "dK": 1})], 0.7),
    "step05 recompute backward": ([("delta", 0, {"dO": 1, "O": 1, "delta": 1}), ("dK dV", 8, {"Q": 1, "K": 1, "V": 1, "dO": 1, "LSE": 1, "delta": 1, "dK": 1, "dV": 1}),
                                   ("dQ", 6, {"Q": 1, "K": 1, "V": 1, "dO": 1, "LSE": 1, "delta": 1, "dQ": 1})], 0.5),
}
IN_HALF_ALONE = ("step06", "step07", "step08")
ON_TENSOR_CORES = ("step04", "step05 standard backward", "step05 recompute backward")  # in fp32, beside CUDA cores
PYTORCH = {"eager": 8, "SDPA efficient": 2, "SDPA flash": 1.6, "SDPA cuDNN": 1.1}  # times as long as its useful FLOPs at the tile product's rate


def size_of(tensor, row):
    """Bytes of a tensor."""
    elements = row["batch"] * row["heads"] * row["seqlen"]
    width = 4 if row["dtype"] == "fp32" else 2
    return elements * (4 if tensor in ("LSE", "delta") else row["seqlen"] * width if tensor in ("S", "P", "dS", "dP") else row["head_dim"] * width)


def row_of(method, which, dtype, batch, heads, seqlen, head_dim, causal, measured=True, product="cuda-cores"):
    row = {"method": method, "title": TITLES.get(method.split()[0], ""), "ours": method in FORWARD or method in BACKWARD, "pass": which, "product": None, "dtype": dtype, "batch": batch, "heads": heads,
           "seqlen": seqlen, "head_dim": head_dim, "causal": causal, "tile": None, "not_run": None, "emulated": False, "verified": None, "verdict": None, "predicted_ms": None, "tflops": None,
           "flops": None, "hbm_expected_bytes": None, "hbm_at_least": False, "hbm_measured_bytes": None, "hbm_measured_bytes_reason": "no permission", "requested_expected_bytes": None,
           "requested_measured_bytes": None, "l2_to_sm_measured_bytes": None, "spill_bytes": None, "by_tensor": None, "extra_bytes": None, "grows": None,
           "error": {"relative_l2": 1e-7, "max_abs": 1e-6, "worst_share": None}, "kernels": None, "kernel_count": None}
    pairs = batch * heads * seqlen * seqlen * head_dim // (2 if causal else 1)
    useful = 4 * pairs * (2.5 if which == "backward" else 1)
    products = DEVICE["split_tile_products" if product == "tensor-cores" else "tile_products"]
    rate = next(rate["flops_per_second"] for rate in products if (rate["dtype"], rate["head_dim"]) == (dtype, head_dim))
    if row["ours"]:
        row["product"] = product if dtype == "fp32" else None
        kernels, share = (FORWARD if which == "forward" else BACKWARD)[method]
        row.update(verified=True, verdict="PASS", hbm_at_least=method == "step01", by_tensor={}, kernels=[])
        for name, products, tensors in kernels:
            moved = {tensor: times * size_of(tensor, row) for tensor, times in tensors.items()}
            for tensor, size in moved.items():
                row["by_tensor"][tensor] = row["by_tensor"].get(tensor, 0) + size
            time_ms = 1e3 * (products * pairs / rate / share + sum(moved.values()) / 4.2e12) + 0.004
            row["kernels"].append({"name": name, "time_ms": time_ms, "hbm_expected_bytes": sum(moved.values()), "hbm_measured_bytes": int(1.02 * sum(moved.values())) if measured else None,
                                   "executed_flops": products * pairs})
        row["hbm_expected_bytes"] = sum(row["by_tensor"].values())
        row["hbm_measured_bytes"] = (3 if method == "step01" else 1) * sum(kernel["hbm_measured_bytes"] for kernel in row["kernels"]) if measured else None
        row["flops"] = {"useful": useful, "executed": sum(kernel["executed_flops"] for kernel in row["kernels"])}
        quadratic = sum(size_of(tensor, row) for tensor in ("S", "P", "dS", "dP") if tensor in row["by_tensor"])
        row.update(extra_bytes=quadratic + size_of("LSE", row), grows="N^2" if quadratic else "N", kernel_count=len(kernels))
        ms = sum(kernel["time_ms"] for kernel in row["kernels"])
    else:
        ms = 1e3 * useful / rate * PYTORCH[method] + 0.02
        row.update(flops={"useful": useful, "executed": None}, extra_bytes=2 * size_of("S", row) if method == "eager" else size_of("LSE", row), kernel_count=4 if method == "eager" else 1)
    row.update(time={"median_ms": ms, "p10_ms": 0.99 * ms, "p90_ms": 1.02 * ms, "runs": 20}, tflops=useful / ms / 1e9)
    return row


def not_run(row, reason):
    return {**row, "not_run": reason, **dict.fromkeys(("time", "tflops", "extra_bytes", "hbm_measured_bytes", "hbm_expected_bytes", "by_tensor", "kernels", "flops"))}


def sweep_of(dtype, head_dim):
    tiles = []
    for br in (32, 64, 128, 256):
        for bc in (32, 64, 128):
            sram = (br + 2 * bc) * (head_dim + 8) * (4 if dtype == "fp32" else 2)
            entry = {"tile": f"{br}x{bc}", "sram_bytes": sram, "blocks_per_sm": 232448 // sram, "requested_bytes": 10 ** 9 * 128 // br, "hbm_expected_bytes": 67371008, "hbm_measured_bytes": None,
                     "time": {"median_ms": 2 + abs(br - 128) / 50 + abs(bc - 64) / 40, "p10_ms": 2, "p90_ms": 2, "runs": 20}, "not_run": None, "verified": True}
            if sram > 200000:
                entry.update(time=None, not_run=f"needs {sram} bytes of SRAM, a block has 232448", verified=None, requested_bytes=None)
            tiles.append(entry)
    return {"step": "step04", "gpu": "Artificial GPU", "dtype": dtype, "batch": 4, "heads": 2048 // head_dim, "seqlen": 4096, "head_dim": head_dim, "causal": False, "tiles": tiles, "best": "128x64"}


def results(measured=True):
    """The whole object, a new one each time: the headline size of all dtypes and head_dims, the scaling rows, sweeps."""
    rows = []
    for dtype in ("fp32", "fp16", "bf16"):
        pytorch = ["eager", "SDPA efficient"] + (["SDPA flash", "SDPA cuDNN"] if dtype != "fp32" else [])
        for head_dim in (64, 128):
            for causal in (False, True):
                for which, ours in (("forward", FORWARD), ("backward", BACKWARD)):
                    rows += [row_of(method, which, dtype, 4, 2048 // head_dim, 4096, head_dim, causal, measured) for method in [*ours, *pytorch] if dtype != "fp32" or method not in IN_HALF_ALONE]
                    if dtype == "fp32":
                        rows += [row_of(method, which, dtype, 4, 2048 // head_dim, 4096, head_dim, causal, measured, "tensor-cores") for method in ours if method in ON_TENSOR_CORES]
    for n in range(10, 18):
        for method in ("step02", "step04", "eager", "SDPA flash"):
            row = row_of(method, "forward", "fp16", 1, 16, 2 ** n, 64, False, measured)
            quadratic = 2 * size_of("S", row)
            rows.append(not_run(row, f"S and P need {quadratic} bytes, 149000000000 are free") if method in ("step02", "eager") and quadratic > 149e9 else row)
    return {"schema": "attention-results-2", "gpu": "Artificial GPU", "date": "2000-01-01", "commit": "none", "versions": {}, "device": DEVICE, "rows": rows,
            "sweeps": [sweep_of(dtype, head_dim) for dtype in ("fp32", "fp16") for head_dim in (64, 128)]}
