// The host's side of mistakes.h: in a usual build nothing.
#pragma once

namespace attention::on_gpu {

#if defined(ATTN_GPU_MISTAKES)
/// Before a launch: tells the kernels what ATTN_LEAVE_OUT_BARRIER or ATTN_OFF_BY_ONE says. Throws DeviceFailure.
void make_mistake();
/// After a kernel: says once, as the CPU executor does, that the mistake has been made. Throws DeviceFailure.
void say_mistake();
#else
inline void make_mistake() {}
inline void say_mistake() {}
#endif

}  // namespace attention::on_gpu
