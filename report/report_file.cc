#include "report/report_file.h"

#include <algorithm>
#include <array>
#include <string>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/files/named_file.h"

namespace ingot {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kLook = 256;

struct Ends {
  std::string first, last;  // bytes of a file; both are all of a short one
};

Ends ends_of(const fs::path& file) {
  const Fd opened = Fd::open_for_reading(file);
  const std::uint64_t size = opened.size(), n = std::min(size, kLook);
  Ends ends{.first = std::string(n, '\0'), .last = std::string(n, '\0')};
  opened.read_exact(std::as_writable_bytes(std::span(ends.first)), 0);
  opened.read_exact(std::as_writable_bytes(std::span(ends.last)), size - n);
  return ends;
}

// `ingot 1.2.3`, `ingot verify 1.2.3`: the last words of every report.
bool is_maker(std::string_view words) {
  if (!words.starts_with("ingot ")) return false;
  words.remove_prefix(words.rfind(' ') + 1);
  return !words.empty() && words.front() >= '0' && words.front() <= '9';
}

bool is_page(const Ends& ends) {
  constexpr std::string_view kFooter = "<footer>", kEnd = "</footer>\n</body>\n</html>\n";
  if (!ends.first.starts_with("<!DOCTYPE html>\n<html lang=\"en\">\n") ||
      !ends.last.ends_with(kEnd))
    return false;
  std::string_view last = ends.last;
  last.remove_suffix(kEnd.size());
  const std::size_t footer = last.rfind(kFooter);
  return footer != std::string_view::npos && is_maker(last.substr(footer + kFooter.size()));
}

bool is_markdown(const Ends& ends) {
  std::string_view last = ends.last;
  if (!ends.first.starts_with("## ") || !last.ends_with('\n')) return false;
  last.remove_suffix(1);
  return is_maker(last.substr(last.rfind('\n') + 1));
}

bool is_event_log(const Ends& ends) {
  const std::string_view line = std::string_view(ends.first).substr(0, ends.first.find('\n'));
  return line.starts_with('[') && line.find("] [ingot] [info] ") == line.find(']');
}

bool is_step_log(const Ends& ends) {
  return ends.first.starts_with("{\"step\":") || ends.first.starts_with("{\"steps\":");
}

bool is_man_page(const Ends& ends) {
  const std::string_view line = std::string_view(ends.first).substr(0, ends.first.find('\n'));
  return line.starts_with(".TH ingot") && line.ends_with("\"ingot manual\"");
}

struct Form {
  ReportForm form;
  std::string_view name;
  bool (*is_ours)(const Ends&);
};
constexpr std::array<Form, 5> kForms = {{
    {ReportForm::kPage, "page", is_page},
    {ReportForm::kMarkdown, "report in Markdown", is_markdown},
    {ReportForm::kEventLog, "log of a job", is_event_log},
    {ReportForm::kStepLog, "log of steps", is_step_log},
    {ReportForm::kManPage, "manual page", is_man_page},
}};

}  // namespace

void require_report_place(const fs::path& file, ReportForm form) {
  if (file.empty()) return;
  std::error_code failure;
  const fs::file_status status = fs::status(file, failure);
  if (fs::is_directory(status))
    throw Error(ErrorCode::kExists, "is a folder (name a file)").in_file(file.string());
  // A log makes the folders that are missing.
  if (form != ReportForm::kEventLog && !fs::is_directory(fs::absolute(file).parent_path(), failure))
    throw Error(ErrorCode::kNotFound, "cannot be written (no such folder)").in_file(file.string());
  require_outside_models(file);
  if (!fs::exists(status) && fs::is_symlink(fs::symlink_status(file, failure)))
    throw Error(ErrorCode::kExists, "is a link to nothing (remove it)").in_file(file.string());
  if (!fs::is_regular_file(status) || fs::file_size(file, failure) == 0) return;
  const auto& row = *std::ranges::find(kForms, form, &Form::form);
  if (!row.is_ours(ends_of(file))) {
    throw Error(
        ErrorCode::kExists,
        "is there, and no earlier {} of ingot's, so it stays as it is (remove it, or choose "
        "another name)",
        row.name)
        .in_file(file.string());
  }
}

void write_report_file(const fs::path& file, std::string_view text, ReportForm form) {
  require_report_place(file, form);
  replace_file(file, text);
}

}  // namespace ingot
