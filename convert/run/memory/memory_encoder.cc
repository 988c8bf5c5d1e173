#include "convert/run/memory/memory_encoder.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/experts/viewed_bytes.h"
#include "formats/text/spelling.h"

namespace ingot::convert {

HeldBytes::HeldBytes(std::shared_ptr<const formats::Checkpoint> headers)
    : facts_(headers->files().begin(), headers->files().end()), headers_(std::move(headers)) {}

namespace {

// Smaller blocks are the allocator's, which does not give their pages back.
constexpr std::uint64_t kLeastSpare = std::uint64_t{1} << 20;

}  // namespace

void HeldBytes::add(std::uint32_t index, Held held) {
  n_held_ += held.own.size();
  const std::unique_lock lock(mutex_);
  most_held_ = std::max(most_held_, n_held_.load());
  held_[index] = std::move(held);
}

// A block of so many bytes, and a quarter more at most, or none. New memory takes the place of
// spare blocks: these and the held ones have no more than was held at once.
std::vector<std::byte> HeldBytes::spare_for(std::uint64_t n_bytes) {
  const std::unique_lock lock(mutex_);
  const auto take = [this](auto at) {
    n_spare_ -= at->first;
    return std::move(spare_.extract(at).mapped());
  };
  const auto found = spare_.lower_bound(n_bytes);
  if (found != spare_.end() && found->first <= n_bytes + n_bytes / 4) return take(found);
  while (!spare_.empty() && n_held_ + n_spare_ + n_bytes > most_held_) take(spare_.begin());
  return {};
}

void HeldBytes::hold(std::uint32_t index, std::span<const std::byte> bytes) {
  Held held{.own = spare_for(bytes.size()), .bytes = {}};
  held.own.assign(bytes.begin(), bytes.end());
  held.bytes = held.own;
  add(index, std::move(held));
}

void HeldBytes::borrow(std::uint32_t index, std::span<const std::byte> bytes) {
  add(index, {.own = {}, .bytes = bytes});
}

void HeldBytes::drop(std::uint32_t index) {
  const std::unique_lock lock(mutex_);
  const auto found = held_.find(index);
  if (found == held_.end()) return;
  std::vector<std::byte>& own = found->second.own;
  n_held_ -= own.size();
  if (own.size() >= kLeastSpare) {
    n_spare_ += own.capacity();
    spare_.emplace(own.capacity(), std::move(own));
  }
  held_.erase(found);
}

void HeldBytes::read(std::uint32_t index, const formats::StoredTensor& tensor, std::uint64_t offset,
                     std::span<std::byte> out) const {
  std::span<const std::byte> bytes;
  {
    const std::shared_lock lock(mutex_);
    const auto found = held_.find(index);
    if (found == held_.end()) {
      throw Error(ErrorCode::kUnsupported,
                  "is needed for the plan, before tensors are given (convert it from files)")
          .in_tensor(tensor.name);
    }
    bytes = found->second.bytes;
  }
  std::ranges::copy(bytes.subspan(offset, out.size()), out.begin());
}

void HeldBytes::read_file(std::uint32_t file, std::uint64_t /*offset*/,
                          std::span<std::byte> /*out*/) const {
  throw Error(ErrorCode::kInternal, "is in memory, and no file").in_file(facts_.at(file).name);
}

namespace {

// Groups of numbers that belong together; the smallest number of a group names it.
class Joins {
 public:
  explicit Joins(std::size_t n) : of_(n) { std::iota(of_.begin(), of_.end(), 0U); }
  std::uint32_t first(std::uint32_t i) {
    while (of_[i] != i) i = of_[i] = of_[of_[i]];
    return i;
  }
  void join(std::uint32_t a, std::uint32_t b) {
    a = first(a);
    b = first(b);
    of_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<std::uint32_t> of_;
};

}  // namespace

TensorSets::TensorSets(const Plan& plan, std::span<const formats::StoredTensor> given,
                       HeldBytes& held)
    : given_(given),
      held_(held),
      set_of_(given.size()),
      set_of_planned_(plan.tensors.size()),
      has_come_(given.size(), 0) {
  for (std::uint32_t i = 0; i < given.size(); ++i) by_name_.emplace(given[i].name, i);
  // Tensors of the source that a tensor of the output, or a shared scale, is made of.
  Joins joins(given.size());
  std::vector<std::uint32_t> first_of(plan.tensors.size());
  std::map<std::uint32_t, std::uint32_t> first_of_set;  // by fused set
  for (std::uint32_t t = 0; t < plan.tensors.size(); ++t) {
    const PlannedTensor& planned = plan.tensors[t];
    std::set<std::uint32_t> origins;
    plan.tensor_of(planned).encoding.stored.for_each([&](formats::Part, std::uint32_t stored) {
      origins.merge(formats::origins_of(plan.source, stored));
    });
    first_of[t] = *origins.begin();
    for (const std::uint32_t origin : origins) joins.join(first_of[t], origin);
    if (planned.fused_set != PlannedTensor::kNone)
      joins.join(first_of_set.emplace(planned.fused_set, first_of[t]).first->second, first_of[t]);
  }
  std::map<std::uint32_t, std::uint32_t> numbers;
  const auto set_at = [&](std::uint32_t origin) {
    const auto [at, is_new] = numbers.emplace(joins.first(origin), sets_.size());
    if (is_new) sets_.emplace_back();
    return at->second;
  };
  for (std::uint32_t t = 0; t < plan.tensors.size(); ++t) {
    set_of_planned_[t] = set_at(first_of[t]);
    sets_[set_of_planned_[t]].planned.push_back(t);
  }
  for (std::uint32_t i = 0; i < given.size(); ++i) {
    set_of_[i] = set_at(i);
    sets_[set_of_[i]].given.push_back(i);
  }
}

namespace {

// True if words of this dtype have as many bits as a tensor's dtype, whatever the bits mean.
bool are_words(formats::DType words, formats::DType dtype) {
  using enum formats::DType;
  constexpr formats::DTypeSet kWords = {kU8, kU16, kU32, kU64};
  return kWords.has(words) &&
         formats::dtype_bits(words) == std::max(formats::dtype_bits(dtype), 8U);
}

// The shape in which words have a tensor: of F4 a byte has two in the last dimension.
formats::Shape shape_of_words(const formats::StoredTensor& tensor) {
  formats::Shape shape = tensor.shape;
  const std::uint32_t bits = formats::dtype_bits(tensor.dtype);
  if (bits < 8 && !shape.empty()) shape.back() = shape.back() * bits / 8;
  return shape;
}

}  // namespace

void require_form(const GivenForm* given_form, std::uint64_t n_bytes,
                  const formats::StoredTensor& tensor) {
  const GivenForm form =
      given_form != nullptr ? *given_form : GivenForm{.dtype = tensor.dtype, .shape = tensor.shape};
  const std::string planned =
      fmt::format("{} {}", formats::dtype_name(tensor.dtype), formats::shape_text(tensor.shape));
  const std::string given =
      fmt::format("{} {}", formats::dtype_name(form.dtype), formats::shape_text(form.shape));
  const bool has_words = form.dtype != tensor.dtype;
  if (has_words && !are_words(form.dtype, tensor.dtype)) {
    throw Error(ErrorCode::kDtypeMismatch,
                "is given as {}, and the plan has {} (convert its values to {}, or plan with the "
                "dtype that it has)",
                given, planned, formats::dtype_name(tensor.dtype))
        .in_tensor(tensor.name);
  }
  if (form.shape != (has_words ? shape_of_words(tensor) : tensor.shape)) {
    throw Error(ErrorCode::kShapeMismatch,
                "is given as {}, and the plan has {} (transpose or reshape it, or plan with the "
                "shape that it has)",
                given, planned)
        .in_tensor(tensor.name);
  }
  if (n_bytes != tensor.n_bytes) {
    throw Error(ErrorCode::kShapeMismatch, "has {} bytes, and {} of the plan has {}", n_bytes,
                planned, tensor.n_bytes)
        .in_tensor(tensor.name);
  }
}

std::optional<std::uint32_t> TensorSets::put(std::string_view name,
                                             std::span<const std::byte> bytes,
                                             const GivenForm* form, std::uint64_t most,
                                             std::uint64_t n_open, bool borrows) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) {
    throw Error(ErrorCode::kNotFound, "is not in the plan{}",
                did_you_mean(name, given_, &formats::StoredTensor::name))
        .in_tensor(name);
  }
  const std::uint32_t index = found->second;
  if (has_come_[index] != 0)
    throw Error(ErrorCode::kDuplicate, "has been given before").in_tensor(name);
  const formats::StoredTensor& tensor = given_[index];
  require_form(form, bytes.size(), tensor);
  Set& set = sets_[set_of_[index]];
  if (set.given.size() > 1 && n_open + bytes.size() > most) {
    throw Error(ErrorCode::kLimit,
                "{} bytes of sets that are not complete are held, and it has {} (give the tensors "
                "of a set one after another, or a larger --mem-limit)",
                n_open, bytes.size())
        .in_tensor(name);
  }
  const bool is_last = set.n_here + 1 == set.given.size();
  if (is_last && borrows) {
    held_.borrow(index, bytes);
  } else {
    held_.hold(index, bytes);
  }
  has_come_[index] = 1;
  ++set.n_here;
  return is_last ? std::optional(set_of_[index]) : std::nullopt;
}

std::uint64_t TensorSets::n_bytes(std::uint32_t set) const {
  std::uint64_t n = 0;
  for (const std::uint32_t index : sets_[set].given) n += given_[index].n_bytes;
  return n;
}

std::uint64_t TensorSets::drop(std::uint32_t number, bool is_done) {
  Set& set = sets_[number];
  for (const std::uint32_t index : set.given) {
    held_.drop(index);
    if (!is_done) has_come_[index] = 0;
  }
  if (!is_done) set.n_here = 0;
  return n_bytes(number);
}

MemoryEncoder::MemoryEncoder(const Plan& plan, std::span<const formats::StoredTensor> given,
                             HeldBytes& held, std::uint64_t most_held)
    : held_(held), most_held_(most_held), sets_(plan, given, held), encoder_(plan) {}

std::vector<EncodedTensor> MemoryEncoder::put(std::string_view name,
                                              std::span<const std::byte> bytes,
                                              const GivenForm* form) {
  std::unique_lock lock(mutex_);
  const auto set = sets_.put(name, bytes, form, most_held_, held_.n_held(), true);
  if (!set) return {};
  lock.unlock();
  try {
    std::vector<EncodedTensor> made = encoder_.encode(sets_.planned(*set));
    lock.lock();
    sets_.drop(*set, true);
    return made;
  } catch (...) {
    if (!lock) lock.lock();
    sets_.drop(*set, false);
    throw;
  }
}

void MemoryEncoder::finish() const {
  const std::lock_guard lock(mutex_);
  sets_.finish();
}

void TensorSets::finish() const {
  constexpr std::size_t kShown = 5;
  std::vector<std::string_view> missing;
  for (std::uint32_t i = 0; i < given_.size(); ++i) {
    // First the tensors of sets that have begun.
    if (has_come_[i] == 0 && sets_[set_of_[i]].n_here > 0) missing.push_back(given_[i].name);
  }
  for (std::uint32_t i = 0; i < given_.size(); ++i) {
    if (has_come_[i] == 0 && sets_[set_of_[i]].n_here == 0) missing.push_back(given_[i].name);
  }
  if (missing.empty()) return;
  const std::size_t n = missing.size();
  missing.resize(std::min(n, kShown));
  throw Error(ErrorCode::kMissingTensor, "{} of {} tensors of the plan have not been given: {}{}",
              n, given_.size(), fmt::join(missing, ", "), n > kShown ? " and others" : "");
}

std::vector<std::vector<std::string>> TensorSets::names() const {
  std::vector<std::vector<std::string>> sets;
  for (const Set& set : sets_) {
    std::vector<std::string>& names = sets.emplace_back();
    for (const std::uint32_t i : set.given) names.push_back(given_[i].name);
  }
  return sets;
}

}  // namespace ingot::convert
