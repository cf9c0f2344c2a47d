// --describe: what scripts know of a step.
#include <nlohmann/json.hpp>

#include "common/harness/describe.h"
#include "tests/catch.h"
#include "tests/programs.h"

using namespace attention;

namespace {
using Json = nlohmann::json;

Json described(const std::string& program) {
  const Outcome outcome = run_program(program + " --describe");
  REQUIRE(outcome.code == 0);
  return Json::parse(outcome.out);
}
}  // namespace

TEST_CASE("every program describes itself") {
  for (const auto& entry : std::filesystem::directory_iterator(ATTN_STEP_FOLDER)) {
    const std::string name = entry.path().filename();
    if (name.size() != 6 || name.rfind("step", 0) != 0) continue;
    INFO(name);
    const Json step = described(name);
    CHECK(step["id"] == name);
    CHECK(step["kind"] == (name == "step00" ? "device" : "attention"));
    CHECK(std::filesystem::exists(ATTN_SOURCE_FOLDER "/" + step["chapter"].get<std::string>()));
    CHECK(step["methods"].empty() == (name == "step00"));
    for (const char* key : {"title", "idea", "default_dtype", "baseline", "before"}) CHECK(step[key].is_string());
    for (const char* key : {"passes", "dtypes", "techniques"}) CHECK(step[key].is_array());
    for (const char* key : {"products", "head_dims", "tiles"}) CHECK(step[key].is_object());
    CHECK(step["devices"]["cpu"].is_boolean());
    CHECK(step["devices"]["gpu"]["compiled"].is_boolean());
    for (const Json& dtype : step["dtypes"]) CHECK_FALSE(step["products"][dtype.get<std::string>()].empty());
  }
}

TEST_CASE("step04 and step06 say what they serve") {
  const Json online = described("step04"), pipeline = described("step06");
  CHECK(online["products"] ==
        Json({{"fp32", {"cuda-cores", "tensor-cores"}}, {"fp16", {"tensor-cores"}}, {"bf16", {"tensor-cores"}}}));
  CHECK(online["head_dims"] == Json({{"fp32", {{"any_up_to", 256}}},
                                     {"fp32 on tensor cores", {{"any_up_to", 128}}},
                                     {"fp16", {{"any_up_to", 256}}},
                                     {"bf16", {{"any_up_to", 256}}}}));
  CHECK(online["devices"] == Json({{"cpu", true}, {"gpu", online["devices"]["gpu"]}}));
  CHECK(pipeline["devices"]["gpu"]["capability_at_least"] == 80);
  CHECK(pipeline["head_dims"]["fp16"]["only"].size() == 32);
}

TEST_CASE("what is served follows from the step's own refusal and tiles") {
  Step step{.id = "step12", .title = "t", .idea = "i", .chapter = "c", .baseline = "step10 backward"};
  step.largest_head_dim = kAnyHeadDim;
  step.default_dtype = Dtype::bf16;
  step.tiles = [](const Problem& p) {
    return p.dtype == Dtype::bf16 && (p.head_dim == 64 || p.head_dim == 128)
               ? std::vector<TileChoice>{{{32, 16}}}
               : std::vector<TileChoice>{};
  };
  step.refusal = [](const Problem& p) { return p.compute_capability == 90 ? "" : "is for 9.0"; };
  step.techniques = {{"pingpong", "slower"}, any_order()};
  step.methods = {{.name = "backward", .backward = true}};
  const Json json = Json::parse(describe(step));
  CHECK(json["dtypes"] == Json({"bf16"}));
  CHECK(json["head_dims"] == Json({{"bf16", {{"only", {64, 128}}}}}));
  CHECK(json["tiles"] == Json({{"bf16", {{"64", {"32x16"}}, {"128", {"32x16"}}}}}));
  CHECK(json["devices"] == Json({{"cpu", false}, {"gpu", {{"compiled", false}, {"capability_exactly", 90}}}}));
  CHECK(json["passes"] == Json({"backward"}));
  CHECK(json["baseline"] == "step10 backward");
  CHECK(json["before"] == "step11");
  REQUIRE(json["techniques"].size() == 2);
  CHECK(json["techniques"][0] == Json({{"name", "pingpong"}, {"without", "slower"}, {"option", "--no-pingpong"}}));
  CHECK(json["techniques"][1]["option"] == "--deterministic");
}
