// main() of every step: options, one run, report. Exit codes: 0 ok, 1 check failed, 2 bad arguments, 3 this step cannot serve
// this device or shape, 4 CUDA error or out of memory; one line on stderr says what and what to do.
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "common/harness/exit_code.h"
#include "common/harness/json.h"
#include "common/harness/options.h"
#include "common/harness/report.h"
#include "common/harness/run.h"
#include "common/harness/sweep.h"

namespace attention {

namespace {

/// The step that this program was linked with, for --help: its text is the same on both devices.
const Step& any_step() {
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::gpu})
    if (const Step* step = find_step(device)) return *step;
  throw Unsupported("this program has no kernels");
}

/// The step with the kernels for `device`. The GPU's may be missing from the build; the yardstick has none but the GPU's.
const Step& the_step(DeviceKind device) {
  if (const Step* step = find_step(device)) return *step;
  throw Unsupported(any_step().id + (device == DeviceKind::gpu ? " has no GPU kernels in this build" : " runs on a GPU only: its products are a library's"));
}

/// The report for the person and, where --json asks for it, the one for programs.
template <class Json>
void publish(const Options& options, const std::string& report, Json&& json) {
  const bool json_to_stdout = options.json == "-";
  std::fputs(report.c_str(), json_to_stdout ? stderr : stdout);
  if (json_to_stdout)
    std::fputs(json().c_str(), stdout);
  else if (!options.json.empty())
    write_whole(options.json, json());
  if (std::fflush(stdout) != 0) throw BadArguments("standard output cannot be written");
}

/// 0, or CheckFailed with the first of `failures`.
int end(const std::vector<std::string>& failures) {
  if (failures.empty()) return 0;
  const size_t more = failures.size() - 1;
  throw CheckFailed(failures.front() + (more == 0 ? "" : " (and " + std::to_string(more) + " more)"));
}

int run_main(int argc, char** argv) {
  std::string help;
  const std::optional<Options> options = parse_options(argc, argv, any_step(), help);
  if (!options) {
    std::fputs(help.c_str(), stdout);
    return 0;
  }
  if (!options->json.empty() && options->json != "-") refuse_unwritable(options->json);

  ChosenDevice chosen = choose_device(*options);
  const Step& step = the_step(chosen.device->kind());
  if (options->sweep_tiles) {
    const Sweep sweep = [&] {
      Progress progress;
      return sweep_tiles(*options, step, chosen, progress);
    }();
    publish(*options, sweep_text(sweep), [&] { return sweep_json_text(sweep); });
    return end(sweep.failures());
  }
  const RunResult result = [&] {
    Progress progress;
    return run_step(*options, step, chosen, progress);
  }();
  publish(*options, report_text(result), [&] { return json_text(result); });
  return end(result.failures);
}

}  // namespace

}  // namespace attention

int main(int argc, char** argv) {
  return attention::exit_code_of([&] {
    try {
      return attention::run_main(argc, argv);
    } catch (const std::bad_alloc&) {
      throw attention::DeviceFailure("out of host memory: choose a smaller --seqlen, --heads or --batch");
    }
  });
}
