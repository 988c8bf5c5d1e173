#include "inference/model/stream_task.h"

#include <array>
#include <cstring>
#include <utility>

#include "formats/base/error.h"

namespace ingot::inference {
namespace {

constexpr Collective kWhatToDo = {.group = Group::kWorld, .name = "what to do"};

// Kind, layer, how many rows, shape of the states; then the rows as numbers, and the states.
using Head = std::array<std::uint64_t, 5>;
using PlainRow = std::array<std::uint32_t, 5>;

}  // namespace

void tell_task(Comm& comm, StreamTask::Kind kind, std::size_t layer, std::span<const Row> rows,
               const Matrix* states) {
  if (comm.size(Group::kWorld) == 1 || comm.rank(Group::kWorld) != 0) return;
  const Head head = {static_cast<std::uint64_t>(kind), layer, rows.size(),
                     states != nullptr ? states->rows() : 0,
                     states != nullptr ? states->cols() : 0};
  std::vector<PlainRow> plain;
  for (const Row& row : rows) {
    plain.push_back({row.sequence, row.position, static_cast<std::uint32_t>(row.token),
                     row.logits ? 1U : 0U, row.is_answer ? 1U : 0U});
  }
  Bytes bytes;
  const auto add = [&](std::span<const std::byte> what) {
    bytes.insert(bytes.end(), what.begin(), what.end());
  };
  add(std::as_bytes(std::span(head)));
  add(std::as_bytes(std::span(plain)));
  if (states != nullptr) add(std::as_bytes(states->values()));
  broadcast(comm, kWhatToDo, 0, std::move(bytes));
}

StreamTask next_task(Comm& comm) {
  const Bytes bytes = broadcast(comm, kWhatToDo, 0, Bytes());
  std::span<const std::byte> left = bytes;
  const auto take = [&](void* to, std::size_t n_bytes) {
    INGOT_CHECK(n_bytes <= left.size());
    if (n_bytes > 0) std::memcpy(to, left.data(), n_bytes);
    left = left.subspan(n_bytes);
  };
  Head head = {};
  take(head.data(), sizeof head);
  StreamTask task = {.kind = static_cast<StreamTask::Kind>(head[0]),
                     .layer = head[1],
                     .rows = {},
                     .states = Matrix(head[3], head[4])};
  for (std::uint64_t i = 0; i < head[2]; ++i) {
    PlainRow row = {};
    take(row.data(), sizeof row);
    task.rows.push_back({.sequence = row[0],
                         .position = row[1],
                         .token = static_cast<std::int32_t>(row[2]),
                         .logits = row[3] != 0,
                         .is_answer = row[4] != 0});
  }
  take(task.states.values().data(), task.states.values().size_bytes());
  return task;
}

}  // namespace ingot::inference
