#include "inference/model/feed_forward/expert_group.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "formats/base/error.h"
#include "inference/base/profile.h"
#include "inference/parallel/comm.h"

namespace ingot::inference {

namespace {

using Sums = ExpertGroup::Sums;
using Use = ExpertPlaces::Use;

// The rows that a rank of the tensor group sends.
Range own_rows(const RankView& rank, std::size_t n_rows) {
  const std::size_t each = n_rows / rank.tp_size(), more = n_rows % rank.tp_size();
  return {.first = rank.tp_rank() * each + std::min(rank.tp_rank(), more),
          .count = each + (rank.tp_rank() < more ? 1 : 0)};
}

// Weighted outputs, in ascending expert id.
Sums empty_sums(const ExpertPlaces& places, std::size_t rows, std::size_t cols) {
  return {Matrix(rows, cols), places.places_shared() ? Matrix(rows, cols) : Matrix()};
}

void add_output(const ExpertPlaces& places, std::size_t row, std::uint32_t expert, float weight,
                std::span<const float> output, Sums& sums) {
  const std::span<float> to = (places.is_routed(expert) ? sums.routed : sums.shared).row(row);
  for (std::size_t c = 0; c < to.size(); ++c) to[c] += weight * output[c];
}

// Tokens of one layer and step travel to the ranks of their experts and the outputs back (model
// reference, 12.3), within the expert group. Ranks of one tensor group hold the same tokens, so
// each sends its share of them, and in the end they gather the sums. A rank gets a token once,
// however many of its experts the token has chosen, and of an expert in slices every slice gets
// it. Ranks and experts without tokens take part like the others.
class ExpertExchange {
 public:
  // Begins to send the tokens of `x`. All arguments must outlive this.
  ExpertExchange(const StepContext& context, std::size_t layer, const ExpertPlaces& places,
                 const Matrix& x, const Routing& routing);

  // Waits for the tokens of other ranks; returns the experts they are for, ascending.
  std::vector<std::uint32_t> receive();
  // Runs each of those experts once, over all of its tokens, and begins to send the outputs back.
  void answer(const std::function<Matrix(std::uint32_t expert, const Matrix& rows)>& run);
  // Waits for the outputs. Slices are added in rank order and rounded as a linear's output; then
  // weighted outputs are added in ascending expert id.
  Sums finish();

 private:
  // Place where a token waits for its expert, or an output for its token: rank of the group (of the
  // first slice), and place among the uses in its letter.
  struct Place {
    std::size_t rank = 0, use = 0;
  };
  // A use of an expert by a token of a letter.
  struct LetterUse {
    std::uint32_t token = 0, expert = 0;
  };
  struct Arrived {
    std::vector<LetterUse> uses;
    Matrix tokens;
  };

  [[nodiscard]] Bytes letter(std::span<const LetterUse> uses,
                             std::span<const std::size_t> tokens) const;
  [[nodiscard]] Arrived opened(const Bytes& letter) const;
  [[nodiscard]] Matrix gathered(const char* name, const Matrix& mine) const;

  const StepContext& context_;
  std::size_t layer_;
  const ExpertPlaces& places_;
  const Matrix& x_;
  Range rows_;  // rows of x that this rank sends
  Collective tokens_, outputs_;
  std::vector<Use> uses_;
  std::vector<Place> went_to_;  // places, by number of the use
  std::vector<Arrived> arrived_;
  std::vector<std::pair<std::uint32_t, std::vector<Place>>> by_expert_;  // ascending
};

ExpertExchange::ExpertExchange(const StepContext& context, std::size_t layer,
                               const ExpertPlaces& places, const Matrix& x, const Routing& routing)
    : context_(context),
      layer_(layer),
      places_(places),
      x_(x),
      rows_(own_rows(context.rank, x.rows())),
      tokens_{.group = Group::kExpert, .name = "expert tokens", .layer = layer},
      outputs_{.group = Group::kExpert, .name = "expert outputs", .layer = layer},
      uses_(places.uses(routing, rows_)) {
  struct Parcel {
    std::vector<LetterUse> uses;
    std::vector<std::size_t> tokens;  // rows of x
  };
  const shard::Topology& topology = context.rank.topology;
  std::vector<Parcel> parcels(topology.ep);
  for (const Use& use : uses_) {
    Parcel& parcel = parcels[use.ep_rank];
    if (parcel.tokens.empty() || parcel.tokens.back() != use.row) parcel.tokens.push_back(use.row);
    went_to_.push_back(
        {.rank = std::size_t{use.ep_rank} * topology.etp, .use = parcel.uses.size()});
    parcel.uses.push_back(
        {.token = static_cast<std::uint32_t>(parcel.tokens.size() - 1), .expert = use.expert});
  }
  std::vector<Bytes> send;
  for (const Parcel& parcel : parcels) {
    send.insert(send.end(), topology.etp, letter(parcel.uses, parcel.tokens));
  }
  context.comm.start(tokens_, std::move(send));
}

// Packs the number of uses, the uses, then the hidden rows of the tokens; empty without uses.
Bytes ExpertExchange::letter(std::span<const LetterUse> uses,
                             std::span<const std::size_t> tokens) const {
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
  const std::size_t first = sizeof n_uses + std::size_t{n_uses} * sizeof(LetterUse);
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

Sums ExpertExchange::finish() {
  const std::vector<Bytes> returned = context_.comm.finish(outputs_);
  const std::size_t width = x_.cols(), n_slices = context_.rank.topology.etp;
  Sums mine = empty_sums(places_, rows_.count, width);
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
    const Use& use = uses_[i];
    add_output(places_, use.row - rows_.first, use.expert, use.weight, output, mine);
  }
  Sums sums;
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

}  // namespace

ExpertPlaces::ExpertPlaces(const RankView& rank, const MixtureSpec& spec, std::uint32_t layer)
    : n_routed_(spec.router.experts) {
  const shard::ExpertMap map = expert_places(rank, n_routed_);
  holders_.resize(n_routed_ + (spec.shared && map.places_shared() ? 1 : 0));
  for (std::uint32_t ep_rank = 0; ep_rank < map.ep(); ++ep_rank) {
    for (const std::uint32_t expert : map.experts_of(layer, ep_rank)) {
      if (expert < holders_.size()) holders_[expert].push_back(ep_rank);
    }
  }
}

bool ExpertPlaces::holds(std::uint32_t ep_rank, std::uint32_t expert) const {
  return std::ranges::binary_search(holders_.at(expert), ep_rank);
}

std::vector<Use> ExpertPlaces::uses(const Routing& routing, Range rows) const {
  // Every use of an expert makes the next of its holders the one with the fewest.
  std::vector<std::size_t> n_uses(holders_.size());
  std::vector<Use> uses;
  const auto add = [&](std::size_t row, std::uint32_t expert, float weight) {
    const std::vector<std::uint32_t>& holders = holders_.at(expert);
    INGOT_CHECK(!holders.empty());
    uses.push_back({row, expert, holders[n_uses[expert]++ % holders.size()], weight});
  };
  for (std::size_t row = rows.first; row < rows.first + rows.count; ++row) {
    for (std::size_t i = row * routing.topk; i < (row + 1) * routing.topk; ++i) {
      if (is_routed(routing.experts[i])) add(row, routing.experts[i], routing.weights[i]);
    }
    if (places_shared()) add(row, slot_of_shared(), 1.0F);
  }
  return uses;
}

ExpertGroup::ExpertGroup(const RankView& rank, std::uint32_t layer, const MixtureSpec& spec,
                         ExpertStore& experts)
    : layer_(layer),
      places_(rank, spec, layer),
      has_shared_(spec.shared.has_value()),
      scales_input_(spec.router.scales_input),
      experts_(&experts) {
  if ((scales_input_ || spec.router.identity_experts > 0) && !rank.experts_meet_in_tensor_group()) {
    throw Error(ErrorCode::kUnsupported,
                "experts {} are not computed for tokens that travel (--ep no larger than --tp)",
                scales_input_ ? "whose input is weighed" : "without tensors");
  }
  if (spec.expert_norm && rank.topology.etp > 1) {
    throw Error(ErrorCode::kUnsupported,
                "experts with a norm behind each are not computed in slices (--etp 1)");
  }
  if (places_.places_shared() && spec.router.weighed_shared > 0) {
    throw Error(ErrorCode::kUnsupported,
                "shared experts that the router weighs are not computed in slots of an expert map");
  }
}

std::optional<Range> ExpertGroup::shared_part(const RankView& rank, std::size_t width) const {
  if (places_.places_shared()) {
    const bool is_here = places_.holds(rank.at().ep_rank, places_.slot_of_shared());
    return is_here ? std::optional(expert_part(rank, width)) : std::nullopt;
  }
  if (rank.shared_is_whole) return Range{0, width};
  return tensor_part(rank, width, "inner features of a shared expert");
}

Matrix ExpertGroup::run_one(std::uint32_t expert, const Matrix& rows, const Parts& parts) const {
  if (parts.n_tokens != nullptr) *parts.n_tokens += rows.rows();
  if (!places_.is_routed(expert)) return parts.shared(rows);
  return parts.routed(*experts_->get(layer_, expert), rows);
}

void ExpertGroup::prefetch(std::vector<std::uint32_t> experts) const {
  std::erase_if(experts, [&](std::uint32_t expert) { return !places_.is_routed(expert); });
  experts_->prefetch(layer_, experts);
}

void ExpertGroup::reduce(const StepContext& context, const char* name, Matrix& sums) const {
  context.comm.all_reduce({.group = Group::kTensor, .name = name, .layer = layer_}, sums.values());
}

Sums ExpertGroup::run_own(const StepContext& context, const Matrix& x, const Routing& routing,
                          const Parts& parts) const {
  std::map<std::uint32_t, std::vector<Use>> used_by;
  for (const Use& use : places_.uses(routing, {0, x.rows()})) {
    if (use.ep_rank == context.rank.at().ep_rank) used_by[use.expert].push_back(use);
  }
  std::vector<std::uint32_t> needed;
  for (const auto& [expert, uses] : used_by) needed.push_back(expert);
  prefetch(needed);

  Sums sums = empty_sums(places_, x.rows(), x.cols());
  for (const auto& [expert, uses] : used_by) {
    // Input that is weighed gives output that is not.
    const bool weighs_input = scales_input_ && places_.is_routed(expert);
    Matrix rows(uses.size(), x.cols());
    for (std::size_t i = 0; i < uses.size(); ++i) {
      std::ranges::copy(x.row(uses[i].row), rows.row(i).begin());
      for (std::size_t c = 0; weighs_input && c < x.cols(); ++c) rows.row(i)[c] *= uses[i].weight;
    }
    if (weighs_input) round_between(context.profile, rows.values());
    Matrix out = run_one(expert, rows, parts);
    // Slices of an output are not rounded before they are added.
    if (context.rank.topology.etp == 1) round_between(context.profile, out.values());
    std::vector<float> weights;
    for (const Use& use : uses) weights.push_back(weighs_input ? 1.0F : use.weight);
    if (parts.seen && places_.is_routed(expert)) parts.seen(expert, weights, out);
    for (std::size_t i = 0; i < uses.size(); ++i)
      add_output(places_, uses[i].row, expert, weights[i], out.row(i), sums);
  }
  return sums;
}

Sums ExpertGroup::run(const StepContext& context, const Matrix& x, const Routing& routing,
                      const Parts& parts) const {
  const bool in_slot = places_.places_shared();
  const bool is_cut = has_shared_ && !in_slot && !context.rank.shared_is_whole;
  const auto shared = [&] { return has_shared_ && !in_slot ? parts.shared(x) : Matrix(); };
  if (!context.rank.experts_meet_in_tensor_group()) {
    ExpertExchange exchange(context, layer_, places_, x, routing);
    Matrix own = shared();  // while tokens travel
    prefetch(exchange.receive());
    exchange.answer(
        [&](std::uint32_t expert, const Matrix& rows) { return run_one(expert, rows, parts); });
    if (is_cut) reduce(context, "shared expert sum", own);  // while outputs travel
    Sums sums = exchange.finish();
    if (!in_slot) sums.shared = std::move(own);
    return sums;
  }
  Sums sums = run_own(context, x, routing, parts);
  if (!in_slot) sums.shared = shared();
  // This rank's part of a shared expert is a share of the sum over the tensor group. transformers
  // rounds the routed sum and the shared output each; the sum of a native deployment is FP32
  // throughout.
  const bool is_share = in_slot || is_cut;
  if (is_share && context.profile == Profile::kBf16) {
    reduce(context, "shared expert sum", sums.shared);
  } else if (is_share) {
    add_rounded(Profile::kF32, sums.routed, std::exchange(sums.shared, Matrix()));
  }
  reduce(context, "expert sum", sums.routed);
  return sums;
}

}  // namespace ingot::inference
