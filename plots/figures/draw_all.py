#!/usr/bin/env python3
"""Draws the figures of results files; what a figure lacks is told in one line, and the rest is drawn.

    make plots                                                # all of docs/results; RESULTS=file names one
    python3 plots/figures/draw_all.py docs/results/nvidia-h200.json --out docs/figures [--only tiles scaling]

A picture that was drawn from the same results stays as it is (--anew draws it all the same).
Exit codes: 0 there is a picture, 2 bad arguments or a bad file, 3 nothing could be drawn, or Matplotlib is missing.
"""

import hashlib
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots import results as results_file
from plots.figures import figure_bytes, figure_ladder, figure_lines, figure_roofline, figure_speedup, figure_tiles
from plots.figures.figure_style import write
from plots.programs import CANNOT_SERVE
from plots.script import REPOSITORY, OneLineParser, Stop, end_with

KINDS = {
    module.__name__.rpartition("figure_")[2]: module.draw
    for module in (figure_ladder, figure_speedup, figure_bytes, figure_lines, figure_roofline, figure_tiles)
}


def place(picture, path, drawn_from, anew):
    """Writes what draw() returned, and says so in a line. Returns whether there is a picture."""
    if isinstance(picture, str):
        print(f"{path.stem}: not drawn: {picture}", file=sys.stderr)
    elif not anew and path.is_file() and drawn_from.encode() in path.read_bytes():
        print(f"{os.path.relpath(path)}: drawn from these results already")
    else:
        write(picture, path, drawn_from)
        print(os.path.relpath(path))
    return not isinstance(picture, str)


def main():
    parser = OneLineParser(__doc__)
    add = parser.add_argument
    add("results", nargs="*", type=pathlib.Path, help="results files, docs/results/<gpu>.json (all that are there)")
    out = "folder for <gpu>-<figure>.svg (docs/figures)"
    add("--out", type=pathlib.Path, default=REPOSITORY / "docs" / "figures", help=out)
    add("--only", nargs="+", choices=KINDS, default=KINDS, help="these kinds alone")
    add("--anew", action="store_true", help="draw also what was drawn from the same results")
    options = parser.parse_args()
    paths = options.results or sorted((REPOSITORY / "docs" / "results").glob("*.json"))
    if not paths:
        why = "no results to draw: docs/results has no <gpu>.json (make table measures one, on a GPU)"
        raise Stop(why, CANNOT_SERVE)
    by_gpu = results_file.load(paths)
    told = hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
    drawn_from = f"drawn from {' '.join(path.name for path in paths)}, sha256 {told}"
    with results_file.readable(paths):
        draws = [(gpu, draw) for gpu in by_gpu for kind, draw in KINDS.items() if kind in options.only]
        pictures = {f"{gpu}-{name}": made for gpu, draw in draws for name, made in draw(by_gpu[gpu]).items()}
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        drawn = [place(made, options.out / f"{name}.svg", drawn_from, options.anew) for name, made in pictures.items()]
    except OSError as error:
        raise Stop(error) from error
    return 0 if any(drawn) else CANNOT_SERVE


if __name__ == "__main__":
    end_with(main)
