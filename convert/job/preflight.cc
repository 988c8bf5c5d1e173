#include "convert/job/preflight.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert/job/job_identity.h"
#include "convert/job/part_journals.h"
#include "convert/job/source_consumer.h"
#include "convert/output/apart.h"
#include "convert/output/model_card.h"
#include "convert/output/old_output.h"
#include "convert/output/planned_checkpoint.h"
#include "formats/files/folder.h"
#include "formats/files/free_space.h"
#include "formats/files/hub_cache.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"

namespace ingot::convert {

namespace fs = std::filesystem;

namespace {

// True if a path is another one, or below it, as both are spelled.
bool is_inside(const fs::path& inner, const fs::path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

// Throws for a path in the hub's cache, however it is reached: other programs share it. `is_whole`:
// so for every path in the cache, not only in the files that it keeps.
void require_outside_hub_cache(const fs::path& path, bool is_whole, const fs::path& cache,
                               std::string_view deed) {
  std::optional<fs::path> folder = formats::hub_folder_around(path, is_whole);
  if (!folder && is_whole && !cache.empty() && is_inside(resolved_path(path), resolved_path(cache)))
    folder = cache;
  if (!folder) return;
  throw Error(ErrorCode::kInvalidArgument,
              "lies in the hub's cache {}, which other programs share: {}", folder->string(), deed)
      .in_file(path.string());
}

// Nothing is deleted or replaced in the hub's cache, nor put into a model there.
void spare_hub_cache(const Plan& plan, const fs::path& output, const ExecuteOptions& options) {
  if (options.consume_source) {
    require_outside_hub_cache(plan.source.directory(), true, options.hub_cache,
                              "--consume-source would delete its files (leave it out, or fetch the "
                              "model once more: hf download ORG/NAME --local-dir DIR)");
  }
  require_outside_hub_cache(output, options.force, options.hub_cache,
                            "an output would change what they read (give another output)");
}

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

// A verification that the job was begun with stays a condition of publishing.
void require_gate(const std::optional<JournalContents>& earlier, const ExecuteOptions& options) {
  const std::string asked = earlier && !earlier->publishing ? typed(earlier->gate()) : "";
  if (options.no_verify && asked.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--no-verify leaves out the verification that an unfinished conversion was begun "
                "with, and there is none here (remove it)");
  }
  if (asked.empty() || options.inspect || options.no_verify) return;
  throw Error(ErrorCode::kMismatch,
              "cannot resume: it was begun with {}, which it has not passed (give that again or "
              "other gates; or --no-verify to publish it unverified, which the manifest records)",
              asked);
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
    throw Error(ErrorCode::kExists, "cannot be made: {} is not a directory (give another output)",
                place.string())
        .in_file(output.string());
  }
  if (::access(place.c_str(), W_OK | X_OK) != 0)
    throw system_error(errno, "write below " + place.string(), output.string());
}

// Blocks that come free when the folder of an earlier run is removed.
std::uint64_t removable_bytes(const fs::path& folder) {
  std::uint64_t n_bytes = 0;
  for (const fs::directory_entry& entry : entries_below(folder)) {
    struct stat facts {};
    if (::lstat(entry.path().c_str(), &facts) == 0 && S_ISREG(facts.st_mode))
      n_bytes += static_cast<std::uint64_t>(facts.st_blocks) * 512 / facts.st_nlink;
  }
  return n_bytes;
}

bool may_be_consumed(const Plan& plan) {
  try {
    require_consumable(plan);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Returns the bytes of the weights files on the disk: a file of several ranks counts once, or once
// per rank without links.
std::uint64_t bytes_on_disk(const Plan& plan) {
  return plan.has_rank_directories() && !plan.options.links ? copied_bytes(plan)
                                                            : plan.sizes.bytes_out;
}

// Records and manifest: a few hundred bytes per tensor before compression.
constexpr std::uint64_t kRecordBytes = 512;
// A file system gives a file whole blocks.
constexpr std::uint64_t kBlockBytes = 4096;

// An upper bound of the files next to the weights in directories of ranks: indices, records,
// manifests, and side files that are not linked but copied.
std::uint64_t rank_side_bytes(const Plan& plan, std::uint64_t shared_bytes) {
  std::uint64_t longest_name = 0;
  for (const formats::StoredTensor& stored : plan.source.stored())
    longest_name = std::max<std::uint64_t>(longest_name, stored.name.size());
  const std::uint64_t n_ranks = plan.slicing->topology.n_ranks();
  const std::uint64_t n_shared =
      plan.source.side_files().size() + 5;  // configs, description and card
  std::uint64_t n_bytes = 0;
  for (const PlannedFile& file : plan.files) {
    for (const PlannedFile::Member& member : file.members) {
      const std::uint64_t n_loading = member.ranks.size();
      const std::uint64_t entry = longest_name + file.name.size() + kRecordBytes;
      n_bytes += n_loading * (file.parts.size() * entry + kRecordBytes);
      if (!plan.options.links) n_bytes += (n_loading - 1) * kBlockBytes;
    }
  }
  // The manifest of a rank repeats the config of the whole and, in options and slicing, the map.
  const std::uint64_t map_bytes = formats::json_text(plan.slicing->experts.to_json()).size();
  const std::uint64_t own =
      plan.json.whole_config.size() + 4 * map_bytes + 16 * kRecordBytes + 4 * kBlockBytes;
  n_bytes += n_ranks * own;
  if (!plan.options.links) n_bytes += (n_ranks - 1) * (shared_bytes + n_shared * kBlockBytes);
  return n_bytes;
}

// An upper bound of all other files: indices, records, manifests, configs, side files.
std::uint64_t side_bytes(const Plan& plan) {
  std::uint64_t shared = plan.json.config.size() + plan.json.native_config.size();
  shared += plan.json.description.size();
  if (has_model_card(plan)) shared += model_card_text(plan, {}, {}).size() + kServingBytes;
  for (const formats::SideFile& file : plan.source.side_files()) shared += file.n_bytes;
  std::uint64_t n_bytes = std::uint64_t{1} << 20;
  n_bytes += plan.tensors.size() * kRecordBytes + shared + plan.json.index.size();
  n_bytes += (plan.n_members + plan.source.side_files().size()) * kBlockBytes;
  if (plan.has_rank_directories()) n_bytes += rank_side_bytes(plan, shared);
  return n_bytes;
}

// Bytes that the output needs at its peak; with consume_source, source files that are deleted on
// the way count back.
std::uint64_t peak_disk_bytes(const Plan& plan, bool consume_source) {
  // Files next to the weights come when the parts are joined.
  if (plan.options.part) return plan.sizes.bytes_out;
  const std::uint64_t side = side_bytes(plan);
  if (!consume_source) return bytes_on_disk(plan) + side;

  // Output files are reserved whole when the first item starts in them; a source file comes back
  // after the last item that reads it.
  std::vector<std::size_t> waiting(plan.source.files().size(), 0);
  for (const PlannedTensor& planned : plan.tensors) {
    for (const std::uint32_t file : plan.source_files_of(planned)) ++waiting[file];
  }
  std::vector<char> opened(plan.files.size(), 0);
  std::uint64_t used = side, freed = 0, peak = 0;
  for (const PlannedTensor& planned : plan.tensors) {
    for (std::size_t p = 0; p < planned.n_parts; ++p) {
      for (const PlannedPlace& place : plan.places_of(planned.parts[p])) {
        const PlannedFile& file = plan.files[place.file];
        if (opened[place.file] == 0) used += file.n_bytes * file.members.size();
        opened[place.file] = 1;
      }
    }
    peak = std::max(peak, used - std::min(used, freed));
    for (const std::uint32_t file : plan.source_files_of(planned)) {
      if (--waiting[file] == 0) freed += plan.source.files()[file].n_bytes;
    }
  }
  // A deletion follows its items by a sync; two more output files may be open by then.
  std::uint64_t slack = 0;
  for (const PlannedFile& file : plan.files)
    slack = std::max(slack, file.n_bytes * file.members.size());
  // Copies are made when the source has gone.
  peak = std::max(peak, bytes_on_disk(plan) + side - std::min(bytes_on_disk(plan), freed));
  return std::min(bytes_on_disk(plan) + side, peak + 2 * slack);
}

DiskNeed disk_need(const Plan& plan, const OutputPaths& paths, const ExecuteOptions& options,
                   const Preflight& checked) {
  // With --read-back all of the source stays to the end.
  DiskNeed need{.peak_bytes = peak_disk_bytes(plan, options.consume_source && !options.read_back),
                .side_bytes = plan.options.part ? 0 : side_bytes(plan),
                .free_bytes = free_bytes(paths.output)};
  // Links are on the file system of their targets.
  const auto home = stamp_of(plan.source.directory()),
             there = stamp_of(existing_parent(paths.output));
  const bool has_links = home && there && home->device == there->device;
  for (const PlannedFile& file : plan.files) {
    if (file.is_linked && !has_links) need.peak_bytes += file.n_bytes;
  }
  if (checked.earlier) {
    for (const PlannedFile& file : plan.files) {
      for (const PlannedFile::Member& member : file.members)
        if (file.is_here && fs::exists(paths.staged / member.path)) need.held_bytes += file.n_bytes;
    }
  } else if (fs::exists(paths.partial)) {
    need.free_bytes += removable_bytes(paths.partial);
  }
  if (!options.consume_source && !options.read_back && !plan.options.part && may_be_consumed(plan))
    need.consuming_bytes = peak_disk_bytes(plan, true);
  return need;
}

// The files that --force replaces and removes. Throws for others.
std::vector<std::string> replaced_by(const Plan& plan, const OutputPaths& paths,
                                     const ExecuteOptions& options) {
  if (!options.force) return {};
  // A publication that was cut left files, and no manifest that lists them.
  std::set<std::string> begun;
  if (const auto before = Journal::read(paths.journal)) begun = before->found_files();
  OldFiles found = find_old_files(paths, publish_order(plan), begun);
  require_no_unknown(found.unknown, paths.output);
  return {found.known.begin(), found.known.end()};
}

// The leftovers of earlier runs that this one continues.
std::optional<JournalContents> earlier_of(const Plan& plan, const OutputPaths& paths,
                                          const ExecuteOptions& options) {
  if (!options.resume && !plan.options.part) return std::nullopt;
  if (options.join) {
    if (auto whole = Journal::read(paths.journal); whole && whole->publishing) return whole;
    JournalContents joined = joined_contents(plan, paths);
    if (const auto whole = Journal::read(paths.journal)) {
      joined.valid_bytes = whole->valid_bytes;
      joined.doubtful = true;
    }
    return joined;
  }
  auto earlier = earlier_contents(plan, paths);
  if (earlier && earlier->publishing && plan.options.part) {
    throw Error(ErrorCode::kExists,
                "its parts are complete, and being published (ingot join goes on with that)")
        .in_file(paths.output.string());
  }
  return earlier;
}

// Options that are about the whole output.
void require_apt_for_part(const Plan& plan, const ExecuteOptions& options) {
  if (!plan.options.part) return;
  const auto refuse = [](const char* fact) { throw Error(ErrorCode::kInvalidArgument, fact); };
  if (options.consume_source) {
    refuse(
        "--consume-source deletes files that other parts may still need (leave it out, or do "
        "not convert in parts)");
  }
  if (options.force) {
    refuse(
        "--force replaces the output, which other parts may be writing (remove the output, and "
        "start all parts again)");
  }
}

}  // namespace

void require_own_side_files(const formats::Checkpoint& source) {
  const fs::path own = fs::canonical(source.directory());
  const bool is_snapshot = own.parent_path().filename() == "snapshots";
  const fs::path blobs = own.parent_path().parent_path() / "blobs";
  ErrorList faults;
  for (const formats::SideFile& side : source.side_files()) {
    const fs::path path = source.directory() / side.path;
    const fs::path target = fs::canonical(path);
    if (is_inside(target, own) || (is_snapshot && is_inside(target, blobs))) continue;
    faults.add(Error(ErrorCode::kUnsupported,
                     "is a link to {}, outside the source, and the output would get a copy of it "
                     "(put the file itself there, or accept all such links with --follow-links)",
                     target.string())
                   .in_file(path.string()));
  }
  faults.throw_if_any();
}

std::uint64_t copied_bytes(const Plan& plan) {
  std::uint64_t n_bytes = 0;
  for (const PlannedFile& file : plan.files) {
    for (const PlannedFile::Member& member : file.members)
      n_bytes += file.n_bytes * member.ranks.size();
  }
  return n_bytes;
}

void require_place(const Plan& plan, const fs::path& output, const ExecuteOptions& options) {
  spare_hub_cache(plan, output, options);
  require_apart(inputs_of(plan), output);
  if (options.consume_source) require_consumable(plan);
  if (!options.follow_links) require_own_side_files(plan.source);
  const OutputState state = output_state(output);
  if (state != OutputState::kUnfinished) require_free_place(state, output, options);
  require_own_folders(OutputPaths(output), publish_order(plan));
  require_writable(output);
}

Preflight preflight(const Plan& plan, const fs::path& output, const ExecuteOptions& options) {
  INGOT_CHECK(options.threads >= 1);
  require_apt_for_part(plan, options);
  const OutputPaths paths(output);
  Preflight checked;
  checked.memory = plan_memory(plan, options.threads, options.mem_limit);
  // A source file is deleted when all that it holds is written: one after the other.
  if (options.consume_source) checked.memory.files_at_once = 1;
  require_place(plan, output, options);
  checked.state = output_state(output);
  if (plan.options.part && checked.state == OutputState::kUnfinished) {
    if (!options.resume) require_new_part(paths, *plan.options.part);
  } else {
    require_free_place(checked.state, output, options);
  }
  if (checked.state == OutputState::kUnfinished ||
      (options.join && checked.state != OutputState::kFinished))
    checked.earlier = earlier_of(plan, paths, options);
  // The join requires the verification that the parts were begun with.
  if (!plan.options.part) require_gate(checked.earlier, options);
  // State of the output before an unfinished conversion that is not continued.
  if (!checked.earlier) checked.state = state_beneath(output);
  if (!checked.earlier) require_free_place(checked.state, output, options);
  // With --force, too, the output of another job is the one that is replaced.
  checked.is_finished = checked.state == OutputState::kFinished && options.resume &&
                        (!options.force || is_output_of(plan, output, options.threads));
  if (!checked.is_finished) checked.replaced = replaced_by(plan, paths, options);
  checked.disk = disk_need(plan, paths, options, checked);
  if (checked.is_finished) {
    checked.disk.held_bytes = checked.disk.peak_bytes;
    return checked;
  }
  if (!checked.earlier || !checked.earlier->publishing)
    checked.loadable = require_loadable(plan, options.threads);
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
    remedies.emplace_back("--links yes, which writes files of several ranks once");
  remedies.emplace_back("--to a scheme of fewer bits");
  if (disk.side_bytes >= disk.missing()) {
    remedies.push_back(
        fmt::format("a source without its other files, which take {}", disk.side_bytes));
  }
  throw Error(
      ErrorCode::kNoSpace,
      "the output needs {} bytes at the peak, the file system has {} free: {} are missing ({})",
      disk.peak_bytes - std::min(disk.peak_bytes, disk.held_bytes), disk.free_bytes, disk.missing(),
      fmt::join(remedies, "; or "))
      .in_file(output.string());
}

}  // namespace ingot::convert
