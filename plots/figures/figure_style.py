"""What the figures share: how a picture looks, which rows belong together, and how a picture is written.

A figure is a module with draw(results) -> {name: picture, or the reason (a str) why it was not drawn}; draw_all.py is
the program. Pictures are Matplotlib figures, never shown, only written. The colours are Okabe and Ito's, which the colour-blind can tell apart;
hatches, markers and labels say the same again, for a print in black and white. The same results give the same bytes
(with the same Matplotlib)."""

import io
import os
import re
import sys
import textwrap

from plots import results as results_file
from plots.script import write_whole

os.environ.pop("MPLBACKEND", None)  # a notebook's: nothing is shown here, only written
try:
    import matplotlib
    from matplotlib.figure import Figure

    if not hasattr(Figure, "set_layout_engine"):
        raise ImportError(f"Matplotlib 3.6 or newer, this is {matplotlib.__version__}")
except ImportError as error:
    how = "./setup.sh plots or apt-get install python3-matplotlib, or python3 -m pip install matplotlib"
    print(f"the figures need Matplotlib and NumPy ({error}): {how}", file=sys.stderr)
    sys.exit(3)

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE, GREY = (
    "#000000 #E69F00 #56B4E9 #009E73 #F0E442 #0072B2 #D55E00 #CC79A7 #BBBBBB".split()
)
DTYPES = ("fp32", "fp16", "bf16")
HEADLINE_SEQLEN = 4096

matplotlib.rcdefaults()  # the same picture whatever a matplotlibrc says
matplotlib.rcParams.update(
    {
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.labelsize": 9,
        "xtick.labelsize": 8.5,
        "ytick.labelsize": 8.5,
        "figure.titlesize": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.linewidth": 0.8,
        "axes.titlelocation": "left",
        "hatch.linewidth": 0.6,
        "grid.color": "#DDDDDD",
        "grid.linewidth": 0.6,
        "lines.linewidth": 1.6,
        "lines.markersize": 6,
        "svg.fonttype": "none",  # text stays text: it can be searched, and a test can read it
        "svg.hashsalt": "attention",  # else every run invents new ids
    }
)

# Colour and marker of our steps, in turn by their number; what is not ours is hatched.
_OURS = (GREY, ORANGE, SKY, BLUE, GREEN, BLACK, BLUE, ORANGE, SKY, GREY)
_MARKERS = "vs^op8<>Dh"
_OTHERS = {
    "yardstick": (GREEN, "...", "P"),
    "eager": (VERMILLION, "///", "X"),
    "SDPA efficient": (PURPLE, "xxx", "<"),
    "SDPA flash": (PURPLE, "\\\\\\", "d"),
    "SDPA cuDNN": (PURPLE, "|||", ">"),
}


def method_style(method):
    """(colour, hatch, marker) of a method, by its name_of(). A step's standard backward has the colour of its
    baseline."""
    step = re.match(r"step(\d+)", method)
    if not step:
        return _OTHERS.get(method, (SKY, "++", "*"))
    turn = (int(step[1]) - 1) % len(_OURS)
    colour, marker = _OURS[turn], _MARKERS[turn]
    if "standard" in method:
        colour, marker = ORANGE, "D"
    return (YELLOW if method.endswith("tensor cores") else colour), "", marker


def new_figure(height):
    """An empty figure of so many inches; 9.2 wide, so that on a page's width letters are about 6 points high."""
    return Figure(figsize=(9.2, height), layout="constrained")


def finish(figure, results, title, notes):
    """The title, which begins with the GPU's name, and the footnotes."""
    figure.suptitle(f"{results['gpu']}: {title}", x=0.01, ha="left")
    footnotes(figure, notes)
    return figure


def bar(ax, y, length, method, **how):
    colour, hatch, _ = method_style(method)
    edge = {"edgecolor": "white" if hatch else colour, "linewidth": 0}
    ax.barh(y, length, color=colour, hatch=hatch, **{**edge, **how})


def beside(ax, text, point, points=(3, 0), **how):
    """A text some points beside a point of the data, or of what `xycoords` says."""
    return ax.annotate(text, point, points, textcoords="offset points", **{"va": "center", **how})


def centred(ax, x, y, text, **how):
    ax.text(x, y, text, **{"ha": "center", "va": "center", **how})


def name_bars(ax, names, top=-0.6):
    """The names of horizontal bars, from above; none where the bars on the left have them."""
    ax.set_ylim(len(names) - 0.5, top)
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")


def order(rows):
    """The names of {name_of(row): row} as every figure lists them."""
    return sorted(rows, key=lambda name: results_file.place(rows[name]))


def short(method):
    """A method's name without the word that the picture's title says: "step05 recompute on tensor cores"."""
    return method.replace(" backward", "")


def heads_text(row):
    return f"batch {row['batch']}, {row['heads']} heads"


def seqlen_text(n):
    return f"{n // 1024}k" if n % 1024 == 0 else str(n)


def number(x):
    """Three digits, never in powers of ten."""
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}" if x >= 0.1 else f"{x:.2g}"


def why_no_time(row):
    """Why a row has no time to draw; "" if it has one. (results.py lets neither emulated nor unverified rows in.)"""
    return row["not_run"] or ("" if row["time"] else "it was not timed")


def headline(results, which, causal):
    """Rows of one pass at N = 4096, {(dtype, head_dim): {name_of(row): row}}, empty where there are none."""
    rows = [
        row
        for row in results["rows"]
        if (row["pass"], row["causal"], row["seqlen"], row["set"]) == (which, causal, HEADLINE_SEQLEN, "sizes")
    ]
    panels = {}
    for row in sorted(rows, key=lambda row: (DTYPES.index(row["dtype"]), row["head_dim"])):
        panels.setdefault((row["dtype"], row["head_dim"]), {})[results_file.name_of(row)] = row
    return panels


def no_headline(results, which, causal):
    """The reason to give when headline() is empty."""
    wanted = (which, causal, "sizes")
    measured = {row["seqlen"] for row in results["rows"] if (row["pass"], row["causal"], row["set"]) == wanted}
    there = f"there are N {', '.join(map(str, sorted(measured)))}" if measured else "there are none of any N"
    return f"no {'causal ' if causal else ''}{which} rows of the measured sizes with N {HEADLINE_SEQLEN} ({there})"


def spread(positions, gap, highest=float("inf")):
    """Moves sorted positions as little as it takes for neighbours to lie `gap` apart and none above `highest`: labels
    of points that lie close together."""
    groups = []  # [centre, members]
    for position in positions:
        groups.append([position, 1])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (groups[-1][1] + groups[-2][1]) / 2:
            (below, n), (above, m) = groups[-2:]
            groups[-2:] = [[(below * n + above * m) / (n + m), n + m]]
    placed = [centre + gap * (k - (n - 1) / 2) for centre, n in groups for k in range(n)]
    return [min(place, highest - gap * (len(placed) - 1 - k)) for k, place in enumerate(placed)]


def footnotes(figure, notes):
    """Small lines under the figure, each once, wrapped to its width; the figure grows by what they need."""
    if notes:
        wrapped = [
            textwrap.fill(note, int(15 * figure.get_figwidth()), subsequent_indent="    ")
            for note in dict.fromkeys(notes)
        ]
        figure.set_figheight(figure.get_figheight() + 0.13 * sum(note.count("\n") + 1 for note in wrapped))
        figure.supxlabel("\n".join(wrapped), x=0.01, ha="left", fontsize=7.5, color="#333333")


def write(figure, path, drawn_from):
    """Writes an SVG, whole or not at all. Its description says which results it was drawn from."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for ax in figure.axes:  # the layout's last bits differ from run to run, and an SVG's ids are made from them
        ax.set_position([round(side, 6) for side in ax.get_position().bounds])
    picture = io.BytesIO()
    figure.savefig(picture, format="svg", metadata={"Date": None, "Creator": None, "Description": drawn_from})
    write_whole(path, picture.getvalue())
