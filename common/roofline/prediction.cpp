#include "common/roofline/prediction.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/text.h"

namespace attention {

Intensity intensity(const std::vector<KernelCost>& kernels) {
  Intensity sum;
  for (const KernelCost& kernel : kernels) {
    sum.flops += kernel.executed_flops;
    sum.bytes += total_load(kernel.hbm) + total_store(kernel.hbm);
  }
  return sum;
}

Prediction predict(const std::vector<KernelCost>& kernels, double flops_per_second, double bytes_per_second) {
  const Intensity work = intensity(kernels);
  const bool at_least =
      std::any_of(kernels.begin(), kernels.end(), [](const KernelCost& kernel) { return kernel.hbm_at_least; });
  return {1e3 * static_cast<double>(work.flops) / flops_per_second,
          1e3 * static_cast<double>(work.bytes) / bytes_per_second, at_least, flops_per_second, bytes_per_second};
}

Known<Prediction> predict(const std::vector<KernelCost>& kernels, const Problem& p, const Known<DeviceFigures>& kept) {
  if (std::any_of(kernels.begin(), kernels.end(), [](const KernelCost& kernel) { return kernel.library; }))
    return Known<Prediction>::none("R is the rate of this repository's products, not of a library's");
  if (!kept) return Known<Prediction>::none(kept.reason);
  const bool warpgroups =
      std::any_of(kernels.begin(), kernels.end(), [](const KernelCost& kernel) { return kernel.warpgroups; });
  const std::optional<double> rate = kept->product_rate(p, warpgroups);
  if (!rate)
    return Known<Prediction>::none(fmt::format(
        "step00 has no {} rate for {} at head_dim {}: run ./step00 again", warpgroups ? "warpgroup product" : "product",
        type_and_product(p), p.head_dim));
  return predict(kernels, *rate, kept->bandwidth());
}

std::string prediction_text(const Known<Prediction>& prediction) {
  if (!prediction) return fmt::format("predicted n/a ({})", prediction.reason);
  const Prediction& p = *prediction;
  return fmt::format("predicted {}{:.3g} ms = FLOPs {:.3g} + bytes {:.2g}", p.at_least ? "at least " : "", p.total_ms(),
                     p.flops_ms, p.bytes_ms);
}

std::optional<double> break_even(const std::vector<KernelCost>& standard, const std::vector<KernelCost>& recompute) {
  const Intensity a = intensity(standard), b = intensity(recompute);
  if (b.flops <= a.flops || b.bytes >= a.bytes) return std::nullopt;
  return static_cast<double>(b.flops - a.flops) / static_cast<double>(a.bytes - b.bytes);
}

}  // namespace attention
