#pragma once

#include "check/rules/loader_rules.h"
#include "tests/check/findings.h"
#include "tests/check/rules/spelled_checkpoint.h"
#include "tests/support/json_edit.h"
#include "tests/support/test.h"

namespace ingot::testing {

/// A checkpoint that violates one row of the loader rules and no other.
struct RuleFixture {
  std::string_view rule;
  ErrorCode code{};
  std::function<EditableCheckpoint()> make;
  std::function<void(EditableCheckpoint&)> damage = {};  ///< none: the checkpoint of `make`
                                                         ///< violates it
  std::set<std::string_view> also = {};                  ///< rows that cannot but complain too
  std::uint64_t tensor_parallel = 1;
};

std::vector<RuleFixture> native_fixtures();              ///< DeepSeek's own blocks
std::vector<RuleFixture> scheme_fixtures();              ///< INT8, NVFP4, MX, whatever the dialect
std::vector<RuleFixture> compressed_tensors_fixtures();  ///< its config
std::vector<RuleFixture> modelopt_fixtures();
std::vector<RuleFixture> modelslim_fixtures();
std::vector<RuleFixture> engine_fixtures();  ///< schemes and activations that engines refuse
std::vector<RuleFixture> model_fixtures();   ///< container, layers, experts

/// All of them.
std::vector<RuleFixture> rule_fixtures();

/// As `ingot synth` writes it, in DeepSeek's FP8 blocks.
inline EditableCheckpoint make_fp8() {
  return make_synthetic();
}

/// Makes an FP8 weight plain, as a cast would.
void make_weight_plain(EditableCheckpoint& checkpoint, const std::string& name);

inline formats::Json& quantization(EditableCheckpoint& checkpoint) {
  return checkpoint.config.at("quantization_config");
}

using Damage = std::function<void(EditableCheckpoint&)>;

/// Changes of config.json.
inline Damage in_config(std::vector<JsonEdit> edits) {
  return [edits = std::move(edits)](EditableCheckpoint& checkpoint) {
    checkpoint.config = edited(checkpoint.config, edits);
  };
}

/// Changes of its `quantization_config`.
inline Damage in_quantization(std::vector<JsonEdit> edits) {
  for (JsonEdit& edit : edits) edit.at = "/quantization_config" + edit.at;
  return in_config(std::move(edits));
}

/// Changes of another JSON file.
inline Damage in_file(const std::string& file, std::vector<JsonEdit> edits) {
  return [file, edits = std::move(edits)](EditableCheckpoint& checkpoint) {
    checkpoint.descriptions.at(file) = edited(checkpoint.descriptions.at(file), edits);
  };
}

inline std::function<EditableCheckpoint()> spelled(std::string dialect, formats::SchemeId scheme,
                                                   formats::Activations activations) {
  return [=] { return make_spelled({dialect, scheme, activations}); };
}

inline const auto kInt8 =
    spelled("compressed-tensors", formats::SchemeId::kInt8Channel, formats::Activations::kDynamic);
inline const auto kModeloptNvfp4 =
    spelled("modelopt", formats::SchemeId::kNvfp4, formats::Activations::kStatic);

inline bool is_of_engine(std::string_view rule) {
  return rule.starts_with("engine.");
}

/// The findings of all rules in a checkpoint that is written for it; `faults` receives those of its
/// structure.
inline std::vector<check::Finding> run_all_rules(
    const EditableCheckpoint& edited,
    const check::RuleOptions& rule_options = {.deep = true, .threads = 2},
    ErrorList* faults = nullptr) {
  const TempDir dir;
  edited.write(dir.path(), rule_options.most_bytes != 0);
  ErrorList own;
  formats::OpenOptions options;
  options.faults = faults != nullptr ? faults : &own;
  const formats::Checkpoint checkpoint = formats::Checkpoint::open(dir.path(), options);
  return check::run_loader_rules(checkpoint, rule_options);
}

/// The same without engines' opinion of a sound spelling, which some tests ask for by itself.
inline std::vector<check::Finding> run_rules(const EditableCheckpoint& edited,
                                             const check::RuleOptions& rule_options = {
                                                 .deep = true, .threads = 2}) {
  std::vector<check::Finding> findings = run_all_rules(edited, rule_options);
  std::erase_if(findings, [](const check::Finding& finding) { return is_of_engine(finding.rule); });
  return findings;
}

}  // namespace ingot::testing
