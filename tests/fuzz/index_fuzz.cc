#include <stdexcept>
#include <string_view>

#include "formats/base/error.h"
#include "formats/container/checkpoint_index.h"
#include "tests/fuzz/target.h"

namespace ingot::fuzz {

bool accepts(std::span<const std::byte> input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  formats::CheckpointIndex index;
  try {
    index = formats::parse_checkpoint_index(text, "input");
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) throw std::logic_error(error.what());
    return false;
  }
  for (const auto& [tensor, file] : index.weight_map) {
    if (file.find('/') != std::string::npos || file.find("..") != std::string::npos) {
      throw std::logic_error("a file name leaves the directory");
    }
  }
  const auto again =
      formats::parse_checkpoint_index(formats::checkpoint_index_text(index, 0), "written");
  if (again.weight_map.size() != index.weight_map.size())
    throw std::logic_error("a name was lost in writing");
  return true;
}

}  // namespace ingot::fuzz
