#pragma once

#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

#include "formats/base/fd.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::testing {

/// Every `a` becomes `b` and every `b` becomes `a`.
inline std::string exchanged(std::string text, std::string_view a, std::string_view b) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::string_view rest = std::string_view(text).substr(at);
    if (rest.starts_with(a)) {
      text.replace(at, a.size(), b);
      at += b.size() - 1;
    } else if (rest.starts_with(b)) {
      text.replace(at, b.size(), a);
      at += a.size() - 1;
    }
  }
  return text;
}

/// A copy of a checkpoint in which the tensors of two prefixes of one length have each other's
/// names: two experts, or two layers, exchanged.
inline void copy_exchanged(const std::filesystem::path& from, const std::filesystem::path& to,
                           std::string_view a, std::string_view b) {
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  for (const auto& entry : std::filesystem::directory_iterator(to)) {
    const std::string name = entry.path().filename().string();
    const bool is_weights = entry.path().extension() == ".safetensors";
    if (!is_weights && !name.ends_with(".index.json")) continue;
    std::string bytes = read_text_file(entry.path(), std::uint64_t{1} << 30U);
    std::uint64_t header = bytes.size();
    if (is_weights) std::memcpy(&header, bytes.data(), sizeof header);
    const std::size_t first = is_weights ? sizeof header : 0;
    bytes.replace(first, header, exchanged(bytes.substr(first, header), a, b));
    write_bytes(entry.path(), bytes);
  }
}

}  // namespace ingot::testing
