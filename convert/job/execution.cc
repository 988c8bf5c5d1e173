#include "convert/job/execution.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>

#include <fmt/format.h>

#include "convert/job/resume.h"
#include "convert/output/manifest_writer.h"
#include "convert/output/output_directory.h"
#include "convert/output/read_back.h"
#include "convert/recipe/activation_scales.h"
#include "convert/recipe/importance.h"
#include "convert/run/task_queue.h"
#include "convert/run/tensor_rewrapper.h"
#include "convert/run/window_writer.h"
#include "formats/base/parallel.h"
#include "formats/records/manifest.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::Json;

namespace {

constexpr std::uint64_t kSyncBytes = std::uint64_t{128} << 20;
constexpr std::chrono::milliseconds kSyncInterval{250};

StageReport stage(const std::atomic<std::uint64_t>& ns, const std::atomic<std::uint64_t>& bytes) {
  return {.seconds = static_cast<double>(ns.load()) * 1e-9, .n_bytes = bytes.load()};
}

}  // namespace

Execution::Execution(const Plan& plan, const Checkpoint& source, const Recipe& recipe,
                     const Claim& claim, const OutputPaths& paths, const ExecuteOptions& options)
    : plan_(plan),
      source_(source),
      recipe_(recipe),
      claim_(claim),
      paths_(paths),
      options_(options),
      threads_{.n = options.threads, .check_stop = [&options] { options.check_stop(); }},
      stamps_(options.stamps),
      names_(publish_order(plan, source)),
      hashes_(plan.tensors.size()),
      done_(plan.tensors.size(), 0) {
  const Choices& choices = recipe.choices;
  if (stamps_.empty()) stamps_.add(source.directory());
  stamps_.keep_files_of(source);
  if (choices.scales_from) stamps_.keep_files_of(*choices.scales_from);
  if (choices.activation_scales) stamps_.add(choices.activation_scales->file());
  if (choices.importance) stamps_.add(choices.importance->file());
}

ExecuteReport Execution::run(const Json& identity, Preflight checked) {
  const auto begin = std::chrono::steady_clock::now();
  const std::optional<JournalContents>& earlier = checked.earlier;
  report_.memory = checked.memory;
  report_.warnings = std::move(checked.warnings);
  if (earlier && earlier->publishing) {
    log("resuming: the files are complete, publishing");
    if (earlier->inspected) add_report();
    finish_publishing(earlier->replacing, nullptr);
    report_.only_published = true;
  } else {
    convert(identity, earlier);
  }
  log(report_.refused ? "not published: the inspection refused it" : "published");
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  report_.elapsed_seconds = std::chrono::duration<double>(elapsed).count();
  return report_;
}

void Execution::convert(const Json& identity, const std::optional<JournalContents>& earlier) {
  warn_of_file_system();
  if (earlier) {
    resume(*earlier);
  } else {
    begin(identity);
  }
  journal_->add_run({.replacing = options_.force,
                     .gate = options_.gate,
                     .allow = identity.at("recipe").at("allow"),
                     .sources = stamps_.to_json(source_.directory())});
  if (plan_.has_rank_directories() && plan_.links) require_links();
  if (options_.consume_source) consume_from_here();
  convert_items();
  log("all tensors durable, writing side files and manifest");
  const std::string asked = earlier ? earlier->gate() : "";
  const Hash128 manifest =
      stage_side_files(plan_, source_, paths_, hashes_,
                       {.identity = identity,
                        .unverified = options_.no_verify ? asked : std::string(),
                        .sha256 = options_.sha256,
                        .threads = threads_});
  take_side_files();
  if (options_.read_back) {
    log("reading back what was written");
    read_back(plan_, source_, paths_, hashes_, manifest, threads_);
  }
  report_.quality = quality_report(plan_, source_, hashes_, options_.n_worst);
  const bool is_inspected = options_.inspect != nullptr;
  report_.refused = is_inspected && !passes_inspection();
  if (report_.refused) return;
  threads_.check_stop();
  stamps_.require_unchanged();
  claim_.require_held();
  for (const std::string& name : names_) staged_->require_ours(name);
  if (consumer_) consumer_->finish(*journal_);
  const bool is_replacing = options_.force || (earlier && earlier->was_forced());
  journal_->add_publishing(is_replacing, has_report_);
  finish_publishing(is_replacing, &*staged_);
}

// Whoever inspects sees what will be published, and nothing else.
bool Execution::passes_inspection() {
  const Inspection inspection = options_.inspect(paths_.staged);
  if (!inspection.may_publish) return false;
  if (!inspection.report.empty()) {
    write_text_file(paths_.staged / formats::kVerifyName, inspection.report);
    sync_directory(paths_.staged);
    add_report();
    staged_->take(std::string(formats::kVerifyName));
  }
  return true;
}

// The report is published before the first manifest.
void Execution::add_report() {
  has_report_ = true;
  names_.insert(names_.begin(), std::string(formats::kVerifyName));
}

// Weights are ours since they were opened; everything else was written by now.
void Execution::take_side_files() {
  std::set<std::string> weights;
  for (const PlannedFile& file : plan_.files) {
    for (const PlannedFile::Member& member : file.members) weights.insert(member.path);
  }
  for (const std::string& name : names_) {
    if (!weights.contains(name)) staged_->take(name);
  }
}

void Execution::finish_publishing(bool replacing, const StagedFiles* staged) {
  if (replacing) remove_stale(paths_, names_);
  publish(paths_, names_, staged);
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
        fmt::format("the file system of the output has no locks (flock): after a kill remove {} "
                    "before you run again",
                    paths_.claim.string()));
  }
}

void Execution::begin(const Json& identity) {
  std::filesystem::create_directories(paths_.staged);
  sync_directory(paths_.partial);
  staged_.emplace(paths_.staged);
  journal_ = Journal::create(paths_.journal, identity);
  log(fmt::format("starting: {} tensors, {} bytes in {} files", plan_.tensors.size(),
                  plan_.bytes_out, plan_.n_members));
}

void Execution::resume(const JournalContents& earlier) {
  std::filesystem::create_directories(paths_.staged);
  staged_.emplace(paths_.staged);
  SourceStamps::Changes changed;
  for (const RunRecord& run : earlier.runs) {
    SourceStamps::Changes since = stamps_.changed_since(run.sources, source_.directory());
    changed.of_source.merge(since.of_source);
    changed.of_options = changed.of_options || since.of_options;
  }
  std::map<std::uint32_t, ItemRecord> items =
      items_of_same_source(plan_, source_, earlier.items, changed.of_source, threads_);
  // What such a file decided is not seen in the source.
  if (changed.of_options) items = items_without_source(plan_, source_, items);
  for (const std::uint32_t item : verify_journal(plan_, source_, paths_, items, threads_)) {
    done_[item] = 1;
    hashes_[item] = items.at(item);
    ++report_.items_resumed;
  }
  report_.items_redone = earlier.items.size() - report_.items_resumed;
  require_sources_of_open_items();
  journal_ = Journal::append_to(paths_.journal, earlier);
  log(fmt::format("resuming: {} of {} tensors are done", report_.items_resumed,
                  plan_.tensors.size()));
}

void Execution::consume_from_here() {
  consumer_.emplace(source_, plan_, paths_, stamps_, threads_.check_stop);
  consumer_->save_headers();
  std::vector<std::uint32_t> resumed;
  for (std::uint32_t item = 0; item < done_.size(); ++item) {
    if (done_[item] != 0) resumed.push_back(item);
  }
  consumer_->items_done(resumed, hashes_, *journal_);
}

// Whether files that several ranks load can be links, or have to be copies, which need room.
void Execution::require_links() {
  const std::filesystem::path probe = paths_.partial / "link";
  std::filesystem::remove(probe);
  if (link_file(paths_.journal, probe)) {
    std::filesystem::remove(probe);
    return;
  }
  const std::uint64_t more = copied_bytes(plan_) - plan_.bytes_out;
  const std::string text = fmt::format(
      "the file system of the output has no hard links: files that several ranks load are copied, "
      "{} bytes more",
      more);
  if (free_bytes(paths_.output) < more)
    throw Error(ErrorCode::kNoSpace, text + ", for which there is no room")
        .in_file(paths_.output.string());
  warn(text);
}

void Execution::require_sources_of_open_items() const {
  for (std::uint32_t item = 0; item < plan_.tensors.size(); ++item) {
    if (done_[item] != 0 || plan_.tensors[item].action == Action::kDrop) continue;
    const formats::LogicalTensor& tensor = source_.tensors()[plan_.tensors[item].tensor];
    tensor.encoding.stored.for_each([&](formats::Part, std::uint32_t stored) {
      const std::uint32_t file = source_.stored()[stored].file;
      if (source_.has_data(file)) return;
      throw Error(ErrorCode::kMismatch,
                  "was deleted by --consume-source, but its output did not survive; fetch "
                  "this file again and run with --resume")
          .in_file(source_.files()[file].name)
          .in_tensor(tensor.name);
    });
  }
}

void Execution::convert_items() {
  std::vector<WindowWriter::File> files;
  for (const PlannedFile& file : plan_.files) {
    for (const PlannedFile::Member& member : file.members)
      files.push_back({.name = member.path, .n_bytes = file.n_bytes});
  }
  // A sync costs its time once per file, so where a tensor goes to many it is done less often.
  const auto syncs = static_cast<unsigned>(std::clamp<std::uint64_t>(plan_.open_targets / 4, 1, 8));
  WindowWriter writer(*staged_, std::move(files),
                      {.window_bytes = report_.memory.window_bytes,
                       .max_windows = report_.memory.n_windows,
                       .writer_threads = 2,
                       .direct = options_.direct_io,
                       .sync_bytes = kSyncBytes * syncs,
                       .sync_interval = kSyncInterval * syncs},
                      [this](const std::vector<std::uint32_t>& items) { on_durable(items); });
  std::atomic<std::uint64_t> done_bytes = 0;
  for (std::uint32_t item = 0; item < plan_.tensors.size(); ++item) {
    if (done_[item] == 0) continue;
    for (std::size_t p = 0; p < plan_.tensors[item].n_parts; ++p) {
      for (const PlannedSlice& slice : slices_of(plan_, source_, plan_.tensors[item], p)) {
        if (slice.n_bytes == 0) continue;
        writer.mark_written(slice.member, slice.offset, slice.n_bytes);
        done_bytes += slice.n_bytes;
      }
    }
  }

  const std::map<std::string, formats::GlobalScale> originals = original_globals(plan_, source_);
  TaskQueue queue(make_tasks(plan_, done_));
  ItemContext context{.source = source_,
                      .plan = plan_,
                      .recipe = recipe_,
                      .writer = writer,
                      .times = times_,
                      .done_bytes = done_bytes,
                      .check_stop = {},
                      .known_amax = {},
                      .original_globals = originals,
                      .group_bytes = report_.memory.group_bytes};
  context.check_stop = [this, &done_bytes] {
    if (options_.progress) options_.progress(done_bytes.load(), plan_.bytes_out);
    threads_.check_stop();
  };
  context.known_amax = [this](std::uint32_t group) { return journalled_amax(group); };
  run_workers(options_.threads, [&](std::size_t) {
    ItemRunner runner(context);
    while (const auto task = queue.next()) {
      const auto& [index, what] = *task;
      try {
        if (what.is_header) {
          runner.run_header(what.file);
        } else {
          runner.run(what.tensors, [&](std::uint32_t tensor, ItemRecord record) {
            hashes_[tensor] = std::move(record);
            writer.finish_item(tensor);
          });
        }
      } catch (...) {
        queue.fail(index, std::current_exception());
      }
    }
  });
  if (queue.failed()) {
    writer.abandon();
    log("stopped before the end; what is done is in the journal");
    queue.rethrow();
  }
  writer.finish();
  log(fmt::format("{} windows of {} bytes, {} written in pieces", report_.memory.n_windows,
                  report_.memory.window_bytes, writer.windows_spilled()));

  report_.read = stage(times_.read_ns, times_.read_bytes);
  report_.compute = stage(times_.compute_ns, times_.compute_bytes);
  report_.hash = stage(times_.hash_ns, times_.hash_bytes);
  report_.write = {.seconds = writer.write_seconds(), .n_bytes = writer.bytes_written()};
  report_.bytes_written = writer.bytes_written();
  report_.direct_io = writer.uses_direct_io();
  if (!writer.has_reserved()) {
    warn(
        "the file system of the output cannot reserve space: a disk that others fill meanwhile "
        "stops a run in the middle (--resume continues it)");
  }
}

// The maximum of a group that an earlier run began: the source of a finished member may be gone.
std::optional<float> Execution::journalled_amax(std::uint32_t group) const {
  for (const std::uint32_t member : plan_.groups[group]) {
    if (done_[member] != 0) return hashes_[member].amax;
  }
  return std::nullopt;
}

// Called by the writer, one thread at a time, with items whose bytes are on disk.
void Execution::on_durable(const std::vector<std::uint32_t>& items) {
  std::map<std::uint32_t, ItemRecord> finished;
  std::vector<std::uint32_t> tensors;
  for (const std::uint32_t item : items) {
    if (item >= plan_.tensors.size()) continue;  // a header: written again on resume
    finished[item] = hashes_[item];
    tensors.push_back(item);
  }
  if (finished.empty()) return;
  claim_.require_held();
  journal_->add_items(finished);
  log(fmt::format("{} tensors durable, up to item {}", finished.size(), tensors.back()));
  if (consumer_) consumer_->items_done(tensors, hashes_, *journal_);
}

}  // namespace ingot::convert
