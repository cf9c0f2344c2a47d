// How things are called in every report, table and file.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/problem.h"

namespace attention {

/// "fp32", "fp16", "bf16".
const char* dtype_name(Dtype dtype);

/// "128x64".
std::string tile_name(TileShape shape);

/// Where the problem's tile products are computed: "cuda-cores", "tensor-cores".
const char* product_name(const Problem& problem);

/// "fp32", "fp16", "bf16"; "fp32 on tensor cores" where that was chosen.
std::string type_and_product(const Problem& problem);

/// "67.4 MB", "1.1 GB" (powers of 1000).
std::string human_bytes(int64_t bytes);

}  // namespace attention
