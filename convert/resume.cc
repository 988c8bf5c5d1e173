#include "convert/resume.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "convert/version.h"
#include "formats/base/fd.h"
#include "formats/base/parallel.h"

namespace ingot::convert {

using formats::Json;

namespace {

constexpr std::uint64_t kVerifyBytes = std::uint64_t{1} << 20;

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

}  // namespace

Json job_identity(const Plan& plan, const formats::Checkpoint& source, const Recipe& recipe,
                  const PlanOptions& options, const Json& fingerprint) {
  Json shards = "keep-files";
  if (options.shards.max_shard_bytes) shards = *options.shards.max_shard_bytes;
  return {{"version", std::string(kVersion)},
          {"family", std::string(source.family().name)},
          {"recipe", recipe.to_json()},
          {"shards", shards},
          {"source", fingerprint},
          {"plan", plan_hash(plan, source).hex()}};
}

void require_same_job(const Json& earlier, const Json& now) {
  if (earlier == now) return;
  std::string difference = "the plan differs";
  if (earlier.at("version") != now.at("version")) {
    difference =
        fmt::format("it was begun by version {}, this is {}",
                    earlier.at("version").get<std::string>(), now.at("version").get<std::string>());
  } else if (earlier.at("recipe") != now.at("recipe") || earlier.at("shards") != now.at("shards") ||
             earlier.at("family") != now.at("family")) {
    difference = "it was begun with other options";
  } else if (earlier.at("source") != now.at("source")) {
    difference =
        "the source is not the same: " + changed_file(earlier.at("source"), now.at("source"));
  }
  throw Error(
      ErrorCode::kMismatch,
      fmt::format(
          "cannot resume: {} (run the original command on the original source, or start again "
          "with --force)",
          difference));
}

bool verify_item(const PlannedTensor& planned, const Plan& plan, const OutputPaths& paths,
                 const std::vector<Hash128>& expected) {
  if (expected.size() != planned.n_parts) return false;
  std::vector<std::byte> buffer(kVerifyBytes);
  for (std::size_t p = 0; p < planned.n_parts; ++p) {
    const PlannedPart& part = planned.parts[p];
    TensorHasher hasher;
    try {
      const Fd file = Fd::open_for_reading(paths.staged / plan.files[part.file].name);
      for (std::uint64_t done = 0; done < part.n_bytes;) {
        const auto piece = std::span(buffer).first(std::min(kVerifyBytes, part.n_bytes - done));
        file.read_exact(piece, part.offset + done);
        hasher.update(piece);
        done += piece.size();
      }
    } catch (const Error& error) {
      // A file that is missing or short did not survive; its items are done again.
      if (error.code() == ErrorCode::kNotFound || error.code() == ErrorCode::kCorrupt) return false;
      throw;
    }
    if (hasher.finish() != expected[p]) return false;
  }
  return true;
}

std::vector<std::uint32_t> verify_journal(const Plan& plan, const OutputPaths& paths,
                                          const std::map<std::uint32_t, ItemRecord>& items,
                                          std::size_t threads) {
  std::vector<std::pair<std::uint32_t, const ItemRecord*>> claims;
  for (const auto& [item, hashes] : items) {
    if (item < plan.tensors.size()) claims.emplace_back(item, &hashes);
  }
  std::vector<char> good(claims.size(), 0);
  parallel_for(claims.size(), threads, [&](std::size_t i) {
    good[i] =
        verify_item(plan.tensors[claims[i].first], plan, paths, claims[i].second->output) ? 1 : 0;
  });
  std::vector<std::uint32_t> verified;
  for (std::size_t i = 0; i < claims.size(); ++i) {
    if (good[i] != 0) verified.push_back(claims[i].first);
  }
  return verified;
}

}  // namespace ingot::convert
