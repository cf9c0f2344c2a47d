// Host threads for the parts of the harness that touch every element: filling inputs, the reference on a CPU, the
// comparison.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace attention {

/// Calls work(n) once for each n in [0, items), on all cores, in no particular order; items are handed out one at a
/// time, so they may differ in cost. Returns when all are done; rethrows the first exception.
template <class Work>
void parallel_for(int64_t items, const Work& work) {
  std::atomic<int64_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_guard;
  const auto take_items = [&] {
    try {
      for (int64_t n = next++; n < items; n = next++) work(n);
    } catch (...) {
      const std::lock_guard lock(failure_guard);
      if (!failure) failure = std::current_exception();
      next = items;
    }
  };
  const int64_t threads = std::min<int64_t>(items, std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> helpers;
  try {
    for (int64_t t = 1; t < threads; ++t) helpers.emplace_back(take_items);
  } catch (const std::system_error&) {
    // No more threads can be started: those that are there do the work.
  }
  take_items();
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
}

/// The same over [0, count) in pieces of at most `piece`: work(begin, end).
template <class Work>
void parallel_for_pieces(int64_t count, int64_t piece, const Work& work) {
  parallel_for((count + piece - 1) / piece, [&](int64_t n) { work(n * piece, std::min(count, (n + 1) * piece)); });
}

}  // namespace attention
