#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "formats/base/hash.h"
#include "formats/json/json.h"
#include "formats/records/slicing_record.h"

namespace ingot::testing {

/// A tensor as bytes, sliced element by element: slow, and independent of the product.
struct NaiveTensor {
  std::string dtype;
  std::size_t element_bytes = 1;
  std::vector<std::uint64_t> shape;
  std::string data;

  [[nodiscard]] std::uint64_t count() const {
    std::uint64_t n = 1;
    for (const std::uint64_t dimension : shape) n *= dimension;
    return n;
  }
  [[nodiscard]] std::string element(const std::vector<std::uint64_t>& at) const {
    std::uint64_t index = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) index = index * shape[d] + at[d];
    return data.substr(index * element_bytes, element_bytes);
  }
};

inline NaiveTensor random_tensor(std::string dtype, std::size_t element_bytes,
                                 std::vector<std::uint64_t> shape, unsigned seed) {
  NaiveTensor tensor{std::move(dtype), element_bytes, std::move(shape), {}};
  std::mt19937 generator(seed);
  for (std::uint64_t i = 0; i < tensor.count() * element_bytes; ++i)
    tensor.data += static_cast<char>(generator() & 0xff);
  return tensor;
}

/// The tensor of `shape` whose element at each place is that of `pick` for this place.
template <typename Pick>
NaiveTensor build(const NaiveTensor& like, std::vector<std::uint64_t> shape, const Pick& pick) {
  NaiveTensor made{like.dtype, like.element_bytes, std::move(shape), {}};
  std::vector<std::uint64_t> at(made.shape.size(), 0);
  for (std::uint64_t i = 0; i < made.count(); ++i) {
    std::uint64_t rest = i;
    for (std::size_t d = made.shape.size(); d-- > 0; rest /= made.shape[d])
      at[d] = rest % made.shape[d];
    made.data += pick(at);
  }
  return made;
}

/// Slice `number` of `n` along `axis`, of each of the equal sections of that axis; of a stack, only
/// `experts` of the first dimension (empty: all).
inline NaiveTensor naive_slice(const NaiveTensor& whole, std::size_t axis, std::uint64_t number,
                               std::uint64_t n, std::uint64_t sections = 1,
                               const std::vector<std::uint32_t>& experts = {}) {
  std::vector<std::uint64_t> shape = whole.shape;
  shape[axis] /= n;
  if (!experts.empty()) shape[0] = experts.size();
  const std::uint64_t length = shape[axis] / sections;
  return build(whole, shape, [&](std::vector<std::uint64_t> at) {
    at[axis] =
        at[axis] / length * (whole.shape[axis] / sections) + number * length + at[axis] % length;
    if (!experts.empty()) at[0] = experts[at[0]];
    return whole.element(at);
  });
}

/// Extends every section of `axis` at its end by elements of 0xEE.
inline NaiveTensor naive_pad(const NaiveTensor& tensor, std::size_t axis, std::uint64_t padded,
                             std::uint64_t sections = 1) {
  std::vector<std::uint64_t> shape = tensor.shape;
  const std::uint64_t before = shape[axis] / sections;
  shape[axis] = padded;
  const std::uint64_t after = padded / sections;
  return build(tensor, shape, [&](std::vector<std::uint64_t> at) {
    const std::uint64_t section = at[axis] / after;
    const std::uint64_t within = at[axis] % after;
    if (within >= before) return std::string(tensor.element_bytes, '\xEE');
    at[axis] = section * before + within;
    return tensor.element(at);
  });
}

/// Every scale repeated for the smaller blocks that take the place of its own; the last row and
/// column may have fewer of them.
inline NaiveTensor naive_retile(const NaiveTensor& scales, std::array<std::uint64_t, 2> repeat,
                                std::uint64_t rows, std::uint64_t cols) {
  std::vector<std::uint64_t> shape = scales.shape;
  const std::size_t r = shape.size() - 2;
  shape[r] = rows;
  shape[r + 1] = cols;
  return build(scales, shape, [&](std::vector<std::uint64_t> at) {
    at[r] /= repeat[0];
    at[r + 1] /= repeat[1];
    return scales.element(at);
  });
}

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
/// in model{i}-mp{N}.safetensors. With `manifest`, also writes ours.
void write_native(const SlicedModel& model, std::uint32_t n_shards, bool manifest,
                  const std::filesystem::path& directory);

/// `layers.1.ffn.experts.0.w1.weight` for `model.layers.1.mlp.experts.0.gate_proj.weight`.
std::string by_deepseek(std::string name);

std::string rank_name(std::uint32_t rank, std::uint32_t n_ranks);

}  // namespace ingot::testing
