#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/flag_table.h"
#include "cli/generate_chat.h"
#include "cli/generate_output.h"
#include "cli/generate_prompts.h"
#include "cli/generate_session.h"
#include "cli/generate_words.h"
#include "cli/terminal.h"
#include "formats/base/error.h"
#include "formats/json/json.h"

namespace ingot::cli {
namespace {

int run_generate(const GenerateWords& words) {
  words.require_one_source();
  GenerateSession session(words);
  const PromptReader prompts(words, session.source());
  if (words.interactive) return run_chat(words, session, prompts);

  const std::vector<std::vector<std::int32_t>> ids = prompts.read();
  inference::GenerateOptions options = session.options();
  session.open(inference::final_lengths(session.spec(), ids, options.max_new_tokens));
  install_stop_signals();
  options.stop_requested = stop_requested;
  AnswerPrinter printer(ids.size(), prompts.tokenizer(), words.tokens.has_value(), options.eos);
  if (!words.json) {
    options.on_token = [&](std::size_t prompt, std::int32_t token) {
      printer.on_token(prompt, token);
    };
  }
  const inference::GenerateResult result = inference::generate(session.model(), ids, options);
  if (words.json) {
    std::cout << formats::json_text(generate_json(result, prompts.tokenizer(), session.model()));
  } else {
    printer.finish();
    std::cerr << generate_summary(result, session.model()) << "\n";
  }
  if (stop_requested())
    throw Error(ErrorCode::kInterrupted, "stopped before the end of the answer");
  return kExitDone;
}

}  // namespace

std::function<int()> declare_generate(FlagTable& table) {
  auto words = std::make_shared<GenerateWords>();
  declare_generate_words(table, *words);
  table.set_footer(
      "Profiles: native computes per tensor what its scheme means on the target hardware, bf16 as "
      "transformers in BF16, f32 exactly.\n"
      "Examples:\n"
      "  ingot generate DeepSeek-V3.2-int8 --prompt 'What is the capital of Norway?' --greedy\n"
      "  ingot generate DeepSeek-V3.2-tp16 --prompts questions.txt --profile f32 --json\n"
      "  ingot generate DeepSeek-V3.2 --interactive --mem-limit 200GB --kv-cache fp8\n"
      "  ingot generate DeepSeek-V3.2 --tokens 0,128803,19923,128804 --max-new-tokens 8");
  return [words] { return run_generate(*words); };
}

}  // namespace ingot::cli
