// step09: exact and to the byte with every number of parts, a rule worked out by hand, and parts that see no key.
#include "tests/run_method.h"

using namespace attention;

namespace {

const Step& step09(DeviceKind device = DeviceKind::cpu) { return *find_step(device, "step09"); }

/// Exact, and counted as expected, with 2, 3 and 7 parts asked for. Returns the most parts that there were.
int64_t check_parts(Device& device, Case c) {
  const Reference reference = c.reference(false);
  c.problem.sram_limit = device.sram_limit();
  c.problem.compute_capability = device.compute_capability();
  c.problem.multiprocessors = device.multiprocessors();
  const Step& step = step09(device.kind());
  c.problem.tile = tiles_that_fit(step, c.problem).front();
  int64_t most = 1;
  for (const int64_t asked : {2, 3, 7}) {
    c.problem.splits = asked;
    const Splits splits = step.splits(c.problem);
    CHECK(splits.parts <= asked);
    CHECK(splits.keys_per_part % c.problem.tile.bc == 0);
    CHECK(splits.parts * splits.keys_per_part >= c.problem.seqlen_k);
    CHECK((splits.parts - 1) * splits.keys_per_part < c.problem.seqlen_k);
    most = std::max(most, splits.parts);
    INFO("Nq " << c.problem.seqlen_q << ", Nk " << c.problem.seqlen_k << ", d " << c.problem.head_dim
               << (c.problem.causal ? ", causal, " : ", ") << splits.parts << " parts");
    check_method(device, step.methods.front(), c.problem, c.inputs(), reference);
  }
  return most;
}

void every_number_of_parts(Device& device) {
  for (const bool causal : {false, true}) {
    CHECK(check_parts(device, make_case(2, 300, 300, 64, causal)) == 5);  // 5 key tiles of 64
    CHECK(check_parts(device, make_case(3, 77, 440, 40, causal)) == 7);
    CHECK(check_parts(device, make_case(2, 130, 97, 77, causal)) == 2);
    CHECK(check_parts(device, make_case(2, 1, 1000, 64, causal)) == 7);   // decoding: key tiles of 32
    CHECK(check_parts(device, make_case(2, 450, 150, 64, causal)) == 3);  // causal: 300 rows see no key
    CHECK(check_parts(device, make_case(1, 3, 20, 64, causal)) == 1);     // nothing to share out: one tile
  }
}

void sixteen_bits(Device& device) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
    if (dtype == Dtype::bf16 && device.compute_capability() > 0 && device.compute_capability() < 80) continue;
    for (const auto& [seqlen_q, seqlen_k, d] : {std::tuple{200, 333, 64}, {5, 500, 128}, {70, 333, 200}}) {
      Case c = in_half(make_case(2, seqlen_q, seqlen_k, d, true), dtype);
      check_parts(device, c);
      c.problem.left_out = {"copy-engine"};
      check_parts(device, c);
    }
  }
}

void on_tensor_cores(Device& device) {
  Case c = make_case(2, 200, 333, 64, true);
  c.problem.on_tensor_cores = true;
  check_parts(device, c);
}

/// Scores far apart: whole parts weigh nothing beside another, and their e^(LSE_s - LSE) vanishes.
void parts_that_weigh_nothing(Device& device) {
  check_parts(device, make_case(1, 130, 300, 64, true, "randn:7"));
  check_parts(device, make_case(1, 130, 300, 64, false, "randn:30"));
}

Problem problem_of(int64_t heads, int64_t seqlen_q, int64_t seqlen_k, int head_dim, Dtype dtype, bool causal = false) {
  Problem p{.heads = heads,
            .seqlen_q = seqlen_q,
            .seqlen_k = seqlen_k,
            .head_dim = head_dim,
            .causal = causal,
            .dtype = dtype,
            .sram_limit = 232448,
            .multiprocessors = 132};
  p.tile = tiles_that_fit(step09(), p).front();
  return p;
}
int64_t parts_of(const Problem& p) { return step09().splits(p).parts; }

}  // namespace

TEST_ON_EACH_DEVICE("split keys: exact, and to the byte, with every number of parts", every_number_of_parts)
TEST_ON_EACH_DEVICE("split keys: fp16 and bf16", sixteen_bits)
TEST_ON_EACH_DEVICE("split keys: fp32 on tensor cores", on_tensor_cores)
TEST_ON_EACH_DEVICE("split keys: parts that weigh nothing", parts_that_weigh_nothing)

TEST_CASE("split keys: one part is step04, to the bit and to the byte") {
  const auto device = open_plain_cpu();
  Case c = make_case(2, 200, 200, 64, true);
  c.problem.sram_limit = device->sram_limit();
  c.problem.splits = 1;
  c.problem.tile = {128, 64};
  const Step& step04 = *find_step(DeviceKind::cpu, "step04");
  const Method &split = step09().methods.front(), &whole = step04.methods.front();
  const StepRun one_part = run_method(*device, split, c.problem, c.inputs());
  CHECK(same_bits(one_part, run_method(*device, whole, c.problem, c.inputs())));
  CHECK(scratch_of(split, c.problem).empty());
  CHECK(by_tensor(split.cost(c.problem).front().requested) == by_tensor(whole.cost(c.problem).front().requested));
}

TEST_CASE("split keys: the bytes of two parts, worked out by hand") {
  // N = 128, one head, fp32, d = 64, tiles 64x64, a tile of keys per part: Q is 32768 bytes, and each part loads it;
  // of K and V a query tile loads half in each part, so all of both; a part stores an O of 32768 and an LSE of 512
  // bytes, which the merge loads.
  Problem p = problem_of(1, 128, 128, 64, Dtype::fp32);
  p.tile = {64, 64};
  p.splits = 2;
  const std::vector<KernelCost> cost = step09().methods.front().cost(p);
  REQUIRE(cost.size() == 2);
  CHECK(by_tensor(cost[0].requested) ==
        BytesByTensor{{"Q", {65536, 0}},
                      {"K", {65536, 0}},
                      {"V", {65536, 0}},
                      {"partial O", {0, 65536}},
                      {"partial LSE", {0, 1024}}});
  CHECK(by_tensor(cost[1].requested) ==
        BytesByTensor{{"partial O", {65536, 0}}, {"partial LSE", {1024, 0}}, {"O", {0, 32768}}, {"LSE", {0, 512}}});
  CHECK(cost[0].executed_flops == 4 * 128 * 128 * 64);
  const std::vector<Scratch> scratch = scratch_of(step09().methods.front(), p);
  REQUIRE(scratch.size() == 2);
  CHECK(scratch[0].bytes == 65536);
  CHECK(scratch[1].bytes == 1024);
}

TEST_CASE("split keys: no thread order shows a race, and all give the same bits") {
  const auto device = open_plain_cpu();
  Case c = make_case(2, 70, 300, 64, true);
  c.problem.sram_limit = device->sram_limit();
  c.problem.tile = {128, 64};
  c.problem.splits = 3;
  check_orders(*device, step09().methods.front(), c.problem, c.inputs());
}

TEST_CASE("split keys: auto splits where blocks are few, and only there") {
  CHECK(parts_of(problem_of(1, 4096, 4096, 64, Dtype::fp16)) == 4);  // 32 blocks, 132 SMs
  CHECK(parts_of(problem_of(8, 1024, 1024, 64, Dtype::fp16)) == 1);  // merging takes longer
  CHECK(parts_of(problem_of(128, 4096, 4096, 64, Dtype::fp16)) == 1);
  CHECK(parts_of(problem_of(128, 4096, 4096, 64, Dtype::fp16, true)) == 1);
  CHECK(parts_of(problem_of(64, 4096, 4096, 128, Dtype::fp16)) == 1);
  CHECK(parts_of(problem_of(1, 64, 64, 64, Dtype::fp32)) == 1);  // one tile
  // Few queries take small tiles, and nearly as many parts as give each place a block: with the copy engine's kernel
  // 132
  // SMs, twice, for 32 heads; with step04's 132 x 10, where one part more does not save 5 %.
  Problem decode = problem_of(32, 1, 65536, 128, Dtype::fp16);
  CHECK((decode.tile == TileShape{64, 64}));
  CHECK(parts_of(decode) == 8);
  decode.left_out = {"copy-engine"};
  decode.tile = tiles_that_fit(step09(), decode).front();
  CHECK((decode.tile == TileShape{16, 32}));
  CHECK(parts_of(decode) == 39);
  // The rule asks nothing but the problem: the same answer each time.
  CHECK(step09().splits(decode).reason == step09().splits(decode).reason);
}

TEST_CASE("split keys: no chain of sums is longer than 65536 keys") {
  for (const int64_t heads : {1, 16, 1024})
    for (const int64_t n : {65536, 65537, 262144, 1048576}) {
      const Splits splits = step09().splits(problem_of(heads, n, n, 64, Dtype::fp16));
      CHECK(splits.keys_per_part <= 65536);
      if (heads == 1024) CHECK(splits.parts == (n + 65535) / 65536);
    }
}
