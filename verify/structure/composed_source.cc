#include "verify/structure/composed_source.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/base/error.h"
#include "formats/composed.h"
#include "formats/json/json.h"
#include "formats/overlay.h"
#include "formats/records/manifest.h"

namespace ingot::verify {

using formats::Checkpoint;
using formats::Giver;
using formats::TakenTensor;

namespace {

/// Positions of the tensors of a checkpoint by their names.
std::map<std::string_view, std::uint32_t> positions_of(const Checkpoint& model) {
  std::map<std::string_view, std::uint32_t> positions;
  for (std::uint32_t i = 0; i < model.tensors().size(); ++i)
    positions.emplace(model.tensors()[i].name, i);
  return positions;
}

}  // namespace

Checkpoint composed_as_in(Checkpoint base, const check::Opened& output,
                          const std::map<std::string, std::filesystem::path>& sources,
                          const SourceViews& views) {
  const formats::Manifest& manifest = *output.manifest;
  const auto directory_of = [&](const std::string& name) -> const std::filesystem::path& {
    const auto found = sources.find(name);
    if (found != sources.end()) return found->second;
    throw Error(ErrorCode::kNotFound,
                "was composed of several checkpoints, and the directory of '{0}' is not known "
                "(give the recipe in place of the source, or --sources {0}=DIR)",
                name)
        .in_file((output.directory / formats::kManifestName).string());
  };
  std::vector<Giver> givers(1);
  for (const formats::Json& row : *manifest.sources) {
    const std::string name = formats::text_at(row, "name");
    const std::string as = formats::text_at(row, "as");
    if (as == formats::kAsEdits) continue;  // a change of values, and no tensor
    if (as == formats::kAsOverlay) {
      auto tensors = std::make_shared<const Checkpoint>(
          formats::open_loose_tensors(directory_of(name), views.threads));
      base = formats::with_overlay(std::make_shared<const Checkpoint>(std::move(base)),
                                   {.name = name, .model = std::move(tensors)}, views.threads);
    } else if (givers[0].name.empty()) {
      givers[0].name = name;
    } else {
      givers.push_back({.name = name,
                        .model = std::make_shared<const Checkpoint>(
                            views.as_in_output(views.open(directory_of(name))))});
    }
  }
  givers[0].model = std::make_shared<const Checkpoint>(views.as_in_output(std::move(base)));
  std::vector<std::map<std::string_view, std::uint32_t>> positions;
  for (const Giver& giver : givers) positions.push_back(positions_of(*giver.model));
  std::map<std::string, std::string> given;  // givers by tensor
  std::vector<TakenTensor> taken;
  ErrorList faults;
  const auto take = [&](const std::string& name, const std::string& from) {
    const auto giver =
        static_cast<std::uint32_t>(std::ranges::find(givers, from, &Giver::name) - givers.begin());
    const auto found = giver < givers.size() ? positions[giver].find(name) : positions[0].end();
    if (giver < givers.size() && found != positions[giver].end()) {
      taken.push_back({.giver = giver, .tensor = found->second});
      return;
    }
    faults.add(Error(ErrorCode::kMissingTensor,
                     "is not in source '{}', from which the output took it (is that another "
                     "checkpoint?)",
                     from)
                   .in_tensor(name));
  };
  std::vector<std::string> added;
  for (formats::TensorRecord& record : formats::read_tensor_records(
           output.directory / formats::kRecordsName, manifest.records_hash)) {
    if (record.source.empty() && record.action != "drop") continue;  // scales that were made
    if (!positions[0].contains(record.name)) added.push_back(record.name);
    given.emplace(std::move(record.name), std::move(record.giver));
  }
  for (const formats::LogicalTensor& tensor : givers[0].model->tensors()) {
    const auto found = given.find(tensor.name);
    take(tensor.name, found == given.end() ? givers[0].name : found->second);
  }
  for (const std::string& name : added) take(name, given.at(name));
  faults.throw_if_any();
  return formats::composed(std::move(givers), taken);
}

}  // namespace ingot::verify
