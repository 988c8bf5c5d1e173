#include "library/call.h"

#include <atomic>
#include <cstdlib>
#include <new>
#include <optional>

#include <ingot/ingot.h>
#include <unistd.h>

#include "convert/output/version.h"
#include "library/current_error.h"

namespace ingot::library {
namespace {

// The codes of the interface are those of ErrorCode, one higher.
constexpr int code_of(ErrorCode code) {
  return static_cast<int>(code) + 1;
}
static_assert(code_of(ErrorCode::kInvalidArgument) == INGOT_INVALID_ARGUMENT);
static_assert(code_of(ErrorCode::kCorrupt) == INGOT_CORRUPT);
static_assert(code_of(ErrorCode::kBadScale) == INGOT_BAD_SCALE);
static_assert(code_of(ErrorCode::kInternal) == INGOT_INTERNAL);

thread_local std::optional<Error> last_error;

// oneTBB's workers, and locks that they hold, stay in the process that called first.
void require_same_process() {
  static std::atomic<pid_t> owner = 0;
  pid_t first = 0;
  const pid_t self = ::getpid();
  if (owner.compare_exchange_strong(first, self) || first == self) return;
  throw Error(ErrorCode::kUnsupported,
              "process {} is a child by fork() of {}, which uses this library, and has none of its "
              "threads (start the child with exec, as multiprocessing does by 'spawn')",
              self, first);
}

}  // namespace

int call(const std::function<void()>& body) noexcept {
  try {
    require_same_process();
    body();
    return INGOT_OK;
  } catch (...) {
    last_error = current_error();
    return code_of(last_error->code());
  }
}

void require_given(const void* pointer, const char* name) {
  if (pointer == nullptr) throw Error(ErrorCode::kInvalidArgument, "{} is NULL", name);
}

// Least time between two calls: people see no faster changes, and calls slow interpreters down.
constexpr std::chrono::milliseconds kInterval{50};

Receivers::Receivers(const ingot_run* run) : run_{} {
  if (run != nullptr) std::memcpy(&run_, run, std::min(run->size, sizeof run_));
}

void Receivers::progress(std::string_view phase, std::uint64_t done, std::uint64_t total) {
  if (run_.progress == nullptr) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  const auto now = std::chrono::steady_clock::now();
  if (!lock || (phase == phase_ && done < total && now - last_ < kInterval)) return;
  last_ = now;
  phase_ = phase;
  run_.progress(run_.context, phase_.c_str(), done, total);
}

void Receivers::begin(std::string_view phase) {
  progress(phase, 0, 0);
}

std::function<bool()> Receivers::stop_requested() const {
  return [stop = run_.stop] { return stop != nullptr && *stop != 0; };
}

char* owned_text(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace ingot::library

using namespace ingot::library;

int ingot_abi_version(void) {
  return INGOT_ABI_VERSION;
}

const char* ingot_version(void) {
  return ingot::convert::kVersion.data();
}

void ingot_last_error(ingot_error* error) {
  ingot_error values = {.size = 0,
                        .code = INGOT_OK,
                        .code_name = "",
                        .file = "",
                        .tensor = "",
                        .message = "",
                        .text = ""};
  if (last_error) {
    values = {.size = 0,
              .code = code_of(last_error->code()),
              .code_name = ingot::error_code_name(last_error->code()).data(),
              .file = last_error->file().c_str(),
              .tensor = last_error->tensor().c_str(),
              .message = last_error->message().c_str(),
              .text = last_error->what()};
  }
  if (error != nullptr && error->size >= sizeof(error->size)) fill(error, values);
}

void ingot_free_text(char* text) {
  std::free(text);
}
