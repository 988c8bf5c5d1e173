#include <set>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "verify/gates/demand.h"
#include "verify/gates/gate.h"

namespace ingot::verify {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 20;
constexpr std::string_view kGreedyGap = "greedy.gap";

[[noreturn]] void refuse(const YAML::Node& node, std::string_view what) {
  const YAML::Mark mark = node.Mark();
  throw Error(ErrorCode::kInvalidArgument,
              mark.is_null() ? std::string(what) : fmt::format("line {}: {}", mark.line + 1, what));
}

std::string scalar(const YAML::Node& node, std::string_view key) {
  if (!node.IsScalar()) refuse(node, fmt::format("{} is not a limit", key));
  return node.Scalar();
}

// Calls `read(key, value)` for every entry; none may be there twice.
template <typename Read>
void for_each_key(const YAML::Node& map, std::string_view what, const Read& read) {
  std::set<std::string> seen;
  for (const auto& entry : map) {
    const std::string key = scalar(entry.first, "a key");
    if (!seen.insert(key).second)
      refuse(entry.first, fmt::format("key '{}' is there twice in {}", key, what));
    try {
      read(key, entry.second);
    } catch (const Error& error) {
      if (error.message().starts_with("line ")) throw;
      refuse(entry.first, error.message());
    }
  }
}

void read_metric(const std::string& metric, const YAML::Node& value, std::string_view origin,
                 Thresholds& thresholds) {
  if (metric == kGreedyGap) {
    const double gap = parse_number(scalar(value, metric), metric);
    if (gap < 0) refuse(value, fmt::format("{} is negative", metric));
    thresholds.greedy_gap = gap;
    return;
  }
  const auto add = [&](std::string_view group, const std::string& limit) {
    thresholds.gates.push_back(make_demand(metric, group, limit, origin));
  };
  if (!value.IsMap()) return add({}, scalar(value, metric));
  if (value.size() == 0) refuse(value, fmt::format("{} has no groups", metric));
  for_each_key(value, metric, [&](const std::string& group, const YAML::Node& limit) {
    if (group.empty()) refuse(limit, fmt::format("{} has a group without a name", metric));
    add(group, scalar(limit, fmt::format("{}[{}]", metric, group)));
  });
}

}  // namespace

void read_thresholds(const std::filesystem::path& path, Thresholds& thresholds) {
  const std::string origin = path.filename().string();
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(read_text_file(path, kMaxBytes));
    if (documents.empty() || documents[0].IsNull())
      throw Error(ErrorCode::kInvalidArgument, "holds no thresholds");
    if (documents.size() > 1)
      throw Error(ErrorCode::kInvalidArgument, "holds more than one YAML document");
    const YAML::Node& root = documents[0];
    if (!root.IsMap()) refuse(root, "is not a map from metrics to limits");
    for_each_key(root, "the file", [&](const std::string& metric, const YAML::Node& value) {
      read_metric(metric, value, origin, thresholds);
    });
  } catch (const YAML::Exception& failure) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("is not YAML: {}", failure.what()))
        .in_file(path.string());
  } catch (Error& error) {
    throw error.in_file(path.string());
  }
}

}  // namespace ingot::verify
