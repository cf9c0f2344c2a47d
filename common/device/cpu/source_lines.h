// Where in the source a machine address is, with the functions that were inlined there.
#pragma once

#include <string>

namespace attention::executor {

/// The lines that the call before `return_address` stands on, innermost first, such as "tile.h:30 < product.h:28 <
/// step04.cu:52": an access inside of an inlined function names its callers too. "" without debug information (-g1) or
/// without the addr2line of binutils. Slow (it starts a program); remembers its answers.
std::string source_lines(const void* return_address);

}  // namespace attention::executor
