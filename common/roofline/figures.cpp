#include "common/roofline/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "common/base/json.h"
#include "common/base/text.h"

namespace attention {

namespace {

constexpr const char* kSchema = "attention-device-1";

double positive(const Json& object, const char* key) {
  const double value = object.at(key).get<double>();
  if (!std::isfinite(value) || value <= 0) throw std::runtime_error(fmt::format("{} is not a positive number", key));
  return value;
}

std::optional<double> positive_or_null(const Json& object, const char* key) {
  if (object.at(key).is_null()) return std::nullopt;
  return positive(object, key);
}

Dtype parse_dtype(const std::string& name) {
  for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16})
    if (name == dtype_name(dtype)) return dtype;
  throw std::runtime_error(fmt::format("dtype {} is unknown", name));
}

TileShape parse_tile(const std::string& text) {
  TileShape tile;
  char x = 0;
  if (!(std::istringstream(text) >> tile.br >> x >> tile.bc) || x != 'x')
    throw std::runtime_error(fmt::format("tile {} is not BrxBc", text));
  return tile;
}

}  // namespace

std::optional<double> DeviceFigures::product_rate(const Problem& p, bool warpgroups) const {
  if (warpgroups && p.dtype == Dtype::fp32)
    return wgmma_fp16 ? std::optional(*wgmma_fp16 / 3) : std::nullopt;  // in parts: three for one
  if (warpgroups) return p.dtype == Dtype::fp16 ? wgmma_fp16 : wgmma_bf16;
  const TileProductRate* best = nullptr;
  for (const TileProductRate& rate : p.on_tensor_cores ? split_products : tile_products)
    if (rate.dtype == p.dtype && rate.head_dim >= p.head_dim && (best == nullptr || rate.head_dim < best->head_dim))
      best = &rate;
  if (best == nullptr) return std::nullopt;
  return best->flops_per_second * p.head_dim / best->head_dim;
}

double DeviceFigures::hbm_limit() const { return std::max({hbm_peak.value_or(0), hbm_read, hbm_copy}); }

bool is_cache_resident(double bytes_per_second, const DeviceFigures& figures) {
  return bytes_per_second > 1.05 * figures.hbm_limit();
}

std::string figures_path(const std::string& gpu) {
  const auto environment = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string path = environment("ATTN_DEVICE_FIGURES"); !path.empty()) return path;
  std::string folder = environment("XDG_CACHE_HOME");
  if (folder.empty()) {
    const std::string home = environment("HOME");
    if (home.empty()) return "";
    folder = home + "/.cache";
  }
  std::string name = gpu;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '.'; }, '_');
  return folder + "/attention-steps/" + name + ".json";
}

std::string figures_json(const DeviceFigures& f) {
  Json json = {{"schema", kSchema}};
  json["gpu"] = {
      {"name", f.gpu},
      {"compute_capability", f.compute_capability},
      {"sm_count", f.sm_count},
      {"hbm_bytes", f.hbm_bytes},
      {"l2_bytes", f.l2_bytes},
      {"sram_bytes", f.sm_count * f.sram_bytes_per_sm},
      {"sram_bytes_per_sm", f.sram_bytes_per_sm},
      {"sram_bytes_per_block", f.sram_bytes_per_block},
      {"driver_cuda", f.driver_cuda}};
  Json& bandwidth = json["bytes_per_second"] = {{"hbm_read", f.hbm_read}, {"hbm_copy", f.hbm_copy}};
  put(bandwidth, "hbm_peak", or_null(f.hbm_peak), "the driver does not tell memory clock and bus width");
  bandwidth["l2_read"] = f.l2_read;
  bandwidth["sram_read"] = f.sram_read;
  json["working_sets"] = Json::array();
  for (const WorkingSetRate& set : f.working_sets)
    json["working_sets"].push_back({{"bytes", set.bytes},
                                    {"bytes_per_second", set.bytes_per_second},
                                    {"cache_resident", is_cache_resident(set.bytes_per_second, f)}});
  Json& products = json["flops_per_second"] = {{"ffma_fp32", f.ffma_fp32}};
  put(products, "mma_fp16", or_null(f.mma_fp16), "needs compute capability 7.5 or newer");
  put(products, "mma_bf16", or_null(f.mma_bf16), "needs compute capability 8.0 or newer");
  put(products, "wgmma_fp16", or_null(f.wgmma_fp16), "needs a Hopper GPU (compute capability 9.0)");
  put(products, "wgmma_bf16", or_null(f.wgmma_bf16), "needs a Hopper GPU (compute capability 9.0)");
  const auto put_products = [&](const char* key, const std::vector<TileProductRate>& rates) {
    json[key] = Json::array();
    for (const TileProductRate& rate : rates)
      json[key].push_back(
          {{"dtype", dtype_name(rate.dtype)},
           {"head_dim", rate.head_dim},
           {"tile", tile_name(rate.tile)},
           {"blocks_per_sm", rate.blocks_per_sm},
           {"flops_per_second", rate.flops_per_second},
           {"flops_per_byte_of_bandwidth", rate.flops_per_second / f.bandwidth()}});
  };
  put_products("tile_products", f.tile_products);
  put_products("split_tile_products", f.split_products);
  json["R"] =
      "tile_products[].flops_per_second of the dtype and the padded head_dim, times head_dim / padded head_dim; "
      "flops_per_second.wgmma_* for steps made of warpgroup products";
  json["BW"] = "bytes_per_second.hbm_copy";
  json["launch_us"] = {{"spacing", f.launch_spacing_us}, {"round_trip", f.launch_round_trip_us}};
  return json.dump(2) + "\n";
}

DeviceFigures parse_figures(const std::string& text) {
  DeviceFigures f;
  try {
    const Json json = Json::parse(text);
    if (json.at("schema") != kSchema) throw std::runtime_error(fmt::format("its schema is not {}", kSchema));
    const Json& gpu = json.at("gpu");
    f.gpu = gpu.at("name").get<std::string>();
    f.driver_cuda = gpu.at("driver_cuda").get<std::string>();
    f.compute_capability = gpu.at("compute_capability").get<int>();
    f.sm_count = gpu.at("sm_count").get<int>();
    f.hbm_bytes = gpu.at("hbm_bytes").get<int64_t>();
    f.l2_bytes = gpu.at("l2_bytes").get<int64_t>();
    f.sram_bytes_per_sm = gpu.at("sram_bytes_per_sm").get<int64_t>();
    f.sram_bytes_per_block = gpu.at("sram_bytes_per_block").get<int64_t>();
    const Json& bandwidth = json.at("bytes_per_second");
    f.hbm_read = positive(bandwidth, "hbm_read");
    f.hbm_copy = positive(bandwidth, "hbm_copy");
    f.hbm_peak = positive_or_null(bandwidth, "hbm_peak");
    f.l2_read = positive(bandwidth, "l2_read");
    f.sram_read = positive(bandwidth, "sram_read");
    for (const Json& set : json.at("working_sets"))
      f.working_sets.push_back({set.at("bytes").get<int64_t>(), positive(set, "bytes_per_second")});
    const Json& products = json.at("flops_per_second");
    f.ffma_fp32 = positive(products, "ffma_fp32");
    f.mma_fp16 = positive_or_null(products, "mma_fp16");
    f.mma_bf16 = positive_or_null(products, "mma_bf16");
    if (products.contains("wgmma_fp16"))
      f.wgmma_fp16 = positive_or_null(products, "wgmma_fp16");  // older files have none
    if (products.contains("wgmma_bf16")) f.wgmma_bf16 = positive_or_null(products, "wgmma_bf16");
    const auto read_products = [](const Json& rates, std::vector<TileProductRate>& into) {
      for (const Json& rate : rates)
        into.push_back({parse_dtype(rate.at("dtype").get<std::string>()), static_cast<int>(positive(rate, "head_dim")),
                        parse_tile(rate.at("tile").get<std::string>()), rate.at("blocks_per_sm").get<int>(),
                        positive(rate, "flops_per_second")});
    };
    read_products(json.at("tile_products"), f.tile_products);
    if (json.contains("split_tile_products"))
      read_products(json["split_tile_products"], f.split_products);  // older files have none
    f.launch_spacing_us = positive(json.at("launch_us"), "spacing");
    f.launch_round_trip_us = positive(json.at("launch_us"), "round_trip");
  } catch (const Json::parse_error&) {
    throw std::runtime_error("it is not JSON");
  } catch (const Json::exception&) {  // a key that is missing, or holds something of another type
    throw std::runtime_error("a figure is missing");
  }
  return f;
}

Known<DeviceFigures> find_figures(const std::string& gpu, const std::string& driver_cuda) {
  const auto none = Known<DeviceFigures>::none;
  const std::string path = figures_path(gpu);
  if (path.empty())
    return none("neither ATTN_DEVICE_FIGURES nor XDG_CACHE_HOME nor HOME says where step00 keeps its figures");
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return none("step00 has not measured this GPU: run ./step00 once");
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path, error)) return none(path + " cannot be read: run ./step00 once");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  try {
    DeviceFigures figures = parse_figures(text);
    if (figures.gpu != gpu) return none(fmt::format("{} is of another GPU ({}): run ./step00 once", path, figures.gpu));
    if (figures.driver_cuda != driver_cuda)
      return none(fmt::format("{} was measured with a driver for CUDA {}, this one is for {}: run ./step00 once", path,
                              figures.driver_cuda, driver_cuda));
    return figures;
  } catch (const std::exception& broken) {
    return none(fmt::format("{} was not written by step00 ({}): run ./step00 once", path, broken.what()));
  }
}

}  // namespace attention
