// Every step, on each device, against the float64 reference, PyTorch's float64 (tests/data) and the traffic formulas.
#include "tests/run_method.h"

using namespace attention;

namespace {

Case make_batched(int64_t batch, int64_t heads, int64_t seqlen_q, int64_t seqlen_k, int head_dim, bool causal) {
  Case c = make_case(batch * heads, seqlen_q, seqlen_k, head_dim, causal);
  c.problem.batch = batch;
  c.problem.heads = heads;
  return c;
}

/// In fp32 by both products, with the default inputs: each tile on some ragged sizes, the default tile on the rest. A
/// GPU takes them all. The tensor cores' product has one head, and a third of long rows: it is the slowest on the
/// executor.
void check_fp32(Device& device, int64_t batch, int64_t heads, int64_t seqlen_q, int64_t seqlen_k, int head_dim,
                bool causal, Tiles tiles = Tiles::best) {
  if (device.kind() == DeviceKind::gpu) tiles = Tiles::all;
  check_all_methods(device, make_batched(batch, heads, seqlen_q, seqlen_k, head_dim, causal), true, tiles);
  if (head_dim > 128) return;  // more than that product takes
  const int64_t part = seqlen_q * seqlen_k > 100'000 ? 3 : 1;
  Case c = make_batched(1, 1, seqlen_q / part, seqlen_k / part, head_dim, causal);
  c.problem.on_tensor_cores = true;
  check_all_methods(device, c, true, tiles);
}
/// The same for one head of other inputs.
void check_inputs(Device& device, int64_t seqlen_q, int64_t seqlen_k, int head_dim, bool causal, const char* init,
                  bool on_tensor_cores) {
  INFO(init);
  Case c = make_case(1, seqlen_q, seqlen_k, head_dim, causal, init);
  c.problem.on_tensor_cores = on_tensor_cores;
  check_all_methods(device, c, false, device.kind() == DeviceKind::gpu ? Tiles::all : Tiles::best);
}

/// fp16 and bf16, with inputs rounded to the type; bf16 only where the device has it.
void half_types(Device& device) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
    if (dtype == Dtype::bf16 && device.compute_capability() > 0 && device.compute_capability() < 80) continue;
    for (const bool causal : {false, true})
      for (const auto& [seqlen_q, seqlen_k, d] :
           {std::tuple{77, 77, 64}, {1, 20, 64}, {70, 133, 40}, {130, 65, 63}, {70, 97, 128}, {33, 70, 200}})
        check_all_methods(device, in_half(make_case(2, seqlen_q, seqlen_k, d, causal), dtype));
  }
  for (const std::string& name : half_golden_cases()) {
    INFO(name);
    check_all_methods(device, read_golden(name));
  }
}

void lengths(Device& device) {
  for (const bool causal : {false, true})
    for (const int64_t n : {1, 9, 31, 33, 77, 137, 192, 200})
      check_fp32(device, 2, 3, n, n, 64, causal, n == 137 ? Tiles::all : Tiles::best);
  check_fp32(device, 1, 1, 1000, 1000, 64, true);
}

void queries_and_keys_of_different_lengths(Device& device) {
  for (const bool causal : {false, true}) {
    check_fp32(device, 1, 2, 300, 1000, 64, causal);
    check_fp32(device, 2, 1, 1000, 300, 64, causal);
    check_fp32(device, 2, 3, 9, 65, 64, causal, Tiles::all);
    check_fp32(device, 2, 3, 70, 33, 64, causal, Tiles::all);
    check_fp32(device, 2, 3, 1, 20, 64, causal, Tiles::all);
    // Causal: the last row of a query tile alone sees the next key tile.
    check_fp32(device, 1, 2, 130, 131, 64, causal, Tiles::all);
  }
}

void head_dims(Device& device) {
  for (const bool causal : {false, true})
    for (const int d : {1, 16, 40, 46, 63, 96, 128, 130, 256})
      check_fp32(device, 1, 2, 130, 137, d, causal, d == 63 || d == 128 || d == 256 ? Tiles::all : Tiles::best);
}

/// Inputs of one sign, where rounding errors pile up, over many keys and, for dK and dV, over many queries.
void one_sign(Device& device) {
  for (const bool on_tensor_cores : {false, true})
    for (const int d : {64, 128}) {
      const int64_t few = on_tensor_cores ? 32 : 64;
      check_inputs(device, few, 4096, d, false, "abs", on_tensor_cores);
      if (d == 64 || !on_tensor_cores) check_inputs(device, 4096, few, d, false, "abs", on_tensor_cores);
    }
}

/// Scores hundreds apart, where most P_ij are below fp32's smallest normal number and so are the gradients of keys that
/// nobody looks at; and scores all alike.
void other_inputs(Device& device) {
  for (const char* init : {"randn:7", "randn:30"}) check_inputs(device, 130, 200, 64, true, init, false);
  for (const char* init : {"randn:4", "abs", "zeros", "ones"})
    for (const int d : {64, 128})
      for (const bool on_tensor_cores : {false, true}) check_inputs(device, 130, 200, d, true, init, on_tensor_cores);
}

/// The P that a backward computes again has the roundings of its row's LSE, here about ln 4096: with few queries no
/// others
/// average them out.
void few_queries_many_keys(Device& device) {
  for (const auto& [seqlen_q, seqlen_k, d, seed] :
       {std::tuple{1, 4096, 32, 927653}, {1, 3000, 1, 158775}, {2, 4096, 16, 3}}) {
    const Case c = make_case(4, seqlen_q, seqlen_k, d, false, "randn", seed);
    const Reference reference = c.reference();
    for_each_method(device, c.problem, [&](const Step&, const Method& method, const Problem& problem) {
      if (method.backward) check_method(device, method, problem, c.inputs(), reference);
    });
  }
}

/// The reference's allowance around PyTorch's values.
void golden(Device& device) {
  for (const std::string& name : golden_cases()) {
    INFO(name);
    Case c = read_golden(name);
    Reference truth = c.reference();
    for (const auto& [file, rank, tensor] :
         {std::tuple{"o", 4, &truth.o},
          {"lse", 3, &truth.lse},
          {"dq", 4, &truth.dq},
          {"dk", 4, &truth.dk},
          {"dv", 4, &truth.dv}})
      tensor->value = read_npy_double(golden_path(name, std::string(file) + ".npy"), rank).values;
    for (const bool on_tensor_cores : {false, true}) {
      c.problem.on_tensor_cores = on_tensor_cores;
      for_each_method(
          device, c.problem,
          [&](const Step&, const Method& method, const Problem& problem) {
            check_method(device, method, problem, c.inputs(), truth);
          },
          on_tensor_cores ? Tiles::best : Tiles::all);
    }
  }
}

struct Totals {
  int64_t load = 0, store = 0, flops = 0;
  bool operator==(const Totals&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Totals& t) {
  return out << "load " << t.load << ", store " << t.store << ", FLOPs " << t.flops;
}

/// What the executor counted in one head of N x N with tiles of 64x64, launch by launch.
std::vector<Totals> counted(Device& device, const char* id, size_t method, int64_t n, bool causal = false) {
  const Step& step = *find_step(DeviceKind::cpu, id);
  Case c = make_case(1, n, n, 64, causal);
  c.problem.tile = {64, 64};
  c.problem.sram_limit = device.sram_limit();
  std::vector<Totals> totals;
  for (const LaunchRecord& launch : run_method(device, step.methods.at(method), c.problem, c.inputs()).launches)
    totals.push_back(
        {total_load(launch.counted), total_store(launch.counted), launch.counted_flops * c.problem.head_dim});
  return totals;
}

}  // namespace

TEST_ON_EACH_DEVICE("steps are exact and ask for what their formulas say: N = 1 to 200", lengths)
TEST_ON_EACH_DEVICE("steps are exact and ask for what their formulas say: Nq and Nk differ",
                    queries_and_keys_of_different_lengths)
TEST_ON_EACH_DEVICE("steps are exact and ask for what their formulas say: head_dim 1 to 256", head_dims)
TEST_ON_EACH_DEVICE("steps are exact for inputs of one sign, 4096 keys or queries", one_sign)
TEST_ON_EACH_DEVICE("backwards are exact with few queries and thousands of keys", few_queries_many_keys)
TEST_ON_EACH_DEVICE("steps are exact where probabilities vanish, and for constants", other_inputs)
TEST_ON_EACH_DEVICE("steps agree with PyTorch's float64", golden)
TEST_ON_EACH_DEVICE("steps are exact in fp16 and bf16", half_types)

TEST_CASE("counted bytes and FLOPs are those worked out by hand") {
  const auto device = open_plain_cpu();
  // N = 1024: Q is 1024 * 64 * 4 = 262144 bytes, and so are K, V and O; 16 query tiles; LSE is 4096 bytes.
  CHECK(counted(*device, "step04", 0, 1024) == std::vector<Totals>{{262144 + 16 * 2 * 262144, 266240, 268435456}});
  CHECK(counted(*device, "step04", 0, 1024).front().load == 8650752);
  CHECK(counted(*device, "step03", 0, 1024) == std::vector<Totals>{{12845056, 266240, 402653184}});
  // N = 128: a tensor of 32768 bytes, S of 65536, LSE of 512, 2 tiles; a product of all pairs is 2 * 128 * 128 * 64 =
  // 2097152.
  CHECK(counted(*device, "step01", 0, 128) ==
        std::vector<Totals>{{98304, 65536, 2097152}, {196608, 66048, 0}, {131072, 32768, 2097152}});
  CHECK(counted(*device, "step02", 0, 128) ==
        std::vector<Totals>{{98304, 65536, 2097152}, {65536, 66048, 0}, {131072, 32768, 2097152}});
  CHECK(counted(*device, "step05", 2, 128) ==
        std::vector<Totals>{
            {65536, 512, 0}, {65536 + 131072 + 2048, 65536, 8388608}, {65536 + 131072 + 1024, 32768, 6291456}});
  // Causal: 3 of the 4 tiles are visited. The second key tile sees only the second half of Q, dO, LSE and delta.
  CHECK(counted(*device, "step04", 0, 128, true) == std::vector<Totals>{{32768 + 32768 + 65536, 33280, 3145728}});
  CHECK(counted(*device, "step05", 2, 128, true) ==
        std::vector<Totals>{
            {65536, 512, 0}, {65536 + 98304 + 1536, 65536, 6291456}, {65536 + 98304 + 1024, 32768, 4718592}});
}

TEST_CASE("no thread order shows a race, and all give the same bits") {
  const auto device = open_plain_cpu();
  for (const auto& [seqlen_q, seqlen_k, d, on_tensor_cores] :
       {std::tuple{77, 77, 64, false},
        {70, 130, 40, false},
        {137, 33, 63, false},
        {33, 70, 128, false},
        {17, 35, 256, false},
        {77, 77, 64, true},
        {137, 33, 63, true},
        {33, 70, 128, true}})
    for (const bool causal : {false, true}) {
      if (on_tensor_cores && !causal) continue;
      Case c = make_case(on_tensor_cores ? 1 : 2, seqlen_q, seqlen_k, d, causal);
      c.problem.on_tensor_cores = on_tensor_cores;
      for_each_method(*device, c.problem, [&](const Step&, const Method& method, const Problem& problem) {
        check_orders(*device, method, problem, c.inputs());
      });
    }
}
