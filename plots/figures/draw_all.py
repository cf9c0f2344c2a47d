#!/usr/bin/env python3
"""Draws every figure of a results file; what a figure lacks is told in one line, and the rest is drawn.

    python3 plots/figures/draw_all.py docs/results/nvidia-h200.json --out docs/figures
    make plots                                                # all of docs/results; RESULTS=file names one

A picture that was drawn from the same results stays as it is (--anew draws it all the same).
Exit codes: 0 there is a picture, 2 bad arguments or a bad file, 3 nothing could be drawn, or Matplotlib is missing.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.figures import figure_bytes, figure_ladder, figure_roofline, figure_scaling, figure_speedup, figure_tiles
from plots.figures import figure_style as style
from plots.script import end_with

if __name__ == "__main__":
    figures = (figure_ladder, figure_speedup, figure_bytes, figure_scaling, figure_roofline, figure_tiles)
    end_with(lambda: style.main([module.draw for module in figures], __doc__))
