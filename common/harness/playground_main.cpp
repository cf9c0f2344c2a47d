// main() of the playground: the reader's kernel through the whole harness, then step04 on the same problem, and how
// they compare.
#include <fmt/format.h>

#include <algorithm>

#include "common/base/text.h"
#include "common/harness/program.h"
#include "common/harness/report.h"
#include "common/harness/run.h"

namespace attention {

namespace {

constexpr const char* kMine = "playground";
constexpr const char* kOurs = "step04";

std::string exact(const RunResult& r) {
  const std::vector<CheckResult>& checks = r.methods.back().checks;
  const auto pass = [](const CheckResult& check) { return check.pass; };
  return r.outputs_wrong  ? "FAIL"
         : checks.empty() ? "not checked"
         : std::all_of(checks.begin(), checks.end(), pass)
             ? "PASS"
             : "FAIL";
}

/// Whether what was counted is what cost() says.
std::string counts(const RunResult& r) {
  return !has_counts(r, r.methods.back()) ? "not counted" : r.counts_wrong ? "not as cost() says" : "PASS";
}

int64_t requested_bytes(const RunResult& r) {
  const MethodResult& m = r.methods.back();
  const std::vector<TensorBytes> requested = has_counts(r, m) ? m.counted() : m.requested();
  return total(requested);
}

int64_t hbm_bytes(const RunResult& r) { return total(r.methods.back().hbm()); }

std::string row(const char* what, const std::string& mine, const std::string& ours, const std::string& ratio) {
  return fmt::format("  {:<14}{:>14}{:>14}{}{}\n", what, mine, ours, ratio.empty() ? "" : "   ", ratio);
}

std::string ratio(double mine, double ours) { return fmt::format("{:.2f} times {}'s", mine / ours, kOurs); }

std::string comparison(const RunResult& mine, const RunResult& ours) {
  const auto bytes = [](const char* what, int64_t m, int64_t o) {
    return row(
        what, human_bytes(m), human_bytes(o), o == 0 ? "" : ratio(static_cast<double>(m), static_cast<double>(o)));
  };
  std::string text = fmt::format("{:<16}{:>14}{:>14}\n", "compared", kMine, kOurs);
  text += row("exact", exact(mine), exact(ours), "");
  text += row("bytes, FLOPs", counts(mine), counts(ours), "");
  text += bytes("HBM expected", hbm_bytes(mine), hbm_bytes(ours));
  text += bytes("requested", requested_bytes(mine), requested_bytes(ours));
  text += bytes("extra memory", mine.methods.back().extra_bytes(), ours.methods.back().extra_bytes());
  const std::optional<TimeStats>&m = mine.methods.back().time, &o = ours.methods.back().time;
  if (mine.planned_only) text += row("time", "n/a", "n/a", kPlanned);
  else if (mine.device == DeviceKind::cpu) text += row("time", "n/a", "n/a", "the CPU executor's times are no GPU's");
  else if (!m || !o) text += row("time", "n/a", "n/a", "no time of a run that was not right");
  else
    text += row("time", fmt::format("{:.3g} ms", m->median_ms), fmt::format("{:.3g} ms", o->median_ms),
                ratio(m->median_ms, o->median_ms));
  return text;
}

void run_main(int argc, char** argv) {
  const std::optional<Options> options = read_options(argc, argv, any_step(kMine));
  if (!options) return;
  ChosenDevice chosen = choose_device(*options);
  Options for_ours = *options;  // its own tile; what is saved, traced and filmed is the reader's
  for_ours.tile.reset();
  for_ours.trace_row.reset();
  for_ours.save_dir.clear();
  for_ours.film.clear();
  for_ours.timeline.clear();
  RunResult mine, ours;
  {
    Progress progress;
    mine = run_step(*options, step_for(chosen.device->kind(), kMine), chosen, progress);
    ours = run_step(for_ours, step_for(chosen.device->kind(), kOurs), chosen, progress);
  }
  finish(mine, report_text(mine) + comparison(mine, ours));
}

}  // namespace

}  // namespace attention

int main(int argc, char** argv) {
  return attention::program("playground", [&] { attention::run_main(argc, argv); });
}
