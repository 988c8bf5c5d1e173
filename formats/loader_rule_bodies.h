#pragma once

#include <unordered_map>
#include <utility>

#include "formats/loader_rules.h"

/// The tests behind the rows of loader_rules.cc. Internal: only the files that define or list them
/// include this.
namespace ingot::formats::rule_bodies {

using Report = std::function<void(Finding)>;

// loader_rules_fp8.cc
void config_present(const Checkpoint&, const RuleOptions&, const Report&);
void config_without_weights(const Checkpoint&, const RuleOptions&, const Report&);
void activation_scheme(const Checkpoint&, const RuleOptions&, const Report&);
void block_size(const Checkpoint&, const RuleOptions&, const Report&);
void weight_quantized(const Checkpoint&, const RuleOptions&, const Report&);
void plain_module(const Checkpoint&, const RuleOptions&, const Report&);
void weight_dtype(const Checkpoint&, const RuleOptions&, const Report&);
void scale_present(const Checkpoint&, const RuleOptions&, const Report&);
void scale_dtype(const Checkpoint&, const RuleOptions&, const Report&);
void scale_shape(const Checkpoint&, const RuleOptions&, const Report&);
void scale_values(const Checkpoint&, const RuleOptions&, const Report&);
void ue8m0_claim(const Checkpoint&, const RuleOptions&, const Report&);
void nan_code(const Checkpoint&, const RuleOptions&, const Report&);
void merged_partition(const Checkpoint&, const RuleOptions&, const Report&);

// loader_rules_model.cc
void metadata_format(const Checkpoint&, const RuleOptions&, const Report&);
void entry_point(const Checkpoint&, const RuleOptions&, const Report&);
void fused_scheme(const Checkpoint&, const RuleOptions&, const Report&);
void expert_ids(const Checkpoint&, const RuleOptions&, const Report&);
void stacked_shape(const Checkpoint&, const RuleOptions&, const Report&);
void correction_bias(const Checkpoint&, const RuleOptions&, const Report&);
void correction_bias_dtype(const Checkpoint&, const RuleOptions&, const Report&);
void indexer_complete(const Checkpoint&, const RuleOptions&, const Report&);
void mtp_present(const Checkpoint&, const RuleOptions&, const Report&);
void mtp_complete(const Checkpoint&, const RuleOptions&, const Report&);
void model_complete(const Checkpoint&, const RuleOptions&, const Report&);
void model_shape(const Checkpoint&, const RuleOptions&, const Report&);

/// The bare name of the file that holds a stored tensor.
inline const std::string& file_of(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  return checkpoint.files()[tensor.file].name;
}

/// A finding whose row is filled in by run_loader_rules.
inline Finding violation(ErrorCode code, std::string_view file, std::string_view tensor,
                         std::string message) {
  return finding_of(Error(code, std::move(message)).in_file(file).in_tensor(tensor));
}

/// One finding for all tensors of a kind: what is wrong with one is wrong with its sisters in every
/// layer.
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
