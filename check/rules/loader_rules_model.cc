#include <algorithm>
#include <charconv>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include "check/rules/loader_rule_bodies.h"
#include "formats/checkpoint/part_names.h"
#include "formats/container/safetensors.h"
#include "formats/records/rank_holdings.h"

namespace ingot::formats::rule_bodies {
namespace {

constexpr std::size_t kNamesShown = 8;

// Why a promised tensor is missed; each has its own row.
enum class Gap : std::uint8_t { kMtpLayer, kMtpTensor, kIndexer, kCorrectionBias, kExpert, kOther };

bool is_indexer(Role role) {
  switch (role) {
    case Role::kIndexerQ:
    case Role::kIndexerK:
    case Role::kIndexerKNorm:
    case Role::kIndexerWeights:
      return true;
    default:
      return false;
  }
}

bool is_stacked(Role role) {
  return role == Role::kExpertsGateUp || role == Role::kExpertsDown;
}

// What is here, by name and by layer.
struct Present {
  std::unordered_set<std::string> names;   // of weights, whatever their codes are called
  std::set<std::uint32_t> layers;          // with at least one tensor
  std::set<std::uint32_t> stacked_layers;  // with experts in one tensor
};

// `X.weight` for the codes `X.weight_packed`.
std::string weight_name(std::string_view stored) {
  for (const std::string_view suffix : packed_suffixes()) {
    if (!stored.ends_with(suffix)) continue;
    return fmt::format("{}.weight", stored.substr(0, stored.size() - suffix.size()));
  }
  return std::string(stored);
}

Present list_present(const Checkpoint& checkpoint) {
  Present present;
  // A tensor that could not be understood (no scale, say) is still not missing.
  const NameGrammar grammar(checkpoint.family(), checkpoint.config());
  for (const StoredTensor& tensor : checkpoint.stored()) {
    std::string name = weight_name(tensor.name);
    const auto match = grammar.match(name);
    present.names.insert(std::move(name));
    if (match && match->layer) {
      present.layers.insert(*match->layer);
    }
  }
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    present.names.insert(tensor.name);
    if (!tensor.layer) continue;
    present.layers.insert(*tensor.layer);
    if (tensor.rule != nullptr && is_stacked(tensor.rule->role)) {
      present.stacked_layers.insert(*tensor.layer);
    }
  }
  return present;
}

Gap gap_of(const ExpectedTensor& tensor, const ModelConfig& config, const Present& present) {
  if (tensor.layer && *tensor.layer >= config.num_hidden_layers) {
    return present.layers.contains(*tensor.layer) ? Gap::kMtpTensor : Gap::kMtpLayer;
  }
  if (is_indexer(tensor.rule->role)) return Gap::kIndexer;
  if (tensor.rule->role == Role::kRouterBias) return Gap::kCorrectionBias;
  if (is_routed_expert(tensor.rule->role)) return Gap::kExpert;
  return Gap::kOther;
}

std::vector<std::string> missing_names(const Checkpoint& checkpoint, Gap gap) {
  std::vector<std::string> missing;
  const ModelConfig& config = checkpoint.config();
  const Present present = list_present(checkpoint);
  std::optional<RankHoldings> holdings;
  if (const SlicingRecord* slicing = checkpoint.slicing()) holdings.emplace(*slicing, config);
  const auto visit = [&](const ExpectedTensor& tensor, bool stacked) {
    if (holdings && holdings->of(*tensor.rule, tensor.layer, tensor.expert) != Holding::kPromised)
      return;
    const bool in_stacked_layer = tensor.layer && present.stacked_layers.contains(*tensor.layer);
    const bool wanted =
        is_routed_expert(tensor.rule->role) ? in_stacked_layer == stacked : !stacked;
    if (!wanted || present.names.contains(tensor.name)) return;
    if (checkpoint.may_have_lost(tensor.name)) return;
    if (gap_of(tensor, config, present) == gap) missing.push_back(tensor.name);
  };
  for (const bool stacked : {false, true}) {
    if (stacked && present.stacked_layers.empty()) break;
    for_each_expected(checkpoint.family(), config, stacked,
                      [&](const ExpectedTensor& tensor) { visit(tensor, stacked); });
  }
  return missing;
}

std::string list_text(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kNamesShown; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", names[i]);
  }
  if (names.size() > kNamesShown) text += fmt::format(" and {} more", names.size() - kNamesShown);
  return text;
}

void report_missing(const Checkpoint& checkpoint, Gap gap, const char* remedy,
                    const Report& report) {
  // Without any weights there is nothing to compare the promises with.
  if (checkpoint.stored().empty()) return;
  const std::vector<std::string> missing = missing_names(checkpoint, gap);
  if (missing.empty()) return;
  report(violation(ErrorCode::kMissingTensor, "", missing.front(),
                   fmt::format("{} promised by config.json missing: {}{}",
                               missing.size() == 1 ? std::string("1 tensor is")
                                                   : fmt::format("{} tensors are", missing.size()),
                               list_text(missing), remedy)));
}

// The number in `...experts.17...`, if there is one.
std::optional<std::uint64_t> expert_number(std::string_view name) {
  constexpr std::string_view kMarker = ".experts.";
  const std::size_t marker = name.find(kMarker);
  if (marker == std::string_view::npos) return std::nullopt;
  const char* begin = name.data() + marker + kMarker.size();
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), number);
  if (error != std::errc() || end == begin) return std::nullopt;
  return number;
}

Finding at_weight(const Checkpoint& checkpoint, const LogicalTensor& tensor, ErrorCode code,
                  std::string message) {
  return violation(code, checkpoint.files()[codes_of(checkpoint, tensor).file].name, tensor.name,
                   std::move(message));
}

void report_shapes(const Checkpoint& checkpoint, bool stacked, const Report& report) {
  // Slices have been compared with their records, and those with the config (rank_slices.h).
  if (checkpoint.slicing() != nullptr) return;
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.rule == nullptr || is_stacked(tensor.rule->role) != stacked) continue;
    if (tensor.rule->any_shape) continue;
    const Shape wanted = rule_shape(*tensor.rule, checkpoint.config());
    if (tensor.shape == wanted) continue;
    found.add(tensor.rule, at_weight(checkpoint, tensor, ErrorCode::kShapeMismatch,
                                     fmt::format("has shape {}, config.json promises {}",
                                                 shape_text(tensor.shape), shape_text(wanted))));
  }
  found.report(report);
}

}  // namespace

void metadata_format(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  constexpr std::string_view kRemedy = "write the file again with {\"format\":\"pt\"}";
  for (std::uint32_t i = 0; i < checkpoint.files().size(); ++i) {
    const SourceFile& file = checkpoint.files()[i];
    if (file.data_start == 0) continue;  // no header to be read: the structure has said so
    const SafetensorsHeader header =
        parse_safetensors_header(checkpoint.header_bytes(i), file.n_bytes, file.name);
    const auto format = std::find_if(header.metadata.begin(), header.metadata.end(),
                                     [](const auto& entry) { return entry.first == "format"; });
    if (format == header.metadata.end()) {
      report(violation(ErrorCode::kNotFound, file.name, "",
                       fmt::format("__metadata__ has no format ({})", kRemedy)));
    } else if (const std::string& value = format->second;
               value != "pt" && value != "tf" && value != "flax" && value != "mlx") {
      report(violation(ErrorCode::kUnsupported, file.name, "",
                       fmt::format("__metadata__.format is '{}' ({})", value, kRemedy)));
    }
  }
}

void entry_point(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  constexpr const char* kIndex = "model.safetensors.index.json";
  // An index that cannot be read is there all the same.
  if (checkpoint.has_index() || checkpoint.has_file(kIndex)) return;
  const auto files = checkpoint.files();
  if (files.size() == 1 && files[0].name == "model.safetensors") return;
  report(violation(ErrorCode::kNotFound, kIndex, "",
                   "is missing, and there is no single model.safetensors instead"));
}

void expert_ids(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  report_missing(checkpoint, Gap::kExpert, "", report);
  const std::uint64_t n_experts = checkpoint.config().n_routed_experts;
  if (checkpoint.family().rules.empty()) return;
  std::vector<std::string> extra;
  for (const StoredTensor& tensor : checkpoint.stored()) {
    if (const auto number = expert_number(tensor.name); number && *number >= n_experts) {
      extra.push_back(tensor.name);
    }
  }
  if (extra.empty()) return;
  std::sort(extra.begin(), extra.end());
  report(violation(
      ErrorCode::kUnknownTensor, "", extra.front(),
      fmt::format("experts beyond the {} of config.json: {}", n_experts, list_text(extra))));
}

void stacked_shape(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  report_shapes(checkpoint, true, report);
}

void correction_bias(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  report_missing(checkpoint, Gap::kCorrectionBias, "", report);
}

void correction_bias_dtype(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.rule == nullptr || tensor.rule->role != Role::kRouterBias) continue;
    const DType dtype = codes_of(checkpoint, tensor).dtype;
    if (tensor.rule->synth_dtype != DType::kF32 || dtype == DType::kF32) continue;
    report(at_weight(checkpoint, tensor, ErrorCode::kDtypeMismatch,
                     fmt::format("is {}, loaders keep it in F32", dtype_name(dtype))));
  }
}

void indexer_complete(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  report_missing(checkpoint, Gap::kIndexer, "", report);
}

void mtp_present(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  report_missing(checkpoint, Gap::kMtpLayer, " (set num_nextn_predict_layers to what is here)",
                 report);
}

void mtp_complete(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  report_missing(checkpoint, Gap::kMtpTensor, "", report);
}

void model_complete(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  report_missing(checkpoint, Gap::kOther, "", report);
}

void model_shape(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  report_shapes(checkpoint, false, report);
}

}  // namespace ingot::formats::rule_bodies
