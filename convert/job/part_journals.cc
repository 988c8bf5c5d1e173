#include "convert/job/part_journals.h"

#include <algorithm>
#include <map>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "convert/job/run_files.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/json/json.h"

namespace ingot::convert {

using formats::Json;

namespace fs = std::filesystem;

namespace {

// The most names that a message lists.
constexpr std::size_t kMaxNamed = 8;

// The journals of the runs that parts of a job have had. That of a run holds everything that the
// part has, once it has taken over the results of earlier runs.
struct PartJournal {
  RunFile file;
  JournalContents contents;
};

std::vector<PartJournal> read_part_journals(const OutputPaths& paths) {
  std::vector<PartJournal> journals;
  for (const RunFile& file : run_files(paths, kJournalSuffix)) {
    if (auto contents = Journal::read(file.path))
      journals.push_back({.file = file, .contents = std::move(*contents)});
  }
  return journals;
}

// A job, without the facts that a run may add to it.
Json job_of(const JournalContents& contents) {
  Json identity = *contents.identity;
  identity["recipe"].erase("allow");
  return identity;
}

void require_one_job(const JournalContents& one, const JournalContents& other,
                     const OutputPaths& paths) {
  if (job_of(one) == job_of(other)) return;
  throw Error(ErrorCode::kMismatch,
              "its parts were begun with other options, on another source, or by another version: "
              "they do not make one output (remove it, and start all parts alike)")
      .in_file(paths.partial.string());
}

// True if two runs read and wrote the same bytes of a tensor.
bool agree(const TensorResult& a, const TensorResult& b) {
  return a.source == b.source && a.output == b.output;
}

bool is_item(const Plan& plan, std::uint32_t item) {
  return item < plan.tensors.size() && plan.tensors[item].n_parts > 0 &&
         plan.is_here(plan.tensors[item]);
}

// Adds a journal's results for the items of this plan's run. A journal without any leaves no trace:
// the files that its run read do not matter here.
void add_contents(const Plan& plan, const JournalContents& from, JournalContents& to,
                  std::set<std::uint32_t>& disputed) {
  bool is_of_use = !plan.options.part;
  for (const auto& [item, result] : from.items) {
    if (!is_item(plan, item)) continue;
    is_of_use = true;
    const auto [known, is_new] = to.items.try_emplace(item, result);
    if (!is_new && !agree(known->second, result)) disputed.insert(item);
  }
  if (is_of_use) to.runs.insert(to.runs.end(), from.runs.begin(), from.runs.end());
}

// The newest journal of each part.
std::map<JobPart, const PartJournal*> newest(const std::vector<PartJournal>& journals) {
  std::map<JobPart, const PartJournal*> last;
  for (const PartJournal& journal : journals) last[*journal.file.part] = &journal;
  return last;
}

std::uint32_t n_complete(const std::map<JobPart, const PartJournal*>& journals, std::uint32_t n) {
  return static_cast<std::uint32_t>(std::ranges::count_if(journals, [&](const auto& entry) {
    return entry.first.n == n && entry.second->contents.complete;
  }));
}

// The number of parts of which the most are complete.
std::uint32_t best_number(const std::map<JobPart, const PartJournal*>& journals) {
  std::uint32_t best = 0;
  for (const auto& [part, journal] : journals) {
    if (n_complete(journals, part.n) == part.n) return part.n;
    if (best == 0 || n_complete(journals, part.n) > n_complete(journals, best)) best = part.n;
  }
  return best;
}

void require_complete(const std::map<JobPart, const PartJournal*>& journals, std::uint32_t n,
                      const OutputPaths& paths) {
  const std::uint32_t n_missing = n - n_complete(journals, n);
  if (n_missing == 0) return;
  std::vector<std::string> missing;
  for (std::uint32_t index = 0; index < n && missing.size() < kMaxNamed; ++index) {
    const auto found = journals.find({.index = index, .n = n});
    if (found == journals.end()) {
      missing.push_back(fmt::format("part {}/{} was not begun", index, n));
    } else if (!found->second->contents.complete) {
      missing.push_back(
          fmt::format("part {}/{} is not finished (continue it with --part {}/{} --resume)", index,
                      n, index, n));
    }
  }
  throw Error(ErrorCode::kNotFound,
              "cannot join: {} of {} parts are missing: {}{}; nothing is published", n_missing, n,
              fmt::join(missing, ", "), n_missing > missing.size() ? ", ..." : "")
      .in_file(paths.output.string());
}

Error rewritten(const Plan& plan, const std::vector<std::uint32_t>& parts, std::uint32_t n,
                std::size_t file, std::string_view fact) {
  const std::string part = text_of(JobPart{.index = parts[file], .n = n});
  return Error(
             ErrorCode::kMismatch,
             "{}, not what part {} wrote (run that part again with --part {} --resume, then join)",
             fact, part, part)
      .in_file(plan.files[file].name);
}

// Size and header of every weights file. Its tensors were hashed as they were written.
void require_staged(const Plan& plan, const OutputPaths& paths, std::uint32_t n) {
  const std::vector<std::uint32_t> parts = dealt_parts(plan, n);
  ErrorList faults;
  for (std::size_t f = 0; f < plan.files.size(); ++f) {
    const std::vector<Plan::KnownBytes> known = plan.known_bytes(f);
    for (const PlannedFile::Member& member : plan.files[f].members) {
      const fs::path path = paths.staged / member.path;
      const auto stamp = stamp_of(path);
      if (!stamp) {
        faults.add(rewritten(plan, parts, n, f, "is gone"));
      } else if (stamp->n_bytes != plan.files[f].n_bytes) {
        faults.add(rewritten(
            plan, parts, n, f,
            fmt::format("has {} bytes instead of {}", stamp->n_bytes, plan.files[f].n_bytes)));
      } else {
        const Fd file = Fd::open_for_reading(path);
        const bool is_alike = std::ranges::all_of(known, [&](const Plan::KnownBytes& stretch) {
          std::string found(stretch.bytes.size(), '\0');
          file.read_exact(std::as_writable_bytes(std::span(found)), stretch.offset);
          return found == stretch.bytes;
        });
        if (!is_alike) faults.add(rewritten(plan, parts, n, f, "has another header"));
      }
    }
  }
  faults.throw_if_any();
}

}  // namespace

std::optional<JournalContents> earlier_contents(const Plan& plan, const OutputPaths& paths) {
  std::optional<JournalContents> all = Journal::read(paths.journal);
  const std::vector<PartJournal> journals = read_part_journals(paths);
  if (journals.empty()) return all;
  if (!all) all = JournalContents{.identity = *journals.front().contents.identity};
  std::erase_if(all->items, [&](const auto& entry) { return !is_item(plan, entry.first); });
  std::set<std::uint32_t> disputed;
  for (const PartJournal& journal : journals) {
    require_one_job(*all, journal.contents, paths);
    add_contents(plan, journal.contents, *all, disputed);
  }
  for (const std::uint32_t item : disputed) all->items.erase(item);
  return all;
}

JournalContents joined_contents(const Plan& plan, const OutputPaths& paths) {
  const std::vector<PartJournal> journals = read_part_journals(paths);
  if (journals.empty()) {
    throw Error(ErrorCode::kNotFound,
                "holds no parts to join (convert with --part I/N first; a conversion without parts "
                "is continued with --resume)")
        .in_file(paths.output.string());
  }
  const auto last = newest(journals);
  const std::uint32_t n = best_number(last);
  require_complete(last, n, paths);
  JournalContents all{.identity = *last.begin()->second->contents.identity};
  std::set<std::uint32_t> disputed;
  for (const auto& [part, journal] : last) {
    if (part.n != n) {
      all.doubtful = true;
      continue;
    }
    if (all.runs.empty()) all.identity = *journal->contents.identity;
    require_one_job(all, journal->contents, paths);
    add_contents(plan, journal->contents, all, disputed);
  }
  for (std::uint32_t index = 0; index < plan.tensors.size(); ++index) {
    const PlannedTensor& planned = plan.tensors[index];
    if (planned.n_parts == 0 || (all.items.contains(index) && !disputed.contains(index))) continue;
    const std::uint32_t file = plan.first_place(planned.parts[0]).file;
    throw Error(ErrorCode::kMismatch,
                "parts of the job {} (the memory or the source of a host may be broken: run part "
                "{} again with --resume)",
                disputed.contains(index) ? "read or wrote it differently" : "do not have it",
                text_of(JobPart{.index = dealt_parts(plan, n)[file], .n = n}))
        .in_tensor(plan.tensor_of(planned).name);
  }
  require_staged(plan, paths, n);
  return all;
}

std::vector<RunRecord> runs_of(const OutputPaths& paths) {
  std::vector<RunRecord> runs;
  const auto add = [&](const JournalContents& contents) {
    runs.insert(runs.end(), contents.runs.begin(), contents.runs.end());
  };
  for (const PartJournal& journal : read_part_journals(paths)) add(journal.contents);
  if (const auto whole = Journal::read(paths.journal)) add(*whole);
  return runs;
}

formats::JsonValue settings_of_part(const OutputPaths& paths) {
  formats::JsonValue settings;
  for (const RunRecord& run : runs_of(paths)) {
    if (!run.settings.is_null() && (settings.is_null() || !run.gate.is_null()))
      settings = run.settings;
  }
  return settings;
}

void require_new_part(const OutputPaths& paths, const JobPart& part) {
  const auto refuse = [&](const std::string& fact) {
    throw Error(ErrorCode::kExists, fact).in_file(paths.output.string());
  };
  if (fs::exists(paths.journal)) {
    refuse(
        "holds an unfinished conversion that a run without --part was at (--resume to go on "
        "with it in parts)");
  }
  for (const RunFile& file : run_files(paths, kJournalSuffix)) {
    if (file.part == part) {
      refuse(fmt::format("holds files of an earlier run of part {} (--resume to continue it)",
                         text_of(part)));
    }
    if (file.part->n != part.n) {
      refuse(
          fmt::format("holds parts of {} (give the same number, or --resume to go on with "
                      "another)",
                      file.part->n));
    }
  }
}

}  // namespace ingot::convert
