#include "inference/cache/kv_cache.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/checkpoint/stored_caches.h"
#include "formats/container/bfloat16.h"
#include "inference/kernels/quantized/quantized_matmul.h"
#include "inference/weights/held_bytes.h"
#include "quantize/scheme.h"

namespace ingot::inference {

using formats::SchemeId;

namespace {

struct FormatRow {
  KvFormat format;
  std::string_view name;
  /// Scheme of a page as a matrix of tokens; a block is one scale group of one token.
  SchemeId scheme;
};
constexpr std::array kFormatRows = {
    FormatRow{KvFormat::kF32, "f32", SchemeId::kF32},
    FormatRow{KvFormat::kBf16, "bf16", SchemeId::kBf16},
    FormatRow{KvFormat::kFp8, "fp8", SchemeId::kFp8Block},
    FormatRow{KvFormat::kInt8, "int8", SchemeId::kInt8Block},
    FormatRow{KvFormat::kFp8Static, "fp8-static", SchemeId::kFp8Block}};
constexpr std::array kCacheFormats = {kFormatRows[0].format, kFormatRows[1].format,
                                      kFormatRows[2].format, kFormatRows[3].format,
                                      kFormatRows[4].format};

static_assert(formats::rows_match_enum(kFormatRows, &FormatRow::format, KvFormat::kFp8Static));

/// Sizes of one page of a stream, in bytes: the codes of its vectors, one after the other, and then
/// their scales, likewise.
struct PageForm {
  std::size_t code_bytes = 0;  ///< per vector
  std::size_t groups = 0;      ///< scales per vector; 0 for plain formats
  std::size_t vectors = KvCache::kPageTokens;
  [[nodiscard]] std::size_t vector_bytes() const { return code_bytes + groups * sizeof(float); }
  [[nodiscard]] std::size_t page_bytes() const { return vectors * vector_bytes(); }
};

/// The place of a vector: in the page of its last token, after those that end in the page before
/// it.
struct Place {
  std::size_t page, vector;
};

Place place_of(const CacheStream& stream, std::size_t number) {
  const std::size_t last = number * stream.every + stream.every - 1;
  return {last / KvCache::kPageTokens, last % KvCache::kPageTokens / stream.every};
}

bool has_scales(const CacheStream& stream) {
  return stream.format == KvFormat::kFp8 || stream.format == KvFormat::kInt8;
}

std::size_t group_width(const CacheStream& stream) {
  return stream.group == 0 ? stream.width : std::min(stream.group, stream.width);
}

SchemeId scheme_of(KvFormat format) {
  return kFormatRows.at(static_cast<std::size_t>(format)).scheme;
}

std::size_t scales_at(const PageForm& form, std::size_t vector) {
  return form.vectors * form.code_bytes + vector * form.groups * sizeof(float);
}

PageForm page_form(const CacheStream& stream) {
  INGOT_CHECK(stream.every > 0);
  const formats::SchemeFacts& facts = formats::scheme_facts(scheme_of(stream.format));
  PageForm form{.code_bytes = stream.width * facts.code_bits / 8,
                .vectors = ceil_div(KvCache::kPageTokens, stream.every)};
  if (has_scales(stream) && stream.width > 0)
    form.groups = ceil_div(stream.width, group_width(stream));
  return form;
}

/// Holds one vector (width of the stream) at place `vector` of a page.
void encode_vector(const CacheStream& stream, std::byte* page, std::size_t vector,
                   std::span<const float> values) {
  const PageForm form = page_form(stream);
  INGOT_CHECK(values.size() == stream.width && vector < form.vectors);
  if (values.empty()) return;
  std::byte* codes = page + vector * form.code_bytes;
  if (stream.format == KvFormat::kF32) {
    std::memcpy(codes, values.data(), form.code_bytes);
    return;
  }
  if (stream.format == KvFormat::kBf16) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint16_t word = formats::bf16_from_float(values[i]);
      std::memcpy(codes + 2 * i, &word, sizeof word);
    }
    return;
  }
  if (stream.format == KvFormat::kFp8Static) {
    const std::size_t width = group_width(stream);
    for (std::size_t group = 0, first = 0; first < values.size(); ++group, first += width) {
      const auto own = values.subspan(first, std::min(width, values.size() - first));
      const QuantizedRows rows = quantize_activations(
          {.data = own.data(), .rows = 1, .cols = own.size(), .stride = own.size()},
          {.code = formats::CodeKind::kE4m3, .input_scale = stream.fixed[group]});
      std::memcpy(codes + first, rows.codes.data(), own.size());
    }
    return;
  }
  const bool is_fp8 = stream.format == KvFormat::kFp8;
  const QuantizedRows rows = quantize_activations(
      {.data = values.data(), .rows = 1, .cols = values.size(), .stride = values.size()},
      {.code = is_fp8 ? formats::CodeKind::kE4m3 : formats::CodeKind::kInt8,
       .group = group_width(stream),
       .power_of_two = is_fp8 && stream.power_of_two});
  INGOT_CHECK(rows.codes.size() == form.code_bytes && rows.scales.size() == form.groups);
  std::memcpy(codes, rows.codes.data(), form.code_bytes);
  std::memcpy(page + scales_at(form, vector), rows.scales.data(), form.groups * sizeof(float));
}

/// Vectors [first, first + n) of a page, row-major into `out`. A code times its scale is rounded
/// once to FP32.
void decode_vectors(const CacheStream& stream, const std::byte* page, std::size_t first,
                    std::size_t n, float* out) {
  const PageForm form = page_form(stream);
  INGOT_CHECK(first <= form.vectors && n <= form.vectors - first);
  if (n == 0 || stream.width == 0) return;
  const std::byte* codes = page + first * form.code_bytes;
  if (stream.format == KvFormat::kF32) {
    std::memcpy(out, codes, n * form.code_bytes);
    return;
  }
  quantize::CodedMatrix rows{.scheme = scheme_of(stream.format),
                             .codes = codes,
                             .rows = n,
                             .cols = stream.width,
                             .row_bytes = form.code_bytes};
  if (has_scales(stream)) {
    const std::byte* scales = page + scales_at(form, first);
    rows.scales = {reinterpret_cast<const float*>(scales), n * form.groups};
    rows.scale_cols = form.groups;
    rows.block_rows = 1;
    rows.block_cols = group_width(stream);
  } else if (stream.format == KvFormat::kFp8Static) {
    rows.scales = stream.fixed;
    rows.scale_cols = stream.fixed.size();
    rows.block_rows = n;
    rows.block_cols = group_width(stream);
  }
  quantize::decode(rows, {.data = out, .rows = n, .cols = stream.width, .stride = stream.width});
}

void require_fixed_scales(const CacheStream& stream) {
  if (stream.format != KvFormat::kFp8Static || stream.width == 0) return;
  if (stream.fixed.size() == ceil_div(stream.width, group_width(stream))) return;
  throw Error(
      ErrorCode::kUnsupported,
      "a layer has a cache of a kind that no engine gives static scales (use another format "
      "of the cache than fp8-static)");
}

}  // namespace

std::vector<StaticScales> read_static_scales(const formats::Checkpoint& source) {
  constexpr const char* kRemedy =
      "(ingot convert --kv-scales writes them; --kv-cache fp8 makes scales of its own)";
  const auto stored = formats::read_cache_scales(source);
  if (stored.empty())
    throw Error(ErrorCode::kMissingTensor,
                "has no scales of keys and values, which --kv-cache fp8-static needs {}", kRemedy)
        .in_directory(source.directory().string());
  const std::uint64_t n_main = source.config().num_hidden_layers;
  std::vector<StaticScales> scales(n_main + source.config().num_nextn_predict_layers);
  std::vector<std::string> without;
  for (const formats::CachedModule& module : formats::cached_modules(source)) {
    if (!module.layer || *module.layer >= scales.size()) continue;
    const auto own = stored.find(module.name);
    if (own == stored.end() || own->second.keys.empty()) {
      if (*module.layer < n_main) without.push_back(module.name);
      scales[*module.layer] = {.keys = {1}, .values = {1}};
      continue;
    }
    if (own->second.has_offsets)
      throw Error(ErrorCode::kUnsupported,
                  "has a bias next to the scales of its cache, which is not applied here (use "
                  "another --kv-cache)")
          .in_tensor(module.name);
    scales[*module.layer] = {.keys = own->second.keys, .values = own->second.values};
  }
  if (!without.empty())
    throw Error(ErrorCode::kMissingTensor,
                "{} attention modules have no scales of their cache {}: {}", without.size(),
                kRemedy, without.front())
        .in_directory(source.directory().string());
  return scales;
}

std::span<const KvFormat> kv_formats() {
  return kCacheFormats;
}

std::string_view kv_format_name(KvFormat format) {
  return kFormatRows.at(static_cast<std::size_t>(format)).name;
}

std::optional<KvFormat> find_kv_format(std::string_view name) {
  for (const FormatRow& row : kFormatRows) {
    if (row.name == name) return row.format;
  }
  return std::nullopt;
}

KvCache::KvCache(std::vector<std::vector<CacheStream>> layers, std::size_t capacity)
    : layers_(std::move(layers)), state_offsets_{0}, max_slabs_(ceil_div(capacity, kPageTokens)) {
  for (const std::vector<CacheStream>& streams : layers_) {
    auto& offsets = offsets_.emplace_back();
    std::size_t& state_end = state_offsets_.emplace_back(state_offsets_.back());
    for (const CacheStream& stream : streams) {
      offsets.push_back(slab_bytes_);
      if (stream.is_state) {
        INGOT_CHECK(state_end == state_offsets_[state_offsets_.size() - 2]);
        state_end += stream.width;
      } else {
        require_fixed_scales(stream);
        slab_bytes_ += page_form(stream).page_bytes();
      }
    }
  }
}

const KvCache::Sequence& KvCache::living(SequenceId id) const {
  INGOT_CHECK(id < sequences_.size() && sequences_[id].lives);
  return sequences_[id];
}

KvCache::Sequence& KvCache::living(SequenceId id) {
  return const_cast<Sequence&>(std::as_const(*this).living(id));
}

std::size_t KvCache::take_slab() {
  if (free_slabs_.empty()) {
    slabs_.emplace_back(slab_bytes_);
    return slabs_.size() - 1;
  }
  const std::size_t slab = free_slabs_.back();
  free_slabs_.pop_back();
  return slab;
}

void KvCache::shrink(Sequence& sequence, std::size_t n_slabs) {
  while (sequence.slabs.size() > n_slabs) {
    free_slabs_.push_back(sequence.slabs.back());
    sequence.slabs.pop_back();
  }
}

std::byte* KvCache::bytes_of(SequenceId id, std::size_t layer, std::size_t stream,
                             std::size_t number) const {
  const Sequence& sequence = living(id);
  INGOT_CHECK(layer < layers_.size() && stream < layers_[layer].size());
  INGOT_CHECK(number < sequence.slabs.size() && !layers_[layer][stream].is_state);
  return slabs_[sequence.slabs[number]].data() + offsets_[layer][stream];
}

std::uint64_t KvCache::bytes_per_token(const std::vector<std::vector<CacheStream>>& layers) {
  std::uint64_t page_bytes = 0;
  for (const std::vector<CacheStream>& streams : layers) {
    for (const CacheStream& stream : streams) {
      if (!stream.is_state) page_bytes += page_form(stream).page_bytes();
    }
  }
  return ceil_div(page_bytes, std::uint64_t{kPageTokens});
}

std::uint64_t KvCache::bytes_per_sequence(const std::vector<std::vector<CacheStream>>& layers) {
  std::uint64_t n_bytes = 0;
  for (const std::vector<CacheStream>& streams : layers) {
    for (const CacheStream& stream : streams) {
      if (stream.is_state) n_bytes += stream.width * sizeof(float);
    }
  }
  return n_bytes;
}

SequenceId KvCache::add() {
  if (!free_ids_.empty()) {
    const SequenceId id = free_ids_.back();
    free_ids_.pop_back();
    sequences_[id].lives = true;
    return id;
  }
  sequences_.push_back({.lives = true});
  return narrow<SequenceId>(sequences_.size() - 1, "number of sequences");
}

void KvCache::reserve(SequenceId id, std::size_t n) {
  Sequence& sequence = living(id);
  const std::size_t needed = ceil_div(n, kPageTokens);
  const std::size_t held = sequence.slabs.size();
  const std::size_t free = max_slabs_ - slabs_used();
  if (needed > held && needed - held > free) {
    throw Error(ErrorCode::kLimit,
                "the cache has no room for {} tokens: {} more are needed for it, in pages of {}; "
                "{} of its {} tokens are taken, {} bytes each (run fewer or shorter sequences, or "
                "raise its capacity)",
                n, (needed - held) * kPageTokens, kPageTokens, slabs_used() * kPageTokens,
                max_slabs_ * kPageTokens, slab_bytes_ / kPageTokens);
  }
  try {
    sequence.slabs.reserve(needed);
    while (sequence.slabs.size() < needed) sequence.slabs.push_back(take_slab());
  } catch (...) {
    shrink(sequence, held);  // the system had no more memory
    throw;
  }
  sequence.length = std::max(sequence.length, n);
}

void KvCache::truncate(SequenceId id, std::size_t n) {
  Sequence& sequence = living(id);
  if (n >= sequence.length) return;
  sequence.length = n;
  shrink(sequence, ceil_div(n, kPageTokens));
}

void KvCache::free(SequenceId id) {
  truncate(id, 0);
  living(id).lives = false;
  free_ids_.push_back(id);
}

void KvCache::write(SequenceId id, std::size_t layer, std::size_t stream, std::size_t position,
                    std::span<const float> values) {
  INGOT_CHECK(layer < layers_.size() && stream < layers_[layer].size());
  const CacheStream& form = layers_[layer][stream];
  INGOT_CHECK(position < length(id) / form.every);
  const Place place = place_of(form, position);
  encode_vector(form, bytes_of(id, layer, stream, place.page), place.vector, values);
}

const float* KvCache::page(SequenceId id, std::size_t layer, std::size_t stream, std::size_t page,
                           std::size_t n, std::span<float> scratch) const {
  const std::byte* bytes = bytes_of(id, layer, stream, page);
  INGOT_CHECK(n <= kPageTokens && page * kPageTokens + n <= length(id));
  const CacheStream& form = layers_[layer][stream];
  INGOT_CHECK(form.every == 1);
  if (form.format == KvFormat::kF32) return reinterpret_cast<const float*>(bytes);
  INGOT_CHECK(scratch.size() >= n * form.width);
  decode_vectors(form, bytes, 0, n, scratch.data());
  return scratch.data();
}

void KvCache::gather(SequenceId id, std::size_t layer, std::size_t stream,
                     std::span<const std::uint32_t> positions, std::span<float> out) const {
  if (positions.empty()) return;
  const CacheStream& form = streams(layer).at(stream);
  const std::size_t n = length(id) / form.every;
  INGOT_CHECK(out.size() >= positions.size() * form.width);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    INGOT_CHECK(positions[i] < n);
    const Place place = place_of(form, positions[i]);
    decode_vectors(form, bytes_of(id, layer, stream, place.page), place.vector, 1,
                   out.data() + i * form.width);
  }
}

std::span<float> KvCache::state(SequenceId id, std::size_t layer, std::size_t from,
                                std::size_t to) {
  Sequence& sequence = living(id);
  INGOT_CHECK(layer < layers_.size() && from <= to && to <= sequence.length);
  if (sequence.states.size() == 0)
    sequence.states = HeldBytes(state_offsets_.back() * sizeof(float));
  sequence.seen.resize(layers_.size());
  const std::size_t first = state_offsets_[layer], n = state_offsets_[layer + 1] - first;
  const std::span state(reinterpret_cast<float*>(sequence.states.data()) + first, n);
  if (from == 0) {
    std::ranges::fill(state, 0.0F);
  } else if (sequence.seen[layer] != from) {
    throw Error(ErrorCode::kUnsupported,
                "the state of layer {} has seen {} tokens of its sequence and cannot go on from {} "
                "(begin the sequence again)",
                layer, sequence.seen[layer], from);
  }
  sequence.seen[layer] = to;
  return state;
}

}  // namespace ingot::inference
