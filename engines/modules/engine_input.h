#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/dialect/config_groups.h"
#include "formats/dialect/dialect.h"
#include "formats/dialect/input_major.h"

// The part of a checkpoint that engines see while they build a model: its linear layers, and what
// the JSON says of them. No values are read.

namespace ingot::engines {

using formats::Checkpoint;
using formats::Json;
using formats::LogicalTensor;
using formats::Role;
using formats::SchemeFacts;
using formats::SchemeId;

/// A linear layer by the name that configs use: the weight's without `.weight`.
struct LinearModule {
  std::string name;
  const LogicalTensor* tensor = nullptr;
  bool is_quantized = false;
  SchemeId scheme{};  ///< held_scheme() of the tensor
  /// True if engines of the dialect build the module quantized when the config does not mention it.
  /// They build other modules (router, head, eh_proj) plain.
  bool is_quantizable = false;
  bool is_class_head = false;  ///< head of classes or rewards: formats::class_head_rule()
  /// True if vLLM builds the module with an empty name, which no list has (models/qwen2_rm.py:53).
  bool is_nameless = false;
  /// Name in engines, where that is another: in the class around a model that was saved without
  /// one, or of a tower that transformers has below `model.`; else empty.
  std::string built_name;
  /// The name under which vLLM builds it in a multi-token prediction layer, or empty.
  std::string mtp_name;
  /// The name under which SGLang builds the module in the first MTP layer (MtpNames::draft), or
  /// empty.
  std::string draft_name;
};

/// Returns the scheme of the codes in the files: INT8 by row or block for GPTQ's codes of 8 bits
/// (whose encoding shows their values), else the encoding's scheme.
SchemeId held_scheme(const Checkpoint& checkpoint, const LogicalTensor& tensor);

struct EngineInput {
  /// The checkpoint must outlive this.
  explicit EngineInput(const Checkpoint& checkpoint);

  /// `quantization_config` of config.json, or null when there is none or it is no object.
  const Json* quantization;
  /// True if it is called `compression_config`.
  bool has_older_key = false;
  std::vector<std::string> group_faults;  ///< parts that `groups` could not read
  /// The groups of compressed-tensors, where there is a quantization_config.
  std::optional<formats::ConfigGroups> groups;
  /// Form of GPTQ's, AWQ's or AutoRound's packed integers, where the config says it.
  std::optional<formats::InputMajorLayout> packed;
  /// Activations of quantized weights; nullopt where the lists of the config cannot be read.
  std::optional<formats::SourceActivations> activations;
  /// Every quantized weight, every one that the family's release quantizes, and the other linear
  /// layers: router, head, eh_proj and weights_proj; outside the grammar of a family what looks
  /// like one (two dimensions, `X.weight`, neither norm nor embedding).
  std::vector<LinearModule> modules;
  /// The entries of the description by tensor. JSON objects are lists in the order of the file
  /// here, and this one may have a line per tensor: each search in it would read them all.
  std::unordered_map<std::string_view, const Json*> described;
};

inline const SchemeFacts& facts_of(const LogicalTensor& tensor) {
  return formats::scheme_facts(tensor.encoding.scheme);
}
inline bool has_e4m3_codes(const SchemeFacts& scheme) {
  return scheme.code == formats::CodeKind::kE4m3;
}
inline bool has_int8_codes(const SchemeFacts& scheme) {
  return scheme.code == formats::CodeKind::kInt8;
}
inline bool has_int4_codes(const SchemeFacts& scheme) {
  return scheme.code == formats::CodeKind::kInt4;
}

}  // namespace ingot::engines
