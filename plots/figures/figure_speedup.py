#!/usr/bin/env python3
"""Speedup by step: how many times as fast as PyTorch eager each method is, per dtype and head_dim at N = 4096, causal
apart.

    python3 plots/figures/figure_speedup.py docs/results/nvidia-h200.json --out docs/figures

Where there is no eager row, step02 (in the backward the standard backward) is the 1. docs/figures/README.md describes
the figure."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.figures import figure_style as style
from plots.script import end_with
from plots.tables.result_tables import OVER

OUR_BASELINE = {which: over[0][0] for which, over in OVER.items()}


def draw(results):
    return {
        f"speedup-{which}{'-causal' if causal else ''}": picture(results, which, causal)
        for which in ("forward", "backward")
        for causal in (False, True)
    }


def milliseconds(row):
    return None if row is None or style.why_no_time(row) else row["time"]["median_ms"]


def picture(results, which, causal):
    panels = style.headline(results, which, causal)
    base = next(
        (
            base
            for base in ("eager", OUR_BASELINE[which])
            if any(milliseconds(rows.get(base)) for rows in panels.values())
        ),
        None,
    )
    if not panels:
        return style.no_headline(results, which, causal)
    if base is None:
        return (
            f"neither eager nor {OUR_BASELINE[which]} ran in {'causal ' if causal else ''}{which}: nothing "
            "to compare with"
        )

    dtypes, head_dims = (list(dict.fromkeys(keys)) for keys in zip(*panels))
    methods = {
        dtype: style.order(
            {method: row for (of, _), rows in panels.items() if of == dtype for method, row in rows.items()}
        )
        for dtype in dtypes
    }
    heights = [len(methods[dtype]) + 2.6 for dtype in dtypes]
    figure = style.new_figure(0.215 * sum(heights) + 1)
    axes = figure.subplots(
        len(dtypes), len(head_dims), squeeze=False, gridspec_kw={"height_ratios": heights}, sharex="row"
    )
    notes = {}  # {reason: [what]}
    for line, dtype in zip(axes, dtypes):
        for ax, head_dim in zip(line, head_dims):
            if (dtype, head_dim) not in panels:
                notes.setdefault("not in the results", []).append(f"{dtype} d {head_dim}")
            panel(ax, panels.get((dtype, head_dim), {}), methods[dtype], base, which, notes)
            some = next(iter(panels.get((dtype, head_dim), {}).values()), None)
            ax.set_title(f"{dtype}, d {head_dim}" + (f" ({style.heads_text(some)})" if some else ""), pad=15)
            ax.set_yticks(
                range(len(methods[dtype])),
                [name(panels, dtype, method) for method in methods[dtype]] if ax is line[0] else [],
            )
    for ax in axes[-1]:
        ax.set_xlabel(f"times as fast as {'PyTorch eager' if base == 'eager' else base}")
    figure.suptitle(
        f"{results['gpu']}: {'causal ' if causal else ''}{which}, N {style.HEADLINE_SEQLEN}", x=0.01, ha="left"
    )
    style.footnotes(figure, [f"n/a  {', '.join(dict.fromkeys(what))}: {reason}" for reason, what in notes.items()])
    return figure


def name(panels, dtype, method):
    """A method's name on the axis, with the step's idea where there is room."""
    row = next(rows[method] for (of, _), rows in panels.items() if of == dtype and method in rows)
    roomy = row["ours"] and row["title"] and method == row["method"] and " " not in method
    return f"{method}  {row['title']}" if roomy else method if method == row["method"] else style.short(method)


def panel(ax, rows, methods, base, which, notes):
    """One bar per method; beside it the speedup over our own baseline and the time."""
    ours = OUR_BASELINE[which]
    base_ms, ours_ms = milliseconds(rows.get(base)), milliseconds(rows.get(ours))
    columns = [(36, "ms", lambda ms: style.number(ms))]
    if base != ours:
        columns.append(
            (
                78,
                "over\n" + style.short(ours).split()[-1],
                lambda ms: "n/a" if ours_ms is None else f"{style.number(ours_ms / ms)}x",
            )
        )
    beside = lambda points, y, text, **how: ax.annotate(
        text,
        (1, y),
        (points, 0),
        xycoords=ax.get_yaxis_transform(),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        **how,
    )
    for points, heading, _ in columns:
        beside(points, -0.75, heading, va="bottom", color="#333333", linespacing=0.95)
    for y, method in enumerate(methods):
        row = rows.get(method)
        ms = milliseconds(row)
        if ms is None or base_ms is None:
            reason = "not in the results" if row is None else style.why_no_time(row) or f"{base} did not run"
            ax.text(0.01, y, "n/a", transform=ax.get_yaxis_transform(), va="center", fontsize=8, style="italic")
            if rows:
                notes.setdefault(reason, []).append(f"{method} ({row['dtype']})" if row else method)
        else:
            colour, hatch, _ = style.method_style(method)
            ax.barh(
                y,
                base_ms / ms,
                height=0.74,
                color=colour,
                hatch=hatch,
                edgecolor="white" if hatch else colour,
                linewidth=0,
            )
            ax.annotate(
                f"{style.number(base_ms / ms)}x",
                (base_ms / ms, y),
                (3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
                fontweight="bold" if method == "step04" else None,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3},
                zorder=3,
            )
        if ms is not None:
            for points, _, text in columns:
                beside(points, y, text(ms), va="center")
    ax.axvline(1, color=style.BLACK, linewidth=0.8)
    ax.set_ylim(len(methods) - 0.5, -0.6)
    ax.set_xlim(
        0, max([ax.get_xlim()[1]] + [1.2 * base_ms / ms for ms in map(milliseconds, rows.values()) if ms and base_ms])
    )
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")


if __name__ == "__main__":
    end_with(lambda: style.main([draw], __doc__))
