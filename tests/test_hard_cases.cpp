// Inputs on which published attention kernels went wrong, each with an answer known in closed form, on every step and device.
// The letters and figures in the names are those of the project's list of hard cases (A2 ... A14). Values are compared twice:
// with the closed form, and with the float64 reference within the harness's allowance.
#define ATTN_DEVICE_CPU
#include <algorithm>
#include <cmath>

#include "common/device/device.h"
#include "common/base/error.h"
#include "common/harness/memory.h"
#include "common/harness/run.h"
#include "tests/run_method.h"

using namespace attention;

namespace {

/// f(outputs, problem) for the forward of every step; the outputs have passed the check against the reference.
template <class F>
void for_each_forward(Device& device, const Case& c, F&& f) {
  const Reference reference = c.reference(false);
  for_each_method(device, c.problem, [&](const Step&, const Method& method, const Problem& problem) {
    if (method.backward) return;
    StepRun run = run_method(device, method, problem, c.inputs());
    check_exact(run, problem, reference);
    f(run.outputs, problem);
  });
}

/// The same for every backward.
template <class F>
void for_each_backward(Device& device, const Case& c, F&& f) {
  const Reference reference = c.reference();
  for_each_method(device, c.problem, [&](const Step&, const Method& method, const Problem& problem) {
    if (!method.backward) return;
    StepRun run = run_method(device, method, problem, c.inputs());
    check_exact(run, problem, reference);
    f(run.outputs, problem);
  });
}

using Outputs = std::map<std::string, std::vector<float>>;

template <class Range>
float largest_magnitude(const Range& values) {
  float largest = 0;
  for (const float x : values) largest = std::isnan(x) ? INFINITY : std::max(largest, std::abs(x));
  return largest;
}

// ---- lengths and masks ------------------------------------------------------------------------------------------------------

void one_token(Device& device) {
  const Case c = make_case(3, 1, 1, 64);
  const Reference reference = c.reference();
  for_each_forward(device, c, [&](Outputs& out, const Problem&) {
    CHECK(same_bits(out["o"], c.v));
    for (int head = 0; head < 3; ++head) CHECK(out["lse"][head] == Approx(reference.lse.value[head]).margin(1e-6));
  });
}

void causal_is_bottom_right(Device& device) {
  for_each_forward(device, make_case(2, 300, 1000, 64, true, "zeros"), [](Outputs& out, const Problem&) {
    CHECK(out["lse"].front() == Approx(6.552508).margin(2e-6));  // ln 701; a triangle hung from the top left would give 0
    CHECK(out["lse"].back() == Approx(6.907755).margin(2e-6));   // ln 1000
  });
}

void rows_that_see_no_key(Device& device) {
  const Case c = make_case(1, 2048, 1024, 64, true);
  const auto begin = [](const std::vector<float>& x) { return std::vector<float>(x.begin(), x.begin() + 1024 * 64); };
  for_each_forward(device, c, [&](Outputs& out, const Problem&) {
    CHECK(largest_magnitude(begin(out["o"])) == 0);
    CHECK(std::all_of(out["lse"].begin(), out["lse"].begin() + 1024, [](float lse) { return lse == -INFINITY; }));
    CHECK(std::equal(c.v.begin(), c.v.begin() + 64, out["o"].begin() + 1024 * 64));  // row 1024 sees key 0 alone
    CHECK(largest_magnitude(out["o"]) < INFINITY);
  });
  for_each_backward(device, c, [&](Outputs& out, const Problem&) {
    CHECK(largest_magnitude(begin(out["dq"])) == 0);
    for (const char* gradient : {"dq", "dk", "dv"}) CHECK(largest_magnitude(out[gradient]) < INFINITY);
  });
}

// ---- outlier channels -------------------------------------------------------------------------------------------------------

/// Trained models have a few columns of Q and K far larger than the others (hard case D1). Behind one of them, every term of a score
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
      cases.push_back(outlier_columns(n, 64, causal, {5, 37}, 20, seed));  // a pair that rotary embeddings turn together
      cases.push_back(outlier_columns(n, 128, causal, {0, 1, 2, 3}, 12, seed));
      cases.push_back(fading_column(n, causal, seed));
    }
  return cases;
}
void outlier_channels(Device& device) {
  for (const Case& c : outlier_cases(1)) {
    const Reference reference = c.reference();
    for_each_method(device, c.problem, [&](const Step& step, const Method& method, const Problem& problem) {
      if (problem.tile != tiles_that_fit(step, problem).front()) return;  // another tile's rows choose another order: docs/exactness.md
      check_exact(run_method(device, method, problem, c.inputs()), problem, reference);
    });
  }
}

// ---- scores -----------------------------------------------------------------------------------------------------------------

/// One key: P = exp(s - s) = 1, unless one of the two s keeps digits that the other has rounded away, as a product fused with
/// the subtraction does. A scale that is no power of two (d = 80) makes scale * qk inexact.
void huge_equal_scores(Device& device) {
  for (const int d : {64, 80}) {
    const Case c = make_case(1, 1, 1, d, false, "const:133120");
    for_each_forward(device, c, [&](Outputs& out, const Problem&) { CHECK(same_bits(out["o"], c.v)); });
    for_each_backward(device, c, [&](Outputs& out, const Problem&) {
      CHECK(same_bits(out["dv"], c.d_o));
      for (const char* gradient : {"dq", "dk"}) CHECK(largest_magnitude(out[gradient]) < INFINITY);
    });
  }
}

void scores_far_below_zero(Device& device) {
  for (const auto& [score, lse, margin] : {std::tuple{-100000.0f, -99995.8256, 0.02}, {-300.0f, -295.8256, 3e-4}}) {
    Case c = make_case(1, 1, 65, 64);  // one key past a tile of 64
    c.problem.softmax_scale = 1;
    std::fill(c.q.begin(), c.q.end(), 0.0f);
    std::fill(c.k.begin(), c.k.end(), 0.0f);
    c.q[0] = 1;
    for (int j = 0; j < 65; ++j) c.at_key(c.k, 0, j, 0) = score;
    std::vector<double> mean(64);
    for (int j = 0; j < 65; ++j)
      for (int x = 0; x < 64; ++x) mean[x] += c.at_key(c.v, 0, j, x) / 65.0;
    for_each_forward(device, c, [&, lse = lse, margin = margin](Outputs& out, const Problem&) {
      CHECK(out["lse"][0] == Approx(lse).margin(margin));
      for (int x = 0; x < 64; ++x) CHECK(out["o"][x] == Approx(mean[x]).margin(2e-6));
    });
  }
}

/// One query, keys of one dimension: score j is scores[j], value j is values[j].
Case one_row(const std::vector<float>& scores, const std::vector<float>& values) {
  Case c = make_case(1, 1, static_cast<int64_t>(scores.size()), 1);
  c.problem.softmax_scale = 1;
  c.q[0] = 1;
  c.k = scores;
  c.v = values;
  return c;
}

void check_row(Device& device, const Case& c, double o, double lse) {
  for_each_forward(device, c, [&](Outputs& out, const Problem&) {
    CHECK(out["o"][0] == Approx(o).margin(2e-6));
    CHECK(out["lse"][0] == Approx(lse).margin(1e-4));
  });
}

std::vector<float> ramp(bool up) {
  std::vector<float> scores(1000);
  for (int j = 0; j < 1000; ++j) scores[j] = 0.1f * static_cast<float>(up ? j : 999 - j);
  return scores;
}
std::vector<float> thousandths() {
  std::vector<float> values(1000);
  for (int j = 0; j < 1000; ++j) values[j] = static_cast<float>(j) / 1000;
  return values;
}
void ramp_up(Device& device) { check_row(device, one_row(ramp(true), thousandths()), 0.989492, 102.252168); }
void ramp_down(Device& device) { check_row(device, one_row(ramp(false), thousandths()), 0.009508, 102.252168); }
void sawtooth(Device& device) {
  std::vector<float> scores(512), values(512);
  for (int j = 0; j < 512; ++j) scores[j] = j / 128 % 2 == 0 ? 100 : 0, values[j] = j / 128 % 2 == 0 ? 1 : -1;
  check_row(device, one_row(scores, values), 1, 105.545177);
}

// ---- probes with a closed form ------------------------------------------------------------------------------------------------

void lse_is_the_natural_log(Device& device) {
  for_each_forward(device, make_case(1, 1, 1000, 64, false, "zeros"), [](Outputs& out, const Problem&) {
    CHECK(out["lse"][0] == Approx(6.907755).margin(2e-6));  // base 2: 9.965784
  });
}

/// Two keys: q = k_0 = 0.5 everywhere, k_1 = 0, V_0 = 1, V_1 = 0, dO = 1.
Case two_keys(int head_dim) {
  Case c = make_case(1, 1, 2, head_dim, false, "zeros");
  for (int x = 0; x < head_dim; ++x) c.q[x] = c.k[x] = 0.5f, c.v[x] = c.d_o[x] = 1;
  return c;
}

void softmax_scale_is_applied_once(Device& device) {
  for_each_forward(device, two_keys(80), [](Outputs& out, const Problem&) {
    for (const float o : out["o"]) CHECK(o == Approx(0.903442).margin(1e-6));  // unscaled 1, scaled twice 0.562177, by 1/8 0.924142
    CHECK(out["lse"][0] == Approx(2.337611).margin(3e-6));
  });
  for_each_backward(device, two_keys(64), [](Outputs& out, const Problem&) {
    for (int x = 0; x < 64; ++x) {
      CHECK(out["dq"][x] == Approx(0.419974).margin(1e-6));  // scale forgotten 3.359795, applied twice 0.052497
      CHECK(out["dk"][x] == Approx(0.419974).margin(1e-6));
      CHECK(out["dk"][64 + x] == Approx(-0.419974).margin(1e-6));
      CHECK(out["dv"][x] == Approx(0.880797).margin(1e-6));
      CHECK(out["dv"][64 + x] == Approx(0.119203).margin(1e-6));
    }
  });
}

void each_head_reads_itself(Device& device) {
  Case c = make_case(6, 37, 45, 64);
  c.problem.batch = 2;
  c.problem.heads = 3;
  for (int head = 0; head < 6; ++head) std::fill_n(c.v.begin() + head * 45 * 64, 45 * 64, static_cast<float>(head + 1));
  for_each_forward(device, c, [](Outputs& out, const Problem&) {
    for (int head = 0; head < 6; ++head) {
      float off = 0;
      for (int n = 0; n < 37 * 64; ++n) off = std::max(off, std::abs(out["o"][head * 37 * 64 + n] / static_cast<float>(head + 1) - 1));
      CHECK(off <= 1e-6f);
    }
  });
}

// ---- the backward -------------------------------------------------------------------------------------------------------------

void backward_of_one_token(Device& device) {
  const Case c = make_case(1, 1, 1, 16, false, "randn:3");
  for_each_backward(device, c, [&](Outputs& out, const Problem&) {
    CHECK(largest_magnitude(out["dq"]) < 1e-3f);  // 0 but for the rounding of dP - delta, two sums of about 100
    CHECK(largest_magnitude(out["dk"]) < 1e-3f);
    CHECK(same_bits(out["dv"], c.d_o));
  });
}

void backward_of_ones(Device& device) {
  for (const bool causal : {false, true}) {
    for_each_backward(device, make_case(1, 64, 64, 64, causal, "ones"), [&](Outputs& out, const Problem&) {
      CHECK(largest_magnitude(out["dq"]) < 1e-4f);
      CHECK(largest_magnitude(out["dk"]) < 1e-4f);
      CHECK(out["dv"].front() == Approx(causal ? 4.743891 : 1).margin(5e-6));  // causal: the harmonic number H_64
      CHECK(out["dv"].back() == Approx(causal ? 0.015625 : 1).margin(1e-6));
    });
  }
}

void large_backward(Device& device) {
  for (const bool causal : {false, true})
    for_each_backward(device, make_case(1, 1024, 1024, 128, causal, "randn:3"), [](Outputs&, const Problem&) {});
}

/// 30 runs of every method give the same bits.
void repeats(Device& device) {
  const int64_t n = device.kind() == DeviceKind::gpu ? 1024 : 77;
  const Case c = make_case(2, n, n, 128, true, "randn:3");
  for_each_method(device, c.problem, [&](const Step&, const Method& method, const Problem& problem) {
    const StepRun first = run_method(device, method, problem, c.inputs());
    int different = 0;
    for (int run = 1; run < 30; ++run) {
      const WithExecutor options({.race_check = ExecutorOptions::RaceCheck::none, .thread_order = static_cast<uint64_t>(run), .os_threads = 1 + run % 3});
      different += !same_bits(first, run_method(device, method, problem, c.inputs()));
    }
    CHECK(different == 0);
  });
}

// ---- memory and limits --------------------------------------------------------------------------------------------------------

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
  const Case c = make_case(1, 70, 130, 64, true);
  const Reference reference = c.reference();
  for (const int64_t limit : {101376, 65536}) {
    Problem less = c.problem;
    less.sram_limit = limit;
    for_each_method(device, less, [&](const Step&, const Method& method, const Problem& problem) {
      check_exact(run_method(device, method, problem, c.inputs()), problem, reference, true);
    });
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
        CHECK(std::string(refused.what()).find(std::to_string(smallest->sram_bytes)) != std::string::npos);
        CHECK(std::string(refused.what()).find(std::to_string(exactly.sram_limit) + " are allowed") != std::string::npos);
      }
    }
  }
}

/// Rows of S and P too long for SRAM: the softmax kernels of step02 and of the standard backward read them again, and say so.
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
    const auto softmax = std::find_if(cost.begin(), cost.end(), [&](const KernelCost& kernel) { return kernel.name == name; });
    REQUIRE(softmax != cost.end());
    // In SRAM: 4096 floats of S, or 2048 each of P and dP. The rest of S is read twice more, of P and dP once.
    CHECK(total_load(softmax->requested) == (backward ? 2 * (9000 + 6952) : 9000 + 2 * 4904) * 3 * 4);
    CHECK(softmax->hbm_at_least);
    if (device.kind() == DeviceKind::cpu) check_counts(run, method, problem);
  });
}

// ---- results that are none ----------------------------------------------------------------------------------------------------

/// The harness, as main() calls it, with a step made of others.
RunResult run_in_harness(const Step& step) {
  const char* flags[] = {"step", "--device", "cpu", "--seqlen", "40", "--heads", "1"};
  std::string help;
  const Options options = *parse_options(static_cast<int>(std::size(flags)), flags, step, help);
  ChosenDevice chosen = choose_device(options);
  Progress progress;
  return run_step(options, step, chosen, progress);
}

__global__ void attention_kernel(Global<float> O) { O.store(0, 0, 1); }

}  // namespace

TEST_ON_EACH_DEVICE("D1: a few columns far larger than the others", outlier_channels)
TEST_ON_EACH_DEVICE("A1: one token gives V and the scaled score", one_token)
TEST_ON_EACH_DEVICE("A2: causal is bottom-right", causal_is_bottom_right)
TEST_ON_EACH_DEVICE("A3: rows that see no key", rows_that_see_no_key)
TEST_ON_EACH_DEVICE("A5: huge equal scores", huge_equal_scores)
TEST_ON_EACH_DEVICE("A6: scores far below zero", scores_far_below_zero)
TEST_ON_EACH_DEVICE("A7: ramp_up", ramp_up)
TEST_ON_EACH_DEVICE("A7: ramp_down", ramp_down)
TEST_ON_EACH_DEVICE("A7: sawtooth", sawtooth)
TEST_ON_EACH_DEVICE("A8: NaN behind every tensor changes no bit", poison_behind_tensors)
TEST_ON_EACH_DEVICE("A9: LSE is the natural log", lse_is_the_natural_log)
TEST_ON_EACH_DEVICE("A9, A10: the scale is applied once", softmax_scale_is_applied_once)
TEST_ON_EACH_DEVICE("A9: each head reads its own V", each_head_reads_itself)
TEST_ON_EACH_DEVICE("A10: backward of one token", backward_of_one_token)
TEST_ON_EACH_DEVICE("A10: backward of ones", backward_of_ones)
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

TEST_CASE("A4: step06 names the step that serves what it does not") {
  const Step& step = *find_step(DeviceKind::cpu, "step06");
  Problem p = make_case(1, 8, 8, 64).problem;
  const auto refused = [&](const std::string& part) {
    try {
      choose_tile({}, step, p);
    } catch (const Unsupported& refusal) {
      return std::string(refusal.what()).find(part) != std::string::npos;
    }
    return false;
  };
  p.sram_limit = 101376;
  CHECK(refused("step04 is the same algorithm in fp32"));
  p.dtype = Dtype::bf16;
  for (const int head_dim : {8, 40, 64, 128, 256}) {
    p.head_dim = head_dim;
    CHECK_NOTHROW(choose_tile({}, step, p));
  }
  p.head_dim = 46;
  CHECK(refused("step06 takes head_dim 8, 16, 24 and so on to 256, not 46"));
  p.head_dim = 64;
  p.compute_capability = 75;
  CHECK(refused("needs a GPU of compute capability 8.0 or newer, which copies asynchronously, this one has 7.5; step04"));
  p.compute_capability = 80;
  CHECK_NOTHROW(choose_tile({}, step, p));
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
    launch("attention", attention_kernel, 1, 1500, 0, Global<float>(static_cast<float*>(t.o), "O", 1, p.seqlen_q, p.head_dim));
  };
  try {
    run_in_harness(step);
    FAIL("a launch with 1500 threads gave a result");
  } catch (const DeviceFailure& failure) {
    CHECK(failure.code == 4);
    CHECK(std::string(failure.what()).find("attention: 1500 threads per block") != std::string::npos);
  }
}
