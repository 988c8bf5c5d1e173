#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/run/memory/memory_encoder.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::convert {

/// The tensors of a source of which only headers are files: a program gives the bytes while they
/// are converted, in any order. The giver and the job are different threads. Work is done when all
/// tensors that it needs have come, and holds their bytes until then. Tensors that are all lent
/// beforehand are read where they are, as often as the job likes.
class GivenTensors {
 public:
  /// `most_held`: bytes of tensors that wait; the giver waits while work would free more.
  explicit GivenTensors(std::uint64_t most_held) : most_held_(most_held) {}

  /// Lends a tensor to a job that has not begun, in memory that outlives it; all of them are.
  void lend(std::string name, std::span<const std::byte> bytes, GivenForm form);
  /// A checkpoint of these tensors, of which only headers are files, with the bytes that were lent.
  /// Throws as source().
  [[nodiscard]] formats::Checkpoint lent_view(formats::Checkpoint opened) const;

  // The job.

  /// The checkpoint whose headers were opened, with the bytes that come. Throws kUnsupported for
  /// one that is not seen as its files have it; for lent tensors kMissingTensor, and as
  /// require_form().
  std::shared_ptr<const formats::Checkpoint> source(
      std::shared_ptr<const formats::Checkpoint> opened);
  /// Begins with these units of work, each a list of tensors of the plan; one without any needs
  /// none.
  void begin(const Plan& plan, const std::vector<std::vector<std::uint32_t>>& units);
  /// A unit whose tensors are here; nullopt when there will be none.
  std::optional<std::size_t> take();
  void done(std::size_t unit);
  /// The failure of the job, or of its giver; null: none.
  [[nodiscard]] std::exception_ptr failure();
  /// The job has ended, with a failure where that is not null.
  void end_job(std::exception_ptr failure);

  // The giver. Each throws the failure of the job.

  /// Waits until the job asks for tensors.
  void wait_for_job();
  [[nodiscard]] bool has_begun();
  /// Takes a tensor; throws as MemoryEncoder::put() does.
  void put(std::string_view name, std::span<const std::byte> bytes, const GivenForm& form);
  /// All tensors were given. Throws as MemoryEncoder::finish() does.
  void finish();
  /// Ends a job whose tensors will not come.
  void abandon();

 private:
  struct View {
    formats::Checkpoint checkpoint;
    HeldBytes* held;
  };

  [[nodiscard]] View view_of(std::shared_ptr<const formats::Checkpoint> opened) const;
  void require_job(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] std::uint64_t share_of(std::size_t unit) const;

  struct LentTensor {
    std::span<const std::byte> bytes;
    GivenForm form;
  };

  const std::uint64_t most_held_;
  std::map<std::string, LentTensor, std::less<>> lent_;
  HeldBytes* held_ = nullptr;
  std::shared_ptr<const formats::Checkpoint> source_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::optional<TensorSets> sets_;
  std::vector<std::uint32_t> set_of_unit_;
  std::vector<std::vector<std::size_t>> units_of_set_;
  std::vector<std::size_t> n_open_;  // units of a set that are to be done
  std::deque<std::size_t> ready_;
  std::size_t n_at_work_ = 0;
  std::uint64_t n_waiting_ = 0;  // bytes of sets that are complete
  std::uint64_t n_ready_ = 0;    // bytes of units that wait for a thread, a part of n_waiting_
  bool has_begun_ = false, is_finished_ = false, has_ended_ = false;
  std::exception_ptr failure_;
};

}  // namespace ingot::convert
