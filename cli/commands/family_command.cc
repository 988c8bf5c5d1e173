#include <chrono>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/learning/class_model.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/output_guard.h"
#include "cli/terminal/terminal.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/family/proposal/family_proof.h"
#include "formats/files/named_file.h"
#include "library/options/family_learning.h"
#include "library/options/flag_table.h"
#include "shard/join/source.h"

namespace ingot::cli {
namespace {

using formats::Json;

constexpr const char* kNoPython = "none";
constexpr std::chrono::seconds kPythonLimit{300};

struct FamilyFlags {
  std::string action, directory, out, without, python = "python3";
  std::vector<std::string> answers;
};

formats::FamilyEvidence evidence_of(const FamilyFlags& flags) {
  formats::FamilyEvidence evidence{.without = flags.without};
  for (const std::string& answer : flags.answers) {
    const std::size_t equals = answer.rfind('=');
    if (equals == std::string::npos)
      throw Error(ErrorCode::kInvalidArgument, "--answer {} is no KEY=VALUE", answer);
    evidence.answers[answer.substr(0, equals)] = answer.substr(equals + 1);
  }
  return evidence;
}

// Takes what the class of the model in transformers adds; says how it was computed, or why not.
std::string learn_of_class(const FamilyFlags& flags, const library::OpenUnder& open,
                           formats::FamilyEvidence& evidence, formats::LearnedFamily& learned) {
  if (flags.python == kNoPython) return "not computed: no Python was asked";
  const WorkFolder folder;
  const Json said = ask_class(flags.python, open("generic").directory() / "config.json",
                              folder.path(), kPythonLimit);
  // Flags of a class whose stacks are stored as it has them.
  if (const auto stacks = said.find("stacks"); stacks != said.end()) {
    const std::string by = " as transformers' class has them";
    const bool is_halves = stacks->value("is_concatenated", true);
    const auto order = stacks->value("is_transposed", false) ? formats::StackOrder::kInputMajor
                                                             : formats::StackOrder::kOutputMajor;
    const auto gate_up =
        is_halves ? formats::GateUpOrder::kHalves : formats::GateUpOrder::kInterleaved;
    if (evidence.order.value_or(order) != order || evidence.gate_up.value_or(gate_up) != gate_up) {
      learned.faults.emplace_back("values of stacks of experts contradict transformers' class");
      return "not computed: its class has another order of stacks";
    }
    evidence.order = order;
    evidence.gate_up = gate_up;
    evidence.gate_up_reason =
        fmt::format("{} as transformers' class has them", is_halves ? "in halves," : "in turn,");
    learned = library::learned_family(open, evidence);
  }
  if (!said.value("model", false)) return "not computed: " + said.value("why", std::string("?"));
  const std::string source = said.value("source", std::string());
  const bool is_computed = library::compute_family(
      open, evidence,
      {.checkpoint = folder.path() / "model", .recorded = folder.path() / "recorded.safetensors"},
      learned);
  return is_computed
             ? fmt::format("tokens and states of a small model are those of {}", source)
             : fmt::format("not computed: no forward pass of a near family is that of {}", source);
}

int run_family(const FamilyFlags& flags) {
  if (!flags.out.empty()) require_absent_file(flags.out);
  const auto open = [&](const std::string& family) {
    return shard::open_source(flags.directory,
                              {.open = {.family = family, .threads = available_processors()}});
  };
  formats::FamilyEvidence evidence = evidence_of(flags);
  formats::LearnedFamily learned = library::learned_family(open, evidence);
  const std::string computed = learn_of_class(flags, open, evidence, learned);
  Json questions = Json::array();
  for (const formats::FamilyQuestion& question : learned.questions)
    questions.push_back(
        {{"key", question.key}, {"text", question.text}, {"values", question.values}});
  answer().add({{"directory", flags.directory},
                {"questions", questions},
                {"faults", learned.faults},
                {"computed", computed},
                {"proof", nullptr}});
  if (!learned.is_proven()) {
    throw Error(ErrorCode::kUnsupported, "{}; ingot inspect {} --family auto shows the rows:{}",
                learned.questions.empty()
                    ? "its family cannot be proven"
                    : fmt::format("{} to be answered before its family is proven",
                                  learned.questions.size() == 1
                                      ? "a question is"
                                      : fmt::format("{} questions are", learned.questions.size())),
                flags.directory, library::open_text(learned))
        .in_file(flags.directory);
  }
  const std::string proof = fmt::format("{}; {}", library::structure_proof(learned), computed);
  const std::string yaml = formats::with_proof(learned.yaml, proof);
  answer().add({{"proof", proof}, {"yaml", yaml}});
  if (!flags.out.empty()) write_absent_file(flags.out, yaml);
  if (answer().is_json) return kExitDone;
  if (flags.out.empty()) {
    write_data(yaml);
  } else {
    out() << fmt::format("{}: proven: {}\ngive it with --family-file {}\n", flags.out, proof,
                         flags.out);
  }
  return kExitDone;
}

}  // namespace

std::function<int()> declare_family(FlagTable& table) {
  auto flags = std::make_shared<FamilyFlags>();
  Flag action = required("action", &flags->action, "learn", ValueKind::kText);
  action.rule.choices = {"learn"};
  table.add(
      FlagGroup::kCommon,
      {action,
       required("directory", &flags->directory, kPathHelp, ValueKind::kCheckpoint),
       {"--out",
        &flags->out,
        "the family's file (default: printed)",
        {.kind = ValueKind::kFile, .is_written = true}},
       {"--answer",
        &flags->answers,
        "the answer to a question that this command asks, once for each",
        {.value_name = "KEY=VALUE"}},
       {"--python",
        &flags->python,
        "the Python whose transformers and torch are asked for the model's class; none: none is",
        {.words = {kNoPython}, .value_name = "PROGRAM"}},
       {"--without",
        &flags->without,
        "a family of the program that is not asked, as if there were none",
        {.value_name = "FAMILY"}}});
  table.add(FlagGroup::kReport, {json_flag(&answer().is_json)});
  table.footer =
      "Examples:\n"
      "  ingot family learn NEW-MODEL --out new_model.yaml\n"
      "  ingot family learn NEW-MODEL --out new_model.yaml --answer gate_up=halves\n"
      "  ingot convert NEW-MODEL OUT --to fp8 --family-file new_model.yaml";
  return [flags] { return run_family(*flags); };
}

}  // namespace ingot::cli
