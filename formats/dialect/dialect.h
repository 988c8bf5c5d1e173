#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/error.h"
#include "formats/config/model_config.h"
#include "formats/family/family.h"
#include "formats/json/json_fwd.h"
#include "formats/storage/encoding.h"

namespace ingot::formats {

/// Ending of the name of a weight in its own form, or of its codes.
inline constexpr std::string_view kWeightSuffix = ".weight";

/// How an engine treats the activations of a quantized weight.
enum class Activations : std::uint8_t {
  kWeightOnly,  ///< activations that stay as they are
  kDynamic,     ///< quantized with scales found at run time
  kStatic,      ///< quantized with scales stored with the weight
};
std::string_view activations_name(Activations activations);

/// Shape of a part, from the weight's [..., N, K] and the group that shares a scale.
enum class PartShape : std::uint8_t {
  kCodes,   ///< [..., N, K], K by packing()
  kGrid,    ///< [..., ceil(N / block_rows), ceil(K / block_cols)]
  kSpread,  ///< [..., ceil(N / block_rows), 1, ceil(K / block_cols), 1]
  kScalar,  ///< []
  kOne,     ///< [1]
  kPerRow,  ///< [..., N]
  kColumn,  ///< [..., N, 1]
  kZeros,   ///< [..., ceil(N / kZerosPerWord), ceil(K / block_cols)]
  kPerCol,  ///< [K]
  kTwo,     ///< [2]
  kBlocks,  ///< [..., N, K / block_cols, bytes of a block]: codes, a block's bytes by themselves
};
/// The form in which the loaders of a dialect read routed experts of a scheme. The families' own
/// forms are those of plain weights.
enum class ExpertForm : std::uint8_t {
  kSeparate,  ///< a tensor per expert and projection
  kStacked,   ///< nothing else: the names of the parts are those of stacks
  kEither,
};
/// How a dialect stores one part.
struct PartRow {
  Part part{};
  std::string_view suffix;  ///< ending in place of the `.weight` of `X.weight`
  DType dtype{};            ///< the dtype that we write
  PartShape shape{};
  /// True: written only where the source has it, since no scheme that we encode needs it.
  bool is_optional = false;
  /// True: keeps the source's dtype where codes are kept, since loaders read any that the part may
  /// have.
  bool keeps_dtype = false;
};
/// The shape of the part of a weight of shape `weight`, of which a `group` shares a scale.
Shape part_shape(const PartRow& row, SchemeId scheme, const Shape& weight,
                 std::array<std::uint64_t, 2> group);

/// How a dialect stores one scheme with one kind of activations.
struct StorageRow {
  SchemeId scheme{};
  Activations activations{};
  /// Name of the row in the JSON: quant_method, `format`, quant_algo, or the type of a description.
  std::string_view config_name;
  std::span<const PartRow> parts;  ///< parts in the order of Part, codes first
  bool global_divides = false;
  /// Why a user must choose the kind of activations, and the kinds; empty: no choice is needed.
  std::string_view activations_choice = {};
  bool is_read_only = false;  ///< true: read and kept as it is, never newly written
  ExpertForm experts = ExpertForm::kSeparate;
};

/// How engines of a dialect treat a head of the model (Silence::kHead).
enum class Heads : std::uint8_t {
  kPlain,      ///< always plain
  kByName,     ///< head that is quantized if the config names it
  kBySilence,  ///< head that is quantized unless the config excludes it
};

/// One logical tensor of an output.
struct WrittenTensor {
  std::string_view name;  ///< canonical, `X.weight`
  SchemeId scheme{};
  Activations activations{};         ///< treatment, for quantized tensors
  const TensorRule* rule = nullptr;  ///< the family's row; null outside the grammar
  std::optional<std::uint32_t> layer, expert;
  std::size_t rank = 0;                         ///< dimensions of the weight
  std::array<std::uint64_t, 2> block = {0, 0};  ///< rows and columns that share a scale
  bool has_zero_points = false;                 ///< Part::kZeroPoint
  bool has_group_order = false;                 ///< Part::kGroupOrder
  std::vector<std::string> stored;              ///< names of its parts in the files
  /// The family's release quantizes it: loaders build it as a quantized linear layer.
  [[nodiscard]] bool fp8_by_default() const { return rule != nullptr && rule->fp8_by_default; }
};

/// The contents of an output, from which a dialect derives the JSON around it.
struct WrittenModel {
  const ModelConfig& source;  ///< config of the source, whose blocks are kept where they still hold
  const Json* description = nullptr;  ///< description of a source in the same dialect
  std::span<const WrittenTensor> tensors;
  bool power_of_two_scales = false;  ///< true where every kFp8Block tensor has such scales
};

/// The words of the JSON around a checkpoint on one weight.
struct ConfigForm {
  std::optional<SchemeId> scheme;          ///< scheme, if one of ours; kBf16 for any plain one
  std::optional<Activations> activations;  ///< activations, if they are said
  std::string because;                     ///< entry that says so
  bool has_zero_points = false;            ///< zero points that integer codes need
  /// True if there is one scale a row, where the scheme has groups of a chosen length.
  bool has_row_scales = false;
  /// True if activations stay as they are: a scale of the input that is stored all the same
  /// (W4A16_NVFP4 of ModelOpt) has no use.
  bool leaves_inputs = false;
  /// Numbers that activations become: "dynamic in 8 bits of type float"; null: those of the codes.
  std::function<std::string()> numbers;
};
using ConfigForms = std::function<ConfigForm(std::string_view weight)>;

/// Names of the parts and the JSON around them. A row in a table.
struct Dialect {
  std::string_view name;
  std::string_view summary;
  /// Values of quant_method; none: config.json has no block.
  std::array<std::string_view, 2> methods = {};
  /// True if a config with a quant_method is of the dialect; null: it is one of `methods`.
  bool (*has_config)(const ModelConfig& config) = nullptr;
  /// Schemes that it can hold. The first of several rows for a scheme has the default activations.
  std::span<const StorageRow> storage;
  /// Further rows for families whose own dialect it is (Family::dialect): routed experts may have
  /// another scheme than the rest.
  std::span<const StorageRow> native_storage = {};
  /// Rows for routed experts in other families, of one scheme in one checkpoint with another; the
  /// first that a family has is written. Null: there are none.
  std::span<const StorageRow> (*expert_storage)(const Family& family) = nullptr;
  bool holds_mixtures = false;  ///< several quantized schemes in one checkpoint
  bool is_read_only = false;    ///< dialect that is never written, nor in dialects()
  Heads heads = Heads::kPlain;
  /// The file next to config.json that says which tensors are quantized, or empty.
  std::string_view description_file;
  /// The value of config.json's `quantization_config`, null when there is to be none.
  Json (*quantization_config)(const WrittenModel& model);
  /// Content of the description file; null function without one.
  Json (*description)(const WrittenModel& model) = nullptr;
  /// Returns the forms that the JSON says, or null where it says none; `description` is the file or
  /// null. Lists that are none are put into `faults`; without `faults`, kCorrupt is thrown. All of
  /// it must outlive the answer.
  ConfigForms (*config_forms)(const ModelConfig& config, const Json& description,
                              std::vector<std::string>* faults) = nullptr;
  /// Returns the refusal of codes that are no values of weights, as the JSON shows it; nullopt: all
  /// are.
  std::optional<Error> (*unread)(const ModelConfig& config, const Json& description) = nullptr;
  /// Part of the types in a description that no scheme is, and what they hold.
  std::string_view unread_type = {}, unread_holds = {};
  /// Returns the blocks that the block of config.json gives to weights, if it gives any.
  std::optional<std::array<std::uint64_t, 2>> (*block_size)(const Json& block) = nullptr;
  /// Keys of the block: those that loaders know, those that they know in families whose own dialect
  /// it is, and one that tells the dialect where quant_method is missing.
  std::array<std::string_view, 14> known_keys = {};
  std::span<const std::string_view> native_keys = {};
  std::string_view own_key = {};
  bool has_config_groups = false;  ///< engines read the groups of config_groups.h
  /// The key of quantization_config that says how scales were rounded where engines then round
  /// those of activations likewise; empty: there is none.
  std::string_view scale_format_key = {};
};

/// The dialects that are written.
std::span<const Dialect* const> dialects();
const Dialect* find_dialect(std::string_view name);
/// The dialect that the config's quant_method names, else that of a description file among `files`
/// (bare names), else deepseek. Throws kUnsupported for any other method.
const Dialect& dialect_of(const ModelConfig& config, std::span<const std::string> files = {});

/// Returns dialect_of(), but null for a config that no dialect here reads.
const Dialect* known_dialect(const ModelConfig& config, std::span<const std::string> files = {});
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
/// True if routed experts of a family may have this scheme next to FP8 blocks, and no other does
/// (Dialect::expert_storage).
bool is_of_experts(const Dialect& dialect, const Family& family, SchemeId scheme);

/// The dialect of a scheme when the user asks for none: deepseek if it has the scheme with these
/// activations, else compressed-tensors.
const Dialect& default_dialect(SchemeId scheme,
                               std::optional<Activations> activations = std::nullopt);

/// True if an engine of this dialect loads the weight of such a row quantized.
bool can_be_quantized(const Dialect& dialect, const TensorRule& rule);
/// True if an engine of this dialect builds the module of such a row quantized when the config does
/// not mention it.
bool is_quantized_by_silence(const Dialect& dialect, const TensorRule& rule);

/// The row of this part in a scheme's storage; null: it has none.
const PartRow* find_part_row(const StorageRow& storage, Part part);

/// The row for a scheme; with nullopt for the activations, the first. Null: the dialect cannot hold
/// it.
const StorageRow* find_storage(const Dialect& dialect, SchemeId scheme,
                               std::optional<Activations> activations = std::nullopt);

/// The row that the dialect's JSON calls by this name, the first of several; null: none.
const StorageRow* find_storage(const Dialect& dialect, std::string_view config_name);

/// The name of a part of `X.weight` (or of stacked experts `P`), e.g. `X.weight_scale_inv`.
std::string part_name(const PartRow& row, std::string_view weight_name);

/// The suffix of the part of stacked experts `P`, from that of `P.weight`: `_scale_inv` for
/// `.weight_scale_inv`, `_activation_scale` for `.activation_scale`.
std::string stacked_suffix(std::string_view suffix);

/// The name by which ignore lists and calibrations know a weight: without `.weight`.
std::string_view module_name(std::string_view weight_name);

/// Rows and columns that share a scale in the block-scaled weights of this checkpoint:
/// `weight_block_size`, or the `block_structure` of compressed-tensors' config_groups; 128 x 128
/// where the config has none. kUnsupported for blocks of several sizes.
std::array<std::uint64_t, 2> fp8_block_size(const ModelConfig& config);

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

/// The refusal (kUnsupported) of a way of quantizing that no dialect reads, with the tool whose
/// form it is.
Error unread_form(const ModelConfig& config);
/// The refusal of types in a dialect's description file; nullopt where all may be read.
std::optional<Error> unread_description(const Dialect& dialect, const Json& description);

/// The refusal of parts that show such a form of weights, whatever the config says; nullopt: none.
std::optional<Error> unread_parts(std::span<const StoredTensor> stored);
/// Tells for each stored tensor if it is part of a weight in such a form.
std::vector<bool> in_unread_forms(std::span<const StoredTensor> stored);

/// The treatment of activations for each weight of a source, by its files; kept weights keep it.
class SourceActivations {
 public:
  /// `description` is the dialect's file, or null; `config` and `description` must outlive this.
  /// Throws kCorrupt when the config's lists are none.
  SourceActivations(const ModelConfig& config, const Dialect& dialect, const Json& description);

  /// The block's activations for the module; where it has none, static if scales of activations are
  /// stored, else the dialect's default; FP4 that the dialect itself does not write is weight-only.
  /// `name` is the weight's.
  [[nodiscard]] Activations of(std::string_view name, const Encoding& encoding) const;
  /// ConfigForm::leaves_inputs of a weight that is in the form that is said.
  [[nodiscard]] bool leaves_inputs(std::string_view name, const Encoding& encoding) const {
    const ConfigForm said = forms_(name);
    return said.leaves_inputs && said.scheme == encoding.scheme;
  }
  /// ConfigForm::has_row_scales.
  [[nodiscard]] bool has_row_scales(std::string_view name) const {
    return forms_(name).has_row_scales;
  }

  /// The activations of a weight in words, with the numbers that activations become ("dynamic in 8
  /// bits of type float"), alike in all dialects.
  [[nodiscard]] std::string text(std::string_view name, const Encoding& encoding) const;

 private:
  const Dialect* dialect_;
  ConfigForms forms_;
};

}  // namespace ingot::formats
