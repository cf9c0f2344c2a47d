"""Text between markers in Markdown that is generated from results, so that no document holds a figure typed by hand:

    <!-- results:speedup gpu=nvidia-h200 dtype=fp16 head_dim=64 causal=no pass=forward -->
    (a table)
    <!-- /results -->
    step04 takes <!-- value:time.median_ms gpu=nvidia-h200 method=step04 dtype=fp16 head_dim=64 fmt=.2f unit=ms -->n/a<!-- /value -->

docs/results/README.md describes the words of a marker. Markers inside code (fences, backticks, four spaces) are text about markers and stay.
"""
import pathlib
import re
import shlex

import result_tables
from results import CUDA_CORES, PRODUCTS, ResultsError
from script import write_whole

MARKER = re.compile(r"<!-- (results|value):(\S+)(.*?) ?-->(.*?)<!-- /\1 -->", re.DOTALL)
CODE = re.compile(r"^(```|~~~).*?^\1[^\n]*$|^(?:    |\t)[^\n]*$|(?<!`)(`+)(?!`)[^\n]*?(?<!`)\2(?!`)", re.DOTALL | re.MULTILINE)
OPENING, CLOSING = re.compile(r"<!-- (?:results|value):"), re.compile(r"<!-- /(?:results|value) -->")
# What a marker leaves out: the headline's length, no mask, the forward, the measured sizes, fp32 on CUDA cores.
DEFAULTS = {"seqlen": 4096, "causal": False, "pass": "forward", "set": "sizes", "product": CUDA_CORES}
SELECTORS = ("gpu", "method", "product", "dtype", "batch", "heads", "seqlen", "head_dim", "causal", "pass", "set")


def typed(key, value):
    """The word of a marker as the value of a row's key."""
    if value == "any":
        return None
    if key == "causal":
        if value not in ("yes", "no"):
            raise ResultsError(f"causal={value}: yes, no or any")
        return value == "yes"
    if key == "product" and value not in PRODUCTS:
        raise ResultsError(f"product={value}: {', '.join(PRODUCTS)} or any")
    if key in ("batch", "heads", "seqlen", "head_dim"):
        if not value.isdigit():
            raise ResultsError(f"{key}={value}: a number or any")
        return int(value)
    return value


def parse(words, options):
    """(selectors, options) of a marker's words; `options` are the names that are no selectors. None selects nothing out."""
    try:
        pairs = [word.partition("=") for word in shlex.split(words)]
    except ValueError as error:
        raise ResultsError(str(error)) from error
    given, found, over = {}, {}, {}
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
            raise ResultsError(f"{key}: unknown (selectors: {', '.join(SELECTORS)}{'; options: ' + ', '.join(options) if options else ''})")
    if over:
        found["over."] = over
    return given, found


def with_defaults(given, leave_out=()):
    """The selectors of rows(): what a marker gives, and DEFAULTS for what it does not."""
    defaults = {key: value for key, value in DEFAULTS.items() if key not in leave_out}
    if (given.get("method") or "").endswith("backward"):
        defaults["pass"] = "backward"
    return {key: value for key, value in (defaults | given).items() if value is not None}


# ---- the generators: results and a marker's words to Markdown -------------------------------------------------------------


def speedup(results, words):
    return result_tables.speedup_table(results, **with_defaults(parse(words, ())[0], leave_out=("product",)))


def article(results, words):
    return result_tables.article_table(results, **with_defaults(parse(words, ())[0]))


def times(results, words):
    given, options = parse(words, ("columns", "over"))
    columns = options.get("columns", "gpu").split(",")
    allowed = [key for key in SELECTORS if key != "product"]  # which has lines
    if not set(columns) <= set(allowed):
        raise ResultsError(f"columns={options['columns']}: of {', '.join(allowed)}")
    return result_tables.times_table(results, columns, options.get("over"), **with_defaults(given, leave_out=(*columns, "product")))  # a column has all values of its key


def tiles(results, words):
    return result_tables.tiles_table(results, **with_defaults(parse(words, ())[0]))


GENERATORS = {"speedup": speedup, "times": times, "article": article, "tiles": tiles}
PROFILES = pathlib.Path("docs", "results", "profiler")


def profiler_lines(text):
    """The lines of ncu's output that a document may show: none that names a process or a path of the machine, none of ncu's warnings, no
    rule of a table."""
    return [line.rstrip() for line in text.splitlines() if not re.match(r"==(?:PROF|WARNING)==|\[\d+\] |.*Warning:|\s*-+ -+ -+\s*$", line)]


def profile(root, words):
    """A profiler's stored output, docs/results/profiler/<step>.txt."""
    step = parse(words, ("step",))[1].get("step")
    if step is None or not re.fullmatch(r"\w+", step):
        raise ResultsError("results:profile: step=step04 names the stored output")
    path = pathlib.Path(root, PROFILES, f"{step}.txt")
    if not path.is_file():
        return f"n/a: not profiled ({PROFILES / path.name} does not exist)"
    return "\n".join(["```console", *"\n".join(profiler_lines(path.read_text())).strip("\n").split("\n"), "```"])


def value(results, field, words):
    given, options = parse(words, ("over", "per", "fmt", "unit"))
    over = options.pop("over.", {})
    if "over" in options:
        over["method"] = options.pop("over")
    return result_tables.figure(results, field, over=over or None, **options, **with_defaults(given))


def generated(root, results, kind, name, words):
    """What belongs between the markers."""
    if kind == "value":
        return value(results, name, words)
    if name == "profile":
        return "\n" + profile(root, words) + "\n"
    if name not in GENERATORS:
        raise ResultsError(f"results:{name}: not one of {', '.join(GENERATORS)}, profile")
    lines = GENERATORS[name](results, words)
    return "\n" + (result_tables.NOTHING if lines is None else result_tables.markdown(lines)) + "\n"


# ---- documents ---------------------------------------------------------------------------------------------------------------


def markers(text, name):
    """The matches of MARKER outside of code. Raises ResultsError for a marker without its end, or an end without its marker."""
    code = [match.span() for match in CODE.finditer(text)]
    in_code = lambda at: any(begin <= at < end for begin, end in code)
    found = [match for match in MARKER.finditer(text) if not in_code(match.start())]
    whole = [match.span() for match in found]
    for pattern in (OPENING, CLOSING):
        used = set()
        for loose in pattern.finditer(text):
            if in_code(loose.start()):
                continue
            holder = next((span for span in whole if span[0] <= loose.start() < span[1]), None)
            if holder is None or holder in used:
                raise ResultsError(f"{name}:{line_of(text, loose.start())}: a marker without its other half")
            used.add(holder)
    return found


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def renewed(root, text, results, name):
    """(the text with all markers filled from the results, [(line number, what differs)])."""
    parts, end, differences = [], 0, []
    for match in markers(text, name):
        kind, generator, words, old = match.groups()
        where = line_of(text, match.start())
        try:
            new = generated(root, results, kind, generator, words)
        except ResultsError as error:
            raise ResultsError(f"{name}:{where}: {error}") from error
        parts += [text[end:match.start(4)], new]
        end = match.end(4)
        if new != old:
            differences += [(line_of(text, match.start(4)) + n, f"{kind}:{generator} has {was!r}, the results give {now!r}") for n, was, now in differing_lines(old, new)]
    return "".join(parts) + text[end:], differences


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
    """Fills the markers of all documents, or (without `write`) only looks; returns the differences, "file:line: what"."""
    found, changed = [], []
    for path in documents(root):
        name = str(path.relative_to(root))
        text = path.read_text()
        new, differences = renewed(root, text, results, name)
        found += [f"{name}:{line}: {what}" for line, what in differences]
        if new != text:
            changed.append((path, new))
    if write:  # after all documents have been understood
        for path, new in changed:
            write_whole(path, new)
    return found
