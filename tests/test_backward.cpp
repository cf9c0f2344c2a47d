// The one-pass backwards (step10, step11): whose blocks add dQ up together, in any order or in a fixed one.

#include "tests/run_method.h"

using namespace attention;

namespace {

/// The steps of this device whose last method adds up an output in any order. f(step, problem) gets every tile that
/// fits, and both orders.
template <class F>
void for_each_one_pass(Device& device, Problem problem, F&& f) {
  int steps = 0;
  for_each_method(device, problem, [&](const Step&, const Method& method, Problem p) {
    if (method.any_order.empty()) return;
    ++steps;
    f(method, p);
    p.left_out = {any_order().name};
    INFO("in a fixed order");
    f(method, p);
  });
  CHECK((steps > 0 || (device.compute_capability() > 0 && device.compute_capability() < 80)));
}

const std::tuple<int, int, int> kShapes[] = {{1, 1, 64},     {77, 77, 64}, {33, 300, 64},  {300, 33, 64},
                                             {129, 257, 40}, {65, 64, 8},  {70, 133, 128}, {200, 130, 96}};

void exact(Device& device) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16})
    for (const bool causal : {false, true})
      for (const auto& [seqlen_q, seqlen_k, d] : kShapes) {
        if (dtype == Dtype::bf16 && d != 128) continue;
        const Case c = in_half(make_case(2, seqlen_q, seqlen_k, d, causal), dtype);
        const Reference reference = c.reference();
        for_each_one_pass(device, c.problem, [&](const Method& method, const Problem& p) {
          check_method(device, method, p, c.inputs(), reference);
        });
      }
}

/// Scores hundreds apart, one sign, all the same.
void hard_inputs(Device& device) {
  for (const char* init : {"randn:7", "randn:30", "abs", "const:3", "zeros"})
    for (const bool causal : {false, true}) {
      const Case c = in_half(make_case(1, 130, 200, 64, causal, init), Dtype::fp16);
      const Reference reference = c.reference();
      INFO(init);
      for_each_one_pass(device, c.problem, [&](const Method& method, const Problem& p) {
        check_exact(run_method(device, method, p, c.inputs()), p, reference);
      });
    }
}

/// dK and dV repeat to the bit whatever the order, dQ in a fixed order; otherwise it differs by its rounding at most.
void repeats(Device& device) {
  const bool on_gpu = device.kind() == DeviceKind::gpu;
  const int64_t n = on_gpu ? 2048 : 300;
  for (const bool causal : {false, true}) {
    const Case c = in_half(make_case(on_gpu ? 16 : 1, n, n, 64, causal), Dtype::fp16);
    for_each_one_pass(device, c.problem, [&](const Method& method, const Problem& p) {
      const StepRun first = run_method(device, method, p, c.inputs());
      for (int run = 1; run < (on_gpu ? 30 : 6); ++run) {
        const WithExecutor options({.race_check = ExecutorOptions::RaceCheck::none,
                                    .thread_order = static_cast<uint64_t>(run),
                                    .os_threads = 1 + run % 3});
        const StepRun again = run_method(device, method, p, c.inputs());
        for (const auto& [name, values] : first.outputs) {
          INFO(name << ", run " << run);
          if (method.repeats(name, p)) CHECK(same_bits(values, again.outputs.at(name)));
        }
      }
    });
  }
}

}  // namespace

TEST_ON_EACH_DEVICE("one-pass backwards are exact and ask for what their formulas say", exact)
TEST_ON_EACH_DEVICE("one-pass backwards are exact for hard inputs", hard_inputs)
TEST_ON_EACH_DEVICE("one-pass backwards repeat to the bit what they say repeats", repeats)

TEST_CASE("no thread order shows a race in a one-pass backward") {
  const auto device = open_plain_cpu();
  for (const auto& [seqlen_q, seqlen_k, d] : {std::tuple{77, 200, 64}, {150, 70, 128}})
    for (const bool causal : {false, true}) {
      const Case c = in_half(make_case(1, seqlen_q, seqlen_k, d, causal), Dtype::fp16);
      const Reference reference = c.reference();
      for_each_one_pass(*device, c.problem, [&](const Method& method, const Problem& p) {
        for (const uint64_t order : {0, 1, 2}) {
          const WithExecutor options({.race_check = ExecutorOptions::RaceCheck::all, .thread_order = order});
          check_exact(run_method(*device, method, p, c.inputs()), p, reference);
        }
      });
    }
}

TEST_CASE("step10 counts what was worked out by hand") {
  // One head, 128 queries and keys, d 64, fp16, tiles of 64 keys by 64 queries. Q is 128 * 64 * 2 = 16384 bytes, and so
  // are K, V, O, dO and the
  // gradients; a line of LSE or delta 512; dQ in fp32 32768. A product of all pairs is 2 * 128 * 128 * 64 = 2097152
  // FLOPs.
  const auto device = open_plain_cpu();
  const Step& step = *find_step(DeviceKind::cpu, "step10");
  for (const bool causal : {false, true}) {
    Case c = in_half(make_case(1, 128, 128, 64, causal), Dtype::fp16);
    c.problem.tile = {64, 64};
    c.problem.sram_limit = device->sram_limit();
    const std::vector<LaunchRecord> launches = run_method(*device, step.methods.back(), c.problem, c.inputs()).launches;
    REQUIRE(launches.size() == 3);
    CHECK(total_load(launches[0].counted) == 2 * 16384 + 512);
    CHECK(total_store(launches[0].counted) == 2 * 512 + 32768);
    // Two key tiles; causal: the second one sees the second half of the queries alone, so 3 of 4 pairs of tiles are
    // visited.
    const int64_t quarters = causal ? 3 : 4;
    CHECK(total_load(launches[1].counted) == 2 * 16384 + quarters * (2 * 8192 + 2 * 256));
    CHECK(total_store(launches[1].counted) == 2 * 16384 + quarters * 16384);
    CHECK(launches[1].counted_flops * 64 == quarters * 5 * 2097152 / 4);
    CHECK(total_load(launches[2].counted) == 32768);
    CHECK(total_store(launches[2].counted) == 16384);
  }
}
