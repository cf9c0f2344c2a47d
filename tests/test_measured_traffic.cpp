// Measured traffic: made-up counters stand in for a GPU's, and every way in which counters can be missing shows n/a
// with its
// reason (hard case A19). The tests tagged [gpu] read real ones.
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/harness/json.h"
#include "common/harness/regime.h"
#include "common/harness/report.h"
#include "common/harness/run.h"
#include "common/traffic/cupti.h"
#include "common/traffic/measure.h"
#include "tests/catch.h"
#include "tests/made_step.h"
#include "tests/programs.h"

using namespace attention;

namespace {

constexpr int64_t kPushed = 1'000'000;
constexpr int kFakePasses = 3;

CounterBytes bytes(std::array<int64_t, kCounters> values) {
  CounterBytes all;
  for (size_t n = 0; n < kCounters; ++n) all.values[n] = values[n];
  return all;
}

/// A GPU of two kernels, "big" and "small", that moves what its kernels say, and an L2 that holds dirty lines until
/// pushed.
struct FakeGpu final : MeasurableDevice {
  CounterBytes moved;  // since the last range began
  int64_t dirty = 0;   // bytes written and still in the L2
  std::vector<std::string> log;
  std::function<void()> before_launch, after_launch;

  void add(Counter counter, int64_t count) { moved[counter] = moved[counter].value_or(0) + count; }
  void launch(int64_t load, int64_t store, int64_t spill) {
    if (before_launch) before_launch();
    add(Counter::hbm_read, load);
    add(Counter::l2_to_sm, 2 * load);
    add(Counter::requested_load, 3 * load);
    add(Counter::requested_store, store);
    add(Counter::spill_load, spill);
    dirty += store;
    if (after_launch) after_launch();
  }
  void work() {
    launch(5000, 700, 40);
    launch(60, 8, 0);
  }

  void prepare_to_measure() override { log.push_back("prepare"); }
  void flush_l2() override { dirty = 0; }  // before a range: not counted in it
  void push_out_l2() override {
    for (const Counter counter : {Counter::hbm_read, Counter::l2_to_sm, Counter::requested_load}) add(counter, kPushed);
    add(Counter::hbm_write, dirty);
    dirty = 0;
  }
  int64_t pushed_bytes() const override { return kPushed; }
  void synchronize() override {}
  void around_launches(const std::function<void()>& run, const std::function<void()>& before,
                       const std::function<void()>& after) override {
    before_launch = before;
    after_launch = after;
    run();
    before_launch = after_launch = nullptr;
  }
};

/// Hands out what the FakeGpu moved between begin_range and end_range, in several passes.
struct FakeSession final : CounterSession {
  FakeGpu& gpu;
  std::vector<CounterBytes> ranges;
  int open_range = -1, passes = 0;
  int fail_at_pass = 0, fail_code = 0;
  Counter lost = Counter::hbm_read;  // the counter that `factor` falsifies; a factor below 0: the chip has none
  double factor = 1;

  FakeSession(FakeGpu& fake, int count) : gpu(fake), ranges(static_cast<size_t>(count)) {}
  void begin_pass() override {
    ++passes;
    if (passes == fail_at_pass) throw explain_cupti_error(fail_code, "cuptiRangeProfilerStart");
  }
  bool end_pass() override { return passes == kFakePasses; }
  void begin_range(int range) override {
    REQUIRE(open_range == -1);
    open_range = range;
    gpu.moved = bytes({});
  }
  void end_range() override {
    ranges.at(static_cast<size_t>(open_range)) = gpu.moved;
    open_range = -1;
  }
  std::vector<CounterBytes> read() override {
    CHECK(passes == kFakePasses);
    for (CounterBytes& range : ranges) {
      std::optional<int64_t>& value = range[lost];
      value = factor < 0 ? std::nullopt
                         : std::optional<int64_t>(static_cast<int64_t>(static_cast<double>(*value) * factor));
    }
    return ranges;
  }
};

MeasuredTraffic measure(
    FakeGpu& gpu, const std::function<void(FakeSession&)>& change = [](FakeSession&) {}, int launches = 2) {
  return measure_traffic(
      &gpu, [&] { gpu.work(); }, launches,
      [&](int ranges) {
        auto session = std::make_unique<FakeSession>(gpu, ranges);
        change(*session);
        return session;
      });
}

/// A finished run of step04 on a GPU, as far as the report and JSON look at it.
RunResult a_gpu_run(const MeasuredTraffic& measured) {
  const Step& step = *find_step(DeviceKind::cpu, "step02");
  RunResult result = run_with_flags(step, {"--device", "cpu", "--seqlen", "64", "--heads", "1", "--check", "none"});
  result.device = DeviceKind::gpu;
  result.device_name = "a GPU";
  result.device_note = "";
  result.l2_bytes = 60'000'000;
  result.hbm_peak = 1e12;
  MethodResult& method = result.methods.back();
  method.time = TimeStats{2, 2, 2, 20, false};
  method.measured = measured;
  return result;
}

}  // namespace

TEST_CASE("each kernel's bytes are its own, and what it left in the L2 is counted") {
  FakeGpu gpu;
  const MeasuredTraffic traffic = measure(gpu);
  REQUIRE(traffic.measured());
  CHECK(gpu.log == std::vector<std::string>{"prepare"});
  REQUIRE(traffic.kernels.size() == 2);
  // hbm read, hbm write, L2→SM, requested load and store, spill load and store
  CHECK(traffic.kernels[0].values == bytes({5000, 700, 10000, 15000, 700, 40, 0}).values);
  CHECK(traffic.kernels[1].values == bytes({60, 8, 120, 180, 8, 0, 0}).values);
  CHECK(traffic.together.values == bytes({5060, 708, 10120, 15180, 708, 40, 0}).values);
  for (const std::string& why : traffic.why_not) CHECK(why.empty());
}

TEST_CASE("a method of one launch is measured once") {
  FakeGpu gpu;
  const MeasuredTraffic traffic = measure_traffic(
      &gpu, [&] { gpu.launch(5000, 700, 0); }, 1,
      [&](int ranges) {
        CHECK(ranges == 2);
        return std::make_unique<FakeSession>(gpu, ranges);
      });
  REQUIRE(traffic.kernels.size() == 1);
  CHECK(traffic.kernels[0].values == traffic.together.values);
  CHECK(traffic.together[Counter::hbm_read] == 5000);
}

TEST_CASE("a counter that is wrong about a kernel of known bytes is not believed") {
  FakeGpu gpu;
  const MeasuredTraffic silent = measure(gpu, [](FakeSession& session) { session.factor = 0; });
  REQUIRE(silent.measured());
  CHECK_FALSE(silent.together[Counter::hbm_read]);
  CHECK_FALSE(silent.kernels[1][Counter::hbm_write]);
  CHECK(has(silent.why_not[0], "0 bytes of a kernel that reads 1000000"));
  CHECK(silent.together[Counter::requested_load] == 15180);

  const MeasuredTraffic missing =
      measure(gpu, [](FakeSession& session) { session.lost = Counter::l2_to_sm, session.factor = -1; });
  CHECK_FALSE(missing.together[Counter::l2_to_sm]);
  CHECK(missing.why_not[static_cast<size_t>(Counter::l2_to_sm)] == "this chip has no such counter");
  CHECK(missing.together[Counter::hbm_read] == 5060);
}

TEST_CASE("every refusal of CUPTI is a reason and one line of advice, never an end") {
  struct Refusal {
    int code;
    const char* reason;
    const char* advice;
  };
  const Refusal refusals[] = {
      {35, "no permission", "NVreg_RestrictProfilingToAdminUsers=0"},
      {39, "another profiler", "dcgmi"},
      {26, "another profiler", "ncu"},
      {40, "virtual GPU", "administrator"},
      {43, "MIG", "whole GPU"},
      {45, "WSL", "Control Panel"},
      {15, "too old", "newer CUDA Toolkit"},
      {46, "no counters for this chip", "newer CUDA Toolkit"},
      {999, "the profiler failed", "ncu"}};
  for (const Refusal& refusal : refusals) {
    INFO(refusal.code);
    for (const int pass : {1, 2}) {  // at the first call, and in the middle
      FakeGpu gpu;
      const MeasuredTraffic traffic =
          measure(gpu, [&](FakeSession& session) { session.fail_at_pass = pass, session.fail_code = refusal.code; });
      CHECK_FALSE(traffic.measured());
      CHECK(traffic.kernels.empty());
      CHECK(has(traffic.reason, refusal.reason));
      CHECK(has(traffic.reason, "CUPTI error " + std::to_string(refusal.code)));
      CHECK(has(traffic.advice, refusal.advice));
      CHECK(!has(traffic.reason + traffic.advice, "\n"));
    }
  }
  FakeGpu gpu;
  CHECK(measure(
            gpu, [](FakeSession&) {}, 1)
            .together[Counter::hbm_read] == 5060);  // told of one launch, two are the whole
  CHECK(has(measure(gpu, [](FakeSession&) {}, 0).reason, "more than the 0 launches"));
}

TEST_CASE("an error of the work itself is no reason: it ends the run") {
  FakeGpu gpu;
  const auto failing = [] { throw DeviceFailure("CUDA error at a kernel"); };
  CHECK_THROWS_AS(
      measure_traffic(&gpu, failing, 1, [&](int ranges) { return std::make_unique<FakeSession>(gpu, ranges); }),
      DeviceFailure);
}

TEST_CASE("ATTN_CUPTI_FAKE_ERROR answers for CUPTI") {
  const Environment fake("ATTN_CUPTI_FAKE_ERROR", "35");
  FakeGpu gpu;
  const MeasuredTraffic traffic = measure(gpu);
  CHECK(traffic.reason.find("no permission") == 0);
  CHECK(gpu.log.empty());

  const RunResult result =
      run_with_flags(*find_step(DeviceKind::cpu, "step04"), {"--device", "cpu", "--seqlen", "64", "--heads", "1"});
  CHECK(result.failures.empty());
  const std::string text = report_text(result);
  CHECK(has(text, "measured  n/a (no permission: "));
  CHECK(has(text, "NVreg_RestrictProfilingToAdminUsers=0"));
  CHECK(has(text, "HBM expected"));
  CHECK(has(text, "counted: load"));
  const nlohmann::json json = nlohmann::json::parse(json_text(result));
  for (const nlohmann::json& object : {json["traffic"], json["kernels"][0]})
    for (const std::string key : {"hbm_measured", "l2_to_sm_measured", "requested_measured", "spill"}) {
      CHECK(object[key + "_bytes"].is_null());
      CHECK(object[key + "_reason"].get<std::string>().find("no permission") == 0);
    }
  CHECK(json["traffic"]["measured_advice"].get<std::string>().find("run as root") == 0);
}

TEST_CASE("a hidden libcupti is a reason") {
  const Environment hidden("ATTN_CUPTI_LIBRARY", "/no/such/libcupti.so");
  FakeGpu gpu;
  const MeasuredTraffic traffic = measure_traffic(&gpu, [&] { gpu.work(); }, 2, open_cupti);
  INFO(traffic.reason);
  CHECK((traffic.reason == "no library: /no/such/libcupti.so is not found" ||
         traffic.reason == "this program was built without CUPTI"));
  CHECK(has(traffic.advice, "CUDA Toolkit"));
}

TEST_CASE("the metrics have the names that each chip gives them") {
  const auto metrics = [](const char* chip) -> std::vector<std::string> {
    try {
      return cupti_metrics(chip);
    } catch (const CountersUnavailable& why) {
      if (std::string(why.what()).find("this chip") != std::string::npos) throw;
      return {};
    }
  };
  const std::vector<std::string> hopper = metrics("GH100");
  if (hopper.empty()) return skip_test("no libcupti on this machine, or built without it");
  CHECK(hopper[0] == "dram__bytes_read.sum");
  CHECK(metrics("GB202")[0] == "dram__bytes_op_read.sum");
  CHECK(metrics("GA10B")[1].empty());  // Jetson Orin shares the host's memory
  for (const char* chip : {"TU102", "GA100", "AD102", "GH100", "GB100", "GB202"})
    for (const std::string& name : metrics(chip)) CHECK_FALSE(name.empty());
  CHECK_THROWS_AS(cupti_metrics("XX100"), CountersUnavailable);
}

TEST_CASE("the report and JSON show what was measured") {
  MeasuredTraffic measured;
  measured.kernels = {bytes({1, 2, 3, 4, 5, 6, 7}), bytes({10, 20, 30, 40, 50, 60, 70}),
                      bytes({4'000'000, 5'000'000, 6'000'000, 7, 8, 0, 0})};
  measured.together = bytes({4'000'011, 5'000'022, 6'000'033, 51, 63, 66, 77});
  measured.together[Counter::l2_to_sm].reset();
  measured.why_not[static_cast<size_t>(Counter::l2_to_sm)] = "this chip has no such counter";
  const RunResult result = a_gpu_run(measured);
  const std::string text = report_text(result);
  INFO(text);
  CHECK(has(text, "9.0 MB"));
  CHECK(has(text, "measured  HBM read 4000011, write 5000022 · L2→SM n/a · requested: load 51 (formula "));
  CHECK(has(text, "spills: load 66, store 77"));
  CHECK(has(text, "n/a above: this chip has no such counter"));
  const nlohmann::json json = nlohmann::json::parse(json_text(result));
  CHECK(json["traffic"]["hbm_measured_bytes"] == 9000033);
  CHECK(json["traffic"]["hbm_measured_by_direction"]["read"] == 4000011);
  CHECK_FALSE(json["traffic"].contains("hbm_measured_reason"));
  CHECK(json["traffic"]["l2_to_sm_measured_bytes"].is_null());
  CHECK(json["traffic"]["l2_to_sm_measured_reason"] == "this chip has no such counter");
  CHECK(json["traffic"]["spill_bytes"]["store"] == 77);
  CHECK(json["kernels"][1]["requested_measured_bytes"]["load"] == 40);
  CHECK(json["kernels"][2]["hbm_measured_bytes"] == 9000000);
  CHECK(json["traffic"]["hbm_rate"]["of"] == "measured bytes");
  CHECK(json["traffic"]["hbm_rate"]["label"] == "HBM");
}

TEST_CASE("switched off, planned and wrong runs say why nothing was measured") {
  const Step& step = *find_step(DeviceKind::cpu, "step04");
  const auto reason = [&](std::vector<const char*> flags) {
    flags.insert(flags.end(), {"--device", "cpu", "--seqlen", "64", "--heads", "1"});
    const RunResult result = run_with_flags(step, flags);
    return not_measured_reason(result, result.methods.back());
  };
  CHECK(reason({}) == "the CPU executor has no HBM");
  CHECK(reason({"--traffic", "off"}) == "switched off (--traffic off)");
  CHECK(reason({"--plan"}) == "nothing ran (--plan)");
}

TEST_CASE("a rate above the memory's peak is cache-resident") {  // hard case A17
  CHECK_FALSE(hbm_rate(std::nullopt, 100, 0, 1e9));
  CHECK(hbm_rate(std::nullopt, 1'049'000, 1, 1e9)->cache_resident == false);
  CHECK(hbm_rate(std::nullopt, 1'051'000, 1, 1e9)->cache_resident == true);
  CHECK(hbm_rate(500'000, 1'051'000, 1, 1e9)->cache_resident == false);  // the measured bytes count
  CHECK(hbm_rate(500'000, 1'051'000, 1, 1e9)->measured);
  CHECK(hbm_rate(std::nullopt, 1'000'000'000, 1, std::nullopt)->cache_resident == false);
  MeasuredTraffic nothing;
  nothing.reason = "no counters";
  RunResult result = a_gpu_run(nothing);
  result.methods.back().time->median_ms = 1e-6;
  CHECK(has(report_text(result), "of expected bytes over time: cache-resident, this GPU's HBM peaks at 1.0 TB/s"));
  CHECK(nlohmann::json::parse(json_text(result))["traffic"]["hbm_rate"]["label"] == "cache-resident");
}

TEST_CASE("the cache regime is told") {
  const auto lines = [](const char* id, std::vector<const char*> sizes, int64_t l2) {
    const Step& step = *find_step(DeviceKind::cpu, id);
    sizes.insert(sizes.end(), {"--device", "cpu", "--plan"});
    const RunResult result = run_with_flags(step, sizes);
    const MethodResult& method = result.methods.back();
    return cache_regime(result.problem, method.expected, method.scratch, l2);
  };
  const std::vector<const char*> one_head = {"--heads", "1", "--seqlen", "2048"};
  REQUIRE(lines("step02", one_head, 60'000'000).size() == 2);  // S and P, 16.8 MB each
  CHECK(lines("step02", one_head, 60'000'000)[0] == "S 16.8 MB fits this L2 (60.0 MB): the formula does not apply");
  CHECK(lines("step02", {"--heads", "16", "--seqlen", "4096"}, 60'000'000).empty());
  CHECK(lines("step02", one_head, 0).empty());
  CHECK(lines("step04", {"--heads", "16", "--seqlen", "4096"}, 60'000'000).empty());
  const std::vector<std::string> long_rows = lines("step04", {"--heads", "1", "--seqlen", "131072"}, 60'000'000);
  REQUIRE(long_rows.size() == 1);
  CHECK(long_rows[0] ==
        "attention: K, V of one head, 67.1 MB, exceed this L2 (60.0 MB): read again from HBM, where the formula counts "
        "them once");
}

TEST_CASE("the counters of this GPU agree with the formulas", "[gpu][alone]") {
  const auto measured = [](const char* id, std::vector<const char*> flags) {
    flags.insert(flags.end(), {"--device", "gpu", "--check", "none", "--repeat", "1"});
    return run_with_flags(*find_step(DeviceKind::gpu, id), flags);
  };
  const RunResult ragged = measured("step04", {"--seqlen", "1000", "--heads", "4", "--causal"});
  const MethodResult& flash = ragged.methods.back();
  REQUIRE(flash.measured);
  if (!flash.measured->measured()) return skip_test(flash.measured->reason);
  // Rows are multiples of 32 bytes, so that loads agree to the byte; LSE's 4-byte stores count whole sectors of 32.
  const CounterBytes& counted = flash.measured->together;
  CHECK(counted[Counter::requested_load] == total_load(flash.requested()));
  const int64_t stores = total_store(flash.requested()), lse = ragged.problem.L() * 4;
  CHECK(counted[Counter::requested_store] >= stores);
  CHECK(counted[Counter::requested_store] <= stores + 7 * lse);
  REQUIRE(
      counted
          [Counter::l2_to_sm]);  // tile loads go past L1, so that what is asked for comes from L2; spills come on top
  CHECK(static_cast<double>(*counted[Counter::l2_to_sm]) ==
        Approx(static_cast<double>(total_load(flash.requested()))).epsilon(0.1));

  // S and P of 16 heads at N=4096 are 1.07 GB each: several times any L2.
  const RunResult naive = measured("step02", {"--seqlen", "4096", "--heads", "16"});
  const MethodResult& three = naive.methods.back();
  REQUIRE(hbm_total(three.measured->together));
  const double expected = static_cast<double>(total_load(three.hbm()) + total_store(three.hbm()));
  CHECK(static_cast<double>(*hbm_total(three.measured->together)) == Approx(expected).epsilon(0.03));
  const RunResult online = measured("step04", {"--seqlen", "4096", "--heads", "16"});
  REQUIRE(hbm_total(online.methods.back().measured->together));
  CHECK(static_cast<double>(*hbm_total(online.methods.back().measured->together)) < expected / 50);
}
