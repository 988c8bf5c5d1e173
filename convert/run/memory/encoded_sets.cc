#include "convert/run/memory/encoded_sets.h"

#include <algorithm>
#include <map>
#include <utility>

#include "convert/run/actions.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"

namespace ingot::convert {

namespace {

// The parts of some tensors, each in memory of its own.
class MemorySink final : public ByteSink {
 public:
  void add(const PlannedPlace& place, std::uint64_t n_bytes) {
    if (n_bytes > 0) parts_[{place.file, place.offset}].resize(n_bytes);
  }
  std::vector<std::byte> take(const PlannedPlace& place, std::uint64_t n_bytes) {
    // The next part has the place of an empty one.
    if (n_bytes == 0) return {};
    return std::move(parts_.at({place.file, place.offset}));
  }

  // By member in a file's row; here each row has one.
  Lease acquire(std::uint32_t file, std::uint64_t offset, std::uint64_t n_bytes) override {
    auto part = parts_.upper_bound({file, offset});
    INGOT_CHECK(part != parts_.begin());
    --part;
    const std::uint64_t begin = offset - part->first.second;
    INGOT_CHECK(part->first.first == file && begin + n_bytes <= part->second.size());
    return {
        .bytes = std::span(part->second).subspan(begin, n_bytes), .file = file, .offset = offset};
  }
  void commit(const Lease& /*lease*/, std::uint32_t /*item*/) override {}

 private:
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<std::byte>> parts_;
};

}  // namespace

EncodedSets::EncodedSets(const Plan& plan)
    : plan_(plan),
      done_(plan.tensors.size(), 0),
      factors_(plan, factor_memory(plan, 1).useful, available_processors(), done_),
      results_(plan.tensors.size()) {
  if (plan.is_sliced()) {
    throw Error(ErrorCode::kUnsupported,
                "tensors in memory are encoded whole, and --layout {} cuts them (leave --layout, "
                "--tp and --ep out)",
                plan.options.layout->name);
  }
}

std::vector<EncodedTensor> EncodedSets::encode(std::span<const std::uint32_t> all) {
  MemorySink sink;
  for (const std::uint32_t t : all) {
    const PlannedTensor& planned = plan_.tensors[t];
    for (std::size_t p = 0; p < planned.n_parts; ++p)
      sink.add(plan_.first_place(planned.parts[p]), planned.parts[p].n_bytes);
  }
  RunContext context{.plan = plan_, .writer = sink, .progress = [] {}, .factors = &factors_};
  SetConverter converter(context, 0, {.done = done_, .of = results_});
  // Sets of one scale are consecutive in the plan.
  for (auto first = all.begin(); first != all.end();) {
    const std::uint32_t fused = plan_.tensors[*first].fused_set;
    const auto last = std::find_if(first + 1, all.end(), [&](std::uint32_t t) {
      return fused == PlannedTensor::kNone || plan_.tensors[t].fused_set != fused;
    });
    if (plan_.tensors[*first].n_parts > 0) converter({first, last});
    first = last;
  }
  std::vector<EncodedTensor> made;
  for (const std::uint32_t t : all) {
    const PlannedTensor& planned = plan_.tensors[t];
    results_[t] = {};  // hashes, for records
    for (std::size_t p = 0; p < planned.n_parts; ++p) {
      made.push_back(
          {.name = plan_.part_name(planned, p),
           .dtype = planned.parts[p].dtype,
           .shape = plan_.stored_shape(planned, p),
           .bytes = sink.take(plan_.first_place(planned.parts[p]), planned.parts[p].n_bytes)});
    }
  }
  return made;
}

}  // namespace ingot::convert
