"""What the Python tests share: where things are, and the exit code of a file whose tests cannot run here (ctest shows
it as skipped)."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = os.environ.get("ATTN_LIBRARY")  # ctest sets both; else the newest library in build*/, and build/
BUILD = pathlib.Path(os.environ.get("ATTN_STEP_FOLDER", REPOSITORY / "build"))
sys.path.insert(0, str(REPOSITORY))
SKIPPED = 77


def need(*modules):
    """Ends the program as skipped when one of the modules is not installed."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        print(f"skipped: {', '.join(missing)} not installed")
        sys.exit(SKIPPED)


def script(path, *flags, python=(), **environment):
    """(exit code, stdout, stderr) of plots/<path>; the CPU executor, whatever this machine has."""
    words = [sys.executable, *python, REPOSITORY / "plots" / path, *flags]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment}
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, encoding="utf-8", errors="replace", env=environment
    )
    return done.returncode, done.stdout, done.stderr


class InFolder(unittest.TestCase):
    """Tests with a folder of their own."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name).resolve()

    def write(self, name, value):
        """A file there: a text, or JSON."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        return path

    def program(self, name, text):
        """A shell script there that can be run."""
        self.write(name, f"#!/bin/sh\n{text}\n").chmod(0o755)


def trace_of(test, path):
    """Of a file for Perfetto, held against the rules of the Trace Event Format (Google's document of that name): the
    keys and types of each event, names for all processes and threads, and no overlap within a thread."""
    trace = json.loads(path.read_text())
    test.assertIn(trace["displayTimeUnit"], ("ms", "ns"))
    names, ends = {}, {}
    for event in trace["traceEvents"]:
        track = (event["pid"], event["tid"])
        test.assertEqual([type(event[key]) for key in ("pid", "tid", "name", "args")], [int, int, str, dict], event)
        if event["ph"] == "M":
            test.assertIn(event["name"], ("process_name", "thread_name"))
            test.assertTrue(event["args"]["name"])
            test.assertNotIn((event["name"], *track), names)
            names[(event["name"], *track)] = event["args"]["name"]
            continue
        test.assertEqual(event["ph"], "X")  # complete: it has its end in itself
        test.assertTrue(event["name"] and event["cat"])
        begin, length = (round(event[key] * 1000) for key in ("ts", "dur"))  # in the file: microseconds
        test.assertEqual(length, event["args"]["cycles"])
        test.assertGreater(length, 0)
        test.assertGreaterEqual(begin, ends.get(track, 0), f"{path.name}: {event} begins before the last one has ended")
        ends[track] = begin + length
        test.assertIn(("thread_name", *track), names)
        test.assertIn(("process_name", track[0], 0), names)
    return trace
