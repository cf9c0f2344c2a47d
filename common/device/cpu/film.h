// What --film shows: the events of some blocks of each launch, as the hooks of kernel_language.h saw them.
//
// Accesses of all threads between two barriers that come from one line of the step are one event. It keeps the bytes,
// the part of the tensor or of SRAM that they cover, and where the 32 lanes of the first warp went with their first
// access.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/device/cpu/acts.h"
#include "common/device/cpu/executor.h"

namespace attention::executor {

/// A rectangle [first_row, last_row] x [first_col, last_col].
struct Extent {
  int64_t first_row = INT64_MAX, last_row = -1, first_col = INT64_MAX, last_col = -1;
  void add(int64_t row, int64_t col, int64_t cols);
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
  void warp_together(int thread);
  void access(const HbmAccess& access, int64_t head, int bytes, int thread);
  void bulk_copy(const BulkCopy& copy, bool load, int64_t bytes);
  void sram(bool write, int64_t offset, int bytes);
  /// A product that is only started has no barrier around it: it joins the last event, or is one of its own.
  void product(int64_t flops, bool started) {
    if (started && !keys_.empty()) phase_ = keys_.size() - 1;
    event(FilmEvent::Kind::product).flops += flops;
  }
  void row_max(int lanes, int count, const float* x, int thread);
  void copy_arrives(int bytes) { event(FilmEvent::Kind::copy_arrives).bytes += bytes; }

  BlockActs acts;

 private:
  FilmEvent& event(FilmEvent::Kind kind, int tensor = -1);
  FilmEvent& hbm_event(bool load, int tensor, int64_t head, int elements);
  int site(FilmEvent::Kind kind, int tensor);  // of the hook's caller

  struct Key {
    FilmEvent::Kind kind;
    int site, tensor;
    bool operator==(const Key&) const = default;
  };
  FilmedBlock film_;
  std::vector<Key> keys_;  // of the events
  // Of each warp, what its first lane did since all were together, and how much of that each thread has done: the other
  // lanes do the same at the same lines, and only one has to look where it is.
  std::vector<std::vector<Key>> paths_;
  std::vector<size_t> passed_;
  size_t phase_ = 0;  // the first event of this phase
};

}  // namespace attention::executor
