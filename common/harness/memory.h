// Does it fit? Asked before any work, so that a request for terabytes ends in seconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/device/device_api.h"
#include "common/base/problem.h"
#include "common/step/step.h"

namespace attention {

/// The scratch buffers of these methods; methods run one after the other, so buffers of one name are shared.
std::vector<Scratch> shared_scratch(const Problem& problem, const std::vector<const Method*>& methods);

/// Bytes that a run with these buffers takes from the device: with tails, the buffer that flushes the L2 and, on the
/// CPU executor, whose memory is the host's, the host's copies of the tensors.
int64_t bytes_needed(const Device& device, const Problem& problem, bool backward, const std::vector<Scratch>& scratch);

/// "S and P need 2199023255552 bytes, 149000000000 are free": of the buffers that grow as N^2, else of all.
std::string describe_shortage(int64_t free_bytes, int64_t needed, const std::vector<Scratch>& scratch);

}  // namespace attention
