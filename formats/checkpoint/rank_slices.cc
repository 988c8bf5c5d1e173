#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/checkpoint/part_names.h"
#include "formats/checkpoint/passes.h"
#include "formats/family/family_yaml.h"
#include "formats/records/rank_holdings.h"
#include "formats/storage/stack_form.h"

// A rank's directory: its tensors held against the records of their slices.

namespace ingot::formats {
namespace {

/// The weight of which a tensor like `codes`, of shape `as`, holds the codes; empty when it does
/// not fit 64 bits.
Shape decoded(const StoredTensor& codes, const Shape& as, SchemeId scheme) {
  Shape shape = rows_of_codes({.name = codes.name, .dtype = codes.dtype, .shape = as});
  if (shape.empty()) return shape;
  const std::uint64_t columns = packing(scheme, codes.dtype).codes_of(shape.back());
  if (columns == 0 && shape.back() != 0) return {};
  shape.back() = columns;
  return shape;
}

class SliceMatcher {
 public:
  explicit SliceMatcher(Draft& draft)
      : draft_(draft),
        slices_(*draft.slices),
        rank_(*slices_.slicing.rank),
        holdings_(slices_.slicing, draft.config) {
    if (!rank_.whole_config.is_null()) {
      whole_config_ = config_of(*draft.family,
                                parse_model_config(json_text(rank_.whole_config),
                                                   fmt::format("{}: whole_config", kManifestName)));
    }
  }

  void stages() {
    const std::uint32_t end = slices_.slicing.stage_layers.back();
    if (end == draft_.config.num_hidden_layers) return;
    draft_.faults.add(Error(ErrorCode::kMismatch,
                            "divides {} layers into stages, config.json has {}", end,
                            draft_.config.num_hidden_layers)
                          .in_file(kManifestName));
  }

  void tensor(const LogicalTensor& tensor) {
    const StoredTensor& weight = draft_.stored[tensor.encoding.stored.weight()];
    if (tensor.rule != nullptr && !is_held(tensor, weight)) return;
    bool fits = true;
    tensor.encoding.stored.for_each(
        [&](Part, std::uint32_t i) { fits = part(tensor, draft_.stored[i]) && fits; });
    if (!fits) return;
    if (is_quantized(tensor)) wholes(tensor);
    // No shape is promised outside the grammar.
    if (tensor.rule != nullptr && !tensor.rule->any_shape) whole(tensor, weight);
  }

 private:
  bool is_held(const LogicalTensor& tensor, const StoredTensor& weight) {
    if (holdings_.of(*tensor.rule, tensor.layer, tensor.expert) != Holding::kElsewhere) return true;
    std::string held =
        fmt::format("{} the embedding, {} norm and head", rank_.has_embedding ? "with" : "without",
                    rank_.has_head ? "with" : "without");
    if (tensor.layer && (*tensor.layer < rank_.first_layer || *tensor.layer >= rank_.end_layer)) {
      held = fmt::format("of layers {} to {}", rank_.first_layer,
                         std::max(rank_.first_layer + 1, rank_.end_layer) - 1);
    } else if (tensor.layer) {
      held = fmt::format("with other experts in layer {}", *tensor.layer);
    }
    draft_.fault(
        weight, ErrorCode::kMismatch,
        "is here, but by the manifest rank {} is one {} (was it copied from another rank?)",
        rank_.rank, held);
    return false;
  }

  /// The stored tensor against its own record.
  bool part(const LogicalTensor& tensor, const StoredTensor& stored) {
    const SliceRecord* slice = slices_.find(stored.name);
    if (slice == nullptr) return true;
    if (slice->is_zeroed && share_of(tensor).index == 0) {
      draft_.fault(stored, ErrorCode::kMismatch,
                   "is zeroed by the manifest, but rank {} is the one that keeps it", rank_.rank);
      return false;
    }
    Shape needed = slice->whole;
    const auto axis = static_cast<std::size_t>(slice->axis);
    std::uint64_t length = 0;  // length of the slice in each section
    if (slice->axis >= 0 && stored.shape.size() == slice->whole.size()) {
      needed[axis] = stored.shape[axis];
      length = slice->sections.length_of(0, stored.shape[axis]);
    }
    if (!slice->experts.empty()) needed[0] = slice->experts.size();
    if (stored.shape != needed) {
      draft_.fault(stored, ErrorCode::kShapeMismatch,
                   "has shape {}, by the manifest it is {} of {}", shape_text(stored.shape),
                   slice_text(*slice), shape_text(slice->whole));
      return false;
    }
    return slice->axis < 0 || is_own_share(tensor, stored, *slice, length);
  }

  [[nodiscard]] RankHoldings::Share share_of(const LogicalTensor& tensor) const {
    return holdings_.share_of(role_of(tensor));
  }

  static std::string slice_text(const SliceRecord& slice) {
    std::string text = slice.is_zeroed ? "zeros in place" : "the whole";
    if (slice.axis >= 0)
      text = fmt::format("a slice along dimension {} from {}", slice.axis, slice.offset);
    if (!slice.experts.empty()) text += fmt::format(" for {} experts", slice.experts.size());
    return text;
  }

  /// True if the slice begins where this rank's slice does; else reports the difference.
  bool is_own_share(const LogicalTensor& tensor, const StoredTensor& stored,
                    const SliceRecord& slice, std::uint64_t length) {
    const std::uint64_t whole =
        slice.sections.length_of(0, slice.whole[static_cast<std::size_t>(slice.axis)]);
    if (length == 0 || whole % length != 0) {
      draft_.fault(stored, ErrorCode::kShapeMismatch,
                   "has shape {}, of which dimension {} is no equal part of the {} in the manifest",
                   shape_text(stored.shape), slice.axis, whole);
      return false;
    }
    const std::uint64_t n = whole / length;
    const RankHoldings::Share share = share_of(tensor);
    const bool may_be_fewer = tensor.rule != nullptr && has_kv_heads(*tensor.rule);
    const bool is_share = n == share.n || n == 1 || (may_be_fewer && share.n % n == 0);
    if (!is_share) {
      draft_.fault(stored, ErrorCode::kShapeMismatch,
                   "is one of {} slices by its shape {} and the whole {} in the manifest, whose "
                   "topology makes {}",
                   n, shape_text(stored.shape), shape_text(slice.whole), share.n);
      return false;
    }
    const std::uint64_t begin = share.index * n / share.n * length;
    if (slice.offset == begin) return true;
    draft_.fault(stored, ErrorCode::kMismatch,
                 "begins at {} of {} by the manifest, but that of rank {} begins at {}",
                 slice.offset, whole, rank_.rank, begin);
    return false;
  }

  [[nodiscard]] Shape whole_of(const StoredTensor& stored) const {
    const SliceRecord* slice = slices_.find(stored.name);
    return slice != nullptr ? slice->whole : stored.shape;
  }

  /// Compares the wholes of scales and other parts with the whole of the weight.
  void wholes(const LogicalTensor& tensor) {
    const Encoding& encoding = tensor.encoding;
    const StoredTensor& codes = draft_.stored[encoding.stored.weight()];
    const Shape weight = decoded(codes, whole_of(codes), encoding.scheme);
    if (weight.size() < 2) return;
    auto group = std::array{encoding.block_rows, encoding.block_cols};
    if (encoding.stored.has(Part::kScale) && scheme_facts(encoding.scheme).chooses_cols) {
      // A slice may be as wide as a group: the wholes tell the difference.
      const Shape scale = whole_of(draft_.stored[encoding.stored[Part::kScale]]);
      group[1] = scale.empty() || scale.back() == 0 ? 0 : weight.back() / scale.back();
    }
    group = scale_group(encoding.scheme, weight, group);
    const Shape per_row(weight.begin(), weight.end() - 1);
    encoding.stored.for_each([&](Part part, std::uint32_t i) {
      std::optional<std::uint64_t> needed;
      if (part == Part::kScale) {
        needed = element_count(block_scale_shape(weight, group[0], group[1]));
      } else if (part_facts(part).extent == PartExtent::kPerRow) {
        needed = element_count(per_row);
      }
      const StoredTensor& stored = draft_.stored[i];
      const Shape whole = whole_of(stored);
      if (!needed || element_count(whole) == needed) return;
      draft_.fault(stored, ErrorCode::kShapeMismatch,
                   "has a whole of shape {} by the manifest, a weight with a whole of shape {} "
                   "needs {} numbers",
                   shape_text(whole), shape_text(weight), *needed);
    });
  }

  /// The whole of which the weight is a slice, against the configs.
  void whole(const LogicalTensor& tensor, const StoredTensor& weight) {
    const SliceRecord* slice = slices_.find(weight.name);
    const SchemeId scheme = tensor.encoding.scheme;
    const Shape promised =
        weight_shape(*tensor.rule, draft_.config, tensor.layer, turns_stacks(scheme));
    stack(tensor, weight, slice != nullptr ? slice->experts : std::vector<std::uint32_t>());
    if (slice == nullptr) {
      if (tensor.shape == promised) return;
      draft_.fault(weight, ErrorCode::kShapeMismatch,
                   "has shape {} and is whole by the manifest, by config.json the whole has {}",
                   shape_text(tensor.shape), shape_text(promised));
      return;
    }
    const Shape cut = decoded(weight, slice->whole, scheme);
    if (cut != promised) {
      draft_.fault(weight, ErrorCode::kShapeMismatch,
                   "is cut from a whole of shape {} by the manifest, by config.json it has {}",
                   shape_text(cut), shape_text(promised));
      return;
    }
    if (!whole_config_) return;
    const Shape before =
        weight_shape(*tensor.rule, *whole_config_, tensor.layer, turns_stacks(scheme));
    const Shape original = slice->original.empty() ? cut : decoded(weight, slice->original, scheme);
    if (original == before) return;
    draft_.fault(weight, ErrorCode::kShapeMismatch,
                 "had shape {} before it was padded, by whole_config of the manifest it had {}",
                 shape_text(original), shape_text(before));
  }

  /// The experts of a stack are those that the rank holds; an empty list means all.
  void stack(const LogicalTensor& tensor, const StoredTensor& weight,
             const std::vector<std::uint32_t>& experts) {
    const Role role = tensor.rule->role;
    if (!is_expert_stack(role) || !tensor.layer) return;
    const std::vector<std::uint32_t>* held = rank_.experts_in(*tensor.layer);
    if (held == nullptr) return;
    const std::uint64_t n_experts = draft_.config.n_routed_experts;
    const auto n_held = static_cast<std::size_t>(
        std::lower_bound(held->begin(), held->end(), n_experts) - held->begin());
    const bool is_held = experts.empty()
                             ? n_held == n_experts
                             : std::equal(experts.begin(), experts.end(), held->begin(),
                                          held->begin() + static_cast<std::ptrdiff_t>(n_held));
    if (is_held) return;
    draft_.fault(weight, ErrorCode::kMismatch,
                 "is a stack of {} experts by its record, which are not the {} that rank {} holds "
                 "in layer {}",
                 experts.empty() ? n_experts : experts.size(), n_held, rank_.rank, *tensor.layer);
  }

  Draft& draft_;
  const RankSlices& slices_;
  const RankRecord& rank_;
  RankHoldings holdings_;
  std::optional<ModelConfig> whole_config_;
};

}  // namespace

const SliceRecord* RankSlices::find(const std::string& stored) const {
  const auto found = by_name.find(stored);
  return found == by_name.end() ? nullptr : &found->second;
}

RankSlices rank_slices(SlicingRecord slicing, std::span<const TensorRecord> records) {
  RankSlices slices{.slicing = std::move(slicing), .by_name = {}, .has_records = true};
  for (const TensorRecord& record : records) {
    for (const TensorHash& output : record.output) {
      if (!output.slice || slices.by_name.try_emplace(output.name, *output.slice).second) continue;
      throw Error(ErrorCode::kDuplicate, "is in several records").in_tensor(output.name);
    }
  }
  return slices;
}

void read_rank_slices(Draft& draft, const Manifest& manifest) {
  if (!manifest.slicing || !manifest.slicing->rank) return;
  RankSlices slices{.slicing = *manifest.slicing, .by_name = {}};
  const std::filesystem::path path = draft.directory / kRecordsName;
  try {
    slices = rank_slices(*manifest.slicing, read_tensor_records(path, manifest.records_hash));
  } catch (Error& error) {
    draft.faults.add(error.in_file(path.string()));
  }
  draft.slices = std::make_shared<const RankSlices>(std::move(slices));
}

void match_slices(Draft& draft) {
  if (draft.slices == nullptr || !draft.slices->has_records) return;
  draft.attempt([&] {
    SliceMatcher matcher(draft);
    // Any family but generic, which knows nothing of layers.
    if (draft.config.num_hidden_layers != 0) matcher.stages();
    for (const LogicalTensor& tensor : draft.tensors) matcher.tensor(tensor);
  });
}

}  // namespace ingot::formats
