#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ingot::cli {

struct Emphasis;

/// A page of docs/, within the program.
struct Topic {
  std::string_view name;                       ///< name of its file, without `.md`
  std::span<const std::string_view> sections;  ///< its Markdown, one after the other

  /// The heading of the page.
  [[nodiscard]] std::string_view title() const;
};

/// Every page, by name.
std::span<const Topic> topics();
/// `formats`, or `formats.md`, in any case; null for another name.
const Topic* find_topic(std::string_view name);

/// The whole page for a terminal of so many columns; `bold` is put around headings.
std::string topic_text(const Topic& topic, std::size_t width, const Emphasis& bold);

}  // namespace ingot::cli
