"""python3 fill_exercise.py exercise step out: writes the exercise with its holes filled by the step's own lines.

An exercise is made of functions of its step, word for word, with holes between `// TODO n of m: ...` and `// end of TODO n`. A
function that is no longer the step's ends the program with a line that says where (exit 1). An exercise whose TODOs are not all
there is in its reader's hands: it is copied as it is, and check_exercise.py leaves it alone."""
import pathlib
import re
import sys

HOLE = re.compile(r" *// TODO (\d+) of (\d+): .*?// end of TODO \1\n", re.DOTALL)


class Drifted(Exception):
    pass


def untouched(text):
    """Whether all TODOs are there, numbered 1 of n to n of n, each with its end: a reader takes them out one by one."""
    holes = [(int(hole[1]), int(hole[2])) for hole in HOLE.finditer(text)]
    return bool(holes) and holes == [(n, len(holes)) for n in range(1, len(holes) + 1)] and len(re.findall(r"// (?:end of )?TODO \d", text)) == 2 * len(holes)


def functions(text):
    """The exercise's functions, with the comments above them: all between its namespace's using lines and its step()."""
    body = re.search(r"\nnamespace [^\n]*\n(.*?)\ninline Step step\(\)", text, re.DOTALL)
    if not body:
        raise Drifted("no namespace, or no step() at its end")
    return [part for part in re.split(r"(?<=\n}\n)\n", re.sub(r"^using [^\n]*;\n", "", body[1], flags=re.MULTILINE).strip("\n") + "\n") if part]


def fill(exercise, step):
    """The text of an untouched exercise with all holes filled from the step's."""
    filled = exercise
    for function in functions(exercise):
        between = [re.escape(piece) for piece in HOLE.sub("\0", function).split("\0")]
        found = re.findall("(" + r"(?:[^\n]*\n)+?".join(between) + ")", step)
        if len(found) != 1:
            raise Drifted(f"around its TODOs, the function that begins `{function.splitlines()[0]}` stands {len(found)} times in the step, not once: carry the step's change over")
        filled = filled.replace(function, found[0])
    return filled


def main(exercise, step, out):
    try:
        text = pathlib.Path(exercise).read_text()
        if untouched(text):
            text = fill(text, pathlib.Path(step).read_text())
    except Drifted as drifted:
        sys.exit(f"{exercise}: {drifted}")
    part = pathlib.Path(out + ".part")
    part.write_text(text)
    part.replace(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
