#include "common/harness/inputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>
#include <utility>

#include "common/base/error.h"
#include "common/base/half.h"
#include "common/base/npy.h"
#include "common/base/text.h"

namespace attention {

namespace {
void settle(std::optional<int64_t>& typed, int64_t from_file, const char* flag, const std::string& path) {
  if (typed && *typed != from_file)
    throw BadArguments(fmt::format("{} {} contradicts {}, which has {}", flag, *typed, path, from_file));
  typed = from_file;
}

NpyArray<float> read_input(const std::string& path) {
  NpyArray<float> array = read_npy(path, 4);
  for (size_t n = 0; n < array.values.size(); ++n)
    if (!std::isfinite(array.values[n]))
      throw BadArguments(fmt::format("{}: element {} is {}; attention needs finite inputs", path, n, array.values[n]));
  return array;
}

/// `all_half` stays true only if the file holds float16.
std::vector<float> read_shaped(const std::string& path, const std::vector<int64_t>& shape, bool& all_half) {
  NpyArray<float> array = read_input(path);
  all_half = all_half && array.was_half;
  if (array.shape != shape)
    throw BadArguments(fmt::format("{}: shape {}, but q.npy and k.npy ask for {}", path, array.shape, shape));
  return std::move(array.values);
}
}  // namespace

InputTensors load_inputs(Options& options, bool backward) {
  if (options.init_given) throw BadArguments("--load gives the inputs: --init and --seed contradict it");
  const std::string folder = options.load_dir + "/";
  NpyArray<float> q = read_input(folder + "q.npy");
  NpyArray<float> k = read_input(folder + "k.npy");
  for (const int64_t length : {q.shape[0], q.shape[1], q.shape[2], q.shape[3], k.shape[2]})
    if (length < 1)
      throw BadArguments(fmt::format("{}q.npy, k.npy: shapes {} and {} hold no element", folder, q.shape, k.shape));
  if (k.shape[0] != q.shape[0] || k.shape[1] != q.shape[1] || k.shape[3] != q.shape[3])
    throw BadArguments(fmt::format(
        "{}k.npy: shape {} does not fit q.npy, {}: batch, heads and head_dim must be equal", folder, k.shape, q.shape));
  settle(options.batch, q.shape[0], "--batch", folder + "q.npy");
  settle(options.heads, q.shape[1], "--heads", folder + "q.npy");
  settle(options.seqlen_q, q.shape[2], "--seqlen (queries)", folder + "q.npy");
  settle(options.seqlen_k, k.shape[2], "--seqlen (keys)", folder + "k.npy");
  settle(options.head_dim, q.shape[3], "--head-dim", folder + "q.npy");
  InputTensors inputs;
  bool all_half = q.was_half && k.was_half;
  inputs.v = read_shaped(folder + "v.npy", k.shape, all_half);
  if (backward && !std::filesystem::exists(folder + "do.npy"))
    throw BadArguments(
        fmt::format("{}do.npy: is missing: the backward needs dO, the gradient of O, of q.npy's shape", folder));
  if (backward) inputs.d_o = read_shaped(folder + "do.npy", q.shape, all_half);
  if (!options.dtype) options.dtype = all_half ? Dtype::fp16 : Dtype::fp32;
  inputs.q = std::move(q.values);
  inputs.k = std::move(k.values);
  return inputs;
}

InputTensors make_inputs(const Options& options, const Problem& problem, bool backward) {
  const auto filled = [&](int64_t elements, InputTensor tensor) {
    std::vector<float> values(static_cast<size_t>(elements));
    fill(values, options.init, tensor, problem.head_dim, options.seed);
    return values;
  };
  return {filled(problem.Xq(), InputTensor::q), filled(problem.Xk(), InputTensor::k),
          filled(problem.Xk(), InputTensor::v),
          backward ? filled(problem.Xq(), InputTensor::d_o) : std::vector<float>{}};
}

void round_inputs(InputTensors& inputs, Dtype dtype) {
  for (const auto& [name, values] :
       {std::pair{"q", &inputs.q}, {"k", &inputs.k}, {"v", &inputs.v}, {"do", &inputs.d_o}}) {
    const int64_t too_large = round_all(dtype, *values);
    if (too_large >= 0)
      throw BadArguments(fmt::format("{}: element {} is too large for {}, which holds numbers up to {:g}", name,
                                     too_large, dtype_name(dtype), largest_number(dtype)));
  }
}

}  // namespace attention
