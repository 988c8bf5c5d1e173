#include "inference/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "inference/tokenizer/characters.h"
#include "inference/tokenizer/component.h"

namespace ingot::inference {
namespace {

using SplitStep = std::function<void(SplitText&, TextWork&)>;

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// ASCII punctuation includes some symbols.
constexpr std::string_view kPunctuationPattern = R"([\p{P}$+<=>\^`|~])";
// The word of UTS 18, which has the joiners that \w of a pattern in the file lacks.
constexpr std::string_view kWordsPattern = R"([\w\x{200C}\x{200D}]+|[^\w\s\x{200C}\x{200D}]+)";

/// How the matches of a pattern are split off.
enum class SplitBehavior : std::uint8_t {
  kIsolated,            ///< every match is a piece of its own
  kRemoved,             ///< matches are dropped
  kMergedWithPrevious,  ///< a match ends the piece before it
  kMergedWithNext,      ///< a match starts the piece after it
  kContiguous,          ///< matches that touch are one piece
};
/// Names of the behaviors in tokenizer.json.
constexpr std::array<std::string_view, 5> kBehaviors = {"Isolated", "Removed", "MergedWithPrevious",
                                                        "MergedWithNext", "Contiguous"};

struct SplitPart {
  Span span;
  bool is_match = false;
};

// Matches and the gaps between them, which cover the text. As in Hugging Face's tokenizers, an
// empty match takes part in the merging, though it never becomes a piece.
void find_parts(std::size_t size, const std::vector<Span>& matches, bool invert,
                std::vector<SplitPart>& parts) {
  parts.clear();
  std::size_t end = 0;
  for (const Span& match : matches) {
    if (end != match.begin) parts.push_back({{end, match.begin}, invert});
    parts.push_back({match, !invert});
    end = match.end;
  }
  if (end != size) parts.push_back({{end, size}, invert});
}

// Joins parts to pieces, as the behavior has it. A match that belongs to the piece after it is one
// that belongs to the piece before it, seen from the end.
void merge(std::vector<SplitPart>& parts, SplitBehavior behavior, std::vector<Span>& pieces) {
  const bool is_backward = behavior == SplitBehavior::kMergedWithNext;
  if (is_backward) std::ranges::reverse(parts);
  pieces.clear();
  bool previous = false;
  for (const SplitPart& part : parts) {
    if (behavior == SplitBehavior::kRemoved && part.is_match) continue;
    const bool joins = behavior == SplitBehavior::kContiguous ? part.is_match == previous
                       : is_backward || behavior == SplitBehavior::kMergedWithPrevious
                           ? part.is_match && !previous
                           : false;
    if (pieces.empty() || !joins) {
      pieces.push_back(part.span);
    } else if (is_backward) {
      pieces.back().begin = part.span.begin;
    } else {
      pieces.back().end = part.span.end;
    }
    previous = part.is_match;
  }
  if (is_backward) std::ranges::reverse(pieces);
}

/// Cuts every piece at the matches of a pattern, which sees one piece at a time. With `invert` the
/// texts between the matches count as matches and the reverse.
void split_pieces(SplitText& split, TextWork& work, const SplitPattern& pattern,
                  SplitBehavior behavior, bool invert) {
  std::vector<Span> result;
  result.reserve(split.pieces.size());
  std::vector<Span> matches;
  std::vector<SplitPart> parts;
  std::vector<Span> cut;
  for (const Span& piece : split.pieces) {
    const auto text = std::string_view(split.text).substr(piece.begin, piece.end - piece.begin);
    pattern.find_all(text, work, matches);
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

SplitStep split_step(SplitPattern pattern, SplitBehavior behavior, bool invert) {
  return [pattern = std::move(pattern), behavior, invert](SplitText& split, TextWork& work) {
    split_pieces(split, work, pattern, behavior, invert);
  };
}

/// Replaces every piece: `write(piece, is_first, out)` appends the new text.
template <class Write>
void rewrite_pieces(SplitText& split, Write write) {
  std::string text;
  text.reserve(split.text.size() + split.text.size() / 4);
  for (std::size_t i = 0; i < split.pieces.size(); ++i) {
    Span& piece = split.pieces[i];
    const std::size_t begin = text.size();
    write(std::string_view(split.text).substr(piece.begin, piece.end - piece.begin), i == 0, text);
    piece = {begin, text.size()};
  }
  split.text = std::move(text);
}

SplitBehavior behavior_of(const Component& component, std::optional<SplitBehavior> if_missing) {
  if (if_missing && component.find("behavior") == nullptr) return *if_missing;
  const std::string name = component.text("behavior");
  const auto* const found = std::ranges::find(kBehaviors, name);
  if (found != kBehaviors.end()) return static_cast<SplitBehavior>(found - kBehaviors.begin());
  component.unsupported("has behavior " + quote_text(name) + ", which is not supported");
}

SplitStep make_split(const Component& component) {
  return split_step(SplitPattern::of(component), behavior_of(component, std::nullopt),
                    component.boolean("invert", false));
}

SplitStep make_digits(const Component& component) {
  return split_step(SplitPattern::regex(R"(\p{N})"),
                    component.boolean("individual_digits", false) ? SplitBehavior::kIsolated
                                                                  : SplitBehavior::kContiguous,
                    false);
}

SplitStep make_punctuation(const Component& component) {
  return split_step(SplitPattern::regex(kPunctuationPattern),
                    behavior_of(component, SplitBehavior::kIsolated), false);
}

SplitStep make_whitespace(const Component& /*component*/) {
  return split_step(SplitPattern::regex(kWordsPattern), SplitBehavior::kRemoved, true);
}

SplitStep make_whitespace_split(const Component& /*component*/) {
  return split_step(SplitPattern::regex(R"(\s)"), SplitBehavior::kRemoved, false);
}

SplitStep make_byte_split(const Component& component) {
  const bool add_prefix_space = component.boolean("add_prefix_space", true);
  std::optional<SplitPattern> pattern;
  if (component.boolean("use_regex", true)) pattern = SplitPattern::regex(kGpt2Pattern);
  return [add_prefix_space, pattern](SplitText& split, TextWork& work) {
    if (add_prefix_space) {
      rewrite_pieces(split, [](std::string_view piece, bool, std::string& out) {
        if (!piece.starts_with(' ')) out += ' ';
        out += piece;
      });
    }
    if (pattern) split_pieces(split, work, *pattern, SplitBehavior::kIsolated, false);
    rewrite_pieces(split, [](std::string_view piece, bool, std::string& out) {
      append_byte_characters(piece, out);
    });
  };
}

enum class Prepend : std::uint8_t { kAlways, kFirst, kNever };

Prepend prepend_of(const Component& component) {
  // Files from before prepend_scheme say it by a flag.
  if (!component.boolean("add_prefix_space", true)) return Prepend::kNever;
  const std::string scheme = component.text("prepend_scheme", "always");
  if (scheme == "always") return Prepend::kAlways;
  if (scheme == "first") return Prepend::kFirst;
  if (scheme == "never") return Prepend::kNever;
  component.unsupported("has prepend_scheme " + quote_text(scheme) + ", which is not supported");
}

SplitStep make_metaspace_split(const Component& component) {
  const std::string mark = character_field(component, "replacement");
  std::optional<SplitPattern> pattern;
  if (component.boolean("split", true)) pattern = SplitPattern::literal(mark);
  return [mark, pattern, prepend = prepend_of(component)](SplitText& split, TextWork& work) {
    rewrite_pieces(split, [&](std::string_view piece, bool is_first, std::string& out) {
      const bool wants_mark =
          prepend == Prepend::kAlways || (prepend == Prepend::kFirst && is_first && split.is_start);
      if (wants_mark && !piece.starts_with(' ') && !piece.starts_with(mark)) out += mark;
      out += replaced(piece, " ", mark);
    });
    if (pattern) split_pieces(split, work, *pattern, SplitBehavior::kMergedWithNext, false);
  };
}

constexpr std::array<ComponentRow<SplitStep (*)(const Component&)>, 7> kSplitRows{{
    {"ByteLevel", &make_byte_split},
    {"Digits", &make_digits},
    {"Metaspace", &make_metaspace_split},
    {"Punctuation", &make_punctuation},
    {"Split", &make_split},
    {"Whitespace", &make_whitespace},
    {"WhitespaceSplit", &make_whitespace_split},
}};

}  // namespace

PreTokenizer PreTokenizer::parse(const formats::Json* value) {
  PreTokenizer result;
  result.steps_ = make_steps(kSplitRows, value, "pre_tokenizer", "pretokenizers");
  return result;
}

SplitText PreTokenizer::apply(std::string text, bool is_start, TextWork& work) const {
  SplitText split{.text = std::move(text), .pieces = {}, .is_start = is_start};
  if (!split.text.empty()) split.pieces.push_back({0, split.text.size()});
  for (const SplitStep& step : steps_) {
    step(split, work);
    work.require_size(split.text.size());
    work.look();
  }
  return split;
}

}  // namespace ingot::inference
