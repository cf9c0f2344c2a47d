// --timeline on a GPU: from the stamps of rings to tracks, on made stamps; the real ones have a test in
// tests/python/test_films.py.
#include <nlohmann/json.hpp>

#include "catch.h"
#include "common/base/error.h"
#include "common/base/files.h"
#include "common/device/timestamps.h"
#include "common/harness/result.h"
#include "common/harness/timeline.h"
#include "common/harness/timeline_tracks.h"

namespace attention {

namespace {

constexpr uint32_t kFirst = 0xfffffff0u;  // the low half of the clock comes round in the middle of all this
constexpr int64_t kBegun = (int64_t{7} << 32) + kFirst;
constexpr uint32_t kQ = 0x1000, kK = 0x2000, kO = 0x3000, kBarrier = 0x18008;

Timestamp stamp(Noted kind, uint32_t begin, uint32_t end, uint32_t detail = 0, int more = 0) {
  return {kFirst + begin, kFirst + end, static_cast<uint32_t>(kind) | static_cast<uint32_t>(more) << 8, detail};
}

NotedLaunch made(std::vector<NotedWarp> warps) {
  return {"attention", {{"Q", kQ, 0x100}, {"K", kK, 0x100}, {"O", kO, 0x100}}, std::move(warps)};
}

std::string text(const std::vector<Span>& spans) {
  std::string all;
  for (const Span& span : spans)
    all += span.name + " " + std::to_string(span.begin) + "-" + std::to_string(span.end) + "; ";
  return all;
}

const Track& track(const Sm& sm, size_t block, int warp, bool products) {
  for (const Track& one : sm.tracks)
    if (one.block == block && one.warp == warp && one.products == products) return one;
  throw std::runtime_error("no such track");
}

}  // namespace

TEST_CASE("a warp's loads, waits, softmax, products and store, as it noted them") {
  const int apart = (static_cast<int>(kK) - static_cast<int>(kQ)) * 16 / kTensorUnit;
  const Sm sm = tracks_of(
      made({{5,
             0,
             kBegun,
             {stamp(Noted::load, 100, 600, kQ, apart), stamp(Noted::wait, 610, 900), stamp(Noted::product, 910, 1500),
              stamp(Noted::product, 2500, 3000), stamp(Noted::wait, 3005, 3030),  // too short to have waited
              stamp(Noted::load, 3300, 3800, kK), stamp(Noted::store, 4000, 4100, kO),
              stamp(Noted::store, 3950, 4150, kO)}}}),  // of which the last was a part
      "softmax");
  REQUIRE(sm.blocks == std::vector<int64_t>{5});
  CHECK(text(track(sm, 0, 0, false).spans) ==
        "Q, K 0-500; waits for a barrier 510-800; softmax 1400-2400; softmax 2930-3200; K 3200-3700; O 3700-4050; ");
  CHECK(text(track(sm, 0, 0, true).spans) == "product 810-1400; product 2400-2900; ");
}

TEST_CASE("copies travel from who starts them to who first sees them, products from their start to their wait") {
  const Sm sm = tracks_of(
      made({{9, 0, kBegun, {stamp(Noted::bulk_copy, 50, 50, kK, kBarrier), stamp(Noted::wait, 60, 400, 0x18000)}},
            {9,
             4,
             kBegun + 3,
             {stamp(Noted::wait, 20, 700, kBarrier), stamp(Noted::warpgroup_product, 710, 730),
              stamp(Noted::warpgroup_product, 735, 750), stamp(Noted::wait_products, 760, 1000, 0, 1),
              stamp(Noted::wait_products, 1500, 1600), stamp(Noted::bulk_store, 2000, 2000, kO),
              stamp(Noted::wait_bulk_stores, 2010, 2300)}},
            {9, 8, kBegun, {stamp(Noted::wait, 30, 690, kBarrier)}}}),
      "softmax");
  CHECK(text(track(sm, 0, -1, false).spans) == "K 30-670; O 1980-2280; ");
  CHECK(text(track(sm, 0, 4, false).spans) ==
        "waits for K 0-680; waits for products 740-980; softmax 980-1480; waits for products 1480-1580; O 1580-1980; "
        "waits for stores 1990-2280; ");
  CHECK(text(track(sm, 0, 4, true).spans) == "product 690-980; product 980-1580; ");
  CHECK(sm.roles.at(0) == "producer");
  CHECK(sm.roles.at(4) == "consumer 1");
}

TEST_CASE("a ring that has come round begins with its oldest stamp") {
  std::vector<Timestamp> ring(4);
  ring[0] = stamp(Noted::wait, 10, 20), ring[1] = stamp(Noted::wait, 30, 40);
  CHECK(in_order(ring.data(), 4).size() == 2);
  ring[2] = stamp(Noted::wait, 5, 6), ring[3] = stamp(Noted::wait, 7, 8);  // older than the two
  const std::vector<Timestamp> stamps = in_order(ring.data(), 4);
  REQUIRE(stamps.size() == 4);
  CHECK(stamps.front().begin == ring[2].begin);
  CHECK(stamps.back().end == ring[1].end);
}

TEST_CASE("stored timestamps draw the same picture, and none other's") {
  RunResult result;
  result.step = "step04", result.title = "online softmax", result.device = DeviceKind::gpu;
  result.device_name = "NVIDIA H200";
  result.problem.dtype = Dtype::fp16, result.problem.seqlen_q = result.problem.seqlen_k = 4096;
  result.problem.head_dim = 64, result.problem.tile = {64, 64};
  MethodResult& method = result.methods.emplace_back();
  method.time = TimeStats{.median_ms = 2}, method.noted_time = TimeStats{.median_ms = 2.5};
  method.noted = {made({{5, 0, kBegun, {stamp(Noted::load, 100, 600, kQ), stamp(Noted::product, 700, 1500)}}})};
  const std::string path = "test_timeline.stamps";
  write_whole(path, timeline_stamps(result));
  const RunResult read = read_stamps(path);
  CHECK(timeline_svg(read, false) == timeline_svg(result, false));
  CHECK(timeline_json(read) == timeline_json(result));
  const nlohmann::json trace = nlohmann::json::parse(timeline_json(read));
  CHECK(trace["otherData"]["times_the_plain_time"] == 1.25);
  CHECK(trace["otherData"]["time"].get<std::string>().find("the clock of SM 0 of an NVIDIA H200") == 0);
  write_whole(path, "{}");
  CHECK_THROWS_AS(read_stamps(path), BadArguments);
  std::remove(path.c_str());
}

}  // namespace attention
