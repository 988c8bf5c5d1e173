#include "convert/loadable.h"

#include <fcntl.h>
#include <fmt/format.h>

#include "formats/base/fd.h"
#include "formats/loader_rules.h"

namespace ingot::convert {

using formats::Finding;

namespace {

// Beyond this many warnings of one conversion nobody reads on.
constexpr std::size_t kMaxWarnings = 20;

std::string text_of(const Finding& finding) {
  std::string text = fmt::format("{}: ", finding.rule);
  if (!finding.tensor.empty()) text += fmt::format("'{}' ", finding.tensor);
  return text + finding.message;
}

}  // namespace

KnownFindings known_findings(const formats::Checkpoint& source, std::size_t threads) {
  KnownFindings known;
  for (const Finding& finding :
       formats::run_loader_rules(source, {.threads = threads, .values = false}))
    known.emplace(finding.rule, finding.tensor);
  return known;
}

void write_preview(const Plan& plan, const formats::TensorSource& source,
                   const std::filesystem::path& folder) {
  for (std::size_t file = 0; file < plan.files.size(); ++file) {
    const std::filesystem::path path = folder / plan.files[file].name;
    std::filesystem::create_directories(path.parent_path());
    Fd sparse = Fd::open_for_writing(path, O_WRONLY | O_CREAT | O_TRUNC);
    const std::string header = plan.header(source, file);
    sparse.write_exact(std::as_bytes(std::span(header)), 0);
    sparse.truncate(plan.files[file].n_bytes);
    sparse.close();
  }
  const auto write = [&](std::string_view name, const std::string& text) {
    if (!text.empty()) write_text_file(folder / name, text);
  };
  write("config.json", plan.config_text);
  write("model.safetensors.index.json", plan.index_text);
  write(plan.dialect->description_file, plan.description_text);
}

std::vector<std::string> require_loadable(const std::filesystem::path& staged,
                                          const formats::Checkpoint& source, const Recipe& recipe,
                                          const KnownFindings& known, std::size_t threads) {
  const formats::RuleOptions options{.threads = threads, .values = false};
  const formats::Checkpoint output =
      formats::Checkpoint::open(staged, {.family = std::string(source.family().name),
                                         .allow_unknown = &recipe.allow.unknown_tensor,
                                         .threads = threads});

  std::vector<std::string> warnings;
  ErrorList errors;
  for (const Finding& finding : formats::run_loader_rules(output, options)) {
    const bool is_inherited = known.contains({std::string(finding.rule), finding.tensor});
    if (finding.severity == formats::Severity::kError && !is_inherited) {
      Error error(finding.code, fmt::format("{} (loader rule {}; nothing is published)",
                                            finding.message, finding.rule));
      errors.add(error.in_file(finding.file).in_tensor(finding.tensor));
    } else if (warnings.size() < kMaxWarnings) {
      warnings.push_back(text_of(finding) + (is_inherited ? " (so it was in the source)" : ""));
    }
  }
  errors.throw_if_any();
  return warnings;
}

}  // namespace ingot::convert
