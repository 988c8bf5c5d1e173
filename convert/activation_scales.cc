#include "convert/activation_scales.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "convert/fingerprint.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/safetensors.h"

namespace ingot::convert {
namespace {

constexpr std::string_view kMin = ".input_min";
constexpr std::string_view kMax = ".input_max";
constexpr std::string_view kAmax = ".input_amax";

struct Found {
  std::optional<float> min, max, amax;
};

float read_float(const Fd& file, const formats::StoredTensor& tensor) {
  std::array<std::byte, 4> bytes{};
  file.read_exact(bytes, tensor.offset);
  float value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

InputRange range_of(const std::string& module, const Found& found) {
  const auto refuse = [&](std::string_view what) {
    return Error(ErrorCode::kCorrupt, std::string(what)).in_tensor(module);
  };
  if (found.amax) {
    if (found.min || found.max) throw refuse("has an input_amax beside input_min or input_max");
    if (!(*found.amax >= 0) || !std::isfinite(*found.amax))
      throw refuse(fmt::format("has an input_amax of {}", *found.amax));
    return {.min = -*found.amax, .max = *found.amax};
  }
  if (!found.min || !found.max) throw refuse("needs both input_min and input_max");
  if (!std::isfinite(*found.min) || !std::isfinite(*found.max) || *found.min > *found.max) {
    throw refuse(fmt::format("has an input from {} to {}", *found.min, *found.max));
  }
  return {.min = std::min(*found.min, 0.0F), .max = std::max(*found.max, 0.0F)};
}

}  // namespace

void InputRange::include(const InputRange& other) {
  min = std::min(min, other.min);
  max = std::max(max, other.max);
}

ActivationScales ActivationScales::read(const std::filesystem::path& path) {
  const Fd file = Fd::open_for_reading(path);
  const formats::SafetensorsHeader header = formats::read_safetensors_header(file);
  std::map<std::string, Found, std::less<>> found;
  ErrorList errors;
  for (const formats::StoredTensor& tensor : header.tensors) {
    const std::string_view name = tensor.name;
    const std::string_view suffix = name.ends_with(kMin)    ? kMin
                                    : name.ends_with(kMax)  ? kMax
                                    : name.ends_with(kAmax) ? kAmax
                                                            : "";
    if (suffix.empty() || name.size() == suffix.size()) {
      errors.add(Error(ErrorCode::kCorrupt,
                       "is none of MODULE.input_min, MODULE.input_max, MODULE.input_amax")
                     .in_tensor(tensor.name));
      continue;
    }
    if (tensor.dtype != formats::DType::kF32 || tensor.n_bytes != sizeof(float)) {
      errors.add(Error(ErrorCode::kCorrupt,
                       fmt::format("is {} {}, must be one F32", formats::dtype_name(tensor.dtype),
                                   formats::shape_text(tensor.shape)))
                     .in_tensor(tensor.name));
      continue;
    }
    Found& entry = found[std::string(name.substr(0, name.size() - suffix.size()))];
    (suffix == kMin   ? entry.min
     : suffix == kMax ? entry.max
                      : entry.amax) = read_float(file, tensor);
  }
  ActivationScales scales;
  for (const auto& [module, entry] : found) {
    try {
      scales.ranges_.emplace(module, range_of(module, entry));
    } catch (const Error& error) {
      errors.add(error);
    }
  }
  try {
    errors.throw_if_any();
  } catch (Error& error) {
    throw error.in_file(path.string());
  }
  scales.hash_ = hash_file(path);
  return scales;
}

std::optional<InputRange> ActivationScales::find(std::string_view module) const {
  const auto found = ranges_.find(module);
  if (found == ranges_.end()) return std::nullopt;
  return found->second;
}

InputScale symmetric_input_scale(formats::CodeKind code, const InputRange& range, bool divides) {
  const float largest = code == formats::CodeKind::kInt8   ? 127.0F
                        : code == formats::CodeKind::kE2m1 ? 2688.0F
                                                           : 448.0F;
  const float scale = divides ? largest / range.amax() : range.amax() / largest;
  return {.scale = scale > 0 && std::isfinite(scale) ? scale : 1.0F};
}

InputScale asymmetric_input_scale(const InputRange& range) {
  constexpr float kLeast = 0x1p-23F;
  const float scale = std::max((range.max - range.min) / 255.0F, kLeast);
  return {.scale = scale, .offset = std::nearbyint(-range.min / scale) - 128.0F};
}

}  // namespace ingot::convert
