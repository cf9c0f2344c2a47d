// The executor's random numbers: which thread goes first, when a copy arrives.
#pragma once

#include <cstdint>

namespace attention::executor {

/// SplitMix64 (Steele, Lea, Flood 2014): small, and any seed will do.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int below(int bound) { return static_cast<int>((next() >> 32) * static_cast<uint64_t>(bound) >> 32); }
};

}  // namespace attention::executor
