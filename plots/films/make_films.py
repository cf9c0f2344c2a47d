#!/usr/bin/env python3
"""Makes the gallery of films: what the CPU executor sees while each step runs a small problem, as pages for a browser.

    python3 plots/films/make_films.py --folder build --out films                        every step, pairs and an index
    python3 plots/films/make_films.py --pair films/step02.html films/step04.html --out both.html

Flags it does not know go to the steps (--seqlen 256 --causal). The pages need no network and no server.
"""

import html
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.programs import described
from plots.script import OneLineParser, Stop, call, end_with, last_line, read_text, write_whole

START, END = '<script type="application/json" id="films">\n', "\n</script>"
PAIRS = (("step02", "step04"), ("step03", "step04"))  # what the chapters set side by side
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


def gallery(folder, out, flags):
    films = [one for one in described(folder) if one["kind"] == "attention" and one["devices"]["cpu"]]
    if not films:
        raise Stop(f"no step in {folder}: build them first (make steps)")
    out.mkdir(parents=True, exist_ok=True)
    items = []
    for film in films:
        page = out / f"{film['id']}.html"
        code, stdout, stderr = call([film["path"], "--device", "cpu", "--film", page.resolve(), *flags])
        if code:
            raise Stop(f"{film['id']}: {last_line(stderr) or last_line(stdout)}", code)
        items.append((page.name, f"{film['id']}: {film['title']}", film["idea"]))
    made = {film["id"] for film in films}
    for left, right in PAIRS:
        if {left, right} <= made:
            pair((out / f"{left}.html", out / f"{right}.html"), out / f"{left}-{right}.html")
            title = f"{left} and {right}, side by side"
            items.append((f"{left}-{right}.html", title, "the same problem, in step, with their byte counters"))
    lines = (
        f'<li><a href="{name}">{html.escape(title)}</a><br>{html.escape(idea)}</li>' for name, title, idea in items
    )
    write_whole(out / "index.html", INDEX.format(items="\n".join(lines)))
    print(f"{len(items)} films and {out / 'index.html'}")


def main():
    parser = OneLineParser(__doc__)
    parser.add_argument("--folder", type=pathlib.Path, default="build", help="where the executables are (build)")
    parser.add_argument(
        "--out", type=pathlib.Path, default="films", help="the gallery's folder (films), or the file of --pair"
    )
    parser.add_argument("--pair", nargs=2, type=pathlib.Path, metavar="PAGE", help="join two films into one page")
    options, flags = parser.parse_known_args()
    if options.pair:
        pair(options.pair, options.out)
    else:
        gallery(options.folder, options.out, flags)


if __name__ == "__main__":
    end_with(main)
