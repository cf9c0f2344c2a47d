"""The programs of a build and what each says of itself: `./stepNN --describe`. No script holds a list of steps.

for program in described("build"):
    print(program["id"], program["dtypes"])
"""

import concurrent.futures
import json
import pathlib
import re

from plots.script import Stop, call, last_line

CUDA_CORES, TENSOR_CORES = PRODUCTS = ("cuda-cores", "tensor-cores")  # of fp32; other types have no choice
PROGRAM = re.compile(r"step\d\d|yardstick")
CANNOT_SERVE = 3  # the exit code of a program that cannot serve this device, shape or type


def described(folder):
    """What each program of a build folder prints for --describe, with its `path`, in the order of the names. Raises
    Stop when one of them does not describe itself."""
    folder = pathlib.Path(folder).resolve()
    paths = sorted(path for path in folder.iterdir() if PROGRAM.fullmatch(path.name)) if folder.is_dir() else []
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(describe, [path for path in paths if path.is_file()]))


def describe(path):
    code, stdout, stderr = call([path, "--describe"], 60)
    try:
        return {**json.loads(stdout), "path": path}
    except ValueError:
        raise Stop(f"{path} --describe: exit {code}: {last_line(stderr)}; build it anew") from None


def methods_of(program):
    """[(name, backward)] of what a program is told of for: its backwards where it has any, since its forward is then
    there to save what they need; else its forward. A name is the program's, and its method's where it has several."""
    backwards = [method for method in program["methods"] if method["backward"]]
    several = len(program["methods"]) > 1
    return [
        (f"{program['id']} {method['name']}" if several else program["id"], method["backward"])
        for method in backwards or program["methods"]
    ]


def backward_of(programs, step, dtype):
    """(program, method) of the backward that goes with a step's forward in a dtype: its own, else the first program's
    that has one; of several methods the last."""
    for program in [*(program for program in programs if program["id"] == step), *programs]:
        methods = [method["name"] for method in program["methods"] if method["backward"]]
        if methods and dtype in program["dtypes"]:
            return program["id"], methods[-1]
    raise Stop(f"no program here has a backward in {dtype}: make steps builds them", CANNOT_SERVE)


def products_of(program, dtype):
    """The values of --product to run a dtype with; (None,) where there is no choice, () where the dtype is not
    served."""
    if dtype not in program["dtypes"]:
        return ()
    return tuple(program["products"][dtype]) if dtype == "fp32" else (None,)


def runs_on(program, capability):
    """Whether a program has kernels for a GPU of this compute capability, 90 for 9.0."""
    gpu = program["devices"]["gpu"]
    return gpu["compiled"] and gpu.get("capability_exactly", capability) == capability >= gpu.get(
        "capability_at_least", 0
    )
