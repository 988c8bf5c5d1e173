#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "convert/plan/passes.h"
#include "formats/base/checked.h"
#include "formats/base/error.h"

// Layout hf: one directory, its files those of the source or of a size.

namespace ingot::convert {

using formats::LogicalTensor;

namespace {

// Keeps the distribution of the source: each part goes where its stored tensor was, a new one next
// to its weight. Files that would be empty vanish. Joined slices go where they were before they
// were cut; false when that is not known.
bool assign_as_source(Plan& plan) {
  std::map<std::string, std::uint32_t> homes;  // names, and later indices into Plan::files
  const auto home = [&](const PlannedTensor& planned, std::size_t p) {
    return unsliced_file(plan, planned, planned.parts[p].part);
  };
  for (const PlannedTensor& planned : plan.tensors) {
    for (std::size_t p = 0; p < planned.n_parts; ++p) homes.emplace(home(planned, p), 0);
  }
  if (homes.contains("")) return false;
  for (auto& [name, index] : homes) {
    index = static_cast<std::uint32_t>(plan.files.size());
    add_file(plan, name);
  }
  for (PlannedTensor& planned : plan.tensors) {
    for (std::size_t p = 0; p < planned.n_parts; ++p) {
      const PlannedPlace place{.file = homes.at(home(planned, p))};
      set_places(plan, planned.parts[p], std::span(&place, 1));
    }
  }
  return true;
}

void assign_by_size(Plan& plan, std::uint64_t max_bytes) {
  const SizedFiles dealt = deal_by_size(plan, max_bytes);
  for (PlannedTensor& planned : plan.tensors) {
    const PlannedPlace place{.file = dealt.file_of[planned.tensor]};
    for (std::size_t part = 0; part < planned.n_parts; ++part)
      set_places(plan, planned.parts[part], std::span(&place, 1));
  }
  for (std::uint32_t i = 0; i < dealt.n_files; ++i) add_file(plan, dealt.name_of(i));
}

std::uint64_t bytes_of(const PlannedTensor& planned) {
  std::uint64_t n_bytes = 0;
  for (std::size_t part = 0; part < planned.n_parts; ++part) n_bytes += planned.parts[part].n_bytes;
  return n_bytes;
}

// The order in which `--files` deals tensors, and the set of files that a tensor belongs to: main
// layers in order between embedding and head, then MTP layers, then towers.
enum class FileSet : std::uint8_t { kMain, kMtp, kTower };

constexpr formats::RoleSet kOfMtp = {
    formats::Role::kMtpEmbedding, formats::Role::kMtpEmbeddingNorm, formats::Role::kMtpHiddenNorm,
    formats::Role::kMtpProj,      formats::Role::kMtpHeadNorm,      formats::Role::kMtpHead};

FileSet set_of(const Plan& plan, const LogicalTensor& tensor) {
  const formats::Role role = role_of(tensor);
  if (role == formats::Role::kOtherModality) return FileSet::kTower;
  const bool is_mtp = tensor.layer && *tensor.layer >= plan.source.config().num_hidden_layers;
  return is_mtp || kOfMtp.has(role) ? FileSet::kMtp : FileSet::kMain;
}

std::vector<std::uint32_t> order_of_layers(const Plan& plan) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i)
    if (plan.tensors[i].n_parts > 0) order.push_back(i);
  const auto key = [&](std::uint32_t i) {
    const LogicalTensor& tensor = plan.tensor_of(plan.tensors[i]);
    const bool is_first = role_of(tensor) == formats::Role::kEmbedding;
    const std::uint64_t layer = tensor.layer ? std::uint64_t{*tensor.layer} + 1
                                : is_first   ? 0
                                             : std::numeric_limits<std::uint64_t>::max();
    return std::pair(set_of(plan, tensor), layer);
  };
  std::ranges::stable_sort(order, {}, key);
  return order;
}

// Deals the tensors of one set to `n` files of even size behind those of `dealt`: each to the file
// in which its middle lies. Returns the bytes of the largest file that has more than one tensor.
std::uint64_t deal_evenly(const Plan& plan, std::span<const std::uint32_t> tensors, std::uint32_t n,
                          SizedFiles& dealt) {
  std::uint64_t all = 0;
  for (const std::uint32_t i : tensors) all += bytes_of(plan.tensors[i]);
  std::vector<std::uint64_t> bytes(n), count(n);
  std::uint64_t before = 0;
  for (const std::uint32_t i : tensors) {
    const std::uint64_t own = bytes_of(plan.tensors[i]);
    const std::uint64_t middle = before + own / 2;
    const auto file = static_cast<std::uint32_t>(std::min<std::uint64_t>(
        n - 1, checked_mul(middle, n).value_or(0) / std::max<std::uint64_t>(all, 1)));
    bytes[file] += own;
    ++count[file];
    dealt.file_of[plan.tensors[i].tensor] = dealt.n_files + file;
    before += own;
  }
  if (const auto empty = std::ranges::find(count, 0U); empty != count.end()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--files: {} files of even size are more than the {} tensors fill, the largest "
                "being larger than a file (fewer files, or --max-shard-size)",
                n, tensors.size());
  }
  dealt.n_files += n;
  std::uint64_t largest = 0;
  for (std::uint32_t file = 0; file < n; ++file)
    if (count[file] > 1) largest = std::max(largest, bytes[file]);
  return largest;
}

SizedFiles deal_to_number(const Plan& plan, std::uint32_t number) {
  const std::vector<std::uint32_t> order = order_of_layers(plan);
  SizedFiles dealt{.file_of = std::vector<std::uint32_t>(plan.source.tensors().size()),
                   .n_files = 0};
  for (std::size_t begin = 0; begin < order.size();) {
    const auto set = [&](std::size_t at) {
      return set_of(plan, plan.tensor_of(plan.tensors[order[at]]));
    };
    std::size_t end = begin;
    std::uint64_t all = 0;
    while (end < order.size() && set(end) == set(begin))
      all += bytes_of(plan.tensors[order[end++]]);
    const auto tensors = std::span(order).subspan(begin, end - begin);
    const std::uint32_t step = set(begin) == FileSet::kMain ? number : 1;
    std::uint64_t n = round_up(std::max<std::uint64_t>(1, ceil_div(all, kRankFileBytes)), step);
    SizedFiles tried = dealt;
    while (deal_evenly(plan, tensors, static_cast<std::uint32_t>(n), tried) > kRankFileBytes) {
      tried = dealt;
      n += step;
    }
    dealt = std::move(tried);
    begin = end;
  }
  dealt.n_files = std::max(dealt.n_files, 1U);
  return dealt;
}

// A file ends at `enough` bytes, and before a tensor that would take it beyond `most`.
SizedFiles deal(const Plan& plan, std::uint64_t most, std::uint64_t enough) {
  SizedFiles dealt{.file_of = std::vector<std::uint32_t>(plan.source.tensors().size())};
  std::uint64_t in_file = 0;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.n_parts == 0) continue;
    const std::uint64_t n_bytes = bytes_of(planned);
    if (in_file > 0 && (in_file + n_bytes > most || in_file >= enough)) {
      ++dealt.n_files;
      in_file = 0;
    }
    in_file += n_bytes;
    dealt.file_of[planned.tensor] = dealt.n_files - 1;
  }
  return dealt;
}

void assign_hub_files(Plan& plan) {
  const ShardPolicy& shards = plan.options.shards;
  if (shards.n_files || shards.max_shard_bytes || shards.align > 0 || !assign_as_source(plan))
    assign_by_size(plan, shards.max_shard_bytes.value_or(kRankFileBytes));
}

}  // namespace

SizedFiles deal_by_size(const Plan& plan, std::uint64_t max_bytes) {
  if (plan.options.shards.n_files) return deal_to_number(plan, *plan.options.shards.n_files);
  SizedFiles dealt = deal(plan, max_bytes, max_bytes);
  if (plan.options.shards.align == 0) return dealt;
  std::uint64_t all = 0;
  for (const PlannedTensor& planned : plan.tensors) all += bytes_of(planned);
  // Deals to the fewest files of even size: readers of even files end at the same time.
  std::uint64_t n = dealt.n_files;
  do {
    dealt = deal(plan, max_bytes, ceil_div(all, n));
  } while (dealt.n_files > n++);
  return dealt;
}

constexpr LayoutFunctions kHubLayout{.assign_files = assign_hub_files};

}  // namespace ingot::convert
