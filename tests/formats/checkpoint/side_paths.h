#pragma once

#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"

namespace ingot::testing {

inline std::vector<std::string> side_paths(const formats::Checkpoint& checkpoint) {
  std::vector<std::string> paths;
  for (const formats::SideFile& file : checkpoint.side_files()) paths.push_back(file.path);
  return paths;
}

}  // namespace ingot::testing
