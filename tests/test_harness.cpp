// The harness with steps made for the purpose: a wrong, stale, unsteady or miscounted result must never look like a
// right one.
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/base/text.h"
#include "common/harness/device_run.h"
#include "common/base/error.h"
#include "common/base/half.h"
#include "common/harness/json.h"
#include "common/harness/memory.h"
#include "common/base/npy.h"
#include "common/harness/report.h"
#include "common/harness/timing.h"
#include "tests/catch.h"
#include "tests/made_step.h"
#include "tests/programs.h"

using namespace attention;

namespace {

RunResult run(const Step& step, std::vector<const char*> flags = {}) {
  flags.insert(flags.begin(), {"--device", "cpu", "--seqlen", "40", "--head-dim", "16"});
  return run_with_flags(step, flags);
}

/// What run() throws.
std::string refusal(const Step& step, int code, std::vector<const char*> flags) {
  try {
    run(step, std::move(flags));
  } catch (const ExitError& error) {
    CHECK(error.code == code);
    return error.what();
  }
  return "no error";
}

bool mentions(const RunResult& result, const std::string& text) {
  return std::ranges::any_of(result.failures, [&](const std::string& line) { return has(line, text); });
}

}  // namespace

TEST_CASE("stale_output_detected") {  // hard case A14: a kernel that never ran leaves NaN, not the last right answer
  int calls = 0;
  const RunResult second_does_nothing = run(made_step([&](const Problem& p, const Tensors& t) {
    if (calls++ == 0) plain_attention(p, t);
  }));
  CHECK(mentions(second_does_nothing, "not the same"));
  const RunResult nothing = run(made_step([](const Problem&, const Tensors&) {}));
  CHECK(mentions(nothing, "forward: o"));
  CHECK(mentions(nothing, "forward: lse"));
  CHECK(nothing.verdict == "FAIL");
}

TEST_CASE("a result that changes from run to run fails") {
  int calls = 0;
  const auto unsteady = [&](const Problem& p, const Tensors& t) {
    plain_attention(p, t);
    float* o = static_cast<float*>(t.o);
    if (++calls == 6) o[5] = std::nextafter(o[5], 1e9f);  // right to 1e-6, and yet another number
  };
  CHECK(mentions(
      run(made_step(unsteady), {"--repeat", "10"}), "run 4"));  // three thread orders, then the timed runs 2, 3, ...
}

TEST_CASE("a NaN in one element fails, whatever the rest") {
  const RunResult result = run(made_step([](const Problem& p, const Tensors& t) {
    plain_attention(p, t);
    static_cast<float*>(t.o)[17] = NAN;
  }));
  CHECK(mentions(result, "o"));
  CHECK(has(json_text(result), "\"worst\": null"));
}

TEST_CASE("memory behind a tensor and in fresh scratch is NaN") {  // hard case A8
  bool all_nan = true;
  run(made_step([&](const Problem& p, const Tensors& t) {
    plain_attention(p, t);
    const float* behind_k = static_cast<const float*>(t.k) + p.Xk();
    for (int n = 0; n < 64 * 1024 / 4; ++n) all_nan = all_nan && std::isnan(behind_k[n]);
  }));
  CHECK(all_nan);
}

TEST_CASE("fp16 and bf16 pass through 2-byte buffers") {
  for (const char* dtype : {"fp16", "bf16"}) {
    INFO(dtype);
    bool as_rounded = true, nan_behind = true;
    const RunResult result =
        run(made_step([&](const Problem& p, const Tensors& t) {
              plain_attention(p, t);
              const auto* q = static_cast<const uint16_t*>(t.q);
              for (int64_t n = 0; n < p.Xq(); ++n) as_rounded = as_rounded && std::abs(values_of(p, q + n, 1)[0]) < 7;
              for (int64_t n = p.Xq(); n < p.Xq() + DeviceRun::kTailBytes / 2; ++n)
                nan_behind = nan_behind && q[n] == 0xffff;
            }),
            {"--dtype", dtype});
    INFO((result.failures.empty() ? "" : result.failures.front()));
    CHECK(result.verdict == "PASS");
    CHECK(as_rounded);
    CHECK(nan_behind);
    const std::vector<CheckResult>& checks = result.methods.front().checks;
    CHECK(checks[0].tolerance == (dtype == std::string("fp16") ? 0x1p-10 : 0x1p-7));
    CHECK(checks[0].worst > 0.05);  // o has been rounded
    CHECK(checks[1].worst < 1e-3);  // lse is fp32
    CHECK_FALSE(checks[0].stored_pairs);
    CHECK(has(report_text(result), std::string(dtype) + "  B 1"));
    const nlohmann::json json = nlohmann::json::parse(json_text(result));
    CHECK(json["dtype"] == dtype);
    CHECK(json["exactness"][0]["relative_l2_bound"].is_null());
    CHECK(json["exactness"][0]["relative_l2"] > 1e-5);
  }
}

TEST_CASE("pairs kept in HBM have an allowance of their own in half precision") {
  Step step = made_step(plain_attention);
  step.methods.front().scratch = [](const Problem& p) { return std::vector<Scratch>{quadratic_scratch("S", p)}; };
  const RunResult half = run(step, {"--dtype", "bf16"}), full = run(step);
  CHECK(half.methods.front().checks[0].stored_pairs);
  CHECK(has(report_text(half), "N x N tensors stored in bf16"));
  CHECK(half.methods.front().extra_bytes() == 2 * 40 * 4 + 2 * 40 * 40 * 2);
  CHECK_FALSE(full.methods.front().checks[0].stored_pairs);
}

TEST_CASE("--save: fp16 as float16, bf16 as float32, lse as float32; --load: float16 files mean fp16") {
  const Folder folder;
  const Step step = made_step(plain_attention);
  for (const auto& [dtype, is_half] : {std::pair{"fp16", true}, {"bf16", false}, {"fp32", false}}) {
    run(step, {"--dtype", dtype, "--save", folder.path.c_str()});
    const NpyArray<float> o = read_npy(folder.path + "/o.npy", 4);
    CHECK(o.was_half == is_half);
    CHECK_FALSE(read_npy(folder.path + "/lse.npy", 3).was_half);
    std::vector<float> rounded = o.values;
    if (dtype == std::string("bf16")) round_all(Dtype::bf16, rounded);
    CHECK(rounded == o.values);
  }
  const auto load = [&](std::vector<const char*> flags, bool q_half, bool v_half) {
    const std::vector<float> values(2 * 40 * 16, 1 / 3.0f);
    for (const auto& [name, half] : {std::pair{"q", q_half}, {"k", true}, {"v", v_half}})
      write_npy(folder.path + "/" + name + ".npy", {1, 2, 40, 16}, values, half);
    flags.insert(flags.end(), {"--load", folder.path.c_str()});
    const RunResult result = run(step, flags);
    CHECK(result.failures.empty());
    return result.problem.dtype;
  };
  CHECK(load({}, true, true) == Dtype::fp16);
  CHECK(load({}, true, false) == Dtype::fp32);
  CHECK(load({}, false, true) == Dtype::fp32);
  CHECK(load({"--dtype", "fp32"}, true, true) == Dtype::fp32);
  CHECK(load({"--dtype", "bf16"}, true, true) == Dtype::bf16);
  CHECK(load({"--dtype", "fp16"}, false, false) == Dtype::fp16);
}

TEST_CASE("an input that the type cannot hold exits 2") {
  const Step step = made_step(plain_attention);
  CHECK(refusal(step, 2, {"--dtype", "fp16", "--init", "const:65520"}) ==
        "q: element 0 is too large for fp16, which holds numbers up to 65504");
  CHECK(run(step, {"--dtype", "fp16", "--init", "const:65504", "--check", "none"}).failures.empty());
  CHECK(run(step, {"--dtype", "bf16", "--init", "const:133120"}).failures.empty());
}

TEST_CASE("a dtype that the step or the GPU lacks exits 3 and names those that work") {
  Step step = made_step(plain_attention);
  const auto tiles = step.tiles;
  step.tiles = [tiles](const Problem& p) { return p.dtype == Dtype::bf16 ? std::vector<TileChoice>{} : tiles(p); };
  CHECK(refusal(step, 3, {"--dtype", "bf16"}) ==
        "step99 has no bf16 for head_dim 16; fp32 and fp16 work here (--dtype fp16)");
  step.tiles = [tiles](const Problem& p) { return p.dtype == Dtype::fp32 ? tiles(p) : std::vector<TileChoice>{}; };
  CHECK(refusal(step, 3, {"--dtype", "fp16"}) == "step99 has no fp16 for head_dim 16; fp32 works here (--dtype fp32)");

  step.tiles = tiles;
  Problem p{.head_dim = 16, .dtype = Dtype::bf16, .sram_limit = 1 << 20};
  for (const int capability : {0, 80, 90, 120}) {  // 0: the CPU executor
    p.compute_capability = capability;
    CHECK(choose_tile({}, step, p) == TileShape{16, 16});
  }
  p.compute_capability = 75;
  CHECK_THROWS_WITH(
      choose_tile({}, step, p),
      "bf16 needs a GPU of compute capability 8.0 or newer, this one has 7.5; fp32 and fp16 work here (--dtype fp16)");
  p.dtype = Dtype::fp16;
  CHECK(choose_tile({}, step, p) == TileShape{16, 16});
}

TEST_CASE("memory: elements of 2 bytes on the device, of 4 in the host's copy") {
  const std::unique_ptr<Device> cpu = open_cpu();
  Problem p{.seqlen_q = 40, .seqlen_k = 30, .head_dim = 16};
  const int64_t tails = 5 * DeviceRun::kTailBytes, elements = 2 * 40 * 16 + 2 * 30 * 16, lse = 40 * 8;
  CHECK(bytes_needed(*cpu, p, false, {}) == tails + 8 * elements + lse);
  p.dtype = Dtype::fp16;
  CHECK(bytes_needed(*cpu, p, false, {}) == tails + 6 * elements + lse);
  CHECK(find_tensor("Q")->bytes(p) == 40 * 16 * 2);
  CHECK(find_tensor("dv")->shape(p) == std::vector<int64_t>{1, 1, 30, 16});
}

TEST_CASE("a kernel in the formula that was never launched fails") {
  Step step = made_step(plain_attention);
  step.methods.front().cost = [](const Problem& p) {
    return std::vector<KernelCost>{KernelCost("attention", p).loads("Q", 1, 1)};
  };
  const RunResult result = run(step);
  CHECK(mentions(result, "0 kernels were launched"));
  // The outputs are right: their verdict says so, and what is wrong stands in the report, every line of it.
  CHECK(result.verdict == "PASS");
  CHECK((result.counts_wrong && !result.outputs_wrong));
  const std::string report = report_text(result);
  for (const std::string& failure : result.failures) CHECK(has(report, "FAIL      " + failure));
  CHECK(!has(report, "the result was wrong"));
}

TEST_CASE("a baseline that does not fit is n/a with its bytes, and the rest runs") {
  Step step = made_step(plain_attention);
  Method backward = {.name = "standard backward",
                     .backward = true,
                     .scratch = [](const Problem&) { return std::vector<Scratch>{{"dP", int64_t{1} << 50, true}}; },
                     .cost = [](const Problem&) { return std::vector<KernelCost>{}; },
                     .run = [](const Problem&, const Tensors&) {}};
  step.methods.push_back(backward);
  backward.name = "recompute backward";
  backward.scratch = nullptr;
  step.methods.push_back(backward);
  const RunResult result = run(step, {"--check", "none"});
  CHECK(has(result.methods[1].not_run, "dP needs 1125899906842624 bytes"));
  CHECK(result.methods[2].not_run.empty());
  CHECK(result.failures.empty());
  CHECK(has(report_text(result), "n/a: dP needs"));
}

TEST_CASE("quantiles") {
  const TimeStats stats = summarize({5, 1, 2, 3, 4}, false);
  CHECK(stats.median_ms == Approx(3));
  CHECK(stats.p10_ms == Approx(1.4));
  CHECK(stats.p90_ms == Approx(4.6));
  CHECK(stats.runs == 5);
  CHECK(summarize({7}, true).p90_ms == Approx(7));
}

namespace {

/// A GPU whose runs take what they are told, in the order of the runs; it counts what it is asked for.
struct TimedGpu final : Device {
  std::vector<double> run_ms;                 // of time_ms(), the last one again and again
  std::vector<std::vector<double>> launches;  // of record(), likewise
  double real_seconds = 0;                    // that a recorded run takes
  int timed = 0, recorded = 0, flushed = 0;

  DeviceKind kind() const override { return DeviceKind::gpu; }
  std::string name() const override { return "timed"; }
  int64_t free_bytes() const override { return 0; }
  int64_t sram_limit() const override { return 0; }
  int64_t l2_bytes() const override { return 0; }
  int multiprocessors() const override { return 1; }
  int compute_capability() const override { return 90; }
  void* allocate(int64_t) override { return nullptr; }
  void release(void*) override {}
  void copy_in(void*, const void*, int64_t) override {}
  void copy_out(void*, const void*, int64_t) override {}
  void fill_nan(void*, int64_t) override {}
  void poison_sram() override {}
  void flush_l2() override { ++flushed; }
  void synchronize() override {}
  double time_ms(const std::function<void()>&) override { return run_ms[std::min<size_t>(timed++, run_ms.size() - 1)]; }
  std::vector<LaunchRecord> record(const std::function<void()>&) override {
    std::this_thread::sleep_for(std::chrono::duration<double>(real_seconds));
    std::vector<LaunchRecord> records;
    for (const double ms : launches[std::min<size_t>(recorded++, launches.size() - 1)])
      records.emplace_back().time_ms = ms;
    return records;
  }
};

const auto no_work = [] {};

}  // namespace

TEST_CASE("a GPU is warmed up by two runs or by a long one, which do not count") {
  for (const auto& [first, second, runs] : {std::tuple{50.0, 60.0, 22}, {120.0, 9.0, 21}}) {
    TimedGpu gpu;
    gpu.run_ms = {first, second, 9};
    const TimeStats stats = measure(gpu, no_work, 20, no_work, no_work);
    CHECK(gpu.timed == runs);
    CHECK(gpu.flushed == runs);
    CHECK(stats.runs == 20);
    CHECK(stats.p90_ms == 9);
  }
}

TEST_CASE("the times of several launches are medians of runs of their own, of five or of three slow ones") {
  for (const auto& [seconds, runs, first_ms] : {std::tuple{0.0, 5, 3.0}, {0.3, 3, 2.0}}) {
    TimedGpu gpu;
    gpu.real_seconds = seconds;
    gpu.launches = {{1, 50}, {2, 40}, {3, 30}, {4, 20}, {5, 10}};
    const std::vector<LaunchRecord> records = record_launches(gpu, no_work, {7, 7, 7, 20, false});
    REQUIRE(records.size() == 2);
    CHECK(records[0].time_ms == first_ms);
    CHECK(records[1].time_ms == 10 * (6 - first_ms));
    CHECK(gpu.recorded == runs);
    CHECK(gpu.flushed == runs);
  }
}

TEST_CASE("a single launch takes the time of its method") {
  TimedGpu gpu;
  gpu.launches = {{1}};
  const std::vector<LaunchRecord> records = record_launches(gpu, no_work, {7, 6, 8, 20, false});
  REQUIRE(records.size() == 1);
  CHECK(records[0].time_ms == 7);
  CHECK(gpu.recorded == 1);
}

TEST_CASE("the shortage names what grows as N^2") {
  CHECK(describe_shortage(5, 300, {{"S", 100, true}, {"P", 100, true}, {"LSE", 10, false}}) ==
        "S and P need 200 bytes, 5 are free");
  CHECK(describe_shortage(5, 300, {{"P", 1, true}, {"dP", 2, true}, {"dS", 3, true}}) ==
        "P, dP and dS need 6 bytes, 5 are free");
  CHECK(describe_shortage(5, 300, {{"LSE", 10, false}}) == "the tensors need 300 bytes, 5 are free");
}
