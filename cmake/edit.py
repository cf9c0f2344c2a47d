"""python3 edit.py EDITS NAME SOURCE OUT: writes into OUT a copy of SOURCE's steps/ in which the edit called NAME has
been made, and, where it changes a header of common/, that header. EDITS is a file of edits:

    == rescale_left_out step04: words for other readers of the file (flags, what is expected)
    in tile.h                   the file that the next change is in; the step's own until then
    - $alpha = exp2_or_zero(    what stands there. Only its words count: not blanks, line ends and comments
    + $alpha = (                what takes its place, and that of a comment behind it; nothing: its line goes too

A name that begins with $ stands for any one name, the same throughout an edit, so that a renamed variable breaks
nothing. `...` stands for whatever lies between, `#2` in front for the second place. Otherwise the text must stand in
the file exactly once: an edit whose place has gone, or is no longer the only one, ends with one line that says so
(exit 1), and the last OUT goes."""

import pathlib
import re
import shutil
import sys

BLANK = r"\s+|//[^\n]*|/\*.*?\*/"
TEXT, NAME, NUMBER = r'"(?:\\.|[^"\\\n])*"', r"\$?[A-Za-z_]\w*", r"\.?\d(?:[eEpP][+-]|[\w.'])*"
WORD = re.compile(rf"{BLANK}|({TEXT}|{NAME}|{NUMBER}|\.\.\.|\S)", re.DOTALL)
REGISTERED = """#pragma once
{includes}
namespace {{
const bool registered = attention::register_step(attention::DeviceKind::cpu, attention::on_cpu::{step}::step());
}}
"""


class Gone(Exception):
    """The place of an edit is not what it was."""


def words(text):
    """[(word, begin, end), ...] without blanks and comments."""
    return [(match[1], match.start(1), match.end(1)) for match in WORD.finditer(text) if match[1]]


def match_at(text, at, pattern, names):
    """The index after the last word where pattern matches the words from `at` on, or None; fills names."""
    for n, word in enumerate(pattern):
        if word == "...":
            for begin in range(at, len(text)):
                found = dict(names)
                end = match_at(text, begin, pattern[n + 1 :], found)
                if end is not None:
                    names.update(found)
                    return end
            return None
        if at == len(text):
            return None
        if word[0] == "$" and re.match(r"[A-Za-z_]", text[at]):
            if names.setdefault(word, text[at]) != text[at]:
                return None
        elif word != text[at]:
            return None
        at += 1
    return at


def find(text, pattern, names, file=""):
    """(begin, end) of the only place of `pattern` in text, in characters; adds what its $names stand for to names.
    Raises Gone."""
    numbered = re.match(r"#(\d+) ", pattern)
    wanted = pattern[numbered.end() :] if numbered else pattern
    places, source, sought = [], words(text), [word for word, _, _ in words(wanted)]
    plain = [word for word, _, _ in source]
    for at in range(len(plain)):
        found = dict(names)
        end = match_at(plain, at, sought, found)
        if end is not None:
            places.append((source[at][1], source[end - 1][2], found))
    which = int(numbered[1]) if numbered else 1
    if len(places) < which or (len(places) > 1 and not numbered):
        needed = f"{which if numbered else 'once'} is needed: an edit of the file has changed what this is about"
        raise Gone(f"{file} has `{pattern}` {len(places)} times, and {needed}")
    names.update(places[which - 1][2])
    return places[which - 1][:2]


def replace(text, pattern, new, names, file=""):
    begin, end = find(text, pattern, names, file)
    comment = re.compile(r"[ \t]*//[^\n]*").match(text, end)
    end = comment.end() if comment else end  # it speaks of what goes
    line = text.rfind("\n", 0, begin) + 1
    if not new and text[end : end + 1] == "\n" and not text[line:begin].strip():
        return text[:line] + text[end + 1 :]
    return text[:begin] + re.sub(r"\$[A-Za-z_]\w*", lambda name: names.get(name[0], name[0]), new) + text[end:]


def read(path):
    """{name: (step, words after the colon, [(file or None, pattern, new), ...])} of a file of edits."""
    edits = {}
    for number, line in enumerate(pathlib.Path(path).read_text(encoding="utf-8").splitlines(), 1):
        kind, _, rest = line.partition(" ")
        if kind == "==":
            name, step, about = re.fullmatch(r"(\S+) (step\d\d)(?:: *(.*))?", rest).groups()
            changes, file = [], None
            edits[name] = (step, about or "", changes)
        elif kind == "in":
            file = rest
        elif kind == "-":
            changes.append((file, rest, ""))
        elif kind == "+":
            changes[-1] = (*changes[-1][:2], (changes[-1][2] + "\n" + rest).strip("\n"))
        elif kind and kind != "#":
            sys.exit(f"{path}:{number}: a line begins with ==, in, -, + or #")
    return edits


def file_of(source, step, name):
    """`name` in steps/ or common/tile/, or the step's own file: a path within source. Raises Gone."""
    places = [f"steps/{name}", f"common/tile/{name}"] if name else [f"steps/{step}_*.cu"]
    found = [path for place in places for path in sorted(source.glob(place))]
    if not found:
        raise Gone(f"there is no {name or places[0]}")
    return found[0].relative_to(source)


def copy(text, to):
    """Writes unless the file holds it already: what includes an unchanged copy is not compiled again."""
    if not to.exists() or to.read_text(encoding="utf-8") != text:
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text, encoding="utf-8")


def main(edits, name, source, out):
    source, out = pathlib.Path(source), pathlib.Path(out)
    step, _, changes = read(edits)[name]
    text_of = lambda path: (source / path).read_text(encoding="utf-8")
    sources = [path.relative_to(source) for path in sorted(source.glob("steps/*"))]
    texts = {path: text_of(path) for path in sources if path.suffix in (".cu", ".cuh", ".h")}
    names = {}
    try:
        for file, pattern, new in changes:
            path = file_of(source, step, file)
            texts[path] = replace(texts.get(path) or text_of(path), pattern, new, names, path)
        own = file_of(source, step, None)
    except Gone as gone:
        shutil.rmtree(out, ignore_errors=True)
        sys.exit(f"{name}: {gone}")
    for old in (*out.glob("steps/*"), *out.glob("common/tile/*")):
        if old.relative_to(out) not in texts:  # of an edit that was in another file, or a step that is gone
            old.unlink()
    for path, text in texts.items():
        copy(text, out / path)
    parts = [own, *(path for path in texts if path.match(f"steps/{step}_*.cuh"))]
    includes = "\n".join(f'#include "{path}"' for path in parts)
    copy(REGISTERED.format(includes=includes, step=step), out / "edited_step.h")


if __name__ == "__main__":
    main(*sys.argv[1:])
