#!/usr/bin/env python3
"""Prints the tables of results files: every configuration and pass, with several GPUs also a column per GPU.

    python3 plots/tables/speedup_table.py [docs/results/*.json]                 prints the tables
    python3 plots/tables/speedup_table.py --each seats/*.json                   a line per file: many machines, also with the same GPU
    python3 plots/tables/speedup_table.py shard*.json --merge FILE              makes one file of a GPU's shards

Without files: all of docs/results/. plots/measuring/measure.py (make table) makes such files, docs/results/README.md
describes them. Exit codes: 0 ok, 2 bad arguments or files."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from plots.results import CONFIGURATION, ResultsError, configuration, configuration_text, load, readable, save
from plots.script import REPOSITORY, OneLineParser, end_with, table_text
from plots.tables import result_tables

RESULTS = REPOSITORY / "docs" / "results"


def print_table(heading, lines):
    print(f"\n{heading}")
    print("\n".join(table_text(lines)))


def configurations(results):
    """Each (pass, configuration) that some GPU has, as selectors, with the method that its speedups are over."""
    for chosen in dict.fromkeys(
        (row["pass"], *configuration(row)) for result in results.values() for row in result["rows"]
    ):
        wanted = dict(zip(("pass", *CONFIGURATION), chosen))
        yield wanted, result_tables.OVER[wanted["pass"]][0][0]


def print_tables(results):
    for gpu, result in results.items():
        versions = ", ".join(
            f"{key} {value}" for key, value in result["versions"].items() if value and not key.endswith("_reason")
        )
        print(f"{result['gpu']}, {result['date']}, commit {result['commit'] or 'n/a'}: {versions}")
        for wanted, _ in configurations({gpu: result}):
            print_table(
                f"{configuration_text(wanted)}, {wanted['pass']}",
                result_tables.speedup_table(results, gpu=gpu, **wanted),
            )
        if result["versions"].get("torch") is None:
            print(f"\nPyTorch rows: n/a: {result['versions'].get('torch_reason', 'not measured')}")
        print()
    if len(results) > 1:
        for wanted, over in configurations(results):
            heading = f"{configuration_text(wanted)}, {wanted['pass']}: ms (speedup over {over})"
            print_table(heading, result_tables.times_table(results, ["gpu"], over, **wanted))


def print_class(results):
    for wanted, over in configurations(results):
        heading = f"{configuration_text(wanted)}, {wanted['pass']}: ms (speedup over {over})"
        print_table(heading, result_tables.class_table(results, over, **wanted))
    print(f"\n{len(results)} files")


def main():
    parser = OneLineParser(__doc__)
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="results files (docs/results/*.json)")
    do = parser.add_mutually_exclusive_group()
    do.add_argument("--merge", type=pathlib.Path, metavar="FILE", help="write the files of one GPU as one")
    do.add_argument("--each", action="store_true", help="print a line per file, also where several are of one GPU")
    options = parser.parse_args()
    parser.writable(options.merge)
    files = options.files or sorted(RESULTS.glob("*.json"))
    results = load(files, options.each)
    with readable(files):
        if options.merge:
            if len(results) != 1:
                raise ResultsError(f"--merge takes files of one GPU, these are of {', '.join(results) or 'none'}")
            save(next(iter(results.values())), options.merge)
        elif not results:
            raise ResultsError("no results in docs/results: `make table` on a GPU machine measures them")
        else:
            print_class(results) if options.each else print_tables(results)
    return 0


if __name__ == "__main__":
    end_with(main)
