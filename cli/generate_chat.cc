#include "cli/generate_chat.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <iostream>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/generate_output.h"
#include "cli/line_editor.h"
#include "formats/base/error.h"
#include "formats/json/json.h"

namespace ingot::cli {
namespace {

using formats::Json;

constexpr std::size_t kContext = 8192;

std::atomic<bool> interrupted = false;

void note_interrupt(int /*signal*/) {
  interrupted = true;
}

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = note_interrupt;  // without SA_RESTART: a read ends
  ::sigaction(SIGINT, &action, nullptr);
}

}  // namespace

int run_chat(const GenerateWords& words, GenerateSession& session, const PromptReader& prompts) {
  const std::size_t asked = words.context.value_or(kContext);
  const std::size_t context =
      session.spec().max_positions == 0 ? asked : std::min(asked, session.spec().max_positions);
  const std::size_t lengths[] = {context};
  session.open(lengths);
  inference::GenerateOptions options = session.options();
  options.stop_requested = [] { return interrupted.load(); };
  std::cerr << "/clear forgets the conversation, /exit ends it, Ctrl-C stops an answer\n";
  catch_interrupts();
  LineEditor editor;
  Json messages = prompts.opening();
  while (const auto line = editor.read()) {
    interrupted = false;
    if (line->empty()) continue;
    if (*line == "/exit") break;
    if (*line == "/clear") {
      messages = prompts.opening();
      continue;
    }
    messages.push_back({{"role", "user"}, {"content", *line}});
    try {
      const std::vector<std::vector<std::int32_t>> ids = {prompts.encode(messages, nullptr)};
      if (ids[0].size() >= context) {
        throw Error(ErrorCode::kLimit,
                    fmt::format("the conversation has {} tokens, --context is {}; /clear begins a "
                                "new one",
                                ids[0].size(), context));
      }
      inference::GenerateOptions turn = options;
      turn.max_new_tokens = std::min(turn.max_new_tokens, context - ids[0].size());
      AnswerPrinter printer(1, prompts.tokenizer(), false, options.eos);
      turn.on_token = [&](std::size_t prompt, std::int32_t token) {
        printer.on_token(prompt, token);
      };
      const inference::GenerateResult result = inference::generate(session.model(), ids, turn);
      printer.finish();
      messages.push_back(
          {{"role", "assistant"},
           {"content", prompts.tokenizer()->decode(result.answers[0].tokens, true)}});
    } catch (const Error& error) {
      // What cannot be answered is not part of the conversation.
      std::cerr << "error: " << error.what() << "\n";
      messages.erase(messages.size() - 1);
    }
  }
  return kExitDone;
}

}  // namespace ingot::cli
