// The program's view of a run: --json. A value that does not exist is null, with <name>_reason beside it; never 0.
#pragma once

#include <string>

#include "common/harness/result.h"
#include "common/harness/sweep.h"

namespace attention {

/// The JSON document (schema attention-run-1), indented, with a last newline.
std::string json_text(const RunResult& result);

/// The same for --sweep-tiles (schema attention-sweep-1): an object per tile.
std::string sweep_json_text(const Sweep& sweep);

}  // namespace attention
