#include "common/base/half.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "common/base/parallel.h"

namespace attention {

namespace {
constexpr int64_t kPiece = 1 << 16;  // elements that one thread takes at a time
}  // namespace

float round_to(Dtype dtype, float value) {
  return dtype == Dtype::fp16 ? from_fp16(to_fp16(value)) : dtype == Dtype::bf16 ? from_bf16(to_bf16(value)) : value;
}

int64_t round_all(Dtype dtype, std::span<float> values) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  if (dtype == Dtype::fp32) return -1;
  std::atomic<int64_t> first{kNone};
  parallel_for_pieces(static_cast<int64_t>(values.size()), kPiece, [&](int64_t begin, int64_t end) {
    int64_t here = kNone;
    for (int64_t n = end - 1; n >= begin; --n) {
      const float rounded = round_to(dtype, values[n]);
      if (std::isinf(rounded) && !std::isinf(values[n])) here = n;
      values[n] = rounded;
    }
    for (int64_t seen = first; here < seen && !first.compare_exchange_weak(seen, here);) {
    }
  });
  return first == kNone ? -1 : first.load();
}

std::vector<uint16_t> narrow(Dtype dtype, std::span<const float> values) {
  std::vector<uint16_t> bits(values.size());
  parallel_for_pieces(static_cast<int64_t>(values.size()), kPiece, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) bits[n] = dtype == Dtype::fp16 ? to_fp16(values[n]) : to_bf16(values[n]);
  });
  return bits;
}

void widen(Dtype dtype, std::span<const uint16_t> bits, std::span<float> values) {
  parallel_for_pieces(static_cast<int64_t>(bits.size()), kPiece, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) values[n] = dtype == Dtype::fp16 ? from_fp16(bits[n]) : from_bf16(bits[n]);
  });
}

}  // namespace attention
