// --timeline: what each warp of an SM does when, in logical time. The acts are those that the CPU executor saw, in each
// warp's own order; a small model of one SM says when they would happen.
#pragma once

#include <string>

#include "common/harness/result.h"

namespace attention {

/// "" for a file name that ends with .html, .json or .svg; else why it cannot be a timeline's.
std::string timeline_refusal(const std::string& path);

/// The lanes of all launches, one picture below the other: as wide as a document, or (wide) as short acts need it, for
/// a page that scrolls. A very long one ends early and says so.
std::string timeline_svg(const RunResult& result, bool wide);

/// The same in the Trace Event Format that ui.perfetto.dev and chrome://tracing open: one cycle is written as one
/// nanosecond.
std::string timeline_json(const RunResult& result);

}  // namespace attention
