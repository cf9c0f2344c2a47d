// Runs one method of a step as a library call - tensors of the host in, tensors of the host and launch records out -
// and
// compares what came out with the float64 reference and with the traffic formulas.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/device/device_api.h"
#include "common/harness/check.h"
#include "common/harness/device_run.h"
#include "common/harness/result.h"
#include "common/step/step.h"
#include "tests/case.h"
#include "tests/catch.h"
#include "tests/with_executor.h"

namespace attention {

/// What lies in memory behind the last element of every tensor.
enum class Tail { nan, zeros };

struct StepRun {
  std::map<std::string, std::vector<float>> outputs;  // "o", "lse", or "dq", "dk", "dv"; as check.h names them
  std::vector<LaunchRecord> launches;
};

/// Runs `method` on `device`. `problem` needs its tile and sram_limit; shapes of the inputs as in HostInputs. Outputs
/// and
/// scratch start as NaN. Throws what Method::run throws.
inline StepRun run_method(Device& device, const Method& method, const Problem& problem, HostInputs inputs,
                          Tail tail = Tail::nan) {
  if (!method.backward) inputs.d_o = {};
  DeviceRun on_device(device, problem, scratch_of(method, problem), inputs);
  if (tail == Tail::zeros) on_device.fill_tails(0);
  on_device.prepare(method);
  StepRun run;
  run.launches = device.record([&] { method.run(problem, on_device.tensors()); });
  device.synchronize();
  for (Output& output : on_device.outputs(method)) run.outputs[output.tensor->file] = std::move(output.values);
  return run;
}

/// The tiles of the step that fit the problem's sram_limit, best first.
inline std::vector<TileShape> tiles_that_fit(const Step& step, const Problem& problem) {
  std::vector<TileShape> shapes;
  for (const TileChoice& tile : step.tiles(problem))
    if (tile.sram_bytes <= problem.sram_limit) shapes.push_back(tile.shape);
  return shapes;
}

/// Every tile of a step that fits, or the one that it takes by default.
enum class Tiles { all, best };

/// Calls f(step, method, problem) for all methods of all steps of the device that serve the problem: the last method of
/// a
/// step with each of its tiles, the others with the first, since they choose the forward's tile themselves. The
/// problem's
/// tile is set; its sram_limit is the device's unless it was set before.
template <class F>
void for_each_method(Device& device, Problem problem, F&& f, Tiles which = Tiles::all) {
  if (problem.sram_limit == 0) problem.sram_limit = device.sram_limit();
  problem.compute_capability = device.compute_capability();
  for (const std::string& id : registered_steps(device.kind())) {
    const Step& step = *find_step(device.kind(), id);
    if (!refusal(step, problem).empty()) continue;
    std::vector<TileShape> tiles = tiles_that_fit(step, problem);
    if (tiles.empty() && problem.sram_limit < device.sram_limit()) continue;  // for one GPU, and a smaller one's SRAM
    REQUIRE(!tiles.empty());
    if (which == Tiles::best) tiles.resize(1);
    for (const TileShape tile : tiles) {
      problem.tile = tile;
      for (const Method& method : step.methods) {
        if (tile != tiles.front() && &method != &step.methods.back()) continue;
        INFO(id << " " << method.name << ": batch " << problem.batch << ", heads " << problem.heads << ", N "
                << problem.seqlen_q << "x" << problem.seqlen_k << ", d " << problem.head_dim
                << (problem.causal ? ", causal" : "") << ", tile " << tile.br << "x" << tile.bc);
        f(step, method, problem);
      }
    }
  }
}

/// Every output within the allowance, by the harness's own comparison. `default_inputs`: relative L2 too.
/// `stored_pairs`: the
/// method keeps S or P in HBM, in the problem's type.
inline void check_exact(const StepRun& run, const Problem& problem, const Reference& reference,
                        bool default_inputs = false, const Selection& selection = {}, bool stored_pairs = false) {
  for (const auto& [name, values] : run.outputs) {
    const CheckResult result =
        check_output(name, problem, values, reference.find(name), selection, default_inputs, stored_pairs);
    INFO(result.reason);
    CHECK(result.pass);
  }
}

inline bool stores_pairs(const Method& method, const Problem& problem) {
  for (const Scratch& buffer : scratch_of(method, problem))
    if (buffer.quadratic) return true;
  return false;
}

/// Bytes by tensor: {load, store}.
using BytesByTensor = std::map<std::string, std::pair<int64_t, int64_t>>;

inline BytesByTensor by_tensor(const std::vector<TensorBytes>& bytes) {
  BytesByTensor map;
  for (const TensorBytes& tensor : bytes) map[tensor.tensor] = {tensor.load, tensor.store};
  return map;
}

/// Launch for launch and tensor for tensor: what the executor counted is what the formula says, bytes and FLOPs.
inline void check_counts(const StepRun& run, const Method& method, const Problem& problem) {
  const std::vector<KernelCost> expected = method.cost(problem);
  REQUIRE(run.launches.size() == expected.size());
  for (size_t n = 0; n < expected.size(); ++n) {
    CHECK(run.launches[n].kernel == expected[n].name);
    CHECK(by_tensor(run.launches[n].counted) == by_tensor(expected[n].requested));
    CHECK(run.launches[n].counted_flops * problem.head_dim ==
          expected[n].executed_flops);  // counted per dimension (tile/product.h)
  }
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
inline bool same_bits(const StepRun& a, const StepRun& b) {
  for (const auto& [name, values] : a.outputs)
    if (!same_bits(values, b.outputs.at(name))) return false;
  return a.outputs.size() == b.outputs.size();
}

/// The CPU executor as the tests of values and counts use it. Races and thread orders have a test of their own.
inline std::unique_ptr<Device> open_plain_cpu() { return open_cpu({.race_check = ExecutorOptions::RaceCheck::none}); }

/// Exact by the harness's own comparison; on the CPU executor the counted bytes and FLOPs are the expected ones.
inline StepRun check_method(Device& device, const Method& method, const Problem& problem, const HostInputs& inputs,
                            const Reference& reference, bool default_inputs = false) {
  StepRun run = run_method(device, method, problem, inputs);
  check_exact(run, problem, reference, default_inputs, {}, stores_pairs(method, problem));
  if (device.kind() == DeviceKind::cpu) check_counts(run, method, problem);
  return run;
}

/// The same in all methods.
inline void check_all_methods(Device& device, const Case& c, bool default_inputs = false, Tiles tiles = Tiles::all) {
  const Reference reference = c.reference();
  const auto check = [&](const Step&, const Method& method, const Problem& problem) {
    check_method(device, method, problem, c.inputs(), reference, default_inputs);
  };
  for_each_method(device, c.problem, check, tiles);
}

/// No order of threads shows a race, and all give the same bits.
inline void check_orders(Device& device, const Method& method, const Problem& problem, const HostInputs& inputs) {
  const StepRun first = run_method(device, method, problem, inputs);
  for (const uint64_t order : {1, 2}) {
    const WithExecutor options({.race_check = ExecutorOptions::RaceCheck::all, .thread_order = order});
    CHECK(same_bits(first, run_method(device, method, problem, inputs)));
  }
}

/// One body, two tests: on the CPU executor, and tagged [gpu] on the GPU.
#define TEST_ON_EACH_DEVICE(name, body)                   \
  TEST_CASE(name) { body(*attention::open_plain_cpu()); } \
  TEST_CASE(name " (GPU)", "[gpu]") { body(*attention::open_gpu()); }

}  // namespace attention
