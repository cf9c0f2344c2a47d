// Inputs on which published attention kernels went wrong, each with an answer known in closed form, on every step and
// device.
// The letters and figures in the names are those of the project's list of hard cases (A2 ... A14). Values are compared
// twice:
// with the closed form, and with the float64 reference within the harness's allowance.
#define ATTN_DEVICE_CPU
#include <algorithm>
#include <cmath>

#include "common/device/device.h"
#include "common/base/error.h"
#include "common/harness/memory.h"
#include "tests/closed_forms.h"
#include "tests/made_step.h"
#include "tests/programs.h"
#include "tests/run_method.h"

using namespace attention;

namespace {

/// f(outputs) for the methods of one pass, of every step; the outputs have passed the check against the reference.
template <class F>
void for_each_pass(Device& device, const Case& c, bool backward, F&& f) {
  const Reference reference = c.reference(backward);
  for_each_method(device, c.problem, [&](const Step&, const Method& method, const Problem& problem) {
    if (method.backward != backward) return;
    StepRun run = run_method(device, method, problem, c.inputs());
    check_exact(run, problem, reference, false, {}, stores_pairs(method, problem));
    f(run.outputs);
  });
}
template <class F>
void for_each_forward(Device& device, const Case& c, F&& f) {
  for_each_pass(device, c, false, f);
}
template <class F>
void for_each_backward(Device& device, const Case& c, F&& f) {
  for_each_pass(device, c, true, f);
}

using Outputs = std::map<std::string, std::vector<float>>;

template <class Range>
float largest_magnitude(const Range& values) {
  float largest = 0;
  for (const float x : values) largest = std::isnan(x) ? INFINITY : std::max(largest, std::abs(x));
  return largest;
}

// ---- lengths and masks ----------------------------------------------------------------------------------------------

void rows_that_see_no_key(Device& device) {
  const Case c = make_case(1, 2048, 1024, 64, true);
  const auto begin = [](const std::vector<float>& x) { return std::vector<float>(x.begin(), x.begin() + 1024 * 64); };
  for_each_forward(device, c, [&](Outputs& out) {
    CHECK(largest_magnitude(begin(out["o"])) == 0);
    CHECK(std::all_of(out["lse"].begin(), out["lse"].begin() + 1024, [](float lse) { return lse == -INFINITY; }));
    CHECK(std::equal(c.v.begin(), c.v.begin() + 64, out["o"].begin() + 1024 * 64));  // row 1024 sees key 0 alone
    CHECK(largest_magnitude(out["o"]) < INFINITY);
  });
  for_each_backward(device, c, [&](Outputs& out) {
    CHECK(largest_magnitude(begin(out["dq"])) == 0);
    for (const char* gradient : {"dq", "dk", "dv"}) CHECK(largest_magnitude(out[gradient]) < INFINITY);
  });
}

// ---- outlier channels -----------------------------------------------------------------------------------------------

/// Trained models have a few columns of Q and K far larger than the others (hard case D1). Behind one of them, every
/// term of a score
/// rounds as if it were as large: sums in the order of the columns take up to 3.3 times their allowance.
Case outlier_columns(int64_t n, int head_dim, bool causal, std::vector<int> columns, float factor, uint64_t seed) {
  Case c = make_case(2, n, n, head_dim, causal, "randn", seed);
  for (int64_t head = 0; head < 2; ++head)
    for (int64_t row = 0; row < n; ++row)
      for (const int col : columns) c.at_query(c.q, head, row, col) += 4, c.at_key(c.k, head, row, col) *= factor;
  return c;
}
/// One column, the same for all queries, that fades from key to key.
Case fading_column(int64_t n, bool causal, uint64_t seed) {
  Case c = make_case(2, n, n, 64, causal, "randn", seed);
  for (int64_t head = 0; head < 2; ++head)
    for (int64_t row = 0; row < n; ++row) {
      c.at_query(c.q, head, row, 0) = 4;
      c.at_key(c.k, head, row, 0) = 40 * (1 - static_cast<float>(row) / static_cast<float>(n));
    }
  return c;
}
std::vector<Case> outlier_cases(uint64_t seed) {
  std::vector<Case> cases;
  for (const int64_t n : {150, 257})
    for (const bool causal : {false, true}) {
      cases.push_back(outlier_columns(n, 64, causal, {0}, 40, seed));
      cases.push_back(outlier_columns(n, 64, causal, {0, 1}, 20, seed));
      cases.push_back(outlier_columns(n, 64, causal, {62, 63}, 20, seed));
      cases.push_back(
          outlier_columns(n, 64, causal, {5, 37}, 20, seed));  // a pair that rotary embeddings turn together
      cases.push_back(outlier_columns(n, 128, causal, {0, 1, 2, 3}, 12, seed));
      cases.push_back(fading_column(n, causal, seed));
    }
  return cases;
}
void outlier_channels(Device& device) {  // another tile's rows choose another order: docs/exactness.md
  for (const Case& c : outlier_cases(1)) check_all_methods(device, c, false, Tiles::best);
}

// ---- scores ---------------------------------------------------------------------------------------------------------

/// One key: P = exp(s - s) = 1, unless one of the two s keeps digits that the other has rounded away, as a product
/// fused with
/// the subtraction does. A scale that is no power of two (d = 80) makes scale * qk inexact.
void huge_equal_scores(Device& device) {
  for (const int d : {64, 80}) {
    const Case c = make_case(1, 1, 1, d, false, "const:133120");
    for_each_forward(device, c, [&](Outputs& out) { CHECK(same_bits(out["o"], c.v)); });
    for_each_backward(device, c, [&](Outputs& out) {
      CHECK(same_bits(out["dv"], c.d_o));
      for (const char* gradient : {"dq", "dk"}) CHECK(largest_magnitude(out[gradient]) < INFINITY);
    });
  }
}

/// q = k = 32: the sum before the scale is 65536, which fp16 does not hold.
void raw_scores_beyond_fp16(Device& device) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
    if (dtype == Dtype::bf16 && device.compute_capability() > 0 && device.compute_capability() < 80) continue;
    Case c = in_half(make_case(1, 64, 64, 64), dtype);
    std::ranges::fill(c.q, 32.f);
    std::ranges::fill(c.k, 32.f);
    std::vector<float> mean(64);
    for (int j = 0; j < 64; ++j)
      for (int x = 0; x < 64; ++x) mean[x] += c.at_key(c.v, 0, j, x) / 64;
    for_each_forward(device, c, [&](Outputs& out) {
      for (int n = 0; n < 64 * 64; ++n) REQUIRE(out["o"][n] == Approx(mean[n % 64]).margin(0.02));
    });
  }
}

/// What is known in closed form: masks, ramps, probes for the scale, the LSE and the heads.
void known_values(Device& device) {
  for (const ClosedForm& form : closed_forms())
    for_each_pass(device, form.c, form.backward, [&](Outputs& out) {
      for (const KnownValues& known : form.known) {
        INFO(form.name << ", " << known.output);
        CHECK(worst_of(out[known.output], known.values, known.margin) <= 1);
      }
    });
}

// ---- the backward ---------------------------------------------------------------------------------------------------

void large_backward(Device& device) {
  for (const bool causal : {false, true})
    for_each_backward(device, make_case(1, 1024, 1024, 128, causal, "randn:3"), [](Outputs&) {});
}

/// 30 runs of every method give the same bits. (test_steps runs each tile in three orders.)
void repeats(Device& device) {
  const bool on_gpu = device.kind() == DeviceKind::gpu;
  const int64_t n = on_gpu ? 1024 : 77;
  const Case c = make_case(2, n, n, 128, true, "randn:3");
  const auto repeat = [&](const Step&, const Method& method, const Problem& problem) {
    const StepRun first = run_method(device, method, problem, c.inputs());
    int different = 0;
    for (int run = 1; run < 30; ++run) {
      const WithExecutor options({.race_check = ExecutorOptions::RaceCheck::none,
                                  .thread_order = static_cast<uint64_t>(run),
                                  .os_threads = 1 + run % 3});
      different += !same_bits(first, run_method(device, method, problem, c.inputs()));
    }
    CHECK(different == 0);
  };
  for_each_method(device, c.problem, repeat, on_gpu ? Tiles::all : Tiles::best);
}

// ---- memory and limits ----------------------------------------------------------------------------------------------

/// The bits of every output are the same whether the bytes behind each tensor are zeros or NaN.
void check_tails(Device& device, const Case& c) {
  for_each_method(device, c.problem, [&](const Step&, const Method& method, const Problem& problem) {
    const StepRun nan = run_method(device, method, problem, c.inputs(), Tail::nan);
    CHECK(same_bits(nan, run_method(device, method, problem, c.inputs(), Tail::zeros)));
    for (const auto& [name, values] : nan.outputs) CHECK(largest_magnitude(values) < INFINITY);
  });
}
void poison_behind_tensors(Device& device) {
  check_tails(device, make_case(2, 1001, 503, 64));
  check_tails(device, make_case(1, 45, 77, 63, true));
  if (device.kind() == DeviceKind::gpu) check_tails(device, make_case(2, 2925, 2925, 128));
}

/// Exact with less SRAM, by a smaller tile; where no tile fits, refused with both figures before any launch.
void less_sram(Device& device) {
  for (const int64_t limit : {101376, 65536})
    for (const auto& [head_dim, on_tensor_cores] : {std::pair{64, false}, {64, true}, {128, true}}) {
      Case c = make_case(1, 70, 130, head_dim, true);
      c.problem.sram_limit = limit;
      c.problem.on_tensor_cores = on_tensor_cores;
      check_all_methods(device, c, true);
    }
  for (const std::string& id : registered_steps(device.kind())) {
    INFO(id);
    const Step& step = *find_step(device.kind(), id);
    for (const int head_dim : {64, 128, 256}) {
      Problem exactly = make_case(1, 8, 8, head_dim).problem;
      exactly.dtype = step.default_dtype;
      exactly.compute_capability = device.compute_capability();
      if (!refusal(step, exactly).empty()) continue;
      const std::vector<TileChoice> choices = step.tiles(exactly);
      for (const TileChoice& tile : choices) {
        exactly.sram_limit = tile.sram_bytes;  // as much as the tile asks for is enough
        Options options;
        options.tile = tile.shape;
        CHECK(choose_tile(options, step, exactly) == tile.shape);
      }
      const auto asks_less = [](const TileChoice& a, const TileChoice& b) { return a.sram_bytes < b.sram_bytes; };
      const auto smallest = std::min_element(choices.begin(), choices.end(), asks_less);
      exactly.sram_limit = smallest->sram_bytes - 1;
      try {
        choose_tile({}, step, exactly);
        FAIL("a tile of " << smallest->sram_bytes << " bytes was chosen for " << exactly.sram_limit);
      } catch (const Unsupported& refused) {
        CHECK(has(std::string(refused.what()), std::to_string(smallest->sram_bytes)));
        CHECK(has(std::string(refused.what()), std::to_string(exactly.sram_limit) + " are allowed"));
      }
    }
  }
}

/// Rows of S and P too long for SRAM: the softmax kernels of step02 and of the standard backward read them again, and
/// say so.
void rows_too_long_for_sram(Device& device) {
  Case c = make_case(1, 3, 9000, 8);
  c.problem.sram_limit = 45000;  // a row of 9000 asks for more, a tile of 64x32 for less
  const Reference reference = c.reference();
  for_each_method(device, c.problem, [&](const Step& step, const Method& method, const Problem& problem) {
    if (step.id != "step02" && method.name != "standard backward") return;
    const StepRun run = run_method(device, method, problem, c.inputs());
    check_exact(run, problem, reference);
    const bool backward = method.backward;
    const std::vector<KernelCost> cost = method.cost(problem);
    const std::string name = backward ? "dS" : "softmax";
    const auto softmax =
        std::find_if(cost.begin(), cost.end(), [&](const KernelCost& kernel) { return kernel.name == name; });
    REQUIRE(softmax != cost.end());
    // In SRAM: 4096 floats of S, or 2048 each of P and dP. The rest of S is read twice more, of P and dP once.
    CHECK(total_load(softmax->requested) == (backward ? 2 * (9000 + 6952) : 9000 + 2 * 4904) * 3 * 4);
    CHECK(softmax->hbm_at_least);
    if (device.kind() == DeviceKind::cpu) check_counts(run, method, problem);
  });
}

// ---- results that are none ------------------------------------------------------------------------------------------

RunResult run_in_harness(const Step& step) {
  return run_with_flags(step, {"--device", "cpu", "--seqlen", "40", "--heads", "1"});
}

__global__ void attention_kernel(Global<float> O) { O.store(0, 0, 1); }

}  // namespace

TEST_ON_EACH_DEVICE("D1: a few columns far larger than the others", outlier_channels)
TEST_ON_EACH_DEVICE("A2, A6, A7, A9, A10: closed forms", known_values)
TEST_ON_EACH_DEVICE("A3: rows that see no key", rows_that_see_no_key)
TEST_ON_EACH_DEVICE("A1, A5: one token, and huge equal scores", huge_equal_scores)
TEST_ON_EACH_DEVICE("A5: raw scores beyond fp16 stay in fp32", raw_scores_beyond_fp16)
TEST_ON_EACH_DEVICE("A8: NaN behind every tensor changes no bit", poison_behind_tensors)
TEST_ON_EACH_DEVICE("A10: backward with scores of nine times the usual size", large_backward)
TEST_ON_EACH_DEVICE("A10: 30 runs give the same bits", repeats)
TEST_ON_EACH_DEVICE("A13: less SRAM takes a smaller tile or is refused", less_sram)
TEST_ON_EACH_DEVICE("A13: rows too long for SRAM are read again", rows_too_long_for_sram)

TEST_CASE("A7: the tiles that ramps and sawteeth run with have Br != Bc") {
  const Problem p = make_case(1, 1, 1000, 1).problem;
  for (const std::string& id : registered_steps(DeviceKind::cpu)) {
    const Step& step = *find_step(DeviceKind::cpu, id);
    if (step.methods.size() > 1 || !refusal(step, p).empty()) continue;  // step05's forward is step04's
    const std::vector<TileChoice> tiles = step.tiles(p);
    for (const TileShape shape : {TileShape{128, 64}, TileShape{64, 32}})
      CHECK(std::any_of(tiles.begin(), tiles.end(), [&](const TileChoice& tile) { return tile.shape == shape; }));
  }
}

TEST_CASE("A4: what a step does not take is refused by name, with the step that serves it") {
  struct Asked {
    std::vector<const char*> steps;
    Dtype dtype;
    std::vector<int> head_dims, capabilities;
    const char* says;  // "": served
  };
  const std::vector<const char*> hopper = {"step07", "step08"};
  for (const Asked& asked : {
           Asked{{"step06"}, Dtype::fp32, {64}, {0}, "step04 is the same algorithm in fp32"},
           {{"step06"}, Dtype::bf16, {8, 40, 64, 128, 256}, {0, 80}, ""},
           {{"step06"}, Dtype::bf16, {46}, {0}, "step06 takes head_dim 8, 16, 24 and so on to 256, not 46"},
           {{"step06"}, Dtype::bf16, {64}, {75}, "8.0 or newer, which copies asynchronously, this one has 7.5; step04"},
           {hopper, Dtype::fp16, {64, 128}, {0, 90}, ""},
           {hopper, Dtype::fp16, {64}, {75, 80, 89, 100, 120}, "step06 is the same algorithm"},
           {hopper, Dtype::fp16, {96}, {90}, "takes head_dim 64 and 128, not 96; step06"},
           {hopper, Dtype::fp32, {64}, {90}, "step04 is the same algorithm in fp32"},
           {{"step10"}, Dtype::fp16, {64, 96, 128}, {0, 80}, ""},
           {{"step10"}, Dtype::fp32, {64}, {0}, "step05"},
           {{"step10"}, Dtype::fp16, {60, 136}, {0}, "step05"},
           {{"step10"}, Dtype::fp16, {64}, {75}, "8.0"},
       })
    for (const char* id : asked.steps)
      for (const int head_dim : asked.head_dims)
        for (const int capability : asked.capabilities) {
          INFO(id << ", head_dim " << head_dim << ", capability " << capability);
          Problem p = make_case(1, 8, 8, head_dim).problem;
          p.dtype = asked.dtype;
          p.compute_capability = capability;
          p.sram_limit = 232448;
          std::string said;
          try {
            choose_tile({}, *find_step(DeviceKind::cpu, id), p);
          } catch (const Unsupported& refusal) {
            said = refusal.what();
          }
          CHECK(said.empty() == (*asked.says == 0));
          CHECK(has(said, asked.says));
        }
}

TEST_CASE("A11: 2^31 elements of S, checked at both ends", "[gpu]") {
  const auto device = open_gpu();
  Case c = make_case(8, 16384, 16384, 64);
  c.problem.sram_limit = device->sram_limit();
  const Selection rows = sample_rows(c.problem, 64, 1, false, false);
  const Reference reference = compute_reference_gpu(c.problem, c.inputs(), rows, false);
  for (const char* id : {"step01", "step02", "step04"}) {
    INFO(id);
    const Step& step = *find_step(DeviceKind::gpu, id);
    const Method& method = step.methods.front();
    c.problem.tile = tiles_that_fit(step, c.problem).front();
    if (bytes_needed(*device, c.problem, false, scratch_of(method, c.problem)) > device->free_bytes())
      return skip_test("this GPU cannot hold S and P of 8 GiB each");
    check_exact(run_method(*device, method, c.problem, c.inputs()), c.problem, reference, true, rows);
  }
}

TEST_CASE("A12: more blocks than a grid's y or z takes", "[gpu]") {
  const auto device = open_gpu();
  Case c = make_case(65536, 16, 16, 32);
  c.problem.batch = 4096;
  c.problem.heads = 16;
  const Selection rows = sample_rows(c.problem, 64, 1, true, false);
  const Reference reference = compute_reference_cpu(c.problem, c.inputs(), rows, true);
  for_each_method(*device, c.problem, [&](const Step&, const Method& method, const Problem& problem) {
    check_exact(run_method(*device, method, problem, c.inputs()), problem, reference, true, rows);
  });
}

TEST_CASE("A12: more blocks than a grid's y or z takes, on the CPU executor") {
  const auto device = open_plain_cpu();
  Case c = make_case(65537, 1, 2, 4);
  c.problem.tile = {64, 32};
  c.problem.sram_limit = device->sram_limit();
  const StepRun run = run_method(*device, find_step(DeviceKind::cpu, "step04")->methods.front(), c.problem, c.inputs());
  check_exact(run, c.problem, c.reference(false));
}

TEST_CASE("A14: stale_output_detected, step03's answer under step04's name") {
  Step step = *find_step(DeviceKind::cpu, "step04");
  step.methods.insert(step.methods.begin(), find_step(DeviceKind::cpu, "step03")->methods.front());
  CHECK(run_in_harness(step).failures.empty());
  step.methods.back().run = [](const Problem&, const Tensors&) {};  // the buffers still hold step03's right answer
  const RunResult result = run_in_harness(step);
  CHECK(result.verdict == "FAIL");
  REQUIRE(result.methods.back().checks.size() == 2);
  for (const CheckResult& check : result.methods.front().checks) CHECK(check.pass);
  for (const CheckResult& check : result.methods.back().checks) CHECK(!check.pass);
}

TEST_CASE("A14: launch_error_is_fatal, through the harness") {
  Step step = *find_step(DeviceKind::cpu, "step04");
  step.methods.back().run = [](const Problem& p, const Tensors& t) {
    launch("attention", attention_kernel, 1, 1500, 0,
           Global<float>(static_cast<float*>(t.o), "O", 1, p.seqlen_q, p.head_dim));
  };
  try {
    run_in_harness(step);
    FAIL("a launch with 1500 threads gave a result");
  } catch (const DeviceFailure& failure) {
    CHECK(failure.code == 4);
    CHECK(has(std::string(failure.what()), "attention: 1500 threads per block"));
  }
}
