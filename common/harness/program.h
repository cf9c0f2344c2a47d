// What main() of a step and of the playground share: options in, a run, its report out, one line and an exit code at
// the end.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/harness/options.h"
#include "common/harness/result.h"
#include "common/step/step.h"

namespace attention {

/// A step that this program was linked with ("" = its only one), for --help: its text is the same on both devices.
const Step& any_step(const char* id = "");

/// The same with the kernels for `device`. Throws Unsupported where there are none: the GPU's may be missing from the
/// build, the yardstick has none but the GPU's, a bug hunt none but the executor's.
const Step& step_for(DeviceKind device, const char* id = "");

/// The command line for `step`, its --json found writable. Empty after --help, which is printed.
std::optional<Options> read_options(int argc, char** argv, const Step& step);

/// The report, for a person on stdout and for programs in the file `json_path` ("": none); "-" is stdout and sends the
/// person's to stderr.
void print_results(const std::string& report, const std::function<std::string()>& json, const std::string& json_path);

/// Throws CheckFailed with the first of `failures` if there are any.
void refuse(const std::vector<std::string>& failures);

/// The end of a run: `report`, its JSON, its film; then its failures are thrown, or why its outputs could not be saved.
void finish(const RunResult& run, const std::string& report);

/// main(): 0 after run(), else the code of the error it ends with, whose line is printed; what was found wrong is
/// followed by the step's if_wrong.
int program(const std::string& id, const std::function<void()>& run);

}  // namespace attention
