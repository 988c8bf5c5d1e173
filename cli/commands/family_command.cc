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

/// The class of the model in transformers, as class_model.py describes it.
formats::ModelClass class_in(const Json& said) {
  formats::ModelClass known;
  known.plan = said.value("plan", known.plan);
  known.names = said.value("names", known.names);
  known.joined = said.value("joined", known.joined);
  const auto stacks = said.find("stacks");
  if (stacks == said.end()) return known;
  known.stacks = stacks->value("names", known.stacks);
  known.order = stacks->value("is_transposed", false) ? formats::StackOrder::kInputMajor
                                                      : formats::StackOrder::kOutputMajor;
  known.gate_up = stacks->value("is_concatenated", true) ? formats::GateUpOrder::kHalves
                                                         : formats::GateUpOrder::kInterleaved;
  return known;
}

// Computes the small model of the class; says how, or why not.
std::string compute_class(const Json& said, const WorkFolder& folder,
                          const library::OpenUnder& open, const formats::FamilyEvidence& evidence,
                          formats::LearnedFamily& learned) {
  if (!said.value("model", false)) return "not computed: " + said.value("why", std::string("?"));
  const std::string source = said.value("source", std::string());
  const library::ComputedFamily computed = library::compute_family(
      open, evidence,
      {.checkpoint = folder.path() / "model", .recorded = folder.path() / "recorded.safetensors"},
      learned);
  return computed.reason.empty()
             ? fmt::format(
                   "tokens and states of a small model are those of {}, by the forward pass of {}",
                   source, computed.forward)
             : fmt::format("not computed as {}: {}", source, computed.reason);
}

int run_family(const FamilyFlags& flags) {
  if (!flags.out.empty()) require_absent_file(flags.out);
  const auto open = [&](const std::string& family) {
    return shard::open_source(flags.directory,
                              {.open = {.family = family, .threads = available_processors()}});
  };
  formats::FamilyEvidence evidence = evidence_of(flags);
  const WorkFolder folder;
  Json said = {{"why", "no Python was asked"}};
  if (flags.python != kNoPython) {
    said = ask_class(flags.python, open("generic").directory() / "config.json", folder.path(),
                     kPythonLimit);
  }
  evidence.of_class = class_in(said);
  formats::LearnedFamily learned = library::learned_family(open, evidence);
  const std::string computed = compute_class(said, folder, open, evidence, learned);
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
