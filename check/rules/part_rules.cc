#include <cmath>
#include <set>

#include "check/rules/rule_input.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "formats/container/float8.h"
#include "formats/container/other_float8.h"
#include "formats/dialect/dialect.h"
#include "formats/dialect/dialect_words.h"
#include "formats/modules/module_list.h"
#include "formats/storage/block_scales.h"
#include "formats/storage/encoding.h"
#include "formats/storage/scale_shapes.h"

// Parts of quantized weights: codes, scales and other parts, in any dialect;
// and what the dialect's rows say of their names and shapes. What must be there, in which dtype and
// shape, the structure knows: its recognition of encodings has judged it (kByStructure).

namespace ingot::check {

using formats::Encoding;
using formats::PartShape;

namespace {

// DeepSeek's own names (`X.scale`) are in no row, and read by its own loader.
bool has_native_names(const RuleInput& input, const LogicalTensor& tensor) {
  const StoredTensor* scale = input.part_of(tensor, Part::kScale);
  return scale != nullptr && scale->name.ends_with(".scale");
}

bool has_config(const Checkpoint& checkpoint) {
  return checkpoint.config().quantization || checkpoint.description().is_object();
}

/// True if a weight is only read: as its encoding says, or in groups of INT8 that a dialect which
/// is only read has, as Gemma's embeddings.
bool is_seen_only(const RuleInput& input, const LogicalTensor& tensor) {
  return formats::is_seen_only(tensor.encoding) ||
         (input.dialect().is_read_only && tensor.encoding.scheme == SchemeId::kInt8Block);
}

/// True if rows of the dialect describe this quantized weight; one that is only read has no row.
/// Without config or description the dialect is a guess, which quantized.config-present reports.
bool is_judged(const RuleInput& input, const LogicalTensor& tensor) {
  return has_config(input.checkpoint) && is_quantized(tensor) && !has_native_names(input, tensor) &&
         !is_seen_only(input, tensor);
}

/// True if loaders of the dialect read all weights in this scheme.
bool is_held(const RuleInput& input, const LogicalTensor& tensor) {
  const SchemeId scheme = tensor.encoding.scheme;
  const formats::Family& family = input.checkpoint.family();
  return find_storage(input.dialect(), family, scheme) != nullptr &&
         !is_of_experts(input.dialect(), family, scheme);
}

/// The row of a part of this tensor; `wanted` receives the names that it could have.
const PartRow* part_row(const RuleInput& input, const LogicalTensor& tensor, Part part,
                        const std::string& stored, std::string& wanted) {
  for (const auto rows : formats::storage_rows(input.dialect(), input.checkpoint.family())) {
    for (const StorageRow& row : rows) {
      if (row.scheme != tensor.encoding.scheme) continue;
      for (const PartRow& part_row : row.parts) {
        if (part_row.part != part) continue;
        wanted = part_name(part_row, tensor.name);
        if (wanted == stored) return &part_row;
      }
    }
  }
  return nullptr;
}

void float8_kind(const RuleInput& input, const LogicalTensor& tensor) {
  input.report_kind(tensor, kUnsupported,
                    "is FP8 of another kind than F8_E4M3, which loaders do not read (ingot convert "
                    "writes other schemes)");
}

// The structure also takes exponents for a row or a tensor, and a spread grid in any dialect;
// loaders take exponents only for blocks and groups.
void fp8_scale_shape(const RuleInput& input) {
  const bool has_spread =
      std::ranges::any_of(input.dialect().storage, [](const formats::StorageRow& row) {
        return std::ranges::find(row.parts, formats::PartShape::kSpread,
                                 &formats::PartRow::shape) != row.parts.end();
      });
  for (const LogicalTensor& tensor : input.weights()) {
    if (!input.is_about(tensor.encoding.scheme)) continue;
    const StoredTensor& scale = *input.part_of(tensor, Part::kScale);
    if (scale.shape.size() > tensor.shape.size() && !has_spread) {
      input.report_at(scale, kShapeMismatch,
                      "has shape {}, which only ModelOpt has (--dialect {} writes another)",
                      formats::shape_text(scale.shape), input.dialect().name);
    }
    if (scale.dtype == DType::kF8E8M0 && facts_of(tensor).group_cols == 0)
      input.report_at(scale, kShapeMismatch,
                      "has shape {}, exponents are one per block or per 32 columns",
                      formats::shape_text(scale.shape));
  }
}

// I8 without a scale may be a parameter, a table of numbers; as the weight of a linear layer it is
// none.
void int8_scale_present(const RuleInput& input) {
  for (const LogicalTensor& tensor : input.weights()) {
    const StoredTensor& stored = input.codes_of(tensor);
    if (!is_coded(tensor.encoding.scheme) && stored.dtype == DType::kI8 &&
        stored.shape.size() > 1 && stored.name.ends_with(".weight"))
      input.report_at(stored, kMissingTensor,
                      "is I8 and has no scale (weight_scale, weight_scale_inv or deq_scale)");
  }
}

void group_columns(const RuleInput& input, const LogicalTensor& tensor) {
  const std::uint64_t columns = facts_of(tensor).group_cols;
  if (tensor.shape.back() % columns != 0)
    input.report_kind(tensor, kShapeMismatch,
                      "has {} columns, not a multiple of {} (leave it unquantized)",
                      tensor.shape.back(), columns);
}

enum class Sign : std::uint8_t { kPositive, kEither };

/// A scale below zero is as good where the codes reach farther on that side.
template <Sign sign>
void report_bad(const RuleInput& input, std::span<const StoredTensor* const> scales) {
  const auto is_odd = [](float scale) {
    return sign == Sign::kEither ? scale == 0 || !std::isfinite(scale) : is_bad_scale(scale);
  };
  input.report_odd(input.odd_scales(scales, is_odd), kBadScale, [](const OddValues& odd) {
    return fmt::format("{} of {} scales are {}, the first is {} at element {}", odd.n, odd.total,
                       sign == Sign::kEither ? "zero or not finite" : "not finite and positive",
                       odd.value, odd.first);
  });
}

template <Sign sign, Part... parts>
void bad_values(const RuleInput& input) {
  report_bad<sign>(input, input.parts_of_weights({parts...}));
}

/// True if the data of all these parts, as far as the weight has them, are here.
bool are_here(const RuleInput& input, const LogicalTensor& tensor,
              std::initializer_list<Part> parts) {
  return std::ranges::all_of(parts, [&](Part part) {
    const StoredTensor* stored = input.part_of(tensor, part);
    return stored == nullptr || input.may_read(*stored);
  });
}

/// Reads parts of weights as decoders read them, and reports what these refuse.
template <typename Read>
void read_as_decoders(const RuleInput& input, std::span<const LogicalTensor* const> weights,
                      const formats::ScalePolicy& policy, const Read& read) {
  std::vector<std::optional<Error>> faults(weights.size());
  parallel_for(weights.size(), input.options.threads, [&](std::size_t i) {
    try {
      read(formats::ScaleReader(input.checkpoint, *weights[i], policy));
    } catch (const Error& error) {
      if (error.code() == kInterrupted) throw;
      faults[i] = error;
    }
  });
  for (const std::optional<Error>& fault : faults) {
    if (fault) input.report(finding_of(*fault));
  }
}

/// Returns those of `scales` that hold an odd scale.
std::set<const StoredTensor*> odd_scales(const RuleInput& input,
                                         std::span<const StoredTensor* const> scales,
                                         bool (*is_odd)(float)) {
  std::set<const StoredTensor*> odd;
  for (const auto& [tensor, values] : input.odd_scales(scales, is_odd)) odd.insert(tensor);
  return odd;
}

/// Beyond these, a number times or by a scale of E4M3 may be infinite or zero.
bool is_extreme(float global) {
  return !is_bad_scale(global) && (global < 0x1p-100F || global > 0x1p100F);
}

/// Products or quotients of two scales: of NVFP4 where the global one may make them infinite or
/// zero, of Ascend's static INT8 always. Scales that are bad by themselves have rules of their own.
void effective_scales(const RuleInput& input) {
  struct Pair {
    const LogicalTensor* tensor;
    const StoredTensor *scale, *second;
  };
  std::vector<Pair> pairs;
  std::vector<const StoredTensor*> globals, both;
  for (const LogicalTensor& tensor : input.weights()) {
    if (!input.is_about(tensor.encoding.scheme)) continue;
    const bool has_global = input.part_of(tensor, Part::kGlobal) != nullptr;
    if (!has_global && tensor.encoding.stored.has(Part::kScale)) continue;
    const Pair pair{
        .tensor = &tensor,
        .scale = input.part_of(tensor, has_global ? Part::kScale : Part::kDeqScale),
        .second = input.part_of(tensor, has_global ? Part::kGlobal : Part::kInputScale)};
    if (pair.scale == nullptr || pair.second == nullptr ||
        !are_here(input, tensor,
                  {Part::kScale, Part::kDeqScale, Part::kGlobal, Part::kInputScale, Part::kOffset}))
      continue;
    if (has_global) globals.push_back(pair.second);
    pairs.push_back(pair);
  }
  const std::set<const StoredTensor*> extreme = odd_scales(input, globals, is_extreme);
  std::erase_if(pairs, [&](const Pair& pair) {
    return pair.tensor->encoding.stored.has(Part::kGlobal) && !extreme.contains(pair.second);
  });
  for (const Pair& pair : pairs) both.insert(both.end(), {pair.scale, pair.second});
  const std::set<const StoredTensor*> bad = odd_scales(input, both, is_bad_scale);
  std::vector<const LogicalTensor*> readable;
  for (const Pair& pair : pairs) {
    if (!bad.contains(pair.scale) && !bad.contains(pair.second)) readable.push_back(pair.tensor);
  }
  read_as_decoders(input, readable, {}, [&](const formats::ScaleReader& reader) {
    constexpr std::uint64_t kAtOnce = std::uint64_t{1} << 20;
    const std::uint64_t step = reader.rows_within(kAtOnce);
    for (std::uint64_t row = 0; row < reader.rows(); row += step) {
      StopScope::check();
      (void)reader.read({.first = row, .n = std::min(step, reader.rows() - row)});
    }
  });
}

/// Offsets of weights and of their inputs may be zero or below it, and are numbers.
void bad_offsets(const RuleInput& input) {
  input.report_odd(
      find_odd_scales(input.search(), input.parts_of_weights({Part::kOffset, Part::kInputOffset}),
                      [](float offset) { return !std::isfinite(offset); }),
      kBadScale, [](const OddValues& odd) {
        return fmt::format("{} of {} offsets are not finite, the first is {} at element {}", odd.n,
                           odd.total, odd.value, odd.first);
      });
}

void int8_values(const RuleInput& input) {
  effective_scales(input);
  bad_offsets(input);
  bad_values<Sign::kEither, Part::kScale, Part::kDeqScale>(input);
}

/// The other parts of INT4 weights.
void int4_tables(const RuleInput& input) {
  std::vector<const LogicalTensor*> readable;
  for (const LogicalTensor& tensor : input.weights()) {
    if (input.is_about(tensor.encoding.scheme) &&
        are_here(input, tensor, {Part::kDimensions, Part::kGroupOrder, Part::kZeroPoint}))
      readable.push_back(&tensor);
  }
  read_as_decoders(input, readable, {.allow_zero = true}, [](const formats::ScaleReader& reader) {
    (void)reader.read_zeros({.first = 0, .n = reader.rows()});
  });
}

void global_values(const RuleInput& input) {
  bad_values<Sign::kPositive, Part::kGlobal>(input);
  effective_scales(input);
}

constexpr auto scale_values = bad_values<Sign::kPositive, Part::kScale, Part::kDeqScale>;

void block_of_128(const RuleInput& input) {
  std::size_t count = 0;
  const Encoding* first = nullptr;
  for (const LogicalTensor& tensor : input.weights()) {
    const Encoding& encoding = tensor.encoding;
    if (!input.is_about(encoding.scheme) || is_seen_only(input, tensor) ||
        (encoding.block_rows == 128 && encoding.block_cols == 128))
      continue;
    if (count++ == 0) first = &encoding;
  }
  // One finding: the config has one block size for all weights.
  if (first != nullptr)
    input.report_config(kUnsupported,
                        "has {} weights in blocks of {} x {}, kernels are built for 128 x 128",
                        count, first->block_rows, first->block_cols);
}

/// The block size that the config claims; 128 x 128 where it claims none, or several.
std::array<std::uint64_t, 2> claimed_block(const Checkpoint& checkpoint) {
  try {
    return fp8_block_size(checkpoint.config());
  } catch (const Error&) {
    return {128, 128};  // the structure has said what is wrong with the config
  }
}

// Headers say which block a scale is for; engines take what the config says.
void block_claim(const RuleInput& input, const LogicalTensor& tensor) {
  if (!has_config(input.checkpoint) || is_seen_only(input, tensor)) return;
  const auto claim = claimed_block(input.checkpoint);
  const StoredTensor& scale = *input.part_of(tensor, Part::kScale);
  const Shape grid = formats::block_scale_shape(tensor.shape, claim[0], claim[1]);
  if (scale.shape != grid && scale.shape != formats::spread_shape(grid))
    input.report_kind(tensor, scale, kMismatch,
                      "has a scale per {} x {} numbers by its shape {}, but config.json claims "
                      "blocks of {} x {} (state the size that is stored)",
                      tensor.encoding.block_rows, tensor.encoding.block_cols,
                      formats::shape_text(scale.shape), claim[0], claim[1]);
}

bool is_nan_code(std::byte code) {
  return (code & std::byte{0x7F}) == std::byte{formats::kE4m3Nan};
}

OddValues odd_codes(const StoredTensor& tensor, std::span<const std::byte> bytes) {
  OddValues odd{.total = bytes.size()};
  const auto count = [&](const auto& is_odd) {
    odd.n = static_cast<std::uint64_t>(std::count_if(bytes.begin(), bytes.end(), is_odd));
    odd.first = static_cast<std::uint64_t>(std::find_if(bytes.begin(), bytes.end(), is_odd) -
                                           bytes.begin());
  };
  const auto* kind =
      std::ranges::find(formats::kFloat8Kinds, tensor.dtype, &formats::Float8Kind::dtype);
  if (kind != formats::kFloat8Kinds.end()) {
    const auto values = formats::float8_values(*kind);
    count([&](std::byte code) { return !std::isfinite(values[std::to_integer<unsigned>(code)]); });
    return odd;
  }
  std::byte any{};
  for (const std::byte code : bytes) any |= is_nan_code(code) ? std::byte{1} : std::byte{0};
  if (any != std::byte{}) count(is_nan_code);
  return odd;
}

void nan_code(const RuleInput& input) {
  if (!input.options.deep) return;
  // E4M3 scales are read in any case, by nvfp4.scale-values.
  std::vector<const StoredTensor*> codes = input.parts_of_weights({Part::kWeight});
  std::erase_if(codes,
                [&](const auto* stored) { return !input.checkpoint.has_data(stored->file); });
  input.report_odd(
      find_odd(input.search(), codes, odd_codes), kNonFinite, [](const OddValues& odd) {
        return fmt::format("holds {} codes that are NaN or infinite, the first at element {}",
                           odd.n, odd.first);
      });
}

void merged_partition(const RuleInput& input, const LogicalTensor& tensor) {
  const std::uint64_t step = tensor.encoding.block_rows;
  if (tensor.rule == nullptr || step == 0) return;
  const std::uint64_t rows =
      engines::rows_before_others(*tensor.rule, tensor.shape[tensor.shape.size() - 2]);
  if (rows % step != 0)
    input.report_kind(tensor, kShapeMismatch,
                      "contributes {} rows to the fused module, which needs a multiple of {}", rows,
                      step);
}

void global_convention(const RuleInput& input, const LogicalTensor& tensor) {
  const StorageRow* row =
      find_storage(input.dialect(), input.checkpoint.family(), SchemeId::kNvfp4);
  const bool divides = tensor.encoding.global_divides;
  if (row == nullptr || divides == row->global_divides) return;
  const auto verb = [](bool is_divisor) { return is_divisor ? "divides" : "multiplies"; };
  input.report_at(*input.part_of(tensor, Part::kGlobal), kMismatch,
                  "by its name {} the weight, but in dialect {} the global scale {} it (convert to "
                  "the dialect that is meant)",
                  verb(divides), input.dialect().name, verb(row->global_divides));
}

void reciprocal(const RuleInput& input, const LogicalTensor& tensor) {
  const StoredTensor& global = *input.part_of(tensor, Part::kGlobal);
  const std::optional<float> stored = input.first_number(global);
  if (!stored || is_bad_scale(*stored)) return;
  const float factor = tensor.encoding.global_divides ? 1 / *stored : *stored;
  // A weight's largest magnitude is 1536 to 2688 times this: no model has such weights.
  if (factor > 1)
    input.report_kind(tensor, global, kBadScale,
                      "is {}, so that the largest weight would be above 1500; its reciprocal is "
                      "likely (the other convention's number)",
                      *stored);
}

/// Exponents are copied by value into the dtype that the dialect's row names.
void exponent_dtype(const RuleInput& input, const LogicalTensor& tensor) {
  const StoredTensor& scale = *input.part_of(tensor, Part::kScale);
  if (scale.dtype != DType::kU8)
    input.report_kind(tensor, scale, kDtypeMismatch,
                      "is {}, loaders copy it by value into U8 (write its bytes as U8)",
                      dtype_name(scale.dtype));
}

void config_present(const RuleInput& input) {
  if (!input.config().raw->is_object() || has_config(input.checkpoint)) return;
  const auto tensor = std::ranges::find_if(input.weights(), [&](const LogicalTensor& weight) {
    // FP8 has a row of its own, and so has Ascend's description.
    const formats::StoredParts& parts = weight.encoding.stored;
    return is_quantized(weight) && !parts.has(Part::kOffset) && !parts.has(Part::kDeqScale) &&
           input.codes_of(weight).dtype != DType::kF8E4M3 && !has_native_names(input, weight);
  });
  if (tensor != input.weights().end())
    input.report_config(kNotFound,
                        "has no quantization_config, but '{}' is {} (copy it from the release, or "
                        "ingot repair makes one)",
                        tensor->name, facts_of(*tensor).name);
}

// Next to FP8, in releases whose config says so of their routed experts.
bool is_said_mxfp4(const RuleInput& input, const LogicalTensor& tensor) {
  const bool is_expert = tensor.rule == nullptr ? !formats::experts_of(tensor.name).empty()
                                                : is_routed_expert(role_of(tensor));
  return tensor.encoding.scheme == SchemeId::kMxfp4 && is_expert &&
         formats::says_mxfp4_experts(input.config());
}

// vLLM's parameter.py and SGLang's: a number of a joined module is loaded for one of its weights.
void fused_scales(const RuleInput& input, const LogicalTensor& tensor) {
  const std::size_t n = tensor.encoding.rows_of_scales.size();
  if (n > 1)
    input.report_kind(tensor, *input.part_of(tensor, Part::kScale), kShapeMismatch,
                      "has shape [{}], a number for each of the weights that are fused in one: "
                      "loaders read one number (ingot convert --to fp8-channel --dialect "
                      "compressed-tensors writes one for each row)",
                      n);
}

void scheme_held(const RuleInput& input, const LogicalTensor& tensor) {
  if (is_said_mxfp4(input, tensor)) return;
  if (is_judged(input, tensor) && !is_held(input, tensor))
    input.report_kind(tensor, kUnsupported, "is {}, which loaders of {} cannot read",
                      facts_of(tensor).name, input.dialect().name);
}

void one_scheme(const RuleInput& input) {
  if (formats::holds_mixtures(input.dialect(), input.checkpoint.family())) return;
  const LogicalTensor* first = nullptr;
  for (const LogicalTensor& tensor : input.weights()) {
    if (!is_judged(input, tensor) || !is_held(input, tensor)) continue;
    if (first == nullptr) first = &tensor;
    if (tensor.encoding.scheme == first->encoding.scheme) continue;
    input.findings.add(
        input.violation_at(input.codes_of(tensor), kUnsupported,
                           fmt::format("is {}, '{}' is {}: loaders of {} read one scheme at a time",
                                       facts_of(tensor).name, first->name, facts_of(*first).name,
                                       input.dialect().name)),
        first);
  }
}

void part_names(const RuleInput& input, const LogicalTensor& tensor) {
  // The rows of a read-only dialect are those of the dialect in which it is written.
  if (input.dialect().is_read_only || !is_judged(input, tensor) || !is_held(input, tensor)) return;
  // Muse Spark's loaders read `P_weight_scale` of a stack `P`.
  if (tensor.stack != formats::StackOrder::kNone && input.checkpoint.family().name == "muse_spark")
    return;
  tensor.encoding.stored.for_each([&](Part part, std::uint32_t index) {
    const StoredTensor& stored = input.checkpoint.stored()[index];
    std::string wanted;
    // The global scale's name says what it means: nvfp4.global-convention.
    if (part == Part::kGlobal || part_row(input, tensor, part, stored.name, wanted) != nullptr)
      return;
    const std::string_view dialect = input.dialect().name, scheme = facts_of(tensor).name;
    const bool is_of_activations = part == Part::kInputScale || part == Part::kOutputScale;
    input.report_kind(
        tensor, stored, kMismatch, "{}",
        !wanted.empty() ? fmt::format("is called '{}' by loaders of {}", wanted, dialect)
        : is_of_activations
            ? fmt::format("is {}, with which no loader reads {} in dialect {}",
                          formats::part_facts(part).meaning, scheme, dialect)
            : fmt::format("is a part that {} in dialect {} does not have", scheme, dialect));
  });
}

bool has_exponents(const SchemeFacts& scheme) {
  return scheme.scale_dtype == DType::kF8E8M0;
}
bool is_other_fp8(const SchemeFacts& scheme) {
  return scheme.is_read_only && scheme.id != SchemeId::kInt8Group;
}
bool has_fp8_codes(const SchemeFacts& scheme) {
  return has_e4m3_codes(scheme) || is_other_fp8(scheme);
}
bool is_fp8(const SchemeFacts& scheme) {
  return has_fp8_codes(scheme) && !has_exponents(scheme);
}
bool is_any_int8(const SchemeFacts& scheme) {
  return has_int8_codes(scheme) || scheme.id == SchemeId::kInt8Group;
}
bool is_fp8_block(const SchemeFacts& scheme) {
  return has_e4m3_codes(scheme) && scheme.group_rows > 1;
}
bool has_blocks(const SchemeFacts& scheme) {
  return scheme.quantized && scheme.group_rows > 1;
}
bool is_nvfp4(const SchemeFacts& scheme) {
  return scheme.scale_dtype == DType::kF8E4M3;
}

constexpr LoaderRule kPartRows[] = {
    {"fp8.block-128", "", "vLLM and SGLang on DeepGEMM", kWarning,
     "blocks that share a scale are 128 x 128", block_of_128, has_blocks},
    {"quantized.block-claim", "", "all", kError,
     "scales per block are those of the block size that the config claims", block_claim,
     has_blocks},
    {"fp8.weight-dtype", "", "all", kError, "FP8 weights are F8_E4M3", float8_kind, is_other_fp8},
    {"fp8.scale-present", "", "all", kError, "every FP8 weight has its scale", kByStructure,
     has_e4m3_codes},
    {"fp8.scale-dtype", "", "all", kError, "scales of FP8 weights are F32, BF16 or F8_E8M0",
     kByStructure, has_e4m3_codes},
    {"fp8.scale-shape", "", "all", kError,
     "the scale of an [N, K] weight is [ceil(N/rows), ceil(K/columns)], per row or one number",
     fp8_scale_shape, has_e4m3_codes},
    {"fp8.scale-values", "", "all", kError, "every scale is finite and positive", scale_values,
     is_fp8, kReadsValues},
    {"fp8.nan-code", "", "all", kError,
     "no FP8 weight holds a code that is NaN or infinite (with --deep)", nan_code, has_fp8_codes,
     kReadsValues},
    {"fp8.merged-partition", "", "vLLM", kWarning,
     "all but the last weight of a merged FP8 module end at a block's edge", merged_partition,
     is_fp8_block},
    {"int8.scale-present", "", "all", kError, "every INT8 weight has its scale", int8_scale_present,
     has_int8_codes},
    {"int8.scale-dtype", "", "all", kError, "scales of INT8 weights are F32 or BF16", kByStructure,
     has_int8_codes},
    {"int8.scale-shape", "", "all", kError,
     "the scale of an [N, K] weight is [N, 1], or a value per block", kByStructure, has_int8_codes},
    {"int8.scale-values", "", "all", kError,
     "every scale is finite and not zero, every offset finite", int8_values, is_any_int8,
     kReadsValues},
    {"int4.parts", "", "all", kError, "an INT4 weight has codes, scales and its dimensions",
     kByStructure, has_int4_codes},
    {"int4.dtypes", "", "all", kError, "scales of INT4 weights are BF16, F16 or F32", kByStructure,
     has_int4_codes},
    {"int4.scale-shape", "", "all", kError,
     "the scale of an [N, K] weight is [N, groups], groups of equal length in whole words of codes",
     kByStructure, has_int4_codes},
    {"int4.part-shapes", "", "all", kError,
     "zero points are [N/8, groups], an order of groups is [K], dimensions are two", kByStructure,
     has_int4_codes},
    {"int4.scale-values", "", "all", kError, "every scale is finite and not zero",
     bad_values<Sign::kEither, Part::kScale>, has_int4_codes, kReadsValues},
    {"int4.tables", "", "all", kError,
     "weight_shape is the shape of the weight, weight_g_idx names existing groups", int4_tables,
     has_int4_codes, kReadsValues},
    {"nvfp4.parts", "", "all", kError, "an NVFP4 weight has codes, block scales and a global scale",
     kByStructure, is_nvfp4},
    {"nvfp4.dtypes", "", "all", kError, "codes are U8, block scales F8_E4M3, the global scale F32",
     kByStructure, is_nvfp4},
    {"nvfp4.columns", "", "all", kError, "columns are a multiple of 16", group_columns, is_nvfp4},
    {"nvfp4.scale-shape", "", "all", kError, "block scales of an [N, K] weight are [N, K/16]",
     kByStructure, is_nvfp4},
    {"nvfp4.global-one-element", "", "all", kError, "a global scale is one number", kByStructure,
     is_nvfp4},
    {"nvfp4.global-convention", "", "all", kError,
     "the global scale is named as the dialect means it: weight_scale_2 multiplies, "
     "weight_global_scale divides",
     global_convention, is_nvfp4},
    {"nvfp4.scale-values", "", "all", kError, "every block scale is above zero and no NaN",
     scale_values, is_nvfp4, kReadsValues},
    {"nvfp4.global-values", "", "all", kError,
     "every global scale is finite and positive, and makes such numbers of the block scales",
     global_values, is_nvfp4, kReadsValues},
    {"nvfp4.reciprocal", "", "all", kWarning,
     "no global scale makes weights beyond 1500, as the other convention's number does", reciprocal,
     is_nvfp4, kReadsValues},
    {"mx.columns", "", "all", kError, "columns of MXFP4 and MXFP8 weights are a multiple of 32",
     group_columns, has_exponents},
    {"mx.scale-dtype", "compressed-tensors", "all", kError,
     "exponents of MXFP4 and MXFP8 weights are U8", exponent_dtype, has_exponents},
    {"mx.scale-values", "", "all", kError, "no exponent is the NaN 255", scale_values,
     has_exponents, kReadsValues},
    {"quantized.config-present", "deepseek", "all", kError,
     "a checkpoint with quantized weights says so in config.json or a description file",
     config_present},
    {"quantized.fused-scales", "", "vLLM, SGLang", kError,
     "a weight that is made of several and stored as one has one scale, or one for each row",
     fused_scales},
    {"quantized.scheme-held", "", "all", kError,
     "every weight is in a scheme that the dialect can hold", scheme_held},
    {"quantized.one-scheme", "", "all", kError,
     "one quantized scheme, where the dialect's loaders read one at a time", one_scheme, kAnyScheme,
     false, false, std::nullopt, /*except=*/"modelopt"},
    {"quantized.part-names", "", "all", kError, "scales and other parts have the dialect's names",
     part_names},
};

}  // namespace

const RuleTable kPartRules = kPartRows;

void part_shapes(const RuleInput& input, const LogicalTensor& tensor) {
  const Encoding& encoding = tensor.encoding;
  // Scales for several rows are seen in another shape than they are stored in.
  if (!is_judged(input, tensor) || !encoding.rows_of_scales.empty()) return;
  encoding.stored.for_each([&](Part part, std::uint32_t index) {
    const StoredTensor& stored = input.checkpoint.stored()[index];
    std::string unused;
    const PartRow* row = part_row(input, tensor, part, stored.name, unused);
    if (row == nullptr || part == Part::kWeight) return;
    const Shape wanted =
        part_shape(*row, encoding.scheme, tensor.shape, {encoding.block_rows, encoding.block_cols});
    const bool is_number = row->shape == PartShape::kOne || row->shape == PartShape::kScalar;
    // [] and [1] are copied into each other; stacked matrices have a number each.
    const bool is_copied =
        is_number && (formats::element_count(stored.shape) == 1 || tensor.shape.size() > 2);
    if (stored.shape != wanted && !is_copied)
      input.report_kind(tensor, stored, kShapeMismatch, "has shape {}, loaders copy it into {}",
                        formats::shape_text(stored.shape), formats::shape_text(wanted));
  });
}

}  // namespace ingot::check
