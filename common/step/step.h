// The one interface through which the harness knows a step. A step's file defines `Step step()` in its own namespace;
// CMake generates, per device, a source that includes the file and registers it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "common/base/problem.h"
#include "common/base/tensors.h"
#include "common/traffic/cost.h"

namespace attention {

/// gpu_timed: the GPU's kernels once more, noting what their warps do when (--timeline); no device of its own.
enum class DeviceKind { gpu, cpu, gpu_timed };

/// A buffer that a method needs beyond the tensors. Grows as N ("rows") or N^2 ("pairs").
struct Scratch {
  std::string name;  // "S", "P", "delta", ...
  int64_t bytes = 0;
  bool quadratic = false;
  bool handed_on = false;  // one kernel writes it, the next reads it: where it fits the L2, it need not cross to memory
};

inline Scratch quadratic_scratch(const std::string& name, const Problem& p) {
  return {name, find_tensor(name)->bytes(p), true};
}
inline Scratch row_scratch(const std::string& name, const Problem& p) {
  return {name, find_tensor(name)->bytes(p), false};
}

/// Device addresses of a run. Shapes and types as base/tensors.h has them.
/// Every pointer is 256-byte aligned. A method reads only what it needs; the rest is null.
struct Tensors {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* o = nullptr;
  void* lse = nullptr;  // an output of the forward, which a backward reads
  const void* d_o = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  std::function<void*(const std::string& name)> scratch;  // the buffer of that Scratch::name
};

/// Something that a step does and can do without, so that its worth is seen: --no-<name> leaves it out.
struct Technique {
  std::string name;
  std::string without;  // what happens then, for --help-all
  std::string flag;     // "": --no-<name>
  std::string option() const { return flag.empty() ? "--no-" + name : flag; }
};

/// The technique of a method whose blocks add up an output together, in any order.
inline Technique any_order() {
  return {"any order", "blocks add in a fixed order, and every run gives the same bits", "--deterministic"};
}

/// One way to compute one pass. step01 to step04 have one ("forward"); step05 has "forward", "standard backward" and
/// "recompute backward".
struct Method {
  std::string name;
  bool backward = false;
  std::function<std::vector<Scratch>(const Problem&)> scratch;  // empty: none
  std::function<std::vector<KernelCost>(const Problem&)> cost;  // one entry per launch of `run`, in launch order
  std::function<void(const Problem&, const Tensors&)>
      prepare;  // may be empty; untimed and uncounted: what the forward pass would have saved (the standard backward's P)
  std::function<void(const Problem&, const Tensors&)>
      run;  // enqueues the launches; throws Unsupported or DeviceFailure
  std::string
      any_order;  // "dq": the output that blocks add up in any order (a technique, above), so that its last bits differ from run to run

  bool repeats(const std::string& output, const Problem& p) const {
    return output != any_order || p.leaves_out(attention::any_order().name);
  }
};

struct TileChoice {
  TileShape shape;
  int64_t sram_bytes = 0;  // the most that any of the step's kernels asks for with this tile
  int threads = 0;         // of a block
  int left_out =
      0;  // how many more tiles for this problem there are that this program does not hold (make stepNN-tiles)
};

/// Among how many blocks the keys of a row are shared out, and why so many.
struct Splits {
  int64_t parts = 1, keys_per_part = 0;
  std::string reason;
};

constexpr int kAnyHeadDim = std::numeric_limits<int>::max();

struct Step {
  std::string id;                  // "step04"
  std::string title;               // "online softmax"
  std::string idea;                // one sentence for --help
  std::string chapter;             // "docs/04-online-softmax.md"
  std::string kind = "attention";  // for scripts (--describe): "yardstick" is the cuBLAS row, "device" step00
  std::string before;              // the step that its diff goes from ("" = the one numbered before it)
  std::string
      baseline;  // the method that its speedup is quoted over ("" = step02, or step05 standard backward for a backward)
  std::function<std::vector<TileChoice>(const Problem&)>
      tiles;  // compiled-in tiles for this head_dim and dtype, best first; empty: not served; 0x0: a library chooses
  int largest_head_dim = 0;           // kAnyHeadDim: refusal says which are served
  Dtype default_dtype = Dtype::fp32;  // without --dtype
  bool fp32_on_tensor_cores = false;  // without --product
  std::function<std::string(const Problem&)>
      refusal;  // why this problem is not served, on the device at hand, and which step serves it; "": it is. May be empty
  std::vector<Technique> techniques;
  std::function<Splits(const Problem&)>
      splits;  // of a problem whose tile is chosen; empty: a row's keys are one block's
  double fp32_tolerance_factor =
      1;  // of the check in fp32; 1 for all that is ours (docs/yardstick.md says why a library needs more)
  std::string
      if_wrong;  // what to do when a run ends with exit 1, for its line on stderr ("" = nothing to add); the exercises'
  std::vector<Method> methods;  // in the order they run; the last one is what the report is about
};

/// The refusal of a step in 16-bit types.
constexpr const char* kForHalfAlone = "is for fp16 and bf16 (--dtype fp16); step04 is the same algorithm in fp32";

/// The method's scratch.
inline std::vector<Scratch> scratch_of(const Method& method, const Problem& problem) {
  return method.scratch ? method.scratch(problem) : std::vector<Scratch>{};
}

/// What step.refusal says, "" where it has nothing to refuse.
inline std::string refusal(const Step& step, const Problem& problem) {
  return step.refusal ? step.refusal(problem) : "";
}

/// Registers a step for a device (called from generated sources before main). Returns true.
bool register_step(DeviceKind device, Step step);

/// The registered steps of a device, by id ("" = the only one). Null when there is none.
const Step* find_step(DeviceKind device, const std::string& id = "");
std::vector<std::string> registered_steps(DeviceKind device);

}  // namespace attention
