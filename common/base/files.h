// Files that appear whole: written beside their place under another name, then renamed.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace attention {

/// Throws BadArguments, "<flag> <path>: cannot be written: why", for a name under which no file can be written: asked
/// before a run, not after it.
void refuse_unwritable(const std::string& path, const std::string& flag = "");

/// All of these files, or none. A symbolic link stays one, its target is written; what is there and is no regular file
/// (/dev/null, a pipe) is written to, as a shell's > does.
class WholeFiles {
 public:
  WholeFiles() = default;
  WholeFiles(const WholeFiles&) = delete;
  WholeFiles& operator=(const WholeFiles&) = delete;
  ~WholeFiles();  // what was not committed is removed; so it is when SIGINT, SIGTERM or SIGHUP ends the program

  /// Writes `parts`, one after the other, to a temporary file. Throws BadArguments that names `path`.
  void add(const std::string& path, const std::vector<std::span<const std::byte>>& parts);

  /// Renames them all.
  void commit();

 private:
  struct File {
    std::string path, part, target;
    int slot;
  };
  std::vector<File> files_;
};

/// One file of text. Throws BadArguments.
void write_whole(const std::string& path, const std::string& text);

}  // namespace attention
