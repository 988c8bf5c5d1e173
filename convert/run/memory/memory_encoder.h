#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/plan/plan.h"
#include "convert/run/memory/encoded_sets.h"
#include "formats/container/tensor.h"
#include "formats/storage/stored_bytes.h"

// Conversion of tensors in memory: a program that has the model gives it tensor by tensor.

namespace ingot::convert {

/// Stored tensors of which some are in memory, by index: the bytes of a model whose shapes are
/// known, and nothing else.
class HeldBytes final : public formats::StoredBytes {
 public:
  /// `n_bytes`: of the file that they would have.
  explicit HeldBytes(std::uint64_t n_bytes) {
    facts_.push_back({.name = "model.safetensors", .n_bytes = n_bytes, .data_start = 0});
  }
  /// The bytes of files that have only their headers.
  explicit HeldBytes(std::shared_ptr<const formats::Checkpoint> headers);

  /// Holds a copy, in memory of tensors that were dropped where it fits: pages of new memory cost
  /// more than the copy.
  void hold(std::uint32_t index, std::span<const std::byte> bytes);
  /// Holds memory of the caller's, which lives until the tensor is dropped.
  void borrow(std::uint32_t index, std::span<const std::byte> bytes);
  void drop(std::uint32_t index);
  /// Bytes that are held, without borrowed ones.
  [[nodiscard]] std::uint64_t n_held() const { return n_held_; }

  [[nodiscard]] std::span<const formats::SourceFile> files() const override { return facts_; }
  void read(std::uint32_t index, const formats::StoredTensor& tensor, std::uint64_t offset,
            std::span<std::byte> out) const override;
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t file) const override {
    return headers_ == nullptr ? std::vector<std::byte>() : headers_->header_bytes(file);
  }
  /// There is no file: all that is read of one would be wrong.
  [[nodiscard]] bool has_data(std::uint32_t /*file*/) const override { return false; }
  void read_file(std::uint32_t file, std::uint64_t offset, std::span<std::byte> out) const override;
  void close_file(std::uint32_t /*file*/) const override {}

 private:
  struct Held {
    std::vector<std::byte> own;
    std::span<const std::byte> bytes;
  };

  std::vector<std::byte> spare_for(std::uint64_t n_bytes);
  void add(std::uint32_t index, Held held);

  std::vector<formats::SourceFile> facts_;
  std::shared_ptr<const formats::Checkpoint> headers_;
  mutable std::shared_mutex mutex_;  // guards held_ and spare_
  std::map<std::uint32_t, Held> held_;
  std::multimap<std::uint64_t, std::vector<std::byte>> spare_;  // by size
  std::atomic<std::uint64_t> n_held_ = 0;
  std::uint64_t n_spare_ = 0, most_held_ = 0;
};

/// How the giver of a tensor describes it.
struct GivenForm {
  formats::DType dtype{};
  formats::Shape shape;
};

/// Throws kDtypeMismatch or kShapeMismatch for so many bytes of another form than the tensor's.
/// Unsigned words are right for every dtype of their width, bytes for one of less: arrays that know
/// no BF16 or FP8 have these. `form` may be null: only the number of bytes is compared.
void require_form(const GivenForm* form, std::uint64_t n_bytes,
                  const formats::StoredTensor& tensor);

/// The tensors of the source, which come in any order, by their *sets*: those that share a scale,
/// or a tensor of the output. A tensor is held until the others of its set have come. Most sets
/// have one tensor.
class TensorSets {
 public:
  /// `given`: the stored tensors that will come, those of `held`, over which the source of the plan
  /// may be a view. All references must outlive it.
  TensorSets(const Plan& plan, std::span<const formats::StoredTensor> given, HeldBytes& held);

  /// Takes the bytes of a stored tensor, and returns its set if the tensor completes it. Throws the
  /// errors of MemoryEncoder::put(). `n_open` and `most` are the bytes of incomplete sets: now, and
  /// the limit. With `borrows` the bytes of the last tensor of a set are not copied.
  std::optional<std::uint32_t> put(std::string_view name, std::span<const std::byte> bytes,
                                   const GivenForm* form, std::uint64_t most, std::uint64_t n_open,
                                   bool borrows = false);
  /// Lets go of the bytes of a set, and returns how many they were; a set that is not done may come
  /// again.
  std::uint64_t drop(std::uint32_t set, bool is_done);
  /// Throws kMissingTensor, naming them, while tensors of the plan have not come.
  void finish() const;

  [[nodiscard]] std::size_t count() const { return sets_.size(); }
  [[nodiscard]] std::uint64_t n_bytes(std::uint32_t set) const;
  /// Tensors of the plan that a set makes, ascending.
  [[nodiscard]] std::span<const std::uint32_t> planned(std::uint32_t set) const {
    return sets_[set].planned;
  }
  [[nodiscard]] std::uint32_t set_of_planned(std::uint32_t tensor) const {
    return set_of_planned_[tensor];
  }
  /// The names that come together, set by set, in the order of the plan.
  [[nodiscard]] std::vector<std::vector<std::string>> names() const;

 private:
  struct Set {
    std::vector<std::uint32_t> given;    // indices of stored tensors, ascending
    std::vector<std::uint32_t> planned;  // indices into Plan::tensors, ascending
    std::size_t n_here = 0;
  };

  std::span<const formats::StoredTensor> given_;
  HeldBytes& held_;
  std::vector<Set> sets_;
  std::vector<std::uint32_t> set_of_;          // by given tensor
  std::vector<std::uint32_t> set_of_planned_;  // by tensor of the plan
  std::vector<char> has_come_;                 // by given tensor
  std::map<std::string_view, std::uint32_t> by_name_;
};

/// Makes the tensors of an output from those of the source, in any order. The bytes are equal to
/// the files that execution writes by the plan. Several threads may put tensors: each encodes the
/// set that its tensor completes.
class MemoryEncoder {
 public:
  /// Arguments are those of TensorSets. `most_held`: bytes of open sets. Throws kUnsupported for a
  /// plan that cuts tensors.
  MemoryEncoder(const Plan& plan, std::span<const formats::StoredTensor> given, HeldBytes& held,
                std::uint64_t most_held);

  /// Takes the bytes of a stored tensor, and returns the tensors of the output that are complete
  /// with it; none while its set is not, or where the output drops it. Throws kNotFound for a name
  /// that is not in the plan, kDuplicate for one that has come, kShapeMismatch for bytes of another
  /// length, kLimit where open sets would have more than `most_held`, and as a conversion for
  /// values that no allowance covers: its set is dropped then, and may come again. `form` is
  /// compared with the plan by require_form().
  std::vector<EncodedTensor> put(std::string_view name, std::span<const std::byte> bytes,
                                 const GivenForm* form = nullptr);
  void finish() const;
  [[nodiscard]] std::vector<std::vector<std::string>> sets() const { return sets_.names(); }

 private:
  HeldBytes& held_;
  std::uint64_t most_held_;
  mutable std::mutex mutex_;  // guards sets_
  TensorSets sets_;
  EncodedSets encoder_;
};

}  // namespace ingot::convert
