#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "formats/base/hash.h"
#include "formats/json/json.h"
#include "formats/records/slicing_record.h"
#include "tests/shard/naive_slices.h"

namespace ingot::testing {

/// Widths of a small decoder of family deepseek_v3: a layer with a dense MLP, one with four experts
/// and a shared one.
struct ModelWidths {
  std::uint64_t heads = 4, nope = 2, rope = 2, v = 2;
  std::uint64_t intermediate = 8, moe_intermediate = 4;
};

/// A model in memory, by the names of the hub.
struct SlicedModel {
  formats::Json config;
  std::map<std::string, NaiveTensor> tensors;
};

/// Random BF16 weights.
SlicedModel small_model(const ModelWidths& widths = {});

/// Makes FP8 weights with a scale per 128 x 128 block of all that an FP8 release has so.
void make_fp8(SlicedModel& model);

/// How the ranks of a test are made.
struct RankOptions {
  std::uint32_t tp = 1, ep = 1, pp = 1;
  Hash128 job = {1, 2};
  bool links = true;    ///< equal files are hard links
  bool has_top = true;  ///< the manifest above the ranks
};

/// Writes `model` cut for ranks, each tensor by its name and element by element: embedding, head,
/// q_b, kv_b, gate and up by rows, o and down by columns, experts by number, everything else whole.
/// Tensors of the first layer are recorded as at home in "first.safetensors", others in
/// "second.safetensors".
void write_ranks(const SlicedModel& model, const RankOptions& options,
                 const std::filesystem::path& top);

/// The manifest above the ranks, from those that are there.
void write_top(const RankOptions& options, const std::filesystem::path& top);

/// The same cut by DeepSeek's rule: experts by number, everything else along the named dimension,
/// in model{i}-mp{N}.safetensors. With `manifest`, ours lies beside them.
void write_native(const SlicedModel& model, std::uint32_t n_shards, bool manifest,
                  const std::filesystem::path& directory);

/// `layers.1.ffn.experts.0.w1.weight` for `model.layers.1.mlp.experts.0.gate_proj.weight`.
std::string by_deepseek(std::string name);

std::string rank_name(std::uint32_t rank, std::uint32_t n_ranks);

}  // namespace ingot::testing
