// main() of every step: options, one run, report. Exit codes: 0 ok, 1 check failed, 2 bad arguments, 3 this step cannot serve
// this device or shape, 4 CUDA error or out of memory; one line on stderr says what and what to do.
#include "common/harness/program.h"
#include "common/harness/run.h"

namespace attention {

namespace {

void run_main(int argc, char** argv) {
  const std::optional<Options> options = read_options(argc, argv, any_step());
  if (!options) return;
  ChosenDevice chosen = choose_device(*options);
  RunResult result;
  {
    Progress progress;
    result = run_step(*options, step_for(chosen.device->kind()), chosen, progress);
  }
  finish(result);
}

}  // namespace

}  // namespace attention

int main(int argc, char** argv) {
  return attention::program("", [&] { attention::run_main(argc, argv); });
}
