"""tests/mutants/gpu_barriers.py on a program that stands for one with mistakes in it: what hangs, is wrong, right, not
made, and what happens where a program fails without a mistake."""

from need import REPOSITORY

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = REPOSITORY / "tests" / "mutants" / "gpu_barriers.py"
PROGRAM = """#!/bin/sh
case "$*" in *"--head-dim 63"*) exit 3;; esac
mistake=$ATTN_LEAVE_OUT_BARRIER$ATTN_OFF_BY_ONE
case $mistake in ?*) [ $mistake = a:5 ] || echo "left out: the barrier at $mistake" >&2;; esac
case $mistake in
  a:1) exec sleep 60;;
  a:2) echo "o is wrong" >&2; exit 1;;
  a:3) echo "CUDA error 1" >&2; exit 4;;
  a:4+1) case "$*" in *causal*) exit 1;; esac;;
esac
exit ${FAILS-0}
"""


class GpuBarriers(unittest.TestCase):
    def run_all(self, **environment):
        """(exit code, stdout and stderr, {value: what the GPU showed})."""
        tries = [
            {"variable": "ATTN_OFF_BY_ONE" if "+" in value else "ATTN_LEAVE_OUT_BARRIER", "value": value}
            for value in ("a:1", "a:2", "a:3", "a:4+1", "a:5", "a:6")
        ]
        compiled_in = {"program": "step42-a-7", "ptxas": ["C7517"]}
        tries.append({"variable": "ATTN_LEAVE_OUT_BARRIER", "value": "a:7", **compiled_in})
        runs = {"step": "step42", "line": "wait();", "executor": "exit 1  why", "harmless": None}
        runs["runs"] = [["--head-dim", "63"], [], ["--causal"]]
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for program in ("step42", "step42-a-7"):
                (folder / program).write_text(PROGRAM, encoding="utf-8")
                (folder / program).chmod(0o755)
            (folder / "tries.json").write_text(json.dumps([{**runs, **one} for one in tries]), encoding="utf-8")
            words = [sys.executable, SCRIPT, "run", folder, "--json", folder / "out.json", "--limit", "1"]
            done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environment})
            results = folder / "out.json"
            found = json.loads(results.read_text(encoding="utf-8")) if results.exists() else []
        return done.returncode, done.stdout + done.stderr, {one["value"]: one["gpu"] for one in found}

    def test_outcomes(self):
        code, said, found = self.run_all()
        self.assertEqual(code, 0, said)
        self.assertEqual(
            found,
            {
                "a:1": "hang",
                "a:2": "wrong",
                "a:3": "error",
                "a:4+1": "wrong",
                "a:5": "not made",
                "a:6": "right",
                "a:7": "right",
            },
        )
        self.assertIn("o is wrong", said)
        self.assertIn("step42: 2 wrong", said)

    def test_table(self):
        one = {"step": "step42", "variable": "ATTN_LEAVE_OUT_BARRIER", "harmless": None}
        results = [
            {**one, "value": "a.h:1", "line": "full.wait(0);  // why", "gpu": "hang"}
            | {"executor": "exit 1  k: block 0, thread 0, a.h:3: a tile (SRAM byte 1) is read at b.h:4 < c.cu:5, ..."},
            {**one, "value": "a.h:2", "line": "wait_products<0>();", "gpu": "right", "ptxas": ["C7517"]}
            | {"executor": "SURVIVES", "harmless": "for once"},
            {**one, "value": "a.h:1+1", "variable": "ATTN_OFF_BY_ONE", "line": "full.wait(0);", "gpu": "not run"}
            | {"executor": "exit 1  k: block 0, thread 0, a.h:3: deadlock, and so on"},
        ]
        with tempfile.TemporaryDirectory() as name:
            outcomes = pathlib.Path(name) / "out.json"
            outcomes.write_text(json.dumps(results), encoding="utf-8")
            words = [sys.executable, SCRIPT, "table", outcomes]
            said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        for line in (
            "| no wait at a barrier, or a wait for the other parity | 1 | 1 |  |  |  |",
            "| all | 2 | 1 | 0 | 0 | 1 |",
            "| a.h:1 `full.wait(0)` | left out | a tile is read, ... | hangs |",
            "| a.h:2 `wait_products<0>()` | left out | nothing: for once | right, ptxas puts one in |",
            "| a.h:1 `full.wait(0)` | the other parity | deadlock | not run |",
        ):
            self.assertIn(f"\n{line}\n", said)

    def test_a_program_that_fails(self):
        code, said, found = self.run_all(FAILS="1")
        self.assertEqual((code, found), (1, {}))
        self.assertIn("fails without a mistake", said)

    def test_no_gpu(self):
        code, said, found = self.run_all(FAILS="3")
        self.assertEqual((code, found), (1, {}))
        self.assertIn("step42: refuses all", said)


if __name__ == "__main__":
    unittest.main()
