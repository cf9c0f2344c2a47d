#include "common/harness/half.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>

#include "common/harness/parallel.h"

namespace attention {

namespace {
constexpr int64_t kPiece = 1 << 16;  // elements that one thread takes at a time
constexpr uint32_t kInfinity = 0x7f800000;

/// The bits shifted right by `shift`, rounded to nearest, ties to even.
constexpr uint32_t shift_rounded(uint32_t bits, int shift) { return (bits + (1u << (shift - 1)) - 1 + (bits >> shift & 1)) >> shift; }
}  // namespace

uint16_t to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffff;
  const uint32_t sign = bits >> 16 & 0x8000;
  if (magnitude > kInfinity) {
    const uint32_t payload = magnitude >> 13 & 0x3ff;
    return static_cast<uint16_t>(sign | 0x7c00 | (payload ? payload : 0x200));
  }
  constexpr uint32_t kOverflow = 0x477ff000;        // 65520, halfway between 65504 and what would be the next number
  constexpr uint32_t kSmallestNormal = 0x38800000;  // 2^-14
  if (magnitude >= kOverflow) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude >= kSmallestNormal) return static_cast<uint16_t>(sign | shift_rounded(magnitude - (uint32_t{127 - 15} << 23), 13));
  // Subnormal: a multiple of 2^-24, which is the spacing of floats from 0.5 to 1, so that adding 0.5 rounds to it.
  return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f)));
}

uint16_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > kInfinity) return static_cast<uint16_t>(bits >> 16 | (bits >> 16 & 0x7f ? 0 : 0x40));
  return static_cast<uint16_t>(shift_rounded(bits, 16));
}

float from_fp16(uint16_t half) {
  const uint32_t sign = uint32_t{half} << 16 & 0x80000000, magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | kInfinity | (magnitude & 0x3ff) << 13);
  if (magnitude >= 0x0400) return std::bit_cast<float>(sign | ((magnitude << 13) + (uint32_t{127 - 15} << 23)));
  const float value = static_cast<float>(magnitude) * 0x1p-24f;
  return sign ? -value : value;
}

float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

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
    for (int64_t seen = first; here < seen && !first.compare_exchange_weak(seen, here);) {}
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
