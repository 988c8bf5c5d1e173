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
/// encode each band, and writes the result. One for each thread, whose buffers it has.
class BandLoop {
 public:
  explicit BandLoop(RunContext& context);

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

  /// Reads a stored tensor now and keeps it until forget_kept(): a second pass reads memory. All
  /// that is kept has at most `n_bytes`.
  void keep(std::uint32_t stored, std::uint64_t n_bytes);
  void forget_kept();

 private:
  template <typename Step>
  void for_each(const BandPlan& bands, const Step& step);
  std::span<const std::byte> read(std::uint32_t stored, std::uint64_t offset,
                                  std::span<std::byte> buffer);

  RunContext& context_;
  std::vector<std::byte> input_, output_;
  std::vector<std::byte> kept_bytes_;
  std::uint64_t n_kept_ = 0;
  std::map<std::uint32_t, std::span<const std::byte>> kept_;  // by stored tensor
};

}  // namespace ingot::convert
