#include "inference/tokenizer/text_work.h"

#include <algorithm>
#include <ctime>

#include "formats/base/error.h"
#include "formats/base/stop_scope.h"

namespace ingot::inference {
namespace {

constexpr std::int64_t kNanoseconds = 1'000'000'000;

std::int64_t ticks_of(clockid_t clock) {
  struct timespec now {};
  ::clock_gettime(clock, &now);
  return now.tv_sec * kNanoseconds + now.tv_nsec;
}

double processor_seconds() {
  return static_cast<double>(ticks_of(CLOCK_THREAD_CPUTIME_ID)) / kNanoseconds;
}

[[noreturn]] void refuse_size(std::size_t n_bytes, std::size_t most) {
  throw Error(ErrorCode::kLimit,
              "a text of {} bytes is too long for the tokenizer (at most {}, after its normalizer "
              "and pre-tokenizer)",
              n_bytes, most);
}

}  // namespace

void TextWork::pause() {
  used_seconds_ += processor_seconds() - resumed_at_;
}

void TextWork::resume() {
  resumed_at_ = processor_seconds();
}

void TextWork::give(std::size_t n_bytes) {
  if (n_bytes > kMaxTextBytes) refuse_size(n_bytes, kMaxTextBytes);
  n_given_ += n_bytes;
}

void TextWork::require_size(std::size_t n_bytes) const {
  // Well-known files make a text three times as long, compatible forms of some characters 22 times.
  const std::size_t given = std::min(n_given_, kMaxTextBytes);
  const std::size_t most =
      std::min(kMaxTextBytes, limits_.growth_at_least + limits_.growth * given);
  if (n_bytes > most) refuse_size(n_bytes, most);
}

void TextWork::look() {
  StopScope::check();
  // A clock that costs nothing to read says when the other may have moved.
  const std::int64_t tick = ticks_of(CLOCK_MONOTONIC_COARSE);
  if (tick == last_tick_) return;
  last_tick_ = tick;
  const double seconds = used_seconds_ + processor_seconds() - resumed_at_;
  const double most = limits_.seconds + limits_.seconds_per_byte * static_cast<double>(n_given_);
  if (seconds <= most) return;
  throw Error(ErrorCode::kLimit, "the tokenizer takes more than {:.3g} s for a text of {} bytes",
              most, n_given_);
}

}  // namespace ingot::inference
