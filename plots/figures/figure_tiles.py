"""Tile sizes as a heat map: time and requested bytes of each Br x Bc, the best and the article's 64 x 64 marked. One
panel per run of step04 --sweep-tiles in the results. A tile that did not run says so; the reasons stand below."""

from plots.figures import figure_style as style
from plots.script import bytes_text

ARTICLE = (64, 64)


def draw(results):
    return {"tiles": picture(results)}


def picture(results):
    sweeps = [sweep for sweep in results["sweeps"] if sweep["tiles"] and sweep["gpu"]]  # the CPU executor is no GPU
    if not sweeps:
        emulated = ", only emulated ones" if results["sweeps"] else ""
        return f"the results hold no sweep of tile sizes on a GPU{emulated} (step04 --sweep-tiles)"
    in_order = lambda s: (style.DTYPES.index(s["dtype"]), s["head_dim"], s["causal"], s["seqlen"] or 0)
    sweeps.sort(key=in_order)
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
    title = "time and requested bytes of each tile; thick frame: the best, dashed frame: the article's 64x64"
    return style.finish(figure, results, title, notes)


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
    brightness = lambda ms: 1 - 0.85 * (ms / fastest - 1) / max(slowest / fastest - 1, 1e-9)  # 1: the fastest
    inks = {}
    for (br, bc), entry in entries.items():
        x, y, ms = bcs.index(bc), brs.index(br), milliseconds(entry)
        if ms is None:
            why = entry["not_run"] or ("its result was not right" if entry["time"] else "it was not timed")
            notes.append(f"{sweep['dtype']}, d {sweep['head_dim']}, {entry['tile']}: {why}")
            cell(ax, x, y, facecolor="white", edgecolor="#AAAAAA", hatch="////")
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            style.centred(ax, x, y, "did not run" if entry["not_run"] else "n/a", fontsize=8, bbox=box)
        else:
            cell(ax, x, y, facecolor=style.matplotlib.colormaps["cividis"](brightness(ms)), edgecolor="white")
            ink = inks[br, bc] = "black" if brightness(ms) > 0.5 else "white"
            weight = "bold" if entry["tile"] == sweep["best"] else None
            style.centred(ax, x, y - 0.17, f"{style.number(ms)} ms", fontsize=9, color=ink, fontweight=weight)
            style.centred(ax, x, y + 0.22, bytes_text(entry["requested_bytes"]), fontsize=7.5, color=ink)

    def frame(tile, **how):
        br, bc = tile
        cell(ax, bcs.index(bc), brs.index(br), facecolor="none", edgecolor=inks.get(tile, "black"), **how)

    if sweep["best"]:
        frame(parse(sweep["best"]), inset=0.03, linewidth=3, zorder=4)
    if ARTICLE in entries:
        frame(ARTICLE, inset=0.1, linewidth=1.6, linestyle=(0, (4, 2)), zorder=5)
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
    causal, heads = ", causal" if sweep["causal"] else "", style.heads_text(sweep)
    ax.set_title(f"{sweep['step']}, {sweep['dtype']}, d {sweep['head_dim']}, N {length}{causal} ({heads})")


def cell(ax, x, y, inset=0.0, **how):
    corner, side = (x - 0.5 + inset, y - 0.5 + inset), 1 - 2 * inset
    ax.add_patch(style.matplotlib.patches.Rectangle(corner, side, side, **{"linewidth": 1, **how}))
