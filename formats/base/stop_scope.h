#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "formats/base/error.h"

namespace ingot {

/// Makes long work end early. While one lives, every loop of formats/base/parallel.h that its
/// thread begins asks before each call of a body, on whichever thread, and so does check(), which
/// loops over the bytes of a file call at each piece. The answer true throws kInterrupted, `stopped
/// while {what}`. Loops inside a body ask as well. So no code between a command and its innermost
/// loop has to pass the question on.
class StopScope {
 public:
  /// `stop_requested` is asked from many threads; empty: never stopped. Scopes around it are asked
  /// as well.
  StopScope(std::function<bool()> stop_requested, std::string_view what)
      : stop_requested_(std::move(stop_requested)), what_(what), outer_(current) {
    current = this;
  }
  ~StopScope() { current = outer_; }
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

  /// Asks the scopes of this thread.
  static void check() {
    for (const StopScope* scope = current; scope != nullptr; scope = scope->outer_) {
      if (scope->stop_requested_ && scope->stop_requested_())
        throw Error(ErrorCode::kInterrupted, "stopped while " + scope->what_);
    }
  }

  /// Takes the scope of the thread that made it to another thread, for as long as a Guard lives
  /// there. The scope must outlive it.
  class Transfer {
   public:
    class Guard {
     public:
      explicit Guard(const Transfer& from) : before_(std::exchange(current, from.scope_)) {}
      ~Guard() { current = before_; }
      Guard(const Guard&) = delete;
      Guard& operator=(const Guard&) = delete;

     private:
      const StopScope* before_;
    };

   private:
    const StopScope* scope_ = current;
  };

 private:
  static inline thread_local const StopScope* current = nullptr;

  std::function<bool()> stop_requested_;
  std::string what_;
  const StopScope* outer_;
};

}  // namespace ingot
