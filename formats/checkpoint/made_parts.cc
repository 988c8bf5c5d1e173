#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/pattern.h"
#include "formats/checkpoint/passes.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/dialect_words.h"
#include "formats/json/json.h"
#include "formats/places/nest.h"
#include "formats/storage/block_scales.h"

// Forms of single makers that no scheme has, seen as parts that schemes read. The bytes of such a
// part are made of stored ones as they are read. A form is a row of kMadeForms.

namespace ingot::formats {
namespace {

/// A stored tensor, and its number in the source.
struct Origin {
  std::uint32_t index = 0;
  StoredTensor tensor;
};

/// Fills `out` with bytes of a made part, from `offset` on; `bytes` are those of the origins.
using MakeBytes =
    std::function<void(const StoredBytes& bytes, std::uint64_t offset, std::span<std::byte> out)>;

/// A tensor of the view that no file has.
struct MadePart {
  std::string name;
  DType dtype{};
  Shape shape;
  MakeBytes make;
};

class MadeBytes final : public ForwardedBytes {
 public:
  /// A tensor of the view; without `make` it is the origin.
  struct Seen {
    Origin origin;
    MakeBytes make;
  };

  MadeBytes(std::unique_ptr<StoredBytes> bytes, std::vector<Seen> seen)
      : ForwardedBytes(std::move(bytes)), seen_(std::move(seen)) {}

  [[nodiscard]] bool is_whole() const override { return false; }
  [[nodiscard]] std::string home_file(std::uint32_t index) const override {
    const Origin& origin = seen_.at(index).origin;
    return bytes_->is_whole() ? files()[origin.tensor.file].name : bytes_->home_file(origin.index);
  }

  void read(std::uint32_t index, const StoredTensor& /*tensor*/, std::uint64_t offset,
            std::span<std::byte> out) const override {
    if (out.empty()) return;
    const Seen& seen = seen_.at(index);
    if (seen.make) return seen.make(*bytes_, offset, out);
    bytes_->read(seen.origin.index, seen.origin.tensor, offset, out);
  }

 private:
  const std::vector<Seen> seen_;
};

/// The view of a draft while forms are looked for.
class Making {
 public:
  explicit Making(Draft& draft) : draft_(draft), made_(draft.stored.size()) {}

  [[nodiscard]] Draft& draft() { return draft_; }
  /// The stored tensor of this name; null: there is none.
  [[nodiscard]] const StoredTensor* find(const std::string& name) {
    const auto found = draft_.names().find(name);
    return found ? &draft_.stored[*found] : nullptr;
  }
  [[nodiscard]] Origin origin(const StoredTensor& stored) const {
    return {number_of(stored), stored};
  }
  /// Shows these parts in the place of a stored tensor; without any it is left out.
  void replace(const StoredTensor& stored, std::vector<MadePart> parts) {
    made_[number_of(stored)] = std::move(parts);
  }
  /// Notes a weight whose codes the files have in another order.
  void note_order(std::string weight) { draft_.reordered.insert(std::move(weight)); }

  void finish() {
    if (std::ranges::none_of(made_, [](const auto& parts) { return parts.has_value(); })) return;
    std::vector<StoredTensor> view;
    std::vector<MadeBytes::Seen> seen;
    for (const StoredTensor& stored : draft_.stored) {
      const Origin from = origin(stored);
      if (!made_[from.index]) {
        view.push_back(stored);
        seen.push_back({from, nullptr});
        continue;
      }
      for (MadePart& part : *made_[from.index]) {
        const StoredTensor* other = find(part.name);
        if (other != nullptr && !made_[number_of(*other)])
          draft_.fault(*other, ErrorCode::kDuplicate,
                       "is here as well as '{}', of which it is made (which one is meant? remove "
                       "the other)",
                       stored.name);
        StoredTensor& tensor = view.emplace_back(stored);
        tensor.name = std::move(part.name);
        tensor.dtype = part.dtype;
        tensor.shape = std::move(part.shape);
        tensor.n_bytes = byte_count(tensor.dtype, tensor.shape).value();
        seen.push_back({from, std::move(part.make)});
      }
    }
    draft_.forget_names();
    draft_.stored = std::move(view);
    draft_.bytes = std::make_unique<MadeBytes>(std::move(draft_.bytes), std::move(seen));
  }

 private:
  [[nodiscard]] std::uint32_t number_of(const StoredTensor& stored) const {
    return static_cast<std::uint32_t>(&stored - draft_.stored.data());
  }

  Draft& draft_;
  std::vector<std::optional<std::vector<MadePart>>> made_;  // by stored tensor
};

std::vector<std::byte> whole(const StoredBytes& bytes, const Origin& from) {
  std::vector<std::byte> all(from.tensor.n_bytes);
  bytes.read(from.index, from.tensor, 0, all);
  return all;
}

std::vector<float> numbers(const StoredBytes& bytes, const Origin& from) {
  std::vector<float> values(element_count(from.tensor.shape).value_or(0));
  widen_scales(from.tensor.dtype, whole(bytes, from), std::nullopt, values);
  return values;
}

/// The origin under another name.
MadePart renamed(Origin from, std::string name) {
  const DType dtype = from.tensor.dtype;
  Shape shape = from.tensor.shape;
  return {std::move(name), dtype, std::move(shape),
          [from = std::move(from)](const StoredBytes& bytes, std::uint64_t offset,
                                   std::span<std::byte> out) {
            bytes.read(from.index, from.tensor, offset, out);
          }};
}

/// True if a tensor has F32 numbers, as many as the shape says; reports others.
bool has_numbers(Draft& draft, const StoredTensor& tensor, const Shape& shape,
                 std::string_view meaning) {
  if (tensor.dtype == DType::kF32 && tensor.shape == shape) return true;
  draft.fault(tensor, ErrorCode::kShapeMismatch, "is {} in {} of shape {}, must be F32 of shape {}",
              meaning, dtype_name(tensor.dtype), shape_text(tensor.shape), shape_text(shape));
  return false;
}

// Thinking Machines: NVFP4 whose global scale is a quotient.

constexpr std::string_view kDenominator = "_outer_scale_denominator", kAmax = "_amax",
                           kGlobal = "_scale_2";

void divide_globals(Making& making) {
  Draft& draft = making.draft();
  for (const StoredTensor& denominator : draft.stored) {
    if (!denominator.name.ends_with(kDenominator)) continue;
    const std::string stem =
        denominator.name.substr(0, denominator.name.size() - kDenominator.size());
    const StoredTensor* amax = making.find(stem + std::string(kAmax));
    const StoredTensor* codes = making.find(stem);
    if (amax == nullptr || codes == nullptr || codes->shape.empty()) continue;
    const Shape each = {codes->shape.front()};
    const bool is_one = denominator.shape == Shape{1};
    if (!has_numbers(draft, *amax, each, "the largest values of experts") ||
        !has_numbers(draft, denominator, is_one ? Shape{1} : each, "a denominator of scales"))
      continue;
    const auto quotients = [over = making.origin(*amax), under = making.origin(denominator)](
                               const StoredBytes& bytes, std::uint64_t offset,
                               std::span<std::byte> out) {
      std::vector<float> values = numbers(bytes, over);
      const std::vector<float> divisors = numbers(bytes, under);
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] /= divisors[divisors.size() == 1 ? 0 : i];
      std::memcpy(out.data(), std::as_bytes(std::span(values)).subspan(offset).data(), out.size());
    };
    making.replace(*amax, {{stem + std::string(kGlobal), DType::kF32, each, quotients}});
    making.replace(denominator, {});
  }
}

// MiMo: q, k and v in one matrix, and in FP8 in chunks of some heads of each.

constexpr std::string_view kFusedProjection = ".self_attn.qkv_proj.weight",
                           kMtpLayer = "model.mtp.";

/// Rows of q, k and v in each of equal chunks.
struct Chunks {
  std::uint64_t n = 1;
  std::array<std::uint64_t, 3> rows = {};
  [[nodiscard]] std::uint64_t rows_of_all() const { return rows[0] + rows[1] + rows[2]; }
};

/// A number of the config, or of another key where it lacks this one; 0 for none and for those that
/// no model has.
std::uint64_t side_at(const Json& config, const char* key, const char* other = "") {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 20;
  const Json& own = json_member(config, key);
  const Json& said = own.is_null() ? json_member(config, other) : own;
  const std::uint64_t side = said.is_number_unsigned() ? said.get<std::uint64_t>() : 0;
  return side > kMost ? 0 : side;
}

bool is_sliding(const Json& config, std::string_view name) {
  if (name.starts_with(kMtpLayer)) return true;
  constexpr std::string_view kLayers = "layers.";
  const Json& pattern = json_member(config, "hybrid_layer_pattern");
  const std::size_t at = name.find(kLayers);
  if (at == std::string_view::npos || !pattern.is_array()) return false;
  std::size_t layer = 0;
  for (std::size_t i = at + kLayers.size(); i < name.size() && name[i] >= '0' && name[i] <= '9';
       ++i)
    layer = std::min(layer * 10 + static_cast<std::size_t>(name[i] - '0'), pattern.size());
  return layer < pattern.size() && pattern[layer] == 1;
}

/// The chunks of a layer's matrix; nullopt where the config gives none of whole heads.
std::optional<Chunks> chunks_of(const Json& config, std::string_view name, bool is_chunked) {
  const bool slides = is_sliding(config, name);
  const auto side = [&](const char* of_sliding, const char* of_full) {
    return slides ? side_at(config, of_sliding, of_full) : side_at(config, of_full);
  };
  const std::uint64_t heads = side("swa_num_attention_heads", "num_attention_heads"),
                      kv_heads = side("swa_num_key_value_heads", "num_key_value_heads"),
                      width = side("swa_head_dim", "head_dim"),
                      value_width = side("swa_v_head_dim", "v_head_dim"),
                      // All layers have the number of full ones.
      n = is_chunked ? side_at(config, "num_key_value_heads") : 1;
  if (n == 0 || heads == 0 || kv_heads == 0 || heads % n != 0 || kv_heads % n != 0 || width == 0)
    return std::nullopt;
  return Chunks{.n = n,
                .rows = {heads / n * width, kv_heads / n * width,
                         kv_heads / n * (value_width == 0 ? width : value_width)}};
}

/// Rows [first, first + rows) of each chunk, one chunk after another.
MadePart rows_of_chunks(Origin from, std::string name, const Chunks& chunks, std::size_t which,
                        std::uint64_t first) {
  const std::uint64_t row_bytes = from.tensor.n_bytes / from.tensor.shape.front();
  const std::uint64_t rows = chunks.rows.at(which);
  const Nest nest(8, {{.n = chunks.n, .stride = chunks.rows_of_all() * row_bytes},
                      {.n = rows * row_bytes, .stride = 1}});
  const DType dtype = from.tensor.dtype;
  Shape shape = {chunks.n * rows, from.tensor.shape.back()};
  return {std::move(name), dtype, std::move(shape),
          [from = std::move(from), nest, skipped = first * row_bytes](
              const StoredBytes& bytes, std::uint64_t offset, std::span<std::byte> out) {
            nest.gather(offset, out,
                        [&](std::uint32_t, std::uint64_t at, std::span<std::byte> piece) {
                          bytes.read(from.index, from.tensor, skipped + at, piece);
                        });
          }};
}

/// The scales of such rows, repeated for each row: blocks may hold rows of k and of v.
MadePart scales_of_chunks(Origin from, std::string name, const Chunks& chunks, std::size_t which,
                          std::uint64_t first, std::uint64_t block_rows) {
  const std::uint64_t all = chunks.rows_of_all(), rows = chunks.rows.at(which);
  const std::uint64_t n_scales = from.tensor.shape.front(), cols = from.tensor.shape.back();
  // There are more rows of scales where the grid of blocks begins anew in each chunk.
  const bool begins_anew = n_scales == chunks.n * ceil_div(all, block_rows);
  return {std::move(name),
          DType::kF32,
          {chunks.n * rows, cols},
          [=, from = std::move(from)](const StoredBytes& bytes, std::uint64_t offset,
                                      std::span<std::byte> out) {
            const std::vector<float> scales = numbers(bytes, from);
            for (std::size_t i = 0; i < out.size(); ++i) {
              const std::uint64_t at = (offset + i) / sizeof(float);
              const std::uint64_t row = at / cols, chunk = row / rows, within = first + row % rows;
              const std::uint64_t of_scales =
                  begins_anew ? chunk * ceil_div(all, block_rows) + within / block_rows
                              : (chunk * all + within) / block_rows;
              out[i] = std::as_bytes(std::span(&scales[of_scales * cols + at % cols],
                                               1))[(offset + i) % sizeof(float)];
            }
          }};
}

void take_projections_apart(Making& making) {
  Draft& draft = making.draft();
  const Json& config = *draft.config.raw;
  if (text_at(config, kProjectionLayout) != kFusedProjections) return;
  for (const StoredTensor& fused : draft.stored) {
    if (!fused.name.ends_with(kFusedProjection) || fused.shape.size() != 2) continue;
    const StoredTensor* scale = making.find(fused.name + "_scale_inv");
    const bool is_coded = fused.dtype == DType::kF8E4M3 && scale != nullptr;
    const auto chunks = chunks_of(config, fused.name, is_coded);
    const auto& [block_rows, block_cols] = draft.block;
    bool fits = chunks && fused.shape[0] == chunks->n * chunks->rows_of_all();
    if (fits && is_coded) {
      const std::uint64_t all = chunks->rows_of_all();
      fits = scale->shape.size() == 2 && block_rows > 0 && block_cols > 0 &&
             (scale->shape[0] == chunks->n * ceil_div(all, block_rows) ||
              scale->shape[0] == ceil_div(fused.shape[0], block_rows)) &&
             scale->shape[1] == ceil_div(fused.shape[1], block_cols) &&
             scheme_facts(SchemeId::kFp8Block).scales.has(scale->dtype);
    }
    if (!fits) {
      draft.fault(fused, ErrorCode::kShapeMismatch,
                  "has shape {}{}, and {} {} says that it is q, k and v in chunks of whole heads "
                  "(num_key_value_heads of them in FP8): the heads of config.json make none (is "
                  "the config of these weights?)",
                  shape_text(fused.shape),
                  scale == nullptr ? "" : fmt::format(", scales {}", shape_text(scale->shape)),
                  kProjectionLayout, kFusedProjections);
      continue;
    }
    std::vector<MadePart> weights, scales;
    const std::string stem = fused.name.substr(0, fused.name.size() - kFusedProjection.size());
    std::uint64_t first = 0;
    for (std::size_t which = 0; which < 3; ++which) {
      constexpr std::array kNames = {"q", "k", "v"};
      std::string name = fmt::format("{}.self_attn.{}_proj.weight", stem, kNames.at(which));
      if (is_coded) {
        scales.push_back(scales_of_chunks(making.origin(*scale), name + "_scale_inv", *chunks,
                                          which, first, block_rows));
        making.note_order(name);
      }
      weights.push_back(
          rows_of_chunks(making.origin(fused), std::move(name), *chunks, which, first));
      first += chunks->rows.at(which);
    }
    making.replace(fused, std::move(weights));
    if (is_coded) making.replace(*scale, std::move(scales));
  }
}

constexpr std::uint64_t kCodesOfWord = 8;  // of INT4

/// The parts of INT4 codes [rows, cols], of which `make` makes the words.
std::vector<MadePart> packed_parts(const std::string& module, std::uint64_t rows,
                                   std::uint64_t cols, MakeBytes make) {
  const std::array sides = {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols)};
  return {{module + ".weight_packed", DType::kI32, {rows, cols / kCodesOfWord}, std::move(make)},
          {module + ".weight_shape",
           DType::kI64,
           {sides.size()},
           [sides](const StoredBytes&, std::uint64_t offset, std::span<std::byte> out) {
             std::memcpy(out.data(), std::as_bytes(std::span(sides)).subspan(offset).data(),
                         out.size());
           }}};
}

// Google's Gemma: integers of 2, 4 and 8 bits with a scale per row, by the names of modules.

struct GemmaScale {
  std::string_view suffix;  ///< ending of its name in the files
  std::string_view part;    ///< ending of the part as which it is seen; empty: it is left out
};
constexpr std::array kGemmaScales = {GemmaScale{".input_activation_scale", ".input_scale"},
                                     GemmaScale{".output_activation_scale", ".output_scale"},
                                     GemmaScale{".k_cache_scale", ""},
                                     GemmaScale{".v_cache_scale", ""}};

/// The bits of each module's codes, as the config says.
class GemmaBits {
 public:
  /// Throws kUnsupported for expressions that are none.
  explicit GemmaBits(const Json& block) : bits_(bits_in(block)) {
    constexpr std::size_t kMostEntries = 4096;
    const Json& modules = json_member(block, "module_quant_configs");
    if (!modules.is_object()) return;
    if (modules.size() > kMostEntries)
      throw unsupported(fmt::format("has {} entries, more than {}", modules.size(), kMostEntries));
    for (const auto& [expression, said] : modules.items()) {
      try {
        static_cast<void>(Pattern(fmt::format("re:{}", expression)));
        // transformers searches the whole name.
        entries_.emplace_back(Pattern(fmt::format("re:.*?(?:{})", expression)), bits_in(said));
      } catch (const Error& error) {
        throw unsupported(
            fmt::format("has '{}', which is no expression: {}", expression, error.message()));
      }
    }
  }

  /// 0: the config does not say.
  [[nodiscard]] std::uint64_t of(std::string_view module) const {
    const auto entry =
        std::ranges::find_if(entries_, [&](const auto& at) { return at.first.matches(module); });
    return entry == entries_.end() ? bits_ : entry->second;
  }

 private:
  static std::uint64_t bits_in(const Json& owner) {
    const Json& bits = json_member(owner, "num_bits");
    return bits.is_number_unsigned() ? bits.get<std::uint64_t>() : 0;
  }
  static Error unsupported(std::string_view fact) {
    return Error(ErrorCode::kUnsupported, "quantization_config.module_quant_configs {}", fact)
        .in_file("config.json");
  }

  std::uint64_t bits_;
  std::vector<std::pair<Pattern, std::uint64_t>> entries_;
};

/// Packed codes of a matrix, the lowest bits of a byte first, each less 2^(bits - 1).
struct PackedRows {
  Origin from;
  std::uint64_t bits = 4, cols = 0;

  [[nodiscard]] std::uint64_t rows() const { return from.tensor.shape.front(); }
  [[nodiscard]] std::uint64_t row_bytes() const { return from.tensor.shape.back(); }
  [[nodiscard]] unsigned middle() const { return 1U << (bits - 1); }
  [[nodiscard]] unsigned code(std::span<const std::byte> row, std::uint64_t col) const {
    const std::uint64_t bit = col * bits;
    return std::to_integer<unsigned>(row[bit / 8]) >> (bit % 8) & ((1U << bits) - 1);
  }

  /// Makes bytes of codes of 4 bits, of which 8 means zero, or of 8 bits, of which 0 does.
  void make(bool is_int4, const StoredBytes& bytes, std::uint64_t offset,
            std::span<std::byte> out) const {
    const std::uint64_t in_byte = is_int4 ? 2 : 1, width = cols / in_byte;
    const std::uint64_t first = offset / width, end = ceil_div(offset + out.size(), width);
    std::vector<std::byte> held((end - first) * row_bytes());
    bytes.read(from.index, from.tensor, first * row_bytes(), held);
    const unsigned bias = (is_int4 ? 8U : 0U) - middle();
    std::size_t at = 0;
    for (std::uint64_t row = first; row < end; ++row) {
      const auto codes = std::span<const std::byte>(held).subspan((row - first) * row_bytes());
      for (std::uint64_t i = row == first ? offset % width : 0; i < width && at < out.size(); ++i) {
        unsigned byte = code(codes, i * in_byte) + bias;
        if (is_int4) byte |= (code(codes, 2 * i + 1) + bias) << 4;
        out[at++] = static_cast<std::byte>(byte);
      }
    }
  }
};

/// True if another tensor has so many rows, or values: a matrix reads what a norm weighs or another
/// matrix makes.
bool is_a_width(std::uint64_t side, const Draft& draft) {
  return std::ranges::any_of(draft.stored, [&](const StoredTensor& stored) {
    return !stored.shape.empty() && stored.shape.size() <= 2 && stored.shape.front() == side;
  });
}

/// Columns of a matrix whose last bytes may be filled up: those that the family has; else all that
/// fit where these are a width of the checkpoint; else those but the last ones whose codes all mean
/// zero.
std::uint64_t width_of(const PackedRows& packed, std::string_view weight,
                       const NameGrammar& grammar, const Draft& draft) {
  const std::uint64_t in_byte = 8 / packed.bits;
  const std::uint64_t most = checked_mul(packed.row_bytes(), in_byte).value_or(0);
  if (const auto match = grammar.match(weight); match && !match->rule->any_shape) {
    const Shape shape = rule_shape(*match->rule, draft.config, match->layer);
    const bool is_it = shape.size() == 2 && shape.back() <= most && most - shape.back() < in_byte;
    return is_it ? shape.back() : most;
  }
  if (!draft.family->rules.empty() || most == 0 || is_a_width(most, draft)) return most;
  std::uint64_t n_filled = in_byte - 1;
  for (std::uint64_t row = 0; row < packed.rows() && n_filled > 0; ++row) {
    std::array<std::byte, 1> last;
    draft.bytes->read(packed.from.index, packed.from.tensor, (row + 1) * packed.row_bytes() - 1,
                      last);
    std::uint64_t n = 0;
    while (n < n_filled && packed.code(last, in_byte - 1 - n) == packed.middle()) ++n;
    n_filled = n;
  }
  return packed.rows() == 0 ? most : most - n_filled;
}

/// The parts of a weight of packed codes whose rows have `n_groups` scales each.
std::vector<MadePart> unpacked(const PackedRows& packed, const std::string& module,
                               std::uint64_t n_groups) {
  const std::uint64_t rows = packed.rows(), cols = packed.cols;
  if (cols % (n_groups * kCodesOfWord) != 0)
    return {{module + ".weight",
             DType::kI8,
             {rows, cols},
             [packed](const StoredBytes& bytes, std::uint64_t offset, std::span<std::byte> out) {
               packed.make(false, bytes, offset, out);
             }}};
  return packed_parts(
      module, rows, cols,
      [packed](const StoredBytes& bytes, std::uint64_t offset, std::span<std::byte> out) {
        packed.make(true, bytes, offset, out);
      });
}

/// True for a scale of activations that were calibrated; 0 says that they were not.
bool is_calibrated(const StoredTensor& scale, const Making& making, const Draft& draft) {
  if (scale.n_bytes == 0 || scale.n_bytes > 8) return true;  // a fault of its shape
  std::vector<std::byte> bytes(scale.n_bytes);
  const Origin from = making.origin(scale);
  draft.bytes->read(from.index, from.tensor, 0, bytes);
  return std::ranges::any_of(bytes, [](std::byte byte) { return byte != std::byte{0}; });
}

void unpack_gemma(Making& making) {
  Draft& draft = making.draft();
  if (method_of(draft.config) != kGemmaMethod) return;
  const GemmaBits said(quantization_block(draft.config));
  const NameGrammar grammar(*draft.family, draft.config);
  struct Names {
    std::string_view codes, scale;
  };
  constexpr std::array kNames = {Names{".weight", ".weight_scale"},
                                 Names{".embedding_quantized", ".embedding_scale"}};
  std::size_t n_unused = 0, n_filled = 0;
  for (const StoredTensor& stored : draft.stored) {
    const auto* const of_activations =
        std::ranges::find_if(kGemmaScales, [&](const GemmaScale& row) {
          return stored.name.ends_with(row.suffix);
        });
    if (of_activations != kGemmaScales.end()) {
      const std::string module =
          stored.name.substr(0, stored.name.size() - of_activations->suffix.size());
      const bool is_used = !of_activations->part.empty() &&
                           making.find(module + ".weight_scale") != nullptr &&
                           is_calibrated(stored, making, draft);
      making.replace(stored, {});
      if (is_used)
        making.replace(stored, {renamed(making.origin(stored),
                                        module + std::string(of_activations->part))});
      if (of_activations->part.empty()) ++n_unused;
      continue;
    }
    const auto* const names = std::ranges::find_if(
        kNames, [&](const Names& row) { return stored.name.ends_with(row.codes); });
    if (names == kNames.end()) continue;
    const std::string module = stored.name.substr(0, stored.name.size() - names->codes.size());
    const StoredTensor* scale = making.find(module + std::string(names->scale));
    if (scale == nullptr || stored.shape.size() != 2) continue;
    const std::uint64_t bits = said.of(module);
    const bool is_packed = stored.dtype == DType::kU8;
    const bool is_known = is_packed ? bits == 2 || bits == 4 : bits == 8;
    if (!is_known && (is_packed || stored.dtype == DType::kI8)) {
      draft.fault(stored, ErrorCode::kMismatch,
                  "is {}, but quantization_config says {} for it (U8 holds 2 or 4, I8 holds 8; is "
                  "the config of these weights?)",
                  dtype_name(stored.dtype),
                  bits == 0 ? "no num_bits" : fmt::format("num_bits {}", bits));
      continue;
    }
    if (!is_known) continue;
    PackedRows packed{.from = making.origin(stored), .bits = bits, .cols = stored.shape.back()};
    const std::string weight = module + ".weight";
    if (is_packed) packed.cols = width_of(packed, weight, grammar, draft);
    const std::uint64_t n_groups = scale->shape.size() == 2 ? scale->shape.back() : 0;
    if (n_groups == 0 || packed.cols == 0 || packed.cols % n_groups != 0 ||
        !has_numbers(draft, *scale, {stored.shape.front(), n_groups}, "a scale")) {
      draft.fault(*scale, ErrorCode::kShapeMismatch,
                  "has shape {}, {} rows of {} columns need equal groups", shape_text(scale->shape),
                  stored.shape.front(), packed.cols);
      continue;
    }
    const bool is_renamed = names->codes != kNames.front().codes;
    if (is_packed && packed.cols * bits % 8 != 0) ++n_filled;
    if (is_packed) making.replace(stored, unpacked(packed, module, n_groups));
    if (!is_packed && is_renamed) making.replace(stored, {renamed(packed.from, weight)});
    if (is_renamed) making.replace(*scale, {renamed(making.origin(*scale), weight + "_scale")});
    // Groups of INT8, which the config does not have.
    if (n_groups > 1) draft.block = {1, packed.cols / n_groups};
  }
  if (n_unused > 0)
    draft.remarks.push_back(fmt::format(
        "left out: {} scales of the key-value cache, which transformers does not read either",
        n_unused));
  if (n_filled > 0 && draft.family->rules.empty())
    draft.remarks.push_back(
        fmt::format("{} weights fill their last bytes with codes of zero, and are taken without "
                    "those columns: family generic does not know their widths, and no other tensor "
                    "has these",
                    n_filled));
}

// ModelOpt's W4A16_AWQ: two rows of signed codes in a byte.

/// Makes words of INT4 of bytes [rows / 2, cols], the even row in the lower half of each.
void make_of_row_pairs(const Origin& from, std::uint64_t cols, const StoredBytes& bytes,
                       std::uint64_t offset, std::span<std::byte> out) {
  const std::uint64_t width = cols / 2;
  std::vector<std::byte> pairs(cols);
  for (std::size_t at = 0; at < out.size();) {
    const std::uint64_t row = (offset + at) / width;
    bytes.read(from.index, from.tensor, row / 2 * cols, pairs);
    const auto code = [&](std::uint64_t col) {
      // Signed codes plus 8.
      return (std::to_integer<unsigned>(pairs[col]) >> (row % 2 * 4) & 15U) ^ 8U;
    };
    for (std::uint64_t i = (offset + at) % width; i < width && at < out.size(); ++i)
      out[at++] = static_cast<std::byte>(code(2 * i) | code(2 * i + 1) << 4);
  }
}

void unpack_row_pairs(Making& making) {
  Draft& draft = making.draft();
  if (draft.dialect == nullptr || draft.dialect != find_dialect("modelopt")) return;
  constexpr DTypeSet kScales = {DType::kF32, DType::kBf16, DType::kF16};
  for (const StoredTensor& stored : draft.stored) {
    if (!stored.name.ends_with(kWeightSuffix) || stored.dtype != DType::kU8 ||
        stored.shape.size() != 2)
      continue;
    const StoredTensor* scale = making.find(stored.name + "_scale");
    const auto rows = checked_mul(stored.shape[0], 2);
    const std::uint64_t cols = stored.shape[1];
    const bool is_pair = scale != nullptr && rows && scale->shape.size() == 2 &&
                         scale->shape[0] == *rows && kScales.has(scale->dtype);
    if (!is_pair || scale->shape[1] == 0 || cols % (scale->shape[1] * kCodesOfWord) != 0) continue;
    making.replace(stored, packed_parts(std::string(module_name(stored.name)), *rows, cols,
                                        [from = making.origin(stored), cols](
                                            const StoredBytes& bytes, std::uint64_t offset,
                                            std::span<std::byte> out) {
                                          make_of_row_pairs(from, cols, bytes, offset, out);
                                        }));
  }
}

constexpr std::array kMadeForms = {divide_globals, take_projections_apart, unpack_gemma,
                                   unpack_row_pairs};

}  // namespace

void make_parts(Draft& draft) {
  for (const auto see : kMadeForms) {
    Making making(draft);
    if (draft.attempt([&] { see(making); })) making.finish();
  }
}

}  // namespace ingot::formats
