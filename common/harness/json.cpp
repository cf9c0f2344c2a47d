#include "common/harness/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "build_info.h"
#include "common/base/text.h"
#include "common/harness/regime.h"
#include "common/harness/report.h"
#include "common/roofline/prediction.h"

namespace attention {

namespace {
using Json = nlohmann::ordered_json;

void put_null(Json& object, const std::string& key, const std::string& reason) {
  object[key] = nullptr;
  object[key + "_reason"] = reason;
}

void put_text(Json& object, const std::string& key, const std::string& text, const std::string& reason_without) {
  if (text.empty())
    put_null(object, key, reason_without);
  else
    object[key] = text;
}

template <class T>
void put_number(Json& object, const std::string& key, const std::optional<T>& number, const std::string& reason_without) {
  if (number)
    object[key] = *number;
  else
    put_null(object, key, reason_without);
}

Json both_ways(const std::vector<TensorBytes>& bytes) { return {{"load", total_load(bytes)}, {"store", total_store(bytes)}}; }

int64_t total(const std::vector<TensorBytes>& bytes) { return total_load(bytes) + total_store(bytes); }

std::string no_counts_reason(const RunResult& r, const MethodResult& m) {
  if (r.planned_only) return "nothing ran (--plan)";
  return m.not_run.empty() ? "only the CPU executor counts (--device cpu)" : m.not_run;
}

std::string no_run_reason(const RunResult& r, const MethodResult& m) {
  if (r.planned_only) return "nothing ran (--plan)";
  return m.not_run.empty() ? "the result was wrong" : m.not_run;
}

Json exactness(const std::vector<CheckResult>& checks) {
  Json list = Json::array();
  for (const CheckResult& c : checks) {
    Json entry = {{"output", c.output}, {"pass", c.pass}, {"sampled", c.sampled}, {"checked", c.checked}, {"elements", c.elements}, {"tolerance", c.tolerance}, {"stored_pairs_allowed", c.stored_pairs}};
    if (std::isfinite(c.worst))
      entry["worst"] = c.worst;  // 1 = the whole allowance
    else
      put_null(entry, "worst", "an error is not finite");
    if (c.relative_l2 && std::isfinite(*c.relative_l2))
      entry["relative_l2"] = *c.relative_l2;
    else
      put_null(entry, "relative_l2", c.relative_l2 ? "an error is not finite" : "the reference is 0");
    if (c.l2_bound)
      entry["relative_l2_bound"] = *c.l2_bound;
    else
      put_null(entry, "relative_l2_bound", "half precision has none of its own: PyTorch's error in the same type is the measure (plots/measuring/compare_pytorch.py)");
    entry["relative_l2_judged"] = c.l2_judged;
    if (std::isfinite(c.max_abs))
      entry["max_abs"] = c.max_abs;
    else
      put_null(entry, "max_abs", "an error is not finite");
    entry["worst_index"] = c.worst_index;
    entry["reason"] = c.reason;
    list.push_back(entry);
  }
  return list;
}

void put_requested(Json& object, const std::vector<TensorBytes>& bytes, bool library) {
  if (library)
    put_null(object, "requested_expected_bytes", "what a library's kernels ask for is not known");
  else
    object["requested_expected_bytes"] = both_ways(bytes);
}

/// Where some kernels stand under the roofline: their FLOPs per byte, the two rates, and the time that these predict.
Json roofline(const RunResult& r, const std::vector<KernelCost>& kernels) {
  const Intensity work = intensity(kernels);
  const PredictionOrReason predicted = predict(kernels, r.problem, r.figures);
  Json object;
  if (work.bytes > 0)
    object["arithmetic_intensity"] = work.flops_per_byte();  // executed FLOPs per expected HBM byte
  else
    put_null(object, "arithmetic_intensity", "no bytes are expected");
  if (const std::optional<Prediction>& p = predicted.prediction) {
    const double rate = *r.figures.figures->product_rate(r.problem);
    object["R_flops_per_second"] = rate;
    object["R_is"] = "the repository's tile products, measured by step00";
    object["BW_bytes_per_second"] = r.figures.figures->bandwidth();
    object["BW_is"] = "a copy's read and written bytes, measured by step00";
    object["balance_flops_per_byte"] = rate / r.figures.figures->bandwidth();
    object["predicted_ms"] = p->total_ms();
    object["predicted_flops_ms"] = p->flops_ms;
    object["predicted_bytes_ms"] = p->bytes_ms;
    object["predicted_at_least"] = p->at_least;
  } else {
    for (const char* key : {"R_flops_per_second", "BW_bytes_per_second", "balance_flops_per_byte", "predicted_ms", "predicted_flops_ms", "predicted_bytes_ms"})
      put_null(object, key, predicted.reason);
  }
  return object;
}

/// Measured bytes of a kernel or of all; what is missing is null, with its reason. `counters` is null when nothing was measured.
void put_measured(Json& object, const RunResult& r, const MethodResult& m, const CounterBytes* counters) {
  const std::string nothing = not_measured_reason(r, m);
  const CounterBytes bytes = counters ? *counters : CounterBytes{};
  const auto why_not = [&](Counter counter) { return counters ? m.measured->why_not[static_cast<size_t>(counter)] : nothing; };
  const auto put = [&](const std::string& name, bool known, Json value, const std::string& why) {
    object[name + "_bytes"] = known ? std::move(value) : Json(nullptr);
    if (!known) object[name + "_reason"] = why;
  };
  const auto both = [&](const char* first_name, Counter first, const char* second_name, Counter second) -> Json {
    return {{first_name, bytes[first].value_or(0)}, {second_name, bytes[second].value_or(0)}};
  };
  const auto put_both = [&](const std::string& name, Counter load, Counter store) {
    put(name, bytes[load] && bytes[store], both("load", load, "store", store), why_not(load).empty() ? why_not(store) : why_not(load));
  };
  const std::optional<int64_t> hbm = hbm_total(bytes);
  put("hbm_measured", hbm.has_value(), hbm.value_or(0), why_not(Counter::hbm_read).empty() ? why_not(Counter::hbm_write) : why_not(Counter::hbm_read));
  if (hbm) object["hbm_measured_by_direction"] = both("read", Counter::hbm_read, "write", Counter::hbm_write);
  put("l2_to_sm_measured", bytes[Counter::l2_to_sm].has_value(), bytes[Counter::l2_to_sm].value_or(0), why_not(Counter::l2_to_sm));
  put_both("requested_measured", Counter::requested_load, Counter::requested_store);
  put_both("spill", Counter::spill_load, Counter::spill_store);
}

/// The HBM rate of a kernel or of all, and whether memory can be what served it. `time_ms` 0: no GPU time.
void put_rate(Json& object, const RunResult& r, std::optional<int64_t> measured_bytes, int64_t expected_bytes, double time_ms, const std::string& reason_without) {
  const std::optional<HbmRate> rate = hbm_rate(measured_bytes, expected_bytes, time_ms, r.hbm_peak);
  if (!rate) return put_null(object, "hbm_rate", reason_without);
  object["hbm_rate"] = {{"bytes_per_s", rate->bytes_per_s}, {"of", rate->measured ? "measured bytes" : "expected bytes"},
                        {"label", rate->cache_resident ? "cache-resident" : r.hbm_peak ? "HBM" : "this GPU's peak is not known"}};
}

std::string no_rate_reason(const RunResult& r, const MethodResult& m) { return r.device == DeviceKind::cpu && !r.planned_only ? "emulated time is no GPU time" : no_run_reason(r, m); }

Json kernels(const RunResult& r, const MethodResult& m) {
  Json list = Json::array();
  for (size_t n = 0; n < m.expected.size(); ++n) {
    const KernelCost& cost = m.expected[n];
    const LaunchRecord* launch = n < m.launches.size() ? &m.launches[n] : nullptr;
    Json entry = {{"name", cost.name}};
    if (launch)
      entry["time_ms"] = launch->time_ms;
    else
      put_null(entry, "time_ms", no_run_reason(r, m));
    entry["emulated"] = r.device == DeviceKind::cpu;
    put_requested(entry, cost.requested, cost.library);
    if (launch && r.device == DeviceKind::cpu) {
      entry["requested_counted_bytes"] = both_ways(launch->counted);
      entry["counted_flops"] = launch->counted_flops;
    } else {
      put_null(entry, "requested_counted_bytes", no_counts_reason(r, m));
      put_null(entry, "counted_flops", no_counts_reason(r, m));
    }
    entry["hbm_expected_bytes"] = total(cost.hbm);
    entry["hbm_at_least"] = cost.hbm_at_least;
    const CounterBytes* counters = m.measured && m.measured->measured() ? &m.measured->kernels.at(n) : nullptr;
    put_measured(entry, r, m, counters);
    put_rate(entry, r, counters ? hbm_total(*counters) : std::nullopt, total(cost.hbm), launch && r.device == DeviceKind::gpu ? launch->time_ms : 0, no_rate_reason(r, m));
    entry["executed_flops"] = cost.executed_flops;
    entry["roofline"] = roofline(r, {cost});
    if (launch && r.device == DeviceKind::gpu)
      entry["local_bytes_per_thread"] = launch->local_bytes_per_thread;
    else
      put_null(entry, "local_bytes_per_thread", launch ? "the CPU executor has no local memory" : no_run_reason(r, m));
    const std::string unknown = !launch ? no_run_reason(r, m) : r.device == DeviceKind::cpu ? "the CPU executor has no SMs" : "a library's kernel does not say";
    put_number(entry, "registers_per_thread", launch ? launch->registers_per_thread : std::nullopt, unknown);
    put_number(entry, "blocks_per_sm", launch ? launch->blocks_per_sm : std::nullopt, unknown);
    list.push_back(entry);
  }
  return list;
}

Json traffic(const RunResult& r, const MethodResult& m) {
  const std::vector<TensorBytes> requested = m.requested(), counted = m.counted(), hbm = m.hbm();
  const bool counts = has_counts(r, m);
  Json object;
  put_requested(object, requested, m.uses_library());
  if (counts)
    object["requested_counted_bytes"] = both_ways(counted);
  else
    put_null(object, "requested_counted_bytes", no_counts_reason(r, m));
  object["hbm_expected_bytes"] = total(hbm);
  object["hbm_at_least"] = std::any_of(m.expected.begin(), m.expected.end(), [](const KernelCost& kernel) { return kernel.hbm_at_least; });
  const CounterBytes* counters = m.measured && m.measured->measured() ? &m.measured->together : nullptr;
  put_measured(object, r, m, counters);
  if (m.measured && !m.measured->advice.empty()) object["measured_advice"] = m.measured->advice;
  put_rate(object, r, counters ? hbm_total(*counters) : std::nullopt, total(hbm), m.time && !m.time->emulated ? m.time->median_ms : 0, no_rate_reason(r, m));
  object["cache_regime"] = cache_regime(r.problem, m.expected, m.scratch, r.l2_bytes);
  object["by_tensor"] = Json::object();
  for (const TensorBytes& tensor : m.uses_library() ? hbm : requested) {
    Json entry;
    put_requested(entry, {tensor}, m.uses_library());
    const auto same = [&](const TensorBytes& other) { return other.tensor == tensor.tensor; };
    const auto count = std::find_if(counted.begin(), counted.end(), same);
    if (count != counted.end())
      entry["requested_counted_bytes"] = {{"load", count->load}, {"store", count->store}};
    else
      put_null(entry, "requested_counted_bytes", counts ? "no access was counted" : no_counts_reason(r, m));
    const auto moved = std::find_if(hbm.begin(), hbm.end(), same);
    if (moved != hbm.end()) entry["hbm_expected_bytes"] = {{"load", moved->load}, {"store", moved->store}};
    object["by_tensor"][tensor.tensor] = entry;
  }
  return object;
}

void put_time(Json& object, const RunResult& r, const MethodResult& m) {
  if (!m.time) return put_null(object, "time", no_run_reason(r, m));
  object["time"] = {{"median_ms", m.time->median_ms}, {"p10_ms", m.time->p10_ms}, {"p90_ms", m.time->p90_ms}, {"runs", m.time->runs}, {"emulated", m.time->emulated},
                    {"l2", m.time->emulated ? "none" : "flushed before each run"}};
  if (m.time->emulated)
    put_null(object["time"], "tflops", "emulated time is no GPU time");
  else
    object["time"]["tflops"] = m.useful_flops / m.time->median_ms * 1e-9;
  const PredictionOrReason predicted = predict(m.expected, r.problem, r.figures);
  if (predicted.prediction)
    object["time"]["predicted_ms"] = predicted.prediction->total_ms();
  else
    put_null(object["time"], "predicted_ms", predicted.reason);
}

Json flops(const RunResult& r, const MethodResult& m) {
  Json object = {{"useful", m.useful_flops}, {"executed", m.executed_flops()}};
  if (has_counts(r, m))
    object["counted"] = m.counted_flops();
  else
    put_null(object, "counted", no_counts_reason(r, m));
  return object;
}

Json memory(const RunResult& r, const MethodResult& m) {
  Json object = {{"extra_bytes", m.extra_bytes()}, {"grows", m.grows_quadratically() ? "N^2" : "N"}, {"buffers", Json::object()}};
  for (const Scratch& buffer : m.scratch) object["buffers"][buffer.name] = buffer.bytes;
  object["needed_bytes"] = r.needed_bytes;
  object["free_bytes"] = r.free_bytes;
  if (r.device_bytes_used)
    object["device_used_bytes"] = *r.device_bytes_used;
  else
    put_null(object, "device_used_bytes", r.planned_only ? "nothing ran (--plan)" : "the CPU executor has no driver to ask");
  return object;
}

void put_measurements(Json& object, const RunResult& r, const MethodResult& m) {
  object["kernels"] = kernels(r, m);
  object["traffic"] = traffic(r, m);
  put_time(object, r, m);
  object["flops"] = flops(r, m);
  object["roofline"] = roofline(r, m.expected);
  object["memory"] = memory(r, m);
}

Json versions(const RunResult& r) {
  Json object;
  put_text(object, "git_commit", build_info::kGitCommit, build_info::kNoCommitReason);
  object["compiler"] = build_info::kCompiler;
  object["build_type"] = build_info::kBuildType;
  put_text(object, "cuda_toolkit", build_info::kCuda, "built without CUDA");
  put_text(object, "cuda_architectures", build_info::kCudaArchitectures, "built without CUDA");
  if (r.device == DeviceKind::gpu)
    put_text(object, "driver_cuda", find_gpu().driver_cuda, "not known");
  else
    put_null(object, "driver_cuda", "the run did not use a GPU");
  return object;
}

/// One tile of a sweep.
Json swept_tile(const SweptTile& swept) {
  const RunResult& r = swept.run;
  const MethodResult& m = swept.method();
  const LaunchRecord* longest = swept.longest_kernel();
  const std::string nothing_ran = no_run_reason(r, m);
  Json entry = {{"tile", tile_name(swept.tile.shape)}, {"sram_bytes", swept.tile.sram_bytes}, {"threads", swept.tile.threads}};
  put_text(entry, "longest_kernel", longest ? longest->kernel : "", nothing_ran);
  put_number(entry, "blocks_per_sm", longest ? longest->blocks_per_sm : std::nullopt, no_occupancy_reason(swept));
  entry["requested_bytes"] = total(m.requested());
  put_requested(entry, m.requested(), m.uses_library());
  if (longest && r.device == DeviceKind::cpu)
    entry["requested_counted_bytes"] = both_ways(m.counted());
  else
    put_null(entry, "requested_counted_bytes", longest ? "only the CPU executor counts (--device cpu)" : nothing_ran);
  entry["hbm_expected_bytes"] = total(m.hbm());
  put_measured(entry, r, m, m.measured && m.measured->measured() ? &m.measured->together : nullptr);
  put_time(entry, r, m);
  entry["not_run"] = m.not_run.empty() && !r.planned_only ? Json(nullptr) : Json(nothing_ran);
  put_number(entry, "verified", swept.verified(), m.not_run.empty() && !r.planned_only ? "not checked (--check none)" : nothing_ran);
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
  Json json = {{"schema", "attention-sweep-1"}, {"step", any.step}, {"title", any.title}, {"method", any.methods.back().name}};
  put_text(json, "gpu", any.device == DeviceKind::gpu ? any.device_name : "", "the run used the CPU executor");
  json["emulated"] = any.device == DeviceKind::cpu;
  json["dtype"] = dtype_name(p.dtype);
  json["product"] = product_name(p);
  json["batch"] = p.batch;
  json["heads"] = p.heads;
  put_number(json, "seqlen", p.seqlen_q == p.seqlen_k ? std::optional(p.seqlen_q) : std::nullopt, "seqlen_q and seqlen_k differ");
  json["seqlen_q"] = p.seqlen_q;
  json["seqlen_k"] = p.seqlen_k;
  json["head_dim"] = p.head_dim;
  json["causal"] = p.causal;
  json["sram_limit_bytes"] = p.sram_limit;
  json["tiles"] = Json::array();
  for (const SweptTile& swept : sweep.tiles) json["tiles"].push_back(swept_tile(swept));
  const SweptTile* best = sweep.best();
  put_text(json, "best", best ? tile_name(best->tile.shape) : "", sweep.no_best_reason());
  json["article"] = describe_article_tile(sweep);
  json["versions"] = versions(any);
  return json.dump(2) + "\n";
}

std::string json_text(const RunResult& r) {
  const Problem& p = r.problem;
  const MethodResult& last = r.methods.back();
  Json json = {{"schema", "attention-run-1"}, {"step", r.step}, {"title", r.title}, {"device", r.device == DeviceKind::gpu ? "gpu" : "cpu"}, {"device_name", r.device_name},
               {"dtype", dtype_name(p.dtype)}, {"product", product_name(p)}};
  put_text(json, "tile", p.tile == TileShape{} ? "" : tile_name(p.tile), "a library chooses its tiles");
  json["problem"] = {{"batch", p.batch}, {"heads", p.heads}, {"seqlen_q", p.seqlen_q}, {"seqlen_k", p.seqlen_k}, {"head_dim", p.head_dim}, {"causal", p.causal},
                     {"softmax_scale", p.softmax_scale}};
  json["left_out"] = p.left_out;  // of the step's techniques
  if (r.options.load_dir.empty()) {
    json["problem"]["seed"] = r.options.seed;
    json["problem"]["init"] = r.options.init.text;
  } else {
    put_null(json["problem"], "seed", "the inputs were loaded");
    put_null(json["problem"], "init", "the inputs were loaded");
  }
  if (r.l2_bytes > 0)
    json["l2_bytes"] = r.l2_bytes;
  else
    put_null(json, "l2_bytes", "the CPU executor has no L2");
  if (r.hbm_peak)
    json["hbm_peak_bytes_per_s"] = *r.hbm_peak;
  else
    put_null(json, "hbm_peak_bytes_per_s", r.device == DeviceKind::cpu ? "the CPU executor has no HBM" : "the driver does not say");
  json["verdict"] = r.verdict;
  json["failures"] = r.failures;
  const bool checked = !last.checks.empty();
  if (checked) {
    json["mean_weight"] = r.mean_weight;
    json["largest_score"] = r.largest_score;
  } else {
    for (const char* key : {"mean_weight", "largest_score"}) put_null(json, key, r.planned_only ? "nothing ran (--plan)" : "not checked (--check none)");
  }
  std::vector<CheckResult> checks = r.methods.front().checks;
  if (r.methods.size() > 1) checks.insert(checks.end(), last.checks.begin(), last.checks.end());
  json["exactness"] = exactness(checks);
  json["method"] = last.name;
  put_measurements(json, r, last);
  json["methods"] = Json::array();
  for (const MethodResult& method : r.methods) {
    Json entry = {{"name", method.name}, {"backward", method.backward}, {"ran", method.not_run.empty() && !r.planned_only}};
    if (!method.not_run.empty()) entry["not_run_reason"] = method.not_run;
    entry["exactness"] = exactness(method.checks);
    if (method.spread) entry["spread"] = *method.spread;  // of what blocks add up in any order, between runs: relative L2
    put_measurements(entry, r, method);
    json["methods"].push_back(entry);
  }
  json["executor"] = r.device == DeviceKind::cpu ? Json{{"thread_orders", r.thread_orders}} : Json(nullptr);
  if (r.device == DeviceKind::gpu) json["executor_reason"] = "the run used a GPU";
  json["versions"] = versions(r);
  return json.dump(2) + "\n";
}

}  // namespace attention
