#!/usr/bin/env python3
"""Checks README.md and docs/: what they link to exists, what they quote is there, what they show runs, and every
measured figure is that of docs/results.

    python3 plots/documents/check_docs.py                    # all checks; the programs are taken from build/
    python3 plots/documents/check_docs.py --only links code  # some of them
    python3 plots/documents/check_docs.py --write            # fills the figures and tables from docs/results, and ends

links     a link's file or heading exists, and README.md leads to every document
code      a link to a source, [`code`](../steps/step04_online_softmax.cu), quotes code that stands there
commands  a ```sh block runs on the CPU executor (and a ```python block that saves tensors for it), and a plain block after
          it holds lines of its output; any other command that is shown (```console, indented, in backticks) is one that
          the programs, make and the scripts accept
figures   tables between markers, and the figures that are links to their rows, follow from docs/results to the last digit
terms     README.md, attention.md and the chapters link a word of the glossary where they first use it, or explain it there,
          in bold: **SRAM**. Headings, code and generated tables do not count
typed     a time or rate in prose is such a link, or its paragraph says where it is from: <!-- typed: reason -->

One line per fault, "file:line: what". Exit codes: 0 ok, 1 a fault, 2 bad arguments.
"""

import importlib.util
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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.documents import measured
from plots.documents.markdown import COMMENT, INLINE_CODE, LINK, REFERENCE, Document, Link
from plots.results import ResultsError, load, readable
from plots.script import REPOSITORY, OneLineParser, call, end_with, read_text

CHECKS = ("links", "code", "commands", "figures", "terms", "typed")
PROGRAM = re.compile(r"(?:step\d\d|exercise\d\d|hunt\d+|playground|yardstick)$")
SECONDS = 120  # for one block


def read_documents(root):
    return {path: Document(str(path.relative_to(root)), read_text(path)) for path in measured.documents(root)}


# ---- links and quoted code
# ----------------------------------------------------------------------------------------------


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
            if fragment and file.suffix != ".md":
                yield where + "name the code in the link's words, not its line: lines move"
            elif fragment and fragment not in Document(file.name, read_text(file)).slugs():
                yield where + "the file has no such heading"
    start = root / "README.md"
    reached, open_ends = {start}, [start]
    while open_ends:
        for file in linked.get(open_ends.pop(), ()):
            if file not in reached:
                reached.add(file)
                open_ends.append(file)
    lost = (documents[path].name for path in documents if path not in reached)
    yield from (f"{name}:1: no link leads here from README.md" for name in lost)


def squeezed(text):
    return "".join(text.split())


def check_code(root, documents):
    """A link whose words are code alone quotes its file. A file's own name is no quotation."""
    for path, document in documents.items():
        for link in document.links():
            file, _ = target_of(path, link) if not external(link.target) else (path, "")
            code = INLINE_CODE.fullmatch(link.text.strip())
            if not code or file.suffix in (".md", ".svg", ".json") or not file.is_file():
                continue
            quoted = " ".join(code[2].split())
            if quoted not in str(file) and squeezed(quoted) not in squeezed(read_text(file)):
                yield f"{document.name}:{link.line}: `{quoted}` does not stand in {file.relative_to(root)} any more"


# ---- commands
# -------------------------------------------------------------------------------------------------------------------

# `make step04` in a block: CMake's part is done by whoever runs this check, so here it only looks whether the program
# is there.
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
        (shims / "make").write_text(MAKE, encoding="utf-8")
        (shims / "make").chmod(0o755)
        self.make = shutil.which("make")
        # The executor, whatever this machine has; and no figures of a GPU.
        self.environment = {
            **os.environ,
            "PATH": f"{shims}:{os.environ['PATH']}",
            "CHECK_DOCS_MAKE": self.make or "make",
            "CUDA_VISIBLE_DEVICES": "",
            "XDG_CACHE_HOME": self.holder.name,
        }

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.holder.cleanup()

    def has(self, program):
        return (self.folder / program).exists()

    def run(self, command, **options):
        """(exit code, output and errors together)."""
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                timeout=SECONDS,
                **options,
            )
        except subprocess.TimeoutExpired:
            return None, f"ran for more than {SECONDS} s"
        return done.returncode, done.stdout


UNSTABLE = (
    (re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?\s*(?:ms|us|µs|s)\b"), "(time)"),
    (re.compile(r"\(\d+ threads?\)"), "(threads)"),
    (re.compile(r"; built without CUDA|, and this program was built without nvcc"), ""),
    (re.compile(r"\b\d+ (?=are free|CPU threads)"), "(some) "),
    # Errors follow the compiler's and the library's roundings. Sizes ("1.1 MB") stay.
    (re.compile(r"\d+\.\d+(?:e[+-]?\d+)?(?!\d*\s*[kMGT]?B\b)(?![\d.])"), "(number)"),
    (re.compile(r"\b\d+e[+-]?\d+\b"), "(number)"),
)


def stable(line):
    """What a line of a program's output says on every machine: no times, no errors' digits."""
    for pattern, stands_for in UNSTABLE:
        line = pattern.sub(stands_for, line)
    return " ".join(line.split())


def missing_line(shown, output):
    """The number of the first shown line that does not follow in the output, None when all do. "..." stands for any
    lines."""
    rest = iter([stable(line) for line in output.split("\n")])
    for number, line in enumerate(shown):
        if line.strip() not in ("", "...") and stable(line) not in rest:
            return number
    return None


def shown_output(document, block):
    """The plain block that shows what this one prints: the next one, if it stands within eight lines and no heading
    lies between."""
    follower = next((other for other in document.blocks if other.line > block.line), None)
    end = block.line + len(block.code)
    if follower is None or follower.language != "" or follower.line - end > 8:
        return None
    return None if any(end < line < follower.line for line, _, _ in document.headings()) else follower


def run_block(document, block, workshop):
    expected = re.search(r"#\s*exit code (\d)\s*$", block.code[-1]) if block.code else None
    interpreter = [sys.executable, "-c"] if block.language == "python" else ["sh", "-e", "-c"]
    code, output = workshop.run([*interpreter, "\n".join(block.code)])
    last = output.strip().split("\n")[-1]
    if code != (int(expected[1]) if expected else 0):
        return f"{document.name}:{block.line}: `{block.code[0]}`: exit code {code}: {last}"
    shown = shown_output(document, block)
    if shown and (n := missing_line(shown.code, output)) is not None:
        return (
            f"{document.name}:{shown.line + n}: `{block.code[0]}` does not print this line here: "
            f"{shown.code[n].strip()}"
        )
    return None


SCRIPT = re.compile(r"[\w./-]+\.(?:py|sh)$")
PLACEHOLDER = re.compile(r"[<>$…\[\]|*]|\.\.\.|^[A-Z]$|^BrxBc$|^Nq$|^Nk$|^[a-z]$|=")


def simple_commands(text):
    """The words of each simple command of a shown line, without prompt, comment, assignments and what stands before a
    program (sudo, ncu)."""
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
        self.root, self.workshop, self.known, self.targets = root, workshop, {}, None
        self.flags_of_scripts = "\n".join(
            read_text(path) for folder in ("plots", "tests") for path in sorted((root / folder).rglob("*.py"))
        )

    def complaint(self, words):
        key = tuple(words)
        if key not in self.known:
            kind = words[0]
            self.known[key] = (
                self.of_make(words[1:])
                if kind == "make"
                else self.of_script(words[1:])
                if kind == "python3"
                else self.of_program(kind[2:], words[1:])
            )
        return self.known[key]

    def of_make(self, words):
        """Asks make for its targets: even `make -n` would run a recipe that calls make, and so measure a whole table."""
        if self.targets is None:
            _, database, _ = call([self.workshop.make or "true", "-np", "no such target"], cwd=self.root)
            self.targets = set(re.findall(r"^([a-z]+\d*(?:-[a-z]+)?):", database, re.MULTILINE))
        targets = [word for word in words if re.fullmatch(r"[a-z]+\d*(?:-[a-z]+)?", word)]
        unknown = [target for target in targets if self.targets and target not in self.targets]
        return f"no rule to make target {unknown[0]}" if unknown else None

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
            words = words[: words.index(stop)] if stop in words else words
        if (
            not PROGRAM.match(program)
            or not self.workshop.has(program)
            or any(PLACEHOLDER.search(word) for word in words)
        ):
            return None
        if "--load" in words and not (self.root / words[words.index("--load") + 1]).is_dir():
            return None
        # --plan reads all flags and runs nothing; a GPU is not needed to say whether a flag exists.
        plan = words if program == "step00" else [*without_device(words), "--device", "cpu", "--plan"]
        code, output = self.workshop.run([f"./{program}", *plan])
        return output.strip().split("\n")[-1] if code == 2 else None


def without_device(words):
    return [
        word
        for n, word in enumerate(words)
        if word != "--device" and words[n - 1 : n] != ["--device"] and word not in ("--plan", "--sweep-tiles")
    ]


def check_commands(root, documents, programs, told):
    with Workshop(root, programs) as workshop:
        yield from commands_in(documents, workshop, Shown(root, workshop), told)


def runs(block, workshop):
    """Whether a block is run: ```sh, and the ```python that makes tensors for it. Without NumPy neither that nor what loads them."""
    text = "\n".join(block.code)
    loaded = re.search(r"--load (\S+)", text)
    if not importlib.util.find_spec("numpy") and loaded and not (workshop.folder / loaded[1]).is_dir():
        return False
    makes = block.language == "python" and "np.save(" in text
    return block.language == "sh" or (makes and importlib.util.find_spec("numpy"))


def commands_in(documents, workshop, shown, told):
    count = 0
    for document, block in ((document, block) for document in documents.values() for block in document.blocks):
        if not runs(block, workshop):
            continue
        start, count = time.monotonic(), count + 1
        fault = run_block(document, block, workshop)
        told(f"{time.monotonic() - start:5.1f} s  {document.name}:{block.line}: {block.code[0] if block.code else ''}")
        if fault:
            yield fault
    for document in documents.values():
        for block in document.blocks:
            if block.language == "" and any(
                re.match(
                    r"\s*(?:\$ )?(?:\./(?:step|exercise|hunt)\w+\b|make \w+|python3 \S+\.py|cmake -|ctest |ncu )", line
                )
                for line in block.code
            ):
                yield (
                    f"{document.name}:{block.line}: a command in a plain block: ```sh if the executor can run it in "
                    "seconds, else ```console"
                )
        for line, text in shown_commands(document):
            for words in simple_commands(text):
                if complaint := shown.complaint(words):
                    yield f"{document.name}:{line}: `{shlex.join(words)}`: {complaint}"
    told(f"{count} blocks run, {len(shown.known)} other commands looked at")


# ---- figures
# ----------------------------------------------------------------------------------------------------------


def stored_results(root):
    return sorted((root / "docs" / "results").glob("*.json"))


def check_figures(root, write=False):
    try:
        with readable(stored_results(root)):
            yield from measured.renew(root, load(stored_results(root)), write)
    except ResultsError as error:
        yield str(error)


NUMBER = r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?"
TIME_OR_RATE = re.compile(
    NUMBER + r"(?:\s*(?:-|–|to|and|or)\s*\d[\d,.]*)?\s*(?:ms|µs|us|ns|[kMGT]B/s|[GTP]FLOP/s|[GTP]FLOPS)\b"
    "|" + NUMBER + r"\s*(?:x|×|times|%)\s+(?:faster|slower|as (?:fast|slow|long)|less time|more time)\b"
    "|" + NUMBER + r"x\s+(?:over|the speed|PyTorch|eager)\b"
)
TYPED = re.compile(r"<!-- typed: *(.*?) *-->", re.DOTALL)


def blanked(text, pattern):
    """The text with every match as blanks, so that places stay."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def check_typed(documents):
    for document in documents.values():
        visible = Document(document.name, blanked(document.text, measured.BLOCK))
        for start, paragraph in visible.paragraphs():
            prose = blanked(blanked(paragraph, INLINE_CODE), measured.FIGURE)
            source, found = TYPED.search(prose), TIME_OR_RATE.search(blanked(prose, COMMENT))
            if found and not (source and source[1]):
                line = start + paragraph.count("\n", 0, found.start())
                yield (
                    f"{document.name}:{line}: {' '.join(found[0].split())!r} is typed: make it a link to its row of "
                    "docs/results, "
                    "or say where it is from (<!-- typed: reason -->)"
                )


# ---- terms
# ----------------------------------------------------------------------------------------------------------------------

GLOSSARY = "docs/attention.md"
COURSE = re.compile(r"README\.md|docs/(?:attention|\d\d-[^/]*)\.md")
TERM = re.compile(r'<a id="([^"]+)"></a>([^|]+?) *\|')
BOLD = re.compile(r"\*\*.+?\*\*", re.DOTALL)
HEADLINE = re.compile(r"^#.*", re.MULTILINE)


def any_of(entry):
    """A glossary entry's terms ("X, Xq, Xk") as they stand in sentences: in the plural too, at the start, and X in 4X."""
    words = [re.escape(term).replace(r"\ ", r"\s+") for term in entry.split(", ")]
    words += [word[0].upper() + word[1:] for word in words]
    return re.compile(r"(?<![^\W\d])(?<!-)(?:" + "|".join(words) + r")(?:s|es)?(?![\w-])")


def check_terms(root, documents):
    if root / GLOSSARY not in documents:
        return
    terms = [(anchor, any_of(entry)) for anchor, entry in TERM.findall(documents[root / GLOSSARY].text)]
    for path, document in documents.items():
        if not COURSE.fullmatch(document.name):
            continue
        text = "\n".join(Document("", blanked(document.text, measured.BLOCK)).prose)
        for unread in (COMMENT, INLINE_CODE, REFERENCE, HEADLINE):
            text = blanked(text, unread)
        explained = [(*match.span(), "") for pattern in (BOLD, TERM) for match in pattern.finditer(text)]
        for match in LINK.finditer(text):
            file, anchor = target_of(path, Link(0, "", match[2])) if not external(match[2]) else (path, "")
            if file == root / GLOSSARY and anchor:
                explained.append((*match.span(1), anchor))
            # No use are a picture's words, the name of another page, and a link's target.
            name = match[0].startswith("!") or (file.suffix == ".md" and file not in (path, root / GLOSSARY))
            begin, end = match.span(0 if name else 2)
            text = text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]
        for term, pattern in terms:
            use = pattern.search(text)
            if use and not any(begin <= use.start() < end and to in ("", term) for begin, end, to in explained):
                line = 1 + text.count("\n", 0, use.start())
                yield f'{document.name}:{line}: the first "{use[0]}": link it to the glossary, or explain it in bold'


# ---- command line
# -----------------------------------------------------------------------------------------------------


def main(arguments=None):
    parser = OneLineParser(__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=REPOSITORY, help="the repository (this one)")
    parser.add_argument("--folder", type=pathlib.Path, help="where the executables are (build)")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=CHECKS, help="(all)")
    parser.add_argument(
        "--write", action="store_true", help="fill the figures and tables from docs/results, check nothing"
    )
    parser.add_argument("--verbose", action="store_true", help="tell what each block took")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    programs = (options.folder or root / "build").resolve()
    told = print if options.verbose else lambda text: None
    if options.write:
        with readable(stored_results(root)):
            told(
                f"{len(measured.renew(root, load(stored_results(root)), write=True))} figures and lines of "
                "tables rewritten"
            )
        return 0
    try:
        documents = read_documents(root)
    except ValueError as error:
        parser.exit(1, f"{error}\n")
    if root / "README.md" not in documents:
        parser.error(f"{root}: has no README.md")
    if "commands" in options.only and not (programs / "step04").exists():
        parser.error(f"{programs}: has no step04; build first, or leave out commands with --only")
    checks = {
        "links": lambda: check_links(root, documents),
        "code": lambda: check_code(root, documents),
        "commands": lambda: check_commands(root, documents, programs, told),
        "figures": lambda: check_figures(root),
        "terms": lambda: check_terms(root, documents),
        "typed": lambda: check_typed(documents),
    }
    faults = dict.fromkeys(fault for name in options.only for fault in checks[name]())
    for fault in faults:
        print(fault)
    told(f"{len(documents)} documents, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    end_with(main)
