#include "cli/manual/markdown_text.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "report/table_text.h"

namespace ingot::cli {
namespace {

constexpr std::size_t kLeastWidth = 40;
constexpr std::size_t kIndent = 2;  // of everything but headings
constexpr std::size_t kCodeIndent = 4;

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

// The words of a link `[words](target)` at the front of `text`, and how long it is; an address is
// kept behind its words.
struct Link {
  std::string words;
  std::size_t n_bytes = 0;
};
std::optional<Link> link_at(std::string_view text) {
  const std::size_t middle = text.find("](");
  const std::size_t end = text.find(')', middle);
  if (middle == std::string_view::npos || end == std::string_view::npos) return std::nullopt;
  const std::string_view target = text.substr(middle + 2, end - middle - 2);
  Link link{.words = std::string(text.substr(1, middle - 1)), .n_bytes = end + 1};
  if (target.starts_with("http")) link.words += " (" + std::string(target) + ")";
  return link;
}

// Without the marks of code, emphasis and links.
std::string plain(std::string_view text) {
  constexpr std::string_view kAmpersand = "&amp;", kLess = "&lt;";
  std::string out;
  while (!text.empty()) {
    if (text.starts_with(kAmpersand) || text.starts_with(kLess)) {
      out += text.starts_with(kLess) ? '<' : '&';
      text.remove_prefix(text.find(';') + 1);
      continue;
    }
    if (text.front() == '`') {
      const std::size_t end = text.find('`', 1);
      if (end != std::string_view::npos) {
        out += text.substr(1, end - 1);
        text.remove_prefix(end + 1);
        continue;
      }
    }
    if (text.front() == '[') {
      if (const auto link = link_at(text)) {
        out += plain(link->words);
        text.remove_prefix(link->n_bytes);
        continue;
      }
    }
    const bool is_escaped = text.size() > 1 && text.front() == '\\';
    if (is_escaped) text.remove_prefix(1);
    if (is_escaped || text.front() != '*') out += text.front();
    text.remove_prefix(1);
  }
  return out;
}

std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells;
  std::string cell;
  for (std::size_t i = 1; i < line.size(); ++i) {
    if (line[i] == '|' && line[i - 1] != '\\') {
      cells.push_back(plain(trimmed(cell)));
      cell.clear();
    } else if (line[i] != '\\' || i + 1 == line.size() || line[i + 1] != '|') {
      cell += line[i];
    }
  }
  return cells;
}

bool is_rule_of_table(std::string_view line) {
  return line.find_first_not_of("|-: ") == std::string_view::npos;
}

class Page {
 public:
  Page(std::size_t width, const Emphasis& bold)
      : width_(std::max(width, kLeastWidth)), bold_(bold) {}

  std::string render(std::string_view markdown) {
    while (!markdown.empty()) {
      const std::size_t end = std::min(markdown.find('\n'), markdown.size());
      take(markdown.substr(0, end));
      markdown.remove_prefix(std::min(end + 1, markdown.size()));
    }
    close();
    while (text_.ends_with("\n\n")) text_.pop_back();
    return std::move(text_);
  }

 private:
  void take(std::string_view line) {
    if (line.starts_with("```")) {
      close();
      in_code_ = !in_code_;
      open_block();
      return;
    }
    if (in_code_) {
      put(kCodeIndent, line);
      return;
    }
    if (line.starts_with('|')) {
      if (!is_rule_of_table(line)) {
        take_row(cells_of(line));
      }
      return;
    }
    if (!table_.columns.empty()) close();
    if (line.empty() || line.starts_with("![") || line.starts_with("<!--")) {
      close();
    } else if (line.starts_with('#')) {
      close();
      open_block();
      const std::string words = plain(line.substr(line.find_first_not_of("# ")));
      text_ += std::string(bold_.on) + words + std::string(bold_.off) + "\n";
    } else {
      take_words(line);
    }
  }

  void take_row(const std::vector<std::string>& cells) {
    if (table_.columns.empty()) {
      close();
      table_.columns.assign(cells.begin(), cells.end());
    } else {
      table_.rows.emplace_back(cells.begin(), cells.end());
      table_.rows.back().resize(table_.columns.size(), "");
    }
  }

  // A line of a paragraph, or of an entry of a list.
  void take_words(std::string_view line) {
    const std::size_t number = line.find_first_not_of("0123456789");
    const bool is_bullet = line.starts_with("* ") || line.starts_with("- ");
    const bool is_number =
        number > 0 && number != std::string_view::npos && line.substr(number).starts_with(". ");
    if (is_bullet || is_number) {
      // Entries follow one another without an empty line.
      const bool follows = !mark_.empty();
      close();
      if (!follows) open_block();
      const std::size_t n = is_bullet ? 1 : number + 1;
      mark_ = std::string(line.substr(0, n)) + " ";
      line.remove_prefix(n);
    }
    if (!paragraph_.empty()) paragraph_ += ' ';
    paragraph_ += trimmed(line);
  }

  void close() {
    if (!table_.columns.empty()) {
      open_block();
      text_ += table_text(std::exchange(table_, {.columns = {}, .is_ruled = true}), width_);
    }
    if (!paragraph_.empty()) {
      if (mark_.empty()) open_block();
      const std::size_t hang = kIndent + mark_.size();
      std::string first = mark_;
      for (const std::string& line : filled_lines(plain(paragraph_), width_ - hang)) {
        put(kIndent, first + line);
        first.assign(mark_.size(), ' ');
      }
    }
    paragraph_.clear();
    mark_.clear();
  }

  // An empty line before it, but at the top.
  void open_block() {
    if (!text_.empty() && !text_.ends_with("\n\n")) text_ += '\n';
  }

  void put(std::size_t indent, std::string_view line) {
    if (!line.empty()) text_ += std::string(indent, ' ');
    text_ += line;
    text_ += '\n';
  }

  std::size_t width_;
  Emphasis bold_;
  std::string text_, paragraph_, mark_;
  Table table_ = {.columns = {}, .is_ruled = true};
  bool in_code_ = false;
};

}  // namespace

std::string markdown_text(std::string_view markdown, std::size_t width, const Emphasis& bold) {
  return Page(width, bold).render(markdown);
}

}  // namespace ingot::cli
