#include <map>

#include "convert/plan/passes.h"
#include "formats/base/checked.h"

// Layout hf: one directory, its files those of the source or of a size.

namespace ingot::convert {
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
  const auto& [max_bytes, align] = plan.options.shards;
  if (max_bytes || align > 0 || !assign_as_source(plan))
    assign_by_size(plan, max_bytes.value_or(kRankFileBytes));
}

}  // namespace

SizedFiles deal_by_size(const Plan& plan, std::uint64_t max_bytes) {
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
