#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "check/rules/loader_rules.h"
#include "engines/limits.h"
#include "engines/modules/modules.h"
#include "formats/base/error.h"
#include "formats/checkpoint/promised_tensors.h"
#include "formats/config/config_meaning.h"
#include "formats/json/json.h"
#include "formats/modules/joined_module.h"
#include "formats/storage/encoding.h"
#include "formats/text/spelling.h"

// The input of the tests behind the rows of loader_rules.h, and the tables of those rows, each in
// the file of its tests. Internal to this folder.

namespace ingot::check {

// Names that rules use without their namespace.
using engines::EngineLimitsMet;
using engines::facts_of;
using engines::has_e4m3_codes;
using engines::has_int4_codes;
using engines::has_int8_codes;
using engines::LinearModule;
using formats::Activations;
using formats::Checkpoint;
using formats::config_text;
using formats::DType;
using formats::dtype_name;
using formats::find_storage;
using formats::Gap;
using formats::is_read_only;
using formats::Json;
using formats::json_member;
using formats::LogicalTensor;
using formats::Part;
using formats::PartRow;
using formats::QuantizationConfig;
using formats::Role;
using formats::scheme_facts;
using formats::SchemeFacts;
using formats::SchemeId;
using formats::Shape;
using formats::StorageRow;
using formats::StoredTensor;
using formats::strings_at;
using formats::TensorRule;
using formats::text_at;
using enum ErrorCode;
using enum Severity;

/// Numbers of a tensor that are not as they should be; tensors are read in bounded pieces, many at
/// once.
struct OddValues {
  std::uint64_t n = 0;      ///< odd elements
  std::uint64_t total = 0;  ///< all elements
  std::uint64_t first = 0;  ///< element of the first
  float value = 0;          ///< the first
};

/// Looks at a run of a tensor's bytes that cuts no number; elements are counted from its beginning.
using Look = std::function<OddValues(const formats::StoredTensor&, std::span<const std::byte>)>;

/// How a search reads.
struct OddSearch {
  const formats::Checkpoint& checkpoint;
  std::size_t threads = 1;
};

/// The tensors in which something is odd, in their order. Their data must be here.
std::vector<std::pair<const formats::StoredTensor*, OddValues>> find_odd(
    const OddSearch& search, std::span<const formats::StoredTensor* const> tensors,
    const Look& look);

/// Finds scales for which `is_odd` holds. Tensors that cannot be read as scales, by their dtype or
/// because their data are not here, are left out.
std::vector<std::pair<const formats::StoredTensor*, OddValues>> find_odd_scales(
    const OddSearch& search, std::span<const formats::StoredTensor* const> scales,
    bool (*is_odd)(float));

/// The first number of a stored scale; nullopt when there is none to be read.
std::optional<float> first_scale(const formats::Checkpoint& checkpoint,
                                 const formats::StoredTensor& tensor);

/// Not finite or not above zero.
bool is_bad_scale(float scale);

/// The facts about tokenizer.json that need no tree of its 100,000 entries.
struct Vocabulary {
  std::optional<Error> fault;  ///< reason why it cannot be read
  bool has_model = false, has_entries = false;
  std::vector<std::uint64_t> added_ids;  ///< ids in `added_tokens`
};

/// Reads a tokenizer.json of at most 256 MiB. `bare` names it in the fault.
Vocabulary read_vocabulary(const std::filesystem::path& path, std::string_view bare);

/// Facts of one checkpoint that several rules need. Those behind functions take a pass over all
/// weights each, and are found when a rule first asks.
class RuleFacts : public engines::EngineInput {
 public:
  /// `ranks`: ranks for which tensor parallelism cuts the weights. The checkpoint must outlive
  /// this.
  RuleFacts(const Checkpoint& checkpoint, std::uint64_t ranks);

  /// The limits of engines that the weights meet.
  [[nodiscard]] const EngineLimitsMet& engine_limits() const;
  /// The tensors that the config promises and that are not here.
  [[nodiscard]] const formats::MissingTensors& missing() const;
  /// Its tokenizer.json, which must be there.
  [[nodiscard]] const Vocabulary& vocabulary() const;

  /// Tensors that a rule would have read, and that are larger than the most that is read.
  mutable std::set<const StoredTensor*> unread;

 private:
  const Checkpoint& checkpoint_;
  std::uint64_t ranks_;
  mutable std::optional<EngineLimitsMet> engine_limits_;
  mutable std::optional<formats::MissingTensors> missing_;
  mutable std::optional<Vocabulary> vocabulary_;
};

struct RuleInput {
  const LoaderRule& row;
  const Checkpoint& checkpoint;
  const RuleOptions& options;
  const RuleFacts& facts;
  Findings& findings;

  [[nodiscard]] const formats::Dialect& dialect() const { return checkpoint.dialect(); }
  [[nodiscard]] const formats::ModelConfig& config() const { return checkpoint.config(); }
  [[nodiscard]] std::span<const LogicalTensor> weights() const { return checkpoint.tensors(); }
  /// The part of config.json about quantization, or null.
  [[nodiscard]] const QuantizationConfig* said() const {
    return config().quantization ? &*config().quantization : nullptr;
  }
  /// This part as JSON: an object, or null.
  [[nodiscard]] const Json& block() const {
    return facts.quantization != nullptr ? *facts.quantization : json_member(nullptr, "");
  }
  /// The stored tensor that holds the codes or the plain numbers of a weight.
  [[nodiscard]] const StoredTensor& codes_of(const LogicalTensor& tensor) const {
    return checkpoint.stored()[tensor.encoding.stored.weight()];
  }
  /// The stored tensor of one part, or null.
  [[nodiscard]] const StoredTensor* part_of(const LogicalTensor& tensor, Part part) const;
  /// The stored tensors of these parts of the weights that the row is about.
  [[nodiscard]] std::vector<const StoredTensor*> parts_of_weights(
      std::initializer_list<Part> parts) const;
  /// True if the row is about weights of this scheme.
  [[nodiscard]] bool is_about(SchemeId scheme) const {
    return row.schemes == nullptr || row.schemes(scheme_facts(scheme));
  }

  [[nodiscard]] OddSearch search() const {
    return {.checkpoint = checkpoint, .threads = options.threads};
  }

  /// True if a tensor's data are here, and no more than are to be read; notes those that are more.
  [[nodiscard]] bool may_read(const StoredTensor& tensor) const;
  /// The first number of a scale; nullopt where there is none to be read.
  [[nodiscard]] std::optional<float> first_number(const StoredTensor& scale) const {
    return may_read(scale) ? first_scale(checkpoint, scale) : std::nullopt;
  }
  /// find_odd_scales() of the scales that may be read.
  [[nodiscard]] std::vector<std::pair<const StoredTensor*, OddValues>> odd_scales(
      std::span<const StoredTensor* const> scales, bool (*is_odd)(float)) const {
    std::vector<const StoredTensor*> readable;
    for (const StoredTensor* scale : scales) {
      if (may_read(*scale)) readable.push_back(scale);
    }
    return find_odd_scales(search(), readable, is_odd);
  }

  // Messages are what fmt makes of `text` and the arguments behind it.
  void report(Finding finding) const { findings.add(std::move(finding)); }
  template <typename... Args>
  void report_file(std::string_view file, ErrorCode code, fmt::format_string<Args...> text,
                   Args&&... args) const {
    report(violation(code, file, "", fmt::format(text, std::forward<Args>(args)...)));
  }
  template <typename... Args>
  void report_config(ErrorCode code, fmt::format_string<Args...> text, Args&&... args) const {
    report_file("config.json", code, text, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void report_at(const StoredTensor& tensor, ErrorCode code, fmt::format_string<Args...> text,
                 Args&&... args) const {
    report(violation_at(tensor, code, fmt::format(text, std::forward<Args>(args)...)));
  }
  /// A finding for each tensor in which something is odd, with what `tell` says of it.
  template <typename Tell>
  void report_odd(const std::vector<std::pair<const StoredTensor*, OddValues>>& found,
                  ErrorCode code, const Tell& tell) const {
    for (const auto& [tensor, odd] : found) report(violation_at(*tensor, code, tell(odd)));
  }
  /// One finding for all weights of this kind, at the first one's codes or at another of its parts.
  template <typename... Args>
  void report_kind(const LogicalTensor& tensor, ErrorCode code, fmt::format_string<Args...> text,
                   Args&&... args) const {
    report_kind(tensor, codes_of(tensor), code, text, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void report_kind(const LogicalTensor& tensor, const StoredTensor& part, ErrorCode code,
                   fmt::format_string<Args...> text, Args&&... args) const {
    findings.add(violation_at(part, code, fmt::format(text, std::forward<Args>(args)...)),
                 tensor.rule);
  }
  /// A violation at a tensor of the files; `as` is another name for it.
  [[nodiscard]] Finding violation_at(const StoredTensor& tensor, ErrorCode code,
                                     std::string message, std::string_view as = {}) const {
    return violation(code, checkpoint.files()[tensor.file].name, as.empty() ? tensor.name : as,
                     std::move(message));
  }
};

/// True if weights may be quantized of which no rule here knows codes, while config.json speaks of
/// all: on other ranks of a sliced checkpoint, or in schemes that are only read. No rule is about
/// the latter but the one that names them.
bool may_hide_codes(const Checkpoint& checkpoint);

/// True if no tensor has codes, and none is elsewhere: what the config says of modules is said of
/// none then. config_rules.cc.
bool has_no_codes(const Checkpoint& checkpoint);

/// A weight that engines never build quantized is; a rule of each dialect. engine_rules.cc.
void plain_module(const RuleInput& input, const LogicalTensor& tensor);
/// The lists of a config, as one engine or several read them, say of modules what is stored: under
/// the names that an engine gives them for speculative decoding; of plain ones in DeepSeek's FP8;
/// of those whose size of blocks SGLang looks for; of the head; of quantized ones. belief_rules.cc.
template <engines::Engine engine>
void draft_names(const RuleInput& input);
void silent_module(const RuleInput& input);
void block_target(const RuleInput& input);
void head_listed(const RuleInput& input);
void ignored_quantized(const RuleInput& input);
/// Scales have the dimensions that the dialect gives them; the same. part_rules.cc.
void part_shapes(const RuleInput& input, const LogicalTensor& tensor);
/// A quantized cache of keys and values has its scales stored; the same. cache_scale_rules.cc.
void cache_scales(const RuleInput& input);

/// Calls visit(first, its, tensor, own) for the weights that loaders fuse with an earlier one and
/// whose value is another than that one's. Weights for which `value_of` is nullopt are left out.
template <typename ValueOf, typename Visit>
void for_each_torn(const RuleInput& input, formats::ExpertJoin experts, const ValueOf& value_of,
                   const Visit& visit) {
  using Value = typename std::invoke_result_t<ValueOf, const LogicalTensor&>::value_type;
  std::unordered_map<std::string, std::pair<const LogicalTensor*, Value>> first_of;
  for (const LogicalTensor& tensor : input.weights()) {
    const std::optional<Value> own = value_of(tensor);
    const std::string module =
        own ? formats::joined_module(tensor.name, tensor.rule, experts) : std::string();
    if (module.empty()) continue;
    const auto& [first, its] = first_of.try_emplace(module, &tensor, *own).first->second;
    if (its != *own) visit(*first, its, tensor, *own);
  }
}

/// The test of rows about parts and shapes of weights: opening a checkpoint tells of these faults,
/// before any rule is asked.
inline constexpr void (*kByStructure)(const RuleInput&) = nullptr;
// For the last columns of a row.
inline constexpr bool (*kAnyScheme)(const SchemeFacts&) = nullptr;
inline constexpr bool kReadsValues = true;
inline constexpr bool kIsAllowable = true;
inline constexpr bool kIsSilent = true;

using RuleTable = std::span<const LoaderRule>;
extern const RuleTable kConfigRules, kStartupRules, kCacheScaleRules, kDeepseekRules, kPartRules,
    kCompressedTensorsRules, kModeloptRules, kModelslimRules, kEngineRules, kModelRules;

}  // namespace ingot::check
