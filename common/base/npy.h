// NumPy's .npy files: how a model's tensors come in and how NumPy can check ours.
// Format: numpy.lib.format, "A simple file format for NumPy arrays", versions 1.0 to 3.0.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/files.h"

namespace attention {

template <class T>
struct NpyArray {
  std::vector<int64_t> shape;
  std::vector<T> values;  // C order
  bool was_half = false;  // the file holds float16
};

/// Reads an array of `rank` dimensions. read_npy takes little-endian float32 and float16 (widened, exactly);
/// read_npy_double also float64. Throws BadArguments, one line that names the file, when it is missing, truncated,
/// longer than its header says, in Fortran order, of another type or rank, or no .npy file.
NpyArray<float> read_npy(const std::string& path, int rank);
NpyArray<double> read_npy_double(const std::string& path, int rank);

/// Adds a file of float32 values, or with `as_half` float16 (rounded to nearest), in C order, version 1.0. Throws
/// BadArguments, one line that names the file; an older file of that name is then untouched.
void add_npy(WholeFiles& files, const std::string& path, const std::vector<int64_t>& shape,
             std::span<const float> values, bool as_half = false);
void write_npy(const std::string& path, const std::vector<int64_t>& shape, std::span<const float> values,
               bool as_half = false);

}  // namespace attention
