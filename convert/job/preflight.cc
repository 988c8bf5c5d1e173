#include "convert/job/preflight.h"

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert/job/disk_space.h"
#include "convert/job/fingerprint.h"
#include "convert/job/job_identity.h"
#include "convert/job/source_consumer.h"
#include "convert/output/loadable.h"
#include "convert/plan/side_files.h"
#include "formats/records/manifest.h"

namespace ingot::convert {

namespace fs = std::filesystem;
using formats::Checkpoint;
using formats::Json;

namespace {

void require_free_place(OutputState state, const fs::path& output, const ExecuteOptions& options) {
  if (options.force) return;
  const auto refuse = [&](const char* fact) {
    throw Error(ErrorCode::kExists, fact).in_file(output.string());
  };
  if (state == OutputState::kForeign)
    refuse("is not empty (choose another output, or --force to replace the checkpoint in it)");
  if (options.resume) return;
  if (state == OutputState::kUnfinished)
    refuse("holds an unfinished conversion (--resume to continue it, --force to start again)");
  if (state == OutputState::kFinished)
    refuse("holds a finished conversion (--force to replace it)");
}

// What somebody made a condition of publishing stays one.
void require_gate(const std::optional<JournalContents>& earlier, const ExecuteOptions& options) {
  const std::string asked = earlier && !earlier->publishing ? earlier->gate() : "";
  if (options.no_verify && asked.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--no-verify leaves out the verification that an unfinished conversion was begun "
                "with, and there is none here (remove it)");
  }
  if (asked.empty() || options.inspect || options.no_verify) return;
  throw Error(
      ErrorCode::kMismatch,
      fmt::format("cannot resume: it was begun with {}, which it has not passed (give that "
                  "again or other gates; or --no-verify to publish it unverified, which the "
                  "manifest records)",
                  asked));
}

// The output, or the nearest directory above it that is there.
void require_writable(const fs::path& output) {
  fs::path place = fs::absolute(output);
  std::error_code failure;
  while (fs::status(place, failure).type() == fs::file_type::not_found &&
         place.has_relative_path()) {
    place = place.parent_path();
  }
  if (failure && failure.value() != ENOENT)
    throw system_error(failure.value(), "look at the output", output.string());
  if (!fs::is_directory(place, failure)) {
    throw Error(
        ErrorCode::kExists,
        fmt::format("cannot be made: {} is not a directory (give another output)", place.string()))
        .in_file(output.string());
  }
  if (::access(place.c_str(), W_OK | X_OK) != 0)
    throw system_error(errno, "write below " + place.string(), output.string());
}

// Blocks that come free when the folder of an earlier run is removed.
std::uint64_t removable_bytes(const fs::path& folder) {
  std::uint64_t n_bytes = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    struct stat facts {};
    if (::lstat(entry.path().c_str(), &facts) == 0 && S_ISREG(facts.st_mode))
      n_bytes += static_cast<std::uint64_t>(facts.st_blocks) * 512 / facts.st_nlink;
  }
  return n_bytes;
}

bool may_be_consumed(const Checkpoint& source) {
  try {
    require_consumable(source);
    return true;
  } catch (const Error&) {
    return false;
  }
}

DiskNeed disk_need(const Plan& plan, const OutputPaths& paths, const ExecuteOptions& options,
                   const Preflight& checked) {
  DiskNeed need{.peak_bytes = peak_disk_bytes(plan, options.consume_source),
                .side_bytes = side_bytes(plan),
                .free_bytes = free_bytes(paths.output)};
  if (checked.earlier) {
    for (const PlannedFile& file : plan.files) {
      for (const PlannedFile::Member& member : file.members)
        if (fs::exists(paths.staged / member.path)) need.held_bytes += file.n_bytes;
    }
  } else if (fs::exists(paths.partial)) {
    need.free_bytes += removable_bytes(paths.partial);
  }
  if (!options.consume_source && may_be_consumed(plan.source))
    need.consuming_bytes = peak_disk_bytes(plan, true);
  return need;
}

}  // namespace

void require_place(const Checkpoint& source, const fs::path& output,
                   const ExecuteOptions& options) {
  require_apart(source.directory(), output);
  if (options.consume_source) require_consumable(source);
  if (!options.follow_links) require_own_side_files(source);
  const OutputState state = output_state(output);
  if (state != OutputState::kUnfinished) require_free_place(state, output, options);
  require_writable(output);
}

Preflight preflight(const Plan& plan, const fs::path& output, const ExecuteOptions& options) {
  INGOT_CHECK(options.threads >= 1);
  const OutputPaths paths(output);
  Preflight checked;
  checked.memory = plan_memory(plan, options.threads, options.mem_limit);
  require_place(plan.source, output, options);
  checked.state = output_state(output);
  require_free_place(checked.state, output, options);
  if (checked.state == OutputState::kUnfinished && options.resume)
    checked.earlier = Journal::read(paths.journal);
  require_gate(checked.earlier, options);
  // What was there before an unfinished conversion that does not go on.
  if (!checked.earlier) checked.state = state_beneath(output);
  if (!checked.earlier) require_free_place(checked.state, output, options);
  checked.is_finished = checked.state == OutputState::kFinished && options.resume;
  checked.disk = disk_need(plan, paths, options, checked);
  if (checked.is_finished) {
    checked.disk.held_bytes = checked.disk.peak_bytes;
    return checked;
  }
  if (!checked.earlier || !checked.earlier->publishing)
    checked.warnings = require_loadable(plan, options.threads);
  return checked;
}

void require_space(const Plan& plan, const Preflight& checked, const fs::path& output) {
  const DiskNeed& disk = checked.disk;
  const bool is_complete = checked.earlier && checked.earlier->publishing;
  if (is_complete || disk.missing() == 0) return;
  std::vector<std::string> remedies = {"choose an output on another disk"};
  if (disk.consuming_bytes && *disk.consuming_bytes < disk.peak_bytes) {
    remedies.push_back(
        fmt::format("--consume-source, which needs {} at the peak", *disk.consuming_bytes));
  }
  if (plan.has_rank_directories() && !plan.options.links)
    remedies.emplace_back("--links yes, which writes what several ranks load once");
  remedies.emplace_back("--to a scheme of fewer bits");
  if (disk.side_bytes >= disk.missing()) {
    remedies.push_back(fmt::format("a source without the files beside the weights, which take {}",
                                   disk.side_bytes));
  }
  throw Error(
      ErrorCode::kNoSpace,
      fmt::format("the output needs {} bytes at the peak, the file system has {} free: {} are "
                  "missing ({})",
                  disk.peak_bytes - std::min(disk.peak_bytes, disk.held_bytes), disk.free_bytes,
                  disk.missing(), fmt::join(remedies, "; or ")))
      .in_file(output.string());
}

namespace {

Json finished_identity(const formats::Manifest& manifest) {
  Json recipe = manifest.recipe;
  Json shards = recipe.at("shards");
  recipe.erase("shards");
  Json slicing = recipe.value("slicing", Json());
  recipe.erase("slicing");
  Json identity = {{"version", manifest.tool_version},
                   {"family", manifest.family},
                   {"recipe", std::move(recipe)},
                   {"shards", std::move(shards)},
                   {"source", manifest.source}};
  if (!slicing.is_null()) identity["slicing"] = std::move(slicing);
  return identity;
}

}  // namespace

Json require_resumable(const Plan& plan, const fs::path& output, const Preflight& checked,
                       const JobThreads& threads) {
  Json identity = job_identity(plan);
  Json earlier = checked.earlier ? checked.earlier->identity : Json();
  if (checked.is_finished) {
    earlier = finished_identity(*formats::read_manifest(output));
    identity.erase("plan");
  }
  // What can be told without reading the source comes first.
  if (!earlier.is_null()) require_same_options(earlier, identity, !checked.is_finished);
  identity["source"] =
      source_fingerprint(plan.source, checked.earlier ? &earlier.at("source") : nullptr, threads);
  if (!earlier.is_null()) require_same_source(earlier.at("source"), identity.at("source"));
  return identity;
}

}  // namespace ingot::convert
