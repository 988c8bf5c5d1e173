#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "convert/plan/band.h"
#include "convert/run/part_writer.h"

namespace ingot::convert {

/// The one loop over the bytes of a conversion: reads a stored tensor band by band, has a step
/// encode each band, and writes the result. One for each thread, whose buffers it has. As a source
/// it is that of the plan, of which it reads what it keeps from memory.
class BandLoop final : public formats::TensorSource {
 public:
  /// `most_kept`: bytes that it may keep.
  BandLoop(RunContext& context, std::uint64_t most_kept);

  using Look = std::function<void(const Band& band, std::span<const std::byte> values)>;
  /// Makes `out` of the values of a band.
  using Recode = std::function<void(const Band& band, std::span<const std::byte> values,
                                    std::span<std::byte> out)>;

  /// Hashes of a part that was copied: of the bytes read, and of the bytes written, by slice.
  struct Copied {
    Hash128 source;
    std::vector<Hash128> output;
  };
  /// Copies a stored tensor, which is the whole of `part`; `look` sees every band, in order.
  Copied copy(std::uint32_t stored, PartWriter part, const Look& look = {});
  /// Writes the result of `recode` on a stored tensor, and returns the hash of the bytes read.
  /// `written` is called when a band has left the buffers: only then may other parts be written,
  /// since a thread that waits for memory must hold none.
  Hash128 recode(std::uint32_t stored, const BandPlan& bands, PartWriter& part,
                 const Recode& recode, const std::function<void()>& written = {});
  /// Reads a stored tensor and writes nothing.
  void look(std::uint32_t stored, const BandPlan& bands, const Look& look);
  Hash128 hash(std::uint32_t stored);

  /// Reads a stored tensor now, if there is room for it, and keeps it until forget_kept(): others
  /// read memory.
  void keep(std::uint32_t stored);
  void forget_kept();

  [[nodiscard]] const formats::ModelConfig& config() const override { return source_.config(); }
  [[nodiscard]] const formats::Family& family() const override { return source_.family(); }
  [[nodiscard]] std::span<const formats::LogicalTensor> tensors() const override {
    return source_.tensors();
  }
  [[nodiscard]] std::span<const formats::StoredTensor> stored() const override {
    return source_.stored();
  }
  [[nodiscard]] std::span<const formats::SourceFile> files() const override {
    return source_.files();
  }
  void read(std::uint32_t stored, std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  template <typename Step>
  void for_each(const BandPlan& bands, const Step& step);
  // Returns kept bytes, or reads them into `buffer`.
  std::span<const std::byte> bytes_of(std::uint32_t stored, std::uint64_t offset,
                                      std::span<std::byte> buffer) const;

  RunContext& context_;
  const formats::TensorSource& source_;
  std::vector<std::byte> input_, output_;
  std::vector<std::byte> kept_bytes_;
  std::uint64_t n_kept_ = 0, most_kept_;
  std::map<std::uint32_t, std::span<const std::byte>> kept_;  // by stored tensor
};

}  // namespace ingot::convert
