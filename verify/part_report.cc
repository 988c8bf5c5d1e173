#include "verify/part_report.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"

namespace ingot::verify {

using formats::fail_json;
using formats::Json;
using formats::JsonFields;

namespace {

constexpr std::uint64_t kMaxReportBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kMaxParts = std::uint64_t{1} << 16;

// Visits every number of `values` as 64 bits, in one order. Sums are kept bit by bit, so that their
// joint results are those of one run.
template <typename Values, typename Visit>
void for_each_word(Values& values, const Visit& visit) {
  auto& sums = values.sums;
  std::apply([&](auto&... sum) { (visit(sum), ...); }, ElementSums::fields(sums));
  visit(sums.max_error);
  visit(sums.max_relative);
  for (auto& count : sums.step_histogram) visit(count);
  visit(values.reach.groups);
  visit(values.reach.coarse);
  visit(values.reach.least);
  visit(values.reach.scale);
}

Json json_of(const ComparedValues& values) {
  Json row = Json::array();
  row.push_back(static_cast<std::uint64_t>(values.relation));
  row.push_back(values.reach.fills ? 1 : 0);
  for_each_word(values, [&]<typename Number>(const Number& number) {
    if constexpr (std::is_same_v<Number, double>) {
      row.push_back(std::bit_cast<std::uint64_t>(number));
    } else if constexpr (std::is_same_v<Number, float>) {
      row.push_back(std::bit_cast<std::uint32_t>(number));
    } else {
      row.push_back(number);
    }
  });
  return row;
}

ComparedValues values_of(const Json& row, std::string_view where) {
  std::size_t at = 0;
  const auto next = [&](std::uint64_t most) {
    const auto number =
        row.is_array() && at < row.size() ? formats::whole_number(row[at], most) : std::nullopt;
    if (!number) fail_json(where, fmt::format("number {} of a tensor is missing or too large", at));
    ++at;
    return *number;
  };
  ComparedValues values;
  values.relation = static_cast<Relation>(next(static_cast<std::uint64_t>(Relation::kNarrowed)));
  values.reach.fills = next(1) == 1;
  for_each_word(values, [&]<typename Number>(Number& number) {
    if constexpr (std::is_same_v<Number, double>) {
      number = std::bit_cast<double>(next(UINT64_MAX));
    } else if constexpr (std::is_same_v<Number, float>) {
      number = std::bit_cast<float>(static_cast<std::uint32_t>(next(UINT32_MAX)));
    } else {
      number = next(UINT64_MAX);
    }
  });
  if (at != row.size()) fail_json(where, "a tensor has more numbers than are known");
  return values;
}

// Two runs with the same one compare the same things in the same order.
std::string subject_of(const Report& report, const VerificationOptions& options) {
  std::vector<std::string_view> levels;
  for (const Level level : report.levels) levels.push_back(level_name(level));
  return fmt::format("{} of {} against {}, ingot {}, sample {}, {}{}{}", fmt::join(levels, ","),
                     report.output.fingerprint, report.source ? report.source->fingerprint : "",
                     report.tool_version, options.sample, options.hashes ? "hashes" : "no hashes",
                     report.wanted.empty() ? "" : ", ", report.wanted);
}

struct PartReport {
  std::uint32_t index = 0, n = 1;
  JoinedParts found;
};

PartReport read_part(const std::filesystem::path& path) {
  const std::string where = path.string();
  const Json json = formats::parse_json(read_text_file(path, kMaxReportBytes), where);
  const JsonFields fields(json, where);
  if (fields.text("command", "") != "verify" || fields.find("part") == nullptr)
    fail_json(where, "is no report of a part (ingot verify A B --part I/N --json)");
  const JsonFields part = fields.child("part");
  PartReport report;
  report.n = static_cast<std::uint32_t>(part.number("parts", kMaxParts));
  report.index = static_cast<std::uint32_t>(part.number("index", kMaxParts));
  if (report.index >= report.n) fail_json(where, "its part is beyond the parts");
  report.found.subject = part.text("subject");
  report.found.settings = part.get("settings");
  if (!report.found.settings->is_object()) part.refuse("settings", "is no object");
  for (const Json& hash : part.array("hashes")) {
    auto& entry = report.found.ledger.hashes.hashes.emplace_back();
    if (hash.is_null()) continue;
    if (!hash.is_string()) fail_json(where, "part.hashes are no texts");
    try {
      entry = Hash128::from_hex(hash.get_ref<const std::string&>());
    } catch (Error& error) {
      error.in_file(where);
      throw;
    }
  }
  for (const Json& row : part.array("tensors")) {
    auto& entry = report.found.ledger.weights.tensors.emplace_back();
    if (!row.is_null()) entry = values_of(row, where);
  }
  return report;
}

// Adds the findings of one part to those of others.
template <typename Entry>
void add_entries(std::vector<std::optional<Entry>>& all,
                 const std::vector<std::optional<Entry>>& found) {
  all.resize(std::max(all.size(), found.size()));
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i]) all[i] = found[i];
  }
}

}  // namespace

Json part_json(const Report& report, const VerificationOptions& options, const Json& settings) {
  const PartLedger& ledger = *options.ledger;
  Json hashes = Json::array(), tensors = Json::array();
  for (const auto& hash : ledger.hashes.hashes) hashes.push_back(hash ? Json(hash->hex()) : Json());
  for (const auto& values : ledger.weights.tensors)
    tensors.push_back(values ? json_of(*values) : Json());
  return {{"part",
           {{"index", ledger.weights.share.index},
            {"parts", ledger.weights.share.n},
            {"subject", subject_of(report, options)},
            {"settings", settings},
            {"hashes", std::move(hashes)},
            {"tensors", std::move(tensors)}}}};
}

void JoinedParts::require_of(const Report& report, const VerificationOptions& options) const {
  const std::string now = subject_of(report, options);
  if (now == subject) return;
  throw Error(ErrorCode::kMismatch,
              "the reports are of other checkpoints, options or versions: {} (now {}); verify the "
              "parts again",
              subject, now);
}

JoinedParts join_parts(std::span<const std::filesystem::path> reports) {
  if (reports.empty())
    throw Error(ErrorCode::kInvalidArgument, "no reports of parts are given to be joined");
  JoinedParts joined;
  std::uint32_t n = 0;
  std::set<std::uint32_t> parts;
  for (const std::filesystem::path& path : reports) {
    PartReport report = read_part(path);
    if (n == 0) {
      n = report.n;
      joined.settings = report.found.settings;
      joined.subject = report.found.subject;
    }
    if (report.n != n) {
      throw Error(ErrorCode::kMismatch, "is one of {} parts, the first report one of {}", report.n,
                  n)
          .in_file(path.string());
    }
    if (report.found.subject != joined.subject || *report.found.settings != *joined.settings) {
      throw Error(
          ErrorCode::kMismatch,
          "is of other checkpoints, options or versions than the first report: {} (there {})",
          report.found.subject, joined.subject)
          .in_file(path.string());
    }
    if (!parts.insert(report.index).second) {
      throw Error(ErrorCode::kInvalidArgument, "is part {}/{}, which another report is too",
                  report.index, n)
          .in_file(path.string());
    }
    add_entries(joined.ledger.hashes.hashes, report.found.ledger.hashes.hashes);
    add_entries(joined.ledger.weights.tensors, report.found.ledger.weights.tensors);
  }
  std::vector<std::string> missing;
  for (std::uint32_t part = 0; part < n; ++part) {
    if (!parts.contains(part)) missing.push_back(fmt::format("{}/{}", part, n));
  }
  if (!missing.empty()) {
    throw Error(ErrorCode::kNotFound, "reports of {} of {} parts are missing: {}", missing.size(),
                n, fmt::join(missing, ", "));
  }
  return joined;
}

}  // namespace ingot::verify
