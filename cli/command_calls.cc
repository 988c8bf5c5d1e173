// The functions of the C interface that run commands: a part of the shared library, not of the
// program.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <ingot/ingot.h>

#include "cli/commands/commands.h"
#include "cli/terminal/session.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"
#include "library/call.h"
#include "library/current_error.h"
#include "library/handles.h"
#include "library/options/settings.h"

namespace ingot::cli {
namespace {

using formats::Json;
using library::call;
using library::require_given;

const Command& command_of(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Command& command : commands()) {
    if (command.name == name) return command;
    names.push_back(command.name);
  }
  throw Error(ErrorCode::kInvalidArgument, "no command '{}'{}", name, did_you_mean(name, names));
}

// Takes the settings of a call, for which flags that are for people are not there.
void take_call(const Json& settings, FlagTable& table) {
  const auto is_json = [](const FlagTable::Row& row) { return row.flag.name == "--json"; };
  if (std::ranges::none_of(table.rows, is_json)) {
    throw Error(ErrorCode::kUnsupported, "{} has no document, and is only for people",
                table.command);
  }
  std::erase_if(table.rows, [](const FlagTable::Row& row) { return row.flag.rule.is_for_people; });
  take_settings(settings, table);
  for (const FlagTable::Row& row : table.rows) {
    if (row.flag.rule.is_required && !table.is_given(row.flag.name))
      throw Error(ErrorCode::kInvalidArgument, "{} is required", row.flag.name);
  }
}

// Runs a command, and gives its document to the caller, also where it fails.
void run_command(std::string_view name, const Json& settings, const ingot_run* run, char** report) {
  library::Receivers receivers(run);
  Session own{.is_of_program = false, .is_quiet = true};
  own.answer.command = name;
  own.answer.is_json = true;
  own.progress = [&](std::string_view phase, std::uint64_t done, std::uint64_t total) {
    receivers.progress(phase, done, total);
  };
  own.stop_requested = receivers.stop_requested();
  const auto tell = [&] {
    if (report != nullptr) *report = library::owned_text(formats::json_text(own.answer.document()));
  };
  const SessionScope scope(own);
  try {
    const DeclaredCommand declared = declare_command(command_of(name));
    take_call(settings, *declared.table);
    declared.run();
  } catch (const Error& error) {
    own.answer.end_by(error);
    tell();
    throw;
  } catch (...) {
    own.answer.end_by(library::current_error());
    tell();
    throw;
  }
  tell();
  if (own.refusal) throw Error(*own.refusal);
}

// The settings of a call, and words at their place.
Json with_words(const char* options, std::vector<std::pair<const char*, const char*>> words) {
  Json settings = settings_of_json(library::text_or_empty(options));
  for (const auto& [name, word] : words) {
    if (word != nullptr) settings[name] = word;
  }
  return settings;
}

}  // namespace
}  // namespace ingot::cli

using namespace ingot::cli;

int ingot_command(const char* command, const char* options, const ingot_run* run, char** report) {
  return call([&] {
    require_given(command, "command");
    run_command(command, with_words(options, {}), run, report);
  });
}

int ingot_inspect(const ingot_checkpoint* checkpoint, const char* options, char** report) {
  return call([&] {
    require_given(checkpoint, "checkpoint");
    require_given(report, "report");
    Json settings = *checkpoint->settings;
    settings.update(with_words(options, {{"directory", checkpoint->path.c_str()}}));
    run_command("inspect", settings, nullptr, report);
  });
}

int ingot_check(const char* path, const char* options, const ingot_run* run, char** report) {
  return call([&] {
    require_given(path, "path");
    require_given(report, "report");
    run_command("check", with_words(options, {{"directory", path}}), run, report);
  });
}

int ingot_verify(const char* source, const char* output, const char* options, const ingot_run* run,
                 char** report) {
  return call([&] {
    require_given(source, "source");
    require_given(report, "report");
    run_command("verify", with_words(options, {{"source", source}, {"output", output}}), run,
                report);
  });
}

int ingot_plan_run(ingot_plan* plan, const ingot_run* run, char** report) {
  return call([&] {
    require_given(plan, "plan");
    if (plan->held != nullptr) {
      throw ingot::Error(ingot::ErrorCode::kUnsupported,
                         "a plan made of shapes has no source to convert (give it to an encoder)");
    }
    run_command("convert", *plan->table.settings, run, report);
  });
}
