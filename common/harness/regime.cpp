#include "common/harness/regime.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/text.h"
#include "common/harness/result.h"

namespace attention {

std::vector<std::string> cache_regime(const Problem& p, const std::vector<KernelCost>& expected,
                                      const std::vector<Scratch>& scratch, int64_t l2_bytes) {
  std::vector<std::string> lines;
  if (l2_bytes <= 0) return lines;
  for (const Scratch& buffer : scratch)
    if ((buffer.quadratic || buffer.handed_on) && buffer.bytes <= l2_bytes)
      lines.push_back(fmt::format("{} {} fits this L2 ({}): the formula does not apply", buffer.name,
                                  human_bytes(buffer.bytes), human_bytes(l2_bytes)));

  for (const KernelCost& kernel : expected) {
    std::string names;
    int64_t bytes_of_a_head = 0;
    for (const TensorBytes& requested : kernel.requested) {
      const auto hbm = std::find_if(kernel.hbm.begin(), kernel.hbm.end(), [&](const TensorBytes& other) {
        return other.tensor == requested.tensor;
      });
      if (hbm == kernel.hbm.end() || requested.load <= hbm->load) continue;
      names += (names.empty() ? "" : ", ") + requested.tensor;
      bytes_of_a_head += hbm->load / p.heads_total();
    }
    if (bytes_of_a_head > l2_bytes)
      lines.push_back(fmt::format(
          "{}: {} of one head, {}, exceed this L2 ({}): read again from HBM, where the formula counts them once",
          kernel.name, names, human_bytes(bytes_of_a_head), human_bytes(l2_bytes)));
  }
  return lines;
}

std::optional<HbmRate> hbm_rate(std::optional<int64_t> measured_bytes, int64_t expected_bytes, double time_ms,
                                std::optional<double> peak) {
  if (time_ms <= 0) return std::nullopt;
  const double rate = static_cast<double>(measured_bytes.value_or(expected_bytes)) / (time_ms * 1e-3);
  return HbmRate{rate, measured_bytes.has_value(), peak && rate > 1.05 * *peak};
}

}  // namespace attention
