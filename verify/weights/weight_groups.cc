#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "verify/weights/weight_check.h"

namespace ingot::verify {
namespace {

void add(WeightGroup& group, const TensorWeights& tensor) {
  const double cosine = tensor.sums.cosine();
  const double scale = tensor.sums.fitted_scale();
  if (group.tensors == 0 || cosine < group.least_cosine) {
    group.least_cosine = cosine;
    group.worst = tensor.name;
  }
  if (std::fabs(scale - 1) > std::fabs(group.worst_scale - 1)) group.worst_scale = scale;
  ++group.tensors;
  group.identical += tensor.relation == Relation::kIdentical ? 1 : 0;
  group.sums.add(tensor.sums);
}

/// Groups by key(tensor), in order of first appearance; name(group, tensor) says what they share.
template <typename Key, typename Name>
std::vector<WeightGroup> group_by(const WeightsReport& report, const Key& key, const Name& name) {
  std::vector<WeightGroup> groups;
  std::map<decltype(key(report.tensors.front())), std::size_t> index;
  for (const TensorWeights& tensor : report.tensors) {
    const auto [at, is_new] = index.emplace(key(tensor), groups.size());
    if (is_new) name(groups.emplace_back(), tensor);
    add(groups[at->second], tensor);
  }
  return groups;
}

}  // namespace

std::string_view relation_name(Relation relation) {
  switch (relation) {
    case Relation::kIdentical:
      return "identical";
    case Relation::kChanged:
      return "changed";
    case Relation::kQuantized:
      return "quantized";
    case Relation::kWidened:
      return "widened";
    case Relation::kNarrowed:
      return "narrowed";
  }
  return "";
}

bool is_fault(const TensorWeights& tensor) {
  return tensor.relation == Relation::kChanged || tensor.relation == Relation::kNarrowed ||
         tensor.sums.misrounded > 0 || tensor.sums.nonfinite > 0 || tensor.reach.coarse > 0;
}

std::vector<WeightGroup> by_scheme_and_role(const WeightsReport& report) {
  return group_by(
      report,
      [](const TensorWeights& tensor) {
        return std::tuple<std::string_view, std::string_view, std::string_view>(
            tensor.from, tensor.to, tensor.role);
      },
      [](WeightGroup& group, const TensorWeights& tensor) {
        group.from = tensor.from;
        group.to = tensor.to;
        group.role = tensor.role;
      });
}

std::vector<WeightGroup> by_layer_and_role(const WeightsReport& report) {
  return group_by(
      report,
      [](const TensorWeights& tensor) {
        return std::tuple<std::optional<std::uint32_t>, std::string_view>(tensor.layer,
                                                                          tensor.role);
      },
      [](WeightGroup& group, const TensorWeights& tensor) {
        group.layer = tensor.layer;
        group.role = tensor.role;
      });
}

std::vector<const TensorWeights*> worst_tensors(const WeightsReport& report, std::size_t n) {
  std::vector<const TensorWeights*> worst;
  for (const TensorWeights& tensor : report.tensors) worst.push_back(&tensor);
  std::stable_sort(worst.begin(), worst.end(), [](const auto* a, const auto* b) {
    if (is_fault(*a) != is_fault(*b)) return is_fault(*a);
    return a->sums.relative_error() > b->sums.relative_error();
  });
  worst.resize(std::min(n, worst.size()));
  return worst;
}

}  // namespace ingot::verify
