// main() of every step: options, one run, report. Exit codes: 0 ok, 1 check failed, 2 bad arguments, 3 this step cannot
// serve this device or shape, 4 CUDA error or out of memory; one line on stderr says what and what to do.
#include "common/base/files.h"
#include "common/harness/film.h"
#include "common/harness/json.h"
#include "common/harness/program.h"
#include "common/harness/report.h"
#include "common/harness/run.h"
#include "common/harness/sweep.h"
#include "common/harness/timeline.h"

namespace attention {

namespace {

void run_main(int argc, char** argv) {
  const std::optional<Options> options = read_options(argc, argv, any_step());
  if (!options) return;
  if (!options->stamps.empty())
    return write_whole(options->timeline, timeline_file(read_stamps(options->stamps), options->timeline));
  ChosenDevice chosen = choose_device(*options);
  const Step& step = step_for(chosen.device->kind());
  if (options->sweep_tiles) {
    const Sweep sweep = [&] {
      Progress progress;
      return sweep_tiles(*options, step, chosen, progress);
    }();
    print_results(sweep_text(sweep), [&] { return sweep_json_text(sweep); }, options->json);
    return refuse(sweep.failures());
  }
  const RunResult result = [&] {
    Progress progress;
    return run_step(*options, step, chosen, progress);
  }();
  finish(result, report_text(result));
}

}  // namespace

}  // namespace attention

int main(int argc, char** argv) {
  return attention::program("", [&] { attention::run_main(argc, argv); });
}
