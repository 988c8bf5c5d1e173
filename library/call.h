#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include <ingot/ingot.h>

#include "convert/run/memory/memory_encoder.h"
#include "formats/base/error.h"

// The frame of every function of the C interface (include/ingot/ingot.h).

namespace ingot::library {

/// Runs the body of a function of the C interface: INGOT_OK, or the code of what it throws, which
/// ingot_last_error() tells of then. In a child of fork() the body does not run: INGOT_UNSUPPORTED.
int call(const std::function<void()>& body) noexcept;

/// The text, or "" for null.
inline const char* text_or_empty(const char* text) {
  return text == nullptr ? "" : text;
}
/// Throws kInvalidArgument for a null pointer, which has this name in the interface.
void require_given(const void* pointer, const char* name);

/// Receivers of what a job tells of itself, for the struct of a caller, which may be null.
class Receivers {
 public:
  explicit Receivers(const ingot_run* run);

  /// Throttled; one thread at a time.
  void progress(std::string_view phase, std::uint64_t done, std::uint64_t total);
  void begin(std::string_view phase);
  [[nodiscard]] std::function<bool()> stop_requested() const;

 private:
  ingot_run run_;
  std::mutex mutex_;
  std::string phase_;
  std::chrono::steady_clock::time_point last_{};
};

/// The form of an array that a caller gives. Throws for pointers that are null, and kDtypeMismatch
/// for a dtype that safetensors has not.
convert::GivenForm given_form(const char* name, const char* dtype, const std::uint64_t* shape,
                              std::size_t n_dims, const void* bytes, std::uint64_t n_bytes);

/// Memory of the caller's own, for ingot_free_text().
char* owned_text(const std::string& text);

/// Fills in the struct of a caller, as far as its size goes.
template <typename Struct>
void fill(Struct* out, Struct values) {
  require_given(out, "the struct to fill in");
  if (out->size < sizeof(out->size))
    throw Error(ErrorCode::kInvalidArgument, "the size of a struct is {} (set it to sizeof)",
                out->size);
  values.size = out->size;
  std::memcpy(static_cast<void*>(out), &values, std::min(out->size, sizeof(Struct)));
}

}  // namespace ingot::library
