#include "convert/job/execution.h"

#include <algorithm>
#include <set>

#include <fcntl.h>
#include <fmt/format.h>

#include "convert/job/part_journals.h"
#include "convert/job/preflight.h"
#include "convert/job/resume.h"
#include "convert/job/run_files.h"
#include "convert/output/manifest_writer.h"
#include "convert/output/model_card.h"
#include "convert/output/old_output.h"
#include "convert/output/output_directory.h"
#include "convert/output/read_back.h"
#include "convert/recipe/kv_ranges.h"
#include "convert/recipe/statistics.h"
#include "formats/base/stop_scope.h"
#include "formats/files/free_space.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"

namespace ingot::convert {

Execution::Execution(const Plan& plan, Claim& claim, const ExecuteOptions& options,
                     Preflight checked)
    : plan_(plan),
      claim_(claim),
      paths_(claim.paths()),
      options_(options),
      threads_(checked.memory.threads),
      identity_(std::move(checked.identity)),
      earlier_(std::move(checked.earlier)),
      replaced_(std::move(checked.replaced)),
      stamps_(options.stamps),
      names_(publish_order(plan_)),
      results_(plan_.tensors.size()),
      done_(plan_.tensors.size(), 0) {
  report_.memory = checked.memory;
  report_.warnings = std::move(checked.loadable.warnings);
  report_.engines = std::move(checked.loadable.engines);
  const Choices& choices = plan_.recipe.choices;
  const auto givers = plan_.source.givers();
  if (stamps_.empty()) {
    stamps_.add(plan_.source.directory());
    for (const formats::Giver& giver : givers)
      if (&giver != &givers.front()) stamps_.add(giver.model->directory(), ReadFor::kOption);
  }
  if (choices.repair && plan_.options.links) stamps_.expect_links();
  stamps_.keep_files_of(plan_.source);
  for (const formats::Giver& giver : givers) stamps_.keep_files_of(*giver.model);
  if (choices.scales_from) stamps_.keep_files_of(*choices.scales_from);
  const auto add_files = [&](const auto& statistics) {
    if (statistics == nullptr) return;
    for (const StampedFile& file : statistics->files()) stamps_.add(file);
  };
  add_files(choices.activation_scales);
  add_files(choices.importance);
  add_files(choices.kv_scales);
  for (const auto& editor : choices.editors) {
    for (const auto& [path, stamp] : editor->files()) stamps_.add({.path = path, .stamp = stamp});
  }
}

ExecuteReport Execution::publish_again() {
  log("resuming: the files are complete, publishing");
  if (earlier_->inspected) add_inspection_report();
  if (earlier_->consuming && options_.consume_source) {
    const formats::JsonValue& sources = earlier_->runs.back().sources;
    if (stamps_.changed_since(*sources, plan_.source.directory()).of_source.empty()) {
      journal_ = Journal::append_to(claim_.journal(), *earlier_);
      consumer_.emplace(plan_, paths_, stamps_, Consume::kAtTheEnd);
    } else {
      warn("the source has changed since it was converted: its remaining files are kept");
    }
  }
  finish_publishing(earlier_->replacing, nullptr);
  report_.only_published = true;
  return report();
}

void Execution::begin() {
  warn_of_file_system();
  staged_.emplace(
      Folder::open(paths_.output).make(paths_.staged.lexically_relative(paths_.output)));
  if (!earlier_) sync_directory(paths_.partial);
  if (!plan_.options.part) staged_->drop_but(weights_names());
  if (earlier_) {
    options_.join ? join(*earlier_) : resume(*earlier_);
  } else {
    log(fmt::format("starting: {} tensors, {} bytes in {} files", plan_.tensors.size(),
                    plan_.sizes.bytes_out, plan_.n_members_here()));
  }
  open_journal();
  link_source_files();
  if (plan_.has_rank_directories() && plan_.options.links && !plan_.options.part) require_links();
  if (!options_.base.output.empty() && !options_.join) take_over_base();
  if (options_.consume_source) consume_from_here();
}

// Its tensors are in no journal before a part is complete: a run that goes on takes them over
// again.
void Execution::take_over_base() {
  options_.begin_phase("taking over");
  TakenOver taken = take_over(options_.base, {.plan = plan_,
                                              .identity = *identity_,
                                              .staged = *staged_,
                                              .done = done_,
                                              .results = results_,
                                              .links = plan_.options.links,
                                              .lossless_only = options_.lossless_only,
                                              .threads = threads_});
  for (std::string& remark : taken.remarks) warn(std::move(remark));
  report_.tensors_taken = taken.tensors.size();
  report_.bytes_taken = taken.n_bytes;
  report_.files_taken = taken.n_whole;
  whole_files_ = std::move(taken.whole_files);
  taken_ = std::move(taken.tensors);
  log(fmt::format("{} tensors are taken over from {}, {} files whole", report_.tensors_taken,
                  options_.base.output.string(), report_.files_taken));
}

void Execution::resume(const JournalContents& earlier) {
  SourceStamps::Changes changed;
  for (const RunRecord& run : earlier.runs) {
    SourceStamps::Changes since = stamps_.changed_since(run.sources, plan_.source.directory());
    changed.of_source.merge(since.of_source);
    changed.of_options = changed.of_options || since.of_options;
  }
  for (const std::uint32_t item : surviving_items(plan_, paths_, earlier, changed, threads_)) {
    done_[item] = 1;
    results_[item] = earlier.items.at(item);
    ++report_.tensors_resumed;
  }
  if (options_.resume) report_.tensors_redone = earlier.items.size() - report_.tensors_resumed;
  require_sources_of_open_tensors();
  log(fmt::format("resuming: {} of {} tensors are done", report_.tensors_resumed,
                  plan_.tensors.size()));
}

void Execution::join(const JournalContents& parts) {
  if (parts.doubtful) {
    const std::vector<std::uint32_t> sound = surviving_items(plan_, paths_, parts, {}, threads_);
    const std::set<std::uint32_t> found(sound.begin(), sound.end());
    for (const auto& [item, result] : parts.items) {
      if (found.contains(item)) continue;
      throw Error(
          ErrorCode::kMismatch,
          "was written by its part, but is not in the staged files: a run in another number of "
          "parts, or without --part, has begun them again (finish that run, or run every part "
          "again with --resume)")
          .in_tensor(plan_.tensor_of(plan_.tensors[item]).name);
    }
  }
  for (const auto& [item, result] : parts.items) {
    done_[item] = 1;
    results_[item] = result;
  }
  report_.n_joined = static_cast<std::uint32_t>(parts.runs.size());
  log(fmt::format("joining: {} tensors of all parts", parts.items.size()));
}

void Execution::open_journal() {
  const bool is_part = plan_.options.part.has_value();
  const bool goes_on = !is_part && earlier_ && earlier_->valid_bytes > 0;
  journal_ = goes_on ? Journal::append_to(claim_.journal(), *earlier_)
                     : Journal::create(claim_.journal(), *identity_);
  RunRecord run{.replacing = options_.force,
                .replaced = replaced_,
                .gate = options_.gate,
                .allow = identity_->at("recipe").at("allow"),
                .sources = stamps_.to_json(plan_.source.directory()),
                .settings = is_part || options_.join ? options_.settings : formats::JsonValue()};
  // The join repeats settings that ask for a verification, which a later run need not say.
  if (is_part && run.gate.is_null() && !options_.no_verify) {
    const std::vector<RunRecord> runs = runs_of(paths_);
    const auto gated = std::ranges::find_if(
        runs, [](const RunRecord& earlier) { return !earlier.gate.is_null(); });
    if (gated != runs.end()) {
      run.gate = gated->gate;
      run.settings = gated->settings;
    }
  }
  journal_->add_run(run);
  if (!is_part) return;
  // Each run of a part has a journal of its own. It holds the results of earlier runs, which end
  // here.
  std::map<std::uint32_t, TensorResult> taken;
  for (std::uint32_t index = 0; index < done_.size(); ++index) {
    if (done_[index] != 0) taken[index] = results_[index];
  }
  if (!taken.empty()) journal_->add_results(taken);
  for (const RunFile& file : run_files(paths_, kJournalSuffix)) {
    if (file.part == plan_.options.part && file.path != claim_.journal())
      std::filesystem::remove(file.path);
  }
}

ExecuteReport Execution::finish_part() {
  if (options_.read_back) {
    options_.begin_phase("reading back");
    read_back_part(plan_, paths_, results_, threads_);
  }
  StopScope::check();
  stamps_.require_unchanged();
  claim_.require_held();
  std::map<std::uint32_t, TensorResult> taken;
  for (const std::uint32_t index : taken_) taken[index] = results_[index];
  if (!taken.empty()) journal_->add_results(taken);
  journal_->add_complete();
  report_.quality = quality_report(plan_, results_, options_.n_worst);
  report_.changes = change_report(plan_, results_);
  return report();
}

void Execution::convert_weights() {
  report_.tensors = convert_tensors(
      {.plan = plan_,
       .staged = *staged_,
       .memory = report_.memory,
       .threads = threads_,
       .direct_io = options_.direct_io,
       .lossless_only = options_.lossless_only,
       .given = options_.given,
       .done = done_,
       .whole_files = whole_files_,
       .results = results_,
       .progress = options_.progress,
       .durable = [this](const std::vector<std::uint32_t>& tensors) { on_durable(tensors); },
       .log = [this](const std::string& line) { log(line); }});
  if (!report_.tensors.has_reserved) {
    warn(
        "the file system of the output cannot reserve space: a disk that others fill meanwhile "
        "stops a run in the middle (--resume continues it)");
  }
}

// Called by the writer, one thread at a time.
void Execution::on_durable(const std::vector<std::uint32_t>& tensors) {
  std::map<std::uint32_t, TensorResult> finished;
  for (const std::uint32_t index : tensors) finished[index] = results_[index];
  claim_.require_held();
  journal_->add_results(finished);
  log(fmt::format("{} tensors durable, up to item {}", finished.size(), tensors.back()));
  if (consumer_) consumer_->tensors_done(tensors, results_, *journal_);
}

void Execution::stage_beside_weights() {
  log("all tensors durable, writing side files and manifest");
  options_.begin_phase(options_.sha256 ? "hashing files" : "side files");
  const Hash128 manifest = stage_side_files(
      plan_, *staged_, results_,
      {.identity = identity_,
       .engines = report_.engines,
       .gate = options_.inspect ? options_.gate : formats::JsonValue(),
       .unverified = options_.no_verify && earlier_ ? typed(earlier_->gate()) : std::string(),
       .sha256 = options_.sha256,
       .threads = threads_});
  if (options_.read_back) {
    log("reading back the output");
    options_.begin_phase("reading back");
    // Before a source is deleted all is read here, whatever parts have read.
    options_.join && !consumer_ ? read_back_joined(plan_, paths_, results_, manifest, threads_)
                                : read_back(plan_, paths_, results_, manifest, threads_);
  }
  report_.quality = quality_report(plan_, results_, options_.n_worst);
  report_.changes = change_report(plan_, results_);
}

bool Execution::passes_inspection() {
  if (!options_.inspect) return true;
  options_.begin_phase("verifying");
  const Inspection inspection = options_.inspect(paths_.staged);
  report_.refused = !inspection.may_publish;
  if (report_.refused || inspection.report.empty()) return !report_.refused;
  write_text_file(staged_->make(std::string(formats::kVerifyName)), inspection.report);
  sync_directory(paths_.staged);
  add_inspection_report();
  return true;
}

ExecuteReport Execution::publish() {
  StopScope::check();
  options_.begin_phase("publishing");
  stamps_.require_unchanged();
  claim_.require_held();
  for (const std::string& name : names_) staged_->require_ours(name);
  const bool is_replacing = options_.force || (earlier_ && earlier_->was_forced());
  require_no_new_files(is_replacing);
  journal_->add_publishing(is_replacing, has_report_, consumer_.has_value(), names_);
  finish_publishing(is_replacing, &*staged_);
  return report();
}

ExecuteReport Execution::report() {
  log(report_.refused      ? "not published: the inspection refused it"
      : plan_.options.part ? fmt::format("part {} is complete", text_of(*plan_.options.part))
                           : "published");
  const auto elapsed = std::chrono::steady_clock::now() - start_;
  report_.elapsed_seconds = std::chrono::duration<double>(elapsed).count();
  return report_;
}

// The report is published before the first manifest.
void Execution::add_inspection_report() {
  has_report_ = true;
  names_.insert(names_.begin(), std::string(formats::kVerifyName));
}

// Files next to these are made again, names of the same files in directories of ranks included.
std::set<std::string> Execution::weights_names() const {
  std::set<std::string> weights;
  for (const PlannedFile& file : plan_.files) {
    for (const PlannedFile::Member& member : file.members) weights.insert(member.path);
  }
  return weights;
}

// Files that this run, or a run that it continues, may replace.
std::set<std::string> Execution::replaced_files() const {
  std::set<std::string> files(replaced_.begin(), replaced_.end());
  if (earlier_) files.merge(earlier_->found_files());
  return files;
}

// Throws for files that others have put here since the job began, where they would be replaced, or
// left in an output that is to hold nothing else.
void Execution::require_no_new_files(bool replacing) const {
  const std::set<std::string> ours(names_.begin(), names_.end()), known = replaced_files();
  std::set<std::string> unknown = output_entries(paths_);
  std::erase_if(unknown, [&](const std::string& name) {
    return known.contains(name) || (!replacing && !ours.contains(name));
  });
  require_no_unknown(unknown, paths_.output);
}

void Execution::finish_publishing(bool replacing, const StagedFiles* staged) {
  if (replacing) remove_old_files(paths_, names_, replaced_files());
  convert::publish(paths_, names_, staged);
  // The last step that a run with --resume goes on with: the output is whole, and in its place.
  if (consumer_) consumer_->finish(*journal_);
  sweep(paths_);
  journal_.reset();
  claim_.give_back();
  remove_swept(paths_);
}

void Execution::warn_of_file_system() {
  const auto parent = std::filesystem::absolute(paths_.output).lexically_normal().parent_path();
  sync_directory(parent);
  if (!sync_directory(paths_.output)) {
    warn(
        "the file system of the output cannot sync directories (fsync): after a power cut files "
        "may be missing that were published");
  }
  if (!claim_.is_locked()) {
    warn(
        "the file system of the output has no locks (flock): after a kill the next run waits up to "
        "a minute, until the claim of this one is dead");
  }
}

void Execution::consume_from_here() {
  consumer_.emplace(plan_, paths_, stamps_,
                    options_.read_back ? Consume::kAtTheEnd : Consume::kOnTheWay);
  consumer_->save_headers();
  std::vector<std::uint32_t> resumed;
  for (std::uint32_t index = 0; index < done_.size(); ++index) {
    if (done_[index] != 0) resumed.push_back(index);
  }
  consumer_->tensors_done(resumed, results_, *journal_);
}

// They have the place of files that are not written, so they are there before any is opened. A link
// of an earlier run is the same file still.
void Execution::link_source_files() {
  bool is_copied = false;
  for (const PlannedFile& file : plan_.files) {
    if (!file.is_linked) continue;
    StopScope::check();
    const auto from = std::filesystem::canonical(plan_.source.directory() / file.name);
    if (!staged_->share(from, file.name, true)) is_copied = true;
  }
  if (is_copied) {
    warn(
        "unchanged files are copied: there are no hard links from the source to the file system "
        "of the output");
  }
}

// Warns if files that several ranks load cannot be links; throws kNoSpace if copies have no room.
void Execution::require_links() {
  // Links a file of its own: a run that is killed in between leaves both names, and no file of a
  // job may have two.
  const std::filesystem::path own = paths_.partial / "linked", probe = paths_.partial / "link";
  const auto clear = [&] {
    std::filesystem::remove(own);
    std::filesystem::remove(probe);
  };
  clear();
  const bool has_links =
      Fd::open_for_writing(own, O_CREAT | O_EXCL | O_WRONLY).valid() && link_file(own, probe);
  clear();
  if (has_links) return;
  const std::uint64_t more = copied_bytes(plan_) - plan_.sizes.bytes_out;
  const std::string text = fmt::format(
      "the file system of the output has no hard links: files that several ranks load are copied, "
      "{} bytes more",
      more);
  if (free_bytes(paths_.output) < more)
    throw Error(ErrorCode::kNoSpace, text + ", for which there is no room")
        .in_file(paths_.output.string());
  warn(text);
}

void Execution::require_sources_of_open_tensors() const {
  for (std::uint32_t index = 0; index < plan_.tensors.size(); ++index) {
    if (done_[index] != 0) continue;
    for (const std::uint32_t file : plan_.source_files_of(plan_.tensors[index])) {
      if (plan_.source.has_data(file)) continue;
      throw Error(ErrorCode::kMismatch,
                  "was deleted by --consume-source, but its output did not survive; fetch "
                  "this file again and run with --resume")
          .in_file(plan_.source.files()[file].name)
          .in_tensor(plan_.tensor_of(plan_.tensors[index]).name);
    }
  }
}

}  // namespace ingot::convert
