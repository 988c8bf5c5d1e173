#include "formats/records/slicing_record.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"

namespace ingot::formats {
namespace {

// Far above any cluster; keeps products of two such numbers within 64 bits.
constexpr std::uint32_t kMaxRanks = std::uint32_t{1} << 20;

bool is_ascending(const std::vector<std::uint32_t>& numbers) {
  return std::adjacent_find(numbers.begin(), numbers.end(), std::greater_equal<>()) ==
         numbers.end();
}

std::uint64_t dimension_at(const Shape& shape, std::size_t from_the_end) {
  return shape.size() < from_the_end ? 1 : shape[shape.size() - from_the_end];
}

/// True if the last of `original` elements, at every `repeat`th place, is within the whole.
bool reaches_within(std::uint64_t original, std::uint64_t repeat, std::uint64_t whole) {
  if (original > whole) return false;
  if (original == 0) return true;
  const auto last = checked_mul(original - 1, repeat);
  return last && *last < whole;
}

void require_original_inside(const SliceRecord& slice, std::string_view where) {
  if (slice.original.empty()) return;
  bool is_inside = slice.original.size() == slice.whole.size();
  for (std::size_t i = 0; is_inside && i + 2 < slice.whole.size(); ++i)
    is_inside = slice.original[i] == slice.whole[i];
  // Vectors and numbers repeat nothing.
  const bool is_matrix = slice.whole.size() >= 2;
  const std::array<std::uint64_t, 2> repeat =
      is_matrix ? slice.repeat : std::array<std::uint64_t, 2>{1, slice.repeat[0]};
  is_inside =
      is_inside && (is_matrix || slice.repeat == std::array<std::uint64_t, 2>{1, 1}) &&
      reaches_within(dimension_at(slice.original, 2), repeat[0], dimension_at(slice.whole, 2)) &&
      reaches_within(dimension_at(slice.original, 1), repeat[1], dimension_at(slice.whole, 1));
  if (is_inside) return;
  fail_json(where, fmt::format("the original {} times {} x {} is not within the whole {}",
                               shape_text(slice.original), slice.repeat[0], slice.repeat[1],
                               shape_text(slice.whole)));
}

void require_sound(const SliceRecord& slice, std::string_view where) {
  if (!element_count(slice.whole)) fail_json(where, "'whole' does not fit 64 bits");
  if (slice.axis >= 0) {
    const auto axis = static_cast<std::size_t>(slice.axis);
    if (axis >= slice.whole.size()) {
      fail_json(where, fmt::format("has axis {} of a whole with shape {}", slice.axis,
                                   shape_text(slice.whole)));
    }
    if (!slice.sections.divide(slice.whole[axis])) {
      fail_json(where, fmt::format("has {} sections in {} elements", slice.sections.count(),
                                   slice.whole[axis]));
    }
    const std::uint64_t length = slice.sections.length_of(0, slice.whole[axis]);
    if (slice.offset >= length)
      fail_json(where, fmt::format("begins at {} of {} elements", slice.offset, length));
  } else if (slice.offset != 0 || slice.sections != Sections()) {
    fail_json(where, "has an offset or sections, but no axis");
  }
  if (slice.is_zeroed && (slice.axis >= 0 || !slice.experts.empty()))
    fail_json(where, "is zeroed and cut at once");
  if (!slice.experts.empty()) {
    // A stack of matrices, or one number for each matrix.
    if (slice.whole.empty() || slice.axis == 0)
      fail_json(where, "has experts, but is no stack of them");
    if (!is_ascending(slice.experts) || slice.experts.back() >= slice.whole[0])
      fail_json(where,
                fmt::format("has experts that are not ascending and below {}", slice.whole[0]));
  }
  if (slice.repeat[0] == 0 || slice.repeat[1] == 0) fail_json(where, "repeats nothing");
  require_original_inside(slice, where);
}

Json rank_json(const RankRecord& rank) {
  Json json = {{"rank", rank.rank},           {"stage", rank.stage},
               {"tp_rank", rank.tp_rank},     {"ep_rank", rank.ep_rank},
               {"etp_rank", rank.etp_rank},   {"first_layer", rank.first_layer},
               {"end_layer", rank.end_layer}, {"has_embedding", rank.has_embedding},
               {"has_head", rank.has_head},   {"experts", Json::array()}};
  for (const RankRecord::Experts& experts : rank.experts) {
    Json entry = Json::object();
    if (experts.layer != RankRecord::Experts::kEveryLayer) entry["layer"] = experts.layer;
    entry["held"] = experts.held;
    entry["slots"] = experts.slots;
    json["experts"].push_back(std::move(entry));
  }
  if (!rank.whole_config->is_null()) json["whole_config"] = *rank.whole_config;
  return json;
}

RankRecord::Experts parse_experts(const Json& json, std::string_view where,
                                  const std::string& path) {
  const JsonFields fields(json, where, path);
  RankRecord::Experts experts;
  experts.layer = fields.optional_number32("layer").value_or(RankRecord::Experts::kEveryLayer);
  experts.held = fields.numbers32("held");
  experts.slots = fields.numbers32("slots");
  fields.expect_no_more();
  if (!is_ascending(experts.held)) fail_json(where, path + ".held is not ascending");
  std::vector<std::uint32_t> in_slots = experts.slots;
  std::sort(in_slots.begin(), in_slots.end());
  in_slots.erase(std::unique(in_slots.begin(), in_slots.end()), in_slots.end());
  if (in_slots != experts.held) fail_json(where, path + " holds other experts than its slots");
  return experts;
}

RankRecord parse_rank(const Json& json, std::string_view where) {
  const JsonFields fields(json, where, "slicing.rank");
  RankRecord rank;
  rank.rank = fields.number32("rank");
  rank.stage = fields.number32("stage");
  rank.tp_rank = fields.number32("tp_rank");
  rank.ep_rank = fields.number32("ep_rank");
  rank.etp_rank = fields.number32("etp_rank");
  rank.first_layer = fields.number32("first_layer");
  rank.end_layer = fields.number32("end_layer");
  rank.has_embedding = fields.boolean("has_embedding");
  rank.has_head = fields.boolean("has_head");
  std::set<std::uint32_t> layers;
  for (const Json& entry : fields.array("experts")) {
    rank.experts.push_back(
        parse_experts(entry, where, fmt::format("slicing.rank.experts[{}]", rank.experts.size())));
    layers.insert(rank.experts.back().layer);
  }
  if (layers.size() != rank.experts.size() ||
      (layers.size() > 1 && layers.contains(RankRecord::Experts::kEveryLayer)))
    fail_json(where, "slicing.rank.experts lists a layer twice");
  if (const Json* config = fields.find("whole_config")) {
    if (!config->is_object()) fields.refuse("whole_config", "is not an object");
    rank.whole_config = *config;
  }
  fields.expect_no_more();
  return rank;
}

std::vector<RankEntry> parse_ranks(const Json& array, std::string_view where) {
  std::vector<RankEntry> ranks;
  std::set<std::string> names;
  for (const Json& json : array) {
    const JsonFields fields(json, where, fmt::format("slicing.ranks[{}]", ranks.size()));
    RankEntry entry;
    entry.directory = fields.inner_path("directory");
    entry.manifest_hash = fields.hash("manifest_hash");
    fields.expect_no_more();
    if (entry.directory.find('/') != std::string::npos)
      fail_json(where, fmt::format("'{}' is no directory next to the manifest", entry.directory));
    if (!names.insert(entry.directory).second)
      throw Error(ErrorCode::kDuplicate, "lists '{}' twice", entry.directory).in_file(where);
    ranks.push_back(std::move(entry));
  }
  return ranks;
}

[[noreturn]] void contradict(std::string_view where, const std::string& message) {
  throw Error(ErrorCode::kMismatch, "the topology contradicts itself: " + message).in_file(where);
}

/// lcm(tp, ep x etp); the limits of these numbers bound it.
std::uint64_t ranks_per_stage(const SlicingRecord& slicing) {
  return std::lcm<std::uint64_t, std::uint64_t>(slicing.tp,
                                                std::uint64_t{slicing.ep} * slicing.etp);
}

void require_sound_numbers(const SlicingRecord& slicing, std::string_view where) {
  for (const std::uint32_t n : {slicing.tp, slicing.ep, slicing.etp, slicing.pp}) {
    if (n == 0 || n > kMaxRanks)
      fail_json(where, fmt::format("slicing has {} as a number of ranks", n));
  }
  const std::uint64_t per_stage = ranks_per_stage(slicing);
  const auto n_ranks = checked_mul(per_stage, slicing.pp);
  if (n_ranks != slicing.n_ranks) {
    contradict(where, fmt::format("n_ranks is {}, {} stages of lcm({}, {} x {}) = {} ranks have "
                                  "another number",
                                  slicing.n_ranks, slicing.pp, slicing.tp, slicing.ep, slicing.etp,
                                  per_stage));
  }
  const std::vector<std::uint32_t>& stages = slicing.stage_layers;
  if (stages.size() != std::size_t{slicing.pp} + 1) {
    contradict(where, fmt::format("stage_layers has {} numbers, {} stages have {}", stages.size(),
                                  slicing.pp, std::size_t{slicing.pp} + 1));
  }
  if (stages.front() != 0 || !is_ascending(stages))
    fail_json(where, "slicing.stage_layers does not ascend from 0");
  if (!slicing.ranks.empty() && slicing.ranks.size() != slicing.n_ranks) {
    contradict(where, fmt::format("ranks lists {} directories, n_ranks is {}", slicing.ranks.size(),
                                  slicing.n_ranks));
  }
}

/// The place of a rank follows from its number.
void require_sound_rank(const SlicingRecord& slicing, std::string_view where) {
  const RankRecord& rank = *slicing.rank;
  if (rank.rank >= slicing.n_ranks)
    contradict(where, fmt::format("rank is {}, n_ranks is {}", rank.rank, slicing.n_ranks));
  const auto per_stage = static_cast<std::uint32_t>(ranks_per_stage(slicing));
  const std::uint32_t r = rank.rank % per_stage;
  const auto require = [&](const char* name, std::uint32_t said, std::uint32_t wanted) {
    if (said != wanted)
      contradict(where,
                 fmt::format("{} is {}, of rank {} it is {}", name, said, rank.rank, wanted));
  };
  const std::uint32_t stage = rank.rank / per_stage;
  require("stage", rank.stage, stage);
  require("tp_rank", rank.tp_rank, r % slicing.tp);
  require("etp_rank", rank.etp_rank, r % slicing.etp);
  require("ep_rank", rank.ep_rank, r / slicing.etp % slicing.ep);
  require("first_layer", rank.first_layer, slicing.stage_layers[stage]);
  const bool is_last = stage + 1 == slicing.pp;
  const std::uint32_t end = slicing.stage_layers[std::size_t{stage} + 1];
  // Layers for multi-token prediction follow the main ones.
  if (!is_last || rank.end_layer < end) require("end_layer", rank.end_layer, end);
  if (stage == 0 && !rank.has_embedding)
    contradict(where, fmt::format("has_embedding is false, but stage is {}", stage));
  if (rank.has_head != is_last) {
    contradict(where, fmt::format("has_head is {}, but stage is {} of {}", rank.has_head, stage,
                                  slicing.pp));
  }
}

}  // namespace

Json slice_record_json(const SliceRecord& slice) {
  Json json = Json::object();
  if (slice.axis >= 0) {
    json["axis"] = static_cast<std::uint64_t>(slice.axis);
    json["offset"] = slice.offset;
  }
  json["whole"] = slice.whole;
  if (slice.sections != Sections()) json["sections"] = sections_json(slice.sections);
  if (!slice.experts.empty()) json["experts"] = slice.experts;
  if (slice.is_zeroed) json["zeroed"] = true;
  if (!slice.original.empty()) json["original"] = slice.original;
  if (slice.repeat != std::array<std::uint64_t, 2>{1, 1}) json["repeat"] = slice.repeat;
  return json;
}

SliceRecord parse_slice_record(const Json& json, std::string_view where) {
  const JsonFields fields(json, where);
  SliceRecord slice;
  if (const auto axis = fields.optional_number32("axis")) {
    if (*axis > kMaxJsonDepth) fields.refuse("axis", "is beyond any shape");
    slice.axis = static_cast<int>(*axis);
    slice.offset = fields.number("offset");
  }
  slice.whole = fields.numbers("whole");
  if (const Json* sections = fields.find("sections"))
    slice.sections = parse_sections(*sections, where);
  slice.experts = fields.optional_numbers32("experts");
  slice.is_zeroed = fields.boolean("zeroed", false);
  slice.original = fields.optional_numbers("original");
  if (const std::vector<std::uint64_t> repeat = fields.optional_numbers("repeat");
      repeat.size() == slice.repeat.size()) {
    std::copy(repeat.begin(), repeat.end(), slice.repeat.begin());
  } else if (!repeat.empty()) {
    fields.refuse("repeat", "is not two numbers");
  }
  fields.expect_no_more();
  require_sound(slice, where);
  return slice;
}

const std::vector<std::uint32_t>* RankRecord::experts_in(std::uint32_t layer) const {
  for (const Experts& entry : experts) {
    if (entry.layer == layer || entry.layer == Experts::kEveryLayer) return &entry.held;
  }
  return nullptr;
}

Json slicing_record_json(const SlicingRecord& slicing) {
  Json json = {{"tp", slicing.tp},
               {"ep", slicing.ep},
               {"etp", slicing.etp},
               {"pp", slicing.pp},
               {"n_ranks", slicing.n_ranks},
               {"shared_experts", slicing.shared_experts},
               {"tp_fit", slicing.tp_fit},
               {"stage_layers", slicing.stage_layers},
               {"expert_map", *slicing.expert_map},
               {"job", slicing.job.hex()}};
  if (slicing.rank) json["rank"] = rank_json(*slicing.rank);
  if (!slicing.ranks.empty()) {
    json["ranks"] = Json::array();
    for (const RankEntry& entry : slicing.ranks) {
      json["ranks"].push_back(
          {{"directory", entry.directory}, {"manifest_hash", entry.manifest_hash.hex()}});
    }
  }
  return json;
}

SlicingRecord parse_slicing_record(const Json& json, std::string_view where) {
  const JsonFields fields(json, where, "slicing");
  SlicingRecord slicing;
  slicing.tp = fields.number32("tp");
  slicing.ep = fields.number32("ep");
  slicing.etp = fields.number32("etp");
  slicing.pp = fields.number32("pp");
  slicing.n_ranks = fields.number32("n_ranks");
  slicing.shared_experts = fields.text("shared_experts");
  slicing.tp_fit = fields.text("tp_fit");
  slicing.stage_layers = fields.numbers32("stage_layers");
  slicing.expert_map = fields.get("expert_map");
  slicing.job = fields.hash("job");
  if (const Json* rank = fields.find("rank")) slicing.rank = parse_rank(*rank, where);
  if (const Json* ranks = fields.optional_array("ranks")) {
    if (slicing.rank) fail_json(where, "slicing has both 'rank' and 'ranks'");
    slicing.ranks = parse_ranks(*ranks, where);
  }
  fields.expect_no_more();
  require_sound_numbers(slicing, where);
  if (slicing.rank) require_sound_rank(slicing, where);
  return slicing;
}

}  // namespace ingot::formats
