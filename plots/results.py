"""The results files, docs/results/<gpu>.json: reading, merging, selecting, writing. docs/results/README.md describes
the format.

    results = load(["docs/results/nvidia-h200.json"])
    for row in rows(results, dtype="fp16", head_dim=64, causal=False, set="sizes", **{"pass": "forward"}):
        print(row["gpu"], row["method"], row["seqlen"], row["time"] and row["time"]["median_ms"])

A row read here carries two keys beside those of its file: `gpu`, the file's GPU in lower case with dashes
(nvidia-h200), and `set`, which problem it belongs to (set_of()). Needs the standard library only."""

import contextlib
import json
import pathlib

from plots.programs import CUDA_CORES, PRODUCTS, TENSOR_CORES
from plots.script import Stop, call, read_text, write_whole

SCHEMA = "attention-results-2"
CONFIGURATION = ("dtype", "batch", "heads", "seqlen", "head_dim", "causal")
READ_HERE = ("gpu", "set")  # keys that load() adds
MEASURED = (
    "time predicted_ms tflops flops hbm_expected_bytes hbm_at_least hbm_measured_bytes requested_expected_bytes "
    "requested_measured_bytes l2_to_sm_measured_bytes spill_bytes by_tensor extra_bytes grows error kernels "
    "kernel_count"
).split()


class ResultsError(Stop):
    """A file that is not usable, or a request that fits no row; one line."""


@contextlib.contextmanager
def readable(paths):
    """For what works on results: a file with the right schema and something else inside ends in a ResultsError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        told, names = f"{type(error).__name__}: {error}".replace("\n", " "), ", ".join(map(str, paths))
        raise ResultsError(f"{names}: not as docs/results/README.md describes it ({told})") from error


def slug(gpu):
    """ "NVIDIA H200" -> "nvidia-h200"."""
    return gpu.lower().replace(" ", "-")


def batch_of(seqlen):
    """The batch of the measured sizes: 4 up to 4096 tokens, then 1, so that the work of a size stays in seconds."""
    return 4 if seqlen <= 4096 else 1


def heads_of(head_dim):
    """The heads of the measured sizes: a model 2048 wide."""
    return max(1, 2048 // head_dim)


def set_of(row):
    """ "sizes": the measured sizes; "scaling": one batch of 16 heads in fp16 at d 64, time and memory against N; else
    "other"."""
    if row["heads"] == heads_of(row["head_dim"]) and row["batch"] == batch_of(row["seqlen"]):
        return "sizes"
    scaling = (row["batch"], row["heads"], row["head_dim"], row["dtype"], row["causal"]) == (1, 16, 64, "fp16", False)
    return "scaling" if scaling else "other"


def configuration(row):
    return tuple(row[key] for key in CONFIGURATION)


def empty_row(method, title, ours, which, product, problem):
    """A row with nothing measured: what was adds to it, what did not run says why under `not_run`."""
    row = {"method": method, "title": title, "ours": ours, "pass": which, "product": product, **problem}
    state = {"tile": None, "not_run": None, "emulated": False, "verified": None, "verdict": None}
    return row | state | dict.fromkeys(MEASURED)


def row_key(row):
    """What makes a row one of a kind on its GPU."""
    return (row["method"], row["pass"], row["product"], *configuration(row))


def on_product(name, product):
    """A name as it is told of fp32 on either product: "step04", "step04 on tensor cores"."""
    return name + (" on tensor cores" if product == TENSOR_CORES else "")


def name_of(row):
    """A method's name among those of its configuration."""
    return on_product(row["method"], row["product"])


def place(row):
    """What rows of a configuration are sorted by: the steps by number, on tensor cores after, the row with cuBLAS,
    PyTorch; what is equal stays in the file's order."""
    step = row["method"].split()[0]
    kind = 0 if step.startswith("step") else 1 if row["ours"] else 2
    return kind, row["product"] == TENSOR_CORES, step if row["ours"] else ""


def configuration_text(row):
    """ "fp16, B 4, H 32, N 4096, d 64, causal"."""
    sizes = f"B {row['batch']}, H {row['heads']}, N {row['seqlen']}, d {row['head_dim']}"
    return f"{row['dtype']}, {sizes}{', causal' if row['causal'] else ''}"


def driver_version():
    """The GPU driver's version, None where nvidia-smi does not tell."""
    try:
        code, stdout, _ = call(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"], 20)
    except OSError:
        return None
    return stdout.strip() if code == 0 else None


# ---- reading


def read(path):
    """One file's object, checked: its schema, and every row that has figures is a GPU's and was verified."""
    try:
        result = json.loads(read_text(path))
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        raise ResultsError(f"{path}: its schema is not {SCHEMA}")
    missing = [key for key in ("gpu", "date", "commit", "versions", "rows", "sweeps") if key not in result]
    if missing:
        raise ResultsError(f"{path}: lacks {', '.join(missing)}")
    with readable([path]):
        check_rows(path, result["rows"])
    return result


def place_text(path, row):
    return f"{path}: {name_of(row)} {row['pass']} ({configuration_text(row)})"


def check_rows(path, rows_of_file):
    known = set()
    keys = (*CONFIGURATION, "method", "pass", "product", "ours", "not_run", "emulated", "verified", "time")
    for row in rows_of_file:
        lacking = [key for key in keys if key not in row]
        if lacking:
            raise ResultsError(f"{path}: {row.get('method')} {row.get('pass')}: a row lacks {', '.join(lacking)}")
        where = place_text(path, row)
        if (row["product"] in PRODUCTS) != (row["ours"] and row["dtype"] == "fp32"):
            rule = f"our rows in fp32 have {' or '.join(PRODUCTS)}, others null"
            raise ResultsError(f"{where}: product {row['product']}; {rule}")
        if row["emulated"]:
            raise ResultsError(f"{where}: an emulated row; a CPU's time is no GPU's")
        if row["not_run"] is None and row["ours"] and row["verified"] is not True:
            raise ResultsError(f"{where}: its result was not verified")
        if row_key(row) in known:
            raise ResultsError(f"{where}: the row is in the file twice")
        known.add(row_key(row))


def load(paths, each=False):
    """{gpu: object} of the files, one entry per GPU; several files of a GPU (shards) become one. With `each` every file
    is an entry of its own, under its name: many machines with the same GPU. Raises ResultsError."""
    merged = {}
    for path in paths:
        result = read(path)
        gpu = pathlib.Path(path).stem if each else slug(result["gpu"])
        if each and gpu in merged:
            raise ResultsError(f"{path}: another file is called {gpu} too")
        with readable([path]):
            for row in result["rows"]:
                row["gpu"], row["set"] = gpu, set_of(row)
        merged[gpu] = merge(merged[gpu], result, path) if gpu in merged else result
    return merged


def merge(first, second, path):
    """Two objects of one GPU as one; `path`, the second's, is for the error. The same row may not come from two commits
    or twice."""
    if first["commit"] != second["commit"]:
        others = f"other files of {first['gpu']} are of commit {first['commit']}"
        raise ResultsError(f"{path}: rows of commit {second['commit']}, {others}: one GPU, one commit")
    for key, version in first["versions"].items():
        other = second["versions"].get(key)
        if None not in (version, other) and version != other and not key.endswith("_reason"):
            raise ResultsError(f"{path}: measured with {key} {other}, other files of {first['gpu']} with {version}")
    known = {row_key(row) for row in first["rows"]}
    for row in second["rows"]:
        if row_key(row) in known:
            raise ResultsError(f"{place_text(path, row)} is in another file of {first['gpu']} too")
    fuller = first if first.get("device") else second
    device = {key: fuller[key] for key in ("device", "device_reason") if key in fuller}
    return {
        **first,
        **device,
        "date": max(first["date"], second["date"]),
        "versions": joined_versions(first["versions"], second["versions"]),
        "rows": first["rows"] + second["rows"],
        "sweeps": first["sweeps"] + second["sweeps"],
    }


def joined_versions(first, second):
    """A version that one side alone knows (a shard without PyTorch) counts for both."""
    known = {key for versions in (first, second) for key, value in versions.items() if value is not None}
    of_reason = lambda key: key.removesuffix("_reason") in known and key.endswith("_reason")
    joined = second | {key: value for key, value in first.items() if value is not None or key not in known}
    return {key: value for key, value in joined.items() if not of_reason(key)}


# ---- selecting


def rows(results, **wanted):
    """The rows of all GPUs whose keys have the wanted values, in the files' order: rows(results, method="step04",
    seqlen=4096). Rows that have no choice of product fit any."""
    fits = lambda row, key, value: row.get(key) == value or (key == "product" and row["product"] is None)
    return [
        row
        for result in results.values()
        for row in result["rows"]
        if all(fits(row, key, value) for key, value in wanted.items())
    ]


def words(wanted):
    return " ".join(f"{key}={value}" for key, value in wanted.items())


def one_row(results, **wanted):
    """The one row that fits, None when there is none. Raises ResultsError when several do."""
    found = rows(results, **wanted)
    if len(found) > 1:
        raise ResultsError(f"{len(found)} rows fit {words(wanted)}: say more")
    return found[0] if found else None


def beside(results, row, method):
    """The row of another method at the same configuration, pass and GPU, on CUDA cores where there is a choice: the
    base of speedups. None where it is missing or did not run."""
    same = {key: row[key] for key in ("gpu", "pass", *CONFIGURATION)}
    other = one_row(results, method=method, product=CUDA_CORES, **same)
    return None if other is None or other["not_run"] is not None else other


def at(value, path):
    """The value at a dotted path, "time.median_ms" or "kernels.dK_dV.time_ms" (entries of a list by their name, with _
    for a space, or by their number); None where something on the way is null. Raises ResultsError for a name that is
    not there."""
    for name in path.split("."):
        if value is None:
            return None
        if isinstance(value, list):
            value = {str(n): entry for n, entry in enumerate(value)} | {
                entry["name"].replace(" ", "_"): entry for entry in value if isinstance(entry, dict) and "name" in entry
            }
        if not isinstance(value, dict) or name not in value:
            raise ResultsError(f"no field {path}")
        value = value[name]
    return value


def tile_product(device, dtype, head_dim, product=None):
    """What step00 measured of the tile product of a dtype and head_dim: R and R / BW. None where it did not."""
    split = (dtype, product) == ("fp32", TENSOR_CORES)
    measured = device.get("split_tile_products", []) if split else device["tile_products"]
    return next((entry for entry in measured if (entry["dtype"], entry["head_dim"]) == (dtype, head_dim)), None)


def one_sweep(result, **wanted):
    """The tile sweep of one GPU's results that fits, with its tiles by their name and the best one as `fastest`; None
    when there is none."""
    keys = {*CONFIGURATION, "set"} & wanted.keys()
    fits = lambda sweep: all({**sweep, "set": set_of(sweep)}[key] == wanted[key] for key in keys)
    found = [sweep for sweep in result["sweeps"] if fits(sweep)]
    if len(found) > 1:
        raise ResultsError(f"{len(found)} sweeps fit {words(wanted)}: say more")
    if not found:
        return None
    tiles = {entry["tile"]: entry for entry in found[0]["tiles"]}
    return {**found[0], "tiles": tiles, "fastest": tiles.get(found[0]["best"])}


# ---- writing


def save(result, path):
    """Writes one GPU's object, whole or not at all."""
    rows_of_file = [{key: value for key, value in row.items() if key not in READ_HERE} for row in result["rows"]]
    write_whole(
        path, json.dumps({**result, "rows": rows_of_file}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    )
