#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "formats/dialect/dialect.h"
#include "formats/modules/module_patterns.h"

// The rows that dialects.cc lists, one per file of this folder; the words of their tables of parts,
// and the common parts of their functions. For the files of this folder only.

namespace ingot::formats {

extern const Dialect kDeepseekDialect;
extern const Dialect kCompressedTensorsDialect;
extern const Dialect kModeloptDialect;
extern const Dialect kModelslimDialect;
extern const Dialect kMxfp4Dialect;
extern const Dialect kAwqDialect;
extern const Dialect kGptqDialect;
extern const Dialect kAutoRoundDialect;
extern const Dialect kQuarkDialect;
extern const Dialect kFbgemmDialect;
extern const Dialect kGemmaDialect;
extern const Dialect kMinimaxDialect;

/// True if config.json has a block of quantization as MLX writes it, which names no method.
bool is_mlx_form(const ModelConfig& config);
/// Methods of the dialects that are read, as messages list them.
std::vector<std::string_view> read_methods();
/// All parts but the last, the scale of static activations.
template <std::size_t N>
constexpr std::span<const PartRow> without_inputs(const std::array<PartRow, N>& parts) {
  return std::span(parts).template first<N - 1>();
}

/// The group of a quantized tensor.
QuantizationGroup group_of(const WrittenTensor& tensor, const ModelConfig& source);

/// The modules of an output by the form of their weights.
struct WrittenGroups {
  std::vector<QuantizationGroup> groups;  ///< sorted; groups[i] is class i + 1
  /// Everything quantized, and as class 0 the plain weights of two dimensions: linear layers, the
  /// embedding and the head. Norms are none of these.
  std::vector<ClassedModule> modules;
};
WrittenGroups written_groups(const WrittenModel& model);

/// Modules that are plain here and that engines of the dialect would quantize by silence, sorted.
std::vector<std::string> silent_modules(std::span<const WrittenTensor> written,
                                        const Dialect& dialect);

bool any_quantized(std::span<const WrittenTensor> written);

/// The strings of a list in `block`, or none when it has no such list. Throws kCorrupt when it is
/// something else.
std::vector<std::string> string_list(const Json& block, const char* key);

/// `key` becomes the union of its entries and `modules`, sorted.
void merge_into_list(Json& block, const char* key, const std::vector<std::string>& modules);

constexpr PartRow codes_part(DType dtype, std::string_view suffix = kWeightSuffix) {
  return {Part::kWeight, suffix, dtype, PartShape::kCodes};
}
constexpr PartRow scale_part(DType dtype, PartShape shape,
                             std::string_view suffix = ".weight_scale") {
  return {Part::kScale, suffix, dtype, shape};
}
constexpr PartRow global_part(PartShape shape, std::string_view suffix = ".weight_scale_2") {
  return {Part::kGlobal, suffix, DType::kF32, shape};
}
/// Tables with the scale of static activations end with it (without_inputs()).
constexpr PartRow input_part(PartShape shape, std::string_view suffix = ".input_scale") {
  return {Part::kInputScale, suffix, DType::kF32, shape};
}

constexpr StorageRow kept_only(StorageRow row) {
  row.is_read_only = true;
  return row;
}
constexpr StorageRow with_experts(ExpertForm experts, StorageRow row) {
  row.experts = experts;
  return row;
}

/// DeepSeek's FP8; engines read experts in ModelOpt's mixtures so, too.
inline constexpr std::array kReleasedFp8Parts = {
    codes_part(DType::kF8E4M3), scale_part(DType::kF32, PartShape::kGrid, ".weight_scale_inv")};
inline constexpr std::array kScalarFp8Parts = {codes_part(DType::kF8E4M3),
                                               scale_part(DType::kF32, PartShape::kScalar),
                                               input_part(PartShape::kScalar)};
/// Under ModelOpt's names.
inline constexpr std::array kNvidiaNvfp4Parts = {
    codes_part(DType::kU8), scale_part(DType::kF8E4M3, PartShape::kGrid),
    global_part(PartShape::kScalar), input_part(PartShape::kScalar)};
inline constexpr std::array kMxfp8Parts = {codes_part(DType::kF8E4M3),
                                           scale_part(DType::kU8, PartShape::kGrid)};

}  // namespace ingot::formats
