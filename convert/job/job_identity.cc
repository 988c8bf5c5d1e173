#include "convert/job/job_identity.h"

#include <algorithm>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "check/stored_hashes.h"
#include "convert/output/manifest_writer.h"
#include "convert/output/output_directory.h"
#include "convert/output/version.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/json/json.h"
#include "formats/json/members.h"
#include "formats/records/manifest.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::Json;

namespace {

// From the words of an option to its value, as given; empty where it is not given.
using OptionTexts = std::map<std::string, std::string>;

constexpr std::string_view kRecordRemedy =
    "it was changed, or is another version's: start again with --force";

// The options that an identity keeps, default rules apart: those follow from the others.
OptionTexts said_options(const Json& identity) {
  OptionTexts said;
  const auto put = [&](std::string_view key, const Json& value) {
    if (key.ends_with("_filled")) return;
    if (key == "shards") key = "max-shard-size";
    if (key == "stages") key = "pp-layers";
    std::string name = fmt::format("--{}", key);
    std::ranges::replace(name, '_', '-');
    std::string& text = said[name];
    if (value.is_null() || value == "keep-files") return;
    if (!text.empty()) text += ' ';
    text += value.is_string() ? value.get<std::string>() : value.dump();
  };
  const Json& recipe = identity.at("recipe");
  for (const char* key : {"to", "mtp"}) put(key, recipe.at(key));
  for (const auto& [key, value] : recipe.at("choices").items()) put(key, value);
  for (const Json& rule : recipe.at("rules")) {
    const std::string_view origin = rule.at("origin").get_ref<const std::string&>();
    if (!origin.starts_with("--")) continue;
    put(origin.substr(2), fmt::format("{}={}", rule.at("match").get<std::string>(),
                                      rule.at("scheme").get<std::string>()));
  }
  put("allow", {});
  for (const auto& [kind, patterns] : recipe.at("allow").items()) {
    for (const Json& pattern : patterns)
      put("allow", fmt::format("{}={}", kind, pattern.get<std::string>()));
  }
  for (const char* key : {"family", "shards", "align", "links", "family_file"})
    put(key, formats::json_member(identity, key));
  for (const auto& [key, value] : formats::json_member(identity, "slicing").items())
    put(key, value);
  return said;
}

// `--to int8 (now bf16), --mtp drop (now not given), --importance (its files have changed)`.
// `is_open`: options that the present command leaves out are decided by the source, but for rules.
std::string differing_options(const Json& earlier, const Json& now, bool is_open = false) {
  OptionTexts before = said_options(earlier), after = said_options(now);
  if (is_open) std::erase_if(after, [](const auto& option) { return option.second.empty(); });
  for (const auto& [name, text] : before) {
    if (!is_open || name == "--rule") after.try_emplace(name);
  }
  // Decided by --to where it is not given.
  if (before["--to"] != (after.contains("--to") ? after["--to"] : "")) after.erase("--mtp");
  std::vector<std::string> changes;
  for (const auto& [name, is] : after) {
    const std::string& was = before[name];
    if (was == is) continue;
    // The value identifies the content of a file, which means nothing to a reader.
    const bool is_file = name == "--family-file" || name == "--activation-scales" ||
                         name == "--importance" || name == "--scales-from";
    const auto shown = [&](const std::string& value) {
      return value.empty() ? "not given" : is_file ? "given" : value;
    };
    changes.push_back(is_file && !was.empty() && !is.empty()
                          ? fmt::format("{} (its files have changed)", name)
                          : fmt::format("{} {} (now {})", name, shown(was), shown(is)));
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
  return "config.json has changed";
}

// The identity of a job by its command; null for facts that only its source tells.
Json said_identity(const Recipe& recipe, const PlanOptions& options) {
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
  // Files that are links for the one are written by the other.
  if (recipe.choices.repair) identity["links"] = options.links ? "yes" : "no";
  return identity;
}

// `source`, the fingerprint, is null until it is known.
Json job_identity(const Plan& plan) {
  Json identity = said_identity(plan.recipe, plan.options);
  identity["family"] = std::string(plan.source.family().name);
  identity["plan"] = plan_hash(plan).hex();
  if (const std::string& hash = plan.source.family().file_hash; !hash.empty())
    identity["family_file"] = hash;
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
  const std::string list = differing_options(before, after);
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

bool is_finished_of_deleted(const std::filesystem::path& source,
                            const std::filesystem::path& output, const Recipe& recipe,
                            const PlanOptions& options) {
  if (output_state(output) != OutputState::kFinished) return false;
  const std::optional<formats::Manifest> manifest = formats::read_manifest(output);
  if (!manifest) return false;
  return formats::read_members((output / formats::kManifestName).string(), kRecordRemedy, [&] {
    const Json& files = manifest->source->at("files");
    const auto is_gone = [&](const Json& file) {
      return !std::filesystem::exists(source / file.at("name").get<std::string>());
    };
    const auto config = source / "config.json";
    if (!std::any_of(files.begin(), files.end(), is_gone) || !std::filesystem::exists(config) ||
        check::hash_file(config).hex() != manifest->source->value("config", ""))
      return false;
    const Json earlier = finished_identity(*manifest);
    Json now = said_identity(recipe, options);
    now["family"] = earlier.at("family");
    if (const std::string list = differing_options(earlier, now, true); !list.empty())
      refuse("it was begun with other options: " + list);
    return true;
  });
}

}  // namespace ingot::convert
