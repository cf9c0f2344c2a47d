#include "common/c_api/attention_steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/harness/choose.h"
#include "common/base/build_info.h"
#include "common/base/error.h"
#include "common/base/exit_code.h"

namespace attention {
namespace {

constexpr int64_t kTensorAlignment = 16;      // the kernels load and store four floats at a time
constexpr int64_t kWorkspaceAlignment = 256;  // of each scratch buffer, as the harness has it

/// The device of that kind, opened by the first call and kept.
Device& device_of(DeviceKind kind) {
  static std::unique_ptr<Device> gpu, cpu;
  std::unique_ptr<Device>& device = kind == DeviceKind::gpu ? gpu : cpu;
  if (!device) device = kind == DeviceKind::gpu ? open_gpu() : open_cpu();
  return *device;
}

/// A method of a step with the problem that it is asked to solve, its tile chosen.
struct Call {
  const Method* method = nullptr;
  Problem problem;
};

Call make_call(const char* step_id, const std::string& method_name, const AttentionProblem* asked) {
  if (!step_id || !asked) throw BadArguments("a null pointer where a step's name and a problem are needed");
  if (asked->device != kAttentionOnCpu && asked->device != kAttentionOnGpu)
    throw BadArguments(fmt::format("device {}: 0 is the CPU executor, 1 the GPU", asked->device));
  if (asked->dtype < kAttentionFp32 || asked->dtype > kAttentionBf16)
    throw BadArguments(fmt::format("dtype {}: 0 is fp32, 1 fp16, 2 bf16", asked->dtype));
  if (asked->product < kAttentionUsualProduct || asked->product > kAttentionTensorCores)
    throw BadArguments(
        fmt::format("product {}: 0 is the type's usual one, 1 the CUDA cores', 2 the tensor cores'", asked->product));
  if (std::min({asked->batch, asked->heads, asked->seqlen_q, asked->seqlen_k, asked->head_dim}) < 1)
    throw BadArguments("sizes must be positive");
  if (asked->splits < 0)
    throw BadArguments(fmt::format("splits {}: at least 1, or 0 for the step's own choice", asked->splits));
  if (!std::isfinite(asked->softmax_scale) || asked->softmax_scale <= 0)
    throw BadArguments("softmax_scale must be a finite number above 0");
  if (asked->tile_br < 0 || asked->tile_bc < 0 || (asked->tile_br == 0) != (asked->tile_bc == 0))
    throw BadArguments(
        fmt::format("tile {}x{}: both sizes, or 0x0 for the step's own choice", asked->tile_br, asked->tile_bc));

  const DeviceKind kind = asked->device == kAttentionOnGpu ? DeviceKind::gpu : DeviceKind::cpu;
  const Step* step = find_step(kind, step_id);
  if (!step) {
    if (kind == DeviceKind::gpu && find_step(DeviceKind::cpu, step_id))
      throw Unsupported(fmt::format("{} has no GPU kernels in this build", step_id));
    throw BadArguments(fmt::format("no {} here; there are {}", step_id, fmt::join(registered_steps(kind), ", ")));
  }
  const auto method =
      std::find_if(step->methods.begin(), step->methods.end(), [&](const Method& m) { return m.name == method_name; });
  if (method == step->methods.end()) throw BadArguments(fmt::format("{} has no method \"{}\"", step_id, method_name));

  Options options;
  options.batch = asked->batch;
  options.heads = asked->heads;
  options.seqlen_q = asked->seqlen_q;
  options.seqlen_k = asked->seqlen_k;
  options.head_dim = asked->head_dim;
  options.causal = asked->causal != 0;
  options.dtype = static_cast<Dtype>(asked->dtype);
  if (asked->product != kAttentionUsualProduct) options.tensor_cores = asked->product == kAttentionTensorCores;
  options.softmax_scale = asked->softmax_scale;
  options.splits = asked->splits;
  if (asked->deterministic != 0 && !method->any_order.empty()) options.left_out.push_back(any_order().name);
  if (asked->tile_br > 0) options.tile = TileShape{asked->tile_br, asked->tile_bc};
  Call call{&*method, make_problem(options, *step, device_of(kind))};
  call.problem.tile = choose_tile(options, *step, call.problem);
  return call;
}

/// Where each scratch buffer begins in the workspace, and its size in all.
struct Workspace {
  std::map<std::string, int64_t> offset;
  int64_t bytes = 0;
};
Workspace lay_out(const Call& call) {
  Workspace workspace;
  for (const Scratch& buffer : scratch_of(*call.method, call.problem)) {
    workspace.offset[buffer.name] = workspace.bytes;
    workspace.bytes += ceil_div(buffer.bytes, kWorkspaceAlignment) * kWorkspaceAlignment;
  }
  return workspace;
}

void require(const char* name, const void* address, int64_t alignment = kTensorAlignment) {
  if (!address) throw BadArguments(fmt::format("{} is null", name));
  if (reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(alignment) != 0)
    throw BadArguments(fmt::format("{} is not aligned to {} bytes", name, alignment));
}

/// `gradients`: the tensors of a backward too.
Tensors make_tensors(const Call& call, const AttentionTensors* t, void* memory, bool gradients = false) {
  if (!t) throw BadArguments("a null pointer where the tensors are needed");
  std::vector<std::pair<const char*, const void*>> needed = {
      {"q", t->q}, {"k", t->k}, {"v", t->v}, {"o", t->o}, {"lse", t->lse}};
  if (gradients) needed.insert(needed.end(), {{"d_o", t->d_o}, {"dq", t->dq}, {"dk", t->dk}, {"dv", t->dv}});
  for (const auto& [name, address] : needed) require(name, address);
  Workspace workspace = lay_out(call);
  if (workspace.bytes > 0) require("workspace", memory, kWorkspaceAlignment);
  const auto scratch = [memory, workspace = std::move(workspace)](const std::string& name) -> void* {
    return static_cast<char*>(memory) + workspace.offset.at(name);
  };
  return {t->q, t->k, t->v, t->o, t->lse, t->d_o, t->dq, t->dk, t->dv, scratch};
}

Call make_backward_call(const char* step, const char* method, const AttentionProblem* problem) {
  if (!method) throw BadArguments("a null pointer where a method's name is needed");
  Call call = make_call(step, method, problem);
  if (!call.method->backward) throw BadArguments(fmt::format("\"{}\" is not a backward", method));
  return call;
}

/// Runs `work`, one call at a time; an exception becomes its exit code and its line.
int guarded(char* error, int error_size, const std::function<void()>& work) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const Ending ending = end_of(work);
  if (ending.code != 0 && error && error_size > 0)
    std::snprintf(error, static_cast<size_t>(error_size), "%s", ending.line.c_str());
  return ending.code;
}

}  // namespace
}  // namespace attention

using namespace attention;

int attention_plan(const char* step, const char* method, const AttentionProblem* problem, AttentionPlan* plan,
                   char* error, int error_size) {
  return guarded(error, error_size, [&] {
    if (!plan || !method) throw BadArguments("a null pointer where a method's name and a plan are needed");
    const Call call = make_call(step, method, problem);
    const std::vector<KernelCost> kernels = call.method->cost(call.problem);
    int64_t executed = 0;
    for (const KernelCost& kernel : kernels) executed += kernel.executed_flops;
    *plan = {call.problem.tile.br,
             call.problem.tile.bc,
             lay_out(call).bytes,
             static_cast<int32_t>(kernels.size()),
             useful_flops(call.problem, call.method->backward),
             executed};
  });
}

int attention_forward(const char* step, const AttentionProblem* problem, const AttentionTensors* tensors,
                      void* workspace, char* error, int error_size) {
  return guarded(error, error_size, [&] {
    const Call call = make_call(step, "forward", problem);
    call.method->run(call.problem, make_tensors(call, tensors, workspace));
  });
}

int attention_backward_prepare(const char* step, const char* method, const AttentionProblem* problem,
                               const AttentionTensors* tensors, void* workspace, char* error, int error_size) {
  return guarded(error, error_size, [&] {
    const Call call = make_backward_call(step, method, problem);
    if (call.method->prepare) call.method->prepare(call.problem, make_tensors(call, tensors, workspace));
  });
}

int attention_backward(const char* step, const char* method, const AttentionProblem* problem,
                       const AttentionTensors* tensors, void* workspace, char* error, int error_size) {
  return guarded(error, error_size, [&] {
    const Call call = make_backward_call(step, method, problem);
    call.method->run(call.problem, make_tensors(call, tensors, workspace, true));
  });
}

const char* attention_build(void) {
  static const std::string line = [] {
    const auto known = [](const char* text) { return *text ? text : "unknown"; };
    std::string text =
        fmt::format("commit {}, {} {}", known(build_info::kGitCommit), build_info::kCompiler, build_info::kBuildType);
    if (*build_info::kCuda)
      text += fmt::format(", CUDA {} for sm_{}", build_info::kCuda, build_info::kCudaArchitectures);
    return text;
  }();
  return line.c_str();
}
