"""The roofline of this GPU as step00 measured it, with each method on it: FLOPs per HBM byte against FLOPs per second.
One picture per dtype, in fp32 one per product (--product); executed FLOPs, N = 4096, not causal. A filled marker stands
at the expected bytes, a hollow one at the measured."""

import dataclasses
import math

from plots.figures import figure_style as style
from plots.programs import CUDA_CORES, TENSOR_CORES
from plots.results import on_product, tile_product

# step00's names of the rates of what multiplies, and how many of its FLOPs make one of the attention's.
CEILINGS = {
    ("fp32", CUDA_CORES): ({"CUDA cores": "ffma_fp32"}, 1),
    ("fp32", TENSOR_CORES): ({"tensor cores, three products for one": "mma_fp16"}, 3),
    ("fp16", None): ({"warpgroup products": "wgmma_fp16", "tensor cores": "mma_fp16"}, 1),
    ("bf16", None): ({"warpgroup products": "wgmma_bf16", "tensor cores": "mma_bf16"}, 1),
}
PASSES = ("forward", "backward")


@dataclasses.dataclass
class Point:
    label: str
    method: str
    tflops: float  # executed FLOPs over the time
    expected: float  # FLOPs per byte, None where the bytes are not known
    measured: float
    at_least: bool  # the expected bytes are a lower bound, so the FLOPs per byte an upper one

    @property
    def right(self):
        return max(filter(None, (self.expected, self.measured)))


def draw(results):
    name = lambda dtype, product: f"roofline-{dtype}{'-' + TENSOR_CORES if product == TENSOR_CORES else ''}"
    return {name(dtype, product): picture(results, dtype, product) for dtype, product in CEILINGS}


def picture(results, dtype, product=None):
    """`product`: of fp32's rows those on CUDA cores or those on tensor cores."""
    device, absent = results.get("device"), {}
    if not device:
        return f"the results do not hold what step00 measured ({results.get('device_reason') or 'no reason given'})"
    what = on_product(dtype, product)
    panels = panels_of(results, dtype, product, absent)
    if not panels:
        return f"no {what} row with N {style.HEADLINE_SEQLEN} has a time, FLOPs and bytes"
    passes = [which for which in PASSES if any(which == of for of, _ in panels)]
    head_dims = sorted({head_dim for _, head_dim in panels})
    figure = style.new_figure(0.6 + 3.4 * len(passes))
    axes = figure.subplots(len(passes), len(head_dims), squeeze=False)
    for line, which in zip(axes, passes):
        for ax, head_dim in zip(line, head_dims):
            panel(ax, device, dtype, product, head_dim, panels.get((which, head_dim), []))
            ax.set_title(f"{what}, d {head_dim}, {which}")
        line[0].set_ylabel("executed TFLOP/s")
    for ax in axes[-1]:
        ax.set_xlabel("executed FLOPs per HBM byte")
    title = f"roofline, N {style.HEADLINE_SEQLEN}; filled: expected bytes, hollow: measured"
    notes = [f"not drawn, {why}: {', '.join(dict.fromkeys(labels))}" for why, labels in absent.items()]
    return style.finish(figure, results, title, notes)


def panels_of(results, dtype, product, absent):
    """{(pass, head_dim): Points} of our rows. Labels of what cannot be placed go to absent[reason]; so does what is
    faster than every rate that step00 measured: its roof is not in these results."""
    panels = {}
    for which in PASSES:
        for (of, head_dim), rows in style.headline(results, which, causal=False).items():
            ours = {name: row for name, row in rows.items() if row["ours"] and row["product"] == product}
            if of != dtype or not ours:
                continue
            points = [point for name in style.order(ours) if (point := point_of(ours[name], absent))]
            rates = roof(results["device"], dtype, product, head_dim, points) if results.get("device") else []
            top = max((rate for _, rate in rates), default=math.inf)
            for point in points:
                if point.tflops > top:
                    absent.setdefault("above the rates that these results hold of step00", []).append(
                        f"{point.label} (d {head_dim})"
                    )
            placed = [point for point in points if point.tflops <= top]
            if placed:
                panels[which, head_dim] = placed
    return panels


def point_of(row, absent):
    label = f"{row['method']} (d {row['head_dim']})"
    why, flops = style.why_no_time(row), (row["flops"] or {}).get("executed")
    expected, measured = row["hbm_expected_bytes"], row["hbm_measured_bytes"]
    if not why and not (flops and (expected or measured)):
        why = "executed FLOPs or HBM bytes are not in the results"
    if why:
        absent.setdefault(why, []).append(label)
        return None
    places, tflops = [of and flops / of for of in (expected, measured)], flops / row["time"]["median_ms"] / 1e9
    return Point(style.short(row["method"]), row["method"], tflops, *places, row["hbm_at_least"])


def roof(device, dtype, product, head_dim, points):
    """[(what multiplies, TFLOP/s)], the highest first; the last is our own tile product."""
    keys, flops = CEILINGS[dtype, product]
    rates = [(what, device["flops_per_second"].get(key)) for what, key in keys.items()]
    tiles = tile_product(device, dtype, head_dim, product)
    rates = [(what, rate / flops / 1e12) for what, rate in rates if rate]
    return rates + ([("our tile product", tiles["flops_per_second"] / 1e12)] if tiles else [])


def panel(ax, device, dtype, product, head_dim, points):
    """The roof, the points, their names. Rates in TFLOP/s, so the bandwidth in bytes per picosecond."""
    if not points:
        return ax.set_axis_off()
    bandwidth = device["bytes_per_second"]["hbm_copy"] / 1e12
    ceilings = roof(device, dtype, product, head_dim, points)
    top = max([rate for _, rate in ceilings] + [point.tflops for point in points])
    left = min(*(x / 2.5 for point in points for x in (point.expected, point.measured) if x), top / bandwidth / 6)
    right = max(max(point.right for point in points), top / bandwidth) * 20
    bottom = min(min(point.tflops for point in points), left * bandwidth) / 2
    ax.plot([left, top / bandwidth], [left * bandwidth, top], color=style.BLACK, linewidth=1.2)
    for n, (what, rate) in enumerate(ceilings):
        how = {"linestyle": "--", "linewidth": 0.9} if n else {"linestyle": "-", "linewidth": 1.2}
        ax.plot([rate / bandwidth, right], [rate, rate], color=style.BLACK, **how)
    told = [f"{'dashed: ' if n else ''}{what} {style.number(rate)}" for n, (what, rate) in enumerate(ceilings)]
    if told:
        style.beside(ax, ", ".join(told), (right, ceilings[0][1]), (-2, 3), va="bottom", ha="right", fontsize=8)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, top * 2)
    middle = math.sqrt(left * top / bandwidth)
    along = {"rotation": math.degrees(math.atan(bandwidth)), "rotation_mode": "anchor", "transform_rotates_text": True}
    above = (middle / 1.12, middle * bandwidth * 1.12)
    style.centred(ax, *above, f"HBM: {style.number(bandwidth)} TB/s", va="bottom", fontsize=8, **along)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(lambda value, _: "")
    if top * 2 / bottom < 100:  # one power of ten or two, too few to read a scale from
        ax.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    ax.grid()
    for point in points:
        draw_point(ax, point)
    gap = math.log10(top * 2 / bottom) * 0.05
    name_points(ax, points, gap, math.log10(min((rate for _, rate in ceilings), default=2 * top)) - gap / 1.5)


def draw_point(ax, point):
    colour, _, marker = style.method_style(point.method)
    if point.expected and point.measured:
        ax.plot([point.expected, point.measured], [point.tflops] * 2, color=colour, linewidth=0.9, zorder=3)
    if point.measured:
        edge = {"color": "white", "markeredgecolor": colour, "markeredgewidth": 1.2}
        ax.plot(point.measured, point.tflops, marker=marker, markersize=7, zorder=4, **edge)
    if point.expected:
        edge = {"color": colour, "markeredgecolor": style.BLACK, "markeredgewidth": 0.5}
        ax.plot(point.expected, point.tflops, marker=marker, markersize=7, zorder=5, **edge)
        if point.at_least and not point.measured:
            arrow = {"arrowstyle": "->", "color": style.BLACK, "shrinkA": 3}
            ax.annotate("", (point.expected / 1.9, point.tflops), (point.expected, point.tflops), arrowprops=arrow)


def name_points(ax, points, gap, highest):
    """Names in a column right of the points near the same FLOPs per byte, moved apart, below the ceilings."""
    columns = []
    for point in sorted(points, key=lambda point: point.right):
        if columns and point.right < 9 * columns[-1][0].right:
            columns[-1].append(point)
        else:
            columns.append([point])
    arrow = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3, "relpos": (0, 0.5)}
    for column in columns:
        column.sort(key=lambda point: point.tflops)
        x = max(point.right for point in column) * 1.5
        for point, y in zip(column, style.spread([math.log10(point.tflops) for point in column], gap, highest)):
            where = {"textcoords": "data", "va": "center", "fontsize": 8.5, "arrowprops": arrow}
            ax.annotate(point.label, (point.right, point.tflops), (x, 10**y), **where)
