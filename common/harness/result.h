// What a run found out. report.cpp prints it for a person, json.cpp for programs; neither measures anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/device/cpu/film.h"
#include "common/device/device_api.h"
#include "common/harness/check.h"
#include "common/harness/options.h"
#include "common/base/problem.h"
#include "common/step/step.h"
#include "common/harness/timing.h"
#include "common/roofline/figures.h"
#include "common/traffic/measure.h"

namespace attention {

/// One method of the step ("forward", "standard backward", "recompute backward").
struct MethodResult {
  std::string name;
  bool backward = false;
  std::string not_run;                 // why it did not run ("" = it ran); then only the expected figures below hold
  std::vector<KernelCost> expected;    // one per launch, in order
  std::vector<LaunchRecord> launches;  // what was timed or counted, in the same order; empty for a plan
  std::vector<Scratch> scratch;        // LSE and the method's own: what it takes beyond q, k, v, o and gradients
  std::vector<CheckResult> checks;     // empty with --check none
  std::optional<double> spread;        // of the output that blocks add up in any order, between runs: relative L2
  std::optional<TimeStats> time;
  std::vector<executor::FilmedLaunch> film;  // CPU executor: --film, --timeline
  std::vector<NotedLaunch> noted;            // GPU: --timeline
  std::optional<TimeStats> noted_time;       // of the kernels that note what they do
  std::optional<MeasuredTraffic> measured;   // empty: not asked for, or nothing ran
  int64_t useful_flops = 0;

  int64_t extra_bytes() const;                 // the scratch buffers together
  bool grows_quadratically() const;            // S, P, dP or dS lie in HBM, in the problem's dtype
  int64_t executed_flops() const;              // expected
  bool uses_library() const;                   // then requested() leaves out what the library's kernels ask for
  std::vector<TensorBytes> requested() const;  // expected, by tensor, all kernels together
  std::vector<TensorBytes> hbm() const;        // expected, by tensor, all kernels together
  std::vector<TensorBytes> counted() const;    // by the CPU executor, all kernels together
  int64_t counted_flops() const;
};

/// What several kernels move, one entry per tensor, in order of appearance.
std::vector<TensorBytes> sum_by_tensor(const std::vector<TensorBytes>& moved);

/// True for S, P, dP and dS: one element per pair of a query and a key.
bool is_pair_tensor(const std::string& tensor);

struct RunResult {
  std::string step, title, chapter;
  DeviceKind device = DeviceKind::cpu;
  std::string device_name, device_note;      // the note: why the choice fell on the CPU executor
  int64_t l2_bytes = 0;                      // 0: none
  Known<DeviceFigures> figures;              // what step00 measured of this GPU
  std::optional<double> hbm_peak;            // bytes per second, as Device::hbm_peak
  int64_t free_bytes = 0;                    // before the run
  int64_t needed_bytes = 0;                  // what the run takes from the device, tensors and all
  std::optional<int64_t> device_bytes_used;  // the driver's figure: how much less was free during the run
  Problem problem;
  Options options;
  std::optional<Splits> splits;  // of a step that splits keys
  bool planned_only = false;
  std::vector<MethodResult> methods;                 // the report is about the last one
  std::string verdict;                               // of all outputs together; "not checked" with --check none
  double mean_weight = 0, largest_score = 0;         // of the reference; 0 when not checked
  std::vector<uint64_t> thread_orders;               // CPU executor: the orders that ran
  std::vector<std::string> failures;                 // one line each; empty: all is well
  bool outputs_wrong = false, counts_wrong = false;  // what they are about: outputs, or counted bytes and FLOPs
  std::string trace;                                 // --trace-row's text
  std::string film, timeline;                        // what --film and --timeline write
  std::vector<std::string> saved;                    // files that --save wrote
  std::string not_saved;                             // why it could not ("" = it could, or was not asked to)
};

constexpr const char* kPlanned = "nothing ran (--plan)";

/// Why there is nothing that a run of the method would have told.
inline std::string no_run_reason(const RunResult& result, const MethodResult& method) {
  return result.planned_only ? kPlanned : method.not_run.empty() ? "the result was wrong" : method.not_run;
}

/// The CPU executor ran the method, and so counted.
inline bool has_counts(const RunResult& result, const MethodResult& method) {
  return result.device == DeviceKind::cpu && !method.launches.empty();
}

}  // namespace attention
