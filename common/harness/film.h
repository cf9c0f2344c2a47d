// --film: one self-contained page that plays what the CPU executor saw (common/film has the page's own files).
#pragma once

#include <string>
#include <vector>

#include "common/device/cpu/film.h"
#include "common/harness/result.h"
#include "common/reference/reference.h"

namespace attention {

/// The page for a run that was filmed. `row` is the query of head 0 whose recurrence it shows: its scores are computed
/// on the host in float64 from the inputs; `o` and `lse` are the kernel's own outputs. Throws BadArguments when even
/// two blocks of a launch make a page of more than 5 MB.
std::string film_page(const RunResult& result, const HostInputs& inputs, int64_t row, const std::vector<float>& o,
                      float lse);

/// What --timeline writes to a file of this name.
std::string timeline_file(const RunResult& result, const std::string& path);

}  // namespace attention
