#include <algorithm>
#include <map>
#include <utility>

#include "verify/compare/comparison.h"

namespace ingot::verify {
namespace {

void note_scheme(const std::string& scheme, std::vector<std::string>& schemes) {
  if (std::find(schemes.begin(), schemes.end(), scheme) == schemes.end()) schemes.push_back(scheme);
}

void add_to_group(PairedGroup& group, const PairedTensor& tensor) {
  note_scheme(tensor.a->to, group.a_schemes);
  note_scheme(tensor.b->to, group.b_schemes);
  ++group.tensors;
  const double difference = tensor.difference();
  if (difference > 0) ++group.a_closer;
  if (difference < 0) ++group.b_closer;
  group.a.add(tensor.a->sums);
  group.b.add(tensor.b->sums);
}

}  // namespace

std::vector<PairedTensor> paired_tensors(const Report& a, const Report& b) {
  if (!a.weights || !b.weights) return {};
  std::map<std::string_view, const TensorWeights*> of_b;
  for (const TensorWeights& tensor : b.weights->tensors) of_b.emplace(tensor.name, &tensor);
  std::vector<PairedTensor> pairs;
  for (const TensorWeights& tensor : a.weights->tensors) {
    const auto partner = of_b.find(tensor.name);
    if (partner != of_b.end()) pairs.push_back({.a = &tensor, .b = partner->second});
  }
  return pairs;
}

double PairedGroup::difference_db() const {
  return are_apart(a.relative_error(), b.relative_error()) ? b.sqnr_db() - a.sqnr_db() : 0;
}

std::vector<PairedGroup> paired_groups(const std::vector<PairedTensor>& tensors,
                                       Grouping grouping) {
  std::vector<PairedGroup> groups;
  std::map<std::pair<std::string, std::optional<std::uint32_t>>, std::size_t> index;
  for (const PairedTensor& tensor : tensors) {
    if (grouping.by_layer && !tensor.a->layer) continue;
    const std::string role = grouping.by_role ? tensor.a->role : "";
    const auto layer = grouping.by_layer ? tensor.a->layer : std::nullopt;
    const auto [at, is_new] = index.try_emplace({role, layer}, groups.size());
    if (is_new) {
      groups.push_back(
          {.role = role, .layer = layer, .a_schemes = {}, .b_schemes = {}, .a = {}, .b = {}});
    }
    add_to_group(groups[at->second], tensor);
  }
  return groups;
}

std::vector<PairedLayer> paired_layers(const Report& a, const Report& b) {
  std::vector<PairedLayer> pairs;
  if (!a.layers || !b.layers) return pairs;
  for (const LayerAgreement& layer : a.layers->layers) {
    const auto partner = std::find_if(
        b.layers->layers.begin(), b.layers->layers.end(), [&](const LayerAgreement& other) {
          return other.layer == layer.layer && other.is_mtp == layer.is_mtp;
        });
    if (partner != b.layers->layers.end()) pairs.push_back({.a = &layer, .b = &*partner});
  }
  return pairs;
}

}  // namespace ingot::verify
