#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ingot::cli {

struct Emphasis;

/// A page of docs/, within the program.
struct Topic {
  std::string_view name;                       ///< name of its file, without `.md`
  std::string_view group;                      ///< part of the manual that it belongs to
  std::span<const std::string_view> sections;  ///< its Markdown, one after the other

  /// The heading of the page.
  [[nodiscard]] std::string_view title() const;
};

/// Every page, in the order of the manual: those of a group follow one another.
std::span<const Topic> topics();
/// `formats`, or `formats.md`, in any case; null for another name.
const Topic* find_topic(std::string_view name);

/// The whole page for a terminal of so many columns; `bold` is put around headings.
std::string topic_text(const Topic& topic, std::size_t width, const Emphasis& bold);

}  // namespace ingot::cli
