#include "common/roofline/preflight.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <thread>
#include <tuple>

#include "common/base/build_info.h"
#include "common/base/json.h"
#include "common/base/text.h"

namespace attention {

namespace {

using State = Finding::State;

std::string human_rate(double per_second, const char* unit) {
  if (per_second >= 1e12) return fmt::format("{:.3g} T{}/s", per_second / 1e12, unit);
  return fmt::format("{:.3g} G{}/s", per_second / 1e9, unit);
}

/// Sizes on a chip are powers of two and their multiples.
std::string binary_bytes(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.4g} GiB", value / (1 << 30));
  if (bytes >= int64_t{1} << 20) return fmt::format("{:.4g} MiB", value / (1 << 20));
  return fmt::format("{:.4g} KiB", value / (1 << 10));
}

/// {13, 0} of "13.0" or "13.0.48".
std::pair<int, int> version(const std::string& text) {
  std::pair<int, int> v{0, 0};
  char dot = 0;
  std::istringstream(text) >> v.first >> dot >> v.second;
  return v;
}

/// What helps against GpuPresence::trouble, whose own text says it after the last colon unless it is an error code's.
std::string next_action(const std::string& trouble) {
  if (trouble.find("libcuda") != std::string::npos)
    return "install the NVIDIA driver's libraries, or start the container with its GPUs (--gpus all)";
  if (trouble.find("CUDA error") != std::string::npos)
    return "run nvidia-smi: it shows the driver's state and which programs hold the GPU";
  const size_t colon = trouble.rfind(": ");
  return colon == std::string::npos ? "run nvidia-smi" : trouble.substr(colon + 2);
}

Finding driver_finding(const GpuPresence& gpu) {
  const std::string text = fmt::format("driver for CUDA {}, toolkit {}", gpu.driver_cuda, build_info::kCuda);
  if (version(gpu.driver_cuda) >= version(build_info::kCuda)) return {"driver", State::ok, text, ""};
  return {"driver", State::note,
          text + ": runs (same major version), but this driver cannot compile this toolkit's PTX",
          "update the driver, or keep building for the GPU's own architecture"};
}

Finding architecture_finding(int compute_capability) {
  const std::string own = std::to_string(compute_capability);
  std::stringstream list(build_info::kCudaArchitectures);
  bool exact = false;
  for (std::string entry; std::getline(list, entry, ',');)
    exact = exact || (entry.compare(0, own.size(), own) == 0 && entry.find("virtual") == std::string::npos);
  const std::string text = fmt::format("built for sm_{}, this GPU is sm_{}", build_info::kCudaArchitectures, own);
  if (exact) return {"architecture", State::ok, text, ""};
  return {"architecture", State::note, text + ": runs, with code made for another GPU",
          "configure again with -DCMAKE_CUDA_ARCHITECTURES=" + own};
}

Finding dtype_finding(const DeviceFigures& f) {
  std::string served;
  for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16})
    if (std::any_of(f.tile_products.begin(), f.tile_products.end(),
                    [&](const TileProductRate& rate) { return rate.dtype == dtype; }))
      served += (served.empty() ? "" : ", ") + std::string(dtype_name(dtype));
  Finding finding{"dtypes", State::ok, "the steps' products run in " + (served.empty() ? "none" : served), ""};
  if (!f.mma_bf16) {
    finding.state = State::note;
    finding.text += "; bf16 needs compute capability 8.0, this GPU has " + capability_name(f.compute_capability);
    finding.next = f.mma_fp16 ? "take fp16 where a chapter uses bf16" : "stay with fp32";
  }
  return finding;
}

const char* state_name(State state) { return state == State::ok ? "ok" : state == State::note ? "note" : "problem"; }

}  // namespace

std::vector<Finding> gpu_findings(const GpuPresence& gpu, const DeviceFigures* figures) {
  if (gpu.count == 0)
    return {{"gpu", State::note, gpu.compiled_in ? "no GPU found" : "no GPU found; built without CUDA",
             "use the CPU executor: ./step04 runs on it by itself where there is no GPU"}};
  if (!gpu.trouble.empty()) return {{"gpu", State::problem, gpu.trouble, next_action(gpu.trouble)}};
  std::vector<Finding> findings;
  if (figures != nullptr) {
    findings.push_back({"gpu", State::ok, figures->gpu, ""});
    if (gpu.count > 1) {
      findings.back().text += fmt::format(", the first of {}", gpu.count);
      findings.back().next = "CUDA_VISIBLE_DEVICES=n chooses another";
    }
  }
  findings.push_back(driver_finding(gpu));
  if (figures != nullptr) findings.push_back(architecture_finding(figures->compute_capability));
  return findings;
}

std::vector<Finding> ability_findings(const DeviceFigures& f, const CounterAccess& counters) {
  std::vector<Finding> findings;
  std::string tiles;
  for (const TileProductRate& rate : f.tile_products)
    if (rate.dtype == Dtype::fp32)
      tiles += fmt::format("{}{} at d {}", tiles.empty() ? "" : ", ", tile_name(rate.tile), rate.head_dim);
  findings.push_back({"SRAM", State::ok,
                      fmt::format("a block may ask for {} bytes; fp32 tiles that fit: {}", f.sram_bytes_per_block,
                                  tiles.empty() ? "none" : tiles),
                      ""});
  findings.push_back(dtype_finding(f));
  if (counters.allowed)
    findings.push_back({"counters", State::ok, "hardware counters can be read: the steps measure their traffic", ""});
  else
    findings.push_back(
        {"counters", State::note, "measured traffic will show n/a: " + counters.reason, counters.advice});
  return findings;
}

std::vector<Finding> executor_findings() {
  Finding executor{"executor", State::ok,
                   fmt::format("the steps' own kernels on {} CPU threads: bytes counted one by one, races, missing "
                               "barriers and wild accesses found; no GPU time",
                               std::max(1u, std::thread::hardware_concurrency())),
                   ""};
#if !defined(ATTN_HAVE_BOOST_CONTEXT)
  executor.state = State::note;
  executor.text += "; its fibers use ucontext, which is slow";
  executor.next = "install Boost.Context (apt-get install libboost-context-dev) and configure again";
#endif
  return {executor};
}

std::string findings_text(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += fmt::format("{:<8}  {:<13} {}\n", state_name(finding.state), finding.name, finding.text);
    if (!finding.next.empty()) text += fmt::format("{:>25} {}\n", "next:", finding.next);
  }
  return text;
}

std::string figures_text(const DeviceFigures& f) {
  std::string text = fmt::format("{:<26}{:>12}{:>14}\n", "memory", "size", "read");
  text += fmt::format("  {:<24}{:>12}{:>14}   copy {} (BW){}\n", "HBM", binary_bytes(f.hbm_bytes),
                      human_rate(f.hbm_read, "B"), human_rate(f.hbm_copy, "B"),
                      f.hbm_peak ? fmt::format(", clock x bus width {}", human_rate(*f.hbm_peak, "B")) : "");
  text += fmt::format("  {:<24}{:>12}{:>14}\n", "L2", binary_bytes(f.l2_bytes), human_rate(f.l2_read, "B"));
  text += fmt::format("  {:<24}{:>12}{:>14}   {} SMs x {}\n", "SRAM", binary_bytes(f.sm_count * f.sram_bytes_per_sm),
                      human_rate(f.sram_read, "B"), f.sm_count, binary_bytes(f.sram_bytes_per_sm));

  text += fmt::format("{:<38}{:>14}\n", "products", "rate");
  const auto product = [&](const char* name, const std::optional<double>& rate, const char* needs) {
    text +=
        fmt::format("  {:<36}{:>14}\n", name, rate ? human_rate(*rate, "FLOP") : fmt::format("n/a (needs {})", needs));
  };
  product("fp32 FFMA, operands in registers", f.ffma_fp32, "");
  product("fp16 mma.sync, operands in registers", f.mma_fp16, "7.5 or newer");
  product("bf16 mma.sync, operands in registers", f.mma_bf16, "8.0 or newer");
  product("fp16 wgmma, tiles in SRAM", f.wgmma_fp16, "Hopper, 9.0");
  product("bf16 wgmma, tiles in SRAM", f.wgmma_bf16, "Hopper, 9.0");
  const auto tile_product = [&](const TileProductRate& rate, const char* how) {
    text += fmt::format(
        "  {:<36}{:>14}   R/BW {:.3g} FLOP/byte{}\n",
        fmt::format("{} tiles in SRAM, d {}, {} (R)", dtype_name(rate.dtype), rate.head_dim, tile_name(rate.tile)),
        human_rate(rate.flops_per_second, "FLOP"), rate.flops_per_second / f.bandwidth(), how);
  };
  for (const TileProductRate& rate : f.tile_products) tile_product(rate, "");
  for (const TileProductRate& rate : f.split_products)
    tile_product(rate, ", split on tensor cores (--product tensor-cores)");

  text += fmt::format("{:<26}{:>12}{:>14}\n", "reading again and again", "bytes", "rate");
  for (const WorkingSetRate& set : f.working_sets)
    text += fmt::format("  {:<24}{:>12}{:>14}{}\n", "", binary_bytes(set.bytes), human_rate(set.bytes_per_second, "B"),
                        is_cache_resident(set.bytes_per_second, f) ? "   cache-resident" : "");
  text += fmt::format("launch  {:.2g} us from one empty kernel to the next, {:.2g} us until the host sees one end\n",
                      f.launch_spacing_us, f.launch_round_trip_us);
  return text;
}

std::string step00_json(const DeviceFigures* figures, const std::string& reason_without,
                        const std::vector<Finding>& findings) {
  Json json;
  if (figures != nullptr) json = Json::parse(figures_json(*figures));
  else json = {{"schema", "attention-device-1"}, {"gpu", nullptr}, {"gpu_reason", reason_without}};
  json["findings"] = Json::array();
  for (const Finding& finding : findings)
    json["findings"].push_back(
        {{"name", finding.name}, {"state", state_name(finding.state)}, {"text", finding.text}, {"next", finding.next}});
  Json& versions = json["versions"];
  for (const auto& [key, text, reason] :
       {std::tuple{"git_commit", build_info::kGitCommit, build_info::kNoCommitReason},
        {"compiler", build_info::kCompiler, "not known"},
        {"build_type", build_info::kBuildType, "not known"},
        {"cuda_toolkit", build_info::kCuda, "built without CUDA"},
        {"cuda_architectures", build_info::kCudaArchitectures, "built without CUDA"}})
    put(versions, key, or_null(std::string(text)), reason);
  return json.dump(2) + "\n";
}

}  // namespace attention
