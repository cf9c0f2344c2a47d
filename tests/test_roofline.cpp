// What step00 measures and what is made of it: the figures' file, the prediction, step00 and the yardstick as programs.
#include <nlohmann/json.hpp>

#include "common/harness/json.h"
#include "common/harness/report.h"
#include "common/roofline/figures.h"
#include "common/roofline/preflight.h"
#include "common/roofline/prediction.h"
#include "tests/catch.h"
#include "tests/programs.h"

using namespace attention;

namespace {

using Json = nlohmann::json;

/// A made-up GPU with round figures: R = 50 TFLOP/s in fp32 at d 64, BW = 4 TB/s.
DeviceFigures made_up_gpu() {
  DeviceFigures f;
  f.gpu = "Made-up GPU";
  f.driver_cuda = "13.0";
  f.compute_capability = 90;
  f.sm_count = 100;
  f.hbm_bytes = int64_t{64} << 30;
  f.l2_bytes = 50 << 20;
  f.sram_bytes_per_sm = 200 << 10;
  f.sram_bytes_per_block = 199 << 10;
  f.hbm_read = 4.1e12;
  f.hbm_copy = 4e12;
  f.hbm_peak = 4.8e12;
  f.l2_read = 9e12;
  f.sram_read = 3e13;
  f.working_sets = {{1 << 20, 9.5e12}, {1 << 30, 4.1e12}};
  f.ffma_fp32 = 6e13;
  f.mma_fp16 = 6e14;
  f.wgmma_fp16 = 8e14;
  f.tile_products = {{Dtype::fp32, 64, {128, 64}, 2, 5e13}, {Dtype::fp32, 128, {128, 64}, 1, 4e13}};
  f.split_products = {{Dtype::fp32, 64, {128, 64}, 2, 1.2e14}};
  f.launch_spacing_us = 2;
  f.launch_round_trip_us = 6;
  return f;
}

Problem of(Dtype dtype, int head_dim, bool on_tensor_cores = false) {
  return {.head_dim = head_dim, .dtype = dtype, .on_tensor_cores = on_tensor_cores};
}

Problem problem(int64_t heads, int64_t n, int head_dim) {
  return {
      .heads = heads, .seqlen_q = n, .seqlen_k = n, .head_dim = head_dim, .softmax_scale = 0.125f, .tile = {128, 64}};
}

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

constexpr const char* kNoGpu = "CUDA_VISIBLE_DEVICES=";

/// A GPU that stays visible whatever the environment says: one that a build without CUDA sees by its device file.
bool gpu_cannot_be_hidden() { return !find_gpu().compiled_in && find_gpu().count > 0; }

}  // namespace

TEST_CASE("the prediction is executed FLOPs over R plus HBM bytes over BW") {
  const Problem p = problem(16, 4096, 64);
  const std::vector<KernelCost> step04 = {
      KernelCost("attention", p)
          .loads("Q", p.Xq(), p.Xq())
          .loads("K", 9, p.Xk())
          .loads("V", 9, p.Xk())
          .stores("O", p.Xq(), p.Xq())
          .stores("LSE", p.L(), p.L())
          .multiplies(visits_all(4096, 4096, 128, 64), 2)};
  CHECK(intensity(step04).flops == 68719476736);  // 4 * 4096^2 * 64 * 16
  CHECK(intensity(step04).bytes == 67371008);     // 4 * (4 * 4194304 + 65536)
  const Known<Prediction> result = predict(step04, p, made_up_gpu());
  REQUIRE(result);
  CHECK(result->flops_ms == Approx(1.37438953472));
  CHECK(result->bytes_ms == Approx(0.016842752));
  CHECK(prediction_text(result) == "predicted 1.39 ms = FLOPs 1.37 + bytes 0.017");

  std::vector<KernelCost> two = step04;  // kernels add up
  two.push_back(KernelCost("softmax", p).loads("S", p.S(), p.S()).moves_at_least());
  const Prediction sum = *predict(two, p, made_up_gpu());
  CHECK(sum.bytes_ms == Approx(0.016842752 + 0.268435456));
  CHECK(sum.flops_ms == Approx(1.37438953472));
  CHECK(has(prediction_text(sum), "predicted at least 1.66 ms"));
}

TEST_CASE("R is that of the smallest tile that holds the row, less the padding") {
  const DeviceFigures f = made_up_gpu();
  CHECK(*f.product_rate(of(Dtype::fp32, 64)) == 5e13);
  CHECK(*f.product_rate(of(Dtype::fp32, 40)) == Approx(5e13 * 40 / 64));
  CHECK(*f.product_rate(of(Dtype::fp32, 80)) == Approx(4e13 * 80 / 128));
  CHECK(*f.product_rate(of(Dtype::fp32, 128)) == 4e13);
  CHECK_FALSE(f.product_rate(of(Dtype::fp32, 129)));
  CHECK_FALSE(f.product_rate(of(Dtype::fp16, 64)));
  CHECK(*f.product_rate(of(Dtype::fp32, 32, true)) == 6e13);
  CHECK_FALSE(f.product_rate(of(Dtype::fp32, 128, true)));
}

TEST_CASE("a step of warpgroup products is predicted from their rate") {
  DeviceFigures f = made_up_gpu();
  f.tile_products.push_back({Dtype::fp16, 128, {128, 64}, 2, 6e14});
  Problem p = problem(16, 4096, 128);
  p.dtype = Dtype::fp16;
  const std::vector<KernelCost> mma = {KernelCost("attention", p).multiplies(visits_all(4096, 4096, 128, 64), 2)};
  const std::vector<KernelCost> wgmma = {
      KernelCost("attention", p).multiplies(visits_all(4096, 4096, 128, 64), 2).by_warpgroups()};
  CHECK(predict(mma, p, f)->flops_ms == Approx(4.0 * 4096 * 4096 * 128 * 16 / 6e14 * 1e3));
  CHECK(predict(wgmma, p, f)->flops_ms == Approx(4.0 * 4096 * 4096 * 128 * 16 / 8e14 * 1e3));
  f.wgmma_fp16.reset();  // a file of an older step00
  CHECK(has(predict(wgmma, p, f).reason, "no warpgroup product rate for fp16"));
  CHECK(*made_up_gpu().product_rate(of(Dtype::fp32, 64), true) == Approx(8e14 / 3));  // in parts: three for one
  CHECK_FALSE(made_up_gpu().product_rate(of(Dtype::bf16, 64), true));
}

TEST_CASE("no prediction says why") {
  const Problem p = problem(1, 64, 256);
  const std::vector<KernelCost> kernels = {KernelCost("attention", p).loads("Q", 1, 1)};
  CHECK(prediction_text(
            predict(kernels, p, Known<DeviceFigures>::none("step00 has not measured this GPU: run ./step00 once"))) ==
        "predicted n/a (step00 has not measured this GPU: run ./step00 once)");
  CHECK(has(predict(kernels, p, made_up_gpu()).reason, "no product rate for fp32 at head_dim 256"));
  const std::vector<KernelCost> library = {KernelCost("scores", p).by_library().loads("Q", 5, 7)};
  CHECK(has(predict(library, p, made_up_gpu()).reason, "library"));
  CHECK(library.front().requested.empty());  // not 0: not known
  CHECK(total_load(library.front().hbm) == 28);
}

TEST_CASE("the break-even of recomputing is extra FLOPs over saved bytes") {
  const Step* step05 = find_step(DeviceKind::cpu, "step05");
  REQUIRE(step05 != nullptr);
  Problem p = problem(4, 4096, 64);
  p.tile = {64, 64};
  p.sram_limit = 232448;
  const auto cost = [&](const std::string& name) {
    for (const Method& method : step05->methods)
      if (method.name == name) return method.cost(p);
    return std::vector<KernelCost>{};
  };
  const std::vector<KernelCost> standard = cost("standard backward"), recompute = cost("recompute backward");
  const std::optional<double> needed = break_even(standard, recompute);
  REQUIRE(needed);
  CHECK(*needed ==
        Approx(6.0 * 64 / (7 * 4)).epsilon(0.03));  // 6d / (7 bytes per element), but for the terms in X and L
  CHECK_FALSE(break_even(recompute, standard));
}

TEST_CASE("a rate above the HBM's is a cache's") {  // hard case A17
  DeviceFigures f = made_up_gpu();
  CHECK_FALSE(is_cache_resident(4.8e12, f));
  CHECK_FALSE(is_cache_resident(5.03e12, f));
  CHECK(is_cache_resident(5.05e12, f));
  f.hbm_peak.reset();  // the driver does not tell: the best rate that was measured
  CHECK(is_cache_resident(4.4e12, f));
  CHECK_FALSE(is_cache_resident(4.3e12, f));
  CHECK(has(figures_text(made_up_gpu()), "9.5 TB/s   cache-resident"));
}

TEST_CASE("figures survive their file") {
  const DeviceFigures f = made_up_gpu(), read = parse_figures(step00_json(&f, "", {}));
  CHECK(figures_json(read) == figures_json(f));
  CHECK_FALSE(read.mma_bf16);
  CHECK(*read.wgmma_fp16 == 8e14);
  CHECK(has(figures_text(f), "bf16 wgmma, tiles in SRAM           n/a (needs Hopper, 9.0)"));
  CHECK(*read.hbm_peak == 4.8e12);
  CHECK(read.tile_products.size() == 2);
  CHECK(read.split_products.size() == 1);
  CHECK(read.working_sets.front().bytes == 1 << 20);
  CHECK(Json::parse(figures_json(f))["R"].get<std::string>().find("tile_products") == 0);
  Json older = Json::parse(figures_json(f));
  older.erase("split_tile_products");
  older["flops_per_second"].erase("wgmma_fp16");
  CHECK(parse_figures(older.dump()).split_products.empty());
  CHECK_FALSE(parse_figures(older.dump()).wgmma_fp16);
}

TEST_CASE("the file lies in the cache folder, named after the GPU") {
  const Environment no_path("ATTN_DEVICE_FIGURES", nullptr);
  {
    const Environment cache("XDG_CACHE_HOME", "/some/cache");
    CHECK(figures_path("NVIDIA H200") == "/some/cache/attention-steps/NVIDIA_H200.json");
    CHECK(figures_path("../GPU/2") == "/some/cache/attention-steps/.._GPU_2.json");
    const Environment own("ATTN_DEVICE_FIGURES", "/own.json");
    CHECK(figures_path("NVIDIA H200") == "/own.json");
  }
  const Environment no_cache("XDG_CACHE_HOME", nullptr);
  const Environment home("HOME", "/home/someone");
  CHECK(figures_path("A") == "/home/someone/.cache/attention-steps/A.json");
  const Environment no_home("HOME", nullptr);
  CHECK(figures_path("A").empty());
  CHECK(has(find_figures("A", "13.0").reason, "ATTN_DEVICE_FIGURES"));
}

TEST_CASE("figures that cannot be used give a reason and an action") {
  const Folder folder;
  const std::string path = folder.path + "/figures.json";
  const Environment place("ATTN_DEVICE_FIGURES", path.c_str());
  const auto reason = [&](const std::string& gpu = "Made-up GPU", const std::string& driver = "13.0") {
    const Known<DeviceFigures> kept = find_figures(gpu, driver);
    CHECK_FALSE(kept);
    CHECK(has(kept.reason, "run ./step00 once"));
    CHECK_FALSE(has(kept.reason, "\n"));
    return kept.reason;
  };
  CHECK(has(reason(), "has not measured this GPU"));
  const DeviceFigures f = made_up_gpu();
  const std::string good = figures_json(f);
  write(path, good);
  CHECK(find_figures("Made-up GPU", "13.0").value);
  CHECK(has(reason("NVIDIA H200"), "another GPU (Made-up GPU)"));
  CHECK(has(reason("Made-up GPU", "12.4"), "a driver for CUDA 13.0, this one is for 12.4"));

  write(path, good.substr(0, good.size() / 2));
  CHECK(has(reason(), "not JSON"));
  for (const std::string text : {"", "\xff\xfe", "null", "[]", "{}", "7", "\"attention-device-1\""}) {
    write(path, text);
    CHECK(has(reason(), "not written by step00"));
  }
  const auto broken = [&](const std::string& pointer, const Json& value) {
    Json json = Json::parse(good);
    json[Json::json_pointer(pointer)] = value;
    write(path, json.dump());
    return reason();
  };
  CHECK(has(broken("/schema", "attention-device-0"), "schema"));
  CHECK(has(broken("/bytes_per_second/hbm_copy", 0), "hbm_copy is not a positive number"));
  CHECK(has(broken("/bytes_per_second/hbm_copy", -1), "hbm_copy"));
  CHECK(has(broken("/bytes_per_second/hbm_copy", nullptr), "a figure is missing"));
  CHECK(has(broken("/bytes_per_second/hbm_copy", "4e12"), "a figure is missing"));
  CHECK(has(broken("/tile_products/0/tile", "128"), "BrxBc"));
  CHECK(has(broken("/tile_products/0/dtype", "fp8"), "fp8"));
  CHECK(has(broken("/tile_products", 3), "a figure is missing"));
  CHECK(has(broken("/gpu", Json::object()), "a figure is missing"));
  write(path, step00_json(nullptr, "no GPU found", {}));
  CHECK(has(reason(), "a figure is missing"));
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  CHECK(has(reason(), "cannot be read"));
}

TEST_CASE("report and JSON of a GPU run carry prediction and roofline") {
  RunResult r;
  r.step = "step99";
  r.device = DeviceKind::gpu;
  r.device_name = "Made-up GPU";
  r.problem = problem(16, 4096, 64);
  r.figures = made_up_gpu();
  const Problem& p = r.problem;
  MethodResult& m = r.methods.emplace_back();
  m.name = "forward";
  m.expected = {
      KernelCost("attention", p).loads("Q", 4 * p.Xq(), 4 * p.Xq()).multiplies(visits_all(4096, 4096, 128, 64), 2)};
  m.launches = {LaunchRecord{.kernel = "attention", .time_ms = 1.8}};
  m.useful_flops = 68719476736;
  m.time = TimeStats{.median_ms = 1.8, .p10_ms = 1.8, .p90_ms = 1.9, .runs = 20, .emulated = false};
  CHECK(has(report_text(r), "predicted 1.39 ms = FLOPs 1.37 + bytes 0.017"));
  Json json = Json::parse(json_text(r));
  CHECK(json["time"]["predicted_ms"].get<double>() == Approx(1.3911668));
  CHECK(json["roofline"]["arithmetic_intensity"].get<double>() == Approx(1024));
  CHECK(json["roofline"]["R_flops_per_second"] == 5e13);
  CHECK(json["roofline"]["BW_bytes_per_second"] == 4e12);
  CHECK(json["roofline"]["balance_flops_per_byte"].get<double>() == Approx(12.5));
  CHECK(json["kernels"][0]["roofline"]["predicted_bytes_ms"].get<double>() == Approx(0.016777216));

  r.figures = Known<DeviceFigures>::none("step00 has not measured this GPU: run ./step00 once");
  CHECK(has(report_text(r), "predicted n/a (step00 has not measured this GPU: run ./step00 once)"));
  json = Json::parse(json_text(r));
  CHECK(json["time"]["predicted_ms"].is_null());
  CHECK(has(json["roofline"]["R_flops_per_second_reason"], "run ./step00 once"));
  CHECK(json["roofline"]["arithmetic_intensity"].get<double>() == Approx(1024));

  m.expected = {KernelCost("scores", p).by_library().loads("Q", 0, p.Xq())};
  r.problem.tile = {};
  json = Json::parse(json_text(r));
  CHECK(json["tile"].is_null());
  CHECK(json["traffic"]["requested_expected_bytes"].is_null());
  CHECK(json["traffic"]["by_tensor"]["Q"]["hbm_expected_bytes"]["load"] == 4 * p.Xq());
  CHECK(has(report_text(r), "requested n/a (a library's kernels)"));
}

TEST_CASE("the checks name one next action each") {
  GpuPresence gpu;
  gpu.compiled_in = true;
  gpu.count = 1;
  gpu.trouble =
      "the GPU's driver supports CUDA 11.4, this program was built with CUDA 13.0: update the driver or build with an "
      "older toolkit";
  CHECK(gpu_findings(gpu, nullptr).front().state == Finding::State::problem);
  CHECK(gpu_findings(gpu, nullptr).front().next == "update the driver or build with an older toolkit");
  gpu.trouble =
      "the GPU cannot be used: CUDA error cudaErrorDevicesUnavailable (CUDA-capable device(s) is/are busy or "
      "unavailable)";
  CHECK(has(gpu_findings(gpu, nullptr).front().next, "nvidia-smi"));
  gpu.trouble = "a GPU is present (/dev/nvidia0), but its driver library libcuda.so.1 is not found";
  CHECK(has(gpu_findings(gpu, nullptr).front().next, "driver's libraries"));

  const DeviceFigures f = made_up_gpu();
  const std::string text =
      findings_text(ability_findings(f, {false, "no permission (CUPTI error 35)", "ask the administrator"}));
  CHECK(has(text, "note      counters      measured traffic will show n/a: no permission (CUPTI error 35)\n"));
  CHECK(has(text, "next: ask the administrator"));
  CHECK(has(text, "the steps' products run in fp32; bf16 needs compute capability 8.0"));
  CHECK(has(findings_text(ability_findings(f, {true, "", ""})), "ok        counters"));
}

TEST_CASE("step00 without a GPU says what the executor can do") {
  if (gpu_cannot_be_hidden()) return skip_test("a GPU is here and cannot be hidden from a build without CUDA");
  const Outcome text = run_program("step00", kNoGpu);
  CHECK(text.code == 0);
  CHECK(text.err.empty());
  CHECK(has(text.out, "no GPU found"));
  CHECK(has(text.out, "executor"));
  const Outcome json = run_program("step00 --json -", kNoGpu);
  CHECK(json.code == 0);
  CHECK(Json::parse(json.out)["gpu"].is_null());
  CHECK(has(Json::parse(json.out)["gpu_reason"], "no GPU found"));
  CHECK(has(json.err, "executor"));
  const Folder folder;
  CHECK(run_program("step00 --json " + folder.path + "/x.json", kNoGpu).code == 0);
  CHECK(Json::parse(slurp(folder.path + "/x.json"))["schema"] == "attention-device-1");
}

TEST_CASE("step00 refuses what it does not know") {
  for (const std::string flags :
       {"--jso x", "4096", "--json", "--json ''", "--json /no/such/folder/x.json", "--json /"}) {
    INFO(flags);
    const Outcome outcome = run_program("step00 " + flags, kNoGpu);
    CHECK(outcome.code == 2);
    CHECK(outcome.out.empty());
    CHECK(outcome.err_lines() == 1);
  }
  CHECK(has(run_program("step00 --help", kNoGpu).out, "docs/00-two-memories.md"));
}

TEST_CASE("the yardstick runs on a GPU only") {
  if (!std::filesystem::exists(ATTN_STEP_FOLDER "/yardstick")) return skip_test("built without cuBLAS");
  const Outcome outcome = run_program("yardstick --seqlen 64", kNoGpu);
  CHECK(outcome.code == 3);
  CHECK(has(outcome.err, "yardstick runs on a GPU only"));
  CHECK(run_program("yardstick --device cpu", kNoGpu).code == 3);
  CHECK(run_program("yardstick --seqlen 0", kNoGpu).code == 2);
}

TEST_CASE("step00 measures this GPU and the steps predict from it", "[gpu][alone]") {
  const Folder folder;
  const std::string place = "ATTN_DEVICE_FIGURES=" + folder.path + "/figures.json";
  CHECK(has(run_program("step04 --seqlen 256 --repeat 3", place).out,
            "predicted n/a (step00 has not measured this GPU: run ./step00 once)"));
  const Outcome measured = run_program("step00", place);
  INFO(measured.out + measured.err);
  REQUIRE(measured.code == 0);
  const DeviceFigures f = parse_figures(slurp(folder.path + "/figures.json"));
  CHECK(f.l2_read > f.hbm_read);
  CHECK(f.sram_read > f.l2_read);
  if (f.hbm_peak) CHECK(f.hbm_copy < 1.02 * *f.hbm_peak);
  REQUIRE(f.product_rate(of(Dtype::fp32, 64)));
  CHECK(*f.product_rate(of(Dtype::fp32, 64)) < f.ffma_fp32);
  CHECK(f.launch_round_trip_us > f.launch_spacing_us);

  const Json step04 = Json::parse(run_program("step04 --json - --check none", place).out);
  const double predicted = step04["time"]["predicted_ms"], took = step04["time"]["median_ms"];
  INFO("predicted " << predicted << " ms, took " << took << " ms");
  CHECK(predicted < 1.02 * took);
  CHECK(predicted > 0.5 * took);
  CHECK(run_program("step00", "ATTN_DEVICE_FIGURES=/proc/no/x.json").code == 2);
}

TEST_CASE("the yardstick is right", "[gpu]") {
  if (!std::filesystem::exists(ATTN_STEP_FOLDER "/yardstick")) return skip_test("built without cuBLAS");
  for (const std::string flags :
       {"--seqlen 1", "--seqlen 130 --heads 3 --head-dim 63", "--seqlen 1000 --heads 2 --head-dim 128 --causal",
        "--seqlen-q 300 --seqlen-k 1000 --causal", "--seqlen-q 200 --seqlen-k 100 --heads 2 --causal", "--seqlen 4096",
        "--seqlen 16 --batch 4096 --heads 17 --head-dim 8 --check sample:64"}) {
    INFO(flags);
    const Outcome outcome = run_program("yardstick --repeat 3 " + flags, "");
    INFO(outcome.err);
    CHECK(outcome.code == 0);
    CHECK(has(outcome.out, "at 8 times the steps' tolerance"));
  }
  CHECK(has(run_program("yardstick --seqlen 100 --heads 1 --repeat 1 --trace-row 70", "").out,
            "64..99"));  // no tiles of its own: the trace takes 64 keys
  const Json half =
      Json::parse(run_program("yardstick --json - --seqlen 512 --heads 2 --dtype fp16 --repeat 3", "").out);
  CHECK(half["exactness"][0]["relative_l2_bound"].is_null());
  CHECK(half["traffic"]["hbm_measured_bytes"].is_null());
  CHECK(has(half["traffic"]["hbm_measured_reason"], "a library's call may launch several kernels"));
  CHECK(half["kernels"][1]["hbm_measured_bytes"].is_null());
  const Json plan = Json::parse(run_program("yardstick --plan --json - --seqlen 1000 --heads 2", "").out);
  const int64_t X = 2 * 1000 * 64, S = 2 * 1000 * 1000, L = 2 * 1000;
  CHECK(plan["traffic"]["hbm_expected_bytes"] == 4 * (4 * X + 4 * S + L));
  CHECK(plan["flops"]["executed"] == 4 * S * 64);
  const Json causal = Json::parse(run_program("yardstick --plan --json - --seqlen 1000 --heads 2 --causal", "").out);
  CHECK(causal["traffic"]["hbm_expected_bytes"] == 4 * (4 * X + 4 * S + L + 2 * 1000 * 999 / 2));
}
