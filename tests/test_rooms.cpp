// The rooms of common/: one way up, and base under everything.
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "tests/catch.h"

namespace {
using Rooms =
    std::map<std::string, std::map<std::string, std::string>>;  // room -> room that it includes -> a file that does

/// The folder below common/ that a path lies in; "steps" for a step; "" for what is not ours.
std::string room_of(const std::string& path) {
  if (path.rfind("steps/", 0) == 0) return "steps";
  return path.rfind("common/", 0) == 0 ? path.substr(7, path.find('/', 7) - 7) : "";
}

Rooms read_rooms() {
  const std::filesystem::path source = ATTN_SOURCE_FOLDER;
  Rooms rooms;
  for (const char* top : {"common", "steps"}) {
    for (const auto& file : std::filesystem::recursive_directory_iterator(source / top)) {
      if (!file.is_regular_file()) continue;
      const std::string path = file.path().lexically_relative(source).string(), from = room_of(path);
      std::ifstream text(file.path());
      for (std::string line; std::getline(text, line);) {
        if (line.rfind("#include \"", 0) != 0) continue;
        const std::string to = room_of(line.substr(10));
        if (!to.empty() && to != from) rooms[from].emplace(to, path);
      }
    }
  }
  return rooms;
}

/// "harness -> roofline (harness/report.cpp) -> harness (...)", "" where no way leads from a room back to it.
std::string find_circle(const Rooms& rooms) {
  std::string found;
  const std::function<void(const std::string&, const std::string&, const std::string&, std::set<std::string>&)> walk =
      [&](const std::string& start, const std::string& room, const std::string& way, std::set<std::string>& seen) {
        const auto includes = rooms.find(room);
        if (includes == rooms.end() || !found.empty()) return;
        for (const auto& [to, file] : includes->second) {
          const std::string longer = way + " -> " + to + " (" + file + ")";
          if (to == start) found = longer;
          if (seen.insert(to).second) walk(start, to, longer, seen);
        }
      };
  for (const auto& [room, includes] : rooms) {
    std::set<std::string> seen;
    walk(room, room, room, seen);
  }
  return found;
}
}  // namespace

TEST_CASE("no two rooms include each other, and base includes nothing of ours") {
  const Rooms rooms = read_rooms();
  CHECK(rooms.size() >= 8);
  CHECK(rooms.at("steps").count("tile") == 1);
  CHECK(find_circle(rooms) == "");
  CHECK(rooms.count("base") == 0);
  CHECK(find_circle({{"a", {{"b", "a/x"}}}, {"b", {{"c", "b/y"}}}, {"c", {{"a", "c/z"}}}}) ==
        "a -> b (a/x) -> c (b/y) -> a (c/z)");
  CHECK(find_circle({{"a", {{"b", "a/x"}, {"c", "a/y"}}}, {"b", {{"c", "b/z"}}}}) == "");
}
