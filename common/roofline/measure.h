// Measuring the GPU: the interface between step00's kernels (steps/step00_*.cu) and its main.
#pragma once

#include <functional>
#include <string>

#include "common/roofline/figures.h"

namespace attention {

/// Measures the first GPU, in seconds; `stage` is told what is being measured. Every rate is the median of seven runs
/// of at least 5 ms. The caller has seen a usable GPU (find_gpu). Throws DeviceFailure: a CUDA error, or too little
/// free memory for a buffer of 16 times the L2.
DeviceFigures measure_gpu(const std::function<void(const std::string&)>& stage);

}  // namespace attention
