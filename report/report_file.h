#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace ingot {

/// The forms of files that options name and that are written again: each is known by its first and
/// last bytes.
enum class ReportForm : std::uint8_t {
  kPage,      ///< write_html()
  kMarkdown,  ///< write_markdown()
  kEventLog,  ///< `--log` of jobs, to which lines are added
  kStepLog,   ///< `ingot generate --log`
  kManPage,
};

/// Throws where a file of this form may not be written: kExists when a file that is there is no
/// earlier one of ingot's (an empty file is nobody's loss), kInvalidArgument in the folder of a
/// model, kNotFound without a folder for it. Devices and pipes may be written to; an empty path is
/// no file.
void require_report_place(const std::filesystem::path& file, ReportForm form);

/// Writes a report in place of an earlier one, as replace_file() does, after
/// require_report_place().
void write_report_file(const std::filesystem::path& file, std::string_view text, ReportForm form);

}  // namespace ingot
