// The hardware counters that tell what a kernel moved: which there are, how they are read, and why they may be out of
// reach. Nothing of CUPTI here: cupti.h reads them on a GPU, the tests read made-up ones.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace attention {

/// What is counted, in bytes. docs/traffic.md says what each is and which metric gives it.
enum class Counter { hbm_read, hbm_write, l2_to_sm, requested_load, requested_store, spill_load, spill_store };
constexpr int kCounters = 7;

/// Bytes by counter; empty where the counter does not exist on this chip or cannot be trusted.
struct CounterBytes {
  std::array<std::optional<int64_t>, kCounters> values;
  std::optional<int64_t>& operator[](Counter counter) { return values[static_cast<size_t>(counter)]; }
  const std::optional<int64_t>& operator[](Counter counter) const { return values[static_cast<size_t>(counter)]; }
};

/// HBM bytes in both directions; empty unless both are there.
std::optional<int64_t> hbm_total(const CounterBytes& bytes);

/// The counters cannot be read. what() is the reason, one line; `advice` one line too, "" when there is none. It never
/// ends a run: measured traffic then shows n/a with the reason.
struct CountersUnavailable : std::runtime_error {
  std::string advice;
  CountersUnavailable(const std::string& reason, std::string what_to_do)
      : std::runtime_error(reason), advice(std::move(what_to_do)) {}
};

/// The reason and the advice for a CUptiResult other than success (cupti_result.h), returned by the function `call`.
CountersUnavailable explain_cupti_error(int code, const std::string& call);

/// Counters being read. The hardware counts a few at a time, so the same ranges of work run once per pass:
/// do { begin_pass; { begin_range(n); work; end_range }...; } while (!end_pass()); read().
/// Every function throws CountersUnavailable.
class CounterSession {
 public:
  virtual ~CounterSession() = default;
  virtual void begin_pass() = 0;
  virtual bool end_pass() = 0;                   // true when that was the last pass
  virtual void begin_range(int range) = 0;       // 0 to ranges - 1, each once per pass, in the same order in each
  virtual void end_range() = 0;                  // after the device has finished the range's work
  virtual std::vector<CounterBytes> read() = 0;  // one entry per range
};

/// Opens a session for at most `ranges` ranges on the current GPU.
using OpenCounters = std::function<std::unique_ptr<CounterSession>(int ranges)>;

}  // namespace attention
