#!/usr/bin/env python3
"""Makes the gallery of films: what the CPU executor sees while each step runs a small problem, as pages for a browser.

    python3 plots/films/make_films.py --folder build --out films                        every step, pairs and an index
    python3 plots/films/make_films.py --pair films/step02.html films/step04.html --out both.html
    python3 plots/films/make_films.py --pictures docs/pictures       what is there of timeline_stepNN.svg and film_stepNN.svg, drawn anew

Flags it does not know go to the steps (--seqlen 256 --causal). The pages need no network and no server.
"""

import html
import json
import pathlib
import re
import shutil
import sys
import tempfile
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.programs import described
from plots.script import OneLineParser, Stop, call, end_with, last_line, read_text, write_whole

START, END = '<script type="application/json" id="films">\n', "\n</script>"
PICTURED = ["--device", "cpu", "--dtype", "fp16", "--head-dim", "64", "--heads", "1", "--threads", "1"]
PICTURED += ["--check", "none", "--thread-order", "0"]
STILL = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">
<style>
text {{ font: 12px system-ui, sans-serif; fill: #1a1d21 }}
.strong {{ font-weight: bold; fill: #c2410c }}
.tensor {{ fill: none; stroke: #c3cad2 }}
.tile-line {{ stroke: #c3cad2; stroke-dasharray: 2 3 }}
.seen {{ fill: #cfe0f3 }}
.current, .grown {{ fill: #c2410c }}
.bar, .lane {{ fill: #0b5cad }}
</style>
<rect width="100%" height="100%" fill="#ffffff"/>
{words}{body}</svg>
"""
INDEX = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>FlashAttention, step by step: the films</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 17px/1.5 system-ui, sans-serif; max-width: 46em; margin: 2em auto; padding: 0 1em }}
a {{ color: light-dark(#0b5cad, #7cb8f5) }}
</style></head>
<body><h1>FlashAttention, step by step: the films</h1>
<p>Each page plays a real kernel's accesses, event by event. Open any of them; nothing else is needed.</p>
<ul>
{items}
</ul></body></html>
"""


def cut(page):
    """(what stands before a page's films, the films, what stands behind)."""
    text = read_text(page)
    before, found, rest = text.partition(START)
    films, found_end, after = rest.partition(END)
    if not found or not found_end:
        raise Stop(f"{page}: is not a page of --film")
    return before + START, json.loads(films), END + after


def as_script(films):
    return json.dumps(films, separators=(",", ":")).replace("</", "<\\/")  # must not end the script element


def pair(pages, out):
    """One page that plays two films in step."""
    (before, first, after), (_, second, _) = cut(pages[0]), cut(pages[1])
    write_whole(out, before + as_script(first + second) + after)


def comparable(film, made):
    """What a film can stand beside: of the step before it and its baseline, those with the same passes and type."""
    alike = [made[name] for name in dict.fromkeys((film["before"], film["baseline"])) if name in made]
    return [one for one in alike if all(one[what] == film[what] for what in ("passes", "default_dtype"))]


def make(film, flags):
    code, stdout, stderr = call([film["path"], *flags])
    if code:
        raise Stop(f"{film['id']}: {last_line(stderr) or last_line(stdout)}", code)


def gallery(folder, out, flags):
    films = [one for one in described(folder) if one["kind"] == "attention" and one["devices"]["cpu"]]
    if not films:
        raise Stop(f"no step in {folder}: build them first (make steps)")
    out.mkdir(parents=True, exist_ok=True)
    items = []
    for film in films:
        page = out / f"{film['id']}.html"
        make(film, ["--device", "cpu", "--film", page.resolve(), *flags])
        items.append((page.name, f"{film['id']}: {film['title']}", film["idea"]))
    made = {film["id"]: film for film in films}
    pairs = {tuple(sorted((one["id"], film["id"]))) for film in films for one in comparable(film, made)}
    for left, right in sorted(pairs):
        pair((out / f"{left}.html", out / f"{right}.html"), out / f"{left}-{right}.html")
        title = f"{left} and {right}, side by side"
        items.append((f"{left}-{right}.html", title, "the same problem, in step, with their byte counters"))
    lines = (
        f'<li><a href="{name}">{html.escape(title)}</a><br>{html.escape(idea)}</li>' for name, title, idea in items
    )
    write_whole(out / "index.html", INDEX.format(items="\n".join(lines)))
    print(f"{len(items)} films and {out / 'index.html'}")


def still(page, picture):
    """What a film's page draws at an event of its middle kernel: the first maximum, else the first load, of the second
    half. A browser runs the page; its drawings and the sentence above them become one picture."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        raise Stop("a still needs Chromium (./setup.sh ci installs it)", 3)
    kinds = [[event["kind"] for event in launch["filmed"][0]["events"]] for launch in cut(page)[1][0]["launches"]]
    middle = kinds[len(kinds) // 2]
    half = len(middle) // 2
    event = next((middle.index(kind, half) for kind in ("row max", "load") if kind in middle[half:]), half)
    event += sum(map(len, kinds[: len(kinds) // 2])) + 1
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    code, dom, stderr = call([browser, *flags, f"{page.as_uri()}#{event}"], 60)
    now = re.search(r'<div class="card now".*?<strong>(.*?)</strong>(.*?)</p><p class="quiet">(.*?)</p>', dom, re.S)
    drawings = re.findall(r'<svg viewBox="0 0 (\d+) (\d+)".*?>(.*?)</svg>', dom, re.S)
    if code or not now or not drawings:
        raise Stop(f"{browser}: {last_line(stderr) or 'no film in the page'}", code or 1)
    lines = [now[1], *textwrap.wrap(now[2].strip(), 90), now[3]]
    width, height, body = int(drawings[0][0]), 16 + 18 * len(lines), ""
    for _, high, drawing in drawings:
        body += f'<g transform="translate(0 {height})">{drawing}</g>\n'
        height += int(high)
    for line in re.findall(r"<figcaption.*?>(.*: )(.*)</figcaption>", dom)[:1]:
        body += "".join(f'<text x="6" y="{height + 14 + 18 * n}">{part}</text>\n' for n, part in enumerate(line))
        height += 42
    strong = ' class="strong"'
    words = "".join(
        f'<text x="6" y="{20 + 18 * n}"{"" if n else strong}>{line}</text>\n' for n, line in enumerate(lines)
    )
    write_whole(picture, STILL.format(width=width, height=height, words=words, body=body))


def pictures(folder, out):
    """Draws the pictures of films and timelines anew that are in `out`."""
    steps = {film["id"]: film for film in described(folder)}
    for picture in sorted(out.glob("timeline_step*.svg")):
        stamps = picture.with_suffix(".stamps")  # a GPU's, where they are stored; else the executor's logical time
        drawn_from = ["--stamps", stamps.resolve()] if stamps.exists() else [*PICTURED, "--seqlen", "1024"]
        make(steps[picture.stem.split("_")[1]], [*drawn_from, "--timeline", picture.resolve()])
    with tempfile.TemporaryDirectory() as scratch:
        for picture in sorted(out.glob("film_step*.svg")):
            page = pathlib.Path(scratch) / f"{picture.stem}.html"
            make(steps[picture.stem.split("_")[1]], [*PICTURED, "--seqlen", "256", "--film", page])
            still(page, picture)


def main():
    parser = OneLineParser(__doc__)
    parser.add_argument("--folder", type=pathlib.Path, default="build", help="where the executables are (build)")
    parser.add_argument(
        "--out", type=pathlib.Path, default="films", help="the gallery's folder (films), or the file of --pair"
    )
    parser.add_argument("--pictures", type=pathlib.Path, metavar="FOLDER", help="draw this folder's pictures anew")
    parser.add_argument("--pair", nargs=2, type=pathlib.Path, metavar="PAGE", help="join two films into one page")
    options, flags = parser.parse_known_args()
    if options.pair:
        pair(options.pair, options.out)
    elif options.pictures:
        pictures(options.folder, options.pictures)
    else:
        gallery(options.folder, options.out, flags)


if __name__ == "__main__":
    end_with(main)
