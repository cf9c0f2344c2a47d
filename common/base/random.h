// A counter-based random generator: the n-th value is a function of (key, n) alone, so any thread can make any part of
// a tensor, and a seed means the same numbers on every machine.
#pragma once

#include <array>
#include <cstdint>

namespace attention {

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3): ten
/// rounds that mix a 128-bit counter with a 64-bit key into four independent uniform 32-bit words. The constants are
/// the paper's: two multipliers, and a Weyl sequence (golden ratio, sqrt(3) - 1) that steps the key.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

/// Block `n` of stream `stream` of `seed`.
constexpr std::array<uint32_t, 4> random_block(uint64_t seed, uint32_t stream, uint64_t n) {
  return philox4x32({static_cast<uint32_t>(n), static_cast<uint32_t>(n >> 32), stream, 0},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

}  // namespace attention
