#pragma once

#include <cstddef>
#include <cstdint>

namespace ingot::inference {

/// Longest text in bytes, as given and after every step of a tokenizer's file, some of which make
/// texts longer.
inline constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;

/// Limits of the work on one text, since a tokenizer's file is an untrusted program: patterns that
/// go back and forth, steps that make a text longer. Throws kLimit beyond them. The measure is the
/// time of this thread's processor, many times what the slowest of well-known files takes: steps of
/// patterns cannot be counted from outside.
class TextWork {
 public:
  struct Limits {
    double seconds = 2, seconds_per_byte = 5e-6;
    std::size_t growth = 32, growth_at_least = 4096;
  };

  TextWork() : TextWork(Limits()) {}
  explicit TextWork(const Limits& limits) : limits_(limits) { resume(); }

  /// Counts given text. Throws kLimit beyond kMaxTextBytes.
  void give(std::size_t n_bytes);
  /// Throws kLimit for an intermediate text of such a length.
  void require_size(std::size_t n_bytes) const;
  /// Work between pause() and resume() does not count.
  void pause();
  void resume();
  /// Checks the limits and the scopes of formats/base/stop_scope.h; call it after work that may
  /// take long.
  void look();
  /// Counts one small thing, and looks after every 64 of them.
  void count() {
    if (++n_counted_ % 64 == 0) look();
  }

 private:
  Limits limits_;
  std::size_t n_given_ = 0;
  double used_seconds_ = 0, resumed_at_ = 0;
  std::int64_t last_tick_ = 0;
  std::uint32_t n_counted_ = 0;
};

}  // namespace ingot::inference
