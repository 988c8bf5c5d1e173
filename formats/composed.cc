#include "formats/composed.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/composed_bytes.h"
#include "formats/family/text_names.h"

namespace ingot::formats {
namespace {

/// The files of the output in which taken tensors have their place.
class Homes {
 public:
  explicit Homes(const Checkpoint& base) {
    for (const LogicalTensor& tensor : base.tensors()) {
      const std::string home = home_in(base, tensor.encoding.stored.weight());
      files_.insert(home);
      homes_.emplace(tensor.name, home);
    }
  }

  [[nodiscard]] std::string of(const Giver& giver, const LogicalTensor& tensor) const {
    if (const auto found = homes_.find(tensor.name); found != homes_.end()) return found->second;
    // Loaders of a checkpoint in one file look for no second one.
    if (files_.size() == 1) return *files_.begin();
    const std::string own = home_in(*giver.model, tensor.encoding.stored.weight());
    std::string_view rest = own;
    constexpr std::string_view kModel = "model";
    if (rest.starts_with(kModel)) rest.remove_prefix(kModel.size());
    if (rest.starts_with('-')) rest.remove_prefix(1);
    if (own.empty()) return {};
    return fmt::format("{}-{}{}{}", kModel, giver.name, rest.starts_with('.') ? "" : "-", rest);
  }

 private:
  std::set<std::string> files_;
  std::map<std::string_view, std::string> homes_;
};

bool has_mtp(const Draft& draft) {
  return std::ranges::any_of(draft.tensors, [&](const LogicalTensor& tensor) {
    return tensor.layer && *tensor.layer >= draft.config.num_hidden_layers;
  });
}

}  // namespace

Checkpoint composed(std::vector<Giver> givers, std::span<const TakenTensor> taken,
                    const std::vector<std::string>& remarks) {
  INGOT_CHECK(!givers.empty());
  const Checkpoint& base = *givers.front().model;
  Draft draft = base.draft_of_view();
  const Homes homes(base);
  auto bytes = std::make_unique<ComposedBytes>(givers);
  for (const TakenTensor& at : taken) {
    const Giver& giver = givers.at(at.giver);
    LogicalTensor tensor = giver.model->tensors()[at.tensor];
    tensor.giver = at.giver;
    const std::string taken_home = at.giver > 0 ? homes.of(giver, tensor) : std::string();
    StoredParts parts;
    tensor.encoding.stored.for_each([&](Part part, std::uint32_t index) {
      StoredTensor stored = giver.model->stored()[index];
      stored.file += bytes->first_file(at.giver);
      parts.set(part,
                bytes->add(at.giver, index, at.giver > 0 ? taken_home : home_in(base, index)));
      draft.stored.push_back(std::move(stored));
    });
    tensor.encoding.stored = parts;
    draft.tensors.push_back(std::move(tensor));
  }
  draft.remarks.insert(draft.remarks.end(), remarks.begin(), remarks.end());
  draft.bytes = std::move(bytes);
  draft.givers = std::move(givers);
  count_mtp_layers(*draft.family, draft.stored, draft.config);
  draft.lacks_promised_mtp = draft.lacks_promised_mtp && !has_mtp(draft);
  return Checkpoint::view(std::move(draft));
}

StoredActivations::StoredActivations(const Checkpoint& model) {
  const auto add = [&](const Checkpoint& giver) {
    said_.emplace_back(giver.config(), giver.dialect(), giver.description());
  };
  for (const Giver& giver : model.givers()) add(*giver.model);
  if (said_.empty()) add(model);
}

}  // namespace ingot::formats
