#include "tests/check/rank_directory.h"

#include <charconv>
#include <fstream>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "check/stored_hashes.h"
#include "formats/records/manifest.h"

namespace ingot::testing {
namespace {

using namespace formats;
using Tensor = EditableCheckpoint::Tensor;

bool has(const std::string& name, std::string_view word) {
  return name.find(word) != std::string::npos;
}

std::optional<std::uint32_t> number_behind(const std::string& name, std::string_view mark) {
  const std::size_t at = name.find(mark);
  if (at == std::string::npos) return std::nullopt;
  std::uint32_t number = 0;
  const char* begin = name.data() + at + mark.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), number);
  if (error != std::errc() || end == begin) return std::nullopt;
  return number;
}

/// 0: rows of a [rows, columns] weight are cut, 1: columns; -1: neither.
int side_of(const std::string& name) {
  for (const char* word :
       {"q_b_proj.", "kv_b_proj.", "gate_proj.", "up_proj.", "gate_up_proj", "embed_tokens.",
        "lm_head.", "shared_head.head.", ".q_proj.", ".k_proj.", ".v_proj."}) {
    if (has(name, word)) return 0;
  }
  return has(name, ".o_proj.") || has(name, "down_proj") ? 1 : -1;
}

bool is_stack(const std::string& name) {
  return has(name, ".experts.gate_up_proj") || has(name, ".experts.down_proj");
}

struct Place {
  std::uint32_t stage, tp_rank, ep_rank, etp_rank;
};

Place place_of(const CutPlan& plan, std::uint32_t rank) {
  const std::uint32_t r = rank % plan.ranks_per_stage();
  return {.stage = rank / plan.ranks_per_stage(),
          .tp_rank = r % plan.tp,
          .ep_rank = r / plan.etp % plan.ep,
          .etp_rank = r % plan.etp};
}

std::vector<std::uint32_t> slots_of(const CutPlan& plan, std::uint32_t ep_rank) {
  if (!plan.slots.empty()) return plan.slots[ep_rank];
  const std::uint32_t each = plan.n_experts / plan.ep;
  std::vector<std::uint32_t> slots(each);
  std::iota(slots.begin(), slots.end(), ep_rank * each);
  return slots;
}

SlicingRecord slicing_of(const CutPlan& plan) {
  SlicingRecord slicing;
  slicing.tp = plan.tp;
  slicing.ep = plan.ep;
  slicing.etp = plan.etp;
  slicing.pp = plan.pp();
  slicing.n_ranks = plan.n_ranks();
  slicing.shared_experts = "tp";
  slicing.tp_fit = "refuse";
  slicing.stage_layers = plan.stage_layers;
  if (!plan.slots.empty()) {
    Json slots = Json::array();
    for (const auto& of_rank : plan.slots) {
      for (const std::uint32_t expert : of_rank) slots.push_back(expert);
    }
    slicing.expert_map = formats::Json{{"slots", slots}};
  }
  slicing.job = {0x1234, 0x5678};
  return slicing;
}

/// The matrices of a stack that a rank holds.
Tensor matrices_of(const Tensor& whole, const std::vector<std::uint32_t>& experts) {
  Tensor part{whole.dtype, whole.shape, {}};
  const std::size_t each = whole.bytes.size() / whole.shape[0];
  part.shape[0] = experts.size();
  for (const std::uint32_t expert : experts) {
    const auto begin = whole.bytes.begin() + static_cast<std::ptrdiff_t>(expert * each);
    part.bytes.insert(part.bytes.end(), begin, begin + static_cast<std::ptrdiff_t>(each));
  }
  return part;
}

class Cutter {
 public:
  Cutter(const EditableCheckpoint& whole, const CutPlan& plan, std::uint32_t rank)
      : whole_(whole), plan_(plan), place_(place_of(plan, rank)) {
    slots_ = slots_of(plan, place_.ep_rank);
    held_ = slots_;
    std::sort(held_.begin(), held_.end());
    held_.erase(std::unique(held_.begin(), held_.end()), held_.end());
    result_.model.config = whole.config;
    result_.model.descriptions = whole.descriptions;
    result_.slicing = slicing_of(plan);
    formats::RankRecord record;
    record.rank = rank;
    record.stage = place_.stage;
    record.tp_rank = place_.tp_rank;
    record.ep_rank = place_.ep_rank;
    record.etp_rank = place_.etp_rank;
    record.first_layer = plan.stage_layers[place_.stage];
    record.end_layer = is_last() ? plan.n_layers : plan.stage_layers[place_.stage + 1];
    record.has_embedding = place_.stage == 0;
    record.has_head = is_last();
    record.experts = {{formats::RankRecord::Experts::kEveryLayer, held_, slots_}};
    result_.slicing.rank = record;
  }

  RankDirectory run() {
    for (const auto& [name, tensor] : whole_.tensors) {
      if (is_here(name)) add(name, tensor);
    }
    return std::move(result_);
  }

 private:
  [[nodiscard]] bool is_last() const { return place_.stage + 1 == plan_.pp(); }
  [[nodiscard]] bool is_held(std::uint32_t expert) const {
    return std::binary_search(held_.begin(), held_.end(), expert);
  }

  [[nodiscard]] bool is_here(const std::string& name) const {
    const formats::RankRecord& rank = *result_.slicing.rank;
    if (const auto layer = number_behind(name, ".layers.")) {
      if (*layer < rank.first_layer || *layer >= rank.end_layer) return false;
      if (plan_.places_shared && has(name, ".shared_experts.")) return is_held(plan_.n_experts);
      const auto expert = number_behind(name, ".experts.");
      return !expert || is_held(*expert);
    }
    return has(name, "embed_tokens") ? rank.has_embedding : rank.has_head;
  }

  void add(const std::string& name, const Tensor& whole) {
    SliceRecord slice;
    slice.whole = whole.shape;
    Tensor part = whole;
    bool is_slice = false;
    if (is_stack(name) && plan_.ep > 1) {
      slice.experts = routed();
      part = matrices_of(part, slice.experts);
      is_slice = true;
    }
    const int side = side_of(name);
    const auto [n, index] = share_of(name);
    if (side >= 0 && n > 1) is_slice = cut(name, side, n, index, part, slice) || is_slice;
    if (is_slice) result_.slices[name] = slice;
    result_.model.tensors[name] = std::move(part);
  }

  [[nodiscard]] std::vector<std::uint32_t> routed() const {
    std::vector<std::uint32_t> experts = held_;
    std::erase(experts, plan_.n_experts);
    return experts;
  }

  [[nodiscard]] std::pair<std::uint32_t, std::uint32_t> share_of(const std::string& name) const {
    const bool is_placed = plan_.places_shared && has(name, ".shared_experts.");
    if (has(name, ".experts.") || is_placed) return {plan_.etp, place_.etp_rank};
    if (has(name, ".k_proj.") || has(name, ".v_proj.")) {
      const std::uint32_t n = std::min(plan_.tp, plan_.kv_heads);
      return {n, place_.tp_rank * n / plan_.tp};
    }
    return {plan_.tp, place_.tp_rank};
  }

  /// Every part of a weight follows the weight's side: [rows, columns], [rows, 1], [rows] or one
  /// number.
  static bool cut(const std::string& name, int side, std::uint32_t n, std::uint32_t index,
                  Tensor& part, SliceRecord& slice) {
    if (name.ends_with(".quant_bias") && side == 1) {
      if (index == 0) return false;
      std::fill(part.bytes.begin(), part.bytes.end(), std::byte{0});
      slice.is_zeroed = true;
      return true;
    }
    const std::size_t rank = part.shape.size();
    if (rank < 2) {
      const bool is_per_row = rank == 1 && part.shape[0] > 1 && side == 0;
      if (!is_per_row) return false;
      slice.axis = 0;
    } else {
      const std::size_t axis = rank - 2 + static_cast<std::size_t>(side);
      if (part.shape[axis] == 1) return false;  // a number per row, cut by columns
      slice.axis = static_cast<int>(axis);
    }
    const std::uint64_t sections = is_stack(name) && side == 0 ? 2 : 1;
    slice.sections = formats::Sections::equal(sections);
    const auto axis = static_cast<std::size_t>(slice.axis);
    slice.offset = index * (part.shape[axis] / sections / n);
    part = slice_of(part, axis, n, index, sections);
    return true;
  }

  const EditableCheckpoint& whole_;
  const CutPlan& plan_;
  Place place_;
  std::vector<std::uint32_t> slots_, held_;
  RankDirectory result_;
};

}  // namespace

std::uint32_t CutPlan::ranks_per_stage() const {
  return std::lcm(tp, ep * etp);
}

Tensor slice_of(const Tensor& whole, std::size_t axis, std::uint64_t n, std::uint64_t index,
                std::uint64_t sections) {
  // As [outer, sections, n, piece]: the piece of each section.
  std::uint64_t outer = sections;
  for (std::size_t i = 0; i < axis; ++i) outer *= whole.shape[i];
  const std::uint64_t piece = whole.bytes.size() / outer / n;
  Tensor part{whole.dtype, whole.shape, {}};
  part.shape[axis] /= n;
  for (std::uint64_t i = 0; i < outer; ++i) {
    const auto begin = whole.bytes.begin() + static_cast<std::ptrdiff_t>((i * n + index) * piece);
    part.bytes.insert(part.bytes.end(), begin, begin + static_cast<std::ptrdiff_t>(piece));
  }
  return part;
}

RankDirectory cut_for_rank(const EditableCheckpoint& whole, const CutPlan& plan,
                           std::uint32_t rank) {
  return Cutter(whole, plan, rank).run();
}

void RankDirectory::write(const std::filesystem::path& directory) const {
  std::filesystem::create_directories(directory);
  write_weights(directory);
  write_manifest_of(directory, slicing, slices, "ranks");
}

void write_manifest_of(const std::filesystem::path& directory,
                       const formats::SlicingRecord& slicing,
                       const std::map<std::string, formats::SliceRecord>& slices,
                       const std::string& layout) {
  formats::Manifest manifest;
  manifest.tool_version = "0";
  manifest.family = "deepseek_v32";
  manifest.dialect = "deepseek";
  manifest.layout = layout;
  manifest.slicing = slicing;
  std::vector<formats::TensorRecord> records;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file()) continue;
    if (entry.path().extension() != ".safetensors") {
      manifest.side_files.push_back({name, entry.file_size(), check::hash_file(entry.path()), ""});
      continue;
    }
    const Fd file = Fd::open_for_reading(entry.path());
    std::vector<Hash128> hashes;
    for (const formats::StoredTensor& tensor : formats::read_safetensors_header(file).tensors) {
      const Hash128 hash =
          check::hash_range(tensor.n_bytes, [&](std::uint64_t offset, std::span<std::byte> out) {
            file.read_exact(out, tensor.offset + offset);
          });
      hashes.push_back(hash);
      formats::TensorRecord& record = records.emplace_back();
      record.name = tensor.name;
      record.role = "other";
      record.action = "copy";
      record.output = {
          {tensor.name, name, std::string(formats::dtype_name(tensor.dtype)), tensor.shape, hash}};
      if (const auto slice = slices.find(tensor.name); slice != slices.end())
        record.output[0].slice = slice->second;
    }
    manifest.files.push_back(
        {name, file.size(),
         formats::weights_file_hash(formats::read_safetensors_header_bytes(file), hashes), ""});
  }
  manifest.n_tensors = records.size();
  manifest.records_hash = formats::write_tensor_records(directory / formats::kRecordsName, records);
  std::ofstream(directory / formats::kManifestName) << formats::manifest_text(manifest);
}

std::string rank_name(std::uint32_t rank, std::uint32_t n_ranks) {
  return fmt::format("rank-{:05}-of-{:05}", rank, n_ranks);
}

void write_top_manifest(const std::filesystem::path& directory, const CutPlan& plan) {
  formats::Manifest manifest;
  manifest.tool_version = "0";
  manifest.family = "deepseek_v32";
  manifest.dialect = "deepseek";
  manifest.layout = "ranks";
  manifest.slicing = slicing_of(plan);
  for (std::uint32_t rank = 0; rank < plan.n_ranks(); ++rank) {
    const std::string name = rank_name(rank, plan.n_ranks());
    manifest.slicing->ranks.push_back(
        {name, check::hash_file(directory / name / formats::kManifestName)});
  }
  std::ofstream(directory / formats::kManifestName) << formats::manifest_text(manifest);
}

void write_all_ranks(const EditableCheckpoint& whole, const CutPlan& plan,
                     const std::filesystem::path& directory) {
  for (std::uint32_t rank = 0; rank < plan.n_ranks(); ++rank)
    cut_for_rank(whole, plan, rank).write(directory / rank_name(rank, plan.n_ranks()));
  write_top_manifest(directory, plan);
}

void even_widths(formats::SynthOptions& options) {
  options.layers = 2;
  options.dense_layers = 1;
  options.mtp_layers = 1;
  options.experts = 4;
  options.hidden = 256;
  options.intermediate = 512;
  options.moe_intermediate = 256;
  options.vocab = 512;
  options.heads = 16;
}

}  // namespace ingot::testing
