#include <iostream>
#include <memory>

#include "cli/commands/commands.h"
#include "cli/commands/job.h"
#include "cli/commands/measurement.h"
#include "cli/terminal/terminal.h"
#include "formats/base/fd.h"
#include "formats/json/json.h"
#include "verify/verification.h"

namespace ingot::cli {
namespace {

struct VerifyFlags : MeasurementFlags {
  std::string source, output;
};

// Refuses flags that would change nothing in what is compared.
void refuse_idle(const VerifyFlags& flags, const FlagTable& table) {
  const bool is_pair = !flags.output.empty();
  const auto word = [&](const char* option, bool acts, std::string_view belongs_to) {
    return IdleFlag{option, table.is_given(option), acts, belongs_to};
  };
  std::vector<IdleFlag> idle = {
      word("--levels", is_pair, "the comparison of two checkpoints"),
      word("--reference", !is_pair, "one checkpoint; give either it or a second directory"),
      word("--source-config", is_pair, "the comparison of two checkpoints"),
  };
  for (const IdleFlag& flag : idle_measurement(flags, table, is_pair)) idle.push_back(flag);
  refuse_idle_flags(idle);
}

int run_verify(const VerifyFlags& flags, const FlagTable& table) {
  refuse_idle(flags, table);
  // A file or a demand that is not understood is refused before hours of work, not after.
  verify::make_thresholds({}, flags.options.thresholds, flags.options.requirements);
  Progress progress(flags.progress, "headers and structure");
  verify::VerificationOptions options = measurement_options(flags);
  options.progress = stages_of(progress);
  install_stop_signals();
  const verify::Report report = flags.output.empty()
                                    ? verify::verify_single(flags.source, options)
                                    : verify::verify_pair(flags.source, flags.output, options);
  progress.finish();
  notes() << progress.summary(options.threads);
  // First where no disk can be full.
  std::cout << (flags.json ? formats::json_text(verify::report_json(report, json_worst(flags)))
                           : verify::report_text(report, flags.n_worst));
  if (!flags.html.empty()) write_text_file(flags.html, verify::report_html(report));
  if (!flags.markdown.empty()) write_text_file(flags.markdown, verify::report_markdown(report));
  return report.passed() ? kExitDone : kExitBelowThreshold;
}

}  // namespace

std::function<int()> declare_verify(FlagTable& table) {
  auto flags = std::make_shared<VerifyFlags>();
  verify::VerificationOptions& options = flags->options;
  table.add(
      FlagGroup::kCommon,
      {required("source", &flags->source,
                "the checkpoint that is right (or the only one); may be one .safetensors file",
                ValueKind::kPath),
       {"output",
        &flags->output,
        "the checkpoint made of it, in any format, dialect and slicing",
        {.kind = ValueKind::kPath}},
       levels_flag(*flags)});
  table.add(FlagGroup::kSource,
            {family_flag(&options.family, kFamilyHelp),
             family_file_flag(&options.family),
             {"--source-config",
              &options.source_config,
              "config.json of the source, for shards that have none beside them, or one file",
              {.kind = ValueKind::kFile}},
             {"--config",
              &options.output_config,
              "config.json of the output, for shards that have none beside them, or one file",
              {.kind = ValueKind::kFile}}});
  declare_gates(table, options.thresholds, options.requirements);
  declare_measurement(table, *flags);
  table.add(FlagGroup::kComparison,
            {{"--reference",
              &options.reference,
              "compare one checkpoint with activations recorded elsewhere (safetensors)",
              {.kind = ValueKind::kFile}},
             {"--activation-scales",
              &options.activation_scales,
              "file of ingot calibrate that static scales are compared with, by structure",
              {.kind = ValueKind::kFile}}});
  table.footer =
      "Examples:\n"
      "  ingot verify DeepSeek-V3.2 DeepSeek-V3.2-int8                        structure and every "
      "weight\n"
      "  ingot verify DeepSeek-V3.2 DeepSeek-V3.2-nvfp4-tp8 --levels all --html report.html\n"
      "  ingot verify IN OUT --levels layers --require 'layers.cosine>=0.999'\n"
      "  ingot verify DeepSeek-V3.2-int8 --text wiki.txt                      perplexity\n"
      "  ingot verify DeepSeek-V3.2 --reference recorded.safetensors          against another "
      "runtime\n"
      "Exit code 0 when every gate is passed, 1 when one is not, 2 when something could not be "
      "done.";
  return [flags, &table] { return run_verify(*flags, table); };
}

}  // namespace ingot::cli
