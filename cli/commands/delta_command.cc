#include <algorithm>
#include <chrono>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/terminal.h"
#include "delta/apply.h"
#include "delta/make.h"
#include "delta/stream.h"
#include "formats/base/error.h"
#include "formats/base/stop_scope.h"
#include "formats/files/hub_cache.h"
#include "formats/json/json.h"
#include "library/options/flag_table.h"
#include "report/figures.h"
#include "report/table_text.h"

namespace ingot::cli {

using formats::Json;

namespace {

struct DeltaFlags {
  std::string action, directory, out, encoding = "xor", checksum = "xxh3-128", progress = "auto";
  std::vector<std::string> paths;
  bool in_place = false;
  std::size_t threads = 0;
};

void add_remarks(const std::vector<std::string>& remarks) {
  answer().add({{"remarks", remarks}});
  notes() << remark_lines("note", remarks);
}

int run_make(const DeltaFlags& flags) {
  if (flags.paths.size() != 1 || flags.out.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "ingot delta make takes the old checkpoint, the new one, and --out STREAM");
  }
  const std::size_t threads = threads_of(flags.threads);
  const auto start = std::chrono::steady_clock::now();
  Progress progress(flags.progress, "comparing");
  const delta::MadeDelta made = delta::make_delta(
      formats::checkpoint_directory(flags.directory),
      formats::checkpoint_directory(flags.paths.front()), flags.out,
      {.encoding = *delta::find_encoding(flags.encoding),
       .checksum = delta::find_checksum(flags.checksum)->kind,
       .threads = threads,
       .progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); }});
  progress.finish();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  add_remarks(made.remarks);
  if (answer().is_json) {
    answer().add({{"action", "make"},
                  {"old", flags.directory},
                  {"new", flags.paths.front()},
                  {"output", made.directory.string()},
                  {"protocol", delta::kProtocol},
                  {"version_number", made.version},
                  {"base_version", made.base},
                  {"encoding", delta::encoding_name(made.encoding)},
                  {"checksum", delta::checksum_row(made.checksum).name},
                  {"tensors", made.n_tensors},
                  {"bytes", made.n_bytes},
                  {"changed", made.n_changed},
                  {"changed_bytes", made.n_changed_bytes},
                  {"payload_bytes", made.n_payload},
                  {"files", made.n_files},
                  {"extra", made.n_extra},
                  {"seconds", seconds}});
    return kExitDone;
  }
  out() << fmt::format(
      "{}: version {} on {} ({}, {}, {}): {} of {} tensors changed, {} of {} in them; {} in {} "
      "file{}, {} other file{}; {}\n",
      made.directory.string(), made.version, made.base, delta::kProtocol,
      delta::encoding_name(made.encoding), delta::checksum_row(made.checksum).name,
      count_text(made.n_changed), count_text(made.n_tensors), bytes_text(made.n_changed_bytes),
      bytes_text(made.n_bytes), bytes_text(made.n_payload), made.n_files,
      made.n_files == 1 ? "" : "s", made.n_extra, made.n_extra == 1 ? "" : "s",
      seconds_text(seconds));
  notes() << progress.summary(threads);
  return kExitDone;
}

Json version_row(const delta::AppliedVersion& version) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"version", version.version},
          {"base_version", version.is_full ? Json() : Json(version.base)},
          {"kind", version.is_full ? "full" : "delta"},
          {"encoding", or_null(version.encoding)},
          {"checksum", or_null(version.checksum)},
          {"tensors", version.n_tensors},
          {"payload_bytes", version.n_payload},
          {"extra", version.n_extra},
          {"digests", version.has_record}};
}

Json applied_json(const DeltaFlags& flags, const delta::Applied& applied) {
  Json states = Json::array();
  for (std::size_t i = 0; i < applied.states.size(); ++i) {
    const delta::TensorState& state = applied.states[i];
    states.push_back({{"name", applied.names[i]},
                      {"version", state.version},
                      {"checksum", state.checksum.empty() ? Json() : Json(state.checksum)}});
  }
  return {{"action", flags.action},
          {"base", flags.directory},
          {"protocol", delta::kProtocol},
          {"from_version", applied.from},
          {"to_version", applied.to},
          {"finished_version", applied.finished ? Json(*applied.finished) : Json()},
          {"method", delta::method_name(applied.method)},
          {"versions", formats::json_list(applied.versions, version_row)},
          {"tensors", applied.n_tensors},
          {"bytes", applied.n_bytes},
          {"changed", applied.n_changed},
          {"compared", applied.n_compared},
          {"states", states}};
}

// Says how far the base and the result are known to be right.
std::string reach_of(const delta::Applied& applied) {
  std::string text;
  const auto full = std::ranges::find(applied.versions, true, &delta::AppliedVersion::is_full);
  if (full != applied.versions.end())
    text += fmt::format("version {} is a full one, taken as it is; ", full->version);
  if (applied.n_compared > 0) {
    text += fmt::format("all {} tensors of the base have the digests that the delta records",
                        count_text(applied.n_compared));
  } else {
    text += fmt::format(
        "{} changed tensors have the checksums of their new bytes; the other {}, config.json and "
        "side files are compared with nothing, since the delta has no record of them",
        count_text(applied.n_changed), count_text(applied.n_tensors - applied.n_changed));
  }
  return text;
}

std::string applied_text(const DeltaFlags& flags, const delta::Applied& applied) {
  std::string text;
  if (applied.finished)
    text += fmt::format("{}: version {}, begun by an earlier run, is finished\n", flags.directory,
                        *applied.finished);
  if (applied.versions.empty()) {
    if (!flags.paths.empty())
      text += fmt::format("{}: holds version {}, the last of these\n", flags.directory, applied.to);
    return text;
  }
  const bool is_check = flags.action == "check";
  text += fmt::format("{}: {} {}{}, {} of {} tensors changed{}\n", flags.directory,
                      is_check ? "is version" : "was version", applied.from,
                      is_check ? fmt::format(", of which these make version {}", applied.to)
                               : fmt::format(", is version {}", applied.to),
                      count_text(applied.n_changed), count_text(applied.n_tensors),
                      applied.method == delta::ApplyMethod::kNone
                          ? ""
                          : fmt::format(" ({})", applied.method == delta::ApplyMethod::kExchange
                                                     ? "exchanged in one step"
                                                     : "in place, by a journal"));
  return text + reach_of(applied) + "\n";
}

int run_chain(const DeltaFlags& flags) {
  const bool is_check = flags.action == "check";
  if (flags.paths.empty() && is_check)
    throw Error(ErrorCode::kInvalidArgument, "ingot delta check takes a base and its versions");
  const std::vector<std::filesystem::path> given(flags.paths.begin(), flags.paths.end());
  const std::size_t threads = threads_of(flags.threads);
  Progress progress(flags.progress, is_check ? "checking" : "applying");
  const delta::ApplyOptions options{
      .in_place = flags.in_place,
      .threads = threads,
      .progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); }};
  const delta::Applied applied = is_check ? delta::check_chain(flags.directory, given, options)
                                          : delta::apply_chain(flags.directory, given, options);
  progress.finish();
  add_remarks(applied.remarks);
  if (answer().is_json) {
    answer().add(applied_json(flags, applied));
  } else {
    out() << applied_text(flags, applied);
    notes() << progress.limits(threads);
  }
  return kExitDone;
}

int run_delta(const DeltaFlags& flags) {
  const StopScope stop =
      stop_at_signals(flags.action == "make" ? "the delta was made" : "the delta was applied");
  return flags.action == "make" ? run_make(flags) : run_chain(flags);
}

}  // namespace

std::function<int()> declare_delta(FlagTable& table) {
  auto flags = std::make_shared<DeltaFlags>();
  Flag action = required("action", &flags->action,
                         "make a version, check versions against a base, or apply them to it");
  action.rule.choices = {"make", "check", "apply"};
  const auto is_action = [flags = flags.get()](std::string_view name) {
    return [flags, name] { return flags->action == name; };
  };
  std::vector<std::string> sums;
  for (const delta::ChecksumRow& row : delta::checksums()) sums.emplace_back(row.name);
  table.add(FlagGroup::kCommon,
            {action,
             required("directory", &flags->directory,
                      "the base: a checkpoint's directory, or the one above all ranks of an "
                      "output; of make the old version",
                      ValueKind::kCheckpoint),
             {"versions",
              &flags->paths,
              "streams, or versions weight_v000001 and so on in their order; of make the "
              "directory of the new checkpoint",
              {.kind = ValueKind::kFolder}}});
  table.add(FlagGroup::kTarget,
            {{"--out",
              &flags->out,
              "stream that gets the new version, its last + 1; it is made where it is absent",
              {.letter = "-o",
               .kind = ValueKind::kFolder,
               .idle = belongs_to("ingot delta make", is_action("make"))}},
             {"--encoding",
              &flags->encoding,
              "differences as XOR of all bytes, or as positions and bytes of those that changed; "
              "xor where a tensor has 4 GiB",
              {.choices = {"xor", "overwrite"},
               .idle = belongs_to("ingot delta make", is_action("make"))}},
             {"--checksum",
              &flags->checksum,
              "checksum of each tensor's new bytes",
              {.choices = sums, .idle = belongs_to("ingot delta make", is_action("make"))}}});
  table.add(FlagGroup::kJob,
            {{"--in-place",
              &flags->in_place,
              "write into the files of the base, by a journal, instead of a sibling directory that "
              "takes its place",
              {.idle = belongs_to("ingot delta apply", is_action("apply"))}},
             threads_flag(&flags->threads)});
  table.add(FlagGroup::kReport, {progress_flag(&flags->progress), json_flag(&answer().is_json)});
  table.footer =
      "Examples:\n"
      "  ingot delta make V0 V1 -o STREAM            STREAM/weight_v000001\n"
      "  ingot delta check BASE STREAM               is BASE what STREAM begins with or goes on "
      "from?\n"
      "  ingot delta apply BASE STREAM               BASE becomes the last version\n"
      "  ingot delta apply BASE STREAM/weight_v000001 --in-place";
  return [flags] { return run_delta(*flags); };
}

}  // namespace ingot::cli
