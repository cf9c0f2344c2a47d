#!/usr/bin/env python3
"""Tile sizes as a heat map: time and requested bytes of each Br x Bc, the best and the article's 64 x 64 marked.

    python3 plots/figures/figure_tiles.py docs/results/nvidia-h200.json --out docs/figures

One panel per run of step04 --sweep-tiles in the results. A tile that did not run says so; the reasons stand below.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.figures import figure_style as style
from plots.script import bytes_text, end_with

ARTICLE = (64, 64)


def draw(results):
    return {"tiles": picture(results)}


def picture(results):
    sweeps = [sweep for sweep in results["sweeps"] if sweep["tiles"] and sweep["gpu"]]  # the CPU executor is no GPU
    if not sweeps:
        return (
            "the results hold no sweep of tile sizes on a "
            f"GPU{', only emulated ones' if results['sweeps'] else ''} (step04 --sweep-tiles)"
        )
    sweeps.sort(
        key=lambda sweep: (style.DTYPES.index(sweep["dtype"]), sweep["head_dim"], sweep["causal"], sweep["seqlen"] or 0)
    )
    columns = min(2, len(sweeps))
    lines = [sweeps[n : n + columns] for n in range(0, len(sweeps), columns)]
    heights = [max(len(sides(sweep)[0]) for sweep in line) + 1.4 for line in lines]
    figure = style.new_figure(0.52 * sum(heights) + 0.8)
    axes = figure.subplots(len(lines), columns, squeeze=False, gridspec_kw={"height_ratios": heights})
    notes = []
    for ax in axes.flat[len(sweeps) :]:
        ax.set_axis_off()
    for ax, sweep in zip(axes.flat, sweeps):
        panel(ax, sweep, notes)
    figure.suptitle(
        f"{results['gpu']}: time and requested bytes of each tile; thick frame: the best, dashed frame: "
        "the article's 64x64",
        x=0.01,
        ha="left",
    )
    style.footnotes(figure, notes)
    return figure


def parse(tile):
    """ "128x64" -> (128, 64)."""
    br, bc = tile.split("x")
    return int(br), int(bc)


def sides(sweep):
    """All Br and all Bc of a sweep, ascending."""
    return [sorted(set(side)) for side in zip(*(parse(entry["tile"]) for entry in sweep["tiles"]))]


def milliseconds(entry):
    return entry["time"]["median_ms"] if entry["time"] and not entry["not_run"] and entry["verified"] else None


def panel(ax, sweep, notes):
    (brs, bcs), entries = sides(sweep), {parse(entry["tile"]): entry for entry in sweep["tiles"]}
    times = [ms for ms in map(milliseconds, entries.values()) if ms]
    fastest, slowest = (min(times), max(times)) if times else (1, 1)
    colours = style.matplotlib.colormaps["cividis"]
    shade = lambda ms: 1 - (ms / fastest - 1) / max(slowest / fastest - 1, 1e-9)  # 1, bright: the fastest
    inks = {}
    for (br, bc), entry in entries.items():
        x, y, ms = bcs.index(bc), brs.index(br), milliseconds(entry)
        if ms is None:
            why = entry["not_run"] or ("its result was not right" if entry["time"] else "it was not timed")
            notes.append(f"{sweep['dtype']}, d {sweep['head_dim']}, {entry['tile']}: {why}")
            cell(ax, x, y, facecolor="white", edgecolor="#AAAAAA", hatch="////")
            ax.text(
                x,
                y,
                "did not run" if entry["not_run"] else "n/a",
                ha="center",
                va="center",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
            )
        else:
            cell(ax, x, y, facecolor=colours(0.15 + 0.85 * shade(ms)), edgecolor="white")
            ink = inks[br, bc] = "black" if 0.15 + 0.85 * shade(ms) > 0.5 else "white"
            ax.text(
                x,
                y - 0.17,
                f"{style.number(ms)} ms",
                ha="center",
                va="center",
                fontsize=9,
                color=ink,
                fontweight="bold" if entry["tile"] == sweep["best"] else None,
            )
            ax.text(
                x, y + 0.22, bytes_text(entry["requested_bytes"]), ha="center", va="center", fontsize=7.5, color=ink
            )
    if sweep["best"]:
        br, bc = parse(sweep["best"])
        cell(
            ax,
            bcs.index(bc),
            brs.index(br),
            inset=0.03,
            facecolor="none",
            edgecolor=inks.get((br, bc), "black"),
            linewidth=3,
            zorder=4,
        )
    if ARTICLE in entries:
        cell(
            ax,
            bcs.index(ARTICLE[1]),
            brs.index(ARTICLE[0]),
            inset=0.1,
            facecolor="none",
            edgecolor=inks.get(ARTICLE, "black"),
            linewidth=1.6,
            linestyle=(0, (4, 2)),
            zorder=5,
        )
    else:
        notes.append(f"{sweep['dtype']}, d {sweep['head_dim']}: the article's 64x64 is not in this sweep")
    ax.set_xticks(range(len(bcs)), bcs)
    ax.set_yticks(range(len(brs)), brs)
    ax.set_xlim(-0.5, len(bcs) - 0.5)
    ax.set_ylim(len(brs) - 0.5, -0.5)
    ax.set_xlabel("Bc, keys per tile")
    ax.set_ylabel("Br, queries per tile")
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    length = sweep["seqlen"] or f"{sweep['seqlen_q']} x {sweep['seqlen_k']}"
    ax.set_title(
        f"{sweep['step']}, {sweep['dtype']}, d {sweep['head_dim']}, N "
        f"{length}{', causal' if sweep['causal'] else ''} ({style.heads_text(sweep)})"
    )


def cell(ax, x, y, inset=0.0, **style_of_it):
    ax.add_patch(
        style.matplotlib.patches.Rectangle(
            (x - 0.5 + inset, y - 0.5 + inset), 1 - 2 * inset, 1 - 2 * inset, **{"linewidth": 1, **style_of_it}
        )
    )


if __name__ == "__main__":
    end_with(lambda: style.main([draw], __doc__))
