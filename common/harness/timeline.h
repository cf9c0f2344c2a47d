// --timeline: what each warp of an SM does when. On the CPU executor in logical time: the acts are those that it saw, in
// each warp's own order, and a small model of one SM says when they would happen. On a GPU in cycles of one SM's clock:
// its warps have noted them (device/gpu/timed.h).
#pragma once

#include <string>

#include "common/harness/result.h"

namespace attention {

/// "" for a file name that ends with .html, .json, .svg or .stamps; else why it cannot be a timeline's.
std::string timeline_refusal(const std::string& path);

/// The tracks of all launches, one picture below the other: as wide as a document, or (wide) as short acts need it, for
/// a page that scrolls. A very long one ends early and says so.
std::string timeline_svg(const RunResult& result, bool wide);

/// The same in the Trace Event Format that ui.perfetto.dev and chrome://tracing open: one cycle is written as one
/// nanosecond.
std::string timeline_json(const RunResult& result);

/// A GPU's timestamps of the first 16,000 cycles as they were noted, and a run that has as much of them as pictures are
/// drawn from. Throws BadArguments.
std::string timeline_stamps(const RunResult& result);
RunResult read_stamps(const std::string& path);

}  // namespace attention
