#include "common/harness/choose.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "common/base/error.h"
#include "common/base/text.h"

namespace attention {

ChosenDevice choose_device(const Options& options) {
  ExecutorOptions& executor = executor_options();
  executor.race_check = options.race_check;
  executor.thread_order = options.thread_order.value_or(0);
  executor.os_threads = options.os_threads;

  if (options.device == DeviceChoice::gpu) return {open_gpu(), ""};
  if (options.device == DeviceChoice::cpu) return {open_cpu(executor), ""};
  const GpuPresence gpu = find_gpu();
  if (gpu.count > 0 && gpu.compiled_in && registered_steps(DeviceKind::gpu).empty())
    return {open_cpu(executor), "this program's kernels are for the CPU executor alone"};
  if (gpu.count > 0) return {open_gpu(), ""};
  return {open_cpu(executor), gpu.compiled_in ? "no GPU found" : "no GPU found; built without CUDA"};
}

namespace {
/// Throws BadArguments unless positions fit 32 bits, and the largest figure of the report, FLOPs or bytes, 63.
void refuse_overflow(const Problem& p) {
  if (const int64_t longest = std::max(p.seqlen_q, p.seqlen_k); longest > kMostTokens)
    throw BadArguments(fmt::format("seqlen {}: a head has at most {} queries or keys", longest, kMostTokens));
  // 14 FLOPs or at most 7 loads of 4 bytes per pair and dimension; ragged tiles round each length up by less than 256.
  bool overflow = false;
  int64_t product = 56;
  for (const int64_t factor : {p.batch, p.heads, p.seqlen_q + 256, p.seqlen_k + 256, int64_t{p.head_dim} + 256})
    overflow = __builtin_mul_overflow(product, factor, &product) || overflow;
  if (overflow)
    throw BadArguments(fmt::format(
        "batch {} x heads {} x seqlen {} x {} x head_dim {}: the FLOPs and bytes do not fit in 64 bits", p.batch,
        p.heads, p.seqlen_q, p.seqlen_k, p.head_dim));
}
}  // namespace

Problem make_problem(const Options& options, const Step& step, const Device& device) {
  const bool gpu = device.kind() == DeviceKind::gpu;
  Problem p;
  p.batch = options.batch.value_or(1);
  p.heads = options.heads.value_or(gpu ? 16 : 2);
  p.seqlen_q = options.seqlen_q.value_or(gpu ? 4096 : 512);
  p.seqlen_k = options.seqlen_k.value_or(gpu ? 4096 : 512);
  const int64_t head_dim = options.head_dim.value_or(64);
  if (head_dim > step.largest_head_dim)
    throw Unsupported(fmt::format("{} takes head_dim 1 to {}, not {}", step.id, step.largest_head_dim, head_dim));
  p.head_dim = static_cast<int>(head_dim);
  p.causal = options.causal;
  p.left_out = options.left_out;
  p.dtype = options.dtype.value_or(step.default_dtype);
  if (p.dtype != Dtype::fp32 && options.tensor_cores == false)
    throw Unsupported(
        fmt::format("{} runs on tensor cores alone; --product cuda-cores is for fp32", dtype_name(p.dtype)));
  p.on_tensor_cores = p.dtype == Dtype::fp32 && options.tensor_cores.value_or(step.fp32_on_tensor_cores);
  p.softmax_scale = options.softmax_scale.value_or(static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim))));
  p.splits = options.splits;
  p.sram_limit = device.sram_limit();
  p.multiprocessors = device.multiprocessors();
  p.compute_capability = device.compute_capability();
  refuse_overflow(p);
  if (options.trace_row && *options.trace_row >= p.seqlen_q)
    throw BadArguments(fmt::format("--trace-row {}: the queries are 0 to {}", *options.trace_row, p.seqlen_q - 1));
  return p;
}

namespace {
constexpr int kFirstWithBf16 = 80;  // tensor cores multiply bf16 from compute capability 8.0 on (PTX ISA, mma)

bool device_has(Dtype dtype, const Problem& p) {
  return dtype != Dtype::bf16 || p.compute_capability == 0 || p.compute_capability >= kFirstWithBf16;
}

/// The line that refuses p.dtype: why, and which dtypes work here.
std::string describe_missing_dtype(const Step& step, const Problem& p) {
  std::string line =
      device_has(p.dtype, p)
          ? fmt::format("{} has no {} for head_dim {}", step.id, dtype_name(p.dtype), p.head_dim)
          : fmt::format("bf16 needs a GPU of compute capability {} or newer, this one has {}",
                        capability_name(kFirstWithBf16), capability_name(p.compute_capability));
  std::vector<std::string> served;
  for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
    Problem other = p;
    other.dtype = dtype;
    if (device_has(dtype, p) && !step.tiles(other).empty()) served.push_back(dtype_name(dtype));
  }
  return line + (served.empty() ? ""
                                : fmt::format("; {} work{} here (--dtype {})", fmt::join(served, " and "),
                                              served.size() == 1 ? "s" : "", served.back()));
}
}  // namespace

bool serves(const Step& step, const Problem& p) {
  if (!step.tiles || p.head_dim > step.largest_head_dim || !device_has(p.dtype, p) || !refusal(step, p).empty())
    return false;
  const std::vector<TileChoice> tiles = step.tiles(p);
  return !tiles.empty() &&
         !(p.on_tensor_cores &&
           tiles.front().shape == TileShape{});  // a library's products are on the cores of its choice
}

std::string where_more_tiles_are(const Step& step, const std::vector<TileChoice>& choices) {
  if (choices.empty() || choices.front().left_out == 0) return "";
  return fmt::format("; `make {}-tiles` builds it with {} more", step.id, choices.front().left_out);
}

TileShape choose_tile(const Options& options, const Step& step, const Problem& p) {
  if (const std::string why = refusal(step, p); !why.empty()) throw Unsupported(fmt::format("{} {}", step.id, why));
  const std::vector<TileChoice> choices = step.tiles(p);
  if (p.on_tensor_cores && (choices.empty() || choices.front().shape == TileShape{}))
    throw Unsupported(fmt::format(
        "{} has no fp32 on tensor cores for head_dim {}; it runs with --product cuda-cores", step.id, p.head_dim));
  if (choices.empty() || !device_has(p.dtype, p)) throw Unsupported(describe_missing_dtype(step, p));
  const auto refuse_sram = [&](const TileChoice& tile, const char* which) {
    throw Unsupported(fmt::format(
        "{} at head_dim {}: {} tile {} asks for {} bytes of SRAM per block, {} are allowed{}", step.id, p.head_dim,
        which, tile_name(tile.shape), tile.sram_bytes, p.sram_limit, where_more_tiles_are(step, choices)));
  };
  if (options.tile && choices.front().shape == TileShape{})
    throw Unsupported(fmt::format("{} takes no --tile: its products are a library's, which chooses", step.id));
  if (options.tile) {
    const auto asked =
        std::find_if(choices.begin(), choices.end(), [&](const TileChoice& c) { return c.shape == *options.tile; });
    if (asked == choices.end()) {
      std::string list;
      for (const TileChoice& choice : choices) list += (list.empty() ? "" : ", ") + tile_name(choice.shape);
      throw Unsupported(fmt::format(
          "{} has no tile {} for head_dim {} in {}; compiled in: {}{}", step.id, tile_name(*options.tile), p.head_dim,
          type_and_product(p), list, where_more_tiles_are(step, choices)));
    }
    if (asked->sram_bytes > p.sram_limit) refuse_sram(*asked, "the");
    return asked->shape;
  }
  for (const TileChoice& choice : choices)
    if (choice.sram_bytes <= p.sram_limit) return choice.shape;
  refuse_sram(*std::min_element(choices.begin(), choices.end(),
                                [](const TileChoice& a, const TileChoice& b) { return a.sram_bytes < b.sram_bytes; }),
              "even the smallest");
  return {};
}

}  // namespace attention
