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

/// Throws BadArguments when a file of that name cannot be written: asked before the run, not after it.
void refuse_unwritable(const std::string& flag, const std::string& path);

/// Writes the file whole or not at all: into a temporary file beside it, then renamed. Throws BadArguments.
void write_whole(const std::string& path, const std::string& text);

}  // namespace attention
