#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/target.h"

// Runs every file of a corpus through one parser, without libFuzzer. The first word of a file's
// name says the result: `valid-...` is accepted, `hostile-...` is refused, anything else (findings)
// only must not crash.

namespace {

bool replay(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::string name = path.filename().string();
  bool accepted = false;
  try {
    accepted = ingot::fuzz::accepts(std::as_bytes(std::span(content)));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: escaped: %s\n", name.c_str(), error.what());
    return false;
  }
  if ((name.starts_with("valid-") && !accepted) || (name.starts_with("hostile-") && accepted)) {
    std::fprintf(stderr, "%s: was %s\n", name.c_str(), accepted ? "accepted" : "refused");
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_DIRECTORY\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& item : std::filesystem::directory_iterator(argv[1])) {
    if (item.is_regular_file()) paths.push_back(item.path());
  }
  std::sort(paths.begin(), paths.end());
  const auto n_failed =
      std::count_if(paths.begin(), paths.end(), [](const auto& p) { return !replay(p); });
  std::printf("%zu files, %td wrong\n", paths.size(), n_failed);
  return paths.empty() || n_failed != 0 ? 1 : 0;
}
