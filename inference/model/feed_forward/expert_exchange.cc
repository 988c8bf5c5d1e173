#include "inference/model/feed_forward/expert_exchange.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "formats/base/error.h"
#include "inference/base/profile.h"

namespace ingot::inference {

namespace {

// The rows that a rank of the tensor group sends.
Range own_rows(const RankView& rank, std::size_t n_rows) {
  const std::size_t each = n_rows / rank.tp_size(), more = n_rows % rank.tp_size();
  return {.first = rank.tp_rank() * each + std::min(rank.tp_rank(), more),
          .count = each + (rank.tp_rank() < more ? 1 : 0)};
}

}  // namespace

ExpertPlaces::ExpertPlaces(const RankView& rank, std::size_t n_experts, std::uint32_t layer)
    : n_routed_(n_experts) {
  const shard::ExpertMap map = expert_places(rank, n_experts);
  holders_.resize(n_experts + (map.places_shared() ? 1 : 0));
  for (std::uint32_t ep_rank = 0; ep_rank < map.ep(); ++ep_rank) {
    for (const std::uint32_t expert : map.experts_of(layer, ep_rank)) {
      holders_.at(expert).push_back(ep_rank);
    }
  }
}

bool ExpertPlaces::holds(std::uint32_t ep_rank, std::uint32_t expert) const {
  return std::ranges::binary_search(holders_.at(expert), ep_rank);
}

std::vector<std::uint32_t> ExpertPlaces::assign(std::span<const std::uint32_t> experts) const {
  // Every use of an expert makes the next of its holders the one with the fewest.
  std::vector<std::size_t> n_uses(holders_.size());
  std::vector<std::uint32_t> ranks;
  ranks.reserve(experts.size());
  for (const std::uint32_t expert : experts) {
    const std::vector<std::uint32_t>& holders = holders_.at(expert);
    INGOT_CHECK(!holders.empty());
    ranks.push_back(holders[n_uses[expert]++ % holders.size()]);
  }
  return ranks;
}

void ExpertSums::add(std::size_t row, std::uint32_t expert, float weight,
                     std::span<const float> output) {
  const std::span<float> to = (places_->is_routed(expert) ? routed : shared).row(row);
  for (std::size_t c = 0; c < to.size(); ++c) to[c] += weight * output[c];
}

ExpertExchange::ExpertExchange(const StepContext& context, std::size_t layer,
                               const ExpertPlaces& places, const Matrix& x, const Routing& routing)
    : context_(context),
      layer_(layer),
      places_(places),
      x_(x),
      routing_(routing),
      rows_(own_rows(context.rank, x.rows())),
      tokens_{.group = Group::kExpert, .name = "expert tokens", .layer = layer},
      outputs_{.group = Group::kExpert, .name = "expert outputs", .layer = layer} {
  struct Parcel {
    std::vector<Use> uses;
    std::vector<std::size_t> tokens;  // rows of x
  };
  const shard::Topology& topology = context.rank.topology;
  std::vector<Parcel> parcels(topology.ep);
  const auto experts =
      std::span(routing.experts).subspan(rows_.first * routing.topk, rows_.count * routing.topk);
  const std::vector<std::uint32_t> ep_ranks = places.assign(experts);
  for (std::size_t i = 0; i < experts.size(); ++i) {
    Parcel& parcel = parcels[ep_ranks[i]];
    const std::size_t token = rows_.first + i / routing.topk;
    if (parcel.tokens.empty() || parcel.tokens.back() != token) parcel.tokens.push_back(token);
    went_to_.push_back(
        {.rank = std::size_t{ep_ranks[i]} * topology.etp, .use = parcel.uses.size()});
    parcel.uses.push_back(
        {.token = static_cast<std::uint32_t>(parcel.tokens.size() - 1), .expert = experts[i]});
  }
  std::vector<Bytes> send;
  for (const Parcel& parcel : parcels) {
    send.insert(send.end(), topology.etp, letter(parcel.uses, parcel.tokens));
  }
  context.comm.start(tokens_, std::move(send));
}

// The number of uses, the uses, then the hidden rows of the tokens; nothing for no uses.
Bytes ExpertExchange::letter(std::span<const Use> uses, std::span<const std::size_t> tokens) const {
  if (uses.empty()) return {};
  const auto n_uses = static_cast<std::uint32_t>(uses.size());
  Bytes bytes(sizeof n_uses + uses.size_bytes() + tokens.size() * x_.cols() * sizeof(float));
  std::byte* at = bytes.data();
  const auto append = [&](std::span<const std::byte> what) {
    std::memcpy(at, what.data(), what.size());
    at += what.size();
  };
  append(std::as_bytes(std::span(&n_uses, 1)));
  append(std::as_bytes(uses));
  for (const std::size_t token : tokens) append(std::as_bytes(x_.row(token)));
  return bytes;
}

ExpertExchange::Arrived ExpertExchange::opened(const Bytes& letter) const {
  Arrived arrived;
  if (letter.empty()) return arrived;
  std::uint32_t n_uses = 0;
  INGOT_CHECK(letter.size() >= sizeof n_uses);
  std::memcpy(&n_uses, letter.data(), sizeof n_uses);
  const std::size_t first = sizeof n_uses + std::size_t{n_uses} * sizeof(Use);
  const std::size_t row_bytes = x_.cols() * sizeof(float);
  INGOT_CHECK(letter.size() >= first && (letter.size() - first) % row_bytes == 0);
  arrived.uses.resize(n_uses);
  std::memcpy(arrived.uses.data(), letter.data() + sizeof n_uses, first - sizeof n_uses);
  arrived.tokens = Matrix((letter.size() - first) / row_bytes, x_.cols());
  copy_values(std::span(letter).subspan(first), arrived.tokens.values());
  return arrived;
}

std::vector<std::uint32_t> ExpertExchange::receive() {
  std::map<std::uint32_t, std::vector<Place>> by_expert;
  for (const Bytes& bytes : context_.comm.finish(tokens_)) {
    const Arrived& letter = arrived_.emplace_back(opened(bytes));
    for (std::size_t use = 0; use < letter.uses.size(); ++use) {
      INGOT_CHECK(letter.uses[use].token < letter.tokens.rows());
      by_expert[letter.uses[use].expert].push_back({.rank = arrived_.size() - 1, .use = use});
    }
  }
  std::vector<std::uint32_t> experts;
  for (auto& [expert, places] : by_expert) {
    INGOT_CHECK(places_.holds(context_.rank.at().ep_rank, expert));
    experts.push_back(expert);
    by_expert_.emplace_back(expert, std::move(places));
  }
  return experts;
}

void ExpertExchange::answer(
    const std::function<Matrix(std::uint32_t expert, const Matrix& rows)>& run) {
  std::vector<Matrix> outputs;
  for (const Arrived& letter : arrived_) outputs.emplace_back(letter.uses.size(), x_.cols());
  for (const auto& [expert, places] : by_expert_) {
    Matrix rows(places.size(), x_.cols());
    for (std::size_t i = 0; i < places.size(); ++i) {
      const Arrived& letter = arrived_[places[i].rank];
      std::ranges::copy(letter.tokens.row(letter.uses[places[i].use].token), rows.row(i).begin());
    }
    const Matrix out = run(expert, rows);
    for (std::size_t i = 0; i < places.size(); ++i) {
      std::ranges::copy(out.row(i), outputs[places[i].rank].row(places[i].use).begin());
    }
  }
  std::vector<Bytes> send;
  for (const Matrix& matrix : outputs) send.push_back(bytes_of(matrix.values()));
  context_.comm.start(outputs_, std::move(send));
}

ExpertSums ExpertExchange::finish() {
  const std::vector<Bytes> returned = context_.comm.finish(outputs_);
  const std::size_t width = x_.cols(), n_slices = context_.rank.topology.etp;
  ExpertSums mine(places_, rows_.count, width);
  std::vector<float> output(width), more(width);
  const auto output_of = [&](const Place& place, std::size_t slice) {
    const Bytes& from = returned[place.rank + slice];
    INGOT_CHECK(from.size() >= (place.use + 1) * width * sizeof(float));
    return std::span(from).subspan(place.use * width * sizeof(float), width * sizeof(float));
  };
  for (std::size_t i = 0; i < went_to_.size(); ++i) {
    copy_values(output_of(went_to_[i], 0), output);
    for (std::size_t slice = 1; slice < n_slices; ++slice) {
      copy_values(output_of(went_to_[i], slice), more);
      for (std::size_t c = 0; c < width; ++c) output[c] += more[c];
    }
    round_between(context_.profile, output);
    const std::size_t at = rows_.first * routing_.topk + i;
    mine.add(i / routing_.topk, routing_.experts[at], routing_.weights[at], output);
  }
  ExpertSums sums;
  sums.routed = gathered("expert sums", mine.routed);
  if (places_.places_shared()) sums.shared = gathered("shared expert sums", mine.shared);
  return sums;
}

Matrix ExpertExchange::gathered(const char* name, const Matrix& mine) const {
  const Collective what = {.group = Group::kTensor, .name = name, .layer = layer_};
  const std::vector<float> all = all_gather(context_.comm, what, mine.values());
  Matrix whole(x_.rows(), x_.cols());
  INGOT_CHECK(all.size() == whole.values().size());
  std::ranges::copy(all, whole.values().begin());
  return whole;
}

}  // namespace ingot::inference
