#include "common/harness/json.h"

#include <algorithm>

#include "common/base/build_info.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/harness/regime.h"
#include "common/harness/report.h"
#include "common/roofline/prediction.h"

namespace attention {

namespace {

Json both_ways(const std::vector<TensorBytes>& bytes) {
  return {{"load", total_load(bytes)}, {"store", total_store(bytes)}};
}

Json requested(const std::vector<TensorBytes>& bytes, bool library) { return library ? Json() : both_ways(bytes); }
constexpr const char* kOfLibrary = "what a library's kernels ask for is not known";

std::string no_rate_reason(const RunResult& r, const MethodResult& m) {
  return r.device == DeviceKind::cpu && !r.planned_only ? "emulated time is no GPU time" : no_run_reason(r, m);
}

std::string no_counts_reason(const RunResult& r, const MethodResult& m) {
  return r.planned_only || !m.not_run.empty() ? no_run_reason(r, m) : "only the CPU executor counts (--device cpu)";
}

Json exactness(const std::vector<CheckResult>& checks) {
  constexpr const char* kNotFinite = "an error is not finite";
  Json list = Json::array();
  for (const CheckResult& c : checks) {
    Json entry = {{"output", c.output},
                  {"pass", c.pass},
                  {"sampled", c.sampled},
                  {"checked", c.checked},
                  {"elements", c.elements},
                  {"tolerance", c.tolerance},
                  {"stored_pairs_allowed", c.stored_pairs}};
    put(entry, "worst", or_null(c.worst), kNotFinite);  // 1 = the whole allowance
    put(entry, "relative_l2", c.relative_l2 ? or_null(*c.relative_l2) : Json(),
        c.relative_l2 ? kNotFinite : "the reference is 0");
    put(entry, "relative_l2_bound", or_null(c.l2_bound),
        "half precision has none of its own: PyTorch's error in the same type is the measure "
        "(plots/measuring/compare_pytorch.py)");
    entry["relative_l2_judged"] = c.l2_judged;
    put(entry, "max_abs", or_null(c.max_abs), kNotFinite);
    entry["worst_index"] = c.worst_index;
    entry["reason"] = c.reason;
    list.push_back(entry);
  }
  return list;
}

/// Where some kernels stand under the roofline: their FLOPs per byte, the two rates, and the time that these predict.
Json roofline(const RunResult& r, const std::vector<KernelCost>& kernels) {
  const Intensity work = intensity(kernels);
  const Known<Prediction> p = predict(kernels, r.problem, r.figures);
  Json object;
  put(object, "arithmetic_intensity", work.bytes > 0 ? Json(work.flops_per_byte()) : Json(),
      "no bytes are expected");  // executed FLOPs per expected HBM byte
  if (!p) {
    for (const char* key : {"R_flops_per_second", "BW_bytes_per_second", "balance_flops_per_byte", "predicted_ms",
                            "predicted_flops_ms", "predicted_bytes_ms"})
      put(object, key, nullptr, p.reason);
    return object;
  }
  object.update(
      {{"R_flops_per_second", p->flops_per_second},
       {"R_is", "the repository's tile products, measured by step00"},
       {"BW_bytes_per_second", p->bytes_per_second},
       {"BW_is", "a copy's read and written bytes, measured by step00"},
       {"balance_flops_per_byte", p->flops_per_second / p->bytes_per_second},
       {"predicted_ms", p->total_ms()},
       {"predicted_flops_ms", p->flops_ms},
       {"predicted_bytes_ms", p->bytes_ms},
       {"predicted_at_least", p->at_least}});
  return object;
}

/// Measured bytes of a kernel or of all, and the HBM rate that follows. `counters` is null when nothing was measured,
/// `time_ms` 0 without a GPU's time.
void put_measured(Json& object, const RunResult& r, const MethodResult& m, const CounterBytes* counters) {
  const std::string nothing = not_measured_reason(r, m);
  const CounterBytes bytes = counters ? *counters : CounterBytes{};
  const auto why_not = [&](Counter counter) {
    return counters ? m.measured->why_not[static_cast<size_t>(counter)] : nothing;
  };
  const auto both = [&](const char* first_name, Counter first, const char* second_name, Counter second) {
    return bytes[first] && bytes[second] ? Json{{first_name, *bytes[first]}, {second_name, *bytes[second]}} : Json();
  };
  const auto put_two = [&](const std::string& name, Json value, Counter first, Counter second) {
    put(object, name + "_bytes", std::move(value), why_not(first).empty() ? why_not(second) : why_not(first),
        name + "_reason");
  };
  put_two("hbm_measured", or_null(hbm_total(bytes)), Counter::hbm_read, Counter::hbm_write);
  if (hbm_total(bytes))
    object["hbm_measured_by_direction"] = both("read", Counter::hbm_read, "write", Counter::hbm_write);
  put_two("l2_to_sm_measured", or_null(bytes[Counter::l2_to_sm]), Counter::l2_to_sm, Counter::l2_to_sm);
  put_two("requested_measured", both("load", Counter::requested_load, "store", Counter::requested_store),
          Counter::requested_load, Counter::requested_store);
  put_two("spill", both("load", Counter::spill_load, "store", Counter::spill_store), Counter::spill_load,
          Counter::spill_store);
}

void put_rate(Json& object, const RunResult& r, const MethodResult& m, const CounterBytes* counters,
              int64_t expected_bytes, double time_ms) {
  const std::optional<HbmRate> rate =
      hbm_rate(counters ? hbm_total(*counters) : std::nullopt, expected_bytes, time_ms, r.hbm_peak);
  put(object, "hbm_rate",
      rate ? Json{{"bytes_per_s", rate->bytes_per_s},
                  {"of", rate->measured ? "measured bytes" : "expected bytes"},
                  {"label", rate->cache_resident ? "cache-resident"
                            : r.hbm_peak         ? "HBM"
                                                 : "this GPU's peak is not known"}}
           : Json(),
      no_rate_reason(r, m));
}

const CounterBytes* counters_of(const MethodResult& m) {
  return m.measured && m.measured->measured() ? &m.measured->together : nullptr;
}

Json kernels(const RunResult& r, const MethodResult& m) {
  const bool on_cpu = r.device == DeviceKind::cpu;
  Json list = Json::array();
  for (size_t n = 0; n < m.expected.size(); ++n) {
    const KernelCost& cost = m.expected[n];
    const LaunchRecord* launch = n < m.launches.size() ? &m.launches[n] : nullptr;
    const LaunchRecord *counted = on_cpu ? launch : nullptr, *timed = on_cpu ? nullptr : launch;
    const CounterBytes* counters = counters_of(m) ? &m.measured->kernels.at(n) : nullptr;
    Json entry = {{"name", cost.name}};
    put(entry, "time_ms", launch ? Json(launch->time_ms) : Json(), no_run_reason(r, m));
    entry["emulated"] = on_cpu;
    put(entry, "requested_expected_bytes", requested(cost.requested, cost.library), kOfLibrary);
    put(entry, "requested_counted_bytes", counted ? both_ways(counted->counted) : Json(), no_counts_reason(r, m));
    put(entry, "counted_flops", counted ? Json(counted->counted_flops) : Json(), no_counts_reason(r, m));
    entry["hbm_expected_bytes"] = total(cost.hbm);
    entry["hbm_at_least"] = cost.hbm_at_least;
    put_measured(entry, r, m, counters);
    put_rate(entry, r, m, counters, total(cost.hbm), timed ? timed->time_ms : 0);
    entry["executed_flops"] = cost.executed_flops;
    entry["roofline"] = roofline(r, {cost});
    put(entry, "local_bytes_per_thread", timed ? Json(timed->local_bytes_per_thread) : Json(),
        launch ? "the CPU executor has no local memory" : no_run_reason(r, m));
    const std::string unknown =
        !launch  ? no_run_reason(r, m)
        : on_cpu ? "the CPU executor has no SMs"
                 : "a library's kernel does not say";
    put(entry, "registers_per_thread", launch ? or_null(launch->registers_per_thread) : Json(), unknown);
    put(entry, "blocks_per_sm", launch ? or_null(launch->blocks_per_sm) : Json(), unknown);
    list.push_back(entry);
  }
  return list;
}

Json traffic(const RunResult& r, const MethodResult& m) {
  const std::vector<TensorBytes> asked = m.requested(), counted = m.counted(), hbm = m.hbm();
  const bool counts = has_counts(r, m), library = m.uses_library();
  Json object;
  put(object, "requested_expected_bytes", requested(asked, library), kOfLibrary);
  put(object, "requested_counted_bytes", counts ? both_ways(counted) : Json(), no_counts_reason(r, m));
  object["hbm_expected_bytes"] = total(hbm);
  object["hbm_at_least"] =
      std::any_of(m.expected.begin(), m.expected.end(), [](const KernelCost& kernel) { return kernel.hbm_at_least; });
  put_measured(object, r, m, counters_of(m));
  if (m.measured && !m.measured->advice.empty()) object["measured_advice"] = m.measured->advice;
  put_rate(object, r, m, counters_of(m), total(hbm), m.time && !m.time->emulated ? m.time->median_ms : 0);
  object["cache_regime"] = cache_regime(r.problem, m.expected, m.scratch, r.l2_bytes);
  object["by_tensor"] = Json::object();
  for (const TensorBytes& tensor : library ? hbm : asked) {
    const auto of_tensor = [&](const std::vector<TensorBytes>& list) {
      const auto found = std::find_if(
          list.begin(), list.end(), [&](const TensorBytes& other) { return other.tensor == tensor.tensor; });
      return found == list.end() ? Json() : both_ways({*found});
    };
    Json& entry = object["by_tensor"][tensor.tensor];
    put(entry, "requested_expected_bytes", requested({tensor}, library), kOfLibrary);
    put(entry, "requested_counted_bytes", of_tensor(counted),
        counts ? "no access was counted" : no_counts_reason(r, m));
    if (const Json moved = of_tensor(hbm); !moved.is_null()) entry["hbm_expected_bytes"] = moved;
  }
  return object;
}

void put_time(Json& object, const RunResult& r, const MethodResult& m) {
  put(object, "time", nullptr, no_run_reason(r, m));
  if (!m.time) return;
  const TimeStats& t = *m.time;
  object.erase("time_reason");
  Json& time = object["time"] = {
      {"median_ms", t.median_ms}, {"p10_ms", t.p10_ms},     {"p90_ms", t.p90_ms},
      {"runs", t.runs},           {"emulated", t.emulated}, {"l2", t.emulated ? "none" : "flushed before each run"}};
  put(time, "tflops", t.emulated ? Json() : Json(m.useful_flops / t.median_ms * 1e-9), "emulated time is no GPU time");
  const Known<Prediction> predicted = predict(m.expected, r.problem, r.figures);
  put(time, "predicted_ms", predicted ? Json(predicted->total_ms()) : Json(), predicted.reason);
}

void put_measurements(Json& object, const RunResult& r, const MethodResult& m) {
  object["kernels"] = kernels(r, m);
  object["traffic"] = traffic(r, m);
  put_time(object, r, m);
  Json& flops = object["flops"] = {{"useful", m.useful_flops}, {"executed", m.executed_flops()}};
  put(flops, "counted", has_counts(r, m) ? Json(m.counted_flops()) : Json(), no_counts_reason(r, m));
  object["roofline"] = roofline(r, m.expected);
  Json& memory = object["memory"] = {
      {"extra_bytes", m.extra_bytes()}, {"grows", m.grows_quadratically() ? "N^2" : "N"}, {"buffers", Json::object()}};
  for (const Scratch& buffer : m.scratch) memory["buffers"][buffer.name] = buffer.bytes;
  memory["needed_bytes"] = r.needed_bytes;
  memory["free_bytes"] = r.free_bytes;
  put(memory, "device_used_bytes", or_null(r.device_bytes_used),
      r.planned_only ? kPlanned : "the CPU executor has no driver to ask");
}

Json versions(const RunResult& r) {
  const bool gpu = r.device == DeviceKind::gpu;
  Json object;
  put(object, "git_commit", or_null(std::string(build_info::kGitCommit)), build_info::kNoCommitReason);
  object["compiler"] = build_info::kCompiler;
  object["build_type"] = build_info::kBuildType;
  put(object, "cuda_toolkit", or_null(std::string(build_info::kCuda)), "built without CUDA");
  put(object, "cuda_architectures", or_null(std::string(build_info::kCudaArchitectures)), "built without CUDA");
  put(object, "driver_cuda", gpu ? or_null(find_gpu().driver_cuda) : Json(),
      gpu ? "not known" : "the run did not use a GPU");
  return object;
}

/// One tile of a sweep.
Json swept_tile(const SweptTile& swept) {
  const RunResult& r = swept.run;
  const MethodResult& m = swept.method();
  const LaunchRecord* longest = swept.longest_kernel();
  const bool ran = m.not_run.empty() && !r.planned_only;
  const std::string nothing_ran = no_run_reason(r, m);
  Json entry = {
      {"tile", tile_name(swept.tile.shape)}, {"sram_bytes", swept.tile.sram_bytes}, {"threads", swept.tile.threads}};
  put(entry, "longest_kernel", longest ? Json(longest->kernel) : Json(), nothing_ran);
  put(entry, "blocks_per_sm", longest ? or_null(longest->blocks_per_sm) : Json(), no_occupancy_reason(swept));
  entry["requested_bytes"] = total(m.requested());
  put(entry, "requested_expected_bytes", requested(m.requested(), m.uses_library()), kOfLibrary);
  put(entry, "requested_counted_bytes", has_counts(r, m) ? both_ways(m.counted()) : Json(), no_counts_reason(r, m));
  entry["hbm_expected_bytes"] = total(m.hbm());
  put_measured(entry, r, m, counters_of(m));
  put_time(entry, r, m);
  entry["not_run"] = ran ? Json() : Json(nothing_ran);
  put(entry, "verified", or_null(swept.verified()), ran ? "not checked (--check none)" : nothing_ran);
  entry["verdict"] = m.not_run.empty() ? r.verdict : "not run";
  entry["exactness"] = exactness(m.checks);
  if (m.spread) entry["spread"] = *m.spread;
  entry["failures"] = r.failures;
  return entry;
}

}  // namespace

std::string sweep_json_text(const Sweep& sweep) {
  const RunResult& any = sweep.tiles.front().run;
  const Problem& p = any.problem;
  const SweptTile* best = sweep.best();
  Json json = {
      {"schema", "attention-sweep-1"}, {"step", any.step}, {"title", any.title}, {"method", any.methods.back().name}};
  put(json, "gpu", any.device == DeviceKind::gpu ? Json(any.device_name) : Json(), "the run used the CPU executor");
  json.update({{"emulated", any.device == DeviceKind::cpu},
               {"dtype", dtype_name(p.dtype)},
               {"product", product_name(p)},
               {"batch", p.batch},
               {"heads", p.heads}});
  put(json, "seqlen", p.seqlen_q == p.seqlen_k ? Json(p.seqlen_q) : Json(), "seqlen_q and seqlen_k differ");
  json.update({{"seqlen_q", p.seqlen_q},
               {"seqlen_k", p.seqlen_k},
               {"head_dim", p.head_dim},
               {"causal", p.causal},
               {"sram_limit_bytes", p.sram_limit},
               {"tiles", Json::array()}});
  for (const SweptTile& swept : sweep.tiles) json["tiles"].push_back(swept_tile(swept));
  put(json, "best", best ? Json(tile_name(best->tile.shape)) : Json(), sweep.no_best_reason());
  json["article"] = describe_article_tile(sweep);
  json["versions"] = versions(any);
  return json.dump(2) + "\n";
}

std::string json_text(const RunResult& r) {
  const Problem& p = r.problem;
  const MethodResult& last = r.methods.back();
  const bool on_gpu = r.device == DeviceKind::gpu, loaded = !r.options.load_dir.empty(), checked = !last.checks.empty();
  Json json = {{"schema", "attention-run-1"},
               {"step", r.step},
               {"title", r.title},
               {"device", on_gpu ? "gpu" : "cpu"},
               {"device_name", r.device_name},
               {"dtype", dtype_name(p.dtype)},
               {"product", product_name(p)}};
  put(json, "tile", p.tile == TileShape{} ? Json() : Json(tile_name(p.tile)), "a library chooses its tiles");
  Json& problem = json["problem"] = {
      {"batch", p.batch},       {"heads", p.heads},   {"seqlen_q", p.seqlen_q},          {"seqlen_k", p.seqlen_k},
      {"head_dim", p.head_dim}, {"causal", p.causal}, {"softmax_scale", p.softmax_scale}};
  put(problem, "seed", loaded ? Json() : Json(r.options.seed), "the inputs were loaded");
  put(problem, "init", loaded ? Json() : Json(r.options.init.text), "the inputs were loaded");
  json["left_out"] = p.left_out;  // of the step's techniques
  if (r.splits)
    json["splits"] = {
        {"parts", r.splits->parts}, {"keys_per_part", r.splits->keys_per_part}, {"reason", r.splits->reason}};
  put(json, "l2_bytes", r.l2_bytes > 0 ? Json(r.l2_bytes) : Json(), "the CPU executor has no L2");
  put(json, "hbm_peak_bytes_per_s", or_null(r.hbm_peak),
      on_gpu ? "the driver does not say" : "the CPU executor has no HBM");
  json["verdict"] = r.verdict;
  json["failures"] = r.failures;
  const std::string not_checked = r.planned_only ? kPlanned : "not checked (--check none)";
  put(json, "mean_weight", checked ? Json(r.mean_weight) : Json(), not_checked);
  put(json, "largest_score", checked ? Json(r.largest_score) : Json(), not_checked);
  std::vector<CheckResult> checks = r.methods.front().checks;
  if (r.methods.size() > 1) checks.insert(checks.end(), last.checks.begin(), last.checks.end());
  json["exactness"] = exactness(checks);
  json["method"] = last.name;
  put_measurements(json, r, last);
  json["methods"] = Json::array();
  for (const MethodResult& method : r.methods) {
    Json entry = {
        {"name", method.name}, {"backward", method.backward}, {"ran", method.not_run.empty() && !r.planned_only}};
    if (!method.not_run.empty()) entry["not_run_reason"] = method.not_run;
    entry["exactness"] = exactness(method.checks);
    if (method.spread)
      entry["spread"] = *method.spread;  // of what blocks add up in any order, between runs: relative L2
    put_measurements(entry, r, method);
    json["methods"].push_back(entry);
  }
  put(json, "executor", on_gpu ? Json() : Json{{"thread_orders", r.thread_orders}}, "the run used a GPU");
  json["versions"] = versions(r);
  return json.dump(2) + "\n";
}

}  // namespace attention
