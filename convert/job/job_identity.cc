#include "convert/job/job_identity.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "check/stored_hashes.h"
#include "convert/output/manifest_writer.h"
#include "convert/output/output_directory.h"
#include "convert/output/version.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/family/proposal/family_proof.h"
#include "formats/json/json.h"
#include "formats/json/members.h"
#include "formats/records/manifest.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::Json;

namespace {

constexpr std::string_view kRecordRemedy =
    "it was changed, or is another version's: start again with --force";

// The settings that an identity keeps, by name; those that were not given are empty.
std::map<std::string, std::string> kept_settings(const Json& identity) {
  Json settings = settings_of(identity.at("recipe"));
  const Json& shards = formats::json_member(identity, "shards");
  settings["max-shard-size"] = shards == std::string_view("keep-files") ? Json() : shards;
  for (const char* name : {"family", "align", "files", "order", "links"})
    settings[name] = formats::json_member(identity, name);
  settings["family-file"] = formats::json_member(identity, "family_file");
  for (const auto& [key, value] : formats::json_member(identity, "slicing").items()) {
    std::string name = key == "stages" ? "pp-layers" : key;
    std::ranges::replace(name, '_', '-');
    settings[name] = value;
  }
  std::map<std::string, std::string> texts;
  const auto text_of = [](const Json& value) {
    return value.is_null() ? "" : value.is_string() ? value.get<std::string>() : value.dump();
  };
  for (const auto& [name, value] : settings.items()) {
    const bool is_list = name == "rule" || name == "recipe" || name == "allow";
    texts[name] = is_list ? fmt::format("{}", fmt::join(value.get<std::vector<std::string>>(), " "))
                          : text_of(value);
  }
  return texts;
}

// `--to int8 (now bf16), --mtp drop (now not given), --importance (its files have changed)`.
// `is_open`: settings that the present command leaves out are decided by the source, but for rules.
std::string differing_settings(const Json& earlier, const Json& now, bool is_open = false) {
  auto before = kept_settings(earlier), after = kept_settings(now);
  std::vector<std::string> changes;
  for (const auto& [name, was] : before) after.try_emplace(name);
  // Decided by --to where it is not given.
  if (before["to"] != after["to"]) after.erase("mtp");
  for (const auto& [name, is] : after) {
    const std::string& was = before[name];
    if (was == is || (is_open && is.empty() && name != "rule")) continue;
    // The value identifies the content of a file, which means nothing to a reader.
    const bool is_file = name == "family-file" || name == "activation-scales" ||
                         name == "importance" || name == "kv-scales" || name == "scales-from" ||
                         name == "lora" || name == "edits" || name == "kept-experts";
    const auto shown = [&](const std::string& value) {
      return value.empty() ? "not given" : is_file ? "given" : value;
    };
    // The lists of experts that --keep chose, or --keep-map has.
    const bool is_list = name == "kept-experts";
    changes.push_back(is_list ? "--keep or --keep-map (now other experts)"
                      : is_file && !was.empty() && !is.empty()
                          ? fmt::format("--{} (its files have changed)", name)
                          : fmt::format("--{} {} (now {})", name, shown(was), shown(is)));
  }
  return fmt::format("{}", fmt::join(changes, ", "));
}

// True if everything that was allowed is still allowed.
bool allows_as_much(const Json& earlier, const Json& now) {
  return std::all_of(earlier.items().begin(), earlier.items().end(), [&](const auto& kind) {
    const auto found = now.find(kind.key());
    return found != now.end() &&
           std::all_of(kind.value().begin(), kind.value().end(), [&](const Json& pattern) {
             return std::find(found->begin(), found->end(), pattern) != found->end();
           });
  });
}

[[noreturn]] void refuse(const std::string& difference) {
  throw Error(ErrorCode::kMismatch,
              "cannot resume: {} (run the original command on the original source, or start again "
              "with --force)",
              difference);
}

// Names the first source file whose size, header or samples changed.
std::string changed_file(const Json& earlier, const Json& now) {
  for (const char* list : {"files", "side_files"}) {
    std::map<std::string, Json> before;
    for (const Json& entry : earlier.at(list)) before[entry.at("name").get<std::string>()] = entry;
    for (const Json& entry : now.at(list)) {
      const auto name = entry.at("name").get<std::string>();
      const auto found = before.find(name);
      if (found == before.end()) return name + " is new";
      if (found->second != entry) return name + " has changed";
      before.erase(found);
    }
    if (!before.empty()) return before.begin()->first + " is gone";
  }
  const Json& givers = formats::json_member(earlier, "givers");
  for (const auto& [name, giver] : formats::json_member(now, "givers").items()) {
    const Json& before = formats::json_member(givers, name);
    if (before != giver)
      return fmt::format("source '{}': {}", name,
                         before.is_null() ? "it is new" : changed_file(before, giver));
  }
  return "config.json has changed";
}

// The identity of a job by its command; null for facts that only its source tells.
Json identity_of_options(const Recipe& recipe, const PlanOptions& options) {
  Json shards = "keep-files";
  if (options.shards.max_shard_bytes) shards = *options.shards.max_shard_bytes;
  Json identity = {{"version", std::string(kVersion)},
                   {"family", nullptr},
                   {"recipe", recipe.to_json()},
                   {"shards", shards},
                   {"source", nullptr},
                   {"plan", nullptr}};
  if (options.layout->is_sliced) identity["slicing"] = slicing_json(options);
  if (options.shards.align > 0) identity["align"] = options.shards.align;
  if (options.shards.n_files) identity["files"] = *options.shards.n_files;
  if (options.shards.order != TensorOrder::kDtype)
    identity["order"] = kTensorOrders.at(static_cast<std::size_t>(options.shards.order));
  // Files that are links for the one are written by the other.
  if (recipe.choices.repair) identity["links"] = options.links ? "yes" : "no";
  return identity;
}

void add_family(const formats::Family& family, Json& identity) {
  identity["family"] = std::string(family.name);
  if (!family.file_hash.empty()) identity["family_file"] = family.file_hash;
  // A file that was changed since has no proof.
  if (const std::string proof = formats::proof_in(family.yaml); !proof.empty())
    identity["family_proof"] = proof;
}

// `source`, the fingerprint, is null until it is known.
Json job_identity(const Plan& plan) {
  Json identity = identity_of_options(plan.recipe, plan.options);
  const formats::Family* known = plan.source_facts.family;
  add_family(known != nullptr ? *known : plan.source.family(), identity);
  identity["plan"] = plan_hash(plan).hex();
  return identity;
}

// A run with the options of `now` may continue the job `earlier`. `may_allow_more`: further --allow
// do not change tensors that passed without them.
void require_same_options(const Json& earlier, const Json& now, bool may_allow_more) {
  if (earlier.at("version") != now.at("version")) {
    refuse(fmt::format("it was begun by version {}, this is {}",
                       earlier.at("version").get<std::string>(),
                       now.at("version").get<std::string>()));
  }
  Json before = earlier, after = now;
  if (may_allow_more &&
      allows_as_much(earlier.at("recipe").at("allow"), now.at("recipe").at("allow")))
    before["recipe"]["allow"] = now.at("recipe").at("allow");
  before["source"] = after["source"] = nullptr;
  if (before == after) return;
  const std::string list = differing_settings(before, after);
  if (list.empty()) refuse("its plan differs");
  refuse(fmt::format("it was begun with other options: {}{}", list,
                     list.find("--allow ") == std::string::npos
                         ? ""
                         : "; an --allow may be added on the way, not taken back"));
}

void require_same_source(const Json& earlier, const Json& now) {
  if (earlier != now) refuse("the source is not the same: " + changed_file(earlier, now));
}

Json finished_identity(const formats::Manifest& manifest) {
  Json recipe = manifest.recipe;
  Json shards = recipe.at("shards");
  recipe.erase("shards");
  Json apart = Json::object();
  for (const char* key : kOwnKeys) {
    if (!recipe.contains(key)) continue;
    apart[key] = recipe.at(key);
    recipe.erase(key);
  }
  Json identity = {{"version", manifest.tool_version},
                   {"family", manifest.family},
                   {"recipe", std::move(recipe)},
                   {"shards", std::move(shards)},
                   {"source", manifest.source}};
  identity.update(apart);
  return identity;
}

Hash128 sample_hash(const Checkpoint& source, std::uint32_t file) {
  const std::uint64_t size = source.files()[file].n_bytes;
  if (size <= kFingerprintSamples * kFingerprintSampleBytes) {
    return check::hash_range(size, [&](std::uint64_t offset, std::span<std::byte> out) {
      source.read_file(file, offset, out);
    });
  }
  TensorHasher hasher;
  std::vector<std::byte> buffer(kFingerprintSampleBytes);
  const std::uint64_t last = size - kFingerprintSampleBytes;
  for (std::uint64_t i = 0; i < kFingerprintSamples; ++i) {
    // last * i stays below 2^64: a file is shorter than 2^58 bytes.
    source.read_file(file, last * i / (kFingerprintSamples - 1), buffer);
    hasher.update(buffer);
  }
  return hasher.finish();
}

const Json* known_entry(const Json* known, const std::string& name) {
  if (known == nullptr) return nullptr;
  for (const Json& entry : known->at("files")) {
    if (entry.at("name") == name) return &entry;
  }
  return nullptr;
}

}  // namespace

formats::JsonValue source_fingerprint(const Checkpoint& source, const Json* known,
                                      std::size_t threads) {
  if (const auto givers = source.givers(); !givers.empty()) {
    Json composed = *source_fingerprint(*givers.front().model, nullptr, threads);
    for (const formats::Giver& giver : givers.subspan(1))
      composed["givers"][giver.name] = *source_fingerprint(*giver.model, nullptr, threads);
    return composed;
  }
  const auto files = source.files();
  std::vector<Json> entries(files.size());
  parallel_for(files.size(), threads, [&](std::size_t i) {
    const auto file = static_cast<std::uint32_t>(i);
    const Hash128 header = hash_bytes(source.header_bytes(file));
    entries[i] = {{"name", files[i].name}, {"bytes", files[i].n_bytes}, {"header", header.hex()}};
    if (source.has_data(file)) {
      entries[i]["samples"] = sample_hash(source, file).hex();
      return;
    }
    if (known == nullptr) return;  // a program gives its bytes, which are not known beforehand
    const Json* entry = known_entry(known, files[i].name);
    if (entry == nullptr) {
      throw Error(ErrorCode::kNotFound, "is gone and no journal knows it").in_file(files[i].name);
    }
    entries[i]["samples"] = entry->at("samples");
  });

  const auto hash_of = [&](const std::filesystem::path& path) {
    return check::hash_file(path, threads).hex();
  };
  Json fingerprint = {{"files", Json::array()}, {"side_files", Json::array()}};
  for (Json& entry : entries) fingerprint["files"].push_back(std::move(entry));
  const auto config = source.directory() / "config.json";
  if (std::filesystem::exists(config)) fingerprint["config"] = hash_of(config);
  for (const formats::SideFile& side : source.side_files()) {
    fingerprint["side_files"].push_back({{"name", side.path},
                                         {"bytes", side.n_bytes},
                                         {"hash", hash_of(source.directory() / side.path)}});
  }
  return fingerprint;
}

Json require_resumable(const Plan& plan, const std::filesystem::path& output,
                       const Preflight& checked, std::size_t threads) {
  const OutputPaths paths(output);
  const auto record = checked.is_finished ? output / formats::kManifestName : paths.journal;
  return formats::read_members(record.string(), kRecordRemedy, [&] {
    Json identity = job_identity(plan);
    Json earlier = checked.earlier ? *checked.earlier->identity : Json();
    if (checked.is_finished) {
      earlier = finished_identity(*formats::read_manifest(output));
      identity.erase("plan");
    }
    // Facts that need no read of the source come first.
    if (!earlier.is_null()) require_same_options(earlier, identity, !checked.is_finished);
    identity["source"] =
        source_fingerprint(plan.source, checked.earlier ? &earlier.at("source") : nullptr, threads);
    if (!earlier.is_null()) require_same_source(earlier.at("source"), identity.at("source"));
    return identity;
  });
}

bool is_output_of(const Plan& plan, const std::filesystem::path& output, std::size_t threads) {
  Preflight finished;
  finished.is_finished = true;
  try {
    require_resumable(plan, output, finished, threads);
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kMismatch || error.code() == ErrorCode::kCorrupt) return false;
    throw;
  }
}

bool is_finished_of_deleted(const NamedSource& source, const std::filesystem::path& output,
                            const Recipe& recipe, const PlanOptions& options) {
  if (output_state(output) != OutputState::kFinished) return false;
  const std::optional<formats::Manifest> manifest = formats::read_manifest(output);
  if (!manifest) return false;
  return formats::read_members((output / formats::kManifestName).string(), kRecordRemedy, [&] {
    const Json& files = manifest->source->at("files");
    const auto is_gone = [&](const Json& file) {
      return !std::filesystem::exists(source.directory / file.at("name").get<std::string>());
    };
    const auto config = source.directory / "config.json";
    if (!std::any_of(files.begin(), files.end(), is_gone) || !std::filesystem::exists(config) ||
        check::hash_file(config).hex() != manifest->source->value("config", ""))
      return false;
    const Json earlier = finished_identity(*manifest);
    Json now = identity_of_options(recipe, options);
    if (source.family.empty()) {
      now["family"] = earlier.at("family");
    } else if (const formats::Family* family = formats::find_family(source.family)) {
      add_family(*family, now);
    } else {
      now["family"] = source.family;
    }
    if (const std::string list = differing_settings(earlier, now, true); !list.empty())
      refuse("it was begun with other options: " + list);
    return true;
  });
}

}  // namespace ingot::convert
