#include "convert/loadable.h"

#include <fcntl.h>
#include <fmt/format.h>

#include "convert/manifest_writer.h"
#include "convert/rank_directories.h"
#include "formats/base/fd.h"
#include "formats/loader_rules.h"

namespace ingot::convert {

using formats::Finding;

namespace {

// Beyond this many warnings of one conversion nobody reads on.
constexpr std::size_t kMaxWarnings = 20;

std::string text_of(const Finding& finding) {
  std::string text = fmt::format("{}: ", finding.rule);
  if (!finding.tensor.empty()) text += fmt::format("'{}' ", finding.tensor);
  return text + finding.message;
}

}  // namespace

KnownFindings known_findings(const formats::Checkpoint& source, std::size_t threads) {
  KnownFindings known;
  for (const Finding& finding :
       formats::run_loader_rules(source, {.threads = threads, .values = false}))
    known.emplace(finding.rule, finding.tensor);
  return known;
}

namespace {

void write_sparse(const std::filesystem::path& path, const std::string& header,
                  std::uint64_t n_bytes) {
  std::filesystem::create_directories(path.parent_path());
  Fd sparse = Fd::open_for_writing(path, O_WRONLY | O_CREAT | O_TRUNC);
  sparse.write_exact(std::as_bytes(std::span(header)), 0);
  sparse.truncate(n_bytes);
  sparse.close();
}

// Collects what the rules find in one directory.
class Judge {
 public:
  Judge(const formats::Checkpoint& source, const Recipe& recipe, const KnownFindings& known,
        std::size_t threads)
      : source_(source), recipe_(recipe), known_(known), threads_(threads) {}

  void judge(const std::filesystem::path& folder) {
    const formats::Checkpoint output =
        formats::Checkpoint::open(folder, {.family = std::string(source_.family().name),
                                           .allow_unknown = &recipe_.allow.unknown_tensor,
                                           .threads = threads_});
    for (const Finding& finding :
         formats::run_loader_rules(output, {.threads = threads_, .values = false})) {
      const bool is_inherited = known_.contains({std::string(finding.rule), finding.tensor});
      if (finding.severity == formats::Severity::kError && !is_inherited) {
        Error error(finding.code, fmt::format("{} (loader rule {}; nothing is published)",
                                              finding.message, finding.rule));
        errors_.add(error.in_file(finding.file).in_tensor(finding.tensor));
      } else if (warnings_.size() < kMaxWarnings) {
        warnings_.push_back(text_of(finding) + (is_inherited ? " (so it was in the source)" : ""));
      }
    }
  }

  std::vector<std::string> finish() {
    errors_.throw_if_any();
    return std::move(warnings_);
  }

 private:
  const formats::Checkpoint& source_;
  const Recipe& recipe_;
  const KnownFindings& known_;
  const std::size_t threads_;
  std::vector<std::string> warnings_;
  ErrorList errors_;
};

}  // namespace

void write_preview(const Plan& plan, const formats::Checkpoint& source,
                   const std::filesystem::path& folder) {
  const auto write_json = [&](const std::filesystem::path& directory) {
    for (const auto& [name, text] : derived_files(plan)) write_text_file(directory / name, text);
  };
  if (!plan.has_rank_directories()) {
    for (std::size_t file = 0; file < plan.files.size(); ++file) {
      const std::string header = plan.header(source, file);
      for (const PlannedFile::Member& member : plan.files[file].members)
        write_sparse(folder / member.path, header, plan.files[file].n_bytes);
    }
    write_json(folder);
    if (!plan.index_text.empty())
      write_text_file(folder / "model.safetensors.index.json", plan.index_text);
    return;
  }
  for (const std::uint32_t rank : typical_ranks(plan)) {
    const std::filesystem::path directory =
        folder / shard::rank_directory_name(rank, plan.slicing->topology.n_ranks());
    for (const RankFile& file : files_of_rank(plan, rank)) {
      write_sparse(directory / file.name, plan.header(source, file.file),
                   plan.files[file.file].n_bytes);
    }
    write_json(directory);
    write_rank_preview(plan, source, rank, directory);
  }
}

std::vector<std::string> require_loadable(const Plan& plan, const std::filesystem::path& staged,
                                          const formats::Checkpoint& source, const Recipe& recipe,
                                          const KnownFindings& known, std::size_t threads) {
  Judge judge(source, recipe, known, threads);
  if (plan.has_rank_directories()) {
    for (const std::uint32_t rank : typical_ranks(plan)) {
      judge.judge(staged / shard::rank_directory_name(rank, plan.slicing->topology.n_ranks()));
    }
  } else if (!plan.is_sliced()) {
    judge.judge(staged);
  }
  return judge.finish();
}

}  // namespace ingot::convert
