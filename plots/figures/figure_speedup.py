"""Speedup by step: how many times as fast as PyTorch eager each method is, per dtype and head_dim at N = 4096, causal
apart. Where there is no eager row, step02 (in the backward the standard backward) is the 1. docs/figures/README.md
describes the figure."""

from plots.figures import figure_style as style
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
    panels, ours = style.headline(results, which, causal), OUR_BASELINE[which]
    if not panels:
        return style.no_headline(results, which, causal)
    what = f"{'causal ' if causal else ''}{which}"
    ran = lambda method: any(milliseconds(rows.get(method)) for rows in panels.values())
    base = next(filter(ran, ("eager", ours)), None)
    if base is None:
        return f"neither eager nor {ours} ran in {what}: nothing to compare with"

    dtypes, head_dims = (list(dict.fromkeys(keys)) for keys in zip(*panels))
    of_dtype = {dtype: {} for dtype in dtypes}  # {dtype: {method: one of its rows}}
    for (dtype, _), rows in panels.items():
        of_dtype[dtype] = rows | of_dtype[dtype]
    methods = {dtype: style.order(rows) for dtype, rows in of_dtype.items()}
    heights = [len(methods[dtype]) + 2.6 for dtype in dtypes]
    figure = style.new_figure(0.215 * sum(heights) + 1)
    ratios = {"height_ratios": heights}
    axes = figure.subplots(len(dtypes), len(head_dims), squeeze=False, gridspec_kw=ratios, sharex="row")
    notes = {}  # {reason: [what]}
    for line, dtype in zip(axes, dtypes):
        for ax, head_dim in zip(line, head_dims):
            rows = panels.get((dtype, head_dim), {})
            if not rows:
                notes.setdefault("not in the results", []).append(f"{dtype} d {head_dim}")
            panel(ax, rows, methods[dtype], base, ours, notes)
            heads = f" ({style.heads_text(next(iter(rows.values())))})" if rows else ""
            ax.set_title(f"{dtype}, d {head_dim}{heads}", pad=15)
            style.name_bars(ax, [name(of_dtype[dtype][method], method) for method in methods[dtype]])
            if ax is not line[0]:
                ax.set_yticks([])
    for ax in axes[-1]:
        ax.set_xlabel(f"times as fast as {'PyTorch eager' if base == 'eager' else base}")
    notes = [f"n/a  {', '.join(dict.fromkeys(what))}: {reason}" for reason, what in notes.items()]
    return style.finish(figure, results, f"{what}, N {style.HEADLINE_SEQLEN}", notes)


def name(row, method):
    """A method's name on the axis, with the step's idea where there is room."""
    roomy = row["ours"] and row["title"] and method == row["method"] and " " not in method
    return f"{method}  {row['title']}" if roomy else method if method == row["method"] else style.short(method)


def panel(ax, rows, methods, base, ours, notes):
    """One bar per method; beside it the speedup over our own baseline and the time."""
    base_ms, ours_ms = milliseconds(rows.get(base)), milliseconds(rows.get(ours))
    columns = [(36, "ms", style.number)]
    if base != ours:
        over = lambda ms: "n/a" if ours_ms is None else f"{style.number(ours_ms / ms)}x"
        columns.append((78, "over\n" + style.short(ours).split()[-1], over))
    at_right = {"xycoords": ax.get_yaxis_transform(), "ha": "right", "fontsize": 8}
    for points, heading, _ in columns:
        how = {"va": "bottom", "color": "#333333", "linespacing": 0.95}
        style.beside(ax, heading, (1, -0.75), (points, 0), **at_right, **how)
    for y, method in enumerate(methods):
        row = rows.get(method)
        ms = milliseconds(row)
        if ms is None or base_ms is None:
            reason = "not in the results" if row is None else style.why_no_time(row) or f"{base} did not run"
            ax.text(0.01, y, "n/a", transform=ax.get_yaxis_transform(), va="center", fontsize=8, style="italic")
            if rows:
                notes.setdefault(reason, []).append(f"{method} ({row['dtype']})" if row else method)
        else:
            style.bar(ax, y, base_ms / ms, method, height=0.74)
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.3}
            how = {"fontsize": 8.5, "fontweight": "bold" if method == "step04" else None, "bbox": box, "zorder": 3}
            style.beside(ax, f"{style.number(base_ms / ms)}x", (base_ms / ms, y), **how)
        for points, _, text in columns if ms is not None else []:
            style.beside(ax, text(ms), (1, y), (points, 0), **at_right)
    ax.axvline(1, color=style.BLACK, linewidth=0.8)
    reached = [1.2 * base_ms / ms for ms in map(milliseconds, rows.values()) if ms and base_ms]
    ax.set_xlim(0, max([ax.get_xlim()[1], *reached]))
