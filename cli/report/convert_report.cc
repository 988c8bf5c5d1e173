#include "cli/report/convert_report.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "check/rules/loader_rules.h"
#include "cli/report/engine_report.h"
#include "cli/report/slicing_report.h"
#include "cli/terminal/resource_use.h"
#include "cli/terminal/terminal.h"
#include "convert/output/tensor_records.h"
#include "convert/plan/passes.h"
#include "convert/plan/plan.h"
#include "convert/run/moments_factors.h"
#include "engines/limits.h"
#include "engines/serving.h"
#include "formats/base/printable.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/checkpoint/promised_tensors.h"
#include "formats/experts/expert_views.h"
#include "report/figures.h"
#include "report/rows.h"

namespace ingot::cli {

using convert::Action;
using convert::ChangeReport;
using convert::ExecuteReport;
using convert::Plan;
using convert::PlannedTensor;
using convert::QualityReport;
using convert::StageReport;
using formats::Json;
using formats::json_list;

namespace {

// A row that ends with these figures.
Json with_figures(Json row, const quantize::QualitySums& sums) {
  row.update({{"elements", sums.elements},
              {"relative_error", sums.relative_error()},
              {"sqnr_db", sums.sqnr_db()},
              {"cosine", sums.cosine()},
              {"max_error", sums.max_error},
              {"saturated", sums.saturated},
              {"zeroed", sums.zeroed},
              {"blocks", sums.blocks},
              {"exact_blocks", sums.exact_blocks}});
  return row;
}

Json quality_row(const QualityReport::Row& row) {
  return with_figures(
      {{"scheme", scheme_name(row.scheme)}, {"role", row.role}, {"tensors", row.n_tensors}},
      row.sums);
}

Json worst_row(const QualityReport::Worst& worst) {
  return with_figures({{"tensor", worst.tensor}, {"scheme", scheme_name(worst.scheme)}},
                      worst.sums);
}

// A table of rows with_figures() that begins with these columns.
Table quality_table(const Json& rows, std::vector<Field> fields) {
  const auto share = [](const char* key) {
    return Field{number(key), "",
                 [key](const Json& row) { return share_text(row.at(key), row.at("elements")); }};
  };
  const auto exact_blocks = [](const Json& row) {
    return fmt::format("{} of {}", count_text(row.at("exact_blocks")),
                       count_text(row.at("blocks")));
  };
  for (Field& field : std::vector<Field>{{"rel. error", "relative_error", short_text},
                                         {"SQNR dB", "sqnr_db", decibel_text},
                                         {"cosine", "cosine", cosine_text},
                                         {"max error", "max_error", short_text},
                                         share("saturated"),
                                         share("zeroed"),
                                         {number("exact blocks"), "", exact_blocks}})
    fields.push_back(std::move(field));
  return table_of(rows, fields);
}

/// Errors of quantization, by scheme and role, and the `n_worst` worst tensors; empty when no
/// tensor was quantized.
Section quality_section(const QualityReport& report, std::size_t n_worst) {
  Section section{"quality", "Error against the source's values", {}};
  if (!report.rows.empty()) {
    Table worst = quality_table(
        json_list(std::span(report.worst).first(std::min(n_worst, report.worst.size())), worst_row),
        {{"worst tensors", "tensor"}, {"scheme"}});
    worst.least_rows = kScreenWorst;
    section.blocks = {
        quality_table(json_list(report.rows, quality_row),
                      {{"quantized", "scheme"}, {"role"}, {"tensors"}}),
        Paragraph{fmt::format("blocks: {} exact, {} rounded; {} tensors rounded twice "
                              "(quantized in the source, and again)",
                              count_text(report.exact_blocks), count_text(report.rounded_blocks),
                              count_text(report.rounded_twice))},
        std::move(worst)};
  }
  if (!report.indefinite.empty()) {
    section.add(Paragraph{
        fmt::format("{} tensors are rounded plainly, without gptq: the moments of their inputs are "
                    "not positive definite ({}{})",
                    count_text(report.indefinite.size()), report.indefinite.front(),
                    report.indefinite.size() > 1 ? " to " + report.indefinite.back() : "")});
  }
  if (report.inexact_globals > 0) {
    section.add(
        Paragraph{fmt::format("{} global scales are reciprocals that do not turn back exactly (off "
                              "by one unit in the last place)",
                              count_text(report.inexact_globals))});
  }
  return section;
}

Json quality_json(const QualityReport& report) {
  return as_document({{"rows", json_list(report.rows, quality_row)},
                      {"worst", json_list(report.worst, worst_row)},
                      {"exact_blocks", report.exact_blocks},
                      {"rounded_blocks", report.rounded_blocks},
                      {"tensors_rounded_twice", report.rounded_twice},
                      {"inexact_globals", report.inexact_globals},
                      {"indefinite_moments", report.indefinite}});
}

Json value_change_row(const ChangeReport::Row& row) {
  return {{"scheme", scheme_name(row.scheme)}, {"name", row.name},
          {"tensors", row.n_tensors},          {"survival", row.sums.survival()},
          {"cosine", row.sums.cosine()},       {"relative_change", row.sums.relative_change()}};
}

std::string share_of_change(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

/// Shares of changes that are left, by scheme and role, and the tensors of the smallest; empty
/// where nothing changes.
std::vector<Block> value_change_blocks(const ChangeReport& report, std::size_t n_least) {
  if (report.tensors.empty()) return {};
  const auto table = [&](const Json& rows, std::vector<Field> fields) {
    for (Field& field : std::vector<Field>{{"change left", "survival", share_of_change},
                                           {"cosine", "cosine", cosine_text},
                                           {"change / value", "relative_change", short_text}})
      fields.push_back(std::move(field));
    return table_of(rows, fields);
  };
  const auto least = std::span(report.tensors).first(std::min(n_least, report.tensors.size()));
  Table tensors = table(json_list(least, value_change_row), {{"least left", "name"}, {"scheme"}});
  tensors.least_rows = kScreenWorst;
  std::vector<Block> blocks = {table(json_list(report.roles, value_change_row),
                                     {{"changed", "scheme"}, {"role", "name"}, {"tensors"}}),
                               std::move(tensors)};
  if (!report.encoded_again.empty()) {
    blocks.emplace_back(Paragraph{fmt::format(
        "{} tensors that do not change were encoded again, since changed ones do not fit under the "
        "global scale that loaders give to both ({}{})",
        count_text(report.encoded_again.size()), report.encoded_again.front(),
        report.encoded_again.size() > 1 ? " to " + report.encoded_again.back() : "")});
  }
  return blocks;
}

double gigabytes_per_second(const StageReport& stage) {
  return stage.seconds > 0 ? static_cast<double>(stage.n_bytes) * 1e-9 / stage.seconds : 0;
}

// Tensors and bytes by action and pair of schemes.
Json change_rows(const Plan& plan) {
  std::map<std::tuple<Action, std::string_view, std::string_view>, std::array<std::uint64_t, 2>>
      changes;
  for (const PlannedTensor& planned : plan.tensors) {
    if (!plan.is_here(planned)) continue;
    const auto from = plan.tensor_of(planned).encoding.scheme;
    auto& [n_tensors, n_bytes] =
        changes[{planned.action, scheme_name(from), scheme_name(planned.to)}];
    ++n_tensors;
    for (std::size_t p = 0; p < planned.n_parts; ++p) n_bytes += planned.parts[p].n_bytes;
  }
  return json_list(changes, [](const auto& change) -> Json {
    const auto& [action, from, to] = change.first;
    return {{"action", convert::action_name(action)},
            {"from", from},
            {"to", to},
            {"tensors", change.second[0]},
            {"bytes_out", change.second[1]}};
  });
}

// Rows of pairs of schemes: if values are held exactly, and the roles of these tensors.
Json exactness_rows(const Plan& plan) {
  return json_list(convert::roles_by_exactness(plan), [](const auto& row) -> Json {
    const auto& [is_exact, from, to] = row.first;
    return {{"held", is_exact ? "exact by rule" : "not known"},
            {"from", scheme_name(from)},
            {"to", scheme_name(to)},
            {"roles", row.second}};
  });
}

// Names of quantized tensors that no option changes and that become BF16, sorted.
std::vector<std::string> demoted_tensors(const Plan& plan) {
  std::vector<std::string> names;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.is_demoted) names.push_back(plan.tensor_of(planned).name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string importance_text(const Plan& plan) {
  std::set<std::string_view> schemes;
  for (const convert::PlannedTensor& planned : plan.tensors) {
    if (convert::searches_scales(plan, planned)) schemes.insert(scheme_name(planned.to));
  }
  const std::string by_moments =
      plan.counts.by_moments == 0
          ? std::string()
          : fmt::format(", {} of them by moments", count_text(plan.counts.by_moments));
  return fmt::format("{} of {} {} tensors weighted{}", count_text(plan.counts.weighted),
                     count_text(plan.counts.searched), fmt::join(schemes, " and "), by_moments);
}

void add_importance(const Plan& plan, Json& json) {
  if (plan.counts.searched > 0)
    json["importance"] = {{"weighted", plan.counts.weighted},
                          {"by_moments", plan.counts.by_moments},
                          {"of", plan.counts.searched}};
}

// Tensors, and experts of stacks, that --gptq is for, and rounds plainly since nothing is known of
// their inputs.
std::vector<std::string> without_moments(const Plan& plan) {
  std::vector<std::string> names;
  for (const PlannedTensor& planned : plan.tensors) {
    if (!plan.recipe.choices.gptq || !convert::can_carry_errors(plan, planned)) continue;
    const formats::LogicalTensor& tensor = plan.tensor_of(planned);
    if (!planned.carries_errors) {
      names.push_back(tensor.name);
      continue;
    }
    const auto moments = convert::moments_of(plan, planned);
    for (std::size_t i = 0; i < moments.size(); ++i) {
      if (moments[i] == nullptr)
        names.push_back(convert::input_modules(plan.source, tensor, i).front() + ".weight");
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string gptq_text(const Plan& plan) {
  std::string text = fmt::format(
      "{} of {} tensors, with {} factors of moments", count_text(plan.counts.carrying),
      count_text(plan.counts.carriable), count_text(convert::factor_memory(plan, 1).n_factors));
  const std::vector<std::string> others = without_moments(plan);
  if (!others.empty())
    text += fmt::format("; without moments these are rounded plainly: {}{}", others.front(),
                        others.size() > 1 ? " to " + others.back() : "");
  return text;
}

void add_gptq(const Plan& plan, Json& json) {
  if (plan.counts.carriable == 0) return;
  json["gptq"] = {{"tensors", plan.counts.carrying},
                  {"of", plan.counts.carriable},
                  {"factors", convert::factor_memory(plan, 1).n_factors},
                  {"without_moments", without_moments(plan)}};
}

// Warnings of a plan, then those of its loader rules and of its run, as lines.
std::vector<std::string> warnings_of(const Plan& plan, std::span<const check::Finding> more) {
  std::vector<std::string> lines = plan.warnings;
  for (const check::Finding& finding : more) {
    std::string& line = lines.emplace_back();
    if (!finding.rule.empty()) line += fmt::format("{}: ", finding.rule);
    if (!finding.tensor.empty()) {
      line += fmt::format("'{}' ", finding.tensor);
    } else if (!finding.file.empty() && finding.file != formats::kConfigName) {
      line += fmt::format("{}: ", finding.file);
    }
    line += finding.message;
  }
  return lines;
}

std::string time_text(const convert::TimeEstimate& time) {
  const auto part = [](std::string_view what, std::string_view unit,
                       const convert::WorkEstimate& work) {
    if (work.per_second <= 0) return fmt::format("{} not measured", what);
    return fmt::format("{} at {:.2f} G{}/s{} ({})", what, work.per_second * 1e-9, unit,
                       work.is_past_cache ? "" : " through the page cache",
                       seconds_text(work.seconds()));
  };
  std::string text =
      fmt::format("{} {}, limited by {}: {}, {}", time.is_complete() ? "about" : "at least",
                  seconds_text(time.seconds()), time.limit(), part("reads", "B", time.reading),
                  part("writes", "B", time.writing));
  if (time.computing.n_bytes > 0)
    text += fmt::format(", {}", part("computes", " values", time.computing));
  return text + (time.has_one_disk ? ", one disk for both" : "");
}

// How the engine of --for loads experts of the output's form.
std::string experts_text(const Plan& plan, const engines::EngineRow& engine) {
  if (formats::holds_single_experts(plan.source) && !engine.skip_option.empty()) {
    return fmt::format("one by one: with {} a rank asks only for the weights of its own",
                       engine.skip_option);
  }
  if (!formats::holds_input_major_stacks(plan.source)) return "";
  return fmt::format(
      "stacks {}{}", engines::kCostOfTurnedStacks,
      engines::takes_singles(engine, plan.source.family()) ? "; none with --experts separate" : "");
}

ServedOutput served(const Plan& plan, std::span<const engines::EngineVerdict> engines,
                    const std::string& output) {
  const engines::EngineRow* engine = plan.recipe.choices.engine;
  // No engine loads slices of ranks.
  return {.engines = plan.is_sliced() ? std::span<const engines::EngineVerdict>() : engines,
          .checkpoint = {.directory = output,
                         .n_bytes = plan.sizes.bytes_out,
                         .brings_code = !engines::own_classes(plan.source).empty()},
          .wanted = engine,
          .n_unknown = formats::count_unknown(plan.source),
          .experts = engine == nullptr ? "" : experts_text(plan, *engine)};
}

// With --to: the bytes of the source in weights that have its scheme in the output.
Json as_asked(const Plan& plan) {
  std::uint64_t n_bytes = 0, all = 0;
  for (const convert::PlannedTensor& planned : plan.tensors) {
    for (const std::uint32_t stored : plan.stored_of(planned)) {
      all += plan.source.stored()[stored].n_bytes;
      if (planned.to == *plan.recipe.to) n_bytes += plan.source.stored()[stored].n_bytes;
    }
  }
  return {{"scheme", scheme_name(*plan.recipe.to)}, {"bytes", n_bytes}, {"of", all}};
}

/// The checkpoints that give the tensors of a composed source, with the number of them; empty for
/// others.
Json giver_rows(const Plan& plan) {
  const auto givers = plan.source.givers();
  std::vector<std::uint64_t> counts(givers.size());
  for (const formats::LogicalTensor& tensor : plan.source.tensors())
    if (!givers.empty()) ++counts[tensor.giver];
  Json rows = Json::array();
  for (std::size_t i = 0; i < givers.size(); ++i) {
    rows.push_back({{"name", givers[i].name},
                    {"dialect", givers[i].model->dialect().name},
                    {"tensors", counts[i]},
                    {"directory", givers[i].model->directory().string()}});
  }
  return rows;
}

std::string as_asked_text(const Plan& plan) {
  const Json asked = as_asked(plan);
  const auto n_bytes = asked["bytes"].get<std::uint64_t>(), all = asked["of"].get<std::uint64_t>();
  return fmt::format("{} of the source's {} take {} ({})", bytes_text(n_bytes), bytes_text(all),
                     asked["scheme"].get<std::string>(), share_text(n_bytes, all));
}

// On a screen, or whole.
std::string text_of(Section section, bool is_whole) {
  const Document document{.sections = {std::move(section)}};
  return write_text(document, is_whole ? 0 : kScreenLines, report_width());
}

}  // namespace

std::string action_word(std::string_view action) {
  // Codes that stay, in parts of another name or shape.
  return action == convert::action_name(Action::kRewrap) ? "repack" : std::string(action);
}

std::string dry_run_text(const DryRun& run, bool is_whole) {
  const Plan& plan = run.plan;
  Section section;
  const auto line = [&](std::string_view label, std::string text) {
    section.add(Paragraph{fmt::format("{:<13}{}", label, text)});
  };
  line("plan for", fmt::format("{} ({}, {} dialect) into dialect {}",
                               plan.source.directory().string(), plan.source.family().name,
                               plan.source.dialect().name, plan.target.dialect->name));
  if (const Json givers = giver_rows(plan); !givers.empty())
    section.add(table_of(givers, {{"source", "name"}, {"dialect"}, {"tensors"}, {"directory"}}));
  const auto action = [](const Json& name) { return action_word(name.get<std::string>()); };
  section.add(table_of(
      change_rows(plan),
      {{"action", "action", action}, {"from"}, {"to"}, {"tensors"}, {"bytes out", "bytes_out"}}));
  section.add(
      table_of(exactness_rows(plan),
               {{"values", "held"}, {"from"}, {"to"}, {"roles", "roles", [](const Json& roles) {
                                                         return first_of(roles, 5);
                                                       }}}));
  line("output",
       fmt::format("{} bytes in {} weights file(s) ({}), exact", count_text(plan.sizes.bytes_out),
                   plan.n_members_here(), bytes_text(plan.sizes.bytes_out)));
  if (plan.options.part) {
    line("part",
         fmt::format("{}: these figures are those of its {} of {} weights files",
                     convert::text_of(*plan.options.part), plan.n_members_here(), plan.n_members));
  }
  for (Block& block : slicing_blocks(plan)) section.add(std::move(block));
  if (plan.recipe.to) line("--to", as_asked_text(plan));
  line("reads", fmt::format("{} bytes ({})", count_text(plan.sizes.bytes_in),
                            bytes_text(plan.sizes.bytes_in)));
  if (plan.counts.demoted > 0) {
    const std::vector<std::string> names = demoted_tensors(plan);
    line(
        "to BF16",
        fmt::format("{} quantized tensors that no rule selects become BF16: dialect {} cannot hold "
                    "their scheme together with the others ({}{})",
                    count_text(plan.counts.demoted), plan.target.dialect->name, names.front(),
                    names.size() > 1 ? " to " + names.back() : ""));
  }
  if (plan.counts.changed > 0)
    line("changes",
         fmt::format("the values of {} tensors change", count_text(plan.counts.changed)));
  if (plan.counts.searched > 0) line("importance", importance_text(plan));
  if (plan.counts.carriable > 0) line("gptq", gptq_text(plan));
  const convert::MemoryPlan& memory = run.checked.memory;
  if (memory.n_read_twice > 0) {
    line("read twice",
         fmt::format("{} groups with a shared scale, {} (a larger --mem-limit keeps them "
                     "in memory)",
                     count_text(memory.n_read_twice), bytes_text(memory.bytes_read_twice)));
  }
  line("peak memory",
       fmt::format("{} ({} tables and program, {} threads with {}, {}{} write buffers of {})",
                   bytes_text(memory.peak()), bytes_text(memory.fixed_bytes), memory.threads,
                   bytes_text(memory.worker_bytes),
                   memory.factor_bytes > 0
                       ? fmt::format("{} factors of moments, ", bytes_text(memory.factor_bytes))
                       : "",
                   memory.n_windows, bytes_text(memory.window_bytes)));
  const convert::DiskNeed& disk = run.checked.disk;
  line("disk",
       fmt::format(
           "{} needed at the peak with at most {} for files other than weights, {} {}{}",
           bytes_text(disk.peak_bytes), bytes_text(disk.side_bytes), bytes_text(disk.free_bytes),
           run.is_assumed ? "assumed" : "free",
           disk.missing() > 0 ? fmt::format(": {} MISSING", bytes_text(disk.missing())) : ""));
  if (run.time) line("time", time_text(*run.time));
  for (auto& [label, text] : engine_lines(served(plan, run.checked.loadable.engines, run.output)))
    line(label, std::move(text));
  if (run.checked.is_finished) section.add(Paragraph{std::string(kAlreadyFinished)});
  section.add(remarks_of("warning", warnings_of(plan, run.checked.loadable.warnings)));
  return text_of(std::move(section), is_whole);
}

Json dry_run_json(const DryRun& run) {
  const Plan& plan = run.plan;
  const convert::Preflight& checked = run.checked;
  Json json = {{"dry_run", true},
               {"family", plan.source.family().name},
               {"dialect", plan.source.dialect().name},
               {"output_dialect", plan.target.dialect->name},
               {"recipe", plan.recipe.to_json()},
               {"actions", change_rows(plan)},
               {"every_value_is_held", exactness_rows(plan)},
               {"files", Json::array()}};
  for (const convert::PlannedFile& file : plan.files) {
    if (!file.is_here) continue;
    for (const convert::PlannedFile::Member& member : file.members) {
      json["files"].push_back(
          {{"name", member.path}, {"bytes", file.n_bytes}, {"tensors", file.parts.size()}});
    }
  }
  if (plan.is_sliced()) json["slicing"] = slicing_report_json(plan);
  if (Json givers = giver_rows(plan); !givers.empty()) json["givers"] = std::move(givers);
  if (plan.options.part) json["part"] = convert::text_of(*plan.options.part);
  if (plan.recipe.to) json["as_asked"] = as_asked(plan);
  json["bytes_in"] = plan.sizes.bytes_in;
  json["bytes_out"] = plan.sizes.bytes_out;
  json["demoted"] = demoted_tensors(plan);
  json["changed"] = plan.counts.changed;
  add_importance(plan, json);
  add_gptq(plan, json);
  json.update(
      {{"read_twice",
        {{"groups", checked.memory.n_read_twice}, {"bytes", checked.memory.bytes_read_twice}}},
       {"peak_memory_bytes", checked.memory.peak()},
       {"disk_bytes_needed", checked.disk.peak_bytes},
       {"side_bytes_at_most", checked.disk.side_bytes},
       {"disk_bytes_free", checked.disk.free_bytes},
       {"disk_bytes_missing", checked.disk.missing()},
       {"already_done", checked.is_finished},
       {"engines", engines_json(served(plan, checked.loadable.engines, run.output))},
       {"warnings", json_list(checked.loadable.warnings, check::fault_json)}});
  return json;
}

Json warnings_json(const Plan& plan) {
  return check::remarks_json(plan.warnings, plan.source.directory().string());
}

std::string remarks_text(const Plan& plan, bool is_whole) {
  constexpr std::size_t kFewLines = 10;
  const Document document{.sections = {{"",
                                        "",
                                        {remarks_of("warning", plan.warnings),
                                         remarks_of("note", alignment_notes(plan))}}}};
  return write_text(document, is_whole ? 0 : kFewLines, report_width());
}

// Threads that neither read nor compute write, or wait for memory that is being written.
std::vector<WorkShare> work_shares(const convert::TensorRunReport& run) {
  if (run.thread_seconds <= 0 || run.write.n_bytes == 0) return {};
  const double reading = run.read.seconds, computing = run.compute.seconds + run.hash.seconds;
  std::vector<WorkShare> shares = {
      {"reading", reading / run.thread_seconds},
      {"computing", computing / run.thread_seconds},
      {"writing", std::max(1 - (reading + computing) / run.thread_seconds, 0.0)}};
  std::ranges::stable_sort(shares, std::ranges::greater(), &WorkShare::share);
  return shares;
}

// The bytes of this run and their rates, or whose the bytes of the output are.
std::vector<std::string> written_lines(const Plan& plan, const ExecuteReport& report) {
  const auto& tensors = report.tensors;
  const std::string spent = fmt::format("in {}", seconds_text(report.elapsed_seconds));
  const std::string memory = fmt::format("peak memory {}", bytes_text(peak_memory()));
  if (tensors.write.n_bytes == 0) {
    const char* owner = report.n_joined > 0          ? "that the parts wrote"
                        : report.tensors_taken > 0   ? "of the base, linked or copied"
                        : report.tensors_resumed > 0 ? "that an earlier run wrote"
                                                     : "of the source, linked or copied";
    return {fmt::format("published {} {} {}, {}", bytes_text(plan.sizes.bytes_out), owner, spent,
                        memory)};
  }
  return {fmt::format("wrote {} {} at {:.2f} GB/s{}, {}", bytes_text(tensors.write.n_bytes), spent,
                      static_cast<double>(tensors.write.n_bytes) * 1e-9 /
                          std::max(report.elapsed_seconds, 1e-9),
                      tensors.direct_io ? " (direct I/O)" : " (buffered I/O)", memory),
          fmt::format(
              "GB/s per thread by stage: read {:.2f}, compute {:.2f}, hash {:.2f}, write {:.2f}",
              gigabytes_per_second(tensors.read), gigabytes_per_second(tensors.compute),
              gigabytes_per_second(tensors.hash), gigabytes_per_second(tensors.write))};
}

std::string report_text(const Plan& plan, const ExecuteReport& report, const std::string& output,
                        std::optional<std::size_t> n_worst) {
  if (report.already_done) return std::string(kAlreadyFinished) + "\n";
  Section section = quality_section(report.quality, n_worst.value_or(kScreenWorst));
  for (Block& block : value_change_blocks(report.changes, n_worst.value_or(kScreenWorst)))
    section.add(std::move(block));
  std::string done;
  const auto count = [&](std::string_view action, std::uint64_t n, bool is_told) {
    if (is_told) done += fmt::format("{}{} {}", done.empty() ? "" : ", ", action, count_text(n));
  };
  count("repacked", plan.counts.rewrapped, plan.counts.rewrapped > 0);
  count("quantized", plan.counts.quantized, plan.counts.quantized > 0);
  count("cast", plan.counts.cast, true);
  count("copied", plan.counts.copied, true);
  count("dropped", plan.counts.dropped, true);
  done += " tensors";
  if (report.n_joined > 0) done += fmt::format(" (by {} parts)", report.n_joined);
  if (report.tensors_resumed > 0)
    done += fmt::format(" ({} of them by an earlier run)", count_text(report.tensors_resumed));
  if (report.tensors_taken > 0) {
    done += fmt::format(" ({} of them, {}, taken over from the base, with {} whole file{})",
                        count_text(report.tensors_taken), bytes_text(report.bytes_taken),
                        report.files_taken, report.files_taken == 1 ? "" : "s");
  }
  std::vector<std::string> lines = written_lines(plan, report);
  lines.insert(lines.begin(), done);
  if (plan.recipe.to) lines.insert(lines.begin() + 1, as_asked_text(plan));
  if (plan.options.part) {
    lines.push_back(fmt::format(
        "part {} is complete: {} of {} weights files. When all parts are: "
        "ingot join {}",
        convert::text_of(*plan.options.part), plan.n_members_here(), plan.n_members, output));
  }
  if (plan.counts.searched > 0) lines.push_back("importance: " + importance_text(plan));
  if (plan.counts.carriable > 0) lines.push_back("gptq: " + gptq_text(plan));
  if (report.tensors_redone > 0) {
    lines.push_back(
        fmt::format("{} tensors of the earlier run were not whole on disk and were made again",
                    report.tensors_redone));
  }
  for (auto line = lines.rbegin(); line != lines.rend(); ++line)
    section.blocks.insert(section.blocks.begin(), Paragraph{std::move(*line)});
  section.add(remarks_of("warning", warnings_of(plan, report.warnings)));
  for (const auto& [label, text] : engine_lines(served(plan, report.engines, output)))
    section.add(Paragraph{fmt::format("{}: {}", label, text)});
  if (const auto shares = work_shares(report.tensors); !shares.empty())
    section.add(Paragraph{limits_text(shares)});
  return text_of(std::move(section), n_worst.has_value());
}

Json report_json(const Plan& plan, const ExecuteReport& report, const std::string& output) {
  const auto stage = [](const StageReport& facts) {
    return Json{{"seconds", facts.seconds},
                {"bytes", facts.n_bytes},
                {"gb_per_s", gigabytes_per_second(facts)}};
  };
  Json json = {{"already_done", report.already_done},
               {"published", !report.refused || report.already_done || report.only_published},
               {"quantized", plan.counts.quantized},
               {"rewrapped", plan.counts.rewrapped},
               {"demoted", plan.counts.demoted},
               {"cast", plan.counts.cast},
               {"copied", plan.counts.copied},
               {"rescaled", plan.counts.rescaled},
               {"changed", plan.counts.changed},
               {"dropped", plan.counts.dropped},
               {"resumed", report.tensors_resumed},
               {"redone", report.tensors_redone},
               {"taken", report.tensors_taken},
               {"bytes_taken", report.bytes_taken},
               {"files_taken", report.files_taken},
               {"bytes_out", plan.sizes.bytes_out},
               {"bytes_written", report.tensors.write.n_bytes},
               {"elapsed_seconds", report.elapsed_seconds},
               {"direct_io", report.tensors.direct_io},
               {"peak_rss_bytes", peak_memory()},
               {"stages",
                {{"read", stage(report.tensors.read)},
                 {"compute", stage(report.tensors.compute)},
                 {"hash", stage(report.tensors.hash)},
                 {"write", stage(report.tensors.write)}}},
               {"limits", limits_json(work_shares(report.tensors))},
               {"quality", quality_json(report.quality)},
               {"warnings", json_list(report.warnings, check::fault_json)},
               {"engines", engines_json(served(plan, report.engines, output))}};
  if (plan.recipe.to) json["as_asked"] = as_asked(plan);
  if (plan.options.part) json["part"] = convert::text_of(*plan.options.part);
  if (report.n_joined > 0) json["parts"] = report.n_joined;
  if (!report.changes.tensors.empty()) {
    json["changes"] = {{"survival", report.changes.sums.survival()},
                       {"relative_change", report.changes.sums.relative_change()},
                       {"roles", json_list(report.changes.roles, value_change_row)},
                       {"tensors", json_list(report.changes.tensors, value_change_row)},
                       {"encoded_again", report.changes.encoded_again}};
  }
  add_importance(plan, json);
  add_gptq(plan, json);
  return json;
}

}  // namespace ingot::cli
