#!/usr/bin/env python3
"""The roofline of this GPU as step00 measured it, with each kernel on it: FLOPs per HBM byte against FLOPs per second.

    python3 plots/figure_roofline.py docs/results/nvidia-h200.json --out docs/figures

One picture per dtype, in fp32 one per product (--product); executed FLOPs, N = 4096, not causal. A filled marker stands at the expected bytes, a hollow one at the measured.
"""
import dataclasses
import math
import sys

import figure_style as style
from results import CUDA_CORES, TENSOR_CORES, on_product, tile_product

# What multiplies, step00's name of its rate, and how many of its FLOPs make one of the attention's.
CEILINGS = {("fp32", CUDA_CORES): ("CUDA cores", "ffma_fp32", 1), ("fp32", TENSOR_CORES): ("tensor cores, three products for one", "mma_fp16", 3),
            ("fp16", None): ("tensor cores", "mma_fp16", 1), ("bf16", None): ("tensor cores", "mma_bf16", 1)}
SAME_PLACE = 1.15  # kernels of one method that lie this close share a label


@dataclasses.dataclass
class Point:
    label: str
    method: str
    kernel: bool         # one of a method's several kernels; else all of the method
    tflops: float        # executed FLOPs over the time
    expected: float      # FLOPs per byte, None where the bytes are not known
    measured: float
    at_least: bool       # the expected bytes are a lower bound, so the FLOPs per byte an upper one

    @property
    def right(self):
        return max(filter(None, (self.expected, self.measured)))


def draw(results):
    return {f"roofline-{dtype}{'-' + TENSOR_CORES if product == TENSOR_CORES else ''}": picture(results, dtype, product) for dtype, product in CEILINGS}


def picture(results, dtype, product=None):
    """`product`: of fp32's rows those on CUDA cores or those on tensor cores; PyTorch's stand beside the first."""
    device = results.get("device")
    if not device:
        return f"the results do not hold what step00 measured ({results.get('device_reason') or 'no reason given'})"
    what = on_product(dtype, product)
    panels, absent = {}, {}
    for which in ("forward", "backward"):
        for (of, head_dim), rows in style.headline(results, which, causal=False).items():
            if of == dtype:
                panels.setdefault(head_dim, []).extend(point for method in style.order(rows) if rows[method]["product"] == product or (product == CUDA_CORES and not rows[method]["ours"])
                                                         for point in points_of(rows[method], absent))
    panels = {head_dim: points for head_dim, points in sorted(panels.items()) if points}
    if not panels:
        return f"no {what} row with N {style.HEADLINE_SEQLEN} has a time, FLOPs and bytes"

    figure = style.new_figure(5)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (head_dim, points) in zip(axes, panels.items()):
        panel(ax, device, dtype, product, head_dim, points)
        ax.set_title(f"{what}, d {head_dim}")
        ax.set_xlabel("executed FLOPs per HBM byte")
    axes[0].set_ylabel("executed TFLOP/s")
    figure.suptitle(f"{results['gpu']}: roofline, N {style.HEADLINE_SEQLEN}; filled: expected bytes, hollow: measured, small: one of several kernels", x=0.01, ha="left")
    style.footnotes(figure, [f"not drawn, {why}: {', '.join(dict.fromkeys(labels))}" for why, labels in absent.items()])
    return figure


def points_of(row, absent):
    """The Points of a row and of its kernels; labels of what cannot be placed go to absent[reason]."""
    why = style.why_no_time(row)
    if why:
        absent.setdefault(why, []).append(f"{row['method']} (d {row['head_dim']}, {row['pass']})")
        return []
    entries = [(row["method"].removesuffix(" backward"), (row["flops"] or {}).get("executed"), row["time"]["median_ms"], row)]
    if row["ours"] and len(row["kernels"] or []) > 1:
        entries += [(f"{row['method'].removesuffix(' backward').split()[-1]} {kernel['name']}", kernel.get("executed_flops"), kernel["time_ms"], kernel) for kernel in row["kernels"]]
    points = []
    for label, flops, ms, of in entries:
        expected, measured = of["hbm_expected_bytes"], of["hbm_measured_bytes"]
        missing = [name for name, value in (("executed FLOPs", flops), ("time", ms), ("HBM bytes", expected or measured)) if not value]
        if flops == 0:
            absent.setdefault("no products, so no FLOPs", []).append(label)
        elif missing:
            absent.setdefault(f"{' and '.join(missing)} not in the results", []).append(label)
        else:
            points.append(Point(label, row["method"], of is not row, flops / ms / 1e9, expected and flops / expected, measured and flops / measured, bool(of.get("hbm_at_least"))))
    return points


def panel(ax, device, dtype, product, head_dim, points):
    """The roof, the points, their names. Rates in TFLOP/s, so the bandwidth in bytes per picosecond."""
    bandwidth = device["bytes_per_second"]["hbm_copy"] / 1e12
    unit, key, flops = CEILINGS[dtype, product]
    rate, tiles = device["flops_per_second"][key], tile_product(device, dtype, head_dim, product)
    ceilings = ([(unit, rate / flops / 1e12, "-")] if rate else []) + ([("our tile product", tiles["flops_per_second"] / 1e12, "--")] if tiles else [])
    top = max([rate for _, rate, _ in ceilings] + [point.tflops for point in points])
    left = min(x for point in points for x in (point.expected, point.measured) if x) / 2.5
    right = max(max(point.right for point in points), top / bandwidth) * 50
    bottom = min(min(point.tflops for point in points), left * bandwidth) / 2.5

    ax.plot([left, top / bandwidth], [left * bandwidth, top], color=style.BLACK, linewidth=1.2)
    for n, (text, rate, line) in enumerate(ceilings):
        ax.plot([rate / bandwidth, right], [rate, rate], color=style.BLACK, linestyle=line, linewidth=0.9 if n else 1.2)
        ax.annotate(f"{text}: {style.number(rate)} TFLOP/s", (right, rate), (-2, -3 if n else 3), textcoords="offset points", ha="right", va="top" if n else "bottom", fontsize=8)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, top * 2)
    middle = math.sqrt(left * top / bandwidth)
    ax.text(middle / 1.12, middle * bandwidth * 1.12, f"HBM: {style.number(bandwidth)} TB/s", ha="center", va="bottom", fontsize=8, rotation=math.degrees(math.atan(bandwidth)),
            rotation_mode="anchor", transform_rotates_text=True)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(lambda value, _: "")
    if top * 2 / bottom < 100:  # one power of ten or two, too few to read a scale from
        ax.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    ax.grid()
    for point in points:
        draw_point(ax, point)
    low, high = math.log10(bottom), math.log10(top * 2)
    gap = (high - low) * 0.035
    name_points(ax, points, gap, math.log10(min(rate for _, rate, _ in ceilings)) - 2 * gap if ceilings else high)


def draw_point(ax, point):
    colour, _, marker = style.method_style(point.method)
    size = 4 if point.kernel else 7.5
    if point.expected and point.measured:
        ax.plot([point.expected, point.measured], [point.tflops] * 2, color=colour, linewidth=0.9, zorder=3)
    if point.measured:
        ax.plot(point.measured, point.tflops, marker=marker, markersize=size, color="white", markeredgecolor=colour, markeredgewidth=1.2, zorder=4)
    if point.expected:
        ax.plot(point.expected, point.tflops, marker=marker, markersize=size, color=colour, markeredgecolor=style.BLACK, markeredgewidth=0.5, zorder=5)
        if point.at_least and not point.measured:
            ax.annotate("", (point.expected / 1.9, point.tflops), (point.expected, point.tflops), arrowprops={"arrowstyle": "->", "color": style.BLACK, "shrinkA": 3})


def name_points(ax, points, gap, highest):
    """Names in a column right of the points near the same FLOPs per byte, moved apart, below the ceilings."""
    columns = []
    for point in sorted(points, key=lambda point: point.right):
        if columns and point.right < 9 * columns[-1][0].right:
            columns[-1].append(point)
        else:
            columns.append([point])
    for column in reversed(columns):
        names = []  # [text, point]
        for point in sorted(column, key=lambda point: (point.method, point.kernel, point.tflops)):
            last = names[-1][1] if names else None
            if last and point.kernel and last.kernel and point.method == last.method and point.tflops < SAME_PLACE * last.tflops and abs(math.log(point.right / last.right)) < math.log(SAME_PLACE):
                names[-1][0] += f", {point.label.split(' ', 1)[1]}"
            else:
                names.append([point.label, point])
        names.sort(key=lambda name: name[1].tflops)
        x = column[-1].right * 1.7
        heights = style.spread([math.log10(point.tflops) for _, point in names], gap, highest)
        for (text, point), y in zip(names, heights):
            ax.annotate(text, (point.right, point.tflops), (x, 10 ** y), textcoords="data", va="center", fontsize=7.5 if point.kernel else 8.5,
                        arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3, "relpos": (0, 0.5)})
        highest = min(highest, heights[0], *(math.log10(point.tflops) for point in column)) - 1.2 * gap  # names further left pass below all this


if __name__ == "__main__":
    sys.exit(style.main([draw], __doc__))
