#include "convert/plan/repair.h"

#include <algorithm>
#include <optional>

#include "convert/plan/passes.h"
#include "formats/base/fd.h"
#include "formats/dialect/source_activations.h"
#include "formats/storage/block_scales.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::LogicalTensor;

namespace {

// How many bytes stand before the data, by file.
std::vector<std::uint64_t> header_sizes(const Checkpoint& source) {
  std::vector<std::uint64_t> sizes;
  for (const formats::SourceFile& file : source.files()) sizes.push_back(file.n_bytes);
  for (const formats::StoredTensor& stored : source.stored())
    sizes[stored.file] = std::min(sizes[stored.file], stored.offset);
  return sizes;
}

float as_factor(const formats::GlobalScale& global) {
  return global.divides ? 1 / global.value : global.value;
}

// Whether some row of its dialect calls the parts of a tensor as they are called. DeepSeek's own
// names (`X.scale`) are in no row, and read by its own loader.
bool has_names_of_dialect(const Checkpoint& source, const LogicalTensor& tensor) {
  bool is_known = true;
  tensor.encoding.stored.for_each([&](formats::Part part, std::uint32_t index) {
    const std::string& name = source.stored()[index].name;
    const auto calls_it_so = [&](const formats::StorageRow& row) {
      return row.scheme == tensor.encoding.scheme &&
             std::ranges::any_of(row.parts, [&](const formats::PartRow& at) {
               return at.part == part && formats::part_name(at, tensor.name) == name;
             });
    };
    is_known = is_known && (name.ends_with(".scale") ||
                            std::ranges::any_of(source.dialect().storage, calls_it_so));
  });
  return is_known;
}

}  // namespace

RepairFacts read_repair_facts(const Checkpoint& source) {
  RepairFacts facts;
  const std::vector<std::uint64_t> sizes = header_sizes(source);
  for (std::size_t f = 0; f < sizes.size(); ++f) {
    const Fd file = Fd::open_for_reading(source.directory() / source.files()[f].name);
    std::vector<std::byte> bytes(sizes[f]);
    file.read_exact(bytes, 0);
    facts.headers.push_back(hash_bytes(bytes));
  }
  std::map<FusedKey, std::vector<const LogicalTensor*>> sets;
  for (const LogicalTensor& tensor : source.tensors()) {
    if (tensor.encoding.stored.has(formats::Part::kGlobal))
      sets[fused_key(tensor)].push_back(&tensor);
  }
  for (const auto& [key, set] : sets) {
    if (set.size() < 2) continue;
    std::optional<formats::GlobalScale> joint;
    std::vector<formats::GlobalScale> own;
    for (const LogicalTensor* tensor : set) {
      own.push_back(*formats::ScaleReader(source, *tensor).global());
      if (!joint || as_factor(own.back()) > as_factor(*joint)) joint = own.back();
    }
    for (std::size_t i = 0; i < set.size(); ++i) {
      if (own[i].value != joint->value) facts.joint_globals.emplace(set[i]->name, joint->value);
    }
  }
  return facts;
}

void mend_tensors(Plan& plan) {
  const RepairFacts* facts = plan.recipe.choices.repair.get();
  if (facts == nullptr) return;
  const Checkpoint& source = plan.source;
  const formats::SourceActivations activations(source.config(), source.dialect(),
                                               source.description());
  bool is_postponed = false;
  for (PlannedTensor& planned : plan.tensors) {
    const LogicalTensor& tensor = plan.tensor_of(planned);
    const bool is_apart = facts->joint_globals.contains(tensor.name);
    if (planned.action == Action::kCopy && formats::scheme_facts(planned.to).quantized) {
      const formats::StorageRow* row = formats::find_storage(
          source.dialect(), planned.to, activations.of(tensor.name, tensor.encoding));
      if (row != nullptr && !has_names_of_dialect(source, tensor)) {
        planned.action = Action::kRepackage;
        planned.storage = row;
        planned.block = {tensor.encoding.block_rows, tensor.encoding.block_cols};
      }
    }
    if (is_apart && planned.action == Action::kCopy)
      planned.joint_global = facts->joint_globals.at(tensor.name);
    is_postponed = is_postponed || (is_apart && planned.action == Action::kRepackage);
  }
  if (is_postponed) {
    plan.warnings.emplace_back(
        "parts of NVFP4 weights get other names, so that fused ones keep global scales of their "
        "own for now (repair the result once more)");
  }
}

void keep_whole_files(Plan& plan) {
  const RepairFacts* facts = plan.recipe.choices.repair.get();
  if (facts == nullptr || !plan.options.links) return;
  for (std::size_t f = 0; f < plan.files.size(); ++f) {
    PlannedFile& file = plan.files[f];
    const bool is_copy = std::ranges::all_of(file.parts, [&](const PartRef& at) {
      const PlannedTensor& planned = plan.tensors[at.tensor];
      return planned.action == Action::kCopy && !planned.joint_global;
    });
    if (!is_copy) continue;
    const auto files = plan.source.files();
    const auto same = std::ranges::find(files, file.name, &formats::SourceFile::name);
    if (same == files.end() || same->n_bytes != file.n_bytes) continue;
    const std::string header = plan.header(f);
    const auto index = static_cast<std::size_t>(same - files.begin());
    if (hash_bytes(std::as_bytes(std::span(header))) != facts->headers[index]) continue;
    file.is_linked = true;
    file.is_here = false;
  }
}

}  // namespace ingot::convert
