#include "formats/base/fault_lines.h"

#include <map>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/printable.h"

namespace ingot {
namespace {

constexpr std::size_t kShown = 5;
constexpr std::size_t kPlacesShown = 3;

/// The text that messages of one cause share: numbers and quoted words are left out.
std::string message_kind(std::string_view message) {
  std::string text;
  while (!message.empty()) {
    const std::size_t open = message.find('\'');
    text += message.substr(0, open);
    if (open == std::string_view::npos) break;
    const std::size_t close = message.find('\'', open + 1);
    if (close == std::string_view::npos) break;
    text += "''";
    message.remove_prefix(close + 1);
  }
  return name_kind(text);
}

/// How many faults there are where.
class Places {
 public:
  void add(const ListedFault& fault) {
    ++total_;
    if (fault.file.empty() && fault.tensor.empty()) return;
    const std::string place =
        fault.file.empty() ? "of " + name_kind(fault.tensor) : "in " + fault.file;
    const auto [at, is_new] = counts_.try_emplace(place, 0);
    if (is_new) order_.push_back(place);
    ++at->second;
  }
  [[nodiscard]] std::size_t total() const { return total_; }
  /// `: 40 in a, 35 in b and others`, or empty.
  [[nodiscard]] std::string text() const {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < order_.size() && i < kPlacesShown; ++i)
      parts.push_back(fmt::format("{} {}", counts_.at(order_[i]), printable(order_[i])));
    if (parts.empty()) return {};
    return fmt::format(": {}{}", fmt::join(parts, ", "),
                       order_.size() > kPlacesShown ? " and elsewhere" : "");
  }

 private:
  std::map<std::string, std::size_t> counts_;
  std::vector<std::string> order_;
  std::size_t total_ = 0;
};

/// Faults that differ only by their tensor.
using Entry = std::vector<const ListedFault*>;

std::string line_of(const Entry& entry) {
  const ListedFault& first = *entry.front();
  std::string text = first.before;
  if (!first.file.empty()) text += printable(first.file) + ": ";
  if (entry.size() == 1) {
    if (!first.tensor.empty()) text += fmt::format("tensor '{}': ", printable(first.tensor));
    return text + printable_lines(first.message) + first.after;
  }
  std::vector<std::string> names;
  Places more;
  for (const ListedFault* fault : entry) {
    if (names.size() < kShown) {
      names.push_back(fmt::format("'{}'", printable(fault->tensor)));
    } else {
      more.add({.before = {}, .file = {}, .tensor = fault->tensor, .message = {}, .after = {}});
    }
  }
  text += fmt::format("{}: {} tensors: {}", printable_lines(first.message), entry.size(),
                      fmt::join(names, ", "));
  if (more.total() > 0) text += fmt::format(" and {} more{}", more.total(), more.text());
  return text + first.after;
}

}  // namespace

std::vector<std::string> fault_lines(std::span<const ListedFault> faults) {
  // Causes and their entries, in the order in which they are first met.
  std::vector<std::vector<Entry>> causes;
  std::map<std::string, std::size_t> cause_of;
  std::map<std::tuple<std::string, std::string, std::string, std::string>, std::size_t> entry_of;
  for (const ListedFault& fault : faults) {
    const std::string kind = fault.before + message_kind(fault.message) + fault.after;
    const auto [cause, is_new_cause] = cause_of.try_emplace(kind, causes.size());
    if (is_new_cause) causes.emplace_back();
    std::vector<Entry>& entries = causes[cause->second];
    const bool has_tensor = !fault.tensor.empty();
    const auto [entry, is_new] = entry_of.try_emplace(
        {fault.before, fault.file, fault.message, fault.after}, entries.size());
    if (is_new || !has_tensor || entries[entry->second].front()->tensor.empty()) {
      entries.push_back({&fault});
    } else {
      entries[entry->second].push_back(&fault);
    }
  }
  std::vector<std::string> lines;
  for (const std::vector<Entry>& entries : causes) {
    Places more;
    // Few stay as they are, each with its place in front.
    std::vector<Entry> shown;
    for (const Entry& entry : entries) {
      if (entry.size() > kShown) {
        shown.push_back(entry);
      } else {
        for (const ListedFault* fault : entry) shown.push_back({fault});
      }
    }
    // A line for a single one more would take as much room as itself.
    const std::size_t n = shown.size() <= kShown + 1 ? shown.size() : kShown;
    for (std::size_t i = 0; i < n; ++i) lines.push_back(line_of(shown[i]));
    for (std::size_t i = n; i < shown.size(); ++i) {
      for (const ListedFault* fault : shown[i]) more.add(*fault);
    }
    if (more.total() > 0)
      lines.push_back(fmt::format("... and {} more like it{}", more.total(), more.text()));
  }
  return lines;
}

std::string name_kind(std::string_view name) {
  std::string kind;
  bool in_number = false;
  for (const char c : name) {
    const bool is_digit = c >= '0' && c <= '9';
    if (is_digit && !in_number) kind += '*';
    if (!is_digit) kind += c;
    in_number = is_digit;
  }
  return kind;
}

}  // namespace ingot
