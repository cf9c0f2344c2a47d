"""What the Python tests share: where things are, and the exit code of a file whose tests cannot run here (ctest shows it as skipped)."""
import importlib.util
import os
import pathlib
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = os.environ.get("ATTN_LIBRARY")  # ctest sets it; else the newest in build*/
sys.path[:0] = [str(REPOSITORY / "plots"), str(REPOSITORY / "plots" / "swap")]
SKIPPED = 77


def need(*modules):
    """Ends the program as skipped when one of the modules is not installed."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        print(f"skipped: {', '.join(missing)} not installed")
        sys.exit(SKIPPED)
