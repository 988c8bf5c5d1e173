#include "inference/model/stream_task.h"

#include <array>
#include <cstring>
#include <utility>

#include "formats/base/error.h"

namespace ingot::inference {
namespace {

constexpr Collective kNextTask = {.group = Group::kWorld, .name = "next task"};

// A message: kind, layer, number of rows, shape of the states; then the rows, and the states.
using Head = std::array<std::uint64_t, 5>;
using PlainRow = std::array<std::uint32_t, 5>;

template <typename Values>
void put(Bytes& to, const Values& values) {
  const auto bytes = std::as_bytes(std::span(values));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

// Appends the number of values, and then the values.
template <typename T>
void put_list(Bytes& to, const std::vector<T>& values) {
  put(to, std::array<std::uint64_t, 1>{values.size()});
  put(to, values);
}

// Takes values from the front of what was put.
class Taker {
 public:
  explicit Taker(std::span<const std::byte> bytes) : left_(bytes) {}

  template <typename T>
  void take(std::span<T> to) {
    INGOT_CHECK(to.size_bytes() <= left_.size());
    if (!to.empty()) std::memcpy(to.data(), left_.data(), to.size_bytes());
    left_ = left_.subspan(to.size_bytes());
  }
  template <typename T>
  T take() {
    T value = {};
    take(std::span(&value, 1));
    return value;
  }
  template <typename T>
  std::vector<T> take_list() {
    const auto count = take<std::uint64_t>();
    INGOT_CHECK(count <= left_.size() / sizeof(T));
    std::vector<T> values(count);
    take(std::span(values));
    return values;
  }

 private:
  std::span<const std::byte> left_;
};

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
  put(bytes, head);
  put(bytes, plain);
  if (states != nullptr) put(bytes, states->values());
  broadcast(comm, kNextTask, 0, std::move(bytes));
}

StreamTask next_task(Comm& comm) {
  const Bytes bytes = broadcast(comm, kNextTask, 0, Bytes());
  Taker taker(bytes);
  const auto head = taker.take<Head>();
  StreamTask task = {.kind = static_cast<StreamTask::Kind>(head[0]),
                     .layer = head[1],
                     .rows = {},
                     .states = Matrix(head[3], head[4])};
  for (std::uint64_t i = 0; i < head[2]; ++i) {
    const auto row = taker.take<PlainRow>();
    task.rows.push_back({.sequence = row[0],
                         .position = row[1],
                         .token = static_cast<std::int32_t>(row[2]),
                         .logits = row[3] != 0,
                         .is_answer = row[4] != 0});
  }
  taker.take(task.states.values());
  return task;
}

LayerResult share_result(Comm& comm, std::size_t layer, std::size_t from,
                         const LayerResult* computed) {
  Bytes bytes;
  if (computed != nullptr) {
    const std::array<std::uint64_t, 3> sizes = {computed->states.rows(), computed->states.cols(),
                                                computed->selection.size()};
    put(bytes, sizes);
    put(bytes, computed->states.values());
    for (const auto& positions : computed->selection) put_list(bytes, positions);
    put_list(bytes, computed->experts);
    put_list(bytes, computed->weights);
  }
  bytes = broadcast(comm, {.group = Group::kPipeline, .name = "layer of a stage", .layer = layer},
                    from, std::move(bytes));
  Taker taker(bytes);
  const auto sizes = taker.take<std::array<std::uint64_t, 3>>();
  LayerResult result = {.states = Matrix(sizes[0], sizes[1])};
  taker.take(result.states.values());
  for (std::uint64_t i = 0; i < sizes[2]; ++i)
    result.selection.push_back(taker.take_list<std::uint32_t>());
  result.experts = taker.take_list<std::uint32_t>();
  result.weights = taker.take_list<float>();
  return result;
}

}  // namespace ingot::inference
