// --describe: what a step is and serves, for scripts. Nobody else holds a list of steps.
#pragma once

#include <string>

#include "common/step/step.h"

namespace attention {

/// One JSON object, indented, with a last newline: id, kind ("attention", or as Step::kind says), title, idea, chapter,
/// methods, passes, dtypes, products, head_dims and tiles, devices, baseline, before, techniques. What is served is
/// asked of the step's own refusal and tiles, for the CPU executor and for GPUs of each compute capability. "fp32 on
/// tensor cores" is a key of its own in head_dims and tiles.
std::string describe(const Step& step);

}  // namespace attention
