#include "shard/cut/slicing.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/checked.h"
#include "formats/family/cache_scales.h"
#include "formats/text/spelling.h"

namespace ingot::shard {

using formats::Cut;
using formats::LogicalTensor;
using formats::ModelConfig;
using formats::Role;
using formats::TensorRule;

namespace {

constexpr std::array<std::string_view, 4> kFits = {"refuse", "retile", "pad", "bf16"};
constexpr std::array<std::string_view, 2> kSharedExperts = {"tp", "replicated"};

/// Facts about a kind of tensor are the same in every layer.
void add_once(ErrorList& faults, Error fault) {
  const auto& known = faults.errors();
  const bool is_known = std::any_of(known.begin(), known.end(), [&](const Error& error) {
    return error.message() == fault.message();
  });
  if (!is_known) faults.add(std::move(fault));
}

using formats::RoleSet;
constexpr RoleSet kHeadRoles = {Role::kQProj, Role::kQbProj, Role::kKvbProj,       Role::kKProj,
                                Role::kVProj, Role::kOProj,  Role::kAttentionGate, Role::kAttentionSinks};
constexpr RoleSet kRecurrentRoles = {Role::kLinearAttentionIn, Role::kLinearAttentionOut};

enum class Kind : std::uint8_t { kReplicated, kHeads, kKvHeads, kRoutedExpert, kShared, kWidth };

/// The kind of tensor, which decides how many ranks cut it, if its row says that it is cut.
Kind kind_of(const TensorRule& rule) {
  if (formats::is_of_routed_expert(rule.role)) return Kind::kRoutedExpert;
  if (formats::kSharedExpertRoles.has(rule.role)) return Kind::kShared;
  if (rule.cut == Cut::kReplicated) return Kind::kReplicated;
  const bool is_of_heads = rule.heads != nullptr || rule.role == Role::kAttentionBias ||
                           kHeadRoles.has(rule.role) || kRecurrentRoles.has(rule.role);
  if (!is_of_heads) return Kind::kWidth;
  // Ranks may have the same keys, but what several put into a sum counts twice.
  return has_kv_heads(rule) && rule.cut != Cut::kRow ? Kind::kKvHeads : Kind::kHeads;
}

/// The side of the tensor that holds the cut dimension of the row: outputs, or inputs. Rows of a
/// stack may be either; a stack of biases has outputs along its columns.
Axis axis_of(const LogicalTensor& tensor) {
  const TensorRule& rule = *tensor.rule;
  if (rule.cut == Cut::kReplicated) return Axis::kNone;
  const bool is_turned =
      tensor.stack == formats::StackOrder::kInputMajor ||
      (formats::is_expert_stack(rule.role) && formats::is_expert_bias(rule.role));
  return (rule.cut == Cut::kRow) == is_turned ? Axis::kRows : Axis::kCols;
}

/// How many ranks cut heads of keys and values, and by which coordinate.
TensorCut kv_heads_cut(std::uint64_t n_heads, std::uint32_t tp, ErrorList& faults) {
  if (n_heads > 0 && n_heads % tp == 0) return {.owner = Owner::kTp, .n = tp};
  if (n_heads > 0 && tp % n_heads == 0)
    return {.owner = Owner::kKvHeads, .n = static_cast<std::uint32_t>(n_heads)};
  add_once(faults, Error(ErrorCode::kInvalidArgument,
                         "{} KV heads can neither be cut nor replicated evenly for --tp {} (choose "
                         "a divisor or a multiple of {})",
                         n_heads, tp, n_heads));
  return {};
}

TensorCut heads_cut(std::uint64_t n_heads, std::string_view what, std::uint32_t tp,
                    ErrorList& faults) {
  if (n_heads > 0 && n_heads % tp == 0) return {.owner = Owner::kTp, .n = tp};
  add_once(faults, Error(ErrorCode::kInvalidArgument,
                         "{} {} cannot be cut for --tp {} (choose a divisor of {})", n_heads, what,
                         tp, n_heads));
  return {};
}

/// The sections of the side that is cut.
formats::Sections sections_of(const LogicalTensor& tensor, const ModelConfig& config, Axis axis,
                              ErrorList& faults) {
  const TensorRule& rule = *tensor.rule;
  const bool has_both = rule.role == Role::kExpertsGateUp || rule.role == Role::kExpertsGateUpBias;
  if (has_both && rule.gate_up == formats::GateUpOrder::kHalves) return formats::Sections::equal(2);
  if (rule.sections.empty() || axis == Axis::kNone) return {};
  std::vector<std::uint64_t> lengths;
  std::uint64_t total = 0;
  for (const formats::Width* width : rule.sections) {
    lengths.push_back(width->size(config, tensor.layer));
    total = checked_add(total, lengths.back()).value_or(0);
  }
  const auto sections = formats::Sections::of_lengths(lengths);
  if (sections && total == tensor.shape[cut_dimension(tensor.shape, axis)]) return *sections;
  faults.add(Error(ErrorCode::kShapeMismatch,
                   "has shape {}, its family's sections have the lengths {} (mend `sections` in "
                   "the family's file)",
                   formats::shape_text(tensor.shape), fmt::join(lengths, ", "))
                 .in_tensor(tensor.name));
  return {};
}

/// The heads of a tensor's layer, as its row counts them, else those of attention.
std::uint64_t heads_of(const LogicalTensor& tensor, const ModelConfig& config, Kind kind) {
  if (tensor.rule->heads != nullptr) return tensor.rule->heads->size(config, tensor.layer);
  static const formats::Width kHeads = formats::Width::parse("num_attention_heads");
  static const formats::Width kKvHeads = formats::Width::parse("num_key_value_heads");
  return (kind == Kind::kKvHeads ? kKvHeads : kHeads).size(config, tensor.layer);
}

/// Owner and number of slices; the axis is the row's.
TensorCut owner_and_count(const LogicalTensor& tensor, const ModelConfig& config,
                          const Slicing& slicing, ErrorList& faults) {
  const TensorRule& rule = *tensor.rule;
  const Topology& topology = slicing.topology;
  const Kind kind = kind_of(rule);
  switch (kind) {
    case Kind::kReplicated:
      return {};
    case Kind::kRoutedExpert:
      return {.owner = Owner::kExpert, .n = topology.etp};
    case Kind::kShared:
      if (slicing.experts.places_shared()) return {.owner = Owner::kExpert, .n = topology.etp};
      if (slicing.shared == SharedExperts::kReplicated) return {};
      return {.owner = Owner::kTp, .n = topology.tp};
    case Kind::kWidth:
      return {.owner = Owner::kTp, .n = topology.tp};
    case Kind::kKvHeads:
      return kv_heads_cut(heads_of(tensor, config, kind), topology.tp, faults);
    case Kind::kHeads:
      return heads_cut(heads_of(tensor, config, kind),
                       rule.heads != nullptr ? rule.heads->text() : "attention heads", topology.tp,
                       faults);
  }
  return {};
}

}  // namespace

std::string_view tp_fit_name(TpFit fit) {
  return kFits[static_cast<std::size_t>(fit)];
}

TpFit parse_tp_fit(std::string_view word) {
  return parse_word<TpFit>("--tp-fit", word, kFits);
}

std::string_view shared_experts_name(SharedExperts shared) {
  return kSharedExperts[static_cast<std::size_t>(shared)];
}

SharedExperts parse_shared_experts(std::string_view word) {
  return parse_word<SharedExperts>("--shared-experts", word, kSharedExperts);
}

std::size_t cut_dimension(const formats::Shape& weight, Axis axis) {
  INGOT_CHECK(!weight.empty() && axis != Axis::kNone);
  if (axis == Axis::kCols || weight.size() == 1) return weight.size() - 1;
  std::size_t dimension = weight.size() - 2;
  while (dimension > 0 && weight[dimension] == 1) --dimension;
  return dimension;
}

std::uint32_t TensorCut::slice_of(const RankPosition& rank, const Topology& topology) const {
  if (n == 1) return 0;
  switch (owner) {
    case Owner::kAll:
      return 0;
    case Owner::kTp:
      return rank.tp_rank;
    case Owner::kKvHeads:
      return rank.tp_rank * n / topology.tp;
    case Owner::kExpert:
      return rank.etp_rank;
  }
  return 0;
}

TensorCut cut_of(const LogicalTensor& tensor, const ModelConfig& config, const Slicing& slicing,
                 ErrorList& faults) {
  if (tensor.rule == nullptr) return {};
  const TensorRule& rule = *tensor.rule;
  if (formats::is_cache_scale(&rule) && slicing.topology.tp > 1 &&
      formats::element_count(tensor.shape) != std::uint64_t{1}) {
    faults.add(
        Error(ErrorCode::kUnsupported,
              "has shape {}: numbers of the key-value cache per head are not cut (leave --tp at 1)",
              formats::shape_text(tensor.shape))
            .in_tensor(tensor.name));
    return {};
  }
  TensorCut cut = owner_and_count(tensor, config, slicing, faults);
  cut.axis = axis_of(tensor);
  if (rule.role == Role::kLookupTable && tensor.shape.size() == 2) {
    // Look-ups take rows apart as well as columns: what ranks do not divide is whole on each.
    const auto is_divided = [&](std::uint64_t side) { return side % cut.n == 0; };
    if (!is_divided(tensor.shape[0])) {
      cut.axis = Axis::kCols;
      if (!is_divided(tensor.shape[1])) cut = {};
    }
  }
  if (cut.n > 1 && cut.axis != Axis::kNone &&
      tensor.shape.size() < (cut.axis == Axis::kCols ? 2U : 1U)) {
    faults.add(Error(ErrorCode::kShapeMismatch,
                     "has shape {}, of which no side is what its family cuts (mend `cut` in the "
                     "family's file)",
                     formats::shape_text(tensor.shape))
                   .in_tensor(tensor.name));
    return {};
  }
  if (cut.n > 1 || is_expert_stack(rule.role))
    cut.sections = sections_of(tensor, config, cut.axis, faults);
  // Biases behind a row-parallel expert are whole in each slice.
  if (formats::is_expert_bias(rule.role) && cut.axis == Axis::kNone) return cut;
  if (cut.n > 1 && cut.axis == Axis::kNone) {
    add_once(faults, Error(ErrorCode::kUnsupported,
                           "this version does not know how the weights of model_type '{}' are cut "
                           "(leave --tp and --etp at 1; --ep and --pp are possible)",
                           config.model_type));
  }
  if (cut.n == 1 || cut.axis == Axis::kNone) {
    cut.n = 1;
    cut.axis = Axis::kNone;
    if (cut.owner != Owner::kExpert) cut.owner = Owner::kAll;
  }
  return cut;
}

void require_one_way(const formats::TensorSource& source, ErrorList& faults) {
  std::map<std::tuple<std::uint32_t, std::uint8_t, bool>, const LogicalTensor*> first;
  for (const LogicalTensor& tensor : source.tensors()) {
    const Role role = role_of(tensor);
    const bool is_recurrent = kRecurrentRoles.has(role);
    if (!tensor.layer || !(is_recurrent || kHeadRoles.has(role))) continue;
    const auto [at, is_new] =
        first.try_emplace({*tensor.layer, tensor.rule->block, is_recurrent}, &tensor);
    const bool is_whole = tensor.rule->cut == Cut::kReplicated;
    if (is_new || is_whole == (at->second->rule->cut == Cut::kReplicated)) continue;
    faults.add(Error(ErrorCode::kUnsupported,
                     "is {} on each rank, and '{}' of the same layer is {} (give the rows of "
                     "family {} one way: `cut: replicated` for all, or for none; or leave --tp "
                     "at 1)",
                     is_whole ? "whole" : "a slice", at->second->name, is_whole ? "a slice" : "whole",
                     source.family().name)
                   .in_tensor(tensor.name));
    return;
  }
}

std::vector<std::uint32_t> stages_of(const LogicalTensor& tensor,
                                     const formats::TensorSource& source, const Slicing& slicing) {
  if (source.family().rules.empty() && !slicing.topology.is_single()) {
    throw Error(ErrorCode::kUnsupported,
                "family {} cannot be cut: nothing is known of its tensors (convert for one rank)",
                source.family().name);
  }
  const Stages& stages = slicing.stages;
  const std::uint32_t last = stages.count() - 1;
  if (last == 0) return {0};
  if (tensor.layer) return {stages.stage_of(*tensor.layer)};
  const Role role = role_of(tensor);
  // Outputs of other modalities replace embeddings.
  if (role == Role::kOtherModality) return {0};
  if (role == Role::kFinalNorm || role == Role::kHead) return {last};
  if (role == Role::kEmbedding) {
    const ModelConfig& config = source.config();
    // MTP layers that config.json promises may be missing, so those that are here count.
    std::set<std::uint32_t> mtp_layers;
    std::size_t n_own = 0;
    for (const LogicalTensor& other : source.tensors()) {
      if (other.layer && *other.layer >= config.num_hidden_layers) mtp_layers.insert(*other.layer);
      if (role_of(other) == Role::kMtpEmbedding) ++n_own;
    }
    const bool is_shared = n_own < mtp_layers.size();
    if (is_shared || config.tie_word_embeddings) return {0, last};
    return {0};
  }
  std::vector<std::uint32_t> all(stages.count());
  std::iota(all.begin(), all.end(), 0U);
  return all;
}

}  // namespace ingot::shard
