// The functions of the C interface that run commands: a part of the shared library, not of the
// program.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <ingot/ingot.h>

#include "cli/commands/commands.h"
#include "cli/terminal/session.h"
#include "convert/convert.h"
#include "convert/run/memory/given_tensors.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"
#include "library/call.h"
#include "library/current_error.h"
#include "library/handles.h"
#include "library/options/job_options.h"
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

bool is_json(const FlagTable::Row& row) {
  return row.flag.name == "--json";
}

// Takes the settings of a call, for which flags that are for people are not there.
void take_call(const Json& settings, FlagTable& table) {
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

// The kind of value that an option takes here.
std::string_view type_of(const Flag& flag) {
  const ValueKind kind = flag.rule.kind;
  return std::visit(
      [&](const auto* target) -> std::string_view {
        using Target = std::remove_cvref_t<decltype(*target)>;
        if constexpr (std::is_same_v<Target, bool> || std::is_same_v<Target, std::optional<bool>>)
          return "flag";
        if constexpr (std::is_same_v<Target, std::vector<std::string>>) return "list";
        if constexpr (std::is_same_v<Target, double> ||
                      std::is_same_v<Target, std::optional<double>>)
          return "number";
        if constexpr (std::is_same_v<Target, std::string> ||
                      std::is_same_v<Target, std::optional<std::string>> ||
                      std::is_same_v<Target, std::filesystem::path>)
          return kind == ValueKind::kSize ? "size" : kind < ValueKind::kFile ? "text" : "path";
        return "whole";
      },
      flag.target);
}

// The options of all commands that have a document, for programs that make a language's types.
Json options_json() {
  Json rows = Json::array();
  for (const Command& command : commands()) {
    const DeclaredCommand declared = declare_command(command);
    const auto& flags = declared.table->rows;
    if (std::ranges::none_of(flags, is_json)) continue;
    for (const FlagTable::Row& row : flags) {
      if (row.flag.rule.is_for_people) continue;
      rows.push_back({{"command", command.name},
                      {"option", key_of(row.flag)},
                      {"type", type_of(row.flag)},
                      {"choices", row.flag.rule.choices},
                      {"is_word", is_positional(row.flag)},
                      {"is_required", row.flag.rule.is_required},
                      {"help", row.flag.help}});
    }
  }
  return rows;
}

// Runs a command, and gives its document to the caller, also where it fails.
void run_command(std::string_view name, const Json& settings, const ingot_run* run, char** report,
                 convert::GivenTensors* given = nullptr) {
  library::Receivers receivers(run);
  Session own{.is_of_program = false, .is_quiet = true, .given = given};
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
    if (name == "options") {
      own.answer.add({{"options", options_json()}});
    } else {
      const DeclaredCommand declared = declare_command(command_of(name));
      take_call(settings, *declared.table);
      declared.run();
    }
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

// Refuses options that a model in memory has no use for, and those that would read again what is
// read once.
void require_givable(const Json& settings, bool is_read_once) {
  const auto is_asked = [&](const char* name) {
    const Json& value = formats::json_member(settings, name);
    return !value.is_null() && value != false;
  };
  for (const char* name : {"resume", "part", "consume-source"}) {
    if (!is_asked(name)) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "--{} is for a source on a disk: a model in memory is converted in one run, by one "
                "process (leave it out; to begin again --force, or another folder)",
                name);
  }
  for (const char* name : {"verify", "lossless-only", "dry-run", "explain"}) {
    if (!is_read_once || !is_asked(name)) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "--{} reads the source again, and tensors that come one by one are read once (give "
                "all of them at once, in the host's memory; or compare with a copy on a disk: "
                "ingot verify)",
                name);
  }
}

// The job of tensors in memory cannot be continued: they are gone, or have other values.
void remove_unfinished(const Json& settings, convert::GivenTensors& tensors) {
  if (!tensors.has_begun()) return;
  try {
    convert::remove_leftovers(formats::text_at(settings, "output"), execution({}).run);
  } catch (...) {
  }
}

// The memory for tensors that wait; the rest stays with the conversion.
std::uint64_t take_half(Json& settings) {
  Json& limit = settings["mem-limit"];
  const std::string text = limit.is_null()     ? JobOptions().mem_limit
                           : limit.is_string() ? limit.get<std::string>()
                                               : limit.dump() + "B";
  const std::uint64_t half = memory_budget(text) / 2;
  limit = fmt::format("{}B", half);
  return half;
}

}  // namespace
}  // namespace ingot::cli

using namespace ingot::cli;

struct ingot_writer {
  ingot_writer(ingot::formats::Json given_settings, const ingot_run* receivers)
      : settings(std::move(given_settings)), tensors(take_half(settings)), run{} {
    if (receivers != nullptr) std::memcpy(&run, receivers, std::min(receivers->size, sizeof run));
    run.size = sizeof run;
    job = std::thread([this] {
      std::exception_ptr failure;
      try {
        run_command("convert", settings, &run, &report, &tensors);
      } catch (...) {
        failure = std::current_exception();
      }
      tensors.end_job(failure);
    });
  }
  ~ingot_writer() {
    tensors.abandon();
    join();
    std::free(report);
    if (!is_published) remove_unfinished(settings, tensors);
  }
  ingot_writer(const ingot_writer&) = delete;
  ingot_writer& operator=(const ingot_writer&) = delete;

  void join() {
    if (job.joinable()) job.join();
  }

  ingot::formats::Json settings;
  ingot::convert::GivenTensors tensors;
  ingot_run run;
  char* report = nullptr;
  bool is_published = false;
  std::thread job;
};

int ingot_writer_open(const char* source, const char* output, const char* options,
                      const ingot_run* run, ingot_writer** writer) {
  return call([&] {
    require_given(source, "source");
    require_given(output, "output");
    require_given(writer, "writer");
    auto settings = with_words(options, {{"input", source}, {"output", output}});
    require_givable(settings, true);
    auto made = std::make_unique<ingot_writer>(std::move(settings), run);
    made->tensors.wait_for_job();
    *writer = made.release();
  });
}

int ingot_writer_put(ingot_writer* writer, const char* name, const char* dtype,
                     const uint64_t* shape, size_t n_dims, const void* bytes, uint64_t n_bytes) {
  return call([&] {
    require_given(writer, "writer");
    require_given(name, "name");
    writer->tensors.put(name, {static_cast<const std::byte*>(bytes), n_bytes},
                        ingot::library::given_form(name, dtype, shape, n_dims, bytes, n_bytes));
  });
}

int ingot_writer_finish(ingot_writer* writer, char** report) {
  return call([&] {
    require_given(writer, "writer");
    writer->tensors.finish();
    writer->join();
    if (report != nullptr) *report = std::exchange(writer->report, nullptr);
    if (const auto failure = writer->tensors.failure()) std::rethrow_exception(failure);
    writer->is_published = true;
  });
}

void ingot_writer_free(ingot_writer* writer) {
  delete writer;
}

int ingot_convert_memory(const char* source, const char* output, const char* options,
                         const ingot_encoded* tensors, size_t n_tensors, const ingot_run* run,
                         char** report) {
  return call([&] {
    require_given(source, "source");
    require_given(output, "output");
    require_given(tensors, "tensors");
    const auto settings = with_words(options, {{"input", source}, {"output", output}});
    require_givable(settings, false);
    ingot::convert::GivenTensors given(0);
    const auto* bytes = reinterpret_cast<const std::byte*>(tensors);
    for (std::size_t i = 0; i < n_tensors; ++i, bytes += tensors->size) {
      const auto& one = *reinterpret_cast<const ingot_encoded*>(bytes);
      require_given(one.name, "name");
      given.lend(one.name, {static_cast<const std::byte*>(one.bytes), one.n_bytes},
                 ingot::library::given_form(one.name, one.dtype, one.shape, one.n_dims, one.bytes,
                                            one.n_bytes));
    }
    try {
      run_command("convert", settings, run, report, &given);
    } catch (...) {
      remove_unfinished(settings, given);
      throw;
    }
  });
}

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
