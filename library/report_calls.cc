#include <filesystem>
#include <string>
#include <utility>

#include "check/rules/loader_rules.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "formats/json/json.h"
#include "library/answer.h"
#include "library/call.h"
#include "library/checking.h"
#include "library/handles.h"
#include "library/inspection.h"
#include "library/options/measurement_options.h"
#include "library/options/settings.h"
#include "verify/verification.h"

using namespace ingot;
using namespace ingot::library;

namespace {

char* document_text(Answer& answer, std::string command) {
  answer.command = std::move(command);
  return owned_text(formats::json_text(answer.document()));
}

}  // namespace

int ingot_inspect(const ingot_checkpoint* checkpoint, const char* options, char** report) {
  return call([&] {
    require_given(checkpoint, "checkpoint");
    require_given(report, "report");
    std::string pattern;
    bool lists = false;
    FlagTable table;
    table.add(FlagGroup::kCommon, {{"pattern", &pattern, "tensors, as a rule selects them"},
                                   {"--tensors", &lists, "list tensors"}});
    take_settings(settings_of_json(text_or_empty(options)), table);
    const formats::Checkpoint& source = *checkpoint->source;
    const std::string directory = source.directory().string();
    Answer answer;
    answer.add(
        {{"directory", directory}, {"warnings", check::remarks_json(source.remarks(), directory)}});
    answer.add(inspect_json(source, pattern, lists, available_processors()));
    *report = document_text(answer, "inspect");
  });
}

int ingot_check(const char* path, const char* options, const ingot_run* run, char** report) {
  return call([&] {
    require_given(path, "path");
    require_given(report, "report");
    CheckOptions asked;
    FlagTable table;
    declare_check_options(table, asked);
    take_settings(settings_of_json(text_or_empty(options)), table);
    asked.directory = path;
    const Receivers receivers(run);
    const StopScope stop(receivers.stop_requested(), "the checkpoint was checked");
    const Checked checked = run_check(asked);
    Answer answer;
    answer.add(check_json(asked, checked));
    *report = document_text(answer, "check");
  });
}

int ingot_verify(const char* source, const char* output, const char* options, const ingot_run* run,
                 char** report) {
  return call([&] {
    require_given(source, "source");
    require_given(report, "report");
    MeasurementOptions asked;
    FlagTable table;
    declare_verification(table, asked, [&] { return output != nullptr; });
    take_settings(settings_of_json(text_or_empty(options)), table);
    verify::VerificationOptions measured = measurement_options(asked);
    Receivers receivers(run);
    measured.progress = [&](std::string_view phase, std::uint64_t done, std::uint64_t total) {
      receivers.progress(phase, done, total);
    };
    const StopScope stop(receivers.stop_requested(), "checkpoints were compared");
    const verify::Report found = output == nullptr ? verify::verify_single(source, measured)
                                                   : verify::verify_pair(source, output, measured);
    Answer answer;
    answer.add(verify::report_json(found));
    *report = document_text(answer, "verify");
  });
}
