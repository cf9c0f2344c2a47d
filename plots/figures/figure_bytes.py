"""Bytes by step: what each step is expected to move through HBM at N = 4096, stacked by tensor, and what the counters
measured. One picture per pass and head_dim, not causal. On the right the same bars magnified until the small ones can
be seen."""

from plots.figures import figure_style as style
from plots.script import bytes_text

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
    "partial O": (style.PURPLE, ""),
    "partial LSE": ("#444444", ""),
    "dQ sums": (style.PURPLE, "\\\\\\"),
    "lse2": ("#444444", ""),
    "Q parts": (style.SKY, "..."),
    "K parts": (style.GREEN, "..."),
    "V parts": (style.BLUE, "..."),
    "Q scales": ("#444444", ""),
    "K scales": ("#444444", ""),
    "V scales": ("#444444", ""),
}
DARK = ("K", "V", "LSE", "delta", "dK", "dV", "partial LSE", "lse2", "Q scales", "K scales", "V scales")
SMALL = 0.1  # of the largest bar: such bars are worth magnifying


def draw(results):
    head_dims = sorted({row["head_dim"] for row in results["rows"]}) or [64]
    return {f"bytes-{which}-d{d}": picture(results, which, d) for which in ("forward", "backward") for d in head_dims}


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
    told = lambda rows: {method: rows[method] for method in style.order(rows) if rows[method]["by_tensor"]}
    panels = {dtype: told(rows) for dtype, rows in panels.items() if told(rows)}
    if not panels:
        return f"no {which} row with d {head_dim} and N {style.HEADLINE_SEQLEN} says which tensors it moves"

    heights = [len(rows) + 2.2 for rows in panels.values()]
    figure = style.new_figure(0.29 * sum(heights) + 0.8)
    ratios = {"height_ratios": heights, "width_ratios": [1.15, 1]}
    axes = figure.subplots(len(panels), 2, squeeze=False, gridspec_kw=ratios)
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
        for tensor, colour in (("LSE", "black"), ("delta", "grey")):
            if any(tensor in row["by_tensor"] for row in rows.values()):
                notes.append(f"{colour} sliver: {tensor}, one number per row")
    axes[-1][0].set_xlabel("HBM bytes: the bar expected, the diamond measured")
    return style.finish(figure, results, f"bytes through HBM, {which}, N {style.HEADLINE_SEQLEN}", notes)


def bars(ax, rows, limit, labelled, notes):
    """The stacked bars up to `limit` bytes; what is longer runs out of the picture, with an arrow."""
    inches = ax.get_figure().get_figwidth() / 2.7  # about the width of the bars' field
    for y, (method, row) in enumerate(rows.items()):
        left = 0
        of_row = row["by_tensor"]
        for tensor in sorted(of_row, key=lambda tensor: [*TENSORS, tensor].index(tensor)):
            shown = max(0, min(of_row[tensor], limit - left))
            width = shown / limit * inches
            segment(ax, y, left, shown, width, tensor, whole=shown == of_row[tensor])
            left += of_row[tensor]
        measured = row["hbm_measured_bytes"]
        if left > limit:
            arrow = {"arrowstyle": "-|>", "color": style.BLACK}
            ax.annotate("", (limit * 1.03, y), (limit * 0.97, y), arrowprops=arrow, annotation_clip=False)
        if measured is not None and measured <= limit:
            diamond = {"marker": "D", "color": "white", "markeredgecolor": style.BLACK, "markersize": 6}
            ax.plot(measured, y, **diamond, zorder=3, clip_on=False)
        if labelled:
            expected = ("at least " if row["hbm_at_least"] else "") + bytes_text(row["hbm_expected_bytes"])
            text = f"{expected}; measured {'n/a' if measured is None else bytes_text(measured)}"
            style.beside(ax, text, (max(left, measured or 0), y), (6, 0), fontsize=8)
            if measured is None:
                notes.append(f"measured n/a: {row.get('hbm_measured_bytes_reason') or 'no reason given'}")
    style.name_bars(ax, [style.short(method) for method in rows])
    if not labelled:
        ax.set_yticks([])
    ax.set_xlim(0, limit)
    ax.tick_params(axis="y", pad=7)  # a diamond may stand on the axis
    ax.xaxis.set_major_locator(style.matplotlib.ticker.MaxNLocator(4))
    ax.xaxis.set_major_formatter(lambda x, _: bytes_text(x).replace(".0 ", " ") if x else "0")


def segment(ax, y, left, shown, inches, tensor, whole):
    """One tensor's part of a bar, with its name where there is room."""
    colour, hatch = TENSORS.get(tensor, (style.GREY, ""))
    edge = {"edgecolor": "#444444", "linewidth": 0.5 if inches > 0.05 else 0}
    ax.barh(y, shown, left=left, height=0.62, color=colour, hatch=hatch, **edge)
    if inches > (0.08 * len(tensor) + 0.03 if whole else 0.6):
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6} if hatch else None
        ink = "white" if tensor in DARK and not hatch else "black"
        style.centred(ax, left + shown / 2, y, tensor, fontsize=8, color=ink, bbox=box)
