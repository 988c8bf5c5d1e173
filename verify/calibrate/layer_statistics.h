#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "inference/model/step/step.h"
#include "inference/weights/input_observer.h"
#include "verify/calibrate/calibrated_modules.h"
#include "verify/calibrate/input_statistics.h"

namespace ingot::verify {

/// Statistics of the linears of one layer, while it runs.
class LayerStatistics final : public inference::InputObserver {
 public:
  explicit LayerStatistics(std::size_t threads) : threads_(threads) {}

  /// Forgets everything and looks at these from now on.
  void begin(std::span<const CalibratedModule* const> modules, std::size_t n_experts);
  void see(std::string_view weight, std::size_t matrix,
           formats::MatrixView<const float> x) override;
  /// Counts what the router chose.
  [[nodiscard]] inference::Taps taps();

  [[nodiscard]] std::span<const std::int64_t> expert_tokens() const { return expert_tokens_; }
  /// One per module of begin(), in its order. Of experts that no token reached: the maximum over
  /// their peers, of the same matrix, that some token did reach. An indexer's queries are made from
  /// what q_b_proj sees, and where no document is long enough for it to run, that stands for it.
  /// kUnsupported, naming the layer or module, when there is nothing to go by.
  [[nodiscard]] std::vector<InputSummary> summaries() const;
  /// Bytes that the statistics of these take.
  static std::uint64_t memory(std::span<const CalibratedModule* const> modules);

 private:
  using Key = std::pair<std::string, std::size_t>;  // weight and matrix
  [[nodiscard]] const InputStatistics* seen(const CalibratedModule& module) const;

  std::size_t threads_;
  std::vector<const CalibratedModule*> modules_;
  std::map<Key, InputStatistics> statistics_;
  std::vector<std::int64_t> expert_tokens_;
};

}  // namespace ingot::verify
