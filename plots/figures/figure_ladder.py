"""The README's small chart: each step that is faster than all before it, beside PyTorch's kernels, in fp16 at d 64 and
N = 4096."""

from plots.figures import figure_style as style


def draw(results):
    rows = style.headline(results, "forward", False).get(("fp16", 64), {})
    times = {name: rows[name]["time"]["median_ms"] for name in style.order(rows) if not style.why_no_time(rows[name])}
    if "eager" not in times:
        return {"ladder": "fp16, d 64: eager has no time, so there is nothing to compare with"}
    shown, fastest = [], times["eager"]
    for name, ms in times.items():
        if name.startswith("step") and ms < fastest:
            shown.append(name)
            fastest = ms
    shown += [name for name in ("eager", "SDPA flash", "SDPA cuDNN") if name in times]
    figure = style.new_figure(0.3 * len(shown) + 0.7)
    ax = figure.subplots()
    for y, name in enumerate(shown):
        speed = times["eager"] / times[name]
        style.bar(ax, y, speed, name, height=0.7, edgecolor="white")
        style.beside(ax, f"{style.number(speed)}x", (speed, y))
    titles = [f"{name}  {rows[name]['title']}" if rows[name]["ours"] else f"PyTorch {name}" for name in shown]
    style.name_bars(ax, titles, top=-0.5)
    ax.set_xlabel("times as fast as PyTorch's three lines (eager)")
    heads = style.heads_text(rows[shown[0]])
    ax.set_title(f"{results['gpu']}: forward, fp16, {heads}, N {style.HEADLINE_SEQLEN}, d 64")
    return {"ladder": figure}
