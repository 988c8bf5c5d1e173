#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/family/family.h"
#include "formats/yaml/yaml.h"

// The forward pass as a family's file says it. Here it is only syntax: kinds, parameters and their
// meaning are known to the code that computes.

namespace ingot::formats {

/// A text of the file: a word, an expression (Width), a number, `KEY`, or `KEY default NUMBER`.
struct ForwardValue {
  std::string text;
  int line = 0;
  /// A key of config.json whose word says which of these texts it is; `text` is the word where the
  /// key is missing. Empty: the text is said.
  std::string key = {};
  std::vector<std::pair<std::string, std::string>> choices = {};
};
using ForwardParameters = std::vector<std::pair<std::string, ForwardValue>>;

/// The keys of config.json that an expression has and ModelConfig has no number for.
std::vector<std::string> keys_of(const Width& expression);

/// A kind of block, or a part of the model, and the layers that have it.
struct ForwardPart {
  TensorRule where;  ///< scope and layers of the part
  ForwardParameters parameters;
  int line = 0;
};

struct Forward {
  /// Keys of config.json and the only value that each may have, unless it is missing.
  ForwardParameters only;
  /// Layers for multi-token prediction are `joined`, `dense` (joined, without experts), `left-out`,
  /// or `unsaid` where they are left out and the config does not count them.
  std::string mtp = "joined";
  /// Expressions that must not be 0.
  std::vector<std::string> needs;
  /// Mixers, of which the first that holds is a layer's, in front of its feed-forward part; with
  /// `are_blocks` blocks, of which a layer has all that hold.
  std::vector<ForwardPart> parts;
  bool are_blocks = false;
  std::optional<ForwardPart> mixture;
  ForwardPart mlp, model;
};

/// `layers` reads the value of that key into a row's scope and layers. Throws kInvalidArgument,
/// naming the line, for anything unknown or missing.
Forward read_forward(const Yaml& yaml, const std::function<TensorRule(const Yaml&)>& layers);

}  // namespace ingot::formats
