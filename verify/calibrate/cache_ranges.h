#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/container/safetensors.h"
#include "inference/model/spec/layer_spec.h"
#include "verify/calibrate/planned_file.h"

namespace ingot::verify {

/// The largest magnitudes of what attention caches: of each head's keys and values, or of latent
/// and rotated key. Mixers that keep states, and compressed entries, have none.
class CacheRanges {
 public:
  CacheRanges(const formats::Checkpoint& source, const inference::ModelSpec& spec);

  /// The tensors of the first `n_layers` layers.
  [[nodiscard]] std::vector<formats::TensorSpec> tensors(std::size_t n_layers) const;
  /// Forgets the magnitudes of a layer.
  void begin(std::size_t layer);
  /// Looks at vectors as inference::Taps::cache shows them.
  void see(std::size_t layer, std::size_t first_stream, std::size_t stream,
           formats::MatrixView<const float> values);
  /// Writes the magnitudes of a layer that ran.
  void write(std::size_t layer, PlannedFile& file) const;

 private:
  struct Place {
    std::size_t layer = 0, first_stream = 0, stream = 0;
    auto operator<=>(const Place&) const = default;
  };
  struct Range {
    std::string tensor;
    std::vector<float> amax;  // of each head
  };
  std::map<Place, Range> ranges_;
};

}  // namespace ingot::verify
