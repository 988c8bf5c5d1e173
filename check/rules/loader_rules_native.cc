#include <algorithm>

#include <fmt/format.h>

#include "check/rules/loader_rule_bodies.h"

// DeepSeek's own config says little: which modules are quantized follows from the model's code. So
// FP8 blocks and INT8 blocks under it make the same tests.

namespace ingot::formats::rule_bodies {
namespace {

// transformers reads the first, vLLM the second where it is there.
constexpr const char* kTransformersList = "modules_to_not_convert";
constexpr const char* kVllmList = "ignored_layers";

struct NativeFacts {
  std::string_view method;  ///< quant_method holds this word
  std::string_view word;    ///< for messages
};

template <NativeBlocks kBlocks>
constexpr NativeFacts kFacts = {.method = "fp8", .word = "FP8"};
template <>
constexpr NativeFacts kFacts<NativeBlocks::kInt8> = {.method = "blockwise_int8", .word = "INT8"};

bool is_float8(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 || dtype == DType::kF8E4M3Fnuz ||
         dtype == DType::kF8E5M2Fnuz;
}

template <NativeBlocks kBlocks>
bool is_code(DType dtype) {
  return kBlocks == NativeBlocks::kFp8 ? is_float8(dtype) : dtype == DType::kI8;
}

template <NativeBlocks kBlocks>
bool has_codes(const Checkpoint& checkpoint) {
  const auto stored = checkpoint.stored();
  return std::any_of(stored.begin(), stored.end(),
                     [](const StoredTensor& tensor) { return is_code<kBlocks>(tensor.dtype); });
}

template <NativeBlocks kBlocks>
bool claims(const Checkpoint& checkpoint) {
  const auto& quantization = checkpoint.config().quantization;
  return quantization &&
         quantization->quant_method.find(kFacts<kBlocks>.method) != std::string::npos;
}

bool has_key(const Checkpoint& checkpoint, const char* key) {
  const Json* block = config_block(checkpoint);
  return block != nullptr && block->contains(key) && !block->at(key).is_null();
}

// The modules that the config exempts, in either spelling.
std::vector<std::string> ignored_modules(const Checkpoint& checkpoint) {
  std::vector<std::string> modules;
  const Json* block = config_block(checkpoint);
  if (block == nullptr) return modules;
  for (const char* key : {kVllmList, kTransformersList}) {
    for (std::string& module : strings_at(*block, key)) modules.push_back(std::move(module));
  }
  return modules;
}

bool is_ignored(std::string_view weight, const std::vector<std::string>& modules) {
  return std::any_of(modules.begin(), modules.end(), [&](const std::string& module) {
    return weight.substr(0, module.size()) == module &&
           (weight.size() == module.size() || weight[module.size()] == '.');
  });
}

// Without them, each weight has one scale.
bool has_blocks(const Checkpoint& checkpoint) {
  const auto tensors = checkpoint.tensors();
  const bool has_whole = std::any_of(
      tensors.begin(), tensors.end(),
      [](const LogicalTensor& tensor) { return tensor.encoding.scheme == SchemeId::kFp8Tensor; });
  return !has_whole || std::any_of(tensors.begin(), tensors.end(), [](const LogicalTensor& tensor) {
    return tensor.encoding.scheme == SchemeId::kFp8Block;
  });
}

bool family_has_quantized(const Family& family) {
  return std::any_of(family.rules.begin(), family.rules.end(),
                     [](const TensorRule& rule) { return rule.fp8_by_default; });
}

}  // namespace

void fp8_silent_module(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  if (!claims<NativeBlocks::kFp8>(checkpoint) || !has_codes<NativeBlocks::kFp8>(checkpoint)) return;
  const Json* block = config_block(checkpoint);
  if (block == nullptr) return;
  std::vector<std::string> read = strings_at(*block, kVllmList);
  if (read.empty()) read = strings_at(*block, kTransformersList);
  std::sort(read.begin(), read.end());
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    // What a release quantizes is the business of fp8.weight-quantized.
    if (tensor.rule == nullptr || tensor.rule->fp8_by_default || is_quantized(tensor)) continue;
    if (!is_quantized_by_silence(checkpoint.dialect(), *tensor.rule)) continue;
    // By the whole name, as vLLM looks for it.
    if (std::binary_search(read.begin(), read.end(), module_name(tensor.name))) continue;
    found.add(tensor.rule,
              at(checkpoint, codes_of(checkpoint, tensor), ErrorCode::kMismatch,
                 "is plain, but vLLM builds it with the quantization config: it would become FP8 "
                 "under a scale that nobody loads (list its module in modules_to_not_convert)"));
  }
  found.report(report);
}

void fp8_head_listed(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  if (!claims<NativeBlocks::kFp8>(checkpoint)) return;
  const Json* block = config_block(checkpoint);
  if (block == nullptr) return;
  const std::vector<std::string> listed = strings_at(*block, kTransformersList);
  if (listed.empty()) return;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.rule == nullptr || tensor.rule->role != Role::kHead || is_quantized(tensor))
      continue;
    const std::string_view module = module_name(tensor.name);
    const bool is_listed = is_ignored(tensor.name, listed) ||
                           std::any_of(listed.begin(), listed.end(), [&](const std::string& entry) {
                             return module.ends_with(entry);
                           });
    if (is_listed) continue;
    report(at(checkpoint, codes_of(checkpoint, tensor), ErrorCode::kMismatch,
              fmt::format("is not in {}, and transformers leaves it plain by itself only where "
                          "there is no list (list {})",
                          kTransformersList, module)));
  }
}

void fp8_config_present(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  // Without a config at all the structure has said so.
  if (!checkpoint.config().raw.is_object()) return;
  if (checkpoint.config().quantization || !has_codes<NativeBlocks::kFp8>(checkpoint)) return;
  report(in_config(
      ErrorCode::kNotFound,
      "has no quantization_config, but there are FP8 weights (copy it from the release)"));
}

template <NativeBlocks kBlocks>
void native_config_without_weights(const Checkpoint& checkpoint, const RuleOptions&,
                                   const Report& report) {
  if (checkpoint.stored().empty() || !claims<kBlocks>(checkpoint) || has_codes<kBlocks>(checkpoint))
    return;
  if (is_part_of_model(checkpoint)) return;
  report(in_config(ErrorCode::kMismatch,
                   fmt::format("promises {0} weights, but no weight is {0} (remove "
                               "quantization_config)",
                               kFacts<kBlocks>.word)));
}

template <NativeBlocks kBlocks>
void native_activation_scheme(const Checkpoint& checkpoint, const RuleOptions&,
                              const Report& report) {
  if (!claims<kBlocks>(checkpoint)) return;
  const std::string& scheme = checkpoint.config().quantization->activation_scheme;
  if (!has_key(checkpoint, "activation_scheme")) {
    report(in_config(ErrorCode::kNotFound,
                     "quantization_config has no activation_scheme (\"dynamic\")"));
  } else if (scheme != "dynamic" && has_key(checkpoint, "weight_block_size")) {
    report(
        in_config(ErrorCode::kUnsupported,
                  fmt::format("activation_scheme is '{}', block scales need 'dynamic'", scheme)));
  }
}

template <NativeBlocks kBlocks>
void native_block_size(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  if (!claims<kBlocks>(checkpoint) || !has_codes<kBlocks>(checkpoint)) return;
  const Json* block = config_block(checkpoint);
  if (block == nullptr) return;
  const auto size = block->find("weight_block_size");
  if (!has_blocks(checkpoint)) {
    if (size == block->end() || size->is_null()) return;
    report(in_config(ErrorCode::kMismatch,
                     "quantization_config has a weight_block_size, but no weight has a scale per "
                     "block (remove it)"));
    return;
  }
  const auto is_positive = [](const Json& n) { return n.is_number_unsigned() && n != 0; };
  if (size == block->end() || !size->is_array() || size->size() != 2 ||
      !std::all_of(size->begin(), size->end(), is_positive)) {
    report(in_config(
        ErrorCode::kCorrupt,
        "quantization_config has no weight_block_size of two positive numbers ([128, 128])"));
  }
}

template <NativeBlocks kBlocks>
void native_weight_quantized(const Checkpoint& checkpoint, const RuleOptions&,
                             const Report& report) {
  if (!claims<kBlocks>(checkpoint) || !has_codes<kBlocks>(checkpoint)) return;
  const std::vector<std::string> ignored = ignored_modules(checkpoint);
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.rule == nullptr || !tensor.rule->fp8_by_default) continue;
    if (is_quantized(tensor) || is_ignored(tensor.name, ignored)) continue;
    const StoredTensor& stored = codes_of(checkpoint, tensor);
    if (is_code<kBlocks>(stored.dtype)) continue;
    found.add(tensor.rule,
              at(checkpoint, stored, ErrorCode::kDtypeMismatch,
                 fmt::format("is {} where loaders expect {} and a scale (list its module in "
                             "modules_to_not_convert)",
                             dtype_name(stored.dtype), kFacts<kBlocks>.word)));
  }
  found.report(report);
}

template <NativeBlocks kBlocks>
void native_plain_module(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  if (!family_has_quantized(checkpoint.family())) return;
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.rule == nullptr || can_be_quantized(checkpoint.dialect(), *tensor.rule)) continue;
    const StoredTensor& stored = codes_of(checkpoint, tensor);
    if (!is_code<kBlocks>(stored.dtype)) continue;
    found.add(tensor.rule, at(checkpoint, stored, ErrorCode::kDtypeMismatch,
                              fmt::format("is {}, but loaders build this module unquantized",
                                          dtype_name(stored.dtype))));
  }
  found.report(report);
}

template void native_config_without_weights<NativeBlocks::kFp8>(const Checkpoint&,
                                                                const RuleOptions&, const Report&);
template void native_config_without_weights<NativeBlocks::kInt8>(const Checkpoint&,
                                                                 const RuleOptions&, const Report&);
template void native_activation_scheme<NativeBlocks::kFp8>(const Checkpoint&, const RuleOptions&,
                                                           const Report&);
template void native_activation_scheme<NativeBlocks::kInt8>(const Checkpoint&, const RuleOptions&,
                                                            const Report&);
template void native_block_size<NativeBlocks::kFp8>(const Checkpoint&, const RuleOptions&,
                                                    const Report&);
template void native_block_size<NativeBlocks::kInt8>(const Checkpoint&, const RuleOptions&,
                                                     const Report&);
template void native_weight_quantized<NativeBlocks::kFp8>(const Checkpoint&, const RuleOptions&,
                                                          const Report&);
template void native_weight_quantized<NativeBlocks::kInt8>(const Checkpoint&, const RuleOptions&,
                                                           const Report&);
template void native_plain_module<NativeBlocks::kFp8>(const Checkpoint&, const RuleOptions&,
                                                      const Report&);
template void native_plain_module<NativeBlocks::kInt8>(const Checkpoint&, const RuleOptions&,
                                                       const Report&);

}  // namespace ingot::formats::rule_bodies
