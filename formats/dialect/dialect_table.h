#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/base/error.h"
#include "formats/dialect/dialect.h"
#include "formats/modules/module_patterns.h"

// The rows that dialects.cc lists, one per file of this folder, and the common parts of their
// functions.

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

/// Returns dialect_of(), but null for a config that no dialect here reads.
const Dialect* known_dialect(const ModelConfig& config, std::span<const std::string> files = {});
/// True if config.json has a block of quantization as MLX writes it, which names no method.
bool is_mlx_form(const ModelConfig& config);
/// The refusal (kUnsupported) of a way of quantizing that no dialect reads, with the tool whose
/// form it is.
Error unread_form(const ModelConfig& config);
/// The refusal of types in a dialect's description file; nullopt where all may be read.
std::optional<Error> unread_description(const Dialect& dialect, const Json& description);

/// The refusal of parts that show such a form of weights, whatever the config says; nullopt: none.
std::optional<Error> unread_parts(std::span<const StoredTensor> stored);
/// Tells for each stored tensor if it is part of a weight in such a form.
std::vector<bool> in_unread_forms(std::span<const StoredTensor> stored);

/// Methods of the dialects that are read, as messages list them.
std::vector<std::string_view> read_methods();
/// The dialect that has a key of this block for itself; null: none.
const Dialect* dialect_of_keys(const Json& block);

/// True if the dialect is the family's own, and has rows for that.
bool is_native(const Dialect& dialect, const Family& family);
/// All rows for weights of a family, in the order in which they are looked at.
std::array<std::span<const StorageRow>, 2> storage_rows(const Dialect& dialect,
                                                        const Family& family);
/// Finds the row among storage_rows(), as find_storage() does without a family.
const StorageRow* find_storage(const Dialect& dialect, const Family& family, SchemeId scheme,
                               std::optional<Activations> activations = std::nullopt);
/// True if a checkpoint of a family may hold several quantized schemes.
bool holds_mixtures(const Dialect& dialect, const Family& family);

/// All parts but the last, the scale of static activations.
template <std::size_t N>
constexpr std::span<const PartRow> without_inputs(const std::array<PartRow, N>& parts) {
  return std::span(parts).template first<N - 1>();
}

/// `quantization_config` of the source if it is in this dialect and an object, else null.
const Json* source_block(const ModelConfig& source, const Dialect& dialect);

/// Weights of an output that are held alike.
struct QuantizationGroup {
  SchemeId scheme{};
  Activations activations{};
  /// The block of schemes whose blocks a checkpoint chooses, else {0, 0}.
  std::array<std::uint64_t, 2> block = {0, 0};
  bool has_zero_points = false, has_group_order = false;  ///< parts of INT4
  friend auto operator<=>(const QuantizationGroup&, const QuantizationGroup&) = default;
};

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

}  // namespace ingot::formats
