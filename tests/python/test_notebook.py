"""notebooks/workshop.ipynb runs from a clean state, cell by cell, and stores no outputs."""

import os
import pathlib
import subprocess
import tempfile
import unittest

from need import REPOSITORY, need

need("nbclient", "nbformat", "ipykernel")

import nbclient
import nbformat

NOTEBOOK = REPOSITORY / "notebooks/workshop.ipynb"


class Workshop(unittest.TestCase):
    def test_stores_no_outputs(self):
        for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
            self.assertFalse(cell.get("outputs"), cell.source)
            self.assertIsNone(cell.get("execution_count"), cell.source)

    def test_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            # A checkout of its own, so that the edit of a step meets nobody's.
            checkout = pathlib.Path(folder) / "attention"
            listed = subprocess.run(["git", "-C", REPOSITORY, "ls-files", "-z"], check=True, capture_output=True).stdout
            for name in filter(None, listed.decode().split("\0")):
                if (REPOSITORY / name).is_file():
                    (checkout / name).parent.mkdir(parents=True, exist_ok=True)
                    (checkout / name).write_bytes((REPOSITORY / name).read_bytes())
                    (checkout / name).chmod((REPOSITORY / name).stat().st_mode)
            notebook = nbformat.read(NOTEBOOK, as_version=4)
            light = "-DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1"
            os.environ.update(CMAKE_FLAGS=f"-DATTN_NVCC=none -DBUILD_TESTING=OFF {light}", CUDA_VISIBLE_DEVICES="")
            step = next((checkout / "steps").glob("step04_*.cu"))
            before = step.read_text()
            nbclient.NotebookClient(
                notebook, timeout=600, resources={"metadata": {"path": str(checkout / "notebooks")}}
            ).execute()
            said = "".join(out.get("text", "") for cell in notebook.cells for out in cell.get("outputs", []))
            self.assertIn("FAIL", said)
            self.assertEqual(step.read_text(), before, "the first edit was not undone")
            self.assertTrue((checkout / "film_step04.html").exists())


if __name__ == "__main__":
    unittest.main()
