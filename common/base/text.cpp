#include "common/base/text.h"

#include <fmt/format.h>

namespace attention {

const char* dtype_name(Dtype dtype) { return dtype == Dtype::fp32 ? "fp32" : dtype == Dtype::fp16 ? "fp16" : "bf16"; }

std::string tile_name(TileShape shape) { return fmt::format("{}x{}", shape.br, shape.bc); }

const char* product_name(const Problem& p) {
  return p.dtype != Dtype::fp32 || p.on_tensor_cores ? "tensor-cores" : "cuda-cores";
}

std::string type_and_product(const Problem& p) {
  return fmt::format("{}{}", dtype_name(p.dtype), p.on_tensor_cores ? " on tensor cores" : "");
}

std::string human_bytes(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (value >= 1e12) return fmt::format("{:.1f} TB", value / 1e12);
  if (value >= 1e9) return fmt::format("{:.1f} GB", value / 1e9);
  if (value >= 1e5) return fmt::format("{:.1f} MB", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f} kB", value / 1e3);
  return fmt::format("{} B", bytes);
}

}  // namespace attention
