#include <algorithm>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/container/safetensors.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

/// Appends `value` as a JSON string with its quotes.
void append_string(std::string_view value, std::string& text) {
  // Nearly all names need no escape.
  const bool is_plain = std::ranges::all_of(
      value, [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
  if (is_plain) {
    text.append(1, '"').append(value).append(1, '"');
    return;
  }
  try {
    text += Json(value).dump();
  } catch (const Json::exception&) {
    throw Error(ErrorCode::kCorrupt, "tensor name is not valid UTF-8");
  }
}

void append_number(std::uint64_t number, std::string& text) {
  const fmt::format_int digits(number);
  text.append(digits.data(), digits.size());
}

void check_specs(std::span<const TensorSpec> tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    throw Error(ErrorCode::kDuplicate, "would occur twice in one file").in_tensor(*twice);
  }
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name == "__metadata__") {
      throw Error(ErrorCode::kInvalidArgument, "name is reserved by the format")
          .in_tensor(tensor.name);
    }
    if (tensor.name.size() > kMaxJsonKeyBytes) {
      throw Error(ErrorCode::kLimit, "a tensor name of {} bytes, at most {} are accepted",
                  tensor.name.size(), kMaxJsonKeyBytes);
    }
    if (!byte_count(tensor.dtype, tensor.shape)) {
      throw Error(ErrorCode::kLimit, "shape {} of {} overflows or does not fill whole bytes",
                  shape_text(tensor.shape), dtype_name(tensor.dtype))
          .in_tensor(tensor.name);
    }
  }
}

}  // namespace

bool writes_before(DType dtype_a, std::string_view name_a, DType dtype_b, std::string_view name_b) {
  return dtype_a != dtype_b ? dtype_a > dtype_b : name_a < name_b;
}

std::string safetensors_header_text(std::span<const TensorSpec> tensors) {
  static const std::pair<std::string, std::string> kTorch("format", "pt");
  return safetensors_header_text(tensors, std::span(&kTorch, 1));
}

std::string safetensors_header_text(std::span<const TensorSpec> tensors,
                                    std::span<const std::pair<std::string, std::string>> metadata) {
  check_specs(tensors);
  std::string text(kLengthBytes, '\0');
  text += R"({"__metadata__":{)";
  for (const auto& [key, value] : metadata) {
    if (text.back() != '{') text += ',';
    append_string(key, text);
    text += ':';
    append_string(value, text);
  }
  text += '}';
  std::uint64_t begin = 0;
  for (const TensorSpec& tensor : tensors) {
    const std::optional<std::uint64_t> end =
        checked_add(begin, byte_count(tensor.dtype, tensor.shape).value_or(0));
    if (!end) {
      throw Error(ErrorCode::kLimit, "data of one file overflow 64 bits").in_tensor(tensor.name);
    }
    text += ',';
    append_string(tensor.name, text);
    text.append(R"(:{"dtype":")").append(dtype_name(tensor.dtype)).append(R"(","shape":[)");
    for (const std::uint64_t length : tensor.shape) {
      if (text.back() != '[') text += ',';
      append_number(length, text);
    }
    text += R"(],"data_offsets":[)";
    append_number(begin, text);
    text += ',';
    append_number(*end, text);
    text += "]}";
    begin = *end;
  }
  text += '}';
  text.resize(static_cast<std::size_t>(round_up(text.size(), 8)), ' ');
  const std::uint64_t n_bytes = text.size() - kLengthBytes;
  if (n_bytes > kMaxHeaderBytes) {
    throw Error(ErrorCode::kLimit,
                "header of {} tensors takes {} bytes, at most {} are allowed (use more files)",
                tensors.size(), n_bytes, kMaxHeaderBytes);
  }
  std::memcpy(text.data(), &n_bytes, sizeof n_bytes);
  return text;
}

}  // namespace ingot::formats
