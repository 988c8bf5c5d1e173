#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "check/model_fingerprint.h"
#include "formats/records/calibration.h"
#include "verify/structure/structure_comparisons.h"

namespace ingot::verify {

using formats::Checkpoint;
using formats::LogicalTensor;
using formats::Part;
using formats::StoredTensor;

namespace {

constexpr std::string_view kInputScaleRule = "structure.input-scale";
/// The error that FP32 arithmetic may cause, in any program.
constexpr float kSlack = 1e-5F;

/// The range of a linear's input; 0 is within.
struct Range {
  float min = 0, max = 0;
  void include(const Range& other) {
    min = std::min(min, other.min);
    max = std::max(max, other.max);
  }
  [[nodiscard]] float amax() const { return std::max(max, -min); }
};

/// The file's values for a module: a pair, or a magnitude that means both signs of it.
struct Statistics {
  std::optional<float> min, max, amax;

  [[nodiscard]] Range range() const {
    Range range;
    if (min && max) {
      range.include({.min = *min, .max = *max});
    } else if (amax) {
      range.include({.min = -*amax, .max = *amax});
    }
    return range;
  }
};

std::map<std::string, Statistics> read_statistics(const formats::CalibrationStatistics& file) {
  std::map<std::string, Statistics> modules;
  for (const auto& [end, member] : {std::pair{formats::kInputMin, &Statistics::min},
                                    {formats::kInputMax, &Statistics::max},
                                    {formats::kInputAmax, &Statistics::amax}}) {
    file.for_each(end, [&, member = member](const std::string& module,
                                            const formats::StatisticTensor& tensor) {
      modules[module].*member = file.values(tensor).front();
    });
  }
  return modules;
}

std::string group_of(const LogicalTensor& tensor) {
  const std::string module(formats::module_name(tensor.name));
  const formats::Fuse fuse = tensor.rule == nullptr ? formats::Fuse::kNone : tensor.rule->fuse;
  if (fuse == formats::Fuse::kNone || fuse == formats::Fuse::kIndexerK) return module;
  return fmt::format("{}/{}", module.substr(0, module.rfind('.')), static_cast<int>(fuse));
}

float wanted_scale(const LogicalTensor& tensor, const Range& range) {
  if (tensor.encoding.stored.has(Part::kInputOffset))
    return std::max((range.max - range.min) / 255.0F, 0x1p-23F);
  float largest = 448;
  const formats::CodeKind code = formats::scheme_facts(tensor.encoding.scheme).code;
  if (code == formats::CodeKind::kInt8) largest = 127;
  if (code == formats::CodeKind::kE2m1) largest = 2688;
  const float scale =
      tensor.encoding.global_divides ? largest / range.amax() : range.amax() / largest;
  return scale > 0 && std::isfinite(scale) ? scale : 1.0F;
}

float stored_scale(const Checkpoint& output, std::uint32_t index) {
  float value = 0;
  if (output.stored()[index].dtype == formats::DType::kF32)
    output.read(index, 0, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

}  // namespace

std::uint64_t compare_input_scales(const Checkpoint& source, const Checkpoint& output,
                                   const std::filesystem::path& statistics,
                                   check::Findings& found) {
  const auto opened = formats::CalibrationStatistics::open(statistics);
  check::require_same_model(opened, source, "--activation-scales");
  const std::map<std::string, Statistics> modules = read_statistics(opened);
  std::map<std::string, Range> joint;
  for (const LogicalTensor& tensor : output.tensors()) {
    if (!tensor.encoding.stored.has(Part::kInputScale)) continue;
    const auto module = modules.find(std::string(formats::module_name(tensor.name)));
    if (module != modules.end()) joint[group_of(tensor)].include(module->second.range());
  }
  std::uint64_t n_compared = 0;
  for (const LogicalTensor& tensor : output.tensors()) {
    if (!tensor.encoding.stored.has(Part::kInputScale)) continue;
    const std::uint32_t index = tensor.encoding.stored[Part::kInputScale];
    const StoredTensor& stored = output.stored()[index];
    const auto fact = [&](std::string message) {
      return Error(ErrorCode::kMismatch, std::move(message))
          .in_file(output.files()[stored.file].name)
          .in_tensor(stored.name);
    };
    const auto range = joint.find(group_of(tensor));
    if (range == joint.end()) {
      found.warning(kInputScaleRule, fact("has no range in the file of activation statistics"));
      continue;
    }
    ++n_compared;
    const float wanted = wanted_scale(tensor, range->second);
    const float value = stored_scale(output, index);
    if (std::fabs(value - wanted) <= kSlack * wanted) continue;
    found.error(
        kInputScaleRule,
        fact(fmt::format("is {:.6g}, the activation statistics give {:.6g}", value, wanted)));
  }
  return n_compared;
}

}  // namespace ingot::verify
