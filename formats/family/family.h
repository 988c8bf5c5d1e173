#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/config/model_config.h"
#include "formats/container/tensor.h"
#include "formats/family/roles.h"
#include "formats/family/width.h"

namespace ingot::formats {

/// The layers in which a row applies.
enum class Scope : std::uint8_t {
  kModel,                 ///< once, outside the layers
  kLayer,                 ///< every layer, MTP layers included
  kMainLayer,             ///< every layer but MTP layers, of families that name those otherwise
  kDenseLayer,            ///< layers with a dense MLP
  kMoeLayer,              ///< layers with experts, MTP layers included
  kFullAttentionLayer,    ///< layers whose attention is not linear, MTP layers included
  kLinearAttentionLayer,  ///< layers of linear attention
  kMtpLayer,              ///< the num_nextn_predict_layers layers from num_hidden_layers on
};

/// How tensor parallelism may cut a weight (used by shard/).
enum class Cut : std::uint8_t { kReplicated, kColumn, kRow, kVocab };

/// Tensors that a loader fuses and that must share scheme and global scale.
enum class Fuse : std::uint8_t { kNone, kQaKva, kGateUp, kIndexerK, kQkv };

/// The promise of a row by the config.
enum class Presence : std::uint8_t {
  kRequired,
  kOptional,   ///< accepted, never missed
  kUntied,     ///< required unless tie_word_embeddings
  kCorrected,  ///< required if topk_method is noaux_tc or absent from the config
  kPerExpert,  ///< required unless the layer holds the stacked form
  kStacked,    ///< the stacked form of transformers 5
  /// Required in layers with an indexer of their own (own_indexer()), else accepted.
  kOwnIndexer,
  kWhen,    ///< required if TensorRule::condition is not 0, else forbidden
  kUnless,  ///< required if the condition is 0, else forbidden
};

/// How engines build a linear layer that releases leave plain, where the quantization config does
/// not mention it. Layers that a release quantizes are always kQuantized.
enum class Silence : std::uint8_t {
  kPlain,      ///< tensor that every engine builds plain
  kHead,       ///< head of the model, which depends on the dialect (Dialect::heads)
  kQuantized,  ///< some engine builds it as a quantized layer, and loads garbage without a word
  kListed,     ///< layer as kQuantized, which releases do not list: judged only in our outputs
};

/// Orientation of the matrices of stacked experts while they are plain. Quantized stacks whose
/// groups run along the inputs are output-major in every family (turns_stacks()).
enum class StackOrder : std::uint8_t {
  kNone,         ///< no stack, or a stack of biases
  kOutputMajor,  ///< [experts, outputs, inputs]
  kInputMajor,   ///< [experts, inputs, outputs]
};

/// How the outputs of gate and up follow one another in a stack that has both.
enum class GateUpOrder : std::uint8_t {
  kHalves,       ///< outputs of gate, then outputs of up
  kInterleaved,  ///< outputs in turn, gate first
};

/// The layers that a row is in, by a key of the text model's config.
struct LayerCondition {
  std::string key;  ///< key with dots before the keys of inner objects
  /// Values of the layers meant, where the key holds a list, or a string, with an entry per main
  /// layer (`{layer}`: the layer's own number); empty where it holds a list of the layers' numbers.
  std::vector<std::string> values = {};
  std::uint64_t first = 0;    ///< number of the first layer in such a list
  bool is_for_listed = true;  ///< false: for the layers that such a list lacks
};

/// Most dimensions of a row's tensor.
inline constexpr std::size_t kMaxRuleDimensions = 4;

/// One row of a family's grammar: every tensor of a known family matches exactly one.
struct TensorRule {
  /// `{layer}` and `{expert}` match decimal numbers without leading zeros, `{mtp}` the number of an
  /// MTP layer counted from 0. An MTP row without a number belongs to the first MTP layer.
  std::string_view pattern;
  Role role{};
  std::optional<FineRole> fine = {};  ///< finer role, where rows of a layer share the role
  Scope scope{};
  std::span<const LayerCondition> layers = {};           ///< all hold, in addition to the scope
  std::array<const Width*, kMaxRuleDimensions> shape{};  ///< null: no further dimension
  /// True for a weight that is quantized in an FP8 release of this family: a loader builds it as an
  /// FP8 linear unless the config says otherwise.
  bool fp8_by_default = false;
  Silence silence = Silence::kPlain;
  /// True for a head that a release of this family quantizes, so that engines load it quantized.
  bool may_be_quantized = false;
  Cut cut = Cut::kReplicated;
  /// Lengths of the parts of the cut side, where it has several that are cut each by itself. Empty:
  /// one part.
  std::span<const Width* const> sections = {};
  /// How many heads, or groups of heads, stay whole where the side is cut: ranks divide their
  /// number. Null: as the role says (heads of attention, or widths that may be cut anywhere).
  const Width* heads = nullptr;
  Fuse fuse = Fuse::kNone;
  Presence presence = Presence::kRequired;
  const Width* condition = nullptr;  ///< condition of kWhen and kUnless
  /// A width that, where it is not 0, lets a promised tensor be missing: no model reads it there.
  const Width* spare = nullptr;
  /// Stored dtype in the released checkpoint when it is not FP8.
  DType synth_dtype = DType::kBf16;
  /// The config does not say which shape: none is checked, and `shape` is empty.
  bool any_shape = false;
  StackOrder stack = StackOrder::kNone;  ///< order of stacked experts; `shape` is a plain stack's
  GateUpOrder gate_up = GateUpOrder::kHalves;
  /// True where releases store the plain stack as one matrix, whose rows are the experts and the
  /// side behind them.
  bool is_flat = false;
  /// Number of its module, where several modules of a layer have rows of the same roles.
  std::uint8_t block = 0;
};
/// The role of a tensor in such a row; kOther where it has none.
constexpr Role role_of(const TensorRule* rule) {
  return rule != nullptr ? rule->role : Role::kOther;
}

struct Forward;

/// A model family. `rules` is empty for `generic`, which accepts any name.
struct Family {
  std::string_view name;
  /// The argument for find_family(): its name, or `file:` and the path of the file that has it.
  std::string_view spec;
  std::string_view summary;
  std::span<const std::string> model_types;  ///< values of config.json's model_type
  std::string_view architecture;             ///< synth writes it to architectures[0]
  std::span<const TensorRule> rules;
  const NamedWidths* widths = nullptr;  ///< names that its shapes use
  const Forward* forward = nullptr;     ///< words of its file about the forward pass (forward.h)
  /// Prefix of the number of an MTP layer, counted from 0, in place of `main_layers`; empty: MTP
  /// layers follow the main layers.
  std::string_view mtp_layers = {};
  /// Prefix of the number of a layer; read only with mtp_layers.
  std::string_view main_layers = "model.layers.";
  /// The dialect of the schemes that it holds when the user asks for none; empty: the scheme's own
  /// default.
  std::string_view dialect = {};
  /// The config of the released model at full size, as JSON text: the defaults of `ingot synth`.
  /// Empty for families that cannot be synthesized.
  std::string_view reference_config = {};
  /// The YAML that it was read from; empty for `generic`.
  std::string_view yaml = {};
  /// The hash of it for a family of a file, else empty.
  std::string file_hash = {};
};

/// True if such a row occurs in `layer`; `layer` is nullopt outside the layers.
bool is_in_layer(const TensorRule& rule, const ModelConfig& config,
                 std::optional<std::uint32_t> layer);

/// Shape of a row's tensor in `layer` under this config, as releases store it where it is plain; of
/// no meaning for rows of `any_shape`. `layer` is nullopt outside the layers.
Shape rule_shape(const TensorRule& rule, const ModelConfig& config,
                 std::optional<std::uint32_t> layer);
/// The shape of the decoded weight of such a row; `is_turned`: of a scheme that turns_stacks().
Shape weight_shape(const TensorRule& rule, const ModelConfig& config,
                   std::optional<std::uint32_t> layer, bool is_turned);

/// The shape under which a whole checkpoint stores a plain tensor of this shape in such a row.
Shape stored_shape(const TensorRule* rule, Shape shape);

/// Orientation of the matrices of such a row under a scheme that turns_stacks(), or another.
constexpr StackOrder stack_order(const TensorRule& rule, bool is_turned) {
  return is_turned && rule.stack == StackOrder::kInputMajor ? StackOrder::kOutputMajor : rule.stack;
}

/// True if the cut side of such a row's tensor has heads of keys and values. There may be fewer of
/// them than ranks, which then share them.
bool has_kv_heads(const TensorRule& rule);

/// Throws kCorrupt naming the keys of config.json that the family's rows need and that are missing
/// or 0. Without this a config that lacks a width would turn into a list of misshapen tensors.
void require_widths(const Family& family, const ModelConfig& config);

/// The name of a row's tensor in a checkpoint with this config's prefix of the text model. `layer`
/// counts MTP layers behind the main ones, whatever the name says; `part` is the number below a
/// key.
std::string row_name(const Family& family, const ModelConfig& config, const TensorRule& rule,
                     std::optional<std::uint32_t> layer, std::optional<std::uint32_t> expert,
                     std::optional<std::uint32_t> part = std::nullopt);
/// The first row of this role whose tensors the config allows in `layer`, or null.
const TensorRule* find_row(const Family& family, const ModelConfig& config, Role role,
                           std::optional<std::uint32_t> layer);

/// A tensor that the config promises.
struct ExpectedTensor {
  std::string name;
  const TensorRule* rule = nullptr;
  std::optional<std::uint32_t> layer;
  std::optional<std::uint32_t> expert;
};

/// Calls `visit` for every tensor that the config promises, by its name in a checkpoint with this
/// config's prefix of the text model; model first, then layer by layer
/// (experts in per-expert form unless `stacked`). MTP layers are included, optional rows are not.
/// Throws kLimit when the config promises more than 2^22 tensors.
void for_each_expected(const Family& family, const ModelConfig& config, bool stacked,
                       const std::function<void(const ExpectedTensor&)>& visit);

/// The row of tensors whose names mean the same in every family: towers and projectors for images
/// and sound, and tables of n-grams. Null for other names.
const TensorRule* shared_rule(std::string_view name);
/// The row of a tensor of a head of classes or rewards, where the class of the model has one
/// (head_of()); null for other names. `name` is behind the prefix of a nested text model.
const TensorRule* class_head_rule(std::string_view name, const ModelConfig& config);

/// Recognises names of one family under one config, which must outlive it. Names are those of a
/// checkpoint, behind the prefix of a nested text model; those of shared_rule() match too.
class NameGrammar {
 public:
  NameGrammar(const Family& family, const ModelConfig& config);
  struct Match {
    const TensorRule* rule = nullptr;
    std::optional<std::uint32_t> layer;
    std::optional<std::uint32_t> expert;
  };
  /// The one row that `name` matches, honouring scope (a dense layer has no experts, layer numbers
  /// and expert numbers are within the config); nullopt when no row does.
  [[nodiscard]] std::optional<Match> match(std::string_view name) const;
  /// True if a row has names like this one, where match() finds none: in another layer, of another
  /// expert, behind another prefix or under another config.
  [[nodiscard]] bool knows(std::string_view name) const;
  /// The name with marks in place of numbers, as rows have it.
  [[nodiscard]] std::string pattern_of(std::string_view name) const;

 private:
  /// Words behind which a number is that of a layer, an MTP layer, an expert.
  struct Words {
    std::vector<std::string> layer, mtp, expert;
  };
  /// Words that end with a number below a key of config.json, behind a certain part of a pattern.
  struct CountedWord {
    std::string before, head, mark;
    Width count;
  };
  struct NumberedName;
  [[nodiscard]] NumberedName split_numbers(std::string_view name) const;
  [[nodiscard]] std::optional<Match> match_text(std::string name) const;

  const Family* family_;
  const ModelConfig* config_;
  Words words_;
  std::vector<CountedWord> counted_;
  std::vector<std::pair<std::string, std::vector<const TensorRule*>>>
      by_pattern_;  // sorted by pattern
};

}  // namespace ingot::formats
