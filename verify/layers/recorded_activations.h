#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/fd.h"
#include "formats/container/tensor.h"
#include "inference/base/matrix.h"
#include "inference/model/step/step.h"

namespace ingot::verify {

/// Where the activations of one prompt stand in the file.
struct RecordedPrompt {
  std::string prefix;  ///< "prompt0.", or empty
  std::vector<std::int32_t> ids;
  std::map<std::size_t, formats::StoredTensor> hidden;  ///< [T, D], by L
  std::optional<formats::StoredTensor> logits;          ///< [T, V]
  std::optional<formats::StoredTensor> logits_last;     ///< [V] of the last token
  std::vector<std::int32_t> greedy;                     ///< empty: not recorded
};

/// A safetensors file with what another program computed: per prompt, under a prefix of its own or
/// none, `input_ids` [T], and as far as they are there `hidden.L` [T, D] (0 is the embedding, L the
/// output of layer L - 1 before any final norm), `logits` [T, V], `logits_last` [V], `greedy` [n].
/// Activations are F32, ids I64 or I32. Other names are left alone.
class RecordedActivations {
 public:
  /// Reads ids; of the rest the header. kCorrupt naming the tensor for what is no such file,
  /// kShapeMismatch for shapes that contradict `input_ids` or the model.
  RecordedActivations(const std::filesystem::path& path, const inference::ModelSpec& spec);

  [[nodiscard]] const std::vector<RecordedPrompt>& prompts() const { return prompts_; }
  /// `source` of the file's metadata, else "an unnamed program".
  [[nodiscard]] const std::string& recorded_by() const { return recorded_by_; }
  /// Rows [first, first + count) of a matrix; a vector is one row. kNonFinite naming the tensor.
  [[nodiscard]] inference::Matrix rows(const formats::StoredTensor& tensor, std::size_t first,
                                       std::size_t count) const;

 private:
  [[nodiscard]] std::vector<std::int32_t> ids(const formats::StoredTensor& tensor) const;
  void take(RecordedPrompt& prompt, std::string_view name, const formats::StoredTensor& tensor);

  Fd file_;
  inference::ModelSpec spec_;
  std::string recorded_by_ = "an unnamed program";
  std::vector<RecordedPrompt> prompts_;
};

}  // namespace ingot::verify
