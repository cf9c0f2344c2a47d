// --sweep-tiles: every tile appears, what does not fit is said, and only a right result can be the best.
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/error.h"
#include "common/base/text.h"
#include "common/harness/json.h"
#include "common/harness/report.h"
#include "common/harness/sweep.h"
#include "tests/catch.h"
#include "tests/made_step.h"
#include "tests/programs.h"

using namespace attention;

namespace {

using Json = nlohmann::json;

Sweep sweep(DeviceKind device, const Step& step, std::vector<const char*> flags) {
  flags.insert(flags.end(), {"--sweep-tiles", "--device", device == DeviceKind::gpu ? "gpu" : "cpu"});
  const Options options = options_of(step, flags);
  ChosenDevice chosen = choose_device(options);
  Progress progress;
  return sweep_tiles(options, step, chosen, progress);
}

/// What --plan says of one tile.
RunResult plan(const Step& step, std::vector<const char*> flags, TileShape tile) {
  const std::string name = tile_name(tile);
  flags.insert(flags.end(), {"--device", "cpu", "--plan", "--tile", name.c_str()});
  return run_with_flags(step, flags);
}

std::set<std::string> names(const Sweep& sweep) {
  std::set<std::string> names;
  for (const SweptTile& swept : sweep.tiles) names.insert(tile_name(swept.tile.shape));
  return names;
}

/// A step of three tiles. `spoil` is called behind it.
Step three_tiles(std::function<void(const Problem&, const Tensors&)> spoil = [](const Problem&, const Tensors&) {}) {
  Step step = made_step([spoil](const Problem& p, const Tensors& t) { plain_attention(p, t), spoil(p, t); });
  step.tiles = [](const Problem&) {
    return std::vector<TileChoice>{{{64, 64}, 2048, 128}, {{16, 32}, 1024, 32}, {{16, 16}, 512, 32}};
  };
  return step;
}

Sweep sweep_short(const Step& step, std::vector<const char*> flags = {}) {
  flags.insert(flags.end(), {"--heads", "1", "--seqlen", "1", "--head-dim", "16"});
  return sweep(DeviceKind::cpu, step, flags);
}

/// A tile as a sweep on a GPU leaves it.
SweptTile gpu_tile(TileShape shape, double ms, bool right = true) {
  SweptTile swept = {{shape, 1000, 128}, {}};
  swept.run.device = DeviceKind::gpu;
  swept.run.device_name = "a GPU";
  swept.run.problem.tile = shape;
  swept.run.methods.resize(1);
  MethodResult& m = swept.run.methods.back();
  m.useful_flops = 1'000'000'000;
  m.time = TimeStats{ms, ms, ms, 20, false};
  m.checks.resize(1);
  m.checks[0].pass = right;
  m.launches = {{.kernel = "short", .time_ms = 0.1 * ms, .blocks_per_sm = 16},
                {.kernel = "long", .time_ms = 0.9 * ms, .blocks_per_sm = 3}};
  if (!right) swept.run.failures = {"o is wrong"};
  return swept;
}

}  // namespace

TEST_CASE("a sweep runs every tile of every step, and each asks for what --plan says of it") {
  for (const std::string& id : registered_steps(DeviceKind::cpu)) {
    const Step& step = *find_step(DeviceKind::cpu, id);
    constexpr Dtype fp32 = Dtype::fp32, fp16 = Dtype::fp16;
    for (const auto& [type, head_dim] :
         {std::pair{fp32, "64"}, {fp16, "40"}, {Dtype::bf16, "64"}, {fp32, "128"}, {fp16, "128"}, {fp16, "256"}}) {
      const char* dtype = dtype_name(type);
      INFO(id << " " << dtype << " d " << head_dim);
      if (step.default_dtype != fp32 && type == fp32) continue;  // refused
      const Problem asked{.seqlen_q = 70, .seqlen_k = 133, .head_dim = std::stoi(head_dim), .dtype = type};
      if (!refusal(step, asked).empty()) continue;
      const std::vector<const char*> flags = {
          "--heads", "1",   "--seqlen-q", "70",     "--seqlen-k",     "133", "--causal",
          "--dtype", dtype, "--head-dim", head_dim, "--thread-order", "0"};
      const Sweep swept = sweep(DeviceKind::cpu, step, flags);
      const std::vector<TileChoice> compiled = step.tiles(swept.tiles.front().run.problem);
      CHECK_FALSE(compiled.empty());
      std::set<std::string> expected;
      for (const TileChoice& tile : compiled) expected.insert(tile_name(tile.shape));
      CHECK(names(swept) == expected);
      CHECK(swept.tiles.size() == expected.size());
      CHECK(swept.failures().empty());
      for (const SweptTile& tile : swept.tiles) {
        INFO(tile_name(tile.tile.shape));
        CHECK(tile.verified() == true);
        CHECK(tile.tile.threads % 32 == 0);
        CHECK(tile.tile.threads > 0);
        const MethodResult planned = plan(step, flags, tile.tile.shape).methods.back();
        CHECK(total(tile.method().requested()) == total(planned.requested()));
        CHECK(total(tile.method().counted()) == total(planned.requested()));
        CHECK(total(tile.method().hbm()) == total(planned.hbm()));
      }
    }
  }
}

TEST_CASE("step04 has each pair of 32, 64 and 128 rows at head_dim 64, and the article's 64x64 at 128 too") {
  const Step& step = *find_step(DeviceKind::cpu, "step04");
  for (const char* dtype : {"fp32", "fp16"})
    CHECK(names(sweep(DeviceKind::cpu, step, {"--plan", "--dtype", dtype})) ==
          std::set<std::string>{"32x32", "32x64", "32x128", "64x32", "64x64", "64x128", "128x32", "128x64", "128x128"});
  for (const char* dtype : {"fp32", "fp16", "bf16"})
    for (const char* head_dim : {"64", "128"})
      CHECK(sweep(DeviceKind::cpu, step, {"--plan", "--dtype", dtype, "--head-dim", head_dim}).find(kArticleTile) !=
            nullptr);
}

TEST_CASE("a tile that does not fit shows the bytes it needs and those there are, and the rest runs") {
  const Environment limit("ATTN_SMEM_LIMIT", "65536");
  const Step& step = *find_step(DeviceKind::cpu, "step04");
  const Sweep swept = sweep(DeviceKind::cpu, step, {"--seqlen", "70"});
  int too_large = 0;
  for (const SweptTile& tile : swept.tiles) {
    INFO(tile_name(tile.tile.shape));
    const bool fits = tile.tile.sram_bytes <= 65536;
    CHECK(fits == tile.method().not_run.empty());
    CHECK(fits == (tile.verified() == true));
    if (fits) continue;
    ++too_large;
    CHECK(tile.method().not_run ==
          "asks for " + std::to_string(tile.tile.sram_bytes) + " bytes of SRAM per block, 65536 are allowed");
    CHECK(has(sweep_text(swept), tile.method().not_run));
    CHECK_FALSE(tile.method().time);
    CHECK(total(tile.method().requested()) > 0);
  }
  CHECK(too_large == 6);  // of 9
  CHECK(swept.failures().empty());
  CHECK(describe_article_tile(swept) == "64x64 asks for 69632 bytes of SRAM per block, 65536 are allowed");
  const Json json = Json::parse(sweep_json_text(swept));
  for (const Json& tile : json["tiles"]) {
    CHECK(tile["not_run"].is_null() == (tile["sram_bytes"] <= 65536));
    CHECK(tile["time"].is_null() != tile["not_run"].is_null());
    CHECK(tile["verified"].is_null() != tile["not_run"].is_null());
  }
}

TEST_CASE("a wrong tile fails by name, and the sweep goes on") {
  const Sweep swept = sweep_short(three_tiles([](const Problem& p, const Tensors& t) {
    if (p.tile == TileShape{16, 32}) static_cast<float*>(t.o)[3] += 1;
    if (p.tile == TileShape{16, 16}) throw CheckFailed("a race");
  }));
  REQUIRE(swept.failures().size() == 2);
  CHECK(swept.failures()[0] == "16x16: a race");
  CHECK(swept.failures()[1].find("16x32: forward: o") == 0);
  CHECK(swept.find({16, 32})->verified() == false);
  CHECK(swept.find({64, 64})->verified() == true);
  CHECK(has(sweep_text(swept), "FAIL      16x32: forward: o"));
  const Json json = Json::parse(sweep_json_text(swept));
  CHECK(json["tiles"][0]["verified"] == false);
  CHECK(json["tiles"][0]["verdict"] == "FAIL");
  CHECK(json["tiles"][0]["time"].is_null());
  CHECK(json["tiles"][2]["verified"] == true);
}

TEST_CASE("--check none passes nothing") {
  const Sweep swept = sweep_short(three_tiles(), {"--check", "none"});
  CHECK_FALSE(swept.tiles.front().verified().has_value());
  CHECK(!has(sweep_text(swept), "PASS"));
  CHECK(Json::parse(sweep_json_text(swept))["tiles"][0]["verified_reason"] == "not checked (--check none)");
}

TEST_CASE("tiles that a library chooses are not swept") {
  Step step = three_tiles();
  step.tiles = [](const Problem&) { return std::vector<TileChoice>{{}}; };
  CHECK_THROWS_WITH(sweep_short(step), "step99 has no tiles to sweep: its products are a library's, which chooses");
}

TEST_CASE("a sweep leaves the baselines out") {
  const Sweep swept = sweep(DeviceKind::cpu, *find_step(DeviceKind::cpu, "step05"), {"--seqlen", "40"});
  const std::vector<MethodResult>& methods = swept.tiles.front().run.methods;
  REQUIRE(methods.size() == 3);
  CHECK(methods[0].not_run.empty());
  CHECK(methods[1].not_run == "--sweep-tiles leaves the baselines out");
  CHECK(methods[2].not_run.empty());
}

TEST_CASE("the best is the fastest that passed on a GPU") {
  Sweep swept;
  swept.tiles = {gpu_tile({32, 32}, 3), gpu_tile({64, 64}, 2.5), gpu_tile({64, 128}, 1, false), gpu_tile({128, 64}, 2),
                 gpu_tile({128, 128}, 4)};
  REQUIRE(swept.best() != nullptr);
  CHECK(swept.best()->tile.shape == TileShape{128, 64});
  CHECK(describe_article_tile(swept) == "64x64 takes 1.25 times the best's time here (2.5 ms, 128x64 2 ms)");
  CHECK(swept.best()->longest_kernel()->kernel == "long");
  const std::string text = sweep_text(swept);
  CHECK(text.find("<- best") == text.rfind("<- best"));
  CHECK(has(text, "best      128x64: 2 ms"));
  const Json json = Json::parse(sweep_json_text(swept));
  CHECK(json["best"] == "128x64");
  CHECK(json["gpu"] == "a GPU");
  CHECK(json["tiles"][3]["blocks_per_sm"] == 3);
  CHECK(json["tiles"][3]["longest_kernel"] == "long");
  CHECK(json["tiles"][3]["time"]["tflops"] == Approx(0.5));

  swept.tiles.erase(swept.tiles.begin() + 3);
  CHECK(describe_article_tile(swept) == "64x64 is the best here");
  swept.tiles.erase(swept.tiles.begin() + 1);
  CHECK(describe_article_tile(swept) == "64x64 is not compiled in for fp32 at head_dim 64");
  swept.tiles = {gpu_tile({64, 64}, 1, false)};
  CHECK(swept.best() == nullptr);
  CHECK(describe_article_tile(swept) == "64x64 gave a wrong result");
  CHECK(Json::parse(sweep_json_text(swept))["best_reason"] == "no tile passed");
  swept.tiles = {gpu_tile({64, 64}, 1)};
  swept.tiles[0].run.methods[0].checks.clear();
  swept.tiles[0].run.options.check.kind = CheckChoice::Kind::none;
  CHECK(swept.best() == nullptr);
  CHECK(swept.no_best_reason() == "nothing was checked (--check none)");
  swept.tiles = {gpu_tile({64, 64}, 1)};
  swept.tiles[0].run.device = DeviceKind::cpu;
  swept.tiles[0].run.methods[0].time->emulated = true;
  CHECK(swept.best() == nullptr);
}

TEST_CASE("a sweep's JSON: keys, and a reason beside each null") {
  const Sweep swept =
      sweep(DeviceKind::cpu, *find_step(DeviceKind::cpu, "step04"), {"--seqlen", "70", "--dtype", "fp16"});
  const Json json = Json::parse(sweep_json_text(swept));
  for (const auto& [key, value] : std::map<std::string, Json>{
           {"step", "step04"},
           {"dtype", "fp16"},
           {"batch", 1},
           {"heads", 2},
           {"seqlen", 70},
           {"head_dim", 64},
           {"causal", false},
           {"gpu", nullptr},
           {"emulated", true},
           {"best", nullptr}})
    CHECK(json.at(key) == value);
  CHECK(json["versions"].contains("git_commit"));
  const Json& tile = json["tiles"].back();
  for (const char* key : {"threads", "blocks_per_sm", "hbm_expected_bytes", "hbm_measured_bytes", "not_run"})
    CHECK(tile.contains(key));
  CHECK(tile["tile"] == "128x128");
  CHECK(tile["verified"] == true);
  CHECK(tile["requested_bytes"] == tile["requested_expected_bytes"]["load"].get<int64_t>() +
                                       tile["requested_expected_bytes"]["store"].get<int64_t>());
  CHECK(tile["requested_counted_bytes"] == tile["requested_expected_bytes"]);
  CHECK(tile["time"]["emulated"] == true);
  for (const Json& object : {json, tile, tile["time"]})
    for (const auto& [key, value] : object.items())
      if (value.is_null() && key != "not_run") {
        INFO(key);
        const std::string reason =
            object.contains(key + "_reason") ? key + "_reason" : key.substr(0, key.rfind("_bytes")) + "_reason";
        REQUIRE(object.contains(reason));
        CHECK_FALSE(object[reason].get<std::string>().empty());
      }
}

TEST_CASE("a sweep on a GPU: occupancy, times and the best of each tile that fits", "[gpu]") {
  for (const char* id : {"step01", "step03", "step04", "step05", "step06"}) {
    for (const char* dtype : {"fp32", "fp16"}) {
      if (find_step(DeviceKind::gpu, id)->default_dtype != Dtype::fp32 && std::string(dtype) == "fp32")
        continue;  // refused
      INFO(id << " " << dtype);
      const Sweep swept = sweep(
          DeviceKind::gpu, *find_step(DeviceKind::gpu, id), {"--heads", "4", "--seqlen", "1024", "--dtype", dtype});
      CHECK(swept.failures().empty());
      REQUIRE(swept.best() != nullptr);
      for (const SweptTile& tile : swept.tiles) {
        INFO(tile_name(tile.tile.shape));
        if (!tile.method().not_run.empty()) continue;
        CHECK(tile.verified() == true);
        CHECK(tile.longest_kernel()->blocks_per_sm.value_or(0) >= 1);
        CHECK(tile.longest_kernel()->registers_per_thread.value_or(0) > 0);
        CHECK(swept.best()->method().time->median_ms <= tile.method().time->median_ms);
      }
      CHECK_FALSE(Json::parse(sweep_json_text(swept))["best"].is_null());
    }
  }
}
