"""python3 make_exercise.py exerciseNN [out]: makes docs/exercises/exerciseNN_*.cu, unless it is there, or `out`: the step NN with the holes of
exercises.txt. Where an edit of the step has taken the place of a hole away, says so in one line (exit 1)."""

import pathlib
import re
import sys
import textwrap

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path.insert(0, str(REPOSITORY / "cmake"))
import edit


def holes_of(name):
    """(step, idea, [(pattern, what the TODO says, filler), ...])"""
    holes, step, idea, inside = [], None, None, False
    for line in (HERE / "exercises.txt").read_text(encoding="utf-8").splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "==":
            inside = rest.startswith(name + " ")
            if inside:
                step, idea = re.fullmatch(r"\S+ (\S+): (.*)", rest).groups()
        elif inside and kind == "-":
            holes.append([rest, "", ""])
        elif inside and kind in ("?", "+"):
            holes[-1]["?+".index(kind) + 1] = rest
    if step is None:
        sys.exit(f"{name}: exercises.txt has no such exercise")
    return step, idea, holes


def with_holes(text, holes, file):
    for n, (pattern, says, filler) in enumerate(holes, 1):
        begin, end = edit.find(text, pattern, {}, file)
        begin, end = text.rfind("\n", 0, begin) + 1, text.find("\n", end) + 1
        indent = re.match(" *", text[begin:])[0]
        lines = textwrap.wrap(f"TODO {n} of {len(holes)}: {says}", 116 - len(indent))
        todo = (
            [f"{indent}// {line}" for line in lines]
            + [indent + filler] * bool(filler)
            + [f"{indent}// end of TODO {n}"]
        )
        text = text[:begin] + "\n".join(todo) + "\n" + text[end:]
    return text


def exercise(name):
    """(the exercise's file name, its text)"""
    step, idea, holes = holes_of(name)
    sources = sorted(REPOSITORY.glob(f"steps/{step}_*.cu"))
    if not sources:
        sys.exit(f"{name}: there is no steps/{step}_*.cu")
    file = sources[0].name.replace(step, name)
    try:
        text = with_holes(sources[0].read_text(encoding="utf-8"), holes, sources[0].relative_to(REPOSITORY))
    except edit.Gone as gone:
        sys.exit(f"{name}: {gone}")
    opening = "\n".join(
        f"// {line}".rstrip()
        for line in (
            f"{name}  docs/exercises/README.md",
            "",
            f"{idea}: fill in the TODOs.",
            "",
            f"  make {name} && ./{name}",
        )
    )
    text = opening + "\n" + re.sub(r"\A(?://[^\n]*\n)+", "", text)
    text = re.sub(r'#include "(step\d)', r'#include "steps/\1', text)
    text = text.replace(f"namespace attention::ATTN_DEVICE::{step}", f"namespace attention::ATTN_DEVICE::{name}")
    if f'#include "steps/{step}_' in text:  # a header of the step's own
        text = re.sub(
            rf"(namespace attention::ATTN_DEVICE::{name} {{\n)",
            rf"\1\nusing namespace {step};  // what the step's header has in it\n",
            text,
            count=1,
        )
    for pattern, new in (
        (r'\.id = "[^"]*"', f'.id = "{name}"'),
        (r'\.idea = "[^"]*"', f'.idea = "{idea}"'),
        (r'\.chapter = "[^"]*"', '.chapter = "docs/exercises/README.md"'),
        (r"\.largest_head_dim = \d+", ".largest_head_dim = 64"),
        (
            r"\.methods = ",
            f'.if_wrong = "fill in the TODOs of docs/exercises/{file}; docs/exercises/README.md says what each one asks for",\n          .methods = ',
        ),
    ):
        text = re.sub(pattern, lambda _: new, text, count=1)
    return file, text


def main(name, out=None):
    there = sorted(HERE.glob(f"{name}_*.cu"))
    if not out and there:
        return
    file, text = exercise(name)
    edit.copy(text, pathlib.Path(out) if out else HERE / file)


if __name__ == "__main__":
    main(*sys.argv[1:])
