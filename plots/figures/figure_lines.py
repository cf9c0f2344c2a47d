"""Lines: time and memory against N (step02 and eager hold N x N matrices, step04 and SDPA flash do not), time against
the number of heads, error against N up to a million tokens, and the loss of a training beside PyTorch's.

All but the last are of fp16, d 64, batch 1, forward, not causal, with logarithmic axes: a line's slope is its exponent.
The numbers on the lines say by how much each doubling multiplies the value."""

import json
import math

from plots.figures import figure_style as style
from plots.results import slug
from plots.script import REPOSITORY, bytes_text, read_text

RATIOS_ON = ("step02", "step04")  # the lines that carry all their ratios; the other methods lie close to one of them
SPLIT, OF_TORCH = "step09", ("eager", "SDPA flash", "SDPA cuDNN")
TRAINING = REPOSITORY / "docs" / "results" / "training"
TABLE = "make table TABLE_FLAGS=--full measures them"


def draw(results):
    return {
        "scaling": scaling(results),
        "few-heads": few_heads(results),
        "long-rows": long_rows(results),
        "training": training(results),
    }


def by_method(rows, key):
    """{name: its rows by `key`} in the figures' order."""
    named = {row["method"]: row for row in rows}
    return {
        m: sorted((row for row in rows if row["method"] == m), key=lambda row: row[key]) for m in style.order(named)
    }


def milliseconds(row):
    return row["time"]["median_ms"]


def scaling(results):
    rows = [row for row in results["rows"] if row["set"] == "scaling" and row["pass"] == "forward"]
    methods = {name: of_it for name, of_it in by_method(rows, "seqlen").items() if len(of_it) > 1}
    measured = {row["seqlen"] for row in rows if not style.why_no_time(row)}
    if len(measured) < 2:
        return f"a line against N needs the scaling rows of two N or more, there are {len(measured)}"
    figure = style.new_figure(5)
    time, memory = figure.subplots(1, 2)
    lines(time, methods, "seqlen", milliseconds)
    lines(memory, methods, "seqlen", lambda row: row["extra_bytes"])
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
    title = f"{some['dtype']}, d {some['head_dim']}, {style.heads_text(some)}"
    return style.finish(figure, results, title, notes)


def of_one_batch(results, **wanted):
    """The forward rows in fp16 at d 64, batch 1, not causal, of step09, the step that it stands on, the fastest step on
    Hopper, and PyTorch's kernels."""
    wanted |= {"dtype": "fp16", "batch": 1, "head_dim": 64, "causal": False, "pass": "forward"}
    shown = ("step04", "step08", SPLIT, *OF_TORCH)
    fits = lambda row: row["method"] in shown and all(row[key] == value for key, value in wanted.items())
    return [row for row in results["rows"] if fits(row)]


def against(results, rows, key, value, label, y_label, title, notes=()):
    """One panel of lines against `key`; a reason where step09 has fewer than three points."""
    rows = [row for row in rows if not style.why_no_time(row) and value(row)]
    points = {row[key] for row in rows if row["method"] == SPLIT}
    if len(points) < 3:
        return f"a line against {label} needs {SPLIT} at three or more, the results have it at {len(points)} ({TABLE})"
    figure = style.new_figure(4.4)
    ax = figure.subplots()
    methods = {name: of_it for name, of_it in by_method(rows, key).items() if len(of_it) > 1}
    lines(ax, methods, key, value, ratios_on=(), room=4)  # half of scaling's, for names of the same width
    ax.set_xlabel(label)
    ax.set_ylabel(y_label)
    ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    return style.finish(figure, results, title, ["after a name: times as much as at half, for its last point", *notes])


def few_heads(results):
    rows = of_one_batch(results, seqlen=style.HEADLINE_SEQLEN)
    title = f"few heads, fp16, batch 1, N {style.HEADLINE_SEQLEN}, d 64"
    return against(results, rows, "heads", milliseconds, "heads", "time, ms", title)


def long_rows(results):
    rows = of_one_batch(results, heads=1)
    error = lambda row: row["error"] and row["error"]["relative_l2"]
    title = "error of a long row, fp16, one head, d 64, V of mean 0.5"
    notes = ["of our steps over the rows that their run checked, of PyTorch's kernels over all"]
    return against(results, rows, "seqlen", error, "N, tokens", "relative L2 of O against float64", title, notes)


def ratios(points):
    """[(x, value(x) / value(x / 2))] of [(x, value)], for each x whose half is there too."""
    values = dict(points)
    return [(x, value / values[x // 2]) for x, value in points if x % 2 == 0 and values.get(x // 2)]


def lines(ax, methods, key, value, ratios_on=RATIOS_ON, room=18):
    starts = []
    for method, rows in methods.items():
        points = [(row[key], value(row)) for row in rows if not style.why_no_time(row) and value(row)]
        if not points:
            continue
        colour, hatch, marker = style.method_style(method)
        how = {"color": colour, "marker": marker, "markerfacecolor": "white" if hatch else colour}
        ax.plot(*zip(*points), **how, linestyle="--" if hatch else "-", label=method, zorder=3)
        grown = ratios(points)
        starts.append((points[0], f"{method}  x{grown[-1][1]:.2f}" if grown else method))
        for n, ratio in grown if method in ratios_on else []:
            middle = (n / math.sqrt(2), math.sqrt(dict(points)[n] * dict(points)[n // 2]))
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}
            style.centred(ax, *middle, f"{ratio:.2f}", fontsize=7.5, zorder=4, bbox=box)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    every = sorted({row[key] for rows in methods.values() for row in rows})
    ax.set_xticks(every, [style.seqlen_text(x) for x in every])
    ax.set_xlim(every[0] / room, every[-1] * 1.5)
    ax.set_ylim(ax.get_ylim()[0] / 2, ax.get_ylim()[1] * 2)
    ax.grid()
    ax.minorticks_off()
    name_starts(ax, starts)


def name_starts(ax, starts):
    """Each line's name and last ratio, left of its first point, where no other line passes; names that lie close are
    moved apart."""
    low, high = (math.log10(y) for y in ax.get_ylim())
    starts.sort(key=lambda start: start[0][1])
    arrow = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4, "relpos": (1, 0.5)}
    heights = style.spread([math.log10(point[1]) for point, _ in starts], (high - low) * 0.042)
    for (point, text), y in zip(starts, heights):
        where = {"textcoords": "data", "ha": "right", "va": "center", "fontsize": 8.5, "arrowprops": arrow}
        ax.annotate(text, point, (point[0] / 1.5, 10**y), **where)


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
        text = f"{' and '.join(names)}\nno longer run{'s' if len(names) == 1 else ''}"
        how = {"xycoords": ax.get_xaxis_transform(), "ha": "right", "va": "bottom", "fontsize": 8}
        style.beside(ax, text, (n, 0), (-4, 4), **how)


def training(results):
    """The two loss curves that train_beside_pytorch.py has stored for this GPU."""
    path = TRAINING / f"{slug(results['gpu'])}.json"
    if not path.is_file():
        return (
            f"there is no {path.relative_to(REPOSITORY)} (plots/measuring/train_beside_pytorch.py makes it, on a GPU)"
        )
    return curves(results, json.loads(read_text(path)))


def curves(results, found):
    figure = style.new_figure(3.6)
    loss, apart = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1.6, 1]})
    (name, ours), (other, theirs) = found["loss"].items()
    steps = range(1, len(ours) + 1)
    loss.plot(steps, theirs, color=style.VERMILLION, linewidth=3, label=f"PyTorch {other}")
    loss.plot(steps, ours, color=style.BLACK, linewidth=1, label=f"{name}, backward by {found['backward']}")
    loss.set_ylabel("loss, nats per character")
    loss.legend(frameon=False)
    apart.plot(steps, [a / b - 1 for a, b in zip(ours, theirs)], color=style.BLACK, linewidth=1)
    apart.set_ylabel(f"{name} over {other}, less 1")
    for ax in (loss, apart):
        ax.set_xlabel("training steps")
        ax.grid()
    title = f"the swap check's model trained with either attention, {found['dtype']}"
    scaled = f"the loss is scaled by {found['loss_scale']}; " if found["loss_scale"] != 1 else ""
    return style.finish(figure, results, title, [f"{scaled}PyTorch {found['versions']['torch']}, {found['date']}"])
