#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "check/check.h"
#include "formats/records/slicing_record.h"
#include "synth/synth.h"
#include "tests/check/editable_checkpoint.h"
#include "tests/check/findings.h"
#include "tests/check/rules/spelled_checkpoint.h"
#include "tests/support/temp_dir.h"

// Shared by the tests of rank directories: models that 2 ranks can cut, and how to check one rank.

namespace ingot::testing {

/// How a model is to be cut. Tensors are recognised by their names, and everything is computed here
/// from the definition of the topology, not by the product.
struct CutPlan {
  std::uint32_t tp = 1, ep = 1, etp = 1;
  std::vector<std::uint32_t> stage_layers = {0, 2};  ///< main layers
  std::uint32_t n_layers = 3;                        ///< with those of multi-token prediction
  std::uint32_t n_experts = 4;
  std::uint32_t kv_heads = ~std::uint32_t{0};  ///< of k_proj and v_proj
  /// Logical experts by slot of each EP rank; contiguous blocks when empty.
  std::vector<std::vector<std::uint32_t>> slots = {};
  bool places_shared = false;  ///< the shared expert is in a slot, as number n_experts

  [[nodiscard]] std::uint32_t pp() const {
    return static_cast<std::uint32_t>(stage_layers.size()) - 1;
  }
  [[nodiscard]] std::uint32_t ranks_per_stage() const;
  [[nodiscard]] std::uint32_t n_ranks() const { return pp() * ranks_per_stage(); }
};

/// The contents of one rank, to be changed and written.
struct RankDirectory {
  EditableCheckpoint model;
  std::map<std::string, formats::SliceRecord> slices;  ///< by stored tensor
  formats::SlicingRecord slicing;

  /// Weights, config.json and descriptions, then records and manifest that agree with them.
  void write(const std::filesystem::path& directory) const;
  /// The same, without the manifest, so that a test may change the files first.
  void write_weights(const std::filesystem::path& directory) const { model.write(directory); }
};

RankDirectory cut_for_rank(const EditableCheckpoint& whole, const CutPlan& plan,
                           std::uint32_t rank);

/// One of `n` equal slices of a tensor along `axis`, within each of `sections` equal parts.
EditableCheckpoint::Tensor slice_of(const EditableCheckpoint::Tensor& whole, std::size_t axis,
                                    std::uint64_t n, std::uint64_t index,
                                    std::uint64_t sections = 1);

/// A name of a rank's directory.
std::string rank_name(std::uint32_t rank, std::uint32_t n_ranks);

/// Writes every rank below `directory`, and the top manifest.
void write_all_ranks(const EditableCheckpoint& whole, const CutPlan& plan,
                     const std::filesystem::path& directory);

/// The top manifest over directories that are written already.
void write_top_manifest(const std::filesystem::path& directory, const CutPlan& plan);

/// Records and a manifest of the weights and side files in a directory.
void write_manifest_of(const std::filesystem::path& directory,
                       const formats::SlicingRecord& slicing,
                       const std::map<std::string, formats::SliceRecord>& slices,
                       const std::string& layout);

/// A V3.2 in FP8 blocks whose widths 2 ranks can cut at the edges of blocks: layer 0 dense, 1 a
/// mixture of 4 experts, 2 for multi-token prediction.
void even_widths(formats::SynthOptions& options);

using check::CheckResult;
using check::Finding;
using formats::Checkpoint;
using formats::LogicalTensor;
using formats::SynthOptions;

inline const EditableCheckpoint& fp8_model() {
  static const EditableCheckpoint model = make_synthetic(even_widths);
  return model;
}

inline EditableCheckpoint plain_model() {
  static const EditableCheckpoint model = make_synthetic([](SynthOptions& options) {
    even_widths(options);
    options.fp8 = false;
  });
  return model;
}

inline EditableCheckpoint spelled_model(const Spelled& spelled) {
  return make_spelled(spelled, [](SynthOptions& options) {
    even_widths(options);
    options.fp8 = false;
  });
}

inline CheckResult check_rank(const RankDirectory& rank) {
  const TempDir dir;
  rank.write(dir / "rank");
  return check::check_checkpoint(dir / "rank", {.threads = 2});
}

// The one finding of a directory, which names tensor and facts.
inline void expect_finding(const RankDirectory& rank, ErrorCode code, const std::string& tensor,
                           std::initializer_list<std::string> facts) {
  const Finding finding = only(check_rank(rank).findings);
  EXPECT_EQ(error_code_name(finding.code), error_code_name(code)) << finding.message;
  EXPECT_EQ(finding.tensor, tensor);
  for (const std::string& fact : facts) EXPECT_THAT(finding.message, ::testing::HasSubstr(fact));
}

inline const LogicalTensor& logical(const Checkpoint& checkpoint, std::string_view name) {
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.name == name) return tensor;
  }
  throw std::runtime_error("no logical tensor " + std::string(name));
}

inline const std::string kGateOfDense = "model.layers.0.mlp.gate_proj.weight";
inline const std::string kDownOfDense = "model.layers.0.mlp.down_proj.weight";
inline const std::string kNormOfDense = "model.layers.0.input_layernorm.weight";
inline const std::string kUpOfExpert3 = "model.layers.1.mlp.experts.3.up_proj.weight";

}  // namespace ingot::testing
