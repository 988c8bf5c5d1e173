// Tokens travel to the ranks of their experts and the outputs back (model reference, 12.3). Ranks
// of one tensor group hold the same tokens, so each sends its share of them.

#include <algorithm>
#include <cstring>
#include <map>

#include "formats/base/error.h"
#include "inference/model/feed_forward/mixture.h"

namespace ingot::inference {
namespace {

// One (token, expert) pair on its way: the expert's id, then the token's hidden row.
class Parcel {
 public:
  explicit Parcel(std::size_t width) : width_(width) {}

  [[nodiscard]] std::size_t n_bytes() const { return sizeof(std::uint32_t) + row_bytes(); }

  void append(std::vector<std::byte>& to, std::uint32_t expert, std::span<const float> row) const {
    const std::size_t at = to.size();
    to.resize(at + n_bytes());
    std::memcpy(to.data() + at, &expert, sizeof(expert));
    std::memcpy(to.data() + at + sizeof(expert), row.data(), row_bytes());
  }
  [[nodiscard]] std::uint32_t expert(std::span<const std::byte> from, std::size_t i) const {
    std::uint32_t expert = 0;
    std::memcpy(&expert, from.data() + i * n_bytes(), sizeof(expert));
    return expert;
  }
  void copy_row(std::span<const std::byte> from, std::size_t i, std::span<float> to) const {
    std::memcpy(to.data(), from.data() + i * n_bytes() + sizeof(std::uint32_t), row_bytes());
  }

 private:
  [[nodiscard]] std::size_t row_bytes() const { return width_ * sizeof(float); }
  std::size_t width_;
};

// The rows that a rank of the tensor group sends.
Range own_rows(const RankView& rank, std::size_t n_rows) {
  const std::size_t each = n_rows / rank.tp_size, more = n_rows % rank.tp_size;
  return {.first = rank.tp_rank * each + std::min(rank.tp_rank, more),
          .count = each + (rank.tp_rank < more ? 1 : 0)};
}

// Where a parcel came from: rank and place in what that rank sent.
struct Origin {
  std::size_t rank = 0, place = 0;
};

}  // namespace

Matrix Mixture::exchanged_experts(const StepContext& context, const Matrix& x,
                                  const Routing& routing) const {
  const RankView& rank = context.rank;
  const Parcel parcel(x.cols());
  const Range rows = own_rows(rank, x.rows());
  std::vector<std::vector<std::byte>> outgoing(rank.ep_size);
  std::vector<Origin> went_to(rows.count * routing.topk);
  for (std::size_t i = 0; i < went_to.size(); ++i) {
    const std::size_t place = rows.first * routing.topk + i;
    const std::uint32_t expert = routing.experts[place];
    auto& bytes = outgoing[expert / mine_.count];
    went_to[i] = {.rank = expert / mine_.count, .place = bytes.size() / parcel.n_bytes()};
    parcel.append(bytes, expert, x.row(place / routing.topk));
  }
  const auto arrived = context.comm.all_to_all_v(Group::kExpert, outgoing);

  std::map<std::uint32_t, std::vector<Origin>> by_expert;
  std::vector<std::vector<std::byte>> answers(rank.ep_size);
  for (std::size_t from = 0; from < arrived.size(); ++from) {
    const std::size_t n = arrived[from].size() / parcel.n_bytes();
    answers[from].resize(n * x.cols() * sizeof(float));
    for (std::size_t i = 0; i < n; ++i) {
      by_expert[parcel.expert(arrived[from], i)].push_back({.rank = from, .place = i});
    }
  }
  std::vector<std::uint32_t> needed;
  for (const auto& [expert, origins] : by_expert) needed.push_back(expert);
  experts_->prefetch(layer_, needed);
  for (const auto& [expert, origins] : by_expert) {
    INGOT_CHECK(expert - mine_.first < mine_.count);
    Matrix in(origins.size(), x.cols());
    for (std::size_t i = 0; i < origins.size(); ++i) {
      parcel.copy_row(arrived[origins[i].rank], origins[i].place, in.row(i));
    }
    const Matrix out = run_expert(context, expert, in);
    for (std::size_t i = 0; i < origins.size(); ++i) {
      std::memcpy(answers[origins[i].rank].data() + origins[i].place * x.cols() * sizeof(float),
                  out.row(i).data(), x.cols() * sizeof(float));
    }
  }
  const auto returned = context.comm.all_to_all_v(Group::kExpert, answers);

  // Places of a token are in ascending expert id, so are its additions.
  Matrix mine(rows.count, x.cols());
  std::vector<float> output(x.cols());
  for (std::size_t i = 0; i < went_to.size(); ++i) {
    std::memcpy(output.data(),
                returned[went_to[i].rank].data() + went_to[i].place * x.cols() * sizeof(float),
                x.cols() * sizeof(float));
    const float weight = routing.weights[rows.first * routing.topk + i];
    const auto to = mine.row(i / routing.topk);
    for (std::size_t c = 0; c < to.size(); ++c) to[c] += weight * output[c];
  }
  const std::vector<float> all = context.comm.all_gather(Group::kTensor, mine.values());
  Matrix sum(x.rows(), x.cols());
  INGOT_CHECK(all.size() == sum.values().size());
  std::ranges::copy(all, sum.values().begin());
  return sum;
}

}  // namespace ingot::inference
