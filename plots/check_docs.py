#!/usr/bin/env python3
"""Checks README.md and docs/: what they link to exists, what they quote is there, what they show runs, and no figure is typed.

    python3 plots/check_docs.py                    # all checks; the programs are taken from build/
    python3 plots/check_docs.py --fix              # first moves code anchors to the lines where the quoted code now stands
    python3 plots/check_docs.py --only links code  # some of them

links     a link's file, heading or line exists, and README.md leads to every document
code      a link to a line, [`code`](../steps/step04_online_softmax.cu#L44), shows that code
commands  a ```sh block runs on the CPU executor, and a plain block after it holds lines of its output; any other command that is shown
          (```console, indented, in backticks) is one that the programs, make and the scripts accept
figures   what stands between markers follows from docs/results (as plots/speedup_table.py --check)
typed     no time, rate or speedup is typed by hand: it stands between markers, or in a paragraph with <!-- typed: reason -->

One line per fault, "file:line: what". Exit codes: 0 ok, 1 a fault, 2 bad arguments.
"""
import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse

import result_markers
from documents import COMMENT, INLINE_CODE, Document
from results import ResultsError, load
from script import OneLineParser, write_whole

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
CHECKS = ("links", "code", "commands", "figures", "typed")
LINES = re.compile(r"L(\d+)(?:-L?(\d+))?$")
PROGRAM = re.compile(r"(?:step\d\d|exercise\d\d|hunt\d+|playground|yardstick)$")
SECONDS = 120  # for one block


def read_documents(root):
    return {path: Document(str(path.relative_to(root)), path.read_text()) for path in result_markers.documents(root)}


# ---- links and code anchors ---------------------------------------------------------------------------------------------------


def external(target):
    return re.match(r"[a-z][a-z0-9+.-]*:", target) is not None


def target_of(path, link):
    """(file, fragment) of a link within the repository."""
    name, _, fragment = urllib.parse.unquote(link.target).partition("#")
    return (path.parent / name).resolve() if name else path, fragment


def check_links(root, documents):
    linked = {path: set() for path in documents}
    for path, document in documents.items():
        for link in document.links():
            if external(link.target):
                continue
            file, fragment = target_of(path, link)
            where = f"{document.name}:{link.line}: {link.target}: "
            if not file.exists() or not file.is_relative_to(root):
                yield where + "there is no such file in the repository"
                continue
            if file.suffix == ".md":
                linked[path].add(file)
            lines = LINES.match(fragment)
            if not fragment:
                continue
            if lines and file.suffix != ".md":
                if max(int(n) for n in lines.groups() if n) > len(file.read_text().splitlines()):
                    yield where + "the file has no such line"
            elif file.suffix != ".md" or fragment not in Document(file.name, file.read_text()).slugs():
                yield where + "the file has no such heading"
    start = root / "README.md"
    reached, open_ends = {start}, [start]
    while open_ends:
        for file in linked.get(open_ends.pop(), ()):
            if file not in reached:
                reached.add(file)
                open_ends.append(file)
    yield from (f"{documents[path].name}:1: no link leads here from README.md" for path in documents if path not in reached)


def squeezed(text):
    return "".join(text.split())


def places(file, code, length):
    """The first lines at which `code` stands within `length` lines of the file."""
    lines = [squeezed(line) for line in file.read_text().splitlines()]
    return [n + 1 for n in range(len(lines) - length + 1) if code in "".join(lines[n:n + length])]


def check_code(root, documents, fix):
    """With `fix` the faults that can be mended are mended in the files, and not told."""
    for path, document in documents.items():
        moved = []
        for link in document.links():
            file, fragment = target_of(path, link) if not external(link.target) else (None, "")
            lines = LINES.match(fragment)
            if not lines or file.suffix == ".md" or not file.is_file():
                continue
            where = f"{document.name}:{link.line}: {link.target}: "
            code = INLINE_CODE.search(link.text)
            if not code:
                yield where + "the link's text is no code in backticks, so nobody can tell whether the line is the right one"
                continue
            quoted = " ".join(code[2].split())
            first, last = int(lines[1]), int(lines[2] or lines[1])
            found = places(file, squeezed(quoted), last - first + 1)
            if first in found:
                continue
            nearest = sorted(found, key=lambda line: abs(line - first))[:2]
            if not found:
                yield where + f"no line there has `{quoted}`"
            elif len(nearest) == 2 and abs(nearest[0] - first) == abs(nearest[1] - first):
                yield where + f"`{quoted}` is not there; it stands at lines {nearest[0]} and {nearest[1]}: choose"
            elif not fix:
                yield where + f"`{quoted}` is not there; it stands at line {nearest[0]} (--fix moves the link)"
            else:
                new = f"#L{nearest[0]}" + (f"-L{nearest[0] + last - first}" if lines[2] else "")
                moved.append((link, link.target.partition("#")[0] + new))
        if moved:
            lines = document.text.split("\n")
            for link, target in sorted(moved, key=lambda move: move[0].span, reverse=True):  # from the right, so that spans stay
                begin, end = link.span
                lines[link.line - 1] = lines[link.line - 1][:begin] + target + lines[link.line - 1][end:]
            write_whole(path, "\n".join(lines))


# ---- commands -------------------------------------------------------------------------------------------------------------------

# `make step04` in a block: CMake's part is done by whoever runs this check, so here it only looks whether the program is there.
MAKE = """#!/bin/sh
for target in "$@"; do
  case $target in
    step[0-9]*|exercise[0-9]*|hunt[0-9]*|playground|yardstick) [ -x "./${target%-tiles}" ] || { echo "make $target: not built" >&2; exit 2; } ;;
    diff[0-9]*) exec "$CHECK_DOCS_MAKE" "$@" ;;
    *) echo "make $target: builds or measures more than a block may; show it as console" >&2; exit 2 ;;
  esac
done
[ $# -gt 0 ] || { echo "make: builds more than a block may; show it as console" >&2; exit 2; }
"""


class Workshop:
    """A folder that looks like the repository after a build, in which shown commands may write what they like."""

    def __init__(self, root, programs):
        self.holder = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.holder.name) / "work"
        self.folder.mkdir()
        for entry in root.iterdir():
            if not PROGRAM.match(entry.name) and not entry.name.startswith((".", "build")):
                (self.folder / entry.name).symlink_to(entry)
        for folder in (programs / "tiles", programs):  # as after make stepNN-tiles, where it was made
            for entry in folder.iterdir() if folder.is_dir() else ():
                if PROGRAM.match(entry.name) and os.access(entry, os.X_OK) and not self.has(entry.name):
                    (self.folder / entry.name).symlink_to(entry)
        (self.folder / "build").symlink_to(programs)
        shims = pathlib.Path(self.holder.name) / "bin"
        shims.mkdir()
        (shims / "make").write_text(MAKE)
        (shims / "make").chmod(0o755)
        self.make = shutil.which("make")
        # The executor, whatever this machine has; and no figures of a GPU.
        self.environment = {**os.environ, "PATH": f"{shims}:{os.environ['PATH']}", "CHECK_DOCS_MAKE": self.make or "make", "CUDA_VISIBLE_DEVICES": "", "XDG_CACHE_HOME": self.holder.name}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.holder.cleanup()

    def has(self, program):
        return (self.folder / program).exists()

    def run(self, command, **options):
        """(exit code, output and errors together)."""
        try:
            done = subprocess.run(command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS, **options)
        except subprocess.TimeoutExpired:
            return None, f"ran for more than {SECONDS} s"
        return done.returncode, done.stdout


UNSTABLE = ((re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?\s*(?:ms|us|µs|s)\b"), "(time)"), (re.compile(r"\(\d+ threads?\)"), "(threads)"), (re.compile(r"; built without CUDA|, and this program was built without nvcc"), ""),
            (re.compile(r"\b\d+ (?=are free|CPU threads)"), "(some) "),
            # Errors follow the compiler's and the library's roundings. Sizes ("1.1 MB") stay.
            (re.compile(r"\d+\.\d+(?:e[+-]?\d+)?(?!\d*\s*[kMGT]?B\b)(?![\d.])"), "(number)"), (re.compile(r"\b\d+e[+-]?\d+\b"), "(number)"))


def stable(line):
    """What a line of a program's output says on every machine: no times, no errors' digits."""
    for pattern, stands_for in UNSTABLE:
        line = pattern.sub(stands_for, line)
    return " ".join(line.split())


def missing_line(shown, output):
    """The number of the first shown line that does not follow in the output, None when all do. "..." stands for any lines."""
    rest = iter([stable(line) for line in output.split("\n")])
    for number, line in enumerate(shown):
        if line.strip() not in ("", "...") and stable(line) not in rest:
            return number
    return None


def shown_output(document, block):
    """The plain block that shows what this one prints: the next one, if it stands within eight lines and no heading lies between."""
    follower = next((other for other in document.blocks if other.line > block.line), None)
    end = block.line + len(block.code)
    if follower is None or follower.language != "" or follower.line - end > 8:
        return None
    return None if any(end < line < follower.line for line, _, _ in document.headings()) else follower


def run_block(document, block, workshop):
    expected = re.search(r"#\s*exit code (\d)\s*$", block.code[-1]) if block.code else None
    code, output = workshop.run(["sh", "-e", "-c", "\n".join(block.code)])
    last = output.strip().split("\n")[-1]
    if code != (int(expected[1]) if expected else 0):
        return f"{document.name}:{block.line}: `{block.code[0]}`: exit code {code}: {last}"
    shown = shown_output(document, block)
    if shown and (n := missing_line(shown.code, output)) is not None:
        return f"{document.name}:{shown.line + n}: `{block.code[0]}` does not print this line here: {shown.code[n].strip()}"
    return None


SCRIPT = re.compile(r"[\w./-]+\.(?:py|sh)$")
PLACEHOLDER = re.compile(r"[<>$…\[\]|*]|\.\.\.|^[A-Z]$|^BrxBc$|^Nq$|^Nk$|^[a-z]$|=")


def simple_commands(text):
    """The words of each simple command of a shown line, without prompt, comment, assignments and what stands before a program (sudo, ncu)."""
    for part in re.split(r"&&|\|\||;|\|", re.sub(r"^\$ ", "", text.strip())):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:
            continue
        for n, word in enumerate(words):
            if word in ("make", "python3") or word.startswith("./"):
                yield words[n:]
                break


def shown_commands(document):
    for block in document.blocks:
        if block.language in ("console", None):
            yield from ((block.line + n, line) for n, line in enumerate(block.code))
    yield from document.inline_code()


class Shown:
    """Looks at commands that are shown and not run. What is asked once is remembered."""

    def __init__(self, root, workshop):
        self.root, self.workshop, self.known = root, workshop, {}
        self.flags_of_scripts = "\n".join(path.read_text() for folder in ("plots", "tests") for path in sorted((root / folder).rglob("*.py")))

    def complaint(self, words):
        key = tuple(words)
        if key not in self.known:
            kind = words[0]
            self.known[key] = self.of_make(words[1:]) if kind == "make" else self.of_script(words[1:]) if kind == "python3" else self.of_program(kind[2:], words[1:])
        return self.known[key]

    def of_make(self, words):
        targets = [word for word in words if re.fullmatch(r"[a-z]+\d*", word)]
        if not self.workshop.make or not targets:
            return None
        done = subprocess.run([self.workshop.make, "-n", *targets], cwd=self.root, capture_output=True, text=True)
        return done.stderr.strip().split("\n")[-1] if "No rule to make target" in done.stderr else None

    def of_script(self, words):
        if not words or not SCRIPT.match(words[0]):
            return None
        if not (self.root / words[0]).is_file():
            return f"there is no {words[0]}"
        flags = [word.partition("=")[0] for word in words[1:] if word.startswith("--")]
        unknown = [flag for flag in flags if f'"{flag.replace("--no-", "--")}"' not in self.flags_of_scripts]
        return f"no script has the flag {unknown[0]}" if unknown else None

    def of_program(self, program, words):
        if SCRIPT.match(program):
            return None if (self.root / program).is_file() else f"there is no {program}"
        for stop in ("&", ">", "2>"):
            words = words[:words.index(stop)] if stop in words else words
        if not PROGRAM.match(program) or not self.workshop.has(program) or any(PLACEHOLDER.search(word) for word in words):
            return None
        if "--load" in words and not (self.root / words[words.index("--load") + 1]).is_dir():
            return None
        # --plan reads all flags and runs nothing; a GPU is not needed to say whether a flag exists.
        plan = words if program == "step00" else [*without_device(words), "--device", "cpu", "--plan"]
        code, output = self.workshop.run([f"./{program}", *plan])
        return output.strip().split("\n")[-1] if code == 2 else None


def without_device(words):
    return [word for n, word in enumerate(words) if word != "--device" and words[n - 1:n] != ["--device"] and word not in ("--plan", "--sweep-tiles")]


def check_commands(root, documents, programs, told):
    with Workshop(root, programs) as workshop:
        yield from commands_in(documents, workshop, Shown(root, workshop), told)


def commands_in(documents, workshop, shown, told):
    blocks = [(document, block) for document in documents.values() for block in document.blocks if block.language == "sh"]
    for document, block in blocks:
        start = time.monotonic()
        fault = run_block(document, block, workshop)
        told(f"{time.monotonic() - start:5.1f} s  {document.name}:{block.line}: {block.code[0] if block.code else ''}")
        if fault:
            yield fault
    for document in documents.values():
        for block in document.blocks:
            if block.language == "" and any(re.match(r"\s*(?:\$ )?(?:\./(?:step|exercise|hunt)\w+\b|make \w+|python3 \S+\.py|cmake -|ctest |ncu )", line) for line in block.code):
                yield f"{document.name}:{block.line}: a command in a plain block: ```sh if the executor can run it in seconds, else ```console"
        for line, text in shown_commands(document):
            for words in simple_commands(text):
                if complaint := shown.complaint(words):
                    yield f"{document.name}:{line}: `{shlex.join(words)}`: {complaint}"
    told(f"{len(blocks)} blocks run, {len(shown.known)} other commands looked at")


# ---- figures --------------------------------------------------------------------------------------------------------------------


def check_figures(root):
    try:
        yield from result_markers.renew(root, load(sorted((root / "docs" / "results").glob("*.json"))), write=False)
    except ResultsError as error:
        yield str(error)


NUMBER = r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?"
BEFORE_UNIT = NUMBER + r"(?:\s*(?:-|–|to|and|or)\s*\d[\d,.]*)?\s*"
TIME_OR_RATE = re.compile(BEFORE_UNIT + r"(?:ms|µs|us|ns|[kMGT]B/s|[GTP]FLOP/s|[GTP]FLOPS)\b"
                          "|" + NUMBER + r"\s*(?:x|×|times|%)\s+(?:faster|slower|as (?:fast|slow|long)|(?:of )?(?:the|its|their) (?:time|speed)|less time|more time)\b"
                          "|" + NUMBER + r"x\s+(?:over|the speed|PyTorch|eager)\b")
SIZE_OR_RATIO = re.compile(BEFORE_UNIT + r"(?:(?:[kMGT]B|x|times)\b|×(?!\s*\d)|%)")
MEASURED = re.compile(r"^(?!how |what is |what was ).*(?:measured|surpris|\bH200\b)", re.IGNORECASE)  # a heading that promises measurements
TYPED = re.compile(r"<!-- typed: *(.*?) *-->", re.DOTALL)


def blanked(text, pattern):
    """The text with every match as blanks, so that places stay."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def typed_in(document):
    """(line, what) of the figures that stand in the document and not between markers."""
    visible = Document(document.name, blanked(document.text, result_markers.MARKER))
    for start, heading, paragraph in visible.paragraphs():
        without_code = blanked(paragraph, INLINE_CODE)
        allowed, text = TYPED.search(without_code), blanked(without_code, COMMENT)
        found = [(match.start(), match[0]) for pattern in (TIME_OR_RATE, *([SIZE_OR_RATIO] if MEASURED.search(heading) else [])) for match in pattern.finditer(text)]
        found += bare_cells(text)
        line = lambda at: start + paragraph.count("\n", 0, at)
        if allowed and not allowed[1]:
            yield line(allowed.start()), "typed: without a reason"
        elif allowed and not found:
            yield line(allowed.start()), "typed: allows nothing: no figure stands in this paragraph"
        elif not allowed and found:
            at, what = min(found)
            yield line(at), f"{' '.join(what.split())!r} is typed: take it from docs/results by a marker, or say where it is from (<!-- typed: reason -->)"
    for block in visible.blocks:
        text = "\n".join(block.code)
        if block.language in ("", "console") and TIME_OR_RATE.search(text) and not re.search(r"emulat|CPU executor", text) and not ran_before(visible, block):
            yield block.line, "a time or rate in a block that is no output of the executor: fill it by a marker (results:profile)"


def ran_before(document, block):
    """Is this block the output that a ```sh block is checked against?"""
    return any(other.language == "sh" and shown_output(document, other) is block for other in document.blocks)


def bare_cells(text):
    """Numbers without a unit in a table whose heading has one: (place, cell)."""
    lines = text.split("\n")
    heading = next((n for n, line in enumerate(lines[:-1]) if line.lstrip().startswith("|") and re.match(r"\s*\|[\s:|-]+\|\s*$", lines[n + 1])), None)
    if heading is None or not re.search(r"\bms\b|FLOP/s|B/s|\bspeedup\b", lines[heading]):
        return []
    place = sum(len(line) + 1 for line in lines[:heading + 2])
    return [(place + match.start(1), match[1]) for match in re.finditer(r"\|\s*(\d[\d.,]*x?)\s*(?=\|)", "\n".join(lines[heading + 2:]))]


def check_typed(documents):
    for document in documents.values():
        for line, what in typed_in(document):
            yield f"{document.name}:{line}: {what}"


# ---- command line ---------------------------------------------------------------------------------------------------------------


def main(arguments=None):
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=REPOSITORY, help="the repository (this one)")
    parser.add_argument("--folder", type=pathlib.Path, help="where the executables are (build)")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=CHECKS, help="(all)")
    parser.add_argument("--fix", action="store_true", help="move code anchors to where their code stands")
    parser.add_argument("--verbose", action="store_true", help="tell what each block took")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    programs = (options.folder or root / "build").resolve()
    told = print if options.verbose else lambda text: None
    try:
        documents = read_documents(root)
    except ValueError as error:
        parser.exit(1, f"{error}\n")
    if root / "README.md" not in documents:
        parser.error(f"{root}: has no README.md")
    if "commands" in options.only and not (programs / "step04").exists():
        parser.error(f"{programs}: has no step04; build first, or leave out commands with --only")
    faults = []
    if options.fix:
        faults += check_code(root, documents, fix=True)
        documents = read_documents(root)
    checks = {"links": lambda: check_links(root, documents), "code": lambda: check_code(root, documents, fix=False), "commands": lambda: check_commands(root, documents, programs, told),
              "figures": lambda: check_figures(root), "typed": lambda: check_typed(documents)}
    for name in options.only:
        faults += checks[name]()
    for fault in dict.fromkeys(faults):
        print(fault)
    told(f"{len(documents)} documents, {len(set(faults))} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
