#pragma once

#include <string>
#include <vector>

#include "formats/dialect/dialect.h"
#include "synth/synth.h"
#include "tests/check/editable_checkpoint.h"

namespace ingot::testing {

/// Names in a tiny V3.2: layer 0 is dense, 1 a mixture of 4 experts, 2 the multi-token prediction
/// layer, which is a mixture too.
inline const std::string kDense = "model.layers.0.mlp.";
inline const std::string kMoe = "model.layers.1.mlp.";
inline const std::string kAttention = "model.layers.0.self_attn.";
inline const std::string kMtp = "model.layers.2.";

/// A tiny V3.2 as `ingot synth` writes it.
EditableCheckpoint make_synthetic(void (*edit)(formats::SynthOptions&) = nullptr);
/// The same with every weight BF16.
EditableCheckpoint make_plain();

/// How the weights of a checkpoint are spelled.
struct Spelled {
  std::string dialect;
  formats::SchemeId scheme{};
  formats::Activations activations{};
};

/// Puts the parts of `name` (`X.weight`, of which a plain tensor must be there) in place of it:
/// zero codes and plausible scales. Written from the description of the formats, not from our
/// tables.
void put_spelled(EditableCheckpoint& checkpoint, const std::string& name, const Spelled& spelled);

/// The weights that make_spelled() quantizes: the MLPs for 4-bit and MX schemes, else all that a
/// release quantizes but indexer.wk, and but kv_b_proj in modelslim.
std::vector<std::string> spelled_weights(const EditableCheckpoint& plain, const Spelled& spelled);

/// A tiny V3.2 in a dialect, sound in every respect: weights, config.json and description.
EditableCheckpoint make_spelled(const Spelled& spelled,
                                void (*edit)(formats::SynthOptions&) = nullptr);

/// A tiny V3.2 in INT4 of compressed-tensors with one scale a row; the weights whose names contain
/// one of `grouped` have groups of 32.
EditableCheckpoint make_row_scaled(const std::vector<std::string>& grouped);

/// Writes quant_model_description.json again, from the tensors that are there: those that belong to
/// a weight of `spelled_weights` are of `type`.
void describe_modelslim(EditableCheckpoint& checkpoint, const std::vector<std::string>& weights,
                        const std::string& type);

}  // namespace ingot::testing
