// Runs one method of a step as a library call - tensors of the host in, tensors of the host and launch records out - and
// compares what came out with the float64 reference and with the traffic formulas.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/device/device_api.h"
#include "common/harness/buffers.h"
#include "common/harness/check.h"
#include "common/base/half.h"
#include "common/harness/memory.h"
#include "common/harness/result.h"
#include "common/step/step.h"
#include "tests/case.h"
#include "tests/catch.h"

namespace attention {

/// What lies in memory behind the last element of every tensor.
enum class Tail { nan, zeros };

struct StepRun {
  std::map<std::string, std::vector<float>> outputs;  // "o", "lse", or "dq", "dk", "dv"; as check.h names them
  std::vector<LaunchRecord> launches;
};

/// Runs `method` on `device`. `problem` needs its tile and sram_limit; shapes of the inputs as in HostInputs. Outputs and
/// scratch start as NaN. Throws what Method::run throws.
inline StepRun run_method(Device& device, const Method& method, const Problem& problem, const HostInputs& inputs, Tail tail = Tail::nan) {
  Buffers buffers(device);
  const auto add = [&](const std::string& name, int64_t bytes) {
    char* address = static_cast<char*>(buffers.add(name, bytes));
    const std::vector<char> zeros(Buffers::kTailBytes, 0);
    if (tail == Tail::zeros) device.copy_in(address + bytes, zeros.data(), Buffers::kTailBytes);
  };
  for (const NamedBytes& tensor : tensor_bytes(problem, method.backward)) add(tensor.name, tensor.bytes);
  for (const Scratch& buffer : method.scratch(problem)) add(buffer.name, buffer.bytes);

  const auto copy_in = [&](const char* name, std::span<const float> values) {
    if (problem.dtype == Dtype::fp32) return device.copy_in(buffers.find(name), values.data(), static_cast<int64_t>(values.size_bytes()));
    const std::vector<uint16_t> bits = narrow(problem.dtype, values);
    device.copy_in(buffers.find(name), bits.data(), static_cast<int64_t>(bits.size() * sizeof(uint16_t)));
  };
  copy_in("q", inputs.q);
  copy_in("k", inputs.k);
  copy_in("v", inputs.v);
  if (method.backward) copy_in("do", inputs.d_o);
  const Tensors tensors = {buffers.find("q"), buffers.find("k"), buffers.find("v"), buffers.find("o"), buffers.find("do"),
                           buffers.find("dq"), buffers.find("dk"), buffers.find("dv"), [&](const std::string& name) { return buffers.find(name); }};
  if (method.prepare) method.prepare(problem, tensors);
  device.poison_sram();
  device.synchronize();

  StepRun run;
  run.launches = device.record([&] { method.run(problem, tensors); });
  device.synchronize();
  const auto copy_out = [&](const char* output, const char* buffer, int64_t elements) {
    std::vector<float>& values = run.outputs[output];
    values.resize(static_cast<size_t>(elements));
    if (problem.dtype != Dtype::fp32 && std::string(output) != "lse") {
      std::vector<uint16_t> bits(static_cast<size_t>(elements));
      device.copy_out(bits.data(), buffers.find(buffer), elements * static_cast<int64_t>(sizeof(uint16_t)));
      return widen(problem.dtype, bits, values);
    }
    device.copy_out(values.data(), buffers.find(buffer), elements * static_cast<int64_t>(sizeof(float)));
  };
  if (method.backward) {
    copy_out("dq", "dq", problem.Xq());
    copy_out("dk", "dk", problem.Xk());
    copy_out("dv", "dv", problem.Xk());
  } else {
    copy_out("o", "o", problem.Xq());
    copy_out("lse", "LSE", problem.L());
  }
  return run;
}

/// The tiles of the step that fit the problem's sram_limit, best first.
inline std::vector<TileShape> tiles_that_fit(const Step& step, const Problem& problem) {
  std::vector<TileShape> shapes;
  for (const TileChoice& tile : step.tiles(problem))
    if (tile.sram_bytes <= problem.sram_limit) shapes.push_back(tile.shape);
  return shapes;
}

/// Calls f(step, method, problem) for all methods of all steps of the device that serve the problem: the last method of a step with each of its tiles
/// that fits, the others with the first, since they choose the forward's tile themselves. The problem's tile is set; its
/// sram_limit is the device's unless it was set before.
template <class F>
void for_each_method(Device& device, Problem problem, F&& f) {
  if (problem.sram_limit == 0) problem.sram_limit = device.sram_limit();
  problem.compute_capability = device.compute_capability();
  for (const std::string& id : registered_steps(device.kind())) {
    const Step& step = *find_step(device.kind(), id);
    if (!refusal(step, problem).empty()) continue;
    const std::vector<TileShape> tiles = tiles_that_fit(step, problem);
    REQUIRE(!tiles.empty());
    for (const TileShape tile : tiles) {
      problem.tile = tile;
      for (const Method& method : step.methods) {
        if (tile != tiles.front() && &method != &step.methods.back()) continue;
        INFO(id << " " << method.name << ": batch " << problem.batch << ", heads " << problem.heads << ", N " << problem.seqlen_q << "x"
                << problem.seqlen_k << ", d " << problem.head_dim << (problem.causal ? ", causal" : "") << ", tile " << tile.br << "x" << tile.bc);
        f(step, method, problem);
      }
    }
  }
}

/// Every output within the allowance, by the harness's own comparison. `default_inputs`: relative L2 too. `stored_pairs`: the
/// method keeps S or P in HBM, in the problem's type.
inline void check_exact(const StepRun& run, const Problem& problem, const Reference& reference, bool default_inputs = false,
                        const Selection& selection = {}, bool stored_pairs = false) {
  for (const auto& [name, values] : run.outputs) {
    const CheckResult result = check_output(name, problem, values, reference.find(name), selection, default_inputs, stored_pairs);
    INFO(result.reason);
    CHECK(result.pass);
  }
}

inline bool stores_pairs(const Method& method, const Problem& problem) {
  for (const Scratch& buffer : method.scratch(problem))
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
    CHECK(run.launches[n].counted_flops * problem.head_dim == expected[n].executed_flops);  // counted per dimension (tile/product.h)
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

/// Sets the executor's options for the length of a scope.
struct WithExecutor {
  ExecutorOptions before = executor_options();
  explicit WithExecutor(const ExecutorOptions& options) { executor_options() = options; }
  ~WithExecutor() { executor_options() = before; }
};

/// The CPU executor as the tests of values and counts use it. Races and thread orders have a test of their own.
inline std::unique_ptr<Device> open_plain_cpu() { return open_cpu({.race_check = ExecutorOptions::RaceCheck::none}); }

/// One body, two tests: on the CPU executor, and tagged [gpu] on the GPU.
#define TEST_ON_EACH_DEVICE(name, body)                                \
  TEST_CASE(name) { body(*attention::open_plain_cpu()); }              \
  TEST_CASE(name " (GPU)", "[gpu]") { body(*attention::open_gpu()); }

}  // namespace attention
