#!/usr/bin/env bash
# The whole round on a GPU, in one call: build for the GPU found, all tests, every step on its shapes, compute-sanitizer,
# requested bytes by the hardware counter, speed beside PyTorch; the table comes last.
#
#   tests/gpu.sh [build folder [flags of gpu_round.py]]     logs and JSON go to $OUT (default: <build folder>/gpu-round)
#
# --only part,part does a round in pieces, where one GPU is lent for a short time: a build that is there already costs seconds.
# What a machine lacks (compute-sanitizer, ncu, PyTorch) shows as "not run" with the reason; anything that fails makes the
# exit code 1.
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:-build-gpu}
out=${OUT:-$build/gpu-round}
mkdir -p "$build" "$out"
jobs=$(nproc)

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || { echo "gpu.sh: no GPU here"; exit 1; }
started=$SECONDS
cmake -S . -B "$build" -DATTN_CUDA=ON > "$out/configure.log" 2>&1 && cmake --build "$build" -j "$jobs" > "$out/build.log" 2>&1 ||
  { echo "gpu.sh: the build failed"; grep -hE "error|Error" "$out"/configure.log "$out"/build.log | head -20; tail -5 "$out/build.log"; exit 1; }
echo "built in $((SECONDS - started)) s"
python3 tests/gpu_round.py --folder "$build" --out "$out" "${@:2}"
