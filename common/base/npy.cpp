#include "common/base/npy.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "common/base/error.h"
#include "common/base/half.h"
#include "common/base/memory.h"

namespace attention {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the files are little-endian and their bytes are taken as they are");

constexpr std::string_view kMagic = "\x93NUMPY";

[[noreturn]] void refuse(const std::string& path, const std::string& why) { throw BadArguments(path + ": " + why); }

struct Header {
  std::string descr;  // "<f4"
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

/// The text after `'key':` in the header's Python dictionary, leading blanks removed.
std::string_view entry(const std::string& path, std::string_view header, std::string_view key) {
  std::string quoted = "'";
  quoted.append(key).append("'");
  const size_t found = header.find(quoted);
  const size_t colon = found == header.npos ? found : header.find(':', found);
  const size_t value = colon == header.npos ? colon : header.find_first_not_of(' ', colon + 1);
  if (value == header.npos) refuse(path, "not a .npy file: its header has no " + quoted);
  return header.substr(value);
}

std::vector<int64_t> parse_shape(const std::string& path, std::string_view text) {
  std::vector<int64_t> shape;
  const char* at = text.data() + 1;
  const char* const end = text.data() + text.size();
  while (text.starts_with('(')) {
    while (at < end && (*at == ' ' || *at == ',')) ++at;
    if (at < end && *at == ')') return shape;
    int64_t size = 0;
    const auto [stop, error] = std::from_chars(at, end, size);
    if (error != std::errc() || size < 0) break;
    shape.push_back(size);
    at = stop;
  }
  refuse(path, "not a .npy file: its shape is unreadable");
}

Header read_header(const std::string& path, std::ifstream& file) {
  unsigned char start[8];  // magic, major and minor version
  if (!file.read(reinterpret_cast<char*>(start), 8) || std::memcmp(start, kMagic.data(), kMagic.size()) != 0)
    refuse(path, "not a .npy file");
  const int major = start[6];
  if (major < 1 || major > 3) refuse(path, ".npy version " + std::to_string(major) + " is not known (1, 2 and 3 are)");
  unsigned char length_bytes[4] = {0, 0, 0, 0};
  const int length_size = major == 1 ? 2 : 4;
  if (!file.read(reinterpret_cast<char*>(length_bytes), length_size)) refuse(path, "truncated inside its header");
  uint32_t length = 0;
  std::memcpy(&length, length_bytes, 4);
  constexpr uint32_t kLongestHeader =
      1 << 20;  // a real one has about a hundred bytes; a broken length must not allocate gigabytes
  if (length > kLongestHeader) refuse(path, "not a .npy file: a header of " + std::to_string(length) + " bytes");
  std::string text(length, ' ');
  if (!file.read(text.data(), length)) refuse(path, "truncated inside its header");

  Header header;
  const std::string_view descr = entry(path, text, "descr");
  const size_t closing = descr.find('\'', 1);
  if (!descr.starts_with('\'') || closing == descr.npos) refuse(path, "its element type is not a plain number type");
  header.descr = descr.substr(1, closing - 1);
  const std::string_view order = entry(path, text, "fortran_order");
  header.fortran_order = order.starts_with("True");
  if (!header.fortran_order && !order.starts_with("False"))
    refuse(path, "not a .npy file: its fortran_order is neither True nor False");
  header.shape = parse_shape(path, entry(path, text, "shape"));
  return header;
}

template <class T, class Stored>
std::vector<T> read_values(const std::string& path, std::ifstream& file, int64_t count) {
  if constexpr (std::is_same_v<T, Stored>) {
    std::vector<T> values(count);
    if (!file.read(reinterpret_cast<char*>(values.data()), count * static_cast<int64_t>(sizeof(T))))
      refuse(path, "could not be read to its end");
    return values;
  } else {
    const std::vector<Stored> stored = read_values<Stored, Stored>(path, file, count);
    std::vector<T> values(count);
    for (int64_t n = 0; n < count; ++n) {
      if constexpr (std::is_same_v<Stored, uint16_t>) {
        values[n] = from_fp16(stored[n]);
      } else {
        values[n] = stored[n];
      }
    }
    return values;
  }
}

template <class T>
NpyArray<T> read_array(const std::string& path, int rank) {
  std::error_code no_size;
  const auto file_size = std::filesystem::file_size(path, no_size);
  std::ifstream file(path, std::ios::binary);
  if (!file || no_size)
    refuse(path, "cannot be read: " + std::string(no_size ? no_size.message() : std::strerror(errno)));
  const Header header = read_header(path, file);

  const bool takes_double = std::is_same_v<T, double>;
  const int element =
      header.descr == "<f4"   ? 4
      : header.descr == "<f2" ? 2
      : header.descr == "<f8" && takes_double
          ? 8
          : 0;
  if (element == 0)
    refuse(path, "element type " + header.descr + "; little-endian float32 or float16" +
                     (takes_double ? " or float64" : "") + " is needed" +
                     (header.descr == "<f8" ? " (NumPy's default is float64: save x.astype(np.float32))" : ""));
  if (header.fortran_order) refuse(path, "is in Fortran order; save numpy.ascontiguousarray(x)");
  if (static_cast<int>(header.shape.size()) != rank) {
    refuse(path, "has " + std::to_string(header.shape.size()) + " dimensions; " + std::to_string(rank) + " are needed" +
                     (rank == 4 ? ": [batch, heads, seqlen, head_dim]" : ""));
  }
  int64_t count = 1;
  for (const int64_t size : header.shape) {
    if (__builtin_mul_overflow(count, size, &count) || count > INT64_MAX / 8)
      refuse(path, "is truncated: its shape exceeds any memory");
  }
  const int64_t held = static_cast<int64_t>(file_size) - static_cast<int64_t>(file.tellg());
  if (held != count * element) {
    refuse(path, (held < count * element ? "is truncated: holds " : "is longer than its header says: holds ") +
                     std::to_string(held) + " bytes of values, its shape needs " + std::to_string(count * element));
  }
  refuse_more_than_available(
      path, count * (static_cast<int64_t>(sizeof(T)) + (element == static_cast<int>(sizeof(T)) ? 0 : element)));
  NpyArray<T> array{header.shape, {}, element == 2};
  if (element == 2) array.values = read_values<T, uint16_t>(path, file, count);
  if (element == 4) array.values = read_values<T, float>(path, file, count);
  if constexpr (takes_double) {
    if (element == 8) array.values = read_values<T, double>(path, file, count);
  }
  return array;
}

}  // namespace

NpyArray<float> read_npy(const std::string& path, int rank) { return read_array<float>(path, rank); }
NpyArray<double> read_npy_double(const std::string& path, int rank) { return read_array<double>(path, rank); }

void add_npy(WholeFiles& files, const std::string& path, const std::vector<int64_t>& shape,
             std::span<const float> values, bool as_half) {
  std::string header = as_half ? "{'descr': '<f2', 'fortran_order': False, 'shape': ("
                               : "{'descr': '<f4', 'fortran_order': False, 'shape': (";
  for (const int64_t size : shape) header += std::to_string(size) + ", ";
  header += "), }";
  // The values start at a multiple of 64 bytes; the header ends with a newline (the format's rules).
  const size_t start = (10 + header.size() + 1 + 63) / 64 * 64;
  header.resize(start - 10 - 1, ' ');
  header += '\n';
  const std::string begin = std::string(kMagic) + '\x01' + '\0' + static_cast<char>(header.size() % 256) +
                            static_cast<char>(header.size() / 256) + header;
  const std::vector<uint16_t> halves = as_half ? narrow(Dtype::fp16, values) : std::vector<uint16_t>{};
  files.add(
      path, {std::as_bytes(std::span(begin)), as_half ? std::as_bytes(std::span(halves)) : std::as_bytes(values)});
}

void write_npy(const std::string& path, const std::vector<int64_t>& shape, std::span<const float> values,
               bool as_half) {
  WholeFiles file;
  add_npy(file, path, shape, values, as_half);
  file.commit();
}

}  // namespace attention
