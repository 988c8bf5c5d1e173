#include "formats/checkpoint/part_pairing.h"

#include <optional>
#include <string>

#include <fmt/format.h>

namespace ingot::formats {
namespace {

constexpr std::string_view kWeightSuffix = ".weight";

/// Dtypes whose numbers mean nothing without a scale.
bool is_code_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF8E4M3Fnuz:
    case DType::kF8E5M2Fnuz:
    case DType::kI8:
    case DType::kU8:
    case DType::kI32:
    case DType::kF4:
      return true;
    default:
      return false;
  }
}

class Pairing {
 public:
  Pairing(const RecognitionInput& input, ErrorList& faults) : input_(input), faults_(faults) {
    paired_.found.resize(input.stored.size());
    paired_.is_part.resize(input.stored.size(), false);
  }

  PairedParts run() {
    for (std::uint32_t i = 0; i < input_.stored.size(); ++i) {
      paired_.found[i].stored.set(Part::kWeight, i);
      pair_part(i);
    }
    return std::move(paired_);
  }

 private:
  void fault(std::uint32_t stored, ErrorCode code, std::string message) {
    const StoredTensor& tensor = input_.stored[stored];
    faults_.add(Error(code, std::move(message))
                    .in_file(input_.files[tensor.file].name)
                    .in_tensor(tensor.name));
  }

  [[nodiscard]] std::optional<std::uint32_t> find_weight(std::string_view stem,
                                                         const PartNaming& naming) const {
    if (naming.is_stacked) return input_.names.find(stem);
    std::string name(stem);
    const auto plain = input_.names.find(name.append(kWeightSuffix));
    if (plain && is_code_dtype(input_.stored[*plain].dtype)) return plain;
    for (const std::string_view suffix : packed_suffixes()) {
      if (const auto packed = input_.names.find(std::string(stem).append(suffix))) return packed;
    }
    return plain;
  }

  /// Notes whose part tensor `i` is, if it is one.
  void pair_part(std::uint32_t i) {
    const StoredTensor& tensor = input_.stored[i];
    for (const PartNaming& naming : part_namings()) {
      if (!tensor.name.ends_with(naming.suffix) || tensor.name.size() == naming.suffix.size())
        continue;
      const auto stem =
          std::string_view(tensor.name).substr(0, tensor.name.size() - naming.suffix.size());
      const auto weight = find_weight(stem, naming);
      const bool is_native = !naming.is_stacked && !naming.is_distinct;
      if (weight && is_code_dtype(input_.stored[*weight].dtype)) {
        assign(i, *weight, naming);
      } else if (naming.is_distinct || (is_native && is_surely_scale(tensor))) {
        paired_.is_part[i] = true;
        report_orphan(i, stem, naming, weight);
      }
      return;
    }
  }

  [[nodiscard]] bool is_surely_scale(const StoredTensor& tensor) const {
    return input_.names_are_known || tensor.dtype == DType::kF8E8M0;
  }

  void assign(std::uint32_t part, std::uint32_t weight, const PartNaming& naming) {
    paired_.is_part[part] = true;
    FoundParts& found = paired_.found[weight];
    if (found.stored.has(naming.part)) {
      const std::string& first = input_.stored[found.stored[naming.part]].name;
      std::string_view kind = part_facts(naming.part).meaning;
      kind.remove_prefix(kind.find(' ') + 1);
      fault(weight, ErrorCode::kDuplicate,
            fmt::format("has two {}s, '{}' and '{}' (which one is meant? remove the other)", kind,
                        first, input_.stored[part].name));
      return;
    }
    found.stored.set(naming.part, part);
    if (naming.part == Part::kScale) found.reach = naming.reach;
    if (naming.part == Part::kGlobal) found.global_divides = naming.global_divides;
  }

  void report_orphan(std::uint32_t part, std::string_view stem, const PartNaming& naming,
                     std::optional<std::uint32_t> weight) {
    if (weight) {
      fault(part, ErrorCode::kMissingTensor,
            fmt::format("is {}, but '{}' is plain {} (was it cast without removing its scale?)",
                        part_facts(naming.part).meaning, input_.stored[*weight].name,
                        dtype_name(input_.stored[*weight].dtype)));
    } else if (input_.is_complete) {
      fault(part, ErrorCode::kMissingTensor,
            fmt::format("is {}, but there is no '{}{}' (a file missing? fetch it again)",
                        part_facts(naming.part).meaning, stem, naming.is_stacked ? "" : kWeightSuffix));
    }
  }

  const RecognitionInput& input_;
  ErrorList& faults_;
  PairedParts paired_;
};

}  // namespace

PairedParts pair_parts(const RecognitionInput& input, ErrorList& faults) {
  return Pairing(input, faults).run();
}

}  // namespace ingot::formats
