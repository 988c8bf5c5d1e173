#pragma once

#include "cli/generate_prompts.h"
#include "cli/generate_session.h"
#include "cli/generate_words.h"

namespace ingot::cli {

/// The conversation of --interactive, to its end; returns the exit code. Ctrl-C ends an answer, not
/// the program.
int run_chat(const GenerateWords& words, GenerateSession& session, const PromptReader& prompts);

}  // namespace ingot::cli
