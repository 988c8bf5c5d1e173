#include "cli/manual/markdown_text.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace ingot::cli {
namespace {

constexpr std::size_t kLeastWidth = 40;
constexpr std::size_t kIndent = 2;  // of everything but headings
constexpr std::size_t kCodeIndent = 4;
constexpr std::size_t kBetweenCells = 2;
constexpr std::size_t kLeastCell = 8;

// Characters, not bytes.
std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

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
  std::string out;
  while (!text.empty()) {
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

// So much of a word as fits, and where it can be, up to a sign within it.
std::size_t bytes_that_fit(std::string_view word, std::size_t width) {
  constexpr std::string_view kSigns = "/.,_-=|";
  std::size_t n = 0, columns = 0, after_sign = 0;
  while (n < word.size()) {
    std::size_t next = n + 1;
    while (next < word.size() && (static_cast<unsigned char>(word[next]) & 0xC0U) == 0x80U) ++next;
    if (++columns > width) break;
    n = next;
    if (kSigns.find(word[n - 1]) != std::string_view::npos) after_sign = n;
  }
  return after_sign > 0 && n < word.size() ? after_sign : n;
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

// The widest column gives until all fit, or none has more to give.
std::vector<std::size_t> column_widths(const std::vector<std::vector<std::string>>& rows,
                                       std::size_t width) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < std::min(row.size(), widths.size()); ++i)
      widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  const std::size_t between = kBetweenCells * (widths.size() - 1);
  while (std::accumulate(widths.begin(), widths.end(), between) > width) {
    const auto widest = std::max_element(widths.begin(), widths.end());
    if (*widest <= kLeastCell) break;
    --*widest;
  }
  return widths;
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
        if (table_.empty()) close();
        table_.push_back(cells_of(line));
      }
      return;
    }
    if (!table_.empty()) close();
    if (line.empty() || line.starts_with("![")) {
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
    if (!table_.empty()) put_table();
    table_.clear();
    if (!paragraph_.empty()) {
      if (mark_.empty()) open_block();
      const std::size_t hang = kIndent + mark_.size();
      std::string first = mark_;
      for (const std::string& line :
           filled_lines(plain(paragraph_), width_ - hang, LongWords::kWhole)) {
        put(kIndent, first + line);
        first.assign(mark_.size(), ' ');
      }
    }
    paragraph_.clear();
    mark_.clear();
  }

  void put_table() {
    open_block();
    const std::vector<std::size_t> widths = column_widths(table_, width_ - kIndent);
    for (std::size_t r = 0; r < table_.size(); ++r) {
      put_row(table_[r], widths);
      if (r > 0) continue;
      std::vector<std::string> rule;
      for (const std::size_t n : widths) rule.emplace_back(n, '-');
      put_row(rule, widths);
    }
  }

  void put_row(const std::vector<std::string>& row, const std::vector<std::size_t>& widths) {
    std::vector<std::vector<std::string>> cells;
    std::size_t height = 1;
    for (std::size_t i = 0; i < std::min(row.size(), widths.size()); ++i) {
      cells.push_back(filled_lines(row[i], widths[i], LongWords::kCut));
      height = std::max(height, cells.back().size());
    }
    for (std::size_t h = 0; h < height; ++h) {
      std::string line;
      std::size_t at = 0;  // where the cell begins
      for (std::size_t i = 0; i < cells.size(); ++i) {
        const std::string cell = h < cells[i].size() ? cells[i][h] : std::string();
        const std::size_t here = columns_of(line);
        if (!cell.empty()) line += std::string(at > here ? at - here : 0, ' ') + cell;
        at += widths[i] + kBetweenCells;
      }
      put(kIndent, line);
    }
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
  std::vector<std::vector<std::string>> table_;
  bool in_code_ = false;
};

}  // namespace

std::vector<std::string> filled_lines(std::string_view text, std::size_t width,
                                      LongWords long_words) {
  std::vector<std::string> lines;
  std::string line;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    while (long_words == LongWords::kCut && columns_of(word) > width) {
      if (!line.empty()) lines.push_back(std::exchange(line, {}));
      const std::size_t n = bytes_that_fit(word, width);
      lines.emplace_back(word.substr(0, n));
      word.remove_prefix(n);
    }
    if (!line.empty() && columns_of(line) + 1 + columns_of(word) > width) {
      lines.push_back(std::exchange(line, {}));
    }
    if (!line.empty()) line += ' ';
    line += word;
  }
  if (!line.empty() || lines.empty()) lines.push_back(std::move(line));
  return lines;
}

std::string markdown_text(std::string_view markdown, std::size_t width, const Emphasis& bold) {
  return Page(width, bold).render(markdown);
}

}  // namespace ingot::cli
