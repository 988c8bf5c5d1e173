#include "formats/recognition/paired_parts.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "formats/config/nested_config.h"
#include "formats/container/other_float8.h"
#include "formats/dialect/other_tools.h"
#include "formats/json/json.h"

namespace ingot::formats {

namespace {

/// Dtypes whose numbers mean nothing without a scale.
constexpr DTypeSet kCodes =
    kOtherFloat8 | DTypeSet{DType::kF8E4M3, DType::kI8, DType::kU8, DType::kI32, DType::kF4};

/// True if the config says that the outputs of weights are quantized. Otherwise an output scale is
/// that of a cache: compressed-tensors and Quark store those of keys and values so, too.
bool quantizes_outputs(const ModelConfig& config) {
  const Json& block = quantization_block(config);
  if (!json_member(block, "kv_cache_scheme").is_null()) return false;
  const auto has = [](const Json& group, const char* outputs, const char* weights) {
    return json_member(group, outputs).is_object() && json_member(group, weights).is_object();
  };
  const Json& groups = json_member(block, "config_groups");
  return has(json_member(block, "global_quant_config"), "output_tensors", "weight") ||
         (groups.is_object() && std::ranges::any_of(groups, [&](const Json& group) {
            return has(group, "output_activations", "weights");
          }));
}

class Pairing {
 public:
  Pairing(const RecognitionInput& input, ErrorList& faults)
      : input_(input),
        faults_(faults),
        has_zero_zero_points_(has_zero_zero_points(input.config)),
        quantizes_outputs_(quantizes_outputs(input.config)),
        paired_{.found = std::vector<FoundParts>(input.stored.size()),
                .is_part = std::vector<bool>(input.stored.size(), false)} {}

  PairedParts run() {
    for (std::uint32_t i = 0; i < input_.stored.size(); ++i) {
      paired_.found[i].stored.set(Part::kWeight, i);
      if (!is_unread(input_, i)) pair_part(i);
    }
    return std::move(paired_);
  }

 private:
  [[nodiscard]] std::optional<std::uint32_t> find_weight(std::string_view stem,
                                                         const PartNaming& naming) const {
    for (const PackedNaming& packed : packed_namings()) {
      if (!naming.is_stacked || !packed.is_stacked) continue;
      if (const auto blocks = input_.names.find(std::string(stem).append(packed.suffix)))
        return blocks;
    }
    if (naming.is_stacked) return input_.names.find(stem);
    std::string name(stem);
    const auto plain = input_.names.find(name.append(kWeightSuffix));
    if (plain && kCodes.has(input_.stored[*plain].dtype)) return plain;
    for (const PackedNaming& naming_of_codes : packed_namings()) {
      if (naming_of_codes.is_stacked) continue;
      if (const auto packed = input_.names.find(std::string(stem).append(naming_of_codes.suffix)))
        return packed;
    }
    return plain;
  }

  /// Notes whose part tensor `i` is, if it is one. Reports a part twice (kDuplicate), and a part of
  /// a plain weight or of no weight (kMissingTensor).
  void pair_part(std::uint32_t i) {
    const StoredTensor& tensor = input_.stored[i];
    for (const PartNaming& naming : part_namings()) {
      if (!tensor.name.ends_with(naming.suffix) || tensor.name.size() == naming.suffix.size())
        continue;
      if (naming.part == Part::kOutputScale && !quantizes_outputs_) continue;
      const auto stem =
          std::string_view(tensor.name).substr(0, tensor.name.size() - naming.suffix.size());
      const auto weight = find_weight(stem, naming);
      const bool is_native = !naming.is_stacked && !naming.is_distinct;
      if (weight && kCodes.has(input_.stored[*weight].dtype)) {
        assign(i, *weight, naming);
      } else if (naming.is_stacked && !naming.is_distinct && !weight) {
        continue;  // a shorter suffix may make it another weight's part
      } else if (naming.is_distinct || (is_native && is_surely_scale(tensor, weight.has_value()))) {
        paired_.is_part[i] = true;
        report_orphan(i, stem, naming, weight);
      }
      return;
    }
  }

  /// Parameters may be called `.scale` too, but exponents are always scales.
  [[nodiscard]] bool is_surely_scale(const StoredTensor& tensor, bool has_weight) const {
    return (input_.names_are_known && has_weight) || tensor.dtype == DType::kF8E8M0;
  }

  void assign(std::uint32_t part, std::uint32_t weight, const PartNaming& naming) {
    paired_.is_part[part] = true;
    FoundParts& found = paired_.found[weight];
    const bool is_zero = naming.part == Part::kZeroPoint && has_zero_zero_points_;
    const Part kind_of_part = is_zero ? Part::kOffset : naming.part;
    if (found.stored.has(kind_of_part)) {
      const std::string& first = input_.stored[found.stored[kind_of_part]].name;
      std::string_view kind = part_facts(kind_of_part).meaning;
      kind.remove_prefix(kind.find(' ') + 1);
      add_fault(input_, weight, ErrorCode::kDuplicate,
                fmt::format("has two {}s, '{}' and '{}' (which one is meant? remove the other)",
                            kind, first, input_.stored[part].name),
                faults_);
      return;
    }
    found.stored.set(kind_of_part, part);
    if (naming.part == Part::kScale) found.reach = naming.reach;
    if (naming.part == Part::kGlobal) found.global_divides = naming.global_divides;
  }

  void report_orphan(std::uint32_t part, std::string_view stem, const PartNaming& naming,
                     std::optional<std::uint32_t> weight) {
    if (weight) {
      add_fault(input_, part, ErrorCode::kMissingTensor,
                fmt::format("is {}, but '{}' is plain {} (was it cast without removing its scale?)",
                            part_facts(naming.part).meaning, input_.stored[*weight].name,
                            dtype_name(input_.stored[*weight].dtype)),
                faults_);
    } else if (input_.is_complete) {
      add_fault(input_, part, ErrorCode::kMissingTensor,
                fmt::format("is {}, but there is no '{}{}' (a file missing? fetch it again)",
                            part_facts(naming.part).meaning, stem,
                            naming.is_stacked ? "" : kWeightSuffix),
                faults_);
    }
  }

  const RecognitionInput& input_;
  ErrorList& faults_;
  bool has_zero_zero_points_;  // those that integers have are zeros
  bool quantizes_outputs_;     // false: output scales are those of a cache
  PairedParts paired_;
};

}  // namespace

PairedParts pair_parts(const RecognitionInput& input, ErrorList& faults) {
  return Pairing(input, faults).run();
}

bool is_unread(const RecognitionInput& input, std::uint32_t stored) {
  return !input.is_unread.empty() && input.is_unread[stored];
}

void add_fault(const RecognitionInput& input, std::uint32_t stored, ErrorCode code,
               std::string message, ErrorList& faults) {
  const StoredTensor& tensor = input.stored[stored];
  faults.add(Error(code, std::move(message))
                 .in_file(input.files[tensor.file].name)
                 .in_tensor(tensor.name));
}

}  // namespace ingot::formats
