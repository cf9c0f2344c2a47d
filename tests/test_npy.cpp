#include "common/base/npy.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/base/error.h"
#include "common/base/memory.h"
#include "tests/catch.h"
#include "tests/programs.h"

using namespace attention;
namespace fs = std::filesystem;

namespace {

std::string header_text(const std::string& descr, const std::string& order, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }";
}

/// The bytes of a .npy file, made as the format's description says.
std::string npy_bytes(int major, std::string header, const std::string& values) {
  const size_t before = major == 1 ? 10 : 12;
  header.resize((before + header.size() + 1 + 63) / 64 * 64 - before - 1, ' ');
  header += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(major);
  bytes += '\0';
  for (size_t n = 0; n < (major == 1 ? 2u : 4u); ++n) bytes += static_cast<char>(header.size() >> 8 * n & 255);
  return bytes + header + values;
}

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

void put(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

std::string message(const std::string& path, int rank) {
  try {
    read_npy(path, rank);
  } catch (const BadArguments& error) {
    CHECK(error.code == 2);
    const std::string text = error.what();
    CHECK(text.find(path) == 0);
    CHECK(!has(text, "\n"));
    return text.substr(path.size());
  }
  return "no error";
}

}  // namespace

TEST_CASE("npy written and read back", "[npy]") {
  const Folder folder;
  const std::vector<float> values = {1.5f, -0.0f, 3e-45f, -INFINITY, 1e38f, 0.1f};
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{6}, {2, 3}, {1, 2, 3, 1}}) {
    write_npy(folder.file("x.npy"), shape, values);
    const auto array = read_npy(folder.file("x.npy"), static_cast<int>(shape.size()));
    CHECK(array.shape == shape);
    CHECK(std::memcmp(array.values.data(), values.data(), sizeof(float) * values.size()) == 0);
  }
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 1);  // no temporary file stays
}

TEST_CASE("npy versions 1 to 3 and the element types", "[npy]") {
  const Folder folder;
  const std::string path = folder.file("x.npy");
  for (const int major : {1, 2, 3}) {
    put(path, npy_bytes(major, header_text("'<f4'", "False", "(2, 1)"), raw<float>({1, 2})));
    CHECK(read_npy(path, 2).values == std::vector<float>{1, 2});
  }
  put(path, npy_bytes(1, header_text("'<f2'", "False", "(7,)"),
                      raw<uint16_t>({0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00, 0x0400, 0x8000})));
  CHECK(read_npy(path, 1).values == std::vector<float>{1, -2, 0x1p-24f, 65504, INFINITY, 0x1p-14f, 0});
  CHECK(std::signbit(read_npy(path, 1).values[6]));
  CHECK(read_npy(path, 1).was_half);
  put(path, npy_bytes(1, header_text("'<f2'", "False", "(1,)"), raw<uint16_t>({0x7e00})));
  CHECK(std::isnan(read_npy(path, 1).values[0]));
  put(path, npy_bytes(1, header_text("'<f8'", "False", "(1,)"), raw<double>({0.1})));
  CHECK(read_npy_double(path, 1).values[0] == 0.1);
  CHECK(has(message(path, 1), "element type <f8"));
}

TEST_CASE("npy written as float16 and read back", "[npy]") {
  const Folder folder;
  write_npy(folder.file("x.npy"), {2, 3}, std::vector<float>{1.5f, -0.0f, 0x1p-24f, -INFINITY, 65504, 0.1f}, true);
  const auto array = read_npy(folder.file("x.npy"), 2);
  CHECK(array.was_half);
  CHECK(array.shape == std::vector<int64_t>{2, 3});
  CHECK(array.values == std::vector<float>{1.5f, 0, 0x1p-24f, -INFINITY, 65504, 0x1.998p-4f});
  CHECK(std::signbit(array.values[1]));
  write_npy(folder.file("x.npy"), {1}, std::vector<float>{1});
  CHECK_FALSE(read_npy(folder.file("x.npy"), 1).was_half);
}

TEST_CASE("npy errors name the file in one line", "[npy]") {
  const Folder folder;
  const std::string path = folder.file("x.npy"),
                    good = npy_bytes(1, header_text("'<f4'", "False", "(2, 3)"), raw<float>({1, 2, 3, 4, 5, 6}));
  CHECK(has(message(folder.file("missing.npy"), 2), "cannot be read"));
  CHECK(message(folder.path, 2) != "no error");
  for (size_t length = 0; length < good.size(); length += length < 12 ? 1 : 9) {
    put(path, good.substr(0, length));
    CHECK(message(path, 2) != "no error");
  }
  put(path, good.substr(0, good.size() - 1));
  CHECK(has(message(path, 2), "truncated: holds 23 bytes of values, its shape needs 24"));
  put(path, good + "x");
  CHECK(has(message(path, 2), "longer"));
  put(path, good);
  CHECK(has(message(path, 4), "has 2 dimensions; 4 are needed: [batch, heads, seqlen, head_dim]"));
  put(path, "PK\x03\x04 an archive, not an array");
  CHECK(has(message(path, 2), "not a .npy file"));

  const auto with_header = [&](const std::string& descr, const std::string& order, const std::string& shape) {
    put(path, npy_bytes(1, header_text(descr, order, shape), raw<float>({1, 2, 3, 4, 5, 6})));
    return message(path, 2);
  };
  CHECK(has(with_header("'<f4'", "True", "(2, 3)"), "Fortran order"));
  CHECK(has(with_header("'<f4'", "1", "(2, 3)"), "neither True nor False"));
  CHECK(has(with_header("'<f8'", "False", "(2, 3)"), "save x.astype(np.float32)"));
  CHECK(has(with_header("'>f4'", "False", "(2, 3)"), "element type >f4"));
  CHECK(has(with_header("'<i4'", "False", "(2, 3)"), "element type <i4"));
  CHECK(has(with_header("[('a', '<f4')]", "False", "(2, 3)"), "not a plain number type"));
  CHECK(has(with_header("'<f4'", "False", "(2, -3)"), "shape"));
  CHECK(has(with_header("'<f4'", "False", "(2, 3"), "shape"));
  CHECK(with_header("'<f4'", "False", "(4611686018427387904, 4611686018427387904)") != "no error");
}

TEST_CASE("npy is written whole or not at all", "[npy]") {
  const Folder folder;
  const std::vector<float> values(4, 1.0f);
  CHECK_THROWS_AS(write_npy(folder.file("no/such/folder/x.npy"), {4}, values), BadArguments);

  // A disk that fills up, played by a limit on the size of files: the older file stays as it was.
  write_npy(folder.file("y.npy"), {4}, values);
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const auto on_limit = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  CHECK_THROWS_AS(write_npy(folder.file("y.npy"), {100000}, std::vector<float>(100000)), BadArguments);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, on_limit);
  CHECK(read_npy(folder.file("y.npy"), 1).values == values);
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 1);
}

TEST_CASE("several files appear together or not at all, and a link stays a link", "[npy]") {
  const Folder folder;
  const std::vector<float> old(4, 1.0f), values(4, 2.0f);
  write_npy(folder.file("o.npy"), {4}, old);
  fs::create_directories(folder.file("lse.npy"));
  {
    WholeFiles files;
    add_npy(files, folder.file("o.npy"), {4}, values);
    CHECK_THROWS_WITH(add_npy(files, folder.file("lse.npy"), {4}, values),
                      folder.file("lse.npy") + ": cannot be written: it is a folder");
  }
  CHECK(read_npy(folder.file("o.npy"), 1).values == old);
  fs::create_symlink("real.npy", folder.file("link.npy"));
  write_npy(folder.file("link.npy"), {4}, values);
  CHECK(fs::is_symlink(folder.file("link.npy")));
  CHECK(read_npy(folder.file("real.npy"), 1).values == values);
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 4);

  // Ctrl-C between writing and renaming leaves nothing behind.
  const pid_t child = fork();
  if (child == 0) {
    WholeFiles files;
    add_npy(files, folder.file("late.npy"), {4}, values);
    std::raise(SIGINT);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGINT));
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 4);
}

TEST_CASE("memory that a container's limit leaves", "[memory]") {
  const Folder folder;
  const auto put = [&](const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(folder.file(name)).parent_path());
    std::ofstream(folder.file(name)) << text;
  };
  put("proc/meminfo", "MemTotal: 4000 kB\nMemAvailable:    3000 kB\n");
  CHECK(available_memory(folder.path) == 3000 * 1024);
  put("proc/self/cgroup", "4:memory:/old\n0::/a/b\n");
  put("sys/fs/cgroup/a/b/memory.max", "max\n");
  put("sys/fs/cgroup/a/b/memory.current", "100\n");
  CHECK(available_memory(folder.path) == 3000 * 1024);
  put("sys/fs/cgroup/a/memory.max", "1000\n");  // of the group above
  put("sys/fs/cgroup/a/memory.current", "400\n");
  CHECK(available_memory(folder.path) == 600);
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "500\n");  // version 1, its group mounted as the root
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", "501\n");
  CHECK(available_memory(folder.path) == 0);
}
