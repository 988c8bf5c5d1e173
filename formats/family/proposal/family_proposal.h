#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/config/model_config.h"
#include "formats/container/tensor.h"
#include "formats/family/family.h"
#include "formats/family/proposal/class_plan.h"

namespace ingot::formats {

/// A weight of a model of which no family is known.
struct UnknownWeight {
  std::string_view name;
  const Shape* shape = nullptr;  ///< decoded
  DType dtype{};                 ///< dtype as stored
  bool is_quantized = false;
  std::array<std::uint64_t, 2> block = {0, 0};  ///< rows and columns that share a scale
  std::uint64_t n_bytes = 0;                    ///< bytes as stored, with all parts
};

/// Facts about a model in addition to names, shapes and config.
struct FamilyEvidence {
  std::map<std::string, std::string, std::less<>> answers = {};  ///< answers by FamilyQuestion::key
  std::string without = {};                                      ///< a family that is not asked
  std::string preferred = {};  ///< a family whose rows count before others'
  ModelClass of_class = {};
  /// Orders in stacks of experts, by their values; and how that of gates and ups is said.
  std::optional<StackOrder> order = {};
  std::optional<GateUpOrder> gate_up = {};
  std::string gate_up_reason = {};
  /// The order of several matrices in one by which a model was computed, as kJoinedQuestion's.
  std::string joined = {};
};

/// Something that neither names, shapes nor neighbours tell.
struct FamilyQuestion {
  std::string key, text;
  std::vector<std::string> values;  ///< answers that are likely
};
/// The key that answers all questions for roles at once.
inline constexpr std::string_view kUnknownQuestion = "unknown";
/// The key of the question how several matrices are joined in one, and its answers.
inline constexpr std::string_view kJoinedQuestion = "joined", kJoinedInParts = "parts",
                                  kJoinedInTurn = "turns";
/// The keys of questions on stacked experts.
inline constexpr std::string_view kStackQuestion = "stack", kGateUpQuestion = "gate_up";

/// A family made for a model.
struct LearnedFamily {
  std::string yaml;
  /// The rows that only copy, where the largest tensors are among them: a line that says which, and
  /// their share of the bytes; else empty.
  std::string share = {};
  std::vector<FamilyQuestion> questions = {};  ///< questions without an answer
  std::vector<std::string> faults = {};        ///< findings of faults_of()
  std::vector<const Family*> nearest = {};     ///< families with such rows, the nearest first
  std::size_t n_answers = 0;                   ///< answers that were taken
  bool has_stacks = false;                     ///< true: it has stacks of experts

  [[nodiscard]] bool is_proven() const { return questions.empty() && faults.empty(); }
};

/// A family for these weights: a row for each kind of name, as the families have it that know such
/// names with such shapes, else by the usual spellings; its layers by where it occurs. Every line
/// ends with a comment, its reason; that of a guess begins with `guessed`. The family is called as
/// the model type, with `_` in place of characters that no name of a family has. Towers, lookup
/// tables, and names of other characters than those of families, get no rows. A row that
/// parse_family() would refuse with the others becomes a comment with the reason. kInvalidArgument
/// for an answer to no question.
LearnedFamily learn_family(const ModelConfig& config, std::span<const UnknownWeight> weights,
                           const FamilyEvidence& evidence = {});

}  // namespace ingot::formats
