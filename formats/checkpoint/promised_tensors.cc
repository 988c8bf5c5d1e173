#include "formats/checkpoint/promised_tensors.h"

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/words.h"
#include "formats/checkpoint/part_names.h"
#include "formats/checkpoint/passes.h"
#include "formats/family/family_check.h"
#include "formats/records/rank_holdings.h"
#include "formats/text/spelling.h"

namespace ingot::formats {
namespace {

constexpr RoleSet kIndexerOnly = {Role::kIndexerQ, Role::kIndexerK, Role::kIndexerKNorm,
                                  Role::kIndexerWeights};

// The tensors that are here, by name and by layer.
struct Present {
  std::unordered_set<std::string_view> names;  // names of weights, whatever their codes are called
  std::deque<std::string> spelled;             // names of weights that were not recognized
  std::set<std::uint32_t> layers;              // layers with at least one tensor
  std::set<std::uint32_t> stacked_layers;      // layers with experts in one tensor
};

Present list_present(const Checkpoint& checkpoint) {
  Present present;
  const auto stored = checkpoint.stored();
  present.names.reserve(stored.size());
  // Names by which rows know the weights that were understood, and the other parts of these
  // weights.
  std::vector<std::string_view> known(stored.size());
  std::vector<bool> is_part(stored.size());
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    present.names.insert(tensor.name);
    if (!tensor.layer) continue;
    known[tensor.encoding.stored.weight()] = tensor.name;
    tensor.encoding.stored.for_each(
        [&](Part part, std::uint32_t index) { is_part[index] = part != Part::kWeight; });
    present.layers.insert(*tensor.layer);
    if (tensor.rule != nullptr && tensor.rule->presence == Presence::kStacked)
      present.stacked_layers.insert(*tensor.layer);
  }
  // A tensor that could not be understood (no scale, say) is still not missing.
  const NameGrammar grammar(checkpoint.family(), checkpoint.config());
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (is_part[i]) continue;
    std::string name = weight_name(stored[i]);
    if (name == known[i]) continue;
    const auto match = grammar.match(name);
    present.names.insert(present.spelled.emplace_back(std::move(name)));
    if (match && match->layer) present.layers.insert(*match->layer);
  }
  return present;
}

Gap gap_of(const ExpectedTensor& tensor, const ModelConfig& config, const Present& present) {
  if (tensor.layer && *tensor.layer >= config.num_hidden_layers) {
    return present.layers.contains(*tensor.layer) ? Gap::kMtpTensor : Gap::kMtpLayer;
  }
  if (kIndexerOnly.has(tensor.rule->role)) return Gap::kIndexer;
  if (tensor.rule->role == Role::kRouterBias) return Gap::kCorrectionBias;
  if (is_of_routed_expert(tensor.rule->role)) return Gap::kExpert;
  return Gap::kOther;
}

}  // namespace

MissingTensors::MissingTensors(const Checkpoint& checkpoint) {
  // Without any weights the promises cannot be compared.
  if (checkpoint.stored().empty()) return;
  const ModelConfig& config = checkpoint.config();
  const Present present = list_present(checkpoint);
  uneven_ = uneven_experts(checkpoint.family(), config, checkpoint.stored());
  std::optional<RankHoldings> holdings;
  if (const SlicingRecord* slicing = checkpoint.slicing()) holdings.emplace(*slicing, config);
  const auto visit = [&](const ExpectedTensor& tensor, bool stacked) {
    if (holdings && holdings->of(*tensor.rule, tensor.layer, tensor.expert) != Holding::kPromised)
      return;
    const bool is_of_expert = is_of_routed_expert(tensor.rule->role);
    if (is_of_expert && tensor.layer && uneven_.contains(*tensor.layer)) return;
    const bool in_stacked_layer = tensor.layer && present.stacked_layers.contains(*tensor.layer);
    const bool wanted = is_of_expert ? in_stacked_layer == stacked : !stacked;
    if (!wanted || present.names.contains(tensor.name)) return;
    if (checkpoint.may_have_lost(tensor.name)) return;
    names_[gap_of(tensor, config, present)].push_back(tensor.name);
  };
  for (const bool stacked : {false, true}) {
    if (stacked && present.stacked_layers.empty()) break;
    for_each_expected(checkpoint.family(), config, stacked,
                      [&](const ExpectedTensor& tensor) { visit(tensor, stacked); });
  }
}

std::span<const std::string> MissingTensors::of(Gap gap) const {
  const auto names = names_.find(gap);
  return names == names_.end() ? std::span<const std::string>() : names->second;
}

namespace {

constexpr std::size_t kShownUnknown = 20;
constexpr std::size_t kShownMissing = 3;
// A matrix with this part of the bytes is a weight that a conversion was meant for.
constexpr std::uint64_t kDecisivePart = 100;

std::uint64_t bytes_of(const Checkpoint& checkpoint, const LogicalTensor& tensor) {
  std::uint64_t n_bytes = 0;
  tensor.encoding.stored.for_each(
      [&](Part, std::uint32_t i) { n_bytes += checkpoint.stored()[i].n_bytes; });
  return n_bytes;
}

std::uint64_t all_bytes(const Checkpoint& checkpoint) {
  std::uint64_t n_bytes = 0;
  for (const StoredTensor& tensor : checkpoint.stored()) n_bytes += tensor.n_bytes;
  return n_bytes;
}

std::string share_text(std::uint64_t n_bytes, std::uint64_t of) {
  return fmt::format(
      "{:.2f}% of the bytes",
      of == 0 ? 0.0 : 100.0 * static_cast<double>(n_bytes) / static_cast<double>(of));
}

bool ends_as_a_scale(const std::string& name) {
  return std::ranges::any_of(part_namings(), [&](const PartNaming& naming) {
    // `X_scale` may be a parameter; without a stack X it is one.
    return (naming.is_distinct || !naming.is_stacked) && name.ends_with(naming.suffix);
  });
}

/// The layers whose weights are here: for biases that no row has.
class SpareBiases {
 public:
  explicit SpareBiases(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
    for (const LogicalTensor& tensor : checkpoint.tensors()) {
      if (tensor.rule != nullptr && tensor.shape.size() == 2) weights_.insert(tensor.name);
    }
  }

  /// True if the tensor is the bias of a linear layer that a row of the family has. GPTQ's tools
  /// have written one for every layer; loaders leave out those that a model has no place for.
  [[nodiscard]] bool is_bias(const LogicalTensor& tensor) const {
    constexpr std::string_view kBias = ".bias";
    const std::string_view name = tensor.name;
    return name.ends_with(kBias) && tensor.shape.size() == 1 &&
           weights_.contains(std::string(name.substr(0, name.size() - kBias.size())) + ".weight");
  }

  /// True if all numbers of the tensor are zeros, of either sign, or cannot be read here.
  [[nodiscard]] bool is_zero(const LogicalTensor& tensor) const {
    const std::uint32_t index = tensor.encoding.stored.weight();
    const StoredTensor& stored = checkpoint_.stored()[index];
    if (!checkpoint_.has_data(stored.file) || stored.n_bytes > kMaxBiasBytes) return true;
    const std::size_t width = dtype_bits(stored.dtype) / 8;
    std::vector<std::byte> bytes(stored.n_bytes);
    checkpoint_.read(index, 0, bytes);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const bool has_sign = (i + 1) % width == 0;
      if ((bytes[i] & (has_sign ? std::byte{0x7F} : std::byte{0xFF})) != std::byte{0}) return false;
    }
    return true;
  }

 private:
  static constexpr std::uint64_t kMaxBiasBytes = std::uint64_t{1} << 24;

  const Checkpoint& checkpoint_;
  std::unordered_set<std::string> weights_;
};

/// The names of tensors that a family may have and need not, by the row's pattern.
class Misspellings {
 public:
  explicit Misspellings(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint), grammar_(checkpoint.family(), checkpoint.config()) {
    for (const TensorRule& rule : checkpoint.family().rules) patterns_.push_back(rule.pattern);
    for (const LogicalTensor& tensor : checkpoint.tensors()) {
      names_.insert(tensor.name);
      if (tensor.encoding.stored.has(Part::kScale)) quantized_.insert(tensor.name);
    }
    for (const StoredTensor& stored : checkpoint.stored()) names_.insert(stored.name);
    for (const PartNaming& naming : part_namings()) {
      if (naming.suffix.front() == '.') parts_.push_back(std::string_view(naming.suffix).substr(1));
    }
  }

  /// True if a row has the name in another place.
  [[nodiscard]] bool is_misplaced(const std::string& name) const { return grammar_.knows(name); }

  /// The name that is meant and that is not here; empty where there is none. A tensor that is
  /// promised is missed anyway.
  [[nodiscard]] std::string meant(const std::string& name) const {
    if (std::string part = meant_part(name); !part.empty()) return part;
    const std::string pattern = grammar_.pattern_of(name);
    const std::vector<std::string_view> words = name_words(pattern);
    for (const std::string_view other : patterns_) {
      const std::vector<std::string_view> others = name_words(other);
      if (others.size() != words.size()) continue;
      const auto [mine, theirs] = std::ranges::mismatch(words, others);
      if (mine == words.end() || !std::equal(mine + 1, words.end(), theirs + 1)) continue;
      const std::array<std::string_view, 1> choice = {*theirs};
      // `g_proj` is no `q_proj`: people rarely mistype the first letter.
      if (mine->front() != theirs->front() || nearest_word(*mine, choice).empty()) continue;
      // Counted from the end: names may have a prefix more.
      std::string likely = replaced(name, static_cast<std::size_t>(words.end() - mine), *theirs);
      if (!names_.contains(likely)) return likely;
    }
    return {};
  }

 private:
  /// The meant name of a scale or another part that a quantized weight may have; else empty.
  [[nodiscard]] std::string meant_part(const std::string& name) const {
    const std::size_t dot = name.rfind('.');
    if (dot == std::string::npos || !quantized_.contains(name.substr(0, dot) + ".weight"))
      return {};
    const std::string_view word = nearest_word(std::string_view(name).substr(dot + 1), parts_);
    if (word.empty() || word.front() != name[dot + 1]) return {};
    std::string likely = fmt::format("{}.{}", name.substr(0, dot), word);
    return names_.contains(likely) ? std::string() : likely;
  }

  static std::string replaced(const std::string& name, std::size_t from_end,
                              std::string_view word) {
    std::vector<std::string_view> words = name_words(name);
    words[words.size() - from_end] = word;
    return fmt::format("{}", fmt::join(words, "."));
  }

  const Checkpoint& checkpoint_;
  NameGrammar grammar_;
  std::vector<std::string_view> patterns_, parts_;
  std::unordered_set<std::string> names_, quantized_;
};

std::string missing_text(const Checkpoint& checkpoint) {
  const MissingTensors missing(checkpoint);
  std::vector<std::string> names;
  std::size_t n = 0;
  for (int gap = 0; gap <= static_cast<int>(Gap::kOther); ++gap) {
    const auto of_gap = missing.of(static_cast<Gap>(gap));
    n += of_gap.size();
    for (const std::string& name : of_gap) {
      if (names.size() < kShownMissing) names.push_back(name);
    }
  }
  if (n == 0) return {};
  return fmt::format("; {} that config.json promises {} not here: {}{}", n, n == 1 ? "is" : "are",
                     fmt::join(names, ", "), n > names.size() ? ", ..." : "");
}

std::string lines_text(const std::vector<std::string>& lines) {
  std::string text;
  for (std::size_t i = 0; i < lines.size() && i < kShownUnknown; ++i) text += "\n  " + lines[i];
  if (lines.size() > kShownUnknown)
    text += fmt::format("\n  ... and {} more", lines.size() - kShownUnknown);
  return text;
}

std::string line_of(const Checkpoint& checkpoint, const LogicalTensor& tensor,
                    const std::string& reason) {
  const StoredTensor& weight = checkpoint.stored()[tensor.encoding.stored.weight()];
  return fmt::format("{}: {}{}", checkpoint.files()[weight.file].name, tensor.name,
                     reason.empty() ? "" : fmt::format(" ({})", reason));
}

/// The name with `*` in place of numbers: a pattern of --allow.
std::string kind_of_name(std::string_view name) {
  std::vector<std::string_view> words = name_words(name);
  for (std::string_view& word : words) {
    if (number_from(word)) word = "*";
  }
  return fmt::format("{}", fmt::join(words, "."));
}

/// True if a tensor may be a weight matrix: not a buffer of masks (BOOL) or positions (I64).
bool may_be_matrix(const Checkpoint& checkpoint, const LogicalTensor& tensor) {
  const DType dtype = checkpoint.stored()[tensor.encoding.stored.weight()].dtype;
  return tensor.shape.size() >= 2 && dtype != DType::kBool && dtype != DType::kI64;
}

std::vector<std::string> remarks_on(const Checkpoint& checkpoint,
                                    std::span<const LogicalTensor* const> taken) {
  struct Kind {
    std::size_t n = 0;
    std::uint64_t n_bytes = 0;
    std::string first;
    bool is_zero_bias = true;
  };
  std::map<std::string, Kind> kinds;
  if (taken.empty()) return {};
  const SpareBiases biases(checkpoint);
  for (const LogicalTensor* tensor : taken) {
    Kind& kind = kinds[kind_of_name(tensor->name)];
    if (kind.n++ == 0) kind.first = tensor->name;
    kind.is_zero_bias = kind.is_zero_bias && biases.is_bias(*tensor) && biases.is_zero(*tensor);
    kind.n_bytes += bytes_of(checkpoint, *tensor);
  }
  std::vector<std::string> remarks;
  const std::uint64_t all = kinds.empty() ? 0 : all_bytes(checkpoint);
  for (const auto& [pattern, kind] : kinds) {
    if (kind.is_zero_bias) {
      remarks.push_back(fmt::format(
          "{}: {} {} of zeros that no row of family {} has: loaders leave {} out, and conversions "
          "copy {}",
          kind.n == 1 ? kind.first : pattern, kind.n, kind.n == 1 ? "bias" : "biases",
          checkpoint.family().name, kind.n == 1 ? "it" : "them", kind.n == 1 ? "it" : "them"));
      continue;
    }
    remarks.push_back(
        fmt::format("{}: {} {} that no row of family {} has (role unknown, {}): conversions copy "
                    "{}, and loaders may refuse {}",
                    kind.n == 1 ? kind.first : pattern, kind.n, kind.n == 1 ? "tensor" : "tensors",
                    checkpoint.family().name, share_text(kind.n_bytes, all),
                    kind.n == 1 ? "it" : "them", kind.n == 1 ? "it" : "them"));
  }
  return remarks;
}

/// Returns a line for each tensor that may be a misspelt weight; adds the others to `taken`.
std::vector<std::string> doubtful_lines(const Checkpoint& checkpoint,
                                        std::span<const LogicalTensor* const> unknown,
                                        bool all_are_doubtful,
                                        std::vector<const LogicalTensor*>& taken) {
  const Misspellings misspellings(checkpoint);
  const SpareBiases biases(checkpoint);
  std::vector<std::string> lines;
  for (const LogicalTensor* tensor : unknown) {
    std::string reason;
    const bool is_bias = biases.is_bias(*tensor);
    if (is_bias && biases.is_zero(*tensor)) {
      taken.push_back(tensor);
      continue;
    }
    if (is_bias && misspellings.is_misplaced(tensor->name)) {
      reason = "a bias that is not zero, which config.json does not promise: loaders leave it out";
    } else if (misspellings.is_misplaced(tensor->name)) {
      reason = "the family has it elsewhere, and config.json not here";
    } else if (ends_as_a_scale(tensor->name)) {
      reason = "a scale without a weight";
    } else if (const std::string meant = misspellings.meant(tensor->name); !meant.empty()) {
      reason = fmt::format("misspelt {}", meant);
    } else if (!all_are_doubtful) {
      taken.push_back(tensor);
      continue;
    }
    lines.push_back(line_of(checkpoint, *tensor, reason));
  }
  return lines;
}

}  // namespace

void judge_unknown(const Checkpoint& opened, Draft& draft) {
  const std::vector<Pattern>* allowed = draft.options.allow_unknown;
  std::vector<const LogicalTensor*> unknown, taken;
  for (const LogicalTensor& tensor : draft.tensors) {
    if (tensor.is_unknown) (matches_any(allowed, tensor.name) ? taken : unknown).push_back(&tensor);
  }
  std::optional<std::string> fault;
  if (!unknown.empty()) {
    const std::string missing = missing_text(opened);
    const std::vector<std::string> lines =
        doubtful_lines(opened, unknown, !missing.empty() || !draft.cuts_are_known, taken);
    if (!lines.empty()) {
      fault = fmt::format(
          "{} tensor(s) that family {} does not have, and that may be misspelt{} ({}--family "
          "generic takes any name){}",
          lines.size(), draft.family->name, missing,
          allowed != nullptr ? "--allow unknown-tensor=PATTERN copies them untouched, " : "",
          lines_text(lines));
    }
  }
  std::ranges::move(remarks_on(opened, taken), std::back_inserter(draft.remarks));
  if (!fault) return;
  Error error(ErrorCode::kUnknownTensor, std::move(*fault));
  if (draft.options.unknown_as_generic) {
    draft.remarks.push_back(error.message());
  } else {
    draft.faults.add(std::move(error));
  }
}

void refuse_unknown_weights(const Checkpoint& checkpoint,
                            const std::function<bool(const LogicalTensor&)>& is_decided,
                            ErrorList& faults) {
  struct Kind {
    const LogicalTensor* first = nullptr;
    std::size_t n = 0;
    std::uint64_t n_bytes = 0;
  };
  std::map<std::string, Kind> kinds;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (!tensor.is_unknown || is_decided(tensor)) continue;
    if (!is_quantized(tensor) && !may_be_matrix(checkpoint, tensor)) continue;
    Kind& kind = kinds[kind_of_name(tensor.name)];
    if (kind.n++ == 0 || is_quantized(tensor)) kind.first = &tensor;
    kind.n_bytes += bytes_of(checkpoint, tensor);
  }
  const std::uint64_t all = kinds.empty() ? 0 : all_bytes(checkpoint);
  for (const auto& [pattern, kind] : kinds) {
    const bool has_scales = is_quantized(*kind.first);
    if (!has_scales && kind.n_bytes * kDecisivePart < all) continue;
    const bool is_one = kind.n == 1;
    faults.add(
        Error(ErrorCode::kUnknownTensor,
              "no row of family {} has {}, and --to may be meant for {}: {} (--rule 'NAME=SCHEME' "
              "decides about a tensor, --allow unknown-tensor={} copies {})",
              checkpoint.family().name,
              is_one ? "it" : fmt::format("it and {} more of {}", kind.n - 1, pattern),
              is_one ? "it" : "them",
              has_scales ? (is_one ? "it is quantized" : "they are quantized")
                         : fmt::format("{} {}", is_one ? "it has" : "they have",
                                       share_text(kind.n_bytes, all)),
              is_one ? "NAME" : pattern, is_one ? "it" : "them")
            .in_file(
                checkpoint.files()[checkpoint.stored()[kind.first->encoding.stored.weight()].file]
                    .name)
            .in_tensor(kind.first->name));
  }
}

std::uint64_t count_unknown(const TensorSource& source) {
  return static_cast<std::uint64_t>(
      std::ranges::count(source.tensors(), true, &LogicalTensor::is_unknown));
}

}  // namespace ingot::formats
