#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/error_json.h"
#include "cli/spelling.h"
#include "cli/terminal.h"
#include "cli/versions.h"
#include "formats/base/error.h"
#include "formats/json/json.h"

namespace ingot::cli {
namespace {

// What is known of the call before anything can fail.
struct Call {
  std::string command;  ///< first word that is no option; empty when there is none
  bool json = false;    ///< errors go to stdout as a document
};

Call first_look(int argc, char** argv) {
  Call call;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") break;
    if (word == "--json") call.json = true;
    if (call.command.empty() && !word.starts_with('-')) call.command = word;
  }
  return call;
}

const Command* find_command(std::string_view name) {
  const auto all = commands();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Command& command) { return command.name == name; });
  return found == all.end() ? nullptr : &*found;
}

void require_known(const Call& call) {
  if (call.command.empty() || find_command(call.command) != nullptr) return;
  std::vector<std::string_view> names;
  for (const Command& command : commands()) names.push_back(command.name);
  const std::string_view nearest = nearest_word(call.command, names);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("no command '{}' ({})", call.command,
                          nearest.empty() ? std::string("see ingot --help")
                                          : fmt::format("did you mean {}?", nearest)));
}

int report(const Call& call, const Error& error) {
  if (call.json) {
    std::cout << formats::json_text(
        {{"schema", 1}, {"command", json_name(call.command)}, {"error", error_json(error)}});
  } else {
    std::cerr << "error: " << error.what() << "\n";
  }
  return kExitTrouble;
}

int report_interrupted(const Call& call, const Error& error) {
  report(call, error);
  const Command* command = find_command(call.command);
  if (command != nullptr && command->resumes &&
      std::string_view(error.what()).find("--resume") == std::string_view::npos)
    std::cerr << "continue with the same command and --resume\n";
  std::cout.flush();
  if (const int number = stop_signal(); number != 0) {
    // Die of the signal, so that a shell loop around us stops as well.
    std::signal(number, SIG_DFL);
    ::raise(number);
  }
  return kExitTrouble;
}

// Whoever read our output has gone, as `| head` does: not a failure of ours.
bool reader_has_gone() {
  struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

// CLI11 begins its messages with a capital; an option or a name keeps its case.
std::string in_our_words(const CLI::ParseError& failure) {
  if (failure.get_name() == "RequiredError" &&
      std::string_view(failure.what()).find("subcommand") != std::string_view::npos) {
    return "a command is required";
  }
  std::string text = failure.what();
  if (text.size() > 1 && text[0] >= 'A' && text[0] <= 'Z' && text[1] >= 'a' && text[1] <= 'z') {
    text[0] = static_cast<char>(text[0] - 'A' + 'a');
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '.')) text.pop_back();
  return text;
}

// The words that no option took, in their order, and the option that the first may have meant.
std::string unexpected_words(const CLI::App& app) {
  std::vector<std::string> words = app.remaining();
  std::vector<std::string> names;
  const auto add_names = [&](const CLI::App& of) {
    for (const CLI::Option* option : of.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  };
  add_names(app);
  for (const CLI::App* sub : app.get_subcommands()) {
    const std::vector<std::string> more = sub->remaining();
    words.insert(words.end(), more.begin(), more.end());
    add_names(*sub);
  }
  std::string text = fmt::format("unexpected: {}", fmt::join(words, " "));
  const std::vector<std::string_view> choices(names.begin(), names.end());
  for (const std::string& word : words) {
    if (!word.starts_with("--")) continue;
    const std::string_view nearest = nearest_word(word.substr(0, word.find('=')), choices);
    if (!nearest.empty()) text += fmt::format("; did you mean {}?", nearest);
    break;
  }
  return text;
}

int run(int argc, char** argv, const Call& call) {
  CLI::App app(
      "ingot turns a checkpoint of a mixture-of-experts model as released into the checkpoint as "
      "deployed.");
  app.name("ingot");
  app.set_help_flag("-h,--help", "print this help and exit");
  app.set_version_flag("--version", versions_text(),
                       "print the versions of ingot and of what it links, and exit");
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  ingot inspect DeepSeek-V3.2\n"
      "  ingot convert DeepSeek-V3.2 DeepSeek-V3.2-bf16 --to bf16 --dry-run\n"
      "  ingot convert DeepSeek-V3.2 DeepSeek-V3.2-bf16 --to bf16\n"
      "  ingot check DeepSeek-V3.2-bf16\n"
      "  ingot COMMAND --help                                 the options of a command, with more "
      "examples\n"
      "Exit codes: 0 done, 1 verification below its threshold, 2 anything else; stopped by Ctrl-C "
      "130, by SIGTERM 143.");

  std::function<int()> body;
  for (const Command& command : commands()) {
    CLI::App* sub = app.add_subcommand(std::string(command.name), std::string(command.summary));
    sub->set_help_flag("-h,--help", "print this help and exit");
    sub->final_callback([&body, action = command.declare(*sub)] { body = action; });
  }

  try {
    require_known(call);
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    app.exit(asked);
    return kExitDone;
  } catch (const CLI::ExtrasError&) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} (see ingot {}--help)", unexpected_words(app),
                            call.command.empty() ? "" : call.command + " "));
  } catch (const CLI::ParseError& failure) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} (see ingot {}--help)", in_our_words(failure),
                            call.command.empty() ? "" : call.command + " "));
  }
  return body();
}

int guarded(int argc, char** argv) {
  const Call call = first_look(argc, argv);
  try {
    return run(argc, argv, call);
  } catch (const Error& error) {
    return error.code() == ErrorCode::kInterrupted ? report_interrupted(call, error)
                                                   : report(call, error);
  } catch (const std::bad_alloc&) {
    return report(call, Error(ErrorCode::kLimit, "out of memory (give a smaller --mem-limit)"));
  } catch (const std::filesystem::filesystem_error& failure) {
    return report(call, system_error(failure.code().value(), "use", failure.path1().string()));
  } catch (const std::system_error& failure) {
    return report(call, Error(ErrorCode::kLimit,
                              fmt::format("the system refuses a thread: {} (lower --threads)",
                                          failure.code().message())));
  } catch (const std::exception& failure) {
    return report(call, Error(ErrorCode::kInternal, failure.what()));
  }
}

}  // namespace
}  // namespace ingot::cli

int main(int argc, char** argv) {
  // A closed pipe becomes a failed write, never a death in the middle of a conversion whose log is
  // piped.
  std::signal(SIGPIPE, SIG_IGN);
  const int exit_code = ingot::cli::guarded(argc, argv);
  std::cout.flush();
  if (std::cout.good() || ingot::cli::reader_has_gone()) return exit_code;
  std::cerr << "error: cannot write to standard output: " << std::strerror(errno) << "\n";
  return ingot::cli::kExitTrouble;
}
