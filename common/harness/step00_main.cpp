// main() of step00: what works here, how fast the memories and the products are, and the file that the other programs
// read. Exit codes: 0 ok (also without a GPU), 2 bad arguments, 4 a GPU that is present but unusable, a CUDA error, out
// of memory.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "common/base/error.h"
#include "common/base/exit_code.h"
#include "common/base/files.h"
#include "common/harness/describe.h"
#include "common/harness/program.h"
#include "common/harness/progress.h"
#include "common/roofline/measure.h"
#include "common/roofline/preflight.h"
#include "common/traffic/cupti.h"

namespace attention {

namespace {

#if defined(ATTN_HAVE_CUDA)
/// Writes the figures where the other programs look for them.
Finding keep_figures(const std::string& gpu, const std::string& text) {
  const std::string path = figures_path(gpu),
                    next = "name a file with ATTN_DEVICE_FIGURES=file, here and for the other steps";
  if (path.empty())
    return {"figures", Finding::State::note, "not kept: the environment has neither XDG_CACHE_HOME nor HOME", next};
  std::error_code error;
  if (const auto folder = std::filesystem::path(path).parent_path(); !folder.empty())
    std::filesystem::create_directories(folder, error);
  try {
    write_whole(path, text);
  } catch (const BadArguments&) {
    return {"figures", Finding::State::note, "not kept: " + path + " cannot be written", next};
  }
  return {"figures", Finding::State::ok, "kept in " + path + ": every step predicts from them", ""};
}

/// Opens a counter session as the steps do, and reads nothing.
CounterAccess counter_access() {
  try {
    open_cupti(1);
    return {true, "", ""};
  } catch (const CountersUnavailable& why) {
    return {false, why.what(), why.advice};
  }
}

void measure_and_print(const GpuPresence& gpu, const std::string& json_path) {
  if (const char* named = std::getenv("ATTN_DEVICE_FIGURES"); named && *named)
    refuse_unwritable(named, "ATTN_DEVICE_FIGURES");
  DeviceFigures figures;
  {
    Progress progress;
    figures = measure_gpu([&](const std::string& stage) { progress.stage(stage); });
  }
  std::vector<Finding> findings = gpu_findings(gpu, &figures);
  const CounterAccess counters = counter_access();
  for (const auto& more : {ability_findings(figures, counters), executor_findings()})
    findings.insert(findings.end(), more.begin(), more.end());
  findings.push_back(keep_figures(figures.gpu, step00_json(&figures, "", findings)));
  print_results(
      fmt::format(
          "step00  two memories     {}  sm_{}  {} SMs\n", figures.gpu, figures.compute_capability, figures.sm_count) +
          figures_text(figures) + findings_text(findings),
      [&] { return step00_json(&figures, "", findings); }, json_path);
}
#endif

Step step00() {
  return {.id = "step00",
          .title = "two memories",
          .idea = "what works on this machine, how fast its memories are and how fast it multiplies",
          .chapter = "docs/00-two-memories.md",
          .kind = "device"};
}

void run_main(int argc, char** argv) {
  const Step step = step00();
  CLI::App app(fmt::format("{}  {}: {}\nChapter: {}", step.id, step.title, step.idea, step.chapter), step.id);
  std::string json_path;
  CLI::Option* json =
      app.add_option("--json", json_path, "Write the results as JSON; - is standard output")->type_name("FILE");
  bool described = false;
  app.add_flag("--describe", described, "Print what this program is as JSON, for scripts");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return;
  } catch (const CLI::ParseError& error) {
    const std::string text = error.what();
    throw BadArguments(text.substr(0, text.find('\n')) + " (--help lists the flags)");
  }
  if (described) {
    std::fputs(describe(step).c_str(), stdout);
    return;
  }
  if (json->count() > 0 && json_path.empty()) throw BadArguments("--json: the name is empty");
  if (!json_path.empty() && json_path != "-") refuse_unwritable(json_path, "--json");

  const GpuPresence gpu = find_gpu();
#if defined(ATTN_HAVE_CUDA)
  if (gpu.count > 0 && gpu.trouble.empty()) return measure_and_print(gpu, json_path);
#endif
  std::vector<Finding> findings = gpu_findings(gpu, nullptr);
  const Finding about_gpu = findings.front();
  for (const Finding& finding : executor_findings()) findings.push_back(finding);
  print_results(
      "step00  two memories     nothing measured: sizes and rates need a usable GPU\n" + findings_text(findings),
      [&] { return step00_json(nullptr, about_gpu.text, findings); }, json_path);
  if (about_gpu.state == Finding::State::problem)
    throw DeviceFailure(about_gpu.text.find(about_gpu.next) != std::string::npos
                            ? about_gpu.text
                            : about_gpu.text + ": " + about_gpu.next);
}

}  // namespace

}  // namespace attention

int main(int argc, char** argv) {
  return attention::exit_code_of([&] { attention::run_main(argc, argv); });
}
