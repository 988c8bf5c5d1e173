#include "cli/manual/topics.h"

#include <algorithm>
#include <string>

#include "cli/manual/markdown_text.h"
#include "cli/manual/topic_texts.h"
#include "formats/base/words.h"

namespace ingot::cli {

std::string_view Topic::title() const {
  std::string_view line = sections.front();
  line = line.substr(0, line.find('\n'));
  return line.substr(std::min(line.find_first_not_of("# "), line.size()));
}

std::span<const Topic> topics() {
  return kTopics;
}

const Topic* find_topic(std::string_view name) {
  constexpr std::string_view kSuffix = ".md";
  std::string word = lower_case(name);
  if (word.ends_with(kSuffix)) word.resize(word.size() - kSuffix.size());
  const auto* const found = std::find_if(std::begin(kTopics), std::end(kTopics),
                                         [&](const Topic& topic) { return topic.name == word; });
  return found == std::end(kTopics) ? nullptr : found;
}

std::string topic_text(const Topic& topic, std::size_t width, const Emphasis& bold) {
  std::string markdown;
  for (const std::string_view section : topic.sections) markdown += section;
  return markdown_text(markdown, width, bold);
}

}  // namespace ingot::cli
