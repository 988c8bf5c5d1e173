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
  Json identity = {{"version", std::string(kVersion)},
                   {"family", std::string(source.family().name)},
                   {"recipe", recipe.to_json()},
                   {"shards", shards},
                   {"source", fingerprint},
                   {"plan", plan_hash(plan, source).hex()}};
  if (plan.is_sliced()) identity["slicing"] = slicing_json(options);
  return identity;
}

void require_same_job(const Json& earlier, const Json& now) {
  if (earlier == now) return;
  std::string difference = "the plan differs";
  if (earlier.at("version") != now.at("version")) {
    difference =
        fmt::format("it was begun by version {}, this is {}",
                    earlier.at("version").get<std::string>(), now.at("version").get<std::string>());
  } else if (earlier.at("recipe") != now.at("recipe") || earlier.at("shards") != now.at("shards") ||
             earlier.at("family") != now.at("family") ||
             earlier.value("slicing", Json()) != now.value("slicing", Json())) {
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

namespace {

Hash128 hash_of_range(const std::filesystem::path& path, std::uint64_t offset,
                      std::uint64_t n_bytes) {
  std::vector<std::byte> buffer(std::min(kVerifyBytes, n_bytes));
  TensorHasher hasher;
  const Fd file = Fd::open_for_reading(path);
  for (std::uint64_t done = 0; done < n_bytes;) {
    const auto piece = std::span(buffer).first(std::min(kVerifyBytes, n_bytes - done));
    file.read_exact(piece, offset + done);
    hasher.update(piece);
    done += piece.size();
  }
  return hasher.finish();
}

}  // namespace

bool verify_item(const PlannedTensor& planned, const Plan& plan,
                 const formats::TensorSource& source, const OutputPaths& paths,
                 const std::vector<std::vector<Hash128>>& expected) {
  if (expected.size() != planned.n_parts) return false;
  for (std::size_t p = 0; p < planned.n_parts; ++p) {
    for (const PlannedSlice& slice : slices_of(plan, source, planned, p)) {
      if (slice.hash >= expected[p].size()) return false;
      try {
        const Hash128 found = hash_of_range(paths.staged / plan.member_path(slice.member),
                                            slice.offset, slice.n_bytes);
        if (found != expected[p][slice.hash]) return false;
      } catch (const Error& error) {
        // A file that is missing or short did not survive; its items are done again.
        if (error.code() == ErrorCode::kNotFound || error.code() == ErrorCode::kCorrupt)
          return false;
        throw;
      }
    }
  }
  return true;
}

std::vector<std::uint32_t> verify_journal(const Plan& plan, const formats::TensorSource& source,
                                          const OutputPaths& paths,
                                          const std::map<std::uint32_t, ItemRecord>& items,
                                          std::size_t threads) {
  std::vector<std::pair<std::uint32_t, const ItemRecord*>> claims;
  for (const auto& [item, hashes] : items) {
    if (item < plan.tensors.size()) claims.emplace_back(item, &hashes);
  }
  std::vector<char> good(claims.size(), 0);
  parallel_for(claims.size(), threads, [&](std::size_t i) {
    good[i] =
        verify_item(plan.tensors[claims[i].first], plan, source, paths, claims[i].second->output)
            ? 1
            : 0;
  });
  std::vector<std::uint32_t> verified;
  for (std::size_t i = 0; i < claims.size(); ++i) {
    if (good[i] != 0) verified.push_back(claims[i].first);
  }
  return verified;
}

}  // namespace ingot::convert
