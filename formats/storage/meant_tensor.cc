#include "formats/storage/meant_tensor.h"

#include <vector>

#include "formats/text/spelling.h"

namespace ingot::formats {

std::string meant_tensor(std::string_view name, std::span<const LogicalTensor> tensors) {
  if (name.find_first_of("*?[]:&") != std::string_view::npos) return {};
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const LogicalTensor& tensor : tensors) names.push_back(tensor.name);
  return did_you_mean(name, names);
}

}  // namespace ingot::formats
