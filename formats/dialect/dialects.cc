#include <algorithm>
#include <ranges>
#include <set>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/dialect_table.h"
#include "formats/dialect/dialect_words.h"
#include "formats/json/json.h"
#include "formats/storage/scale_shapes.h"
#include "formats/text/spelling.h"

namespace ingot::formats {
namespace {

constexpr std::array kDialects = {&kDeepseekDialect, &kCompressedTensorsDialect, &kModeloptDialect,
                                  &kModelslimDialect, &kMxfp4Dialect};
constexpr std::array kReadOnly = {&kAwqDialect,    &kGptqDialect,   &kAutoRoundDialect,
                                  &kQuarkDialect,  &kFbgemmDialect, &kGemmaDialect,
                                  &kMinimaxDialect};
constexpr std::array<std::span<const Dialect* const>, 2> kDialectTables = {kDialects, kReadOnly};

constexpr std::array<std::string_view, 3> kActivations = {"weight-only", "dynamic", "static"};

constexpr std::array<std::uint64_t, 2> kReleasedBlock = {128, 128};

const StorageRow* find_storage(std::span<const StorageRow> rows, SchemeId scheme,
                               std::optional<Activations> activations) {
  const auto row = std::ranges::find_if(rows, [&](const StorageRow& at) {
    return at.scheme == scheme && (!activations || at.activations == *activations);
  });
  return row == rows.end() ? nullptr : &*row;
}

bool is_plain_matrix(const WrittenTensor& tensor) {
  if (tensor.fp8_by_default()) return true;
  const bool may_be_matrix = tensor.rank == 0 || tensor.rank == 2;
  return may_be_matrix && tensor.name.ends_with(kWeightSuffix) && !is_norm(role_of(tensor.rule)) &&
         !module_name(tensor.name).ends_with("norm");
}

}  // namespace

std::span<const Dialect* const> dialects() {
  return kDialects;
}

const Dialect* find_dialect(std::string_view name) {
  const auto row = std::ranges::find(kDialects, name, &Dialect::name);
  return row == kDialects.end() ? nullptr : *row;
}

const Dialect* known_dialect(const ModelConfig& config, std::span<const std::string> files) {
  if (is_mlx_form(config)) return nullptr;
  const std::string method = method_of(config);
  const auto has_config = [&](const Dialect* dialect) {
    return dialect->has_config != nullptr ? dialect->has_config(config)
                                          : is_in(dialect->methods, method);
  };
  for (const auto table : kDialectTables) {
    const auto row = std::ranges::find_if(table, [&](const Dialect* dialect) {
      return method.empty() ? std::ranges::find(files, dialect->description_file) != files.end()
                            : has_config(dialect);
    });
    if (row != table.end()) return *row;
  }
  return method.empty() ? &kDeepseekDialect : nullptr;
}

const Dialect* dialect_of_keys(const Json& block) {
  // ModelOpt's block may have the groups of compressed-tensors too.
  const auto rows = std::views::reverse(kDialects);
  const auto row = std::ranges::find_if(rows, [&](const Dialect* dialect) {
    return !dialect->own_key.empty() && block.is_object() && block.contains(dialect->own_key);
  });
  return row == rows.end() ? nullptr : *row;
}

std::vector<std::string_view> read_methods() {
  std::vector<std::string_view> methods;
  for (const auto table : kDialectTables) {
    for (const Dialect* dialect : table)
      std::ranges::copy(dialect->methods, std::back_inserter(methods));
  }
  std::erase(methods, "");
  return methods;
}

const Dialect& dialect_of(const ModelConfig& config, std::span<const std::string> files) {
  const Dialect* dialect = known_dialect(config, files);
  if (dialect == nullptr) throw unread_form(config);
  return *dialect;
}

std::string_view activations_name(Activations activations) {
  return kActivations[static_cast<std::size_t>(activations)];
}

Shape part_shape(const PartRow& row, SchemeId scheme, const Shape& weight,
                 std::array<std::uint64_t, 2> group) {
  Shape part = weight;
  switch (row.shape) {
    case PartShape::kCodes:
      if (!part.empty()) part.back() = packing(scheme, row.dtype).elements_of(part.back());
      return part;
    case PartShape::kGrid:
      return block_scale_shape(weight, group[0], group[1]);
    case PartShape::kSpread:
      return spread_shape(block_scale_shape(weight, group[0], group[1]));
    case PartShape::kScalar:
      return {};
    case PartShape::kOne:
      return {1};
    case PartShape::kPerRow:
      part.pop_back();
      return part;
    case PartShape::kColumn:
      part.back() = 1;
      return part;
    case PartShape::kZeros:
      return block_scale_shape(weight, kZerosPerWord, group[1]);
    case PartShape::kPerCol:
      return {weight.back()};
    case PartShape::kTwo:
      return {2};
    case PartShape::kBlocks:
      part = block_scale_shape(weight, 1, group[1]);
      part.push_back(packing(scheme, row.dtype).elements_of(group[1]));
      return part;
  }
  return {};
}

const Dialect& default_dialect(SchemeId scheme, std::optional<Activations> activations) {
  const StorageRow* native = find_storage(kDeepseekDialect, scheme, activations);
  const bool is_native = native != nullptr && !native->is_read_only;
  return is_native || !scheme_facts(scheme).quantized ? kDeepseekDialect
                                                      : kCompressedTensorsDialect;
}

bool can_be_quantized(const Dialect& dialect, const TensorRule& rule) {
  const bool is_router = rule.role == Role::kRouter || rule.role == Role::kSharedRouter;
  // The config decides: what an engine asks it about, and whatever a tower is made of.
  if (rule.fp8_by_default || rule.role == Role::kOtherModality ||
      (rule.silence == Silence::kQuantized && !is_router))
    return true;
  return (rule.may_be_quantized || rule.silence == Silence::kHead) &&
         dialect.heads != Heads::kPlain;
}

bool is_quantized_by_silence(const Dialect& dialect, const TensorRule& rule) {
  if (rule.fp8_by_default || rule.silence == Silence::kQuantized) return true;
  return rule.silence == Silence::kHead && dialect.heads == Heads::kBySilence;
}

const StorageRow* find_storage(const Dialect& dialect, SchemeId scheme,
                               std::optional<Activations> activations) {
  return find_storage(dialect.storage, scheme, activations);
}

const StorageRow* find_storage(const Dialect& dialect, const Family& family, SchemeId scheme,
                               std::optional<Activations> activations) {
  const auto [native, own] = storage_rows(dialect, family);
  const StorageRow* row = find_storage(native, scheme, activations);
  return row != nullptr ? row : find_storage(own, scheme, activations);
}

std::array<std::span<const StorageRow>, 2> storage_rows(const Dialect& dialect,
                                                        const Family& family) {
  std::span<const StorageRow> own;
  if (is_native(dialect, family)) {
    own = dialect.native_storage;
  } else if (dialect.expert_storage != nullptr) {
    own = dialect.expert_storage(family);
  }
  return {own, dialect.storage};
}

bool is_of_experts(const Dialect& dialect, const Family& family, SchemeId scheme) {
  return !is_native(dialect, family) && dialect.expert_storage != nullptr &&
         find_storage(dialect.expert_storage(family), scheme, std::nullopt) != nullptr;
}

bool is_native(const Dialect& dialect, const Family& family) {
  return !dialect.native_storage.empty() && family.dialect == dialect.name;
}

bool holds_mixtures(const Dialect& dialect, const Family& family) {
  return dialect.holds_mixtures || is_native(dialect, family);
}

const PartRow* find_part_row(const StorageRow& storage, Part part) {
  const auto row = std::ranges::find(storage.parts, part, &PartRow::part);
  return row == storage.parts.end() ? nullptr : &*row;
}

const StorageRow* find_storage(const Dialect& dialect, std::string_view config_name) {
  const auto row = std::ranges::find(dialect.storage, config_name, &StorageRow::config_name);
  return row == dialect.storage.end() ? nullptr : &*row;
}

std::string part_name(const PartRow& row, std::string_view weight_name) {
  std::string name(weight_name);
  const std::string_view suffix = row.suffix;
  if (weight_name.ends_with(kWeightSuffix)) {
    name.resize(name.size() - kWeightSuffix.size());
    return name.append(suffix);
  }
  // Codes of a stack have the stack's own name, unless only stacks have a suffix.
  const bool is_own = row.part == Part::kWeight && suffix.starts_with(kWeightSuffix);
  return is_own ? name : name.append(stacked_suffix(suffix));
}

std::string stacked_suffix(std::string_view suffix) {
  if (suffix.starts_with(kWeightSuffix)) return std::string(suffix.substr(kWeightSuffix.size()));
  INGOT_CHECK(suffix.starts_with('.'));
  return std::string("_").append(suffix.substr(1));
}

std::array<std::uint64_t, 2> fp8_block_size(const ModelConfig& config) {
  if (config.quantization && config.quantization->weight_block_size)
    return *config.quantization->weight_block_size;
  const Dialect* dialect = known_dialect(config);
  const Json* block = dialect == nullptr ? nullptr : source_block(config, *dialect);
  if (block == nullptr || dialect->block_size == nullptr) return kReleasedBlock;
  return dialect->block_size(*block).value_or(kReleasedBlock);
}

const Json* source_block(const ModelConfig& source, const Dialect& dialect) {
  if (!source.quantization || known_dialect(source) != &dialect) return nullptr;
  const Json& block = quantization_block(source);
  return block.is_object() ? &block : nullptr;
}

std::string_view module_name(std::string_view weight_name) {
  if (weight_name.ends_with(kWeightSuffix)) weight_name.remove_suffix(kWeightSuffix.size());
  return weight_name;
}

std::vector<std::string> silent_modules(std::span<const WrittenTensor> written,
                                        const Dialect& dialect) {
  std::vector<std::string> modules;
  for (const WrittenTensor& tensor : written) {
    if (tensor.rule == nullptr || scheme_facts(tensor.scheme).quantized) continue;
    if (is_quantized_by_silence(dialect, *tensor.rule))
      modules.emplace_back(module_name(tensor.name));
  }
  std::sort(modules.begin(), modules.end());
  return modules;
}

bool any_quantized(std::span<const WrittenTensor> written) {
  return std::any_of(written.begin(), written.end(), [](const WrittenTensor& tensor) {
    return scheme_facts(tensor.scheme).quantized;
  });
}

std::vector<std::string> string_list(const Json& block, const char* key) {
  const Json& list = json_member(block, key);
  std::vector<std::string> strings = strings_at(block, key);
  if (list.is_null() || (list.is_array() && strings.size() == list.size())) return strings;
  throw Error(ErrorCode::kCorrupt, "'quantization_config.{}' is not a list of strings", key)
      .in_file("config.json");
}

void merge_into_list(Json& block, const char* key, const std::vector<std::string>& modules) {
  std::vector<std::string> all = string_list(block, key);
  all.insert(all.end(), modules.begin(), modules.end());
  sort_unique(all);
  block[key] = all;
}

QuantizationGroup group_of(const WrittenTensor& tensor, const ModelConfig& source) {
  QuantizationGroup group{.scheme = tensor.scheme,
                          .activations = tensor.activations,
                          .has_zero_points = tensor.has_zero_points,
                          .has_group_order = tensor.has_group_order};
  const SchemeFacts& facts = scheme_facts(tensor.scheme);
  if (facts.chooses_cols) {
    group.block = tensor.block;
  } else if (facts.group_rows > 1) {
    const bool is_known = tensor.block[0] != 0 && tensor.block[1] != 0;
    group.block = is_known ? tensor.block : fp8_block_size(source);
  }
  return group;
}

WrittenGroups written_groups(const WrittenModel& model) {
  std::set<QuantizationGroup> groups;
  for (const WrittenTensor& tensor : model.tensors) {
    if (is_quantized(tensor.scheme)) groups.insert(group_of(tensor, model.source));
  }
  WrittenGroups result{.groups = {groups.begin(), groups.end()}, .modules = {}};
  for (const WrittenTensor& tensor : model.tensors) {
    std::uint32_t cls = 0;
    if (scheme_facts(tensor.scheme).quantized) {
      const auto at = std::lower_bound(result.groups.begin(), result.groups.end(),
                                       group_of(tensor, model.source));
      cls = static_cast<std::uint32_t>(at - result.groups.begin()) + 1;
    } else if (!is_plain_matrix(tensor)) {
      continue;
    }
    result.modules.push_back({.name = std::string(module_name(tensor.name)), .cls = cls});
  }
  return result;
}

SourceActivations::SourceActivations(const ModelConfig& config, const Dialect& dialect,
                                     const Json& description)
    : dialect_(&dialect) {
  if (dialect.config_forms != nullptr) forms_ = dialect.config_forms(config, description, nullptr);
  if (!forms_) forms_ = [](std::string_view) { return ConfigForm(); };
}

Activations SourceActivations::of(std::string_view name, const Encoding& encoding) const {
  const bool has_inputs = encoding.stored.has(Part::kInputScale);
  const ConfigForm said = forms_(name);
  if (said.activations && said.scheme == encoding.scheme) return *said.activations;
  if (said.activations && !said.scheme) {
    const bool is_possible = said.activations != Activations::kStatic || has_inputs;
    if (is_possible && find_storage(*dialect_, encoding.scheme, said.activations) != nullptr)
      return *said.activations;
  }
  if (has_inputs) return Activations::kStatic;
  const StorageRow* row = find_storage(*dialect_, encoding.scheme);
  if (row != nullptr) return row->activations;
  // Codes of 4 bits in a dialect that does not write them are there for their size: DeepSeek-V4's
  // FP4 experts have no activations in FP4.
  const CodeKind code = scheme_facts(encoding.scheme).code;
  return code == CodeKind::kE2m1 ? Activations::kWeightOnly : Activations::kDynamic;
}

std::string SourceActivations::text(std::string_view name, const Encoding& encoding) const {
  const Activations activations = of(name, encoding);
  if (activations == Activations::kWeightOnly) return std::string(activations_name(activations));
  const ConfigForm form = forms_(name);
  if (form.numbers && form.scheme == encoding.scheme)
    if (std::string said = form.numbers(); !said.empty()) return said;
  // Where nothing else is said they become numbers of the weights' kind.
  const CodeKind code = scheme_facts(encoding.scheme).code;
  const bool is_integer = code == CodeKind::kInt8 || code == CodeKind::kInt4;
  return fmt::format("{} in {} bits of type {}", activations_name(activations),
                     scheme_facts(encoding.scheme).code_bits, is_integer ? "int" : "float");
}

}  // namespace ingot::formats
