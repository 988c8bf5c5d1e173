#include <algorithm>
#include <bit>
#include <iterator>
#include <set>

#include <fmt/format.h>

#include "convert/plan/passes.h"
#include "engines/versions/sharded_state.h"
#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/container/bfloat16.h"

// Contents of the files of layout vllm-sharded: keys that several parts make up, and constants.

namespace ingot::convert {

using engines::StatePlace;
using formats::SchemeId;

namespace {

using Joined = PlannedFile::Joined;

// A part, and the key that it is a piece of.
struct Piece {
  PartRef at;
  StatePlace place;
  formats::DType dtype{};
  formats::Shape shape;
};

bool is_number(const formats::Shape& shape) {
  return formats::element_count(shape) == 1 && shape.size() < 2;
}

// One number per tensor becomes a row of them; matrices are stacked by rows.
formats::Shape fused_shape(std::span<const Piece> pieces) {
  formats::Shape shape = pieces.front().shape;
  if (is_number(shape)) return {pieces.size()};
  shape[0] = 0;
  for (const Piece& piece : pieces) shape[0] += piece.shape.at(0);
  return shape;
}

formats::Shape shape_of(std::span<const Piece> pieces) {
  const StatePlace& first = pieces.front().place;
  if (first.n_places == 1) return pieces.front().shape;
  if (first.per_expert == 0) return fused_shape(pieces);
  formats::Shape shape = fused_shape(pieces.first(first.per_expert));
  if (first.per_expert == 1 && is_number(pieces.front().shape)) shape.clear();
  shape.insert(shape.begin(), pieces.size() / first.per_expert);
  return shape;
}

// Every tensor of the key is here, once, and of one form.
void require_whole(std::span<const Piece> pieces, ErrorList& faults) {
  const Piece& first = pieces.front();
  const auto refuse = [&](std::string fact) {
    faults.add(Error(ErrorCode::kUnsupported, std::move(fact)).in_tensor(first.place.key));
  };
  const std::size_t n = first.place.n_places;
  if (n != 0 ? n != pieces.size() : pieces.size() % first.place.per_expert != 0)
    return refuse(fmt::format("this key is made of more tensors than the {} found", pieces.size()));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const bool is_alike =
        piece.dtype == first.dtype && piece.shape.size() == first.shape.size() &&
        std::equal(piece.shape.begin() + (piece.shape.empty() ? 0 : 1), piece.shape.end(),
                   first.shape.begin() + (first.shape.empty() ? 0 : 1));
    if (!is_alike) return refuse("the tensors that are fused for this key are not alike");
    if (piece.place.place != first.place.place + i)
      return refuse("some tensors that are fused for this key are missing");
  }
}

// A tensor that no part fills, each element of one value.
Joined constant_of(formats::TensorSpec spec, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool is_half = spec.dtype == formats::DType::kBf16;
  INGOT_CHECK(is_half || spec.dtype == formats::DType::kF32);
  INGOT_CHECK(!is_half || (bits & 0xFFFF) == 0);
  // The bytes of a BF16 are the upper ones of an F32.
  const auto* first = reinterpret_cast<const char*>(&bits);
  const std::string element(first + (is_half ? 2 : 0), first + 4);
  Joined constant{.spec = std::move(spec)};
  for (auto n = formats::element_count(constant.spec.shape).value(); n > 0; --n)
    constant.bytes += element;
  return constant;
}

// The key of a part, with another part in its place: `w13_weight_packed` to `w13_weight_shape`.
std::optional<std::string> sibling(const std::string& key, std::string_view part,
                                   std::string_view other) {
  if (!key.ends_with(part)) return std::nullopt;
  return key.substr(0, key.size() - part.size()) + std::string(other);
}

// Scales of activations that experts have there, and that these files have not.
void add_idle_inputs(const Plan& plan, const Joined& joined, const std::set<std::string>& keys,
                     std::vector<Joined>& constants) {
  const engines::StateScheme* scheme =
      engines::find_state_scheme(SchemeId::kNvfp4, plan.target.dialect->name);
  if (scheme == nullptr || scheme->idle_input.empty()) return;
  for (const std::string_view prefix : {".w13_", ".w2_"}) {
    const auto input = sibling(joined.spec.name, fmt::format("{}weight_global_scale", prefix),
                               fmt::format("{}{}", prefix, scheme->idle_input));
    if (!input || keys.contains(*input)) continue;
    constants.push_back(constant_of(
        {.name = *input, .dtype = formats::DType::kF32, .shape = joined.spec.shape}, 1));
  }
}

template <typename Number>
void append(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Rows and columns of INT4 weights: of the last one that vLLM loads, and for each expert in BF16.
void add_dimensions(const Plan& plan, const Joined& joined, std::span<const Piece> pieces,
                    std::vector<Joined>& constants) {
  const auto key = sibling(joined.spec.name, "weight_packed", "weight_shape");
  const PlannedTensor& first = plan.tensors[pieces.front().at.tensor];
  if (!key || first.to != SchemeId::kInt4Group) return;
  const auto& last = std::ranges::max(pieces, {}, [&](const Piece& piece) {
    return std::string_view(plan.tensor_of(plan.tensors[piece.at.tensor]).name);
  });
  const formats::Shape& shape = plan.tensor_of(plan.tensors[last.at.tensor]).shape;
  const std::uint32_t per_expert = last.place.per_expert;
  Joined constant{.spec = {.name = *key, .dtype = formats::DType::kI64, .shape = {2}}};
  if (per_expert == 0) {
    for (const std::uint64_t n : shape) append(constant.bytes, n);
  } else {
    const std::uint64_t n_experts = pieces.size() / per_expert;
    constant.spec.dtype = formats::DType::kBf16;
    constant.spec.shape = {n_experts, 2};
    for (std::uint64_t expert = 0; expert < n_experts; ++expert) {
      for (const std::uint64_t n : shape)
        append(constant.bytes, formats::bf16_from_float(static_cast<float>(n)));
    }
  }
  constants.push_back(std::move(constant));
}

// Adds the constants of layers of which the file holds a tensor. Some constants exist only with a
// quantization_config.
void add_layer_constants(const Plan& plan, const std::set<std::uint32_t>& layers,
                         std::vector<Joined>& constants) {
  const bool is_quantized = std::ranges::any_of(plan.tensors, [](const PlannedTensor& planned) {
    return planned.action != Action::kDrop && formats::scheme_facts(planned.to).quantized;
  });
  const std::string_view dialect = is_quantized ? plan.target.dialect->name : std::string_view();
  for (const std::uint32_t layer : layers) {
    for (engines::StateConstant& constant :
         engines::state_constants(plan.source.family().name, dialect, layer, plan.source.config()))
      constants.push_back(constant_of(std::move(constant.spec), constant.value));
  }
}

// vLLM was not tried with static activations of other schemes.
void require_no_input(const Plan& plan, const PartRef& at, ErrorList& faults) {
  const PlannedTensor& planned = plan.tensors[at.tensor];
  if (planned.parts[at.part].part != formats::Part::kInputScale || planned.to == SchemeId::kNvfp4)
    return;
  faults.add(Error(ErrorCode::kUnsupported,
                   "this layout holds scales of activations only for nvfp4 (use dynamic "
                   "activations or --activations weight-only)")
                 .in_tensor(plan.part_name(planned, at.part)));
}

}  // namespace

void join_state_keys(const Plan& plan, PlannedFile& file) {
  std::vector<Piece> pieces;
  std::set<std::uint32_t> layers;
  std::set<std::string> keys;
  ErrorList faults;
  for (const PartRef& at : file.parts) {
    const PlannedTensor& planned = plan.tensors[at.tensor];
    require_no_input(plan, at, faults);
    auto place = engines::state_place(plan.part_name(planned, at.part), plan.source.family().name,
                                      plan.source.config());
    INGOT_CHECK(place.has_value());
    if (const auto layer = plan.tensor_of(planned).layer) layers.insert(*layer);
    keys.insert(place->key);
    pieces.push_back({.at = at,
                      .place = std::move(*place),
                      .dtype = planned.parts[at.part].dtype,
                      .shape = plan.part_cut(planned, at.part).slice_shape()});
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    if (a.place.key == b.place.key) return a.place.place < b.place.place;
    return formats::writes_before(a.dtype, a.place.key, b.dtype, b.place.key);
  });
  file.parts.clear();
  std::vector<Joined> constants;
  add_layer_constants(plan, layers, constants);
  for (std::size_t begin = 0; begin < pieces.size();) {
    std::size_t end = begin + 1;
    while (end < pieces.size() && pieces[end].place.key == pieces[begin].place.key) ++end;
    const auto of_key = std::span(pieces).subspan(begin, end - begin);
    require_whole(of_key, faults);
    for (const Piece& piece : of_key) file.parts.push_back(piece.at);
    file.joined.push_back({.spec = {.name = of_key.front().place.key,
                                    .dtype = of_key.front().dtype,
                                    .shape = shape_of(of_key)},
                           .n_parts = static_cast<std::uint32_t>(of_key.size())});
    add_idle_inputs(plan, file.joined.back(), keys, constants);
    add_dimensions(plan, file.joined.back(), of_key, constants);
    begin = end;
  }
  faults.throw_if_any();
  std::ranges::move(constants, std::back_inserter(file.joined));
  // Pieces stay in their order: it is that of the tensors that they make up.
  std::ranges::sort(file.joined, [](const Joined& a, const Joined& b) {
    return formats::writes_before(a.spec.dtype, a.spec.name, b.spec.dtype, b.spec.name);
  });
}

}  // namespace ingot::convert
