#pragma once

#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "check/rules/loader_rules.h"
#include "formats/dialect/engine_limits.h"

/// The tests behind the rows of loader_rules.cc, one header for the files that define them.
/// Internal: only those files and the table include this.
namespace ingot::formats::rule_bodies {

using Report = std::function<void(Finding)>;

// loader_rules_native.cc: JSON around DeepSeek's own blocks, of FP8 or of INT8.
enum class NativeBlocks : std::uint8_t { kFp8, kInt8 };
template <NativeBlocks kBlocks>
void native_config_without_weights(const Checkpoint&, const RuleOptions&, const Report&);
template <NativeBlocks kBlocks>
void native_activation_scheme(const Checkpoint&, const RuleOptions&, const Report&);
template <NativeBlocks kBlocks>
void native_block_size(const Checkpoint&, const RuleOptions&, const Report&);
template <NativeBlocks kBlocks>
void native_weight_quantized(const Checkpoint&, const RuleOptions&, const Report&);
template <NativeBlocks kBlocks>
void native_plain_module(const Checkpoint&, const RuleOptions&, const Report&);
void fp8_config_present(const Checkpoint&, const RuleOptions&, const Report&);
void fp8_silent_module(const Checkpoint&, const RuleOptions&, const Report&);
void fp8_head_listed(const Checkpoint&, const RuleOptions&, const Report&);

// loader_rules_fp8.cc
void fp8_block_of_128(const Checkpoint&, const RuleOptions&, const Report&);
void fp8_weight_dtype(const Checkpoint&, const RuleOptions&, const Report&);
void fp8_scale_present(const Checkpoint&, const RuleOptions&, const Report&);
void fp8_scale_dtype(const Checkpoint&, const RuleOptions&, const Report&);
void fp8_scale_shape(const Checkpoint&, const RuleOptions&, const Report&);
void fp8_scale_values(const Checkpoint&, const RuleOptions&, const Report&);
void fp8_ue8m0_claim(const Checkpoint&, const RuleOptions&, const Report&);
void fp8_nan_code(const Checkpoint&, const RuleOptions&, const Report&);
void fp8_merged_partition(const Checkpoint&, const RuleOptions&, const Report&);

// loader_rules_int8.cc
void int8_scale_present(const Checkpoint&, const RuleOptions&, const Report&);
void int8_scale_dtype(const Checkpoint&, const RuleOptions&, const Report&);
void int8_scale_shape(const Checkpoint&, const RuleOptions&, const Report&);
void int8_scale_values(const Checkpoint&, const RuleOptions&, const Report&);

// loader_rules_nvfp4.cc
void nvfp4_parts(const Checkpoint&, const RuleOptions&, const Report&);
void nvfp4_dtypes(const Checkpoint&, const RuleOptions&, const Report&);
void nvfp4_columns(const Checkpoint&, const RuleOptions&, const Report&);
void nvfp4_scale_shape(const Checkpoint&, const RuleOptions&, const Report&);
void nvfp4_global_one_element(const Checkpoint&, const RuleOptions&, const Report&);
void nvfp4_global_convention(const Checkpoint&, const RuleOptions&, const Report&);
void nvfp4_scale_values(const Checkpoint&, const RuleOptions&, const Report&);
void nvfp4_global_values(const Checkpoint&, const RuleOptions&, const Report&);
void nvfp4_reciprocal(const Checkpoint&, const RuleOptions&, const Report&);

// loader_rules_mx.cc
void mx_columns(const Checkpoint&, const RuleOptions&, const Report&);
void mx_scale_dtype(const Checkpoint&, const RuleOptions&, const Report&);
void mx_scale_values(const Checkpoint&, const RuleOptions&, const Report&);

// loader_rules_engine.cc
void engine_refused_by_all(const Checkpoint&, const RuleOptions&, const Report&);
template <Engine kEngine>
void engine_refused_by(const Checkpoint&, const RuleOptions&, const Report&);
void plain_module(const Checkpoint&, const RuleOptions&, const Report&);

// loader_rules_spelling.cc: what the dialect's row says of a scheme.
void quantized_config_present(const Checkpoint&, const RuleOptions&, const Report&);
void quantized_config_without_weights(const Checkpoint&, const RuleOptions&, const Report&);
void quantized_scheme_held(const Checkpoint&, const RuleOptions&, const Report&);
void quantized_one_scheme(const Checkpoint&, const RuleOptions&, const Report&);
void quantized_part_names(const Checkpoint&, const RuleOptions&, const Report&);
void quantized_part_shapes(const Checkpoint&, const RuleOptions&, const Report&);

// loader_rules_ct.cc
void ct_config_keys(const Checkpoint&, const RuleOptions&, const Report&);
void ct_format_known(const Checkpoint&, const RuleOptions&, const Report&);
void ct_format_agrees(const Checkpoint&, const RuleOptions&, const Report&);
void ct_targets(const Checkpoint&, const RuleOptions&, const Report&);
void ct_ignore(const Checkpoint&, const RuleOptions&, const Report&);
void ct_ignore_never_quantized(const Checkpoint&, const RuleOptions&, const Report&);
void ct_mtp_names(const Checkpoint&, const RuleOptions&, const Report&);
void ct_static_input_scale(const Checkpoint&, const RuleOptions&, const Report&);
void ct_joined_scales(const Checkpoint&, const RuleOptions&, const Report&);

// loader_rules_config.cc
void config_contradiction(const Checkpoint&, const RuleOptions&, const Report&);
void no_adapter(const Checkpoint&, const RuleOptions&, const Report&);
void quantized_known_keys(const Checkpoint&, const RuleOptions&, const Report&);
void quantized_cache_scales(const Checkpoint&, const RuleOptions&, const Report&);
void modelopt_cache_scales(const Checkpoint&, const RuleOptions&, const Report&);
void native_ignored_quantized(const Checkpoint&, const RuleOptions&, const Report&);
void fp8_format_words(const Checkpoint&, const RuleOptions&, const Report&);
void fp8_ue8m0_unsaid(const Checkpoint&, const RuleOptions&, const Report&);
void input_scale_range(const Checkpoint&, const RuleOptions&, const Report&);

// loader_rules_arguments.cc
void ct_activations(const Checkpoint&, const RuleOptions&, const Report&);
void ct_arguments(const Checkpoint&, const RuleOptions&, const Report&);
void ct_transforms(const Checkpoint&, const RuleOptions&, const Report&);
void modelopt_arguments(const Checkpoint&, const RuleOptions&, const Report&);
void modelopt_statements_agree(const Checkpoint&, const RuleOptions&, const Report&);

// loader_rules_modelopt.cc
void modelopt_description_present(const Checkpoint&, const RuleOptions&, const Report&);
void modelopt_required_keys(const Checkpoint&, const RuleOptions&, const Report&);
void modelopt_exclude_not_empty(const Checkpoint&, const RuleOptions&, const Report&);
void modelopt_quant_algo(const Checkpoint&, const RuleOptions&, const Report&);
void modelopt_algo_of_sglang(const Checkpoint&, const RuleOptions&, const Report&);
void modelopt_exclude_quantized(const Checkpoint&, const RuleOptions&, const Report&);
void modelopt_exclude_inside(const Checkpoint&, const RuleOptions&, const Report&);
void modelopt_exclude_plain(const Checkpoint&, const RuleOptions&, const Report&);
void modelopt_exclude_plain_whole(const Checkpoint&, const RuleOptions&, const Report&);
void modelopt_mtp_head(const Checkpoint&, const RuleOptions&, const Report&);
void modelopt_input_scale(const Checkpoint&, const RuleOptions&, const Report&);

// loader_rules_modelslim.cc
void modelslim_description_present(const Checkpoint&, const RuleOptions&, const Report&);
void modelslim_no_quantization_config(const Checkpoint&, const RuleOptions&, const Report&);
void modelslim_model_type(const Checkpoint&, const RuleOptions&, const Report&);
void modelslim_description_complete(const Checkpoint&, const RuleOptions&, const Report&);
void modelslim_types_known(const Checkpoint&, const RuleOptions&, const Report&);
void modelslim_types_agree(const Checkpoint&, const RuleOptions&, const Report&);
void modelslim_fused_types(const Checkpoint&, const RuleOptions&, const Report&);
void modelslim_static_parts(const Checkpoint&, const RuleOptions&, const Report&);
void modelslim_deq_scale_dtype(const Checkpoint&, const RuleOptions&, const Report&);
void modelslim_kv_b_float(const Checkpoint&, const RuleOptions&, const Report&);

// loader_rules_fused.cc
void fused_scheme(const Checkpoint&, const RuleOptions&, const Report&);
void fused_global(const Checkpoint&, const RuleOptions&, const Report&);
void indexer_k_scheme(const Checkpoint&, const RuleOptions&, const Report&);

// loader_rules_cut.cc
void cut_at_group_edge(const Checkpoint&, const RuleOptions&, const Report&);

// loader_rules_model.cc
void metadata_format(const Checkpoint&, const RuleOptions&, const Report&);
void entry_point(const Checkpoint&, const RuleOptions&, const Report&);
void expert_ids(const Checkpoint&, const RuleOptions&, const Report&);
void stacked_shape(const Checkpoint&, const RuleOptions&, const Report&);
void correction_bias(const Checkpoint&, const RuleOptions&, const Report&);
void correction_bias_dtype(const Checkpoint&, const RuleOptions&, const Report&);
void indexer_complete(const Checkpoint&, const RuleOptions&, const Report&);
void mtp_present(const Checkpoint&, const RuleOptions&, const Report&);
void mtp_complete(const Checkpoint&, const RuleOptions&, const Report&);
void model_complete(const Checkpoint&, const RuleOptions&, const Report&);
void model_shape(const Checkpoint&, const RuleOptions&, const Report&);

/// A finding whose row is filled in by run_loader_rules.
Finding violation(ErrorCode code, std::string_view file, std::string_view tensor,
                  std::string message);
/// The same at a tensor of the files, and in config.json.
Finding at(const Checkpoint& checkpoint, const StoredTensor& tensor, ErrorCode code,
           std::string message);
Finding in_config(ErrorCode code, std::string message);

/// The stored tensor that holds the codes or the plain numbers of a weight.
const StoredTensor& codes_of(const Checkpoint& checkpoint, const LogicalTensor& tensor);
/// The stored tensor of one part, or null.
const StoredTensor* part_of(const Checkpoint& checkpoint, const LogicalTensor& tensor, Part part);
bool is_quantized(const LogicalTensor& tensor);

/// The module that a loader makes of this weight and others, which must have one scheme: weights
/// with one key become one. Empty for a weight that stays by itself. Needs the family's row.
std::string fused_module(const LogicalTensor& tensor);

/// Whether other ranks of a sliced checkpoint hold weights of which nothing is here, while
/// config.json speaks of all.
bool is_part_of_model(const Checkpoint& checkpoint);

/// `quantization_config` of config.json, or null when there is none or it is no object.
const Json* config_block(const Checkpoint& checkpoint);
/// Rows and columns of a block; the released ones where the config is beyond reading.
std::array<std::uint64_t, 2> block_of(const Checkpoint& checkpoint);

/// The members of a list that are strings; nothing when `key` holds no list.
std::vector<std::string> strings_at(const Json& object, const char* key);

/// One finding for all tensors of a kind: what is wrong with one is wrong with its sisters in every
/// layer. A null kind is one of its own.
class FindingsByKind {
 public:
  void add(const TensorRule* kind, Finding finding);
  /// In the order in which the kinds were first seen; each says how many more there are.
  void report(const Report& report);

 private:
  std::unordered_map<const TensorRule*, std::size_t> index_;
  std::vector<std::pair<Finding, std::size_t>> found_;
};

}  // namespace ingot::formats::rule_bodies
