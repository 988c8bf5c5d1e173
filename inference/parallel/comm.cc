#include "inference/parallel/comm.h"

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::inference {

namespace {

Range part(std::size_t rank, std::size_t size, std::size_t count, std::string_view what) {
  INGOT_CHECK(size > 0 && rank < size);
  if (count % size != 0) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: {} do not divide among {} ranks", what, count, size));
  }
  return {.first = count / size * rank, .count = count / size};
}

}  // namespace

Range tensor_part(const RankView& rank, std::size_t count, std::string_view what) {
  return part(rank.tp_rank, rank.tp_size, count, what);
}

Range key_head_part(const RankView& rank, std::size_t count) {
  if (count < rank.tp_size && count > 0 && rank.tp_size % count == 0) {
    return {.first = rank.tp_rank * count / rank.tp_size, .count = 1};
  }
  return part(rank.tp_rank, rank.tp_size, count, "key heads");
}

Range expert_part(const RankView& rank, std::size_t count) {
  if (rank.ep_size < rank.tp_size || rank.ep_size % rank.tp_size != 0) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("experts dealt over {} ranks and tensors over {}: the first must be a "
                            "multiple of the second",
                            rank.ep_size, rank.tp_size));
  }
  return part(rank.ep_rank, rank.ep_size, count, "experts");
}

}  // namespace ingot::inference
