// What --film shows: the events of some blocks of each launch, as the hooks of kernel_language.h saw them.
//
// Accesses of all threads between two barriers that come from one line of the step are one event. It keeps the bytes,
// the part of the tensor or of SRAM that they cover, and where the 32 lanes of the first warp went with their first
// access.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/device/cpu/acts.h"
#include "common/device/cpu/executor.h"

namespace attention::executor {

/// A rectangle [first_row, last_row] x [first_col, last_col].
struct Extent {
  int64_t first_row = INT64_MAX, last_row = -1, first_col = INT64_MAX, last_col = -1;
  void add(int64_t row, int64_t col, int64_t cols) {
    first_row = std::min(first_row, row), last_row = std::max(last_row, row);
    first_col = std::min(first_col, col), last_col = std::max(last_col, col + cols - 1);
  }
};

struct FilmEvent {
  enum class Kind : uint8_t { load, store, sram_read, sram_write, product, row_max, barrier, copy_arrives };
  Kind kind;
  std::string place;          // "step04_online_softmax.cu:50": innermost in the step's file, else the kernel's own line
  std::string tensor;         // load, store
  int64_t head = 0;           // load, store
  Extent part;                // load, store: rows and columns of the head. SRAM: its bytes, as columns
  int64_t bytes = 0;          // load, store, SRAM, copy_arrives
  int64_t flops = 0;          // product; of one dimension of a row, as count_flops has them
  std::vector<float> maxima;  // row_max: by row of the block's tile, after the reduction
  struct Lane {
    int lane;
    int64_t row, col;
  };
  std::vector<Lane> first_warp;  // load, store: the first access of each lane of warp 0
  uint32_t lanes = 0;            // those in first_warp, a bit each
  int elements = 1;              // load, store: neighbours in one access
  int64_t accesses = 0;          // load, store
};

struct FilmedBlock {
  int64_t block = 0;
  std::vector<FilmEvent> events;
  std::vector<std::vector<Act>> acts;  // by warp
};

struct FilmedLaunch {
  std::string kernel;
  int64_t blocks = 0, sram_bytes = 0;
  int threads = 0;
  std::vector<TensorBytes> counted;  // of all blocks
  std::vector<FilmedBlock> filmed;   // by block number
};

/// From now on launches are filmed: all blocks, or `most` of them, evenly spread, the first and the last among them.
void start_film(int64_t most);
std::vector<FilmedLaunch> stop_film();

/// Who called a hook: the frame of the function that this stands in, and where it returns to.
struct Caller {
  const std::byte* frame;
  const void* address;
};
#define ATTN_FILM_CALLER \
  attention::executor::Caller { static_cast<const std::byte*>(__builtin_frame_address(0)), __builtin_return_address(0) }

/// The way from a kernel's own line to a hook. Walking up the stack finds it; from then on it is known by its return
/// addresses alone. Code that a call returns to has a frame of one size, so the next return address lies as far off as
/// before (the fibers' stacks are aligned alike).
struct Way {
  const void* caller = nullptr;
  struct Return {
    std::ptrdiff_t at;  // from the hook's frame
    const void* to;
  };
  std::vector<Return> outer;  // of the callers' callers
  int site = 0;
  size_t event = 0;  // that it led to last

  bool is(const Caller& from) const {
    if (caller != from.address) return false;
    for (const Return& one : outer)
      if (*reinterpret_cast<const void* const*>(from.frame + one.at) != one.to) return false;
    return true;
  }
};

/// The film of the block that one OS thread is running.
class BlockFilm {
 public:
  void start(int64_t block, int threads);
  FilmedBlock finish() {
    film_.acts = acts.finish();
    return std::move(film_);
  }

  /// A new phase: what follows a barrier is another event than what came before it.
  void barrier(SourceLine place);
  void access(const HbmAccess& access, int64_t head, int64_t row, int bytes, int thread, const Caller& caller);
  void bulk_copy(const BulkCopy& copy, bool load, int64_t bytes);
  void sram(bool write, int64_t offset, int bytes, const Caller& caller);
  /// A product that is only started has no barrier around it: it joins the last event, or is one of its own.
  void product(int64_t flops, bool started, const Caller& caller) {
    if (started && !keys_.empty()) phase_ = keys_.size() - 1;
    event(FilmEvent::Kind::product, -1, caller).flops += flops;
  }
  void row_max(int lanes, int count, const float* x, int thread, const Caller& caller);
  void copy_arrives(int bytes) { event(FilmEvent::Kind::copy_arrives, -1, ATTN_FILM_CALLER).bytes += bytes; }

  BlockActs acts;

 private:
  FilmEvent& event(FilmEvent::Kind kind, int tensor, const Caller& caller);
  FilmEvent& hbm_event(bool load, int tensor, int64_t head, int elements, const Caller& caller);
  size_t find_way(const Caller& caller);

  struct Key {
    FilmEvent::Kind kind;
    int site, tensor;
    bool operator==(const Key&) const = default;
  };
  FilmedBlock film_;
  std::vector<Key> keys_;              // of the events
  size_t phase_ = 0;                   // the first event of this phase
  std::vector<Way> ways_{1};           // the first is one that cannot be known again
  std::array<size_t, 1024> recent_{};  // of the ways, by a hash of the caller's address
};

}  // namespace attention::executor
