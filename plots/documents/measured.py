"""What documents take from docs/results, so that no measured figure in them is typed by hand. Two forms:

    <!-- results:speedup gpu=nvidia-h200 dtype=fp16 head_dim=64 -->
    (a table, generated whole)
    <!-- /results -->

    step04 takes [2.01 ms][1].                 a figure in prose: a link whose definition, at the page's end, chooses its row

    [1]: results/nvidia-h200.json "time.median_ms method=step04 dtype=fp16 head_dim=64 fmt=.2f unit=ms"

docs/results/README.md describes the words. What stands in code (fences, backticks, four spaces) is text about these
forms and stays."""

import pathlib
import re
import shlex

from plots.programs import CUDA_CORES, PRODUCTS
from plots.results import ResultsError
from plots.script import read_text, write_whole
from plots.tables import result_tables

CODE = re.compile(
    r"^(```|~~~).*?^\1[^\n]*$|^(?:    |\t)[^\n]*$|(?<!`)(`+)(?!`)[^\n]*?(?<!`)\2(?!`)", re.DOTALL | re.MULTILINE
)
BLOCK = re.compile(r"<!-- results:(\S+)(.*?) ?-->(.*?)<!-- /results -->", re.DOTALL)
HALF = re.compile(r"<!-- /?results\b")
FIGURE = re.compile(r"\[([^\[\]]*)\]\[([\w.-]+)\]")
DEFINITION = re.compile(r"^\[([\w.-]+)\]: \S*?results/([\w.-]+)\.json \"([^\"]*)\"$", re.MULTILINE)
# What a selector leaves out: the headline's length, no mask, the forward, the measured sizes, fp32 on CUDA cores.
DEFAULTS = {"seqlen": 4096, "causal": False, "pass": "forward", "set": "sizes", "product": CUDA_CORES}
SELECTORS = ("gpu", "method", "product", "dtype", "batch", "heads", "seqlen", "head_dim", "causal", "pass", "set")


# ---- words
# ------------------------------------------------------------------------------------------------------------


def typed(key, value):
    """The word of a selector as the value of a row's key."""
    choices = {"causal": ("yes", "no"), "product": PRODUCTS}.get(key)
    if value == "any":
        return None
    if choices and value not in choices:
        raise ResultsError(f"{key}={value}: {', '.join(choices)} or any")
    if key in ("batch", "heads", "seqlen", "head_dim"):
        if not value.isdigit():
            raise ResultsError(f"{key}={value}: a number or any")
        return int(value)
    return value == "yes" if key == "causal" else value


def parse(words, options):
    """(selectors, options) of key=value words; `options` are the names that are no selectors."""
    given, found, over = {}, {}, {}
    try:
        pairs = [word.partition("=") for word in shlex.split(words)]
    except ValueError as error:
        raise ResultsError(str(error)) from error
    for key, equals, value in pairs:
        if not equals:
            raise ResultsError(f"{key}: is not key=value")
        if key in SELECTORS:
            given[key] = typed(key, value)
        elif key in options:
            found[key] = value
        elif "over" in options and key.startswith("over.") and key[5:] in SELECTORS:
            over[key[5:]] = typed(key[5:], value)
        else:
            raise ResultsError(f"{key}: unknown; there are {', '.join((*SELECTORS, *options))}")
    return given, found | ({"over.": over} if over else {})


def with_defaults(given, leave_out=()):
    """The selectors of rows(): what is given, and DEFAULTS for what is not; None selects nothing out."""
    defaults = {key: value for key, value in DEFAULTS.items() if key not in leave_out}
    if (given.get("method") or "").endswith("backward"):
        defaults["pass"] = "backward"
    return {key: value for key, value in (defaults | given).items() if value is not None}


# ---- what belongs there
# -----------------------------------------------------------------------------------------------


def times(results, words):
    given, options = parse(words, ("columns", "over"))
    columns = options.get("columns", "gpu").split(",")
    allowed = [key for key in SELECTORS if key != "product"]  # which has lines
    if not set(columns) <= set(allowed):
        raise ResultsError(f"columns={options['columns']}: of {', '.join(allowed)}")
    wanted = with_defaults(given, leave_out=(*columns, "product"))  # a column has all values of its key
    return result_tables.times_table(results, columns, options.get("over"), **wanted)


def plain(table, leave_out=()):
    return lambda results, words: table(results, **with_defaults(parse(words, ())[0], leave_out))


TABLES = {
    "speedup": plain(result_tables.speedup_table, leave_out=("product",)),
    "times": times,
    "article": plain(result_tables.article_table),
}


def block(results, name, words):
    """What belongs between the markers."""
    if name not in TABLES:
        raise ResultsError(f"results:{name}: not one of {', '.join(TABLES)}")
    lines = TABLES[name](results, words)
    return f"\n{result_tables.NOTHING if lines is None else result_tables.markdown(lines)}\n"


def figure(results, gpu, words):
    """One figure as text: the name of a field, then its selectors."""
    field, _, rest = words.partition(" ")
    given, options = parse(rest, ("over", "per", "fmt", "unit"))
    over = options.pop("over.", {})
    if "over" in options:
        over["method"] = options.pop("over")
    return result_tables.figure(results, field, over=over or None, **options, **with_defaults({"gpu": gpu} | given))


# ---- documents
# --------------------------------------------------------------------------------------------------------


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def outside_code(pattern, text):
    code = [match.span() for match in CODE.finditer(text)]
    return [m for m in pattern.finditer(text) if not any(begin <= m.start() < end for begin, end in code)]


def places(text, results):
    """(begin, end, what stands there, what belongs there) of all blocks and figures. Raises ResultsError, its line
    number in front, for a marker without its other half and for words that choose nothing."""

    def generated(at, what, *arguments):
        try:
            return what(*arguments)
        except ResultsError as error:
            raise ResultsError(f"{line_of(text, at)}: {error}") from error

    blocks = outside_code(BLOCK, text)
    for half in outside_code(HALF, text):
        if sum(half.start() in (match.start(), match.end(3)) for match in blocks) != 1:
            raise ResultsError(f"{line_of(text, half.start())}: a marker without its other half")
    for match in blocks:
        yield *match.span(3), match[3], generated(match.start(), block, results, match[1], match[2])
    definitions = {match[1]: match for match in outside_code(DEFINITION, text)}
    used = set()
    for match in outside_code(FIGURE, text):
        if defined := definitions.get(match[2]):
            used.add(match[2])
            now = generated(defined.start(), figure, results, defined[2], defined[3])
            if match[1].split() != now.split():  # "2.01 ms" may stand on two lines
                yield *match.span(1), match[1], now
    for label in definitions.keys() - used:
        raise ResultsError(
            f"{line_of(text, definitions[label].start())}: [{label}]: no figure of this page refers to it"
        )


def differing_lines(old, new):
    old, new = old.split("\n"), new.split("\n")
    for n in range(max(len(old), len(new))):
        was, now = (lines[n] if n < len(lines) else "" for lines in (old, new))
        if was != now:
            yield n, was, now


def documents(root):
    """README.md and all of docs/."""
    root = pathlib.Path(root)
    return [path for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))] if path.is_file()]


def renew(root, results, write):
    """Fills all documents, or (without `write`) only looks; returns the differences, "file:line: what"."""
    found, changed = [], []
    for path in documents(root):
        name, text = str(path.relative_to(root)), read_text(path)
        new, end = [], 0
        try:
            for begin, after, old, now in sorted(places(text, results)):
                new += [text[end:begin], now]
                end = after
                for n, was, becomes in differing_lines(old, now):
                    found.append(f"{name}:{line_of(text, begin) + n}: has {was!r}, the results give {becomes!r}")
        except ResultsError as error:
            raise ResultsError(f"{name}:{error}") from error
        new = "".join(new) + text[end:]
        if new != text:
            changed.append((path, new))
    if write:  # after all documents have been understood
        for path, new in changed:
            write_whole(path, new)
    return found
