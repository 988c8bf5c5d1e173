#include "library/options/flag_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/base/words.h"
#include "formats/family/families.h"
#include "formats/family/family.h"
#include "formats/files/available_memory.h"
#include "formats/files/folder.h"
#include "formats/json/json.h"

namespace ingot {

namespace {

struct Unit {
  std::string_view name;
  double bytes;
};

constexpr std::array kUnits = {
    Unit{"B", 1},
    Unit{"K", 1e3},
    Unit{"KB", 1e3},
    Unit{"M", 1e6},
    Unit{"MB", 1e6},
    Unit{"G", 1e9},
    Unit{"GB", 1e9},
    Unit{"T", 1e12},
    Unit{"TB", 1e12},
    Unit{"KI", 1024.},
    Unit{"KIB", 1024.},
    Unit{"MI", 1048576.},
    Unit{"MIB", 1048576.},
    Unit{"GI", 1073741824.},
    Unit{"GIB", 1073741824.},
    Unit{"TI", 1099511627776.},
    Unit{"TIB", 1099511627776.},
};

// Headings of --help, in the order of FlagGroup.
constexpr std::array<std::string_view, kFlagGroups> kHeadings = {
    "Options", "Source", "Target", "Slicing", "Comparison", "Prompts", "Answers", "Job", "Report"};

// By ValueKind.
constexpr std::array<std::string_view, 8> kKindNames = {"",     "SIZE", "FILE", "DIR",
                                                        "PATH", "DIR",  "PATH", "NAME=DIR"};

std::string_view without_dashes(std::string_view name) {
  return name.starts_with("--") ? name.substr(2) : name;
}

}  // namespace

bool FlagTable::is_given(std::string_view name) const {
  return !formats::json_member(*settings, without_dashes(name)).is_null();
}

std::string_view key_of(const Flag& flag) {
  return without_dashes(flag.name);
}

std::string_view value_kind_name(ValueKind kind) {
  return kKindNames.at(static_cast<std::size_t>(kind));
}

std::string_view heading_of(FlagGroup group) {
  return kHeadings.at(static_cast<std::size_t>(group));
}

std::string* text_of(const Flag& flag) {
  if (auto* const* text = std::get_if<std::string*>(&flag.target)) return *text;
  if (auto* const* text = std::get_if<std::optional<std::string>*>(&flag.target))
    return *text != nullptr && (*text)->has_value() ? &***text : nullptr;
  return nullptr;
}

bool is_positional(const Flag& flag) {
  return !flag.name.starts_with('-');
}

bool takes_value(const Flag& flag) {
  return !std::holds_alternative<bool*>(flag.target) &&
         !std::holds_alternative<std::optional<bool>*>(flag.target);
}

const std::vector<std::string>& offered_values(const Flag& flag) {
  return flag.rule.choices.empty() ? flag.rule.words : flag.rule.choices;
}

void refuse_idle(std::string_view flag, std::string_view belongs_to) {
  throw Error(ErrorCode::kInvalidArgument, "{} has no effect here: it belongs to {}", flag,
              belongs_to);
}

void refuse_idle_flags(const FlagTable& table) {
  for (const FlagTable::Row& row : table.rows) {
    if (!row.flag.rule.idle || !table.is_given(row.flag.name)) continue;
    const std::string_view belongs_to = row.flag.rule.idle();
    if (!belongs_to.empty()) refuse_idle(row.flag.name, belongs_to);
  }
}

void refuse_shared_outputs(const FlagTable& table) {
  struct Written {
    const Flag* flag;
    std::string value;
    std::filesystem::path path;
  };
  std::vector<Written> outputs;
  for (const FlagTable::Row& row : table.rows) {
    const std::string* value = row.flag.rule.is_written ? text_of(row.flag) : nullptr;
    if (value == nullptr || value->empty()) continue;
    std::error_code failure;
    const auto status = std::filesystem::status(*value, failure);
    if (std::filesystem::is_other(status)) continue;
    outputs.push_back({&row.flag, *value, resolved_path(*value)});
  }
  for (const Written& inner : outputs) {
    for (const Written& outer : outputs) {
      if (&inner == &outer || inner.flag->rule.kind == ValueKind::kFolder) continue;
      const bool is_folder = outer.flag->rule.kind == ValueKind::kFolder;
      const auto end =
          std::mismatch(outer.path.begin(), outer.path.end(), inner.path.begin(), inner.path.end());
      if (end.first != outer.path.end() || (end.second != inner.path.end() && !is_folder)) continue;
      if (is_folder)
        throw Error(ErrorCode::kInvalidArgument,
                    "{} lies in the output {} (name a file in another folder)", inner.flag->name,
                    outer.value)
            .in_file(inner.value);
      throw Error(ErrorCode::kInvalidArgument, "{} and {} both write this file (name two files)",
                  inner.flag->name, outer.flag->name)
          .in_file(inner.value);
    }
  }
}

void mark_values(const FlagTable& table) {
  for (const FlagTable::Row& row : table.rows) {
    if (row.flag.rule.mark.empty() || !table.is_given(row.flag.name)) continue;
    std::string* text = text_of(row.flag);
    *text = row.flag.rule.mark + *text;
  }
}

Flag required(std::string name, FlagTarget target, std::string help, ValueKind kind) {
  return {std::move(name), target, std::move(help), {.is_required = true, .kind = kind}};
}

Flag required_output(std::string name, FlagTarget target, std::string help, ValueKind kind) {
  Flag flag = required(std::move(name), target, std::move(help), kind);
  flag.rule.is_written = true;
  return flag;
}

Flag threads_flag(std::size_t* target) {
  return {
      "--threads", target, "threads (default: every processor)", {.range = NumberRange{1, 1024}}};
}

Flag progress_flag(std::string* target) {
  return {"--progress",
          target,
          "progress on stderr",
          {.choices = {"auto", "always", "never"}, .is_for_people = true}};
}

Flag json_flag(bool* target) {
  return {"--json", target, "one JSON document on stdout", {.is_for_people = true}};
}

Flag family_flag(std::string* target, std::string help) {
  return {"--family",
          target,
          std::move(help),
          {.words = words_of(formats::family_entries(), &formats::FamilyEntry::name)}};
}

Flag family_file_flag(std::string* target) {
  return {"--family-file",
          target,
          "a file that describes the model's family (docs/families.md)",
          {.excludes = {"--family"},
           .kind = ValueKind::kFile,
           .mark = std::string(formats::kFamilyFileMark)}};
}

void declare_source(FlagTable& table, std::string& family, std::string& config,
                    std::string family_help) {
  table.add(FlagGroup::kSource, {family_flag(&family, std::move(family_help)),
                                 family_file_flag(&family),
                                 {"--config", &config, kConfigHelp, {.kind = ValueKind::kFile}}});
}

Flag mem_limit_flag(std::string* target, std::string help) {
  return {"--mem-limit", target, std::move(help), {.kind = ValueKind::kSize}};
}

std::size_t threads_of(std::size_t given) {
  return given == 0 ? available_processors() : given;
}

std::uint64_t parse_size(std::string_view text, std::string_view option) {
  // A number by itself may also have an exponent.
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const auto number = number_from<double>(text.substr(0, digits));
  const bool starts_with_digit = number && text[0] != '.';
  const std::size_t blank = digits < text.size() && text[digits] == ' ' ? 1 : 0;
  const std::string unit = upper_case(text.substr(digits + blank));
  for (const Unit& row : kUnits) {
    if (!starts_with_digit || unit != row.name) continue;
    const double bytes = *number * row.bytes;
    // 2^62 keeps sums of a few sizes within 64 bits.
    if (std::isfinite(bytes) && bytes >= 1 && bytes <= 4611686018427387904.0)
      return static_cast<std::uint64_t>(bytes);
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      "{} '{}' is not a size (a number and B, KB, MB, GB, TB, KiB, MiB, GiB or TiB, as in 5GB)",
      option, text);
}

std::uint64_t memory_budget(std::string_view mem_limit) {
  return std::min(parse_size(mem_limit, "--mem-limit"), available_memory());
}

}  // namespace ingot
