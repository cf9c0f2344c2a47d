#!/usr/bin/env python3
"""Bytes by step: what each step is expected to move through HBM at N = 4096, stacked by tensor, and what the counters
measured.

    python3 plots/figures/figure_bytes.py docs/results/nvidia-h200.json --out docs/figures

One picture per pass and head_dim, not causal. On the right the same bars magnified until the small ones can be seen.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.figures import figure_style as style
from plots.script import bytes_text, end_with

# N x N tensors in warm colours, the rest in cool ones; a gradient is hatched like nothing else.
TENSORS = {
    "Q": (style.SKY, ""),
    "K": (style.GREEN, ""),
    "V": (style.BLUE, ""),
    "O": ("#FFFFFF", ""),
    "LSE": (style.BLACK, ""),
    "delta": ("#666666", ""),
    "dO": ("#FFFFFF", "\\\\\\"),
    "dQ": (style.SKY, "\\\\\\"),
    "dK": (style.GREEN, "\\\\\\"),
    "dV": (style.BLUE, "\\\\\\"),
    "S": (style.ORANGE, ""),
    "P": (style.YELLOW, ""),
    "dS": (style.ORANGE, "///"),
    "dP": (style.YELLOW, "///"),
}
DARK = ("K", "V", "LSE", "delta", "dK", "dV")
SMALL = 0.1  # of the largest bar: such bars are worth magnifying


def draw(results):
    return {
        f"bytes-{which}-d{head_dim}": picture(results, which, head_dim)
        for which in ("forward", "backward")
        for head_dim in head_dims(results)
    }


def head_dims(results):
    return sorted({row["head_dim"] for row in results["rows"]}) or [64]


def picture(results, which, head_dim):
    panels = style.headline(results, which, causal=False)
    if not panels:
        return style.no_headline(results, which, causal=False)
    panels = {dtype: rows for (dtype, dim), rows in panels.items() if dim == head_dim}
    notes = [
        f"not drawn  {dtype}, {method}: {row['not_run']}"
        for dtype, rows in panels.items()
        for method, row in rows.items()
        if row["ours"] and row["not_run"]
    ]
    panels = {
        dtype: {method: rows[method] for method in style.order(rows) if rows[method]["by_tensor"]}
        for dtype, rows in panels.items()
    }
    panels = {dtype: rows for dtype, rows in panels.items() if rows}
    if not panels:
        return f"no {which} row with d {head_dim} and N {style.HEADLINE_SEQLEN} says which tensors it moves"

    heights = [len(rows) + 2.2 for rows in panels.values()]
    figure = style.new_figure(0.29 * sum(heights) + 0.8)
    axes = figure.subplots(
        len(panels), 2, squeeze=False, gridspec_kw={"height_ratios": heights, "width_ratios": [1.15, 1]}
    )
    for (left, right), (dtype, rows) in zip(axes, panels.items()):
        totals = {method: row["hbm_expected_bytes"] for method, row in rows.items()}
        largest = max(*totals.values(), *(row["hbm_measured_bytes"] or 0 for row in rows.values()))
        small = [total for total in totals.values() if total < SMALL * largest]
        bars(left, rows, 1.55 * largest, True, notes)
        left.set_title(f"{dtype}, d {head_dim} ({style.heads_text(next(iter(rows.values())))})")
        if small:
            bars(right, rows, 1.12 * max(small), False, notes)
            right.set_title(f"the same, magnified {1.55 * largest / (1.12 * max(small)):.0f} times")
        else:
            right.set_axis_off()
        notes += ["black sliver: LSE, one number per row"] * any("LSE" in row["by_tensor"] for row in rows.values())
        notes += ["grey sliver: delta, one number per row"] * any("delta" in row["by_tensor"] for row in rows.values())
    axes[-1][0].set_xlabel("HBM bytes: the bar expected, the diamond measured")
    figure.suptitle(f"{results['gpu']}: bytes through HBM, {which}, N {style.HEADLINE_SEQLEN}", x=0.01, ha="left")
    style.footnotes(figure, notes)
    return figure


def bars(ax, rows, limit, labelled, notes):
    """The stacked bars up to `limit` bytes; what is longer runs out of the picture, with an arrow."""
    inches = ax.get_figure().get_figwidth() / 2.7  # about the width of the bars' field
    for y, (method, row) in enumerate(rows.items()):
        left = 0
        for tensor in [tensor for tensor in TENSORS if tensor in row["by_tensor"]] + [
            tensor for tensor in row["by_tensor"] if tensor not in TENSORS
        ]:
            size = row["by_tensor"][tensor]
            colour, hatch = TENSORS.get(tensor, (style.GREY, ""))
            shown = max(0, min(size, limit - left))
            width = shown / limit * inches
            ax.barh(
                y,
                shown,
                left=left,
                height=0.62,
                color=colour,
                hatch=hatch,
                edgecolor="#444444",
                linewidth=0.5 if width > 0.05 else 0,
            )
            if width > (0.08 * len(tensor) + 0.03 if shown == size else 0.6):
                ax.text(
                    left + shown / 2,
                    y,
                    tensor,
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if tensor in DARK and not hatch else "black",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6} if hatch else None,
                )
            left += size
        measured = row["hbm_measured_bytes"]
        if left > limit:
            ax.annotate(
                "",
                (limit * 1.03, y),
                (limit * 0.97, y),
                arrowprops={"arrowstyle": "-|>", "color": style.BLACK},
                annotation_clip=False,
            )
        if measured is not None and measured <= limit:
            ax.plot(
                measured,
                y,
                marker="D",
                color="white",
                markeredgecolor=style.BLACK,
                markersize=6,
                zorder=3,
                clip_on=False,
            )
        if labelled:
            expected = ("at least " if row["hbm_at_least"] else "") + bytes_text(row["hbm_expected_bytes"])
            text = f"{expected}; measured {'n/a' if measured is None else bytes_text(measured)}"
            ax.annotate(
                text, (max(left, measured or 0), y), (6, 0), textcoords="offset points", va="center", fontsize=8
            )
            if measured is None:
                notes.append(f"measured n/a: {row.get('hbm_measured_bytes_reason') or 'no reason given'}")
    ax.set_xlim(0, limit)
    ax.set_ylim(len(rows) - 0.5, -0.6)
    ax.set_yticks(range(len(rows)), [style.short(method) for method in rows] if labelled else [])
    ax.tick_params(axis="y", length=0, pad=7)  # a diamond may stand on the axis
    ax.xaxis.set_major_locator(style.matplotlib.ticker.MaxNLocator(4))
    ax.xaxis.set_major_formatter(lambda x, _: bytes_text(x).replace(".0 ", " ") if x else "0")
    ax.grid(axis="x")


if __name__ == "__main__":
    end_with(lambda: style.main([draw], __doc__))
