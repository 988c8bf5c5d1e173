#include "convert/recipe/expert_selection.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "convert/recipe/statistics.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/words.h"
#include "formats/config/routing.h"
#include "formats/json/json.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::KeptExperts;

namespace {

constexpr std::uint64_t kMaxListBytes = std::uint64_t{64} << 20;

/// Scores of experts, by the number of their layer.
class ExpertScores : public Statistics {
 public:
  ExpertScores(const std::filesystem::path& path, ExpertScore by) {
    open(path);
    const std::string_view ending =
        by == ExpertScore::kSaliency ? formats::kExpertSaliency : formats::kExpertTokens;
    file().for_each(ending, [&](const std::string& owner, const formats::StatisticTensor& tensor) {
      const auto layer = number_from(std::string_view(owner).substr(owner.rfind('.') + 1));
      if (!layer) return;
      std::vector<double>& scores = layers_[*layer];
      if (by == ExpertScore::kSaliency) {
        const std::vector<float> values = file().finite_values(tensor);
        scores.assign(values.begin(), values.end());
      } else {
        for (const std::int64_t count : file().counts(tensor))
          scores.push_back(static_cast<double>(count));
      }
    });
  }
  [[nodiscard]] const std::vector<double>* find(std::uint32_t layer) const {
    const auto found = layers_.find(layer);
    return found == layers_.end() ? nullptr : &found->second;
  }

 private:
  std::map<std::uint32_t, std::vector<double>> layers_;
};

// The best of a group, of equal ones the first: in ascending order.
void add_best(const std::vector<double>& scores, std::uint32_t first, std::uint32_t n_of,
              std::uint32_t n_kept, std::vector<std::uint32_t>& kept) {
  std::vector<std::uint32_t> order(n_of);
  for (std::uint32_t i = 0; i < n_of; ++i) order[i] = first + i;
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](std::uint32_t expert) { return scores[expert]; });
  order.resize(n_kept);
  std::ranges::sort(order);
  kept.insert(kept.end(), order.begin(), order.end());
}

std::uint64_t number_to_keep(double keep, std::uint64_t n_experts) {
  const auto all = static_cast<double>(n_experts);
  if (!(keep > 0) || keep == 1 || (keep > 1 && keep != std::floor(keep)) || keep >= all) {
    throw Error(ErrorCode::kInvalidArgument,
                "--keep {} is no share of {} experts below 1, as 0.75, and no smaller number of "
                "them from 2 on",
                keep, n_experts);
  }
  // A share such as 0.7 is no binary number: 70.00000001 experts are 70.
  return static_cast<std::uint64_t>(keep > 1 ? keep : std::ceil(all * keep - 1e-6));
}

KeptExperts best_experts(const Checkpoint& model, const ExpertScores& scores, double keep,
                         ExpertScore by) {
  KeptExperts kept{.n_experts = model.config().n_routed_experts, .layers = {}};
  const std::size_t n_groups = formats::read_routing(model.config()).groups;
  ErrorList faults;
  for (const std::uint32_t layer : formats::layers_to_prune(model)) {
    const std::uint64_t n_experts = formats::experts_of(model.config(), layer);
    const std::uint64_t n_kept = number_to_keep(keep, n_experts);
    const std::vector<double>* of_layer = scores.find(layer);
    if (of_layer == nullptr) {
      // An MTP layer follows the last main one.
      if (layer >= model.config().num_hidden_layers) continue;
      faults.add(Error(ErrorCode::kMissingTensor, "has no {} of the experts of layer {}",
                       by == ExpertScore::kSaliency ? "saliency" : "tokens", layer));
    } else if (of_layer->size() != n_experts) {
      faults.add(Error(ErrorCode::kMismatch, "has {} experts in layer {}, the model has {}",
                       of_layer->size(), layer, n_experts));
    } else {
      // A number that groups do not divide is refused with all else that a list must be.
      const std::size_t groups = n_kept % n_groups == 0 ? n_groups : 1;
      const auto width = static_cast<std::uint32_t>(n_experts / groups);
      for (std::uint32_t group = 0; group < groups; ++group)
        add_best(*of_layer, group * width, width, static_cast<std::uint32_t>(n_kept / groups),
                 kept.layers[layer]);
    }
  }
  faults.throw_if_any();
  return kept;
}

template <typename Table>
void keep_experts_of(std::shared_ptr<const Table>& statistics, const Checkpoint& whole,
                     const KeptExperts& kept) {
  if (statistics == nullptr) return;
  auto of_kept = std::make_shared<Table>(*statistics);
  of_kept->keep_experts(whole, kept);
  statistics = std::move(of_kept);
}

}  // namespace

SelectedExperts select_experts(const Checkpoint& source, const Checkpoint& model,
                               const ExpertSelection& selection) {
  if (selection.list) {
    SelectedExperts recorded;
    recorded.kept = complete_list(model, *selection.list, recorded.remarks);
    return recorded;
  }
  if (selection.keep.has_value() == !selection.keep_map.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "which experts stay is said by --keep SHARE with --statistics, or by --keep-map "
                "FILE{}",
                selection.keep ? ", not by both" : "");
  }
  require_experts(model);
  SelectedExperts selected;
  if (!selection.keep) {
    const std::string where = selection.keep_map.string();
    try {
      selected.kept = formats::parse_kept_experts(
          formats::parse_json(read_text_file(where, kMaxListBytes), where), where);
      // Layers that --layers leaves out are of the source.
      std::erase_if(selected.kept.layers, [&](const auto& layer) {
        return layer.first >= model.config().num_hidden_layers &&
               std::ranges::binary_search(formats::layers_to_prune(source), layer.first) &&
               !std::ranges::binary_search(formats::layers_to_prune(model), layer.first);
      });
      selected.kept = complete_list(model, std::move(selected.kept), selected.remarks);
    } catch (Error& error) {
      throw error.in_file(where);
    }
    return selected;
  }
  if (selection.statistics.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--keep needs --statistics DIR, which ingot calibrate writes, to rank experts by");
  }
  const ExpertScores scores(selection.statistics, selection.by);
  scores.require_made_from(source, "--statistics");
  if (auto warning = scores.warning("--statistics"))
    selected.remarks.push_back(std::move(*warning));
  try {
    selected.kept = best_experts(model, scores, *selection.keep, selection.by);
  } catch (Error& error) {
    throw error.in_file(selection.statistics.string());
  }
  selected.kept = complete_list(model, std::move(selected.kept), selected.remarks);
  return selected;
}

void keep_experts(Choices& choices, const Checkpoint& whole, const KeptExperts& kept) {
  keep_experts_of(choices.importance, whole, kept);
  keep_experts_of(choices.activation_scales, whole, kept);
  const auto& release = choices.scales_from;
  // One that was pruned itself has the output's numbers.
  if (release != nullptr && release->config().n_routed_experts == kept.n_experts)
    choices.scales_from =
        std::make_shared<const Checkpoint>(formats::with_kept_experts(release, kept));
}

}  // namespace ingot::convert
