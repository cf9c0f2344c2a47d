#!/usr/bin/env python3
"""Draws every figure of a results file; what a figure lacks is told in one line, and the rest is drawn.

    python3 plots/draw_all.py docs/results/nvidia-h200.json --out docs/figures
    make plots                                                # all of docs/results; RESULTS=file names one

Exit codes: 0 something was drawn, 2 bad arguments or a bad file, 3 nothing could be drawn, or Matplotlib is missing.
"""
import sys

import figure_style as style

import figure_bytes
import figure_roofline
import figure_scaling
import figure_speedup
import figure_tiles

if __name__ == "__main__":
    sys.exit(style.main([module.draw for module in (figure_speedup, figure_bytes, figure_scaling, figure_roofline, figure_tiles)], __doc__))
