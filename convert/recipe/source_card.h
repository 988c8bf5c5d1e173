#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint/checkpoint.h"

namespace ingot::convert {

inline constexpr std::string_view kCardName = "README.md";

/// A text, or a list of texts, in the front matter of a model card: YAML between two lines `---` at
/// the begin of README.md, which the hub reads.
struct CardEntry {
  std::string key;
  std::vector<std::string> values;
  bool is_list = false;
};

/// The facts about a source that the model card of an output needs.
struct SourceCard {
  /// Entries that hold for the output too: the licence, the languages, the task.
  std::vector<CardEntry> kept;
  /// Models that this one is made of, as ORG/NAME: the source itself where its place tells its
  /// name, else those that its config or its own card names.
  std::vector<std::string> base_models;
  /// How the output comes of them, in the hub's word; empty: the hub finds out itself.
  std::string relation;
  bool is_named = false;     ///< base_models is the source itself
  std::string commit;        ///< commit of the source on the hub; empty: not known
  std::string text;          ///< text behind the front matter; with it where that is not understood
  std::string fault;         ///< reason why the front matter is not understood; else empty
  bool is_too_long = false;  ///< README.md is too long, and stays as it is
};

/// The licence, as the card calls it: `license`, or `license_name` where that is `other`. Empty
/// where it says none.
std::string licence_of(const SourceCard& card);

/// True for `ORG/NAME`, without a revision.
bool is_hub_model(std::string_view name);

/// Reads README.md, if it is one of the source's side files. Its front matter may be hostile.
/// `base_model`: the source's own name on the hub, if it was told.
SourceCard read_source_card(const formats::Checkpoint& source, const std::string& base_model);

}  // namespace ingot::convert
