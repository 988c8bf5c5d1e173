#include "formats/composed.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/family/text_names.h"

namespace ingot::formats {
namespace {

/// Bytes of the stored tensors of several checkpoints: each call goes to the one that has them.
class ComposedBytes final : public StoredBytes {
 public:
  explicit ComposedBytes(std::vector<Giver> givers) : givers_(std::move(givers)) {
    for (std::uint32_t giver = 0; giver < givers_.size(); ++giver) {
      first_file_.push_back(static_cast<std::uint32_t>(files_.size()));
      const auto files = givers_[giver].model->files();
      for (std::uint32_t file = 0; file < files.size(); ++file) {
        SourceFile& own = files_.emplace_back(files[file]);
        if (giver > 0) own.name = fmt::format("{}/{}", givers_[giver].name, own.name);
        places_.push_back({.giver = giver, .index = file});
      }
    }
  }

  /// Adds a stored tensor of a giver, whose home is `home`. Returns its index.
  std::uint32_t add(std::uint32_t giver, std::uint32_t stored, const std::string& home) {
    tensors_.push_back({.giver = giver, .index = stored});
    homes_.push_back(home);
    return static_cast<std::uint32_t>(tensors_.size() - 1);
  }
  [[nodiscard]] std::uint32_t first_file(std::uint32_t giver) const { return first_file_[giver]; }

  [[nodiscard]] std::span<const SourceFile> files() const override { return files_; }
  void read(std::uint32_t index, const StoredTensor& /*tensor*/, std::uint64_t offset,
            std::span<std::byte> out) const override {
    const Place& at = tensors_.at(index);
    model(at).read(at.index, offset, out);
  }
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t file) const override {
    const Place& at = places_.at(file);
    return model(at).header_bytes(at.index);
  }
  [[nodiscard]] bool has_data(std::uint32_t file) const override {
    const Place& at = places_.at(file);
    return model(at).has_data(at.index);
  }
  void read_file(std::uint32_t file, std::uint64_t offset,
                 std::span<std::byte> out) const override {
    const Place& at = places_.at(file);
    model(at).read_file(at.index, offset, out);
  }
  void close_file(std::uint32_t file) const override {
    const Place& at = places_.at(file);
    model(at).close_file(at.index);
  }
  // No file of the base holds what was taken.
  [[nodiscard]] bool is_whole() const override { return false; }
  [[nodiscard]] std::string home_file(std::uint32_t index) const override {
    return homes_.at(index);
  }

 private:
  /// A file, or a stored tensor, of a giver.
  struct Place {
    std::uint32_t giver = 0, index = 0;
  };
  [[nodiscard]] const Checkpoint& model(const Place& at) const { return *givers_[at.giver].model; }

  std::vector<Giver> givers_;
  std::vector<std::uint32_t> first_file_;  // by giver
  std::vector<SourceFile> files_;
  std::vector<Place> places_;   // by file
  std::vector<Place> tensors_;  // by stored tensor
  std::vector<std::string> homes_;
};

std::string home_in(const Checkpoint& model, std::uint32_t stored) {
  return model.is_whole() ? model.files()[model.stored()[stored].file].name
                          : model.home_file(stored);
}

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
