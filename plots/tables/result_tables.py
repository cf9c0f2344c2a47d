"""The tables and single figures that are made from results: as cells, as text, as Markdown. No figure in here is
anything but a row's or the quotient of two rows'. Needs the standard library only."""

import math
import statistics

from plots.results import CONFIGURATION, ResultsError, at, beside, name_of, on_product, one_row, one_sweep, place, rows
from plots.results import tile_product
from plots.script import bytes_text

# What a row's speedup is quoted over: (method, heading). "over step01" stands beside the others, never alone.
OVER = {
    "forward": (
        ("step02", "over step02"),
        ("yardstick", "over cuBLAS"),
        ("eager", "over eager"),
        ("step01", "over step01"),
    ),
    "backward": (("step05 standard backward", "over standard"), ("eager", "over eager")),
    "both": (("eager", "over eager"),),
}
NOTHING = "n/a: not measured (`make table` measures it)"
BYTES_PER_ELEMENT = {"fp32": 4, "fp16": 2, "bf16": 2}


# ---- cells


def label(row):
    """ "step04 online softmax", "step05 recompute backward on tensor cores", "PyTorch SDPA flash"."""
    if not row["ours"]:
        return f"PyTorch {row['method']}"
    titled = (
        row["title"] not in (None, "", row["method"]) and " " not in row["method"]
    )  # one of several has its own name
    return on_product(f"{row['method']} {row['title']}" if titled else row["method"], row["product"])


def milliseconds(value):
    return "n/a" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def size(count, at_least=False):
    return "n/a" if count is None else (">= " if at_least else "") + bytes_text(count)


def speedup(row, base):
    """How many times faster the row is than `base`; None where one of them has no time."""
    return None if base is None or row["not_run"] is not None else base["time"]["median_ms"] / row["time"]["median_ms"]


def times(ratio):
    return "n/a" if ratio is None else f"{ratio:.2f}x"


def error(row):
    value = row["error"] and row["error"]["relative_l2"]
    return "n/a" if value is None else f"{value:.1e}"


def share(row):
    value = row["error"] and row["error"]["worst_share"]
    return "n/a" if value is None else f"{value:.2f}"


# ---- tables: lists of lines of cells, the heading first. A line of two cells is a row that did not run, a line of one
# cell a note


def speedup_table(results, **wanted):
    """All methods of one configuration and pass on one GPU. In fp32 with the share of the allowance: PyTorch's rows
    have it there alone."""
    found = sorted(rows(results, **wanted), key=place)
    if len({(row["gpu"], row["pass"], *(row[key] for key in CONFIGURATION)) for row in found}) > 1:
        raise ResultsError(
            "speedup: several configurations fit; gpu, dtype, head_dim, seqlen, causal and pass choose one"
        )
    if not found:
        return None
    bases = [(beside(results, found[0], method), heading) for method, heading in OVER[found[0]["pass"]]]
    bases = [(base, heading) for base, heading in bases if base is not None]
    step01 = [entry for entry in bases if entry[1] == "over step01"] if len(bases) > 1 else []
    over = lambda entries: [(heading, lambda row, base=base: times(speedup(row, base))) for base, heading in entries]
    number = lambda key, form: lambda row: "n/a" if row[key] is None else format(row[key], form)
    hbm = [
        ("HBM expected", lambda row: size(row["hbm_expected_bytes"], row["hbm_at_least"])),
        ("HBM measured", lambda row: size(row["hbm_measured_bytes"])),
    ]
    columns = [
        ("method", label),
        ("ms", lambda row: milliseconds(row["time"]["median_ms"])),
        *over(entry for entry in bases if entry[1] != "over step01"),
        ("TFLOP/s", number("tflops", ".3g")),
        *(hbm if any(row["hbm_expected_bytes"] for row in found) else []),
        ("extra memory", lambda row: size(row["extra_bytes"]) + (f" ({row['grows']})" if row["grows"] else "")),
        ("relative L2", error),
        *([("of allowance", share)] if found[0]["dtype"] == "fp32" else []),
        ("kernels", number("kernel_count", "d")),
        *over(step01),  # beside the others, never alone
    ]
    line = lambda row: [label(row), f"n/a: {row['not_run']}"] if row["not_run"] else [cell(row) for _, cell in columns]
    return [[heading for heading, _ in columns], *map(line, found)]


def times_table(results, columns, over=None, **wanted):
    """Medians in ms, a line per method (on tensor cores one of its own) and pass, a column per value of `columns` (keys
    of a row); with `over` the speedup over that method too."""
    found = rows(results, **wanted)
    if not found:
        return None
    head_of = lambda row: tuple(row[key] for key in columns)
    in_order = lambda head: [
        list(BYTES_PER_ELEMENT).index(value) if key == "dtype" else value for key, value in zip(columns, head)
    ]
    heads = sorted({head_of(row) for row in found}, key=in_order)
    samples = {
        (name_of(row), row["pass"]): row
        for row in sorted(found, key=lambda row: (row["pass"] == "backward", place(row)))
    }
    several = len({which for _, which in samples}) > 1
    lines = [["ms", *(column_heading(columns, dict(zip(columns, head))) for head in heads)]]
    for (method, which), sample in samples.items():
        line = []
        for head in heads:
            fitting = [row for row in found if (name_of(row), row["pass"]) == (method, which) and head_of(row) == head]
            if len(fitting) > 1:
                raise ResultsError(
                    f"times: several rows fit {method} {which} at {' '.join(map(str, head))}; more selectors or "
                    "columns choose one"
                )
            line.append(times_cell(results, fitting[0] if fitting else None, over))
        lines.append([label(sample) + (f" {which}" if several and which not in label(sample) else ""), *line])
    # {method and pass: {reason: columns}}, then {(reason, columns): methods and passes}: a reason is told once
    why = {}
    for row in sorted(found, key=lambda row: in_order(head_of(row))):
        if row["not_run"] is not None:
            places = why.setdefault((name_of(row), row["pass"]), {}).setdefault(row["not_run"], [])
            places.append(column_heading(columns, row))
    told = {}
    for (method, which), sample in samples.items():
        for reason, places in why.get((method, which), {}).items():
            told.setdefault((reason, ", ".join(places)), []).append(
                label(sample) + ("" if which in method else f" {which}")
            )
    return lines + [[f"{', '.join(names)} ({places}): {reason}"] for (reason, places), names in told.items()]


def column_heading(columns, row):
    """ "fp16 d 64"."""
    letter = {"seqlen": "N ", "head_dim": "d ", "batch": "B ", "heads": "H "}
    return " ".join(
        ("causal" if row[key] else "not causal") if key == "causal" else letter.get(key, "") + str(row[key])
        for key in columns
    )


def times_cell(results, row, over):
    if row is None or row["not_run"] is not None:
        return "n/a"
    base = beside(results, row, over) if over else None
    ratio = None if base is row else speedup(row, base)
    return milliseconds(row["time"]["median_ms"]) + ("" if ratio is None else f" ({ratio:.2f}x)")


def class_table(results, over, **wanted):
    """A line per results file, a column per method: medians in ms, and the speedup over `over` of the same file."""
    methods = sorted({name_of(row): row for row in rows(results, **wanted)}.values(), key=place)
    lines = [["ms", "GPU", *(name_of(row) for row in methods)]]
    for name, result in results.items():
        of_file = [
            one_row(results, **{**wanted, "gpu": name, "method": method["method"], "product": method["product"]})
            for method in methods
        ]
        if any(row is not None for row in of_file):
            lines.append([name, result["gpu"], *(times_cell(results, row, over) for row in of_file)])
    return lines


def exponent(points):
    """The least-squares slope of log(bytes) against log(N): the k of N^k. None with fewer than two N."""
    points = [(math.log(n), math.log(count)) for n, count in points if count]
    if len({x for x, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points)).slope


def article_table(results, **wanted):
    """The article's four lines, naive against flash: kernels, where the N x N matrix lies, memory against N, exactness.
    From the rows of one configuration, and from the scaling set for the exponent."""
    pair = lambda kind, *methods: [(kind, one_row(results, method=method, **wanted)) for method in methods]
    found = pair("naive", "step02", "eager") + pair("flash", "step04", "SDPA flash")
    found = [(kind, row) for kind, row in found if row is not None and row["not_run"] is None]
    if not found:
        return None
    line = lambda what, cell: [what, *(cell(row) for _, row in found)]
    return [
        ["", *(f"{kind}: {label(row)}" for kind, row in found)],
        line("kernels", lambda row: "n/a" if row["kernel_count"] is None else str(row["kernel_count"])),
        line("N × N matrix", matrix_place),
        line("memory beyond Q, K, V, O", lambda row: f"{size(row['extra_bytes'])}, {growth(results, row)}"),
        line("exactness (relative L2 against float64)", lambda row: error(row) + ", PASS" * (row["verified"] or False)),
    ]


def matrix_place(row):
    """Told by the memory that the run asked for: an N x N matrix either fits into it or does not exist as a whole."""
    matrix = row["batch"] * row["heads"] * row["seqlen"] ** 2 * BYTES_PER_ELEMENT[row["dtype"]]
    held = row["extra_bytes"] / matrix
    if held < 1:
        return f"never whole: the extra memory is {held:.2%} of one"
    moved = row["by_tensor"] and sum(row["by_tensor"].get(tensor, 0) for tensor in ("S", "P"))
    return f"in HBM: {held:.1f} of them per head" + (f", {bytes_text(moved)} moved" if moved else "")


def growth(results, row):
    points = [
        (other["seqlen"], other["extra_bytes"])
        for other in rows(results, gpu=row["gpu"], method=row["method"], product=row["product"], set="scaling")
        if other["not_run"] is None
    ]
    slope = exponent(points)
    return (
        "exponent n/a: no scaling rows"
        if slope is None
        else f"N^{slope:.2f} fitted over N {min(points)[0]} to {max(points)[0]}"
    )


# ---- text


def markdown(lines):
    """A table, and under it as a list why rows did not run."""
    columns = len(lines[0])
    body = [line if len(line) == columns else [line[0]] + ["n/a"] * (columns - 1) for line in lines if len(line) > 1]
    notes = [
        line[0] if len(line) == 1 else f"{line[0]}: {line[1].removeprefix('n/a: ')}"
        for line in lines
        if len(line) < columns
    ]
    bar = lambda line: "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
    table = "\n".join([bar(body[0]), "|" + "---|" + "---:|" * (columns - 1), *map(bar, body[1:])])
    return table + ("\n\nn/a:\n\n" + "\n".join(f"- {note}" for note in notes) if notes else "")


# ---- a single figure


UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "GB/s": 1e9, "TB/s": 1e12, "TFLOP/s": 1e12} | {
    "ms": 1,
    "us": 1e-3,
    "s": 1e3,
    "%": 0.01,
    "x": 1,
}  # of times in ms


def value_of(results, field, wanted):
    """The value of a field of the row that fits, of its GPU (`device.`, `versions.`, ...), of its tile sweep (`sweep.`)
    or of the model (`model.`). None where it is missing."""
    top = field.split(".")[0]
    if top in ("device", "versions", "commit", "date", "sweep"):
        result = results.get(wanted.get("gpu"))
        if result is None:
            return None
        if top == "sweep":
            sweep = one_sweep(result, **wanted)
            return None if sweep is None else at({"sweep": sweep}, field)
        if field.startswith("device.tile_products.") and result.get("device"):
            if not {"dtype", "head_dim"} <= wanted.keys():
                raise ResultsError(f"{field}: dtype and head_dim choose the product")
            result = {
                "device": {
                    "tile_products": tile_product(
                        result["device"], wanted["dtype"], wanted["head_dim"], wanted.get("product")
                    )
                }
            }
        return at(result, field)
    row = one_row(results, **wanted)
    if row is None or row["not_run"] is not None:
        return None
    return at({"model": model(results[row["gpu"]], row)}, field) if top == "model" else at(row, field)


def model(result, row):
    """The two terms of the predicted time, in ms: executed FLOPs / R and expected HBM bytes / BW, with step00's R and
    BW. None without them."""
    product = (
        tile_product(result["device"], row["dtype"], row["head_dim"], row["product"]) if result.get("device") else None
    )
    if product is None or row["flops"] is None or row["flops"]["executed"] is None or row["hbm_expected_bytes"] is None:
        return None
    return {
        "flops_ms": 1e3 * row["flops"]["executed"] / product["flops_per_second"],
        "bytes_ms": 1e3 * row["hbm_expected_bytes"] / result["device"]["bytes_per_second"]["hbm_copy"],
    }


def figure(results, field, fmt=".3g", unit=None, over=None, per=None, **wanted):
    """A value as text. `over`: selectors of another row, whose value is divided by this one's (a time's speedup, a
    saving of bytes); `per`: another field, by which this one's is divided. "n/a" where a row or a value is missing."""
    value = value_of(results, field, wanted)
    if isinstance(value, str):
        return value
    if over is not None:
        base = value_of(results, field, {**wanted, **over})
        value = None if not value or base is None else base / value
    elif per is not None:
        base = None if value is None else value_of(results, per, wanted)
        value = None if not base else value / base
    return formatted(value, fmt, unit)


def formatted(value, fmt, unit):
    if value is None:
        return "n/a"
    if unit is not None and unit not in UNITS:
        raise ResultsError(f"unit={unit}: not one of {', '.join(UNITS)}")
    try:
        number = format(value / UNITS[unit] if unit else value, fmt)
    except (ValueError, TypeError) as error:
        raise ResultsError(f"fmt={fmt}: {error}") from error
    return number if unit is None else number + ("" if unit in ("%", "x") else " ") + unit
