#include "common/harness/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "common/base/text.h"
#include "common/harness/regime.h"
#include "common/roofline/prediction.h"

namespace attention {

namespace {

std::string human_ms(double ms) {
  return ms >= 1000 ? fmt::format("{:.2f} s", ms / 1000)
         : ms >= 10 ? fmt::format("{:.1f} ms", ms)
                    : fmt::format("{:.3g} ms", ms);
}

std::vector<TensorBytes> pairs_only(std::vector<TensorBytes> bytes) {
  bytes.erase(
      std::remove_if(bytes.begin(), bytes.end(), [](const TensorBytes& b) { return !is_pair_tensor(b.tensor); }),
      bytes.end());
  return bytes;
}

/// `tile`: what the heading says of it.
std::string heading(const RunResult& r, const std::string& tile) {
  const Problem& p = r.problem;
  const std::string lengths =
      p.seqlen_q == p.seqlen_k ? fmt::format("N {}", p.seqlen_q) : fmt::format("Nq {}  Nk {}", p.seqlen_q, p.seqlen_k);
  const std::string left_out = p.left_out.empty() ? "" : fmt::format(", without {}", fmt::join(p.left_out, " and "));
  const std::string inputs =
      !r.options.load_dir.empty()      ? "  loaded inputs"
      : r.options.init.text == "randn" ? ""
                                       : "  init " + r.options.init.text;
  std::string text = fmt::format(
      "{}  {}{}     {}  B {}  H {}  {}  d {}{}{}  {}       {}\n", r.step, r.title, left_out, type_and_product(p),
      p.batch, p.heads, lengths, p.head_dim, p.causal ? "  causal (bottom-right)" : "", inputs, tile, r.device_name);
  if (!r.device_note.empty())
    text += fmt::format(
        "device: {}, chosen because: {}; times below are emulation, not GPU time\n", r.device_name, r.device_note);
  return text;
}

std::string exactness(const RunResult& r, const MethodResult& method) {
  std::string text;
  for (const CheckResult& c : method.checks) {
    const std::string l2 =
        !c.relative_l2 ? "relative L2 n/a (the reference is 0)"
                       : fmt::format("relative L2 {:.1e}{}", *c.relative_l2, c.l2_judged ? "" : " (not judged)");
    const std::string rows = c.sampled ? fmt::format("sampled {} of {} elements", c.checked, c.elements)
                                       : fmt::format("{} of {} elements", c.checked, c.elements);
    const std::string stored =
        c.stored_pairs ? fmt::format(", N x N tensors stored in {}", dtype_name(r.problem.dtype)) : "";
    text += fmt::format(
        "exact {:<4}worst {:.2f} of the allowance (tol {:.2g}{}, mean weight {:.1f}), {}, absolute {:.1e}     {}  {} "
        "against float64\n",
        c.output, c.worst, c.tolerance, stored, r.mean_weight, l2, c.max_abs, c.pass ? "PASS" : "FAIL", rows);
    if (!c.pass)
      text += fmt::format("          worst at batch {} head {} row {} column {}: {}\n", c.worst_index[0],
                          c.worst_index[1], c.worst_index[2], c.worst_index[3], c.reason);
  }
  if (!method.checks.empty() && !method.backward && !r.splits && r.problem.dtype != Dtype::fp32 &&
      r.problem.seqlen_k > kLongestChain)
    text += fmt::format(
        "          tensor cores round sums toward zero, and these run over {} keys; step09 sums them in pieces\n",
        r.problem.seqlen_k);
  if (method.checks.empty() && method.not_run.empty() && !r.planned_only)
    text += "exact     not checked (--check none)\n";
  return text;
}

std::string bytes_or_na(const std::optional<int64_t>& bytes) { return bytes ? human_bytes(*bytes) : "n/a"; }

/// What the counters said in all, to the byte, or why they said nothing.
std::string measured(const RunResult& r, const MethodResult& m) {
  const std::string reason = not_measured_reason(r, m);
  if (!reason.empty()) {
    std::string text = fmt::format("measured  n/a ({})\n", reason);
    if (m.measured && !m.measured->advice.empty()) text += fmt::format("          {}\n", m.measured->advice);
    return text;
  }
  const CounterBytes& together = m.measured->together;
  const auto bytes = [&](Counter counter) { return together[counter] ? fmt::format("{}", *together[counter]) : "n/a"; };
  const std::vector<TensorBytes> requested = m.requested();
  const auto beside_formula = [&](Counter counter, int64_t formula) {
    return together[counter] ? fmt::format(" (formula {:+})", *together[counter] - formula) : "";
  };
  std::string text = fmt::format(
      "measured  HBM read {}, write {} · L2→SM {} · requested: load {}{}, store {}{} · spills: load {}, store {}\n",
      bytes(Counter::hbm_read), bytes(Counter::hbm_write), bytes(Counter::l2_to_sm), bytes(Counter::requested_load),
      beside_formula(Counter::requested_load, total_load(requested)), bytes(Counter::requested_store),
      beside_formula(Counter::requested_store, total_store(requested)), bytes(Counter::spill_load),
      bytes(Counter::spill_store));
  if (m.expected.size() > 1)
    text +=
        "          a kernel's row: alone, from a cold L2; together: as they follow each other, so less where the L2 "
        "carries from one to the next\n";
  for (const std::string& why : std::set<std::string>(m.measured->why_not.begin(), m.measured->why_not.end()))
    if (!why.empty()) text += fmt::format("          n/a above: {}\n", why);
  return text;
}

std::string traffic(const RunResult& r, const MethodResult& m) {
  std::string text = fmt::format("{:<20}{:>14}{:>15}{:>16}{:>13}{:>12}\n", "traffic", "HBM expected", "HBM measured",
                                 "L2→SM measured", "requested", r.device == DeviceKind::gpu ? "time" : "emulated");
  const bool has_counters = m.measured && m.measured->measured(), counts = has_counts(r, m);
  // What was counted, where that is not what the formula says.
  const auto asked = [](const std::vector<TensorBytes>& formula, const std::vector<TensorBytes>* counted) {
    return human_bytes(total(counted ? *counted : formula)) +
           (counted && total(*counted) != total(formula) ? " !" : "");
  };
  const auto row = [&](const std::string& name, const std::vector<TensorBytes>& hbm, bool at_least,
                       const CounterBytes* counters, const std::string& requested, const std::string& time) {
    text += fmt::format(
        "  {:<18}{:>14}{:>15}{:>16}{:>13}{:>12}\n", name, (at_least ? ">= " : "") + human_bytes(total(hbm)),
        bytes_or_na(counters ? hbm_total(*counters) : std::nullopt),
        bytes_or_na(counters ? (*counters)[Counter::l2_to_sm] : std::nullopt), requested, time);
  };
  bool at_least = false;
  const std::vector<TensorBytes> requested = m.requested(), counted = m.counted();
  for (size_t n = 0; n < m.expected.size(); ++n) {
    const KernelCost& kernel = m.expected[n];
    row(kernel.name, kernel.hbm, kernel.hbm_at_least, has_counters ? &m.measured->kernels.at(n) : nullptr,
        kernel.library ? "n/a"
                       : asked(kernel.requested, counts && n < m.launches.size() ? &m.launches[n].counted : nullptr),
        n < m.launches.size() ? human_ms(m.launches[n].time_ms) : "");
    at_least = at_least || kernel.hbm_at_least;
  }
  if (m.expected.size() > 1)
    row("together", m.hbm(), at_least, has_counters ? &m.measured->together : nullptr,
        m.uses_library() ? "n/a" : asked(requested, counts ? &counted : nullptr), "");
  const std::vector<TensorBytes> hbm_pairs = pairs_only(m.hbm());
  text += fmt::format(
      "  {:<18}{:>14}{:>15}{:>16}{:>13}", "S and P", hbm_pairs.empty() ? "0 MB" : human_bytes(total(hbm_pairs)), "", "",
      m.uses_library() ? "n/a" : human_bytes(total(pairs_only(m.requested()))));
  if (hbm_pairs.empty() && !m.backward)
    text += fmt::format("  (step02 moves {})", human_bytes(4 * r.problem.S() * bytes_per_element(r.problem.dtype)));
  for (const MethodResult& other : r.methods)
    if (hbm_pairs.empty() && &other != &m && other.backward && m.backward)
      text += fmt::format("  ({} moves {})", other.name, human_bytes(total(pairs_only(other.hbm()))));
  text += "\n";

  text += fmt::format("bytes     HBM expected {}{} · requested", at_least ? "at least " : "", total(m.hbm()));
  text += m.uses_library() ? std::string(" n/a (a library's kernels)")
                           : fmt::format(": load {}, store {}", total_load(requested), total_store(requested));
  text += counts ? fmt::format(" · counted: load {}, store {}\n", total_load(counted), total_store(counted))
                 : std::string(" · counted n/a\n");
  text += fmt::format("flops     useful {} · executed {}", m.useful_flops, m.executed_flops());
  text += counts ? fmt::format(" · counted {}", m.counted_flops()) : std::string();
  text += r.problem.on_tensor_cores ? " (each multiply-add is three on the tensor cores)\n" : "\n";
  text += measured(r, m);
  if (!counts && !r.planned_only) text += "          counted n/a: the CPU executor counts (--device cpu)\n";
  for (const std::string& line : cache_regime(r.problem, m.expected, m.scratch, r.l2_bytes))
    text += fmt::format("cache     {}\n", line);
  return text;
}

std::string rate(const RunResult& r, const MethodResult& m) {
  if (!m.time || m.time->emulated) return "";
  const std::optional<HbmRate> rate = hbm_rate(
      m.measured ? hbm_total(m.measured->together) : std::nullopt, total(m.hbm()), m.time->median_ms, r.hbm_peak);
  const std::string peak =
      r.hbm_peak ? fmt::format("this GPU's HBM peaks at {}/s", human_bytes(std::llround(*r.hbm_peak)))
                 : "this GPU's peak is not known";
  const std::string source = rate->measured ? "measured" : "expected";
  return fmt::format("rate      {}/s of {} bytes over time{}, {}\n", human_bytes(std::llround(rate->bytes_per_s)),
                     source, rate->cache_resident ? ": cache-resident" : "", peak);
}

std::string time(const RunResult& r, const MethodResult& m) {
  const std::string predicted = prediction_text(predict(m.expected, r.problem, r.figures));
  if (!m.time && r.planned_only) return r.device == DeviceKind::gpu ? fmt::format("time      {}\n", predicted) : "";
  if (!m.time) return "time      n/a: no time of a run that was not right\n";
  if (m.time->emulated)
    return fmt::format("emulated  {} on the CPU executor ({} run{}{}): not a GPU's time, so no TFLOP/s\n",
                       human_ms(m.time->median_ms), m.time->runs, m.time->runs == 1 ? "" : "s",
                       r.options.films() && !r.options.repeat ? ", filmed, which makes it slower" : "");
  return fmt::format(
      "time      {} (p10 {}, p90 {}, {} runs, cold L2)   {:.1f} TFLOP/s{}   {}\n", human_ms(m.time->median_ms),
      human_ms(m.time->p10_ms), human_ms(m.time->p90_ms), m.time->runs, m.useful_flops / m.time->median_ms * 1e-9,
      m.executed_flops() == m.useful_flops ? "" : " useful", predicted);
}

std::string memory(const RunResult& r, const MethodResult& m) {
  std::string text = fmt::format(
      "memory    {} ({} bytes) beyond q, k, v, o{}, grows with {}          kernels {}\n", human_bytes(m.extra_bytes()),
      m.extra_bytes(), m.backward ? " and gradients" : "", m.grows_quadratically() ? "N^2" : "N", m.expected.size());
  if (r.device_bytes_used)
    text += fmt::format(
        "          {} taken from the driver in all, tensors and guards included\n", human_bytes(*r.device_bytes_used));
  for (size_t n = 0; n < m.launches.size(); ++n)
    if (m.launches[n].local_bytes_per_thread > 0)
      text += fmt::format(
          "          {} keeps {} bytes per thread in local memory (spilled registers: they add to HBM traffic)\n",
          m.launches[n].kernel, m.launches[n].local_bytes_per_thread);
  return text;
}

/// Where recomputing pays in time, for a step with a standard and a recompute backward.
std::string recompute_or_not(const RunResult& r) {
  const MethodResult &recompute = r.methods.back(), &standard = r.methods[r.methods.size() - 2];
  if (!recompute.backward || !standard.backward) return "";
  const std::optional<double> needed = break_even(standard.expected, recompute.expected);
  if (!needed) return "";
  std::string text = fmt::format(
      "break-even  {} multiplies more and moves less than {}: it takes less time where R/BW > {:.1f} FLOP/byte",
      recompute.name, standard.name, *needed);
  if (const Known<Prediction> here = predict(recompute.expected, r.problem, r.figures))
    text += fmt::format("; this GPU: {:.1f}", here->flops_per_second / here->bytes_per_second);
  return text + "\n";
}

/// One line per method, for a step that has several.
std::string methods(const RunResult& r) {
  std::string text =
      fmt::format("{:<22}{:>12}{:>14}{:>14}{:>14}  {}\n", "methods", r.device == DeviceKind::gpu ? "time" : "emulated",
                  "HBM expected", "requested", "extra memory", "exact");
  for (const MethodResult& m : r.methods) {
    const bool pass = std::all_of(m.checks.begin(), m.checks.end(), [](const CheckResult& c) { return c.pass; });
    const std::string exact =
        !m.not_run.empty() ? "n/a: " + m.not_run
        : m.checks.empty() ? "not checked"
        : pass             ? "PASS"
                           : "FAIL";
    text += fmt::format(
        "  {:<20}{:>12}{:>14}{:>14}{:>14}  {}\n", m.name, m.time ? human_ms(m.time->median_ms) : "n/a",
        human_bytes(total(m.hbm())), human_bytes(total(m.requested())), human_bytes(m.extra_bytes()), exact);
  }
  return text + recompute_or_not(r);
}

/// What the check said of a tile's method, in a few words.
std::string sweep_verdict(const SweptTile& swept) {
  if (swept.run.planned_only) return "n/a";
  if (!swept.verified()) return "not checked";
  double worst = 0;
  bool sampled = false;
  for (const CheckResult& c : swept.method().checks) worst = std::max(worst, c.worst), sampled = sampled || c.sampled;
  return *swept.verified() ? fmt::format("PASS {:.2f}{}", worst, sampled ? " (sampled)" : "") : "FAIL";
}

std::string sweep_row(const SweptTile& swept, bool best) {
  const MethodResult& m = swept.method();
  std::string text =
      fmt::format("  {:<9}{:>9}{:>9}", tile_name(swept.tile.shape), swept.tile.sram_bytes, swept.tile.threads);
  const LaunchRecord* longest = swept.longest_kernel();
  const bool counted = swept.run.device == DeviceKind::cpu && longest;
  const bool gpu_time = m.time && !m.time->emulated;
  text += fmt::format(
      "{:>11}{:>11}{:>11}{:>14}{:>14}",
      longest && longest->blocks_per_sm ? std::to_string(*longest->blocks_per_sm) : "n/a",
      human_bytes(total(m.requested())), counted ? human_bytes(total(m.counted())) : "n/a", human_bytes(total(m.hbm())),
      bytes_or_na(m.measured ? hbm_total(m.measured->together) : std::nullopt));
  if (!m.not_run.empty()) return text + fmt::format("  not run: {}\n", m.not_run);
  return text + fmt::format("{:>10}{:>9}  {}{}\n", m.time ? human_ms(m.time->median_ms) : "n/a",
                            gpu_time ? fmt::format("{:.1f}", m.useful_flops / m.time->median_ms * 1e-9) : "n/a",
                            sweep_verdict(swept), best ? "   <- best" : "");
}

/// Why a column of the sweep is n/a: one line per reason.
std::string sweep_reasons(const Sweep& sweep) {
  std::string text;
  const auto say = [&](const char* what, const std::string& why) {
    const std::string line = fmt::format("          {}: {}\n", what, why);
    if (!why.empty() && text.find(line) == std::string::npos) text += line;
  };
  for (const SweptTile& swept : sweep.tiles) {
    const RunResult& r = swept.run;
    if (!swept.method().not_run.empty()) continue;  // its line says why
    say("blocks per SM n/a", no_occupancy_reason(swept));
    if (r.device == DeviceKind::gpu && !r.planned_only) say("counted n/a", "the CPU executor counts (--device cpu)");
    say("HBM measured n/a", not_measured_reason(r, swept.method()));
    if (r.device == DeviceKind::cpu && !r.planned_only) say("TFLOP/s n/a", "emulated time is no GPU time");
    if (r.verdict.find("PASS, ") == 0) say("exact", r.verdict);
  }
  return text;
}

}  // namespace

std::string sweep_text(const Sweep& sweep) {
  const RunResult& any = sweep.tiles.front().run;
  const SweptTile* best = sweep.best();
  std::string text = heading(any, fmt::format("{} tiles", sweep.tiles.size()));
  text += fmt::format("{:<11}{:>9}{:>9}{:>11}{:>11}{:>11}{:>14}{:>14}{:>10}{:>9}  {}\n", "tile", "SRAM", "threads",
                      "blocks/SM", "requested", "counted", "HBM expected", "HBM measured",
                      any.device == DeviceKind::gpu ? "time" : "emulated", "TFLOP/s", "exact: worst of the allowance");
  for (const SweptTile& swept : sweep.tiles) text += sweep_row(swept, &swept == best);
  text += fmt::format("          SRAM in bytes per block, of {} allowed{}\n", any.problem.sram_limit,
                      any.methods.back().expected.size() > 1 ? "; blocks per SM are the longest kernel's" : "");
  text += sweep_reasons(sweep);
  for (const std::string& line : sweep.failures()) text += fmt::format("FAIL      {}\n", line);
  text += best ? fmt::format("best      {}: {}, the fastest that passed\n", tile_name(best->tile.shape),
                             human_ms(best->method().time->median_ms))
               : fmt::format("best      n/a: {}\n", sweep.no_best_reason());
  return text + fmt::format("article   {}\n", describe_article_tile(sweep));
}

std::string no_occupancy_reason(const SweptTile& swept) {
  if (const LaunchRecord* longest = swept.longest_kernel())
    return longest->blocks_per_sm                ? ""
           : swept.run.device == DeviceKind::cpu ? "the CPU executor has no SMs"
                                                 : "a library's kernel does not say";
  return no_run_reason(swept.run, swept.method());
}

std::string not_measured_reason(const RunResult& r, const MethodResult& m) {
  if (m.measured) return m.measured->reason;
  return r.options.traffic ? no_run_reason(r, m) : "switched off (--traffic off)";
}

std::string report_text(const RunResult& r) {
  const MethodResult& last = r.methods.back();
  std::string text =
      heading(r, "tile " + (r.problem.tile == TileShape{} ? "the library's" : tile_name(r.problem.tile)));
  for (const MethodResult& method : r.methods)
    if (!method.backward || &method == &last) text += exactness(r, method);
  if (!r.planned_only && r.verdict.find("PASS, ") == 0) text += fmt::format("          {}\n", r.verdict);
  if (r.splits)
    text += fmt::format("splits    {} of {} keys: {}\n", r.splits->parts, r.splits->keys_per_part, r.splits->reason);
  if (r.methods.size() > 1) text += methods(r);
  text += traffic(r, last) + time(r, last) + rate(r, last) + memory(r, last);
  if (r.planned_only)
    text += fmt::format("plan      nothing ran; the run needs {} bytes of this device's memory, {} are free{}\n",
                        r.needed_bytes, r.free_bytes, r.needed_bytes > r.free_bytes ? ": it does not fit" : "");
  if (r.thread_orders.size() > 1)
    text += fmt::format(
        "executor  {} thread orders, equal to the bit{}; race check: {}\n", r.thread_orders.size(),
        last.spread ? " but dq" : "",
        r.options.race_check == ExecutorOptions::RaceCheck::all ? "all blocks"
        : r.options.race_check == ExecutorOptions::RaceCheck::ends
            ? "first and last block of each launch"
            : "none");
  if (last.spread)
    text += fmt::format(
        "spread    dq differs from run to run by {:.1e} (relative L2): blocks add it up in any order; --deterministic "
        "fixes that\n",
        *last.spread);
  if (std::any_of(
          last.launches.begin(), last.launches.end(), [](const LaunchRecord& launch) { return launch.printed; }) &&
      r.thread_orders.size() > 1)
    text += fmt::format(
        "printf    above: of the first of {} thread orders alone, threads in index order; --thread-order n shows "
        "another\n",
        r.thread_orders.size());
  for (const MethodResult& m : r.methods)
    if (m.noted_time)
      text += fmt::format("timeline  {}: {} with timestamps, {:.3f} times the plain time\n", m.name,
                          human_ms(m.noted_time->median_ms), m.noted_time->median_ms / m.time->median_ms);
  for (const std::string& failure : r.failures) text += fmt::format("FAIL      {}\n", failure);
  text += r.trace;
  for (const std::string& path : r.saved) text += "saved     " + path + "\n";
  if (r.saved.empty() && !r.options.save_dir.empty() && !r.planned_only)
    text += fmt::format("saved     nothing: {}\n", r.not_saved.empty() ? "the run failed" : r.not_saved);
  return text;
}

}  // namespace attention
