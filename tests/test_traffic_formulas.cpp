// The closed formulas against integers worked out by hand (hard case A18), so that a formula and a kernel's loop cannot
// share
// one mistake. Whether the kernels do what the formulas say is test_steps' business, with a head of 1024 worked out by
// hand.
#include <vector>

#include "common/step/step.h"
#include "common/traffic/cost.h"
#include "tests/catch.h"

using namespace attention;

namespace {
Problem make_problem(int64_t heads, int64_t seqlen_q, int64_t seqlen_k, int head_dim, bool causal,
                     TileShape tile = {64, 64}) {
  return {.heads = heads,
          .seqlen_q = seqlen_q,
          .seqlen_k = seqlen_k,
          .head_dim = head_dim,
          .causal = causal,
          .softmax_scale = 0.125f,
          .tile = tile,
          .sram_limit = 232448};  // bytes: a row of step02 fits
}

/// HBM bytes of a step's forward, and those of S and P among them.
std::pair<int64_t, int64_t> hbm(const char* step, const Problem& problem) {
  int64_t all = 0, pairs = 0;
  for (const KernelCost& kernel : find_step(DeviceKind::cpu, step)->methods.front().cost(problem))
    for (const TensorBytes& t : kernel.hbm) {
      all += t.load + t.store;
      if (t.tensor == "S" || t.tensor == "P") pairs += t.load + t.store;
    }
  return {all, pairs};
}
}  // namespace

TEST_CASE("useful FLOPs count visible pairs") {
  CHECK(useful_flops(make_problem(16, 1000, 1000, 64, false), false) == 4096000000);
  CHECK(useful_flops(make_problem(16, 1000, 1000, 64, true), false) == 2050048000);
  CHECK(useful_flops(make_problem(8, 300, 1000, 64, true), false) == 522547200);
  CHECK(useful_flops(make_problem(8, 1000, 300, 64, true), false) == 92467200);
  CHECK(useful_flops(make_problem(16, 1000, 1000, 64, false), true) == 10240000000);
}

TEST_CASE("visible pairs equal a count over the definition") {
  for (const auto& [nq, nk] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {2, 5}, {5, 2}, {1, 20}, {20, 1}, {77, 77}, {130, 64}, {64, 130}}) {
    for (const bool causal : {false, true}) {
      const Problem p = make_problem(1, nq, nk, 8, causal);
      int64_t pairs = 0;
      for (int64_t i = 0; i < nq; ++i)
        for (int64_t j = 0; j < nk; ++j) pairs += p.visible(i, j);
      CHECK(visible_pairs(p) == pairs);
    }
  }
}

TEST_CASE("visits equal a count of the tiles that hold a visible pair") {
  for (const auto& [nq, nk] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {64, 64}, {65, 64}, {63, 200}, {200, 63}, {137, 137}, {10, 300}, {300, 10}}) {
    for (const bool causal : {false, true}) {
      const Problem p = make_problem(1, nq, nk, 8, causal);
      for (const auto& [own, loop] : std::vector<std::pair<int, int>>{{64, 64}, {32, 64}, {64, 16}, {16, 32}}) {
        const auto any_visible = [&](int64_t q0, int64_t q1, int64_t k0, int64_t k1) {
          for (int64_t i = q0; i < std::min(q1, nq); ++i)
            for (int64_t j = k0; j < std::min(k1, nk); ++j)
              if (p.visible(i, j)) return true;
          return false;
        };
        int64_t tiles = 0, rows = 0;
        for (int64_t q0 = 0; q0 < nq; q0 += own)
          for (int64_t k0 = 0; k0 < nk; k0 += loop)
            if (any_visible(q0, q0 + own, k0, k0 + loop)) ++tiles, rows += std::min<int64_t>(loop, nk - k0);
        const Visits by_query = visits_by_query_blocks(p, own, loop);
        CHECK(by_query.blocks == (nq + own - 1) / own);
        CHECK(by_query.tiles == tiles);
        CHECK(by_query.rows == rows);

        tiles = rows = 0;
        for (int64_t k0 = 0; k0 < nk; k0 += own)
          for (int64_t q0 = 0; q0 < nq; q0 += loop)
            if (any_visible(q0, q0 + loop, k0, k0 + own)) ++tiles, rows += std::min<int64_t>(loop, nq - q0);
        const Visits by_key = visits_by_key_blocks(p, own, loop);
        CHECK(by_key.blocks == (nk + own - 1) / own);
        CHECK(by_key.tiles == tiles);
        CHECK(by_key.rows == rows);
      }
    }
  }
}

TEST_CASE("a naive step visits every tile") {
  const Visits visits = visits_all(100, 70, 64, 32);
  CHECK(visits.blocks == 2);
  CHECK(visits.tiles == 6);
  CHECK(visits.rows == 140);
}

TEST_CASE("N=4096, H=16, d=64, fp32: S and P") {
  const Problem p = make_problem(16, 4096, 4096, 64, false);
  CHECK(p.S() * 4 == 1073741824);
  const int64_t tensors = 67108864 + 262144;
  CHECK(hbm("step01", p).second == 6442450944);                                              // 6 passes
  CHECK(hbm("step02", p) == std::pair<int64_t, int64_t>{tensors + 4294967296, 4294967296});  // 4 passes
  CHECK(hbm("step03", p) == std::pair<int64_t, int64_t>{tensors, 0});
  CHECK(hbm("step04", p) == std::pair<int64_t, int64_t>{tensors, 0});
}
