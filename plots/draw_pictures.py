"""Draws the chapters' pictures, docs/pictures/*.svg: where each step keeps S and P, what moves, and how the two loops of step04 and step05 go.

    python3 plots/draw_pictures.py            # writes them
    python3 plots/draw_pictures.py --check    # exit 1 when a stored picture is not what this script draws

The bytes in a picture are the steps' formulas at 16 heads, N = 4096, d = 64, fp32, the shape of the chapters (tiles 128x64, in the backward
64x64); tests/python/test_pictures.py compares them with `./stepNN --plan`. Needs the standard library only.
"""
import math
import pathlib
import sys

from script import OneLineParser, write_whole

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "docs" / "pictures"

# Okabe and Ito's colours, which stay apart for the colour-blind; N x N boxes have a thick dashed border too, for print.
BLUE, ORANGE, GREEN, GREY, INK = "#0072B2", "#D55E00", "#009E73", "#8a8a8a", "#222222"
PALE = {BLUE: "#dcecf6", ORANGE: "#fbe3d5", GREEN: "#d9f0e8", GREY: "#f3f3f3"}

HEADS, N, D, BR, BC, BACKWARD, BYTES = 16, 4096, 64, 128, 64, 64, 4
X, S, L = HEADS * N * D * BYTES, HEADS * N * N * BYTES, HEADS * N * BYTES
TILES, BACKWARD_TILES = N // BR, N // BACKWARD


def human(count):
    """As the steps print bytes."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= (1e5 if unit == "MB" else size):
            return f"{count / size:.3g} {unit}" if count / size >= 1 else f"{count / size:.1g} {unit}"
    return f"{count} B"


class Picture:
    def __init__(self, width, height, title):
        self.width, self.height, self.title, self.parts = width, height, title, []

    def add(self, text):
        self.parts.append(text)

    def rect(self, x, y, width, height, colour=GREY, fill=None, dashed=False, thick=1.5, radius=4):
        dash = ' stroke-dasharray="7 4"' if dashed else ""
        self.add(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" fill="{fill or PALE[colour]}" stroke="{colour}" stroke-width="{thick}"{dash}/>')

    def text(self, x, y, words, size=14, anchor="middle", colour=INK, bold=False, italic=False):
        style = (' font-weight="bold"' if bold else "") + (' font-style="italic"' if italic else "")
        for line in words.split("\n"):
            line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            self.add(f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"{style}>{line}</text>')
            y += size * 1.25

    def arrow(self, x0, y0, x1, y1, colour=INK, thick=2.0):
        """A line with a head at (x1, y1)."""
        length = math.hypot(x1 - x0, y1 - y0)
        ux, uy = (x1 - x0) / length, (y1 - y0) / length
        head, half = min(6 + thick, length / 2), 4 + thick / 2
        bx, by = x1 - ux * head, y1 - uy * head
        self.add(f'<line x1="{x0:g}" y1="{y0:g}" x2="{bx:g}" y2="{by:g}" stroke="{colour}" stroke-width="{thick:g}"/>')
        points = f"{x1:g},{y1:g} {bx - uy * half:g},{by + ux * half:g} {bx + uy * half:g},{by - ux * half:g}"
        self.add(f'<polygon points="{points}" fill="{colour}"/>')

    def line(self, x0, y0, x1, y1, colour=GREY, thick=1.0, dashed=False):
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self.add(f'<line x1="{x0:g}" y1="{y0:g}" x2="{x1:g}" y2="{y1:g}" stroke="{colour}" stroke-width="{thick:g}"{dash}/>')

    def svg(self):
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}" '
                f'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" role="img">\n<title>{self.title}</title>\n'
                f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>\n')
        return head + "\n".join(self.parts) + "\n</svg>\n"


# ---- where S and P live ----------------------------------------------------------------------------------------------------

LEFT, HBM, L2, CHIP = 96, (44, 84), (178, 206), 296  # x of the lanes; y and bottom of HBM and L2; y of the SMs


def width_of(count):
    """An arrow's thickness: 2 for X, growing as the square root of the bytes, or 1 GB would hide the picture."""
    return max(1.0, 2.0 * math.sqrt(count / X))


def memories(title, kernels, tensors, notes=(), tile=None):
    """kernels: [(name, x0, x1, sram, registers, [flow])], a flow (x, up, HBM bytes, bytes beyond the L2, the two labels).
    tensors: [(name, x0, x1, is N x N)], the boxes in HBM; `tile`: what the kernel has of S and P in registers."""
    bottom = CHIP + 124
    p = Picture(960, bottom + 16 + 20 * (1 + len(notes)), title)
    for name, top, end, colour in (("HBM", HBM[0] - 12, HBM[1] + 12, GREY), ("L2", L2[0], L2[1], GREY)):
        p.rect(LEFT, top, 850, end - top, colour, fill="#fafafa", thick=1)
        p.text(14, (top + end) / 2 + 5, name, bold=True, anchor="start")
    p.text(14, CHIP + 42, "SRAM", bold=True, anchor="start")
    p.text(14, CHIP + 92, "registers", bold=True, anchor="start")
    for name, x0, x1, square in tensors:
        p.rect(x0, HBM[0], x1 - x0, HBM[1] - HBM[0], ORANGE if square else BLUE, dashed=square, thick=3 if square else 1.5)
        p.text((x0 + x1) / 2, (HBM[0] + HBM[1]) / 2 + 5, name, bold=square)
    for name, x0, x1, sram, registers, flows in kernels:
        p.rect(x0, CHIP, x1 - x0, 110, GREEN, fill="#ffffff")
        p.text((x0 + x1) / 2, CHIP + 18, name, bold=True, colour=GREEN)
        p.line(x0, CHIP + 66, x1, CHIP + 66, GREEN, dashed=True)
        p.text((x0 + x1) / 2, CHIP + 46, sram, 13)
        p.text((x0 + x1) / 2 - (66 if tile else 0), CHIP + 92, registers, 13)
        if tile:
            p.rect((x0 + x1) / 2 + 60, CHIP + 74, 130, 28, ORANGE, thick=1)
            p.text((x0 + x1) / 2 + 125, CHIP + 93, tile, 13)
        for x, up, hbm, beyond, label, beyond_label in flows:
            colour = ORANGE if max(hbm, beyond) >= S and "K" not in label else BLUE
            ends = [(HBM[1] + 12, L2[0], hbm), (L2[1], CHIP, beyond)]
            for top, end, count in ends:
                p.arrow(x, end if up else top, x, top if up else end, colour, width_of(count))
            side = 10 + width_of(max(hbm, beyond)) / 2
            p.text(x + side, HBM[1] + 46, label, 13, "start")
            p.text(x + side, L2[1] + 38, beyond_label, 13, "start")
    for n, note in enumerate(("Orange: S and P; with a dashed border the whole N x N of every head. Widths grow as the square root of the bytes. 16 heads, N = 4096, d = 64, fp32.", *notes)):
        p.text(14, bottom + 14 + 20 * n, note, 12, "start", "#666666" if n == 0 else INK)
    return p


def figures():
    """{step: (HBM bytes, requested bytes)} of the pictures, by the chapters' formulas."""
    three = lambda softmax_reads: (4 * X + (3 + softmax_reads) * S + L, (2 * X + 2 * TILES * X) + (3 + softmax_reads) * S + L)
    backward = 2 * X + L + 4 * X + 2 * (X + L) * BACKWARD_TILES + 3 * X + 2 * L + 2 * X * BACKWARD_TILES
    return {"step01": three(3), "step02": three(1), "step03": (4 * X + L, 2 * X + 3 * TILES * X + L), "step04": (4 * X + L, 2 * X + 2 * TILES * X + L),
            "step05": (13 * X + 5 * L, backward)}


def three_kernels(step, softmax, softmax_sram, softmax_registers, softmax_flows, notes):
    scores_in, values_in = X + X * TILES, S + X * TILES
    kernels = [
        ("scores", 110, 374, "tile q, tile k", "tile of s", [
            (134, False, 2 * X, scores_in, f"Q, K\n{human(2 * X)}", f"Q, K again\n{human(scores_in)}"), (306, True, S, S, f"S\n{human(S)}", human(S))]),
        (softmax, 394, 658, softmax_sram, softmax_registers, [
            softmax_flows, (584, True, S, S, f"P\n{human(S)}", human(S))]),
        ("values", 678, 940, "tile p, tile v", "tile of O", [
            (704, False, S + X, values_in, f"P, V\n{human(S + X)}", f"P, V again\n{human(values_in)}"), (866, True, X, X, f"O\n{human(X)}", human(X))])]
    tensors = [("Q, K", 110, 190, False), ("S", 250, 480, True), ("P", 530, 750, True), ("V", 762, 800, False), ("O", 830, 930, False)]
    return memories(f"{step}: S and P in HBM", kernels, tensors, notes)


def step01():
    total = figures()["step01"][0]
    return three_kernels("step01", "softmax: a thread owns a row", "nothing", "m, l of one row", (420, False, 3 * S, 24 * S, f"S, 3 times\n{human(3 * S)}", f"{human(24 * S)}:\n32 bytes for\neach 4"),
                         [f"HBM at least 4X + 6S + L = {human(total)}. Beyond the L2 the softmax's loads move whole sectors: 8 times what they ask for."])


def step02():
    total = figures()["step02"][0]
    return three_kernels("step02", "softmax: a block owns a row", "the whole row of S", "m, l", (420, False, S, S, f"S, once\n{human(S)}", human(S)),
                         [f"HBM 4X + 4S + L = {human(total)}, of which S and P are {human(4 * S)}"])


def one_kernel(step, sram, registers, tile, loads, notes):
    asked = X + loads * TILES * X
    kernels = [("attention: one block, 128 queries", 200, 846, sram, registers, [
        (300, False, 3 * X, asked, f"Q, K, V once\n{human(3 * X)}", f"K, V by every block\n{human(asked)}"), (690, True, X + L, X + L, f"O, LSE\n{human(X + L)}", human(X + L))])]
    tensors = [("Q", 200, 270, False), ("K", 282, 352, False), ("V", 364, 434, False), ("O", 640, 740, False), ("LSE", 752, 812, False)]
    return memories(f"{step}: S and P stay on the chip", kernels, tensors, [f"HBM 4X + L = {human(figures()[step][0])}: nothing N x N. Requested {human(figures()[step][1])}: the L2 answers all but the first request.", *notes], tile)


def step03():
    return one_kernel("step03", "tiles q, k, v; p on its way to the product", "m, l, O", "pass 1: s · 2: s, p", 3, ["K is asked for twice, V once: pass 1 needs no V"])


def step04():
    return one_kernel("step04", "tiles q, k, v; p on its way to the product", "m, l, alpha, O", "a tile of s, p", 2, [])


def step05():
    keys, queries = 2 * X + 2 * (X + L) * BACKWARD_TILES, 2 * X + 2 * L + 2 * X * BACKWARD_TILES
    kernels = [
        ("delta", 110, 300, "nothing", "O dO summed", [(130, False, 2 * X, 2 * X, f"O, dO\n{human(2 * X)}", human(2 * X)), (240, True, L, L, f"delta\n{human(L)}", human(L))]),
        ("dK dV: a block owns keys", 320, 640, "tiles k, v; q, dO; p, then ds", "p, dp, ds, dK, dV",
         [(346, False, 4 * X + 2 * L, keys, f"Q, K, V, dO, LSE, delta\n{human(4 * X + 2 * L)}", f"Q, dO by every block\n{human(keys)}"), (560, True, 2 * X, 2 * X, f"dK, dV\n{human(2 * X)}", human(2 * X))]),
        ("dQ: a block owns queries", 660, 940, "tiles q, dO; k, v; ds", "p, dp, ds, dQ",
         [(682, False, 4 * X + 2 * L, queries, f"Q, K, V, dO, LSE, delta\n{human(4 * X + 2 * L)}", f"K, V by every block\n{human(queries)}"), (876, True, X, X, f"dQ\n{human(X)}", human(X))])]
    tensors = [("O, dO", 110, 180, False), ("delta", 216, 290, False), ("Q, K, V, dO, LSE", 320, 480, False), ("dK, dV", 540, 630, False), ("Q, K, V, dO, LSE", 660, 820, False), ("dQ", 856, 930, False)]
    return memories("step05: the recompute backward", kernels, tensors,
                    [f"HBM 13X + 5L = {human(figures()['step05'][0])}; the standard backward, with P, dP and dS in HBM: 8X + 7S = {human(8 * X + 7 * S)}"])


def two_memories():
    p = Picture(960, 330, "step00: the memories of a GPU and the two rates that decide")
    rows = [("HBM", "tens of GB", "every tensor as a whole", 900), ("L2", "tens of MB", "a cache: what was touched last", 640),
            ("SRAM", "0.1 to 0.2 MB in each SM", "__shared__: a block says what lies there", 440), ("registers", "0.25 MB in each SM", "the operands of the next product", 380)]
    for n, (name, size, role, width) in enumerate(rows):
        y = 20 + 66 * n
        p.rect(30, y, width, 44, BLUE if n != 1 else GREY)
        p.text(44, y + 28, name, 15, "start", bold=True)
        p.text(140, y + 19, size, 12, "start")
        p.text(140, y + 36, role, 12, "start")
        if n:
            p.arrow(80, y - 21, 80, y - 1, INK, (2, 4, 7)[n - 1])
    for n, words in enumerate(("BW: bytes per second between the chip and its memory", "the L2's rate: what the second and later readers of a tile see", "the SRAM's rate, all SMs together")):
        p.text(140, 20 + 66 * n + 59, words, 12, "start", "#666666")
    p.arrow(412, 240, 490, 240, ORANGE, 4)
    p.rect(494, 218, 220, 44, ORANGE)
    p.text(604, 245, "products", 15, bold=True)
    p.text(730, 236, "R: FLOP per second of the\ntile product, SRAM to sum", 12, "start", "#666666")
    p.text(30, 310, "time = sum over kernels of (executed FLOPs / R + HBM bytes / BW)", 14, "start", bold=True)
    return p


# ---- the two recurrences ----------------------------------------------------------------------------------------------------

SCORES, VALUES = ((1, 3), (2, 5)), ((10, 20), (30, 40))  # chapter 4's four numbers, in two tiles


def four_numbers():
    """[(m, alpha, [p], l, a)] after each tile."""
    m, l, a, states = -math.inf, 0.0, 0.0, []
    for scores, values in zip(SCORES, VALUES):
        m_new = max(m, *scores)
        alpha = math.exp(m - m_new)
        p = [math.exp(s - m_new) for s in scores]
        l, a, m = alpha * l + sum(p), alpha * a + sum(w * v for w, v in zip(p, values)), m_new
        states.append((m, alpha, p, l, a))
    return states


def online_softmax():
    p = Picture(960, 400, "online softmax over two tiles of two keys")
    p.rect(24, 120, 130, 100, GREY)
    p.text(89, 112, "start", bold=True)
    p.text(40, 146, "m = -inf\nl = 0\na = 0", 14, "start")
    for n, (m, alpha, weights, l, a) in enumerate(four_numbers()):
        x = 196 + 390 * n
        p.text(x + 60, 36, f"key tile {n}", bold=True)
        base = 250
        for k, (s, v, weight) in enumerate(zip(SCORES[n], VALUES[n], weights)):
            left = x + 8 + 70 * k
            p.text(left + 20, 62, f"s = {s}", 13)
            p.text(left + 20, 80, f"v = {v}", 13)
            p.rect(left, base - 130 * weight, 40, 130 * weight, BLUE, radius=0)
            p.text(left + 20, base + 18, f"{weight:.6f}", 12)
        p.line(x - 6, base, x + 136, base, INK)
        p.text(x + 60, base + 38, "p = exp(s - m)", 13)
        p.rect(x + 166, 120, 190, 100, GREEN)
        p.text(x + 261, 112, f"after tile {n}", bold=True)
        p.text(x + 178, 146, f"m = {m}\nl = {l:.6f}\na = {a:.6f}", 14, "start")
        p.arrow(154 if n == 0 else x - 34, 170, x + 4, 170, GREEN, 2)
        p.arrow(x + 140, 200, x + 164, 200, BLUE, 3)
        p.text(x + 261, 244, f"l and a before the tile, times\nalpha = exp({'-inf' if n == 0 else '3 - 5'}) = {alpha:.6g},\nplus the tile's own sums", 12)
    l, a = four_numbers()[-1][3:]
    p.text(24, 332, "Tile 1 brings a larger maximum: what was summed against m = 3 is worth exp(3 - 5) as much against m = 5. One factor serves l and a.", 13, "start")
    p.text(24, 366, f"o = a / l = {a:.6f} / {l:.6f} = {a / l:.6f}", 14, "start", bold=True)
    p.text(500, 366, f"LSE = m + ln l = 5 + {math.log(l):.6f} = {5 + math.log(l):.6f}", 14, "start", bold=True)
    return p


def backward_loops():
    p = Picture(960, 420, "the backward's two loops over the tiles of S")
    cell, rows = 44, 5
    for n, (title, keys) in enumerate((("dK dV: a block owns keys", True), ("dQ: a block owns queries", False))):
        x, y = 150 + 480 * n, 92
        p.text(x + cell * rows / 2, 30, title, 15, bold=True, colour=GREEN)
        p.text(x + cell * rows / 2, 74, "keys: K, V", 12)
        p.text(x - 12, y + cell * rows / 2, "queries:\nQ, dO,\nLSE, delta", 12, "end")
        for i in range(rows):
            for j in range(rows):
                owned = j == 1 if keys else i == 1
                p.rect(x + cell * j, y + cell * i, cell, cell, ORANGE if owned else GREY, fill=None if owned else "#ffffff", radius=0, thick=2 if owned else 1)
        p.text(x + cell * (1.5 if keys else 2.5), y + cell * (2.6 if keys else 1.6), "p dp ds" if keys else "p     dp     ds", 11)
        if keys:
            p.arrow(x + cell * 1.5, y + 6, x + cell * 1.5, y + cell * 2.3, ORANGE, 3)
            p.arrow(x + cell * 1.5, y + cell * 2.8, x + cell * 1.5, y + cell * rows + 30, ORANGE, 3)
            p.rect(x + cell * 1.5 - 70, y + cell * rows + 32, 140, 40, BLUE)
            p.text(x + cell * 1.5, y + cell * rows + 57, "dK, dV: its rows")
        else:
            p.arrow(x + 6, y + cell * 1.2, x + cell * rows + 24, y + cell * 1.2, ORANGE, 3)
            p.rect(x + cell * rows + 26, y + cell * 1.2 - 22, 64, 44, BLUE)
            p.text(x + cell * rows + 58, y + cell * 1.2 + 5, "dQ")
    p.text(480, 404, "Each tile of p, dp, ds is computed where it is needed, in both kernels, and thrown away. Sums stay with their owner: no atomics.", 13)
    return p


PICTURES = {"two_memories": two_memories, "step01": step01, "step02": step02, "step03": step03, "step04": step04, "step05": step05, "online_softmax": online_softmax,
            "backward_loops": backward_loops}


def main(arguments):
    parser = OneLineParser(description="Draws docs/pictures/*.svg.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a stored picture is not what this script draws")
    check = parser.parse_args(arguments).check
    if not check:
        FOLDER.mkdir(exist_ok=True)
    different = []
    for name, draw in PICTURES.items():
        path, svg = FOLDER / f"{name}.svg", draw().svg()
        if path.is_file() and path.read_text() == svg:
            continue
        different.append(path.name)
        if not check:
            write_whole(path, svg)
    if check and different:
        print(f"docs/pictures: {', '.join(different)}: not what plots/draw_pictures.py draws; run it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
