#!/usr/bin/env python3
"""The README's small chart: each step that is faster than all before it, beside PyTorch's kernels, in fp16 at d 64 and N = 4096.

python3 plots/figures/figure_ladder.py docs/results/nvidia-h200.json --out docs/figures
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.figures import figure_style as style
from plots.script import end_with


def draw(results):
    rows = style.headline(results, "forward", False).get(("fp16", 64), {})
    times = {name: rows[name]["time"]["median_ms"] for name in style.order(rows) if not style.why_no_time(rows[name])}
    if "eager" not in times:
        return {"ladder": "fp16, d 64: eager has no time, so there is nothing to compare with"}
    shown, fastest = [], times["eager"]
    for name, ms in times.items():
        if not name.startswith("step"):
            continue
        if ms < fastest:
            shown.append(name)
            fastest = ms
    shown += [name for name in ("eager", "SDPA flash", "SDPA cuDNN") if name in times]
    figure = style.new_figure(0.3 * len(shown) + 0.7)
    ax = figure.subplots()
    for y, name in enumerate(shown):
        colour, hatch, _ = style.method_style(name)
        speed = times["eager"] / times[name]
        ax.barh(y, speed, height=0.7, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
        ax.annotate(f"{style.number(speed)}x", (speed, y), (3, 0), textcoords="offset points", va="center")
    titles = [f"{name}  {rows[name]['title']}" if rows[name]["ours"] else f"PyTorch {name}" for name in shown]
    ax.set_yticks(range(len(shown)), titles)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(shown) - 0.5, -0.5)
    ax.set_xlabel("times as fast as PyTorch's three lines (eager)")
    ax.grid(axis="x")
    some = rows[shown[0]]
    ax.set_title(f"{results['gpu']}: forward, fp16, {style.heads_text(some)}, N {style.HEADLINE_SEQLEN}, d 64")
    return {"ladder": figure}


if __name__ == "__main__":
    end_with(lambda: style.main([draw], __doc__))
