#include "inference/tokenizer/split_text.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace ingot::inference {
namespace {

struct Part {
  Span span;
  bool is_match = false;
};

// Matches and the gaps between them, which cover the text. As in Hugging Face's tokenizers, an
// empty match takes part in the merging, though it never becomes a piece.
void find_parts(std::size_t size, const std::vector<Span>& matches, bool invert,
                std::vector<Part>& parts) {
  parts.clear();
  std::size_t end = 0;
  for (const Span& match : matches) {
    if (end != match.begin) parts.push_back({{end, match.begin}, invert});
    parts.push_back({match, !invert});
    end = match.end;
  }
  if (end != size) parts.push_back({{end, size}, invert});
}

// Adds parts to the last piece or starts a new one, as the behavior has it.
template <class Joins>
void merge_forward(const std::vector<Part>& parts, Joins joins, std::vector<Span>& pieces) {
  pieces.clear();
  bool previous = false;
  for (const Part& part : parts) {
    if (!pieces.empty() && joins(previous, part.is_match)) {
      pieces.back().end = part.span.end;
    } else {
      pieces.push_back(part.span);
    }
    previous = part.is_match;
  }
}

void merge_with_next(const std::vector<Part>& parts, std::vector<Span>& pieces) {
  pieces.clear();
  bool following = false;
  for (std::size_t i = parts.size(); i-- > 0;) {
    if (!pieces.empty() && parts[i].is_match && !following) {
      pieces.back().begin = parts[i].span.begin;
    } else {
      pieces.push_back(parts[i].span);
    }
    following = parts[i].is_match;
  }
  std::ranges::reverse(pieces);
}

void merge(const std::vector<Part>& parts, SplitBehavior behavior, std::vector<Span>& pieces) {
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return merge_forward(
          parts, [](bool, bool) { return false; }, pieces);
    case SplitBehavior::kMergedWithPrevious:
      return merge_forward(
          parts, [](bool previous, bool now) { return now && !previous; }, pieces);
    case SplitBehavior::kContiguous:
      return merge_forward(
          parts, [](bool previous, bool now) { return now == previous; }, pieces);
    case SplitBehavior::kMergedWithNext:
      return merge_with_next(parts, pieces);
    case SplitBehavior::kRemoved:
      pieces.clear();
      for (const Part& part : parts)
        if (!part.is_match) pieces.push_back(part.span);
  }
}

}  // namespace

void split_pieces(SplitText& split, const SplitPattern& pattern, SplitBehavior behavior,
                  bool invert) {
  std::vector<Span> result;
  result.reserve(split.pieces.size());
  std::vector<Span> matches;
  std::vector<Part> parts;
  std::vector<Span> cut;
  for (const Span& piece : split.pieces) {
    const auto text = std::string_view(split.text).substr(piece.begin, piece.end - piece.begin);
    pattern.find_all(text, matches);
    find_parts(text.size(), matches, invert, parts);
    merge(parts, behavior, cut);
    for (const Span& span : cut) {
      if (span.begin != span.end)
        result.push_back({piece.begin + span.begin, piece.begin + span.end});
    }
  }
  if (result.empty() || split.pieces.empty() || result.front().begin != split.pieces.front().begin)
    split.is_start = false;
  split.pieces = std::move(result);
}

}  // namespace ingot::inference
