#include "verify/structure/compared_checkpoint.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/hash.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/composed.h"
#include "formats/config/config_meaning.h"
#include "formats/dialect/dialect.h"
#include "formats/family/families.h"
#include "formats/family/roles.h"
#include "formats/files/hub_cache.h"
#include "formats/json/json.h"
#include "quantize/error_feedback.h"
#include "quantize/scheme.h"
#include "shard/join/source.h"

namespace ingot::verify {

using formats::Checkpoint;
using formats::LogicalTensor;
using formats::SchemeId;

namespace {

std::string layout_of(const ComparedCheckpoint& side) {
  if (side.manifest) return side.manifest->layout;
  return shard::is_sliced(side.directory) ? "ranks" : "hf";
}

std::string topology_of(const ComparedCheckpoint& side) {
  if (!side.manifest || !side.manifest->slicing) return {};
  const formats::SlicingRecord& slicing = *side.manifest->slicing;
  std::string text;
  const auto add = [&](std::string_view word, std::uint32_t n) {
    if (n > 1) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", word, n);
  };
  add("tp", slicing.tp);
  add("ep", slicing.ep);
  add("etp", slicing.etp);
  add("pp", slicing.pp);
  return text.empty() ? "one rank" : text;
}

std::string fingerprint_of(const Checkpoint& model) {
  std::vector<const formats::StoredTensor*> sorted;
  for (const formats::StoredTensor& tensor : model.stored()) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(),
            [](const auto* a, const auto* b) { return a->name < b->name; });
  TensorHasher hasher;
  for (const formats::StoredTensor* tensor : sorted) {
    const std::string line =
        fmt::format("{} {} {} {}\n", tensor->name, formats::dtype_name(tensor->dtype),
                    formats::shape_text(tensor->shape), tensor->n_bytes);
    hasher.update(std::as_bytes(std::span(line)));
  }
  return hasher.finish().hex();
}

std::string_view scheme_of(const LogicalTensor& tensor) {
  return formats::scheme_facts(tensor.encoding.scheme).name;
}

// All parts together.
std::uint64_t bytes_of(const Checkpoint& model, const LogicalTensor& tensor) {
  std::uint64_t n_bytes = 0;
  tensor.encoding.stored.for_each(
      [&](formats::Part, std::uint32_t stored) { n_bytes += model.stored()[stored].n_bytes; });
  return n_bytes;
}

std::string kind_of(const Checkpoint& model) {
  const formats::StoredActivations activations(model);
  bool has_fp8 = false, has_int8 = false, has_static_int8 = false;
  bool has_nvfp4 = false, has_coarser = false;
  for (const LogicalTensor& tensor : model.tensors()) {
    const SchemeId scheme = tensor.encoding.scheme;
    const formats::SchemeFacts& facts = formats::scheme_facts(scheme);
    if (!facts.quantized) continue;
    const auto is = [&](formats::Activations activations_of_it) {
      return activations.of(tensor) == activations_of_it;
    };
    if (facts.code == formats::CodeKind::kInt8) {
      has_int8 = true;
      has_static_int8 = has_static_int8 || is(formats::Activations::kStatic);
    } else if (facts.code_bits == 8) {
      has_fp8 = true;
    } else {
      has_nvfp4 = true;
      has_coarser = has_coarser || scheme != SchemeId::kNvfp4 ||
                    !formats::is_feed_forward(role_of(tensor)) ||
                    !is(formats::Activations::kWeightOnly);
    }
  }
  if (has_coarser) return "4-bit";
  if (has_nvfp4) return "nvfp4-experts";
  if (has_static_int8) return "int8-static";
  if (has_int8) return "int8";
  return has_fp8 ? "fp8" : "plain";
}

}  // namespace

std::string family_of(std::string_view given, const std::filesystem::path& directory,
                      const std::optional<formats::Manifest>& manifest) {
  if (!given.empty()) return std::string(given);
  return formats::family_spec_of(directory, manifest ? manifest->family : "");
}

ComparedCheckpoint open_compared(const std::filesystem::path& given, shard::SourceOptions options) {
  const std::filesystem::path directory = formats::checkpoint_directory(given);
  std::optional<formats::Manifest> manifest = formats::read_manifest(directory);
  options.open.family = family_of(options.open.family, directory, manifest);
  options.may_be_file = true;
  Checkpoint model = shard::open_source(directory, options);
  return {.directory = directory, .model = std::move(model), .manifest = std::move(manifest)};
}

CheckpointFacts checkpoint_facts(const ComparedCheckpoint& side) {
  const Checkpoint& model = side.model;
  CheckpointFacts facts{
      .name = std::filesystem::absolute(side.directory).lexically_normal().filename(),
      .family = std::string(model.family().name),
      .dialect = std::string(model.dialect().name),
      .layout = layout_of(side),
      .topology = topology_of(side),
      .made_by = side.manifest ? "ingot " + side.manifest->tool_version : "",
      .fingerprint = fingerprint_of(model),
      .tensors = model.tensors().size(),
      .files = model.files().size(),
      .kind = kind_of(model)};
  std::map<std::string, SchemeShare> shares;
  for (const LogicalTensor& tensor : model.tensors()) {
    const std::string name(scheme_of(tensor));
    SchemeShare& share = shares[name];
    share.scheme = name;
    ++share.tensors;
    if (tensor.encoding.stored.has(formats::Part::kInputScale)) ++facts.static_inputs;
    share.elements += formats::element_count(tensor.shape).value_or(0);
    share.bytes += bytes_of(model, tensor);
  }
  for (auto& [name, share] : shares) {
    facts.bytes += share.bytes;
    facts.schemes.push_back(std::move(share));
  }
  std::stable_sort(facts.schemes.begin(), facts.schemes.end(),
                   [](const SchemeShare& a, const SchemeShare& b) { return a.bytes > b.bytes; });
  return facts;
}

std::vector<SchemeChange> scheme_changes(const Checkpoint& source, const Checkpoint& output) {
  std::map<std::string_view, const LogicalTensor*> partners;
  for (const LogicalTensor& tensor : output.tensors()) partners.emplace(tensor.name, &tensor);
  struct Change {
    SchemeChange sum;
    std::map<formats::Role, std::uint64_t> bytes_of_roles;
  };
  std::map<std::pair<std::string_view, std::string_view>, Change> changes;
  for (const LogicalTensor& tensor : source.tensors()) {
    const auto partner = partners.find(tensor.name);
    if (partner == partners.end()) continue;
    Change& change = changes[{scheme_of(tensor), scheme_of(*partner->second)}];
    const std::uint64_t n_bytes = bytes_of(source, tensor);
    ++change.sum.tensors;
    change.sum.source_bytes += n_bytes;
    change.sum.output_bytes += bytes_of(output, *partner->second);
    change.bytes_of_roles[role_of(tensor)] += n_bytes;
  }
  std::vector<SchemeChange> sorted;
  for (auto& [schemes, change] : changes) {
    std::vector<std::pair<formats::Role, std::uint64_t>> roles(change.bytes_of_roles.begin(),
                                                               change.bytes_of_roles.end());
    std::stable_sort(roles.begin(), roles.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    for (const auto& [role, unused] : roles)
      change.sum.roles.emplace_back(formats::role_name(role));
    change.sum.from = schemes.first;
    change.sum.to = schemes.second;
    sorted.push_back(std::move(change.sum));
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const SchemeChange& a, const SchemeChange& b) {
    return a.source_bytes > b.source_bytes;
  });
  return sorted;
}

using formats::Json;
using formats::json_member;
using formats::text_at;

namespace {

constexpr std::string_view kRole = "role:", kLayers = "layers:";

// The terms of a selector, which have `&` and blanks between them.
std::vector<std::string_view> terms_of(std::string_view selector) {
  std::vector<std::string_view> terms;
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = selector.find('&');
    std::string_view term = selector.substr(0, end);
    term.remove_prefix(std::min(term.find_first_not_of(" \t"), term.size()));
    terms.push_back(term.substr(0, term.find_last_not_of(" \t") + 1));
    if (end != std::string_view::npos) selector.remove_prefix(end + 1);
  }
  return terms;
}

bool has_role(std::string_view term, const formats::LogicalTensor& tensor) {
  const auto roles = formats::find_roles(term.substr(kRole.size()));
  return roles && roles->has(role_of(tensor));
}

// True if a term of a selector is the whole name of the tensor, or has its role.
bool names(std::string_view term, const formats::LogicalTensor& tensor) {
  return term.starts_with(kRole) ? has_role(term, tensor) : term == tensor.name;
}

// True if a term may select the tensor: lists of layers are taken to have every layer.
bool may_select(std::string_view term, const formats::LogicalTensor& tensor) {
  if (term.starts_with(kRole)) return has_role(term, tensor);
  return term.starts_with(kLayers) ? tensor.layer.has_value() : Pattern(term).matches(tensor.name);
}

}  // namespace

// A rule spares a tensor of more bits than its scheme has unless it names the tensor.
bool Wanted::narrows(const formats::LogicalTensor& tensor, formats::SchemeId to) const {
  if (narrower == to && formats::is_saved_wider(tensor, to)) return true;
  const formats::SchemeFacts &from = formats::scheme_facts(tensor.encoding.scheme),
                             &wanted = formats::scheme_facts(to);
  return std::ranges::any_of(plain_rules, [&](const PlainRule& rule) {
    if (rule.scheme != wanted.name) return false;
    const std::vector<std::string_view> terms = terms_of(rule.selector);
    return from.code_bits > wanted.code_bits
               ? std::ranges::any_of(terms, [&](auto term) { return names(term, tensor); })
               : std::ranges::all_of(terms, [&](auto term) { return may_select(term, tensor); });
  });
}

std::string Wanted::sentence() const {
  if (!is_recorded) {
    return "no ingot.json names the options of the conversion: codes of an unchanged scheme are "
           "assumed to be kept, and other values to be rounded once, from the source's (as without "
           "--via, --fp8-grid, --scales-from and rules that narrow)";
  }
  std::vector<std::string> words;
  if (via_bf16) words.emplace_back("--via bf16");
  if (!fp8_grid.empty()) words.push_back("--fp8-grid " + fp8_grid);
  if (has_given_scales) words.emplace_back("--scales-from");
  if (search == kCarryingSearch)
    words.emplace_back("--gptq (4-bit codes by the error of their row, not one by one)");
  for (const auto& [selector, scheme, is_default] : plain_rules)
    words.push_back(is_default ? fmt::format("--to {}", scheme)
                               : fmt::format("--rule '{}={}'", selector, scheme));
  return words.empty() ? "" : fmt::format("judged as asked for: {}", fmt::join(words, ", "));
}

bool Wanted::carries_errors(const formats::LogicalTensor& output) const {
  return search == kCarryingSearch && quantize::can_carry_errors(output.encoding.scheme) &&
         (!carried || carried->contains(output.name));
}

std::optional<std::set<std::string, std::less<>>> carried_tensors(const ComparedCheckpoint& side) {
  const std::filesystem::path records = side.directory / formats::kRecordsName;
  if (!side.manifest || !std::filesystem::exists(records)) return std::nullopt;
  std::set<std::string, std::less<>> names;
  for (formats::TensorRecord& record :
       formats::read_tensor_records(records, side.manifest->records_hash)) {
    if (record.carries_errors) names.insert(std::move(record.name));
  }
  return names;
}

Wanted wanted_of(const std::optional<formats::Manifest>& manifest) {
  Wanted wanted;
  if (!manifest) return wanted;
  const Json& recipe = manifest->recipe;
  const Json& choices = json_member(recipe, "choices");
  wanted.is_recorded = recipe.is_object() && !recipe.empty();
  const bool is_weighted = !json_member(choices, "importance").is_null();
  const bool is_carrying = !json_member(choices, "gptq").is_null();
  wanted.search = is_carrying   ? std::string(kCarryingSearch)
                  : is_weighted ? std::string(kWeightedSearch)
                                : text_at(choices, "search");
  wanted.fp8_grid = text_at(choices, "fp8_grid");
  wanted.activations = text_at(choices, "activations");
  wanted.is_repair = !json_member(choices, "repair").is_null();
  wanted.via_bf16 = text_at(choices, "via") == "bf16";
  wanted.has_given_scales = !json_member(choices, "scales_from").is_null();
  const bool has_roles = manifest->family != formats::family_entries().back().name;
  const Json& rules = json_member(recipe, "rules");
  for (const Json& rule : rules.is_array() ? rules : Json::array()) {
    const std::string scheme = text_at(rule, "scheme");
    const auto id = formats::find_scheme(scheme);
    const bool is_default = text_at(rule, "origin") == "default";
    if (id && !formats::scheme_facts(*id).quantized && !(is_default && has_roles))
      wanted.plain_rules.push_back({text_at(rule, "match"), scheme, is_default});
  }
  return wanted;
}

}  // namespace ingot::verify
