#include "common/harness/describe.h"

#include <algorithm>
#include <cstdlib>

#include "common/base/json.h"
#include "common/base/text.h"
#include "common/harness/choose.h"

namespace attention {

namespace {
constexpr int kCapabilities[] = {
    0, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121};  // 0: the CPU executor; the GPUs that CUDA 13 compiles for
constexpr int kMostHeadDim = 512;

Problem problem_of(int capability, Dtype dtype, bool on_tensor_cores, int head_dim) {
  return {.seqlen_q = 512,
          .seqlen_k = 512,
          .head_dim = head_dim,
          .softmax_scale = 1,
          .dtype = dtype,
          .on_tensor_cores = on_tensor_cores,
          .compute_capability = capability};
}

/// {"any_up_to": n}, or {"only": [...]}; `served` ascends.
Json head_dims_json(const std::vector<int>& served) {
  if (served.back() == static_cast<int>(served.size())) return {{"any_up_to", served.back()}};
  return {{"only", served}};
}

/// The step that the diff goes from: the one numbered before, unless the step names another.
std::string step_before(const Step& step) {
  if (!step.before.empty() || step.id.rfind("step", 0) != 0) return step.before;
  const int number = std::atoi(step.id.c_str() + 4);
  return number < 2 ? "" : "step" + std::string(number <= 10 ? "0" : "") + std::to_string(number - 1);
}

/// What the speedup of a row is quoted over: the standard attention's forward, or its backward.
std::string baseline(const Step& step, bool backward) {
  const std::string usual = backward ? "step05 standard backward" : "step02";
  return !step.baseline.empty() ? step.baseline : step.id == usual ? "" : usual;
}

void put_served(Json& json, const Step& step) {
  std::vector<int> capabilities;
  json["dtypes"] = Json::array();
  for (const char* key : {"products", "head_dims", "tiles"}) json[key] = Json::object();
  for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
    for (const bool on_tensor_cores : {false, true}) {
      if (on_tensor_cores && dtype != Dtype::fp32) continue;  // they run on nothing else
      std::vector<int> head_dims;
      Json tiles = Json::object();
      for (int head_dim = 1; head_dim <= std::min(step.largest_head_dim, kMostHeadDim); ++head_dim) {
        bool anywhere = false;
        for (const int capability : kCapabilities) {
          const Problem p = problem_of(capability, dtype, on_tensor_cores, head_dim);
          if (!serves(step, p)) continue;
          capabilities.push_back(capability);
          if (!anywhere && (head_dim == 64 || head_dim == 128 || head_dim == 256))
            for (const TileChoice& tile : step.tiles(p))
              if (tile.shape != TileShape{}) tiles[std::to_string(head_dim)].push_back(tile_name(tile.shape));
          anywhere = true;
        }
        if (anywhere) head_dims.push_back(head_dim);
      }
      if (head_dims.empty()) continue;
      const Problem p = problem_of(0, dtype, on_tensor_cores, head_dims.front());
      if (json["products"].count(dtype_name(dtype)) == 0) json["dtypes"].push_back(dtype_name(dtype));
      json["products"][dtype_name(dtype)].push_back(product_name(p));
      json["head_dims"][type_and_product(p)] = head_dims_json(head_dims);
      json["tiles"][type_and_product(p)] = tiles;
    }
  }
  std::sort(capabilities.begin(), capabilities.end());
  capabilities.erase(std::unique(capabilities.begin(), capabilities.end()), capabilities.end());
  const bool on_cpu = find_step(DeviceKind::cpu, step.id) && !capabilities.empty() && capabilities.front() == 0;
  if (!capabilities.empty() && capabilities.front() == 0) capabilities.erase(capabilities.begin());
  Json gpu = {
      {"compiled", step.methods.empty() ? find_gpu().compiled_in : find_step(DeviceKind::gpu, step.id) != nullptr}};
  if (!capabilities.empty())
    gpu[capabilities.size() == 1 ? "capability_exactly" : "capability_at_least"] = capabilities.front();
  json["devices"] = {{"cpu", on_cpu}, {"gpu", gpu}};
}

}  // namespace

std::string describe(const Step& step) {
  Json json = {{"id", step.id},           {"kind", step.kind},        {"title", step.title},    {"idea", step.idea},
               {"chapter", step.chapter}, {"methods", Json::array()}, {"passes", Json::array()}};
  bool passes[2] = {false, false};  // by Method::backward
  for (const Method& method : step.methods) {
    json["methods"].push_back({{"name", method.name}, {"backward", method.backward}});
    passes[method.backward] = true;
  }
  if (passes[false]) json["passes"].push_back("forward");
  if (passes[true]) json["passes"].push_back("backward");
  put_served(json, step);
  json["default_dtype"] = dtype_name(step.default_dtype);
  json["baseline"] = step.methods.empty() ? "" : baseline(step, passes[true]);
  json["before"] = step_before(step);
  json["techniques"] = Json::array();
  for (const Technique& technique : step.techniques)
    json["techniques"].push_back(
        {{"name", technique.name}, {"without", technique.without}, {"option", technique.option()}});
  return json.dump(2) + "\n";
}

}  // namespace attention
