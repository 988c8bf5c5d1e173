#include "formats/yaml/yaml.h"

#include <algorithm>
#include <array>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "formats/base/words.h"
#include "formats/text/spelling.h"

namespace ingot::formats {
namespace {

[[noreturn]] void refuse_at(int line, std::string_view fact) {
  throw Error(ErrorCode::kInvalidArgument,
              line > 0 ? fmt::format("line {}: {}", line, fact) : std::string(fact));
}

constexpr std::array<std::string_view, 4> kTrue = {"true", "yes", "on", "y"};
constexpr std::array<std::string_view, 4> kFalse = {"false", "no", "off", "n"};

int line_of(const YAML::Mark& mark) {
  return mark.is_null() ? 0 : mark.line + 1;
}

}  // namespace

// Builds the tree as the parser goes over the text, so that it is never larger than the text that
// was read. yaml-cpp itself limits its recursion.
class YamlBuilder final : public YAML::EventHandler {
 public:
  explicit YamlBuilder(std::size_t max_depth) : max_depth_(max_depth) {}

  [[nodiscard]] Yaml take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++n_documents_ > 1) refuse_at(line_of(mark), "holds more than one YAML document");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    require_plain(mark, anchor, {});
    add(Yaml(Yaml::Kind::kNull, line_of(mark)));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    require_plain(mark, anchor, {});
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    require_plain(mark, anchor, tag);
    Yaml value(Yaml::Kind::kText, line_of(mark));
    value.text_ = text;
    add(std::move(value));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    begin(Yaml::Kind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { end(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    begin(Yaml::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { end(); }

 private:
  struct Open {
    Yaml value;
    std::string key = {};
    int key_line = 0;
    bool has_key = false;
    std::set<std::string> keys = {};
  };

  static void require_plain(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& tag) {
    if (anchor != YAML::NullAnchor)
      refuse_at(line_of(mark), "anchors and aliases are not accepted (write the value out)");
    if (!tag.empty() && tag != "?" && tag != "!")
      refuse_at(line_of(mark), "tags are not accepted (leave the word with ! out)");
  }

  void begin(Yaml::Kind kind, const YAML::Mark& mark, const std::string& tag,
             YAML::anchor_t anchor) {
    require_plain(mark, anchor, tag);
    if (open_.size() == max_depth_) {
      refuse_at(line_of(mark),
                fmt::format("is nested too deeply: more than {} lists and maps inside each other",
                            max_depth_));
    }
    open_.push_back({.value = Yaml(kind, line_of(mark))});
  }

  void end() {
    Yaml done = std::move(open_.back().value);
    open_.pop_back();
    add(std::move(done));
  }

  void add(Yaml value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return;
    }
    Open& parent = open_.back();
    if (parent.value.kind_ == Yaml::Kind::kList) {
      parent.value.items_.push_back(std::move(value));
    } else if (!parent.has_key) {
      if (!value.is_text()) refuse_at(value.line(), "a key is not a text");
      if (!parent.keys.insert(value.text_).second)
        refuse_at(value.line(), fmt::format("key '{}' is there twice", value.text_));
      parent.key = std::move(value.text_);
      parent.key_line = value.line();
      parent.has_key = true;
    } else {
      parent.value.members_.push_back(
          {.key = std::move(parent.key), .line = parent.key_line, .value = std::move(value)});
      parent.has_key = false;
    }
  }

  std::size_t max_depth_;
  std::size_t n_documents_ = 0;
  std::vector<Open> open_;
  Yaml root_{Yaml::Kind::kNull, 0};
};

Yaml::Yaml(Kind kind, int line) : kind_(kind), line_(line) {}
Yaml::Yaml(const Yaml&) = default;
Yaml::Yaml(Yaml&&) noexcept = default;
Yaml& Yaml::operator=(const Yaml&) = default;
Yaml& Yaml::operator=(Yaml&&) noexcept = default;
Yaml::~Yaml() = default;

void Yaml::refuse_as(std::string_view fact) const {
  refuse_at(line_, fact);
}

const std::string& Yaml::text(std::string_view what) const {
  if (!is_text()) refuse("{} is not a text", what);
  return text_;
}

bool Yaml::boolean(std::string_view what) const {
  const std::string& word = text(what);
  const std::string lower = lower_case(word);
  if (std::ranges::find(kTrue, lower) != kTrue.end()) return true;
  if (std::ranges::find(kFalse, lower) != kFalse.end()) return false;
  refuse("{} '{}' is neither true nor false", what, word);
}

std::uint64_t Yaml::number(std::string_view what, std::uint64_t max) const {
  const std::string& word = text(what);
  const auto value = number_from<std::uint64_t>(word);
  if (!value || *value > max) refuse("{} '{}' is no whole number from 0 to {}", what, word, max);
  return *value;
}

std::span<const Yaml> Yaml::list(std::string_view what) const {
  if (!is_list()) refuse("{} is not a list", what);
  return items_;
}

std::vector<std::string> Yaml::texts(std::string_view what) const {
  if (is_text()) return {text_};
  std::vector<std::string> all;
  for (const Yaml& item : list(what)) all.push_back(item.text(fmt::format("an entry of {}", what)));
  return all;
}

std::span<const Yaml::Member> Yaml::members(std::string_view what) const {
  if (!is_map()) refuse("{} is not a map", what);
  return members_;
}

const Yaml* Yaml::find(std::string_view key) const {
  const auto found = std::ranges::find(members_, key, &Member::key);
  return found == members_.end() ? nullptr : &found->value;
}

void Yaml::require_keys(std::span<const std::string_view> known) const {
  for (const Member& member : members_) {
    if (std::ranges::find(known, member.key) != known.end()) continue;
    refuse_at(member.line,
              fmt::format("unknown key '{}'{}", member.key, did_you_mean(member.key, known)));
  }
}

Yaml parse_yaml(std::string_view text, std::string_view where, const YamlLimits& limits) {
  try {
    if (text.size() > limits.bytes) {
      const auto end = text.begin() + static_cast<std::ptrdiff_t>(limits.bytes);
      refuse_at(static_cast<int>(1 + std::count(text.begin(), end, '\n')),
                limits.bytes % (1 << 20) == 0
                    ? fmt::format("is longer than {} MiB", limits.bytes >> 20)
                    : fmt::format("is longer than {} KiB", limits.bytes >> 10));
    }
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    YamlBuilder builder(limits.depth);
    while (parser.HandleNextDocument(builder)) {
    }
    return builder.take();
  } catch (const YAML::Exception& failure) {
    // Its words are those of a parser: "end of map flow not found".
    constexpr std::string_view kCauses =
        "a bracket or quote that does not end, or lines that are indented in no order";
    throw Error(ErrorCode::kInvalidArgument,
                failure.mark.is_null()
                    ? fmt::format("is not YAML ({}?)", kCauses)
                    : fmt::format("line {}: is not YAML from column {} on ({}?)",
                                  failure.mark.line + 1, failure.mark.column + 1, kCauses))
        .in_file(where);
  } catch (Error& error) {
    error.in_file(where);
    throw;
  }
}

}  // namespace ingot::formats
