// The rooms of common/: one way up, and base under everything.
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

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

/// "harness -> roofline (harness/report.cpp)", ...: what is left when rooms that include no other room are taken away, again
/// and again. Empty where there is no circle.
std::vector<std::string> circles(Rooms rooms) {
  for (size_t before = rooms.size() + 1; rooms.size() < before;) {
    before = rooms.size();
    for (auto& [room, includes] : rooms)
      std::erase_if(includes, [&](const auto& include) { return !rooms.count(include.first); });
    std::erase_if(rooms, [](const auto& room) { return room.second.empty(); });
  }
  std::vector<std::string> found;
  for (const auto& [room, includes] : rooms)
    for (const auto& [to, file] : includes) found.push_back(room + " -> " + to + " (" + file + ")");
  return found;
}
}  // namespace

TEST_CASE("no two rooms include each other, and base includes nothing of ours") {
  const Rooms rooms = read_rooms();
  CHECK(rooms.size() >= 8);
  CHECK(rooms.at("steps").count("tile") == 1);
  CHECK(circles(rooms).empty());
  CHECK(rooms.count("base") == 0);
  CHECK(circles({{"a", {{"b", "a/x"}}}, {"b", {{"c", "b/y"}}}, {"c", {{"a", "c/z"}}}}) ==
        std::vector<std::string>{"a -> b (a/x)", "b -> c (b/y)", "c -> a (c/z)"});
  CHECK(circles({{"a", {{"b", "a/x"}, {"c", "a/y"}}}, {"b", {{"c", "b/z"}}}}).empty());
}
