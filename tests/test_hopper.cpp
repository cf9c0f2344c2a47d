// Hopper's steps. Without a GPU: the index arithmetic of their tiles, the parities of their barriers, their formulas
// and refusals, and the
// steps on the CPU executor. With a Hopper GPU: the steps themselves, with each of their techniques left out. (The
// tests that run every step run these too.)
#include <algorithm>
#include <set>

#include "common/harness/choose.h"
#include "common/tile/swizzle.h"
#include "tests/run_method.h"

using namespace attention;

TEST_CASE("a swizzled tile holds each element once, and neither rows nor columns meet in a bank") {
  for (const auto& [rows, cols] : {std::pair{128, 64}, {192, 64}, {64, 128}, {128, 128}}) {
    std::set<int> places;
    for (int row = 0; row < rows; ++row)
      for (int col = 0; col < cols; ++col) places.insert(swizzled_index(rows, row, col));
    CHECK(places.size() == static_cast<size_t>(rows * cols));
    CHECK(*places.begin() == 0);
    CHECK(*places.rbegin() == rows * cols - 1);
    for (int row = 0; row < rows; row += 8) {
      for (int col = 0; col < cols; col += 8) {
        std::set<int> down, along;  // groups of four banks: 16 bytes of 128
        for (int n = 0; n < 8; ++n) {
          down.insert(swizzled_index(rows, row + n, col) / 8 % 8);
          along.insert(swizzled_index(rows, row, col / 64 * 64 + 8 * n) / 8 % 8);
        }
        CHECK(down.size() == 8);
        CHECK(along.size() == 8);
      }
    }
  }
  // The copy engine's own rule (PTX ISA, 128-byte swizzle): of a byte's offset in the panel, bits 4 to 6 become
  // themselves xor bits 7 to 9.
  for (int row = 0; row < 64; ++row)
    for (int col = 0; col < 64; ++col) {
      const int plain = row * 128 + col * 2;
      CHECK(swizzled_index(64, row, col) * 2 == (plain ^ (plain >> 7 & 7) << 4));
    }
}

TEST_CASE("a tile's descriptor, bit by bit") {
  const uint64_t v = tile_descriptor(0x12400, 16384);
  CHECK((v & 0x3fff) == 0x1240);  // the address in units of 16 bytes
  CHECK((v >> 14 & 3) == 0);
  CHECK((v >> 16 & 0x3fff) == 1024);  // from panel to panel: 128 rows of 128 bytes
  CHECK((v >> 30 & 3) == 0);
  CHECK((v >> 32 & 0x3fff) == 64);  // from eight rows to the next: 1024 bytes
  CHECK((v >> 46 & 0x7) == 0);
  CHECK((v >> 49 & 0x7) == 0);  // tiles begin at multiples of 1024 bytes
  CHECK((v >> 52 & 0x3ff) == 0);
  CHECK(v >> 62 == 1);  // 128-byte swizzle
  CHECK((tile_descriptor(0x12400) >> 16 & 0x3fff) == 1);
  CHECK((tile_descriptor(227 * 1024) & 0x3fff) == 227 * 64);  // the last byte of SRAM still fits
}

TEST_CASE("the summed dimension moves on by 16: along the rows of Q and K, down the rows of V") {
  for (const int rows : {64, 128, 192}) {
    for (int k = 0; k < 8; ++k) {
      CHECK(along_rows(k, rows * 128) * 16 == swizzled_index(rows, 0, 16 * k) * 2);  // row 0 is not permuted
      if (16 * k < rows) CHECK(across_rows(k) * 16 == swizzled_index(rows, 16 * k, 0) * 2);
    }
  }
}

TEST_CASE(
    "a warp's sums: each element once, and two neighbours to a register are the left operand of the next product") {
  for (const int cols : {64, 128}) {
    std::set<std::pair<int, int>> seen;
    for (int lane = 0; lane < 32; ++lane)
      for (int n = 0; n < cols / 2; ++n) seen.insert({sum_row(lane, n), sum_col(lane, n)});
    CHECK(seen.size() == static_cast<size_t>(16 * cols));
    CHECK(seen.rbegin()->first == 15);
    // PTX ISA, wgmma's A in registers: register r of a 16-column step holds (lane / 4 + 8 (r % 2), 2 (lane % 4) + 8 (r
    // / 2)) and its neighbour.
    for (int lane = 0; lane < 32; ++lane)
      for (int step = 0; step < cols / 16; ++step)
        for (int r = 0; r < 4; ++r)
          for (int c = 0; c < 2; ++c) {
            const int n = 8 * step + 2 * r + c;
            CHECK(sum_row(lane, n) == lane / 4 + 8 * (r % 2));
            CHECK(sum_col(lane, n) == 16 * step + 2 * (lane % 4) + 8 * (r / 2) + c);
          }
  }
}

namespace {
/// An mbarrier that one arrival per phase completes, as far as its parity goes.
struct Phases {
  int ended = 0;
  bool may_pass(int parity) const { return (ended - 1) % 2 == parity || (ended == 0 && parity == 1); }
};

/// Producer and consumer take turns as their barriers let them, the producer first wherever both may go on. Returns the
/// largest lead.
template <int Stages>
int largest_lead(int tiles) {
  Phases full[Stages], empty[Stages];
  int holds[Stages] = {};
  Ring<Stages> fill, use;
  int filled = 0, used = 0, lead = 0;
  while (used < tiles) {
    if (filled < tiles && empty[fill.stage].may_pass(fill.parity ^ 1)) {
      holds[fill.stage] = filled++;
      ++full[fill.stage].ended;
      fill.next();
      lead = std::max(lead, filled - used);
    } else {
      REQUIRE(full[use.stage].may_pass(use.parity));  // else nobody can go on
      CHECK(holds[use.stage] == used++);
      ++empty[use.stage].ended;
      use.next();
    }
  }
  return lead;
}
}  // namespace

TEST_CASE("a ring's parities: the producer fills every place and no place that is still in use") {
  for (const int tiles : {1, 2, 3, 4, 5, 17}) {
    CHECK(largest_lead<1>(tiles) == 1);
    CHECK(largest_lead<2>(tiles) == std::min(tiles, 2));
    CHECK(largest_lead<3>(tiles) == std::min(tiles, 3));
  }
  Ring<2> ring;  // step07 counts the same by its tile's number
  for (int j = 0; j < 9; ++j, ring.next()) {
    CHECK(ring.stage == j % 2);
    CHECK(ring.parity == j / 2 % 2);
  }
}

namespace {
Problem half_problem(int64_t heads, int64_t seqlen_q, int64_t seqlen_k, int head_dim, bool causal) {
  Problem p = make_case(heads, seqlen_q, seqlen_k, head_dim, causal).problem;
  p.dtype = Dtype::fp16;
  p.compute_capability = 90;
  p.sram_limit = 232448;
  return p;
}

/// Calls f(problem) for the step with each subset of its techniques left out.
template <class F>
void for_each_subset(const Step& step, const Problem& given, F&& f) {
  for (unsigned left_out = 0; left_out < 1u << step.techniques.size(); ++left_out) {
    Problem p = given;
    for (size_t n = 0; n < step.techniques.size(); ++n)
      if (left_out >> n & 1) p.left_out.push_back(step.techniques[n].name);
    p.tile = choose_tile({}, step, p);
    INFO(step.id << " without " << left_out << ", " << p.heads << " heads, " << p.seqlen_q << " x " << p.seqlen_k
                 << ", d " << p.head_dim << (p.causal ? ", causal" : ""));
    f(p);
  }
}

Case half_case(Device& device, int64_t heads, int64_t seqlen_q, int64_t seqlen_k, int head_dim, bool causal,
               Dtype dtype) {
  Case c = in_half(make_case(heads, seqlen_q, seqlen_k, head_dim, causal), dtype);
  c.problem.compute_capability = device.compute_capability();
  c.problem.sram_limit = device.sram_limit();
  return c;
}
}  // namespace

TEST_CASE("blocks that see no key visit one tile where a step asks for that") {
  const Problem p = half_problem(1, 300, 100, 64, true);  // queries 0 to 199 see none
  CHECK(visits_by_query_blocks(p, 128, 64).tiles == 0 + 1 + 2);
  CHECK(visits_by_query_blocks(p, 128, 64, 1).tiles == 1 + 1 + 2);
  CHECK(visits_by_query_blocks(p, 128, 64, 1).rows == 64 + 64 + 100);
}

TEST_CASE("Hopper's steps ask for Q once, and for K and V once per query tile") {
  // N = 1024, d = 64, fp16: a tensor is 131072 bytes, LSE 4096.
  for (auto [id, p, tile, load] :
       {std::tuple{"step07", half_problem(1, 1024, 1024, 64, false), TileShape{128, 128}, 131072 + 8 * 2 * 131072},
        {"step07", half_problem(1, 300, 100, 128, true), {128, 64}, (300 + 2 * (64 + 64 + 100)) * 256},
        {"step08",
         half_problem(1, 1024, 1024, 64, false),
         {192, 128},
         131072 + 6 * 2 * 131072},  // the last with 64 rows
        {"step08", half_problem(1, 1024, 1024, 128, false), {128, 128}, 262144 + 8 * 2 * 262144}}) {
    INFO(id << ", d " << p.head_dim);
    const Step* step = find_step(DeviceKind::cpu, id);
    p.tile = choose_tile({}, *step, p);
    CHECK(p.tile == tile);
    const Method& method = step->methods.front();
    const KernelCost cost = method.cost(p).front();
    CHECK(total_load(cost.requested) == load);
    CHECK(total_store(cost.requested) == p.seqlen_q * (2 * p.head_dim + 4));
    const int64_t rows = ceil_div(p.seqlen_q, tile.br) * tile.br;  // of whole tiles
    if (!p.causal) CHECK(cost.executed_flops == 4 * rows * p.seqlen_k * p.head_dim);
    CHECK(cost.copy_engine);
    CHECK(scratch_of(method, p).size() == (id == std::string("step08") ? 1 : 0));  // what counts the tiles
    p.left_out = {"persistent"};
    CHECK(scratch_of(method, p).empty());
  }
  // In fp32 a tensor is 262144 bytes, and so are its two parts; 16 tiles of 64 rows have a factor each. Each lane of
  // 6 blocks of 384 reads one of Q's, one lane those of K and V.
  const Step* step = find_step(DeviceKind::cpu, "step08");
  Problem p = half_problem(1, 1024, 1024, 64, false);
  p.dtype = Dtype::fp32;
  p.on_tensor_cores = true;
  p.tile = choose_tile({}, *step, p);
  CHECK(p.tile == TileShape{192, 64});
  const std::vector<KernelCost> kernels = step->methods.front().cost(p);
  REQUIRE(kernels.size() == 4);
  CHECK(total_load(kernels[0].requested) == 262144);
  CHECK(total_store(kernels[0].requested) == 262144 + 16 * 4);
  CHECK(total_load(kernels[3].requested) == 262144 + 6 * 2 * 262144 + 6 * 384 * 4 + 6 * 2 * 16 * 4);
  CHECK(total_store(kernels[3].requested) == 262144 + 4096);
  CHECK(kernels[3].executed_flops == 2LL * 2 * 6 * 192 * 1024 * 64);
}

namespace {
/// All must be exact, counted, and equal to the bit under all orders; odd ones are race-checked.
void check_on_executor(const char* id, int64_t heads, int64_t seqlen_q, int64_t seqlen_k, int head_dim, bool causal,
                       Dtype dtype, const std::vector<uint64_t>& orders) {
  const auto device = open_plain_cpu();
  const Case c = half_case(*device, heads, seqlen_q, seqlen_k, head_dim, causal, dtype);
  const Reference reference = compute_reference_cpu(c.problem, c.inputs(), {}, false);
  const Step& step = *find_step(DeviceKind::cpu, id);
  CHECK(refusal(step, c.problem).empty());
  for_each_subset(step, c.problem, [&](const Problem& p) {
    StepRun first;
    for (const uint64_t order : orders) {
      INFO("order " << order);
      const WithExecutor options(
          {order % 2 ? ExecutorOptions::RaceCheck::all : ExecutorOptions::RaceCheck::none, order, 2});
      StepRun run = run_method(*device, step.methods.front(), p, c.inputs());
      check_counts(run, step.methods.front(), p);
      if (order != orders.front()) CHECK(same_bits(first, run));
      else first = std::move(run), check_exact(first, p, reference, false);
    }
  });
}
}  // namespace

TEST_CASE("Hopper's steps run on the executor: ragged, causal, short, wide, and more tiles than blocks") {
  for (const char* id : {"step07", "step08"}) {
    for (const int head_dim : {64, 128})
      for (const bool causal : {false, true}) {
        check_on_executor(id, 1, 333, 200, head_dim, causal, Dtype::fp16, {0, 1, 2});
        check_on_executor(id, 1, 200, 333, head_dim, causal, Dtype::bf16, {0, 1});
      }
    check_on_executor(id, 1, 1, 700, 64, false, Dtype::fp16, {0, 1});
    check_on_executor(id, 2, 700, 1, 64, true, Dtype::fp16, {0, 1});
    check_on_executor(id, 3, 500, 500, 64, true, Dtype::fp16, {0, 1});
  }
}

TEST_CASE("no false alarm in Hopper's steps under 100 orders") {
  std::vector<uint64_t> orders;
  for (uint64_t order = 1; order < 200; order += 2) orders.push_back(order);
  check_on_executor("step07", 1, 150, 300, 64, false, Dtype::fp16, orders);
  check_on_executor("step08", 1, 200, 300, 64, true, Dtype::fp16, orders);
}

TEST_CASE("Hopper's steps are exact on a Hopper GPU, with each technique left out, and repeat their bits",
          "[gpu][hopper]") {
  const auto device = open_gpu();
  if (device->compute_capability() != 90) return skip_test("no Hopper GPU");
  // 300 heads: more query tiles than SMs, so that blocks that stay take several.
  for (const auto& [heads, seqlen_q, seqlen_k] :
       {std::tuple{300, 77, 77},
        {2, 64, 64},
        {2, 200, 333},
        {2, 333, 200},
        {2, 1, 700},
        {2, 700, 1},
        {40, 1000, 1000}}) {
    for (const Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
      for (const int head_dim : {64, 128}) {
        for (const bool causal : {false, true}) {
          const Case c = half_case(*device, heads, seqlen_q, seqlen_k, head_dim, causal, dtype);
          const Reference reference = compute_reference_gpu(c.problem, c.inputs(), {}, false);
          for (const char* id : {"step07", "step08"}) {
            const Step& step = *find_step(DeviceKind::gpu, id);
            for_each_subset(step, c.problem, [&](const Problem& p) {
              const StepRun first = run_method(*device, step.methods.front(), p, c.inputs());
              check_exact(first, p, reference, false);
              CHECK(same_bits(first, run_method(*device, step.methods.front(), p, c.inputs())));
            });
          }
        }
      }
    }
  }
}

TEST_CASE("huge equal scores on a Hopper GPU", "[gpu][hopper]") {
  const auto device = open_gpu();
  if (device->compute_capability() != 90) return skip_test("no Hopper GPU");
  const float largest =
      1.5625f *
      0x1p60f;  // 64 of its squares are just below what fp32 holds, and with softmax_scale 1 so are the exponents
  for (const auto& [dtype, value, softmax_scale] :
       {std::tuple{Dtype::bf16, 133120.f, 0.125f}, {Dtype::bf16, largest, 1.f}, {Dtype::fp16, 32.f, 0.125f}}) {
    for (const int64_t n : {1, 64, 300}) {
      Case c = make_case(1, n, n, 64);
      c.problem.dtype = dtype;
      c.problem.softmax_scale = softmax_scale;
      c.problem.compute_capability = 90;
      c.problem.sram_limit = device->sram_limit();
      for (std::vector<float>* tensor : {&c.q, &c.k, &c.v}) std::fill(tensor->begin(), tensor->end(), value);
      for (const char* id : {"step07", "step08"}) {
        INFO(id);
        const Step& step = *find_step(DeviceKind::gpu, id);
        c.problem.tile = choose_tile({}, step, c.problem);
        const StepRun run = run_method(*device, step.methods.front(), c.problem, c.inputs());
        for (const float o : run.outputs.at("o")) CHECK(o == value);
      }
    }
  }
}
