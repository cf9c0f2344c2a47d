#!/usr/bin/env python3
"""Time and memory against N up to 128k: step02 and eager hold N x N matrices, step04 and SDPA flash do not.

    python3 plots/figures/figure_scaling.py docs/results/nvidia-h200.json --out docs/figures

From the scaling rows (fp16, d 64, batch 1, 16 heads, forward, not causal). Both axes are logarithmic: a line's slope is
its exponent, and the numbers on the lines say by how much each doubling of N multiplies the value."""

import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.figures import figure_style as style
from plots.script import bytes_text, end_with

RATIOS_ON = ("step02", "step04")  # the lines that carry all their ratios; the other methods lie close to one of them


def draw(results):
    return {"scaling": picture(results)}


def picture(results):
    rows = [row for row in results["rows"] if row["set"] == "scaling" and row["pass"] == "forward"]
    methods = {
        method: sorted((row for row in rows if row["method"] == method), key=lambda row: row["seqlen"])
        for method in style.order({row["method"]: row for row in rows})
    }
    measured = {row["seqlen"] for row in rows if not style.why_no_time(row)}
    if len(measured) < 2:
        return f"a line against N needs the scaling rows of two N or more, there are {len(measured)}"

    figure = style.new_figure(5)
    time, memory = figure.subplots(1, 2)
    lines(time, methods, lambda row: row["time"]["median_ms"])
    lines(memory, methods, lambda row: row["extra_bytes"])
    time.set_ylabel("time, ms")
    time.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    memory.set_ylabel("memory beyond Q, K, V and O, bytes")
    memory.yaxis.set_major_formatter(lambda y, _: bytes_text(round(y)).replace(".0 ", " "))
    notes = ["numbers on the lines: times as much as at half the N; after a name: the same for its last N"]
    for ax in (time, memory):
        mark_ends(ax, methods)
        ax.set_xlabel("N, tokens")
    for method, of_it in methods.items():
        if lost := [row for row in of_it if style.why_no_time(row)]:
            why = style.why_no_time(lost[0])
            notes.append(why if why.startswith(method) else f"{method} at N {lost[0]['seqlen']}: {why}")
    some = rows[0]
    figure.suptitle(
        f"{results['gpu']}: {some['dtype']}, d {some['head_dim']}, {style.heads_text(some)}", x=0.01, ha="left"
    )
    style.footnotes(figure, notes)
    return figure


def ratios(points):
    """[(N, value(N) / value(N / 2))] of [(N, value)], for each N whose half is there too."""
    values = dict(points)
    return [(n, value / values[n // 2]) for n, value in points if n % 2 == 0 and values.get(n // 2)]


def lines(ax, methods, value):
    starts = []
    for method, rows in methods.items():
        points = [(row["seqlen"], value(row)) for row in rows if not style.why_no_time(row) and value(row)]
        if not points:
            continue
        colour, hatch, marker = style.method_style(method)
        ax.plot(
            *zip(*points),
            color=colour,
            marker=marker,
            markerfacecolor="white" if hatch else colour,
            linestyle="--" if hatch else "-",
            label=method,
            zorder=3,
        )
        grown = ratios(points)
        starts.append((points[0], f"{method}  x{grown[-1][1]:.2f}" if grown else method))
        for n, ratio in grown if method in RATIOS_ON else []:
            middle = (n / math.sqrt(2), math.sqrt(dict(points)[n] * dict(points)[n // 2]))
            ax.text(
                *middle,
                f"{ratio:.2f}",
                ha="center",
                va="center",
                fontsize=7.5,
                zorder=4,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},
            )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    all_n = sorted({row["seqlen"] for rows in methods.values() for row in rows})
    ax.set_xticks(all_n, [style.seqlen_text(n) for n in all_n])
    ax.set_xlim(all_n[0] / 18, all_n[-1] * 1.5)
    ax.set_ylim(ax.get_ylim()[0] / 2, ax.get_ylim()[1] * 2)
    ax.grid()
    ax.minorticks_off()
    name_starts(ax, starts)


def name_starts(ax, starts):
    """Each line's name and last ratio, left of its first point, where no other line passes; names that lie close are
    moved apart."""
    low, high = (math.log10(y) for y in ax.get_ylim())
    starts.sort(key=lambda start: start[0][1])
    for (point, text), y in zip(
        starts, style.spread([math.log10(point[1]) for point, _ in starts], (high - low) * 0.042)
    ):
        ax.annotate(
            text,
            point,
            (point[0] / 1.5, 10**y),
            textcoords="data",
            ha="right",
            va="center",
            fontsize=8.5,
            arrowprops={
                "arrowstyle": "-",
                "color": "#999999",
                "linewidth": 0.6,
                "shrinkA": 0,
                "shrinkB": 4,
                "relpos": (1, 0.5),
            },
        )


def mark_ends(ax, methods):
    """A dotted line at the N from which a method did not run any more."""
    first_missing = {}
    for method, rows in methods.items():
        ran = [row["seqlen"] for row in rows if not style.why_no_time(row)]
        missing = [row["seqlen"] for row in rows if style.why_no_time(row) and (not ran or row["seqlen"] > ran[-1])]
        if missing:
            first_missing.setdefault(missing[0], []).append(method)
    for n, names in first_missing.items():
        ax.axvline(n, color=style.BLACK, linestyle=":", linewidth=1)
        ax.annotate(
            f"{' and '.join(names)}\nno longer run{'s' if len(names) == 1 else ''}",
            (n, 0),
            (-4, 4),
            xycoords=ax.get_xaxis_transform(),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=8,
        )


if __name__ == "__main__":
    end_with(lambda: style.main([draw], __doc__))
