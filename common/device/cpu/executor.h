// The CPU executor: runs a grid of a CUDA kernel on the CPU, by CUDA's own rules for threads.
//
// Blocks run in parallel on a few OS threads. The threads of a block are fibers of one OS thread: one runs until it
// waits at a barrier or ends, then the next does. Kernels meet this file through kernel_language.h only.
//
// What it adds to running: each load and store of HBM is counted by tensor and checked against the bounds of its head;
// SRAM starts as NaN; accesses to SRAM are checked against its size and, in the blocks that ExecutorOptions names, for
// races; barriers that not all threads reach are found; the order of threads and blocks can be shuffled.
//
// What it cannot see: a register that is read before it is written; SRAM that is reached through a plain pointer rather
// than through the hooks (SramTile calls them); a conflict between two blocks in HBM. A kernel that spins until another
// thread of its block writes something never ends here, since threads hand over at barriers only.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <string>
#include <vector>

#include "common/device/device_api.h"
#include "common/base/error.h"

namespace attention::executor {

/// CUDA's uint3. Blocks and grids are one-dimensional here, so y and z keep their values of the default.
struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

/// A line of a kernel's source, taken where a hook is called.
struct SourceLine {
  const char* file = nullptr;
  int line = 0;
};

/// A hook in a running kernel: its line, and an address by which a report can name the lines that an inlined function
/// was called from.
struct Site {
  SourceLine place;
  const void* caller = nullptr;
};

/// What one OS thread's kernels asked of one tensor, in bytes.
struct Requested {
  int64_t load = 0;
  int64_t store = 0;
};

inline constexpr int kMaxTensors = 256;
inline constexpr int kMaxThreads = 1024;  // per block, as CUDA has it
inline constexpr int kWarp = 32;
inline constexpr int kCopyBytes = 16;  // of one asynchronous copy

/// What the hooks in kernel_language.h read and write without a call: the block that this OS thread is running.
struct BlockView {
  unsigned char* sram = nullptr;
  uint64_t sram_bytes = 0;  // what the launch asked for
  uint64_t unwatched_bytes =
      0;  // accesses within the first so many bytes need no look: sram_bytes, or 0 in a race-checked block
  bool filmed = false;  // the hooks tell film.h what they see
  int64_t flops = 0;
  std::string (*name_of_byte)(const void* sram,
                              int64_t byte) = nullptr;  // of the layout that the kernel asked for last
  Requested requested[kMaxTensors] = {};                // by tensor_id

  /// True when watch_sram must look at an access: outside of SRAM, or anywhere in a race-checked block.
  __attribute__((always_inline)) bool watches(const void* address, int bytes) const {
    const uint64_t offset = static_cast<uint64_t>(static_cast<const unsigned char*>(address) - sram),
                   end = offset + static_cast<uint64_t>(bytes);
    return (offset >= unwatched_bytes) |
           (end > unwatched_bytes);  // the first also covers addresses before SRAM, whose offset wraps
  }
};

// initial-exec: one instruction instead of a call per access. The program is linked statically with its kernels. A
// library that is loaded into a running program (common/c_api) cannot have it: there is no room left among that
// program's own variables.
#if defined(ATTN_SHARED_LIBRARY)
#define ATTN_TLS_MODEL "local-dynamic"
#else
#define ATTN_TLS_MODEL "initial-exec"
#endif
#define ATTN_THREAD_LOCAL extern __attribute__((tls_model(ATTN_TLS_MODEL))) constinit thread_local
ATTN_THREAD_LOCAL Index3 threadIdx;
ATTN_THREAD_LOCAL Index3 blockIdx;
ATTN_THREAD_LOCAL Index3 blockDim;
ATTN_THREAD_LOCAL Index3 gridDim;
ATTN_THREAD_LOCAL BlockView block_view;
#undef ATTN_THREAD_LOCAL
#undef ATTN_TLS_MODEL

/// The number under which accesses to the tensor called `name` are counted; the same name always gives the same number.
/// Throws std::length_error beyond kMaxTensors names.
int tensor_id(const char* name);
std::string tensor_name(int id);

// ---- called by running kernel threads -------------------------------------------------------------------------------

/// Reports a finding about the running kernel thread and gives its block up. Outside of a kernel throws CheckFailed.
/// `caller` is an address in the kernel, by which the report can name the lines that an inlined function was called
/// from.
[[noreturn]] void report(SourceLine place, const std::string& what, const void* caller = nullptr);

/// An access to HBM that leaves its head's rows x cols, is misaligned, or goes to a null tensor; or to a head that the
/// tensor does not have.
struct HbmAccess {
  enum class Kind : uint8_t { head, load, store, add, copy };
  Kind kind;
  int tensor;
  const void* data;
  int64_t rows, cols, row, col;
  int elements;  // 1 or 4
};
[[noreturn]] void report_hbm_access(const HbmAccess& access, SourceLine place);

/// The same for an access that is in order, in a block that is filmed; `head` counts from the tensor's first.
void film_access(const HbmAccess& access, int64_t head, int64_t rows_above, int bytes);
void film_product(int64_t flops);
struct BulkCopy;
void film_bulk_copy(const BulkCopy& copy, bool load, int64_t bytes);
/// After a reduction of `lanes` neighbouring lanes: what the running thread now holds in x[0 .. count - 1].
void film_row_max(int lanes, int count, const float* x);
/// The running thread's warp has found maxima, or asked all lanes something.
void film_exchange(SourceLine place);

/// dynamic_sram<Layout>() with a Layout of `bytes` that the launch did not ask for.
[[noreturn]] void report_layout(int64_t bytes, SourceLine place);

/// An SRAM access that BlockView::unwatched_bytes does not cover: bounds, then races.
void watch_sram(const void* address, int bytes, bool write, SourceLine place);

/// printf of a kernel: in the run of the first thread order alone (ExecutorOptions::prints).
int print(const char* format, std::va_list values);

void block_barrier(SourceLine place);  // __syncthreads
void warp_barrier(SourceLine place);   // __syncwarp

/// One operation of a whole warp: every lane deposits a pointer, the last lane to arrive calls `run` with all 32 of
/// them. All lanes must come from the same place with the same `run`. It moves registers, as a shuffle does: it does
/// not order accesses to SRAM.
using WarpOperation = void (*)(void* const* lanes);
void warp_collective(WarpOperation run, void* deposit, SourceLine place);

/// cp.async: the 16 bytes at `from` (null: zeros) are on their way to `to` in SRAM until wait_copies has waited for
/// their group.
void start_copy(void* to, const void* from, SourceLine place);
void commit_copies(SourceLine place);  // the copies that the running thread has started since the last one are a group
void wait_copies(int pending, SourceLine place);  // its groups arrive, all but the `pending` youngest

// Hopper's units (hopper_block.h); the names that kernels know them by are in cpu/hopper.h.

/// One end of a bulk copy, in HBM. A box: box_rows rows of `panels` times 128 bytes, from `row` on, of a head that has
/// `rows` rows of row_bytes; in SRAM it lies swizzled, panel after panel. A run (box_rows 0): `bytes` neighbouring
/// bytes.
struct BulkCopy {
  unsigned char* data;  // the head's first row, from its first copied column on
  int64_t rows = 0, row = 0, row_bytes = 0;
  int box_rows = 0, panels = 0;
  int64_t bytes = 0;  // of SRAM: a box's too
  int tensor = 0;
  bool adds = false;        // to HBM: fp32 numbers are added to those there
  int head = 0, panel = 0;  // where a box lies, for the film
};
/// What wgmma.mma_async m64nNk16 multiplies: the descriptors of A and B (swizzle.h), or A in 4 registers. `across`: the
/// summed dimension lies across the rows of the tile.
struct WarpgroupOperands {
  uint64_t a = 0, b = 0;
  const uint32_t* a_registers = nullptr;
  int columns = 0;
  bool bf16 = false, a_across = false, b_across = false, accumulate = true;
};
void make_barrier(void* barrier, int arrivals, SourceLine place);                  // mbarrier.init
void arrive_at_barrier(void* barrier, int64_t announced_bytes, SourceLine place);  // mbarrier.arrive, .expect_tx
void wait_at_barrier(const void* barrier, int parity, SourceLine place);  // mbarrier.try_wait.parity, until it says yes
void named_barrier(int number, int threads, bool waits, SourceLine place);  // bar.sync, bar.arrive
void fence_stores(SourceLine place);                                        // fence.proxy.async
void start_bulk_copy(void* to, const BulkCopy& from, void* barrier, SourceLine place);
void start_bulk_copy_back(const void* from, const BulkCopy& to, SourceLine place);
void commit_bulk_copies_back(SourceLine place);
void wait_bulk_copies_back(SourceLine place);
void set_registers(int count, bool takes, SourceLine place);  // setmaxnreg
void fence_products(SourceLine place);                        // wgmma.fence
void start_product(float* sums, const WarpgroupOperands& operands, SourceLine place);
void commit_products(SourceLine place);
void wait_products(int pending, SourceLine place);
/// The running thread uses the registers [first, end): no product may still be at them.
void use_registers(const void* first, const void* end, SourceLine place);

// ---- called by the host ---------------------------------------------------------------------------------------------

struct Grid {
  const char* kernel = "";
  int64_t blocks = 0;
  int threads = 0;  // per block
  int64_t sram_bytes = 0;
  void (*thread)(const void* arguments) = nullptr;  // one thread of the kernel
  const void* arguments = nullptr;
};

/// One mistake that the executor caught.
struct Finding {
  std::string kernel;
  int64_t block = 0;
  int thread = 0;
  std::string
      place;  // "file:line", followed by " < file:line" for the callers of an inlined function where they are known
  std::string what;
  std::string text() const;
};

/// Thrown by launch() when the grid has stopped: the findings of the lowest block numbers first, one per block at most.
struct KernelFindings : CheckFailed {
  std::vector<Finding> findings;
  explicit KernelFindings(std::vector<Finding> found);
};

/// Runs the grid to its end with executor_options(). Throws DeviceFailure for a block or an SRAM size that a GPU would
/// refuse, Unsupported for more than 2^31-1 blocks, KernelFindings for what the checks found.
void run_grid(const Grid& grid);

/// Bytes of SRAM that a block may ask for: 227 KiB (the H100's and H200's limit), or what the environment lowers it to
/// (lowered_sram_limit, whose exception it throws).
int64_t sram_limit();

/// OS threads that a grid runs on with executor_options().
int os_threads();

/// As Device::launches_done, since start_recording.
double launches_done();

void start_recording();
std::vector<LaunchRecord> stop_recording();  // one per launch since start_recording, in order

}  // namespace attention::executor
