// The names of Hopper's units (names.md has a page of them), for the device being compiled: see device.h.
#pragma once

#include "common/device/device.h"

#if defined(ATTN_DEVICE_CPU)
#include "common/device/cpu/hopper.h"
#else
#include "common/device/gpu/hopper.h"
#endif
