#include "library/options/family_proposal.h"

#include <algorithm>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/family/families.h"
#include "formats/family/proposal/family_proposal.h"
#include "formats/files/named_file.h"
#include "formats/storage/encoding.h"

namespace ingot {
namespace {

bool quantizes(const convert::Recipe& recipe) {
  const auto is_quantized = [](const std::optional<formats::SchemeId>& scheme) {
    return scheme && formats::scheme_facts(*scheme).quantized;
  };
  return is_quantized(recipe.to) ||
         std::ranges::any_of(recipe.rules,
                             [&](const convert::Rule& rule) { return is_quantized(rule.scheme); });
}

std::uint64_t bytes_of(const formats::Checkpoint& source, const formats::LogicalTensor& tensor) {
  std::uint64_t n_bytes = 0;
  tensor.encoding.stored.for_each(
      [&](formats::Part, std::uint32_t i) { n_bytes += source.stored()[i].n_bytes; });
  return n_bytes;
}

}  // namespace

std::vector<Flag> proposal_flags(ProposalFlags& flags, const std::string& family) {
  const auto idle = belongs_to("--family auto", [&family] { return family == kAutoFamily; });
  return {{"--write-family",
           &flags.file,
           "--family auto: the file for the proposal",
           {.kind = ValueKind::kFile, .is_written = true, .idle = idle}},
          {"--accept-family",
           &flags.accept,
           "--family auto: take the proposal without a look at it",
           {.idle = idle}}};
}

ProposedFamily proposed_family(const formats::Checkpoint& source, const ProposalFlags& flags) {
  std::vector<formats::UnknownWeight> weights;
  for (const formats::LogicalTensor& tensor : source.tensors()) {
    weights.push_back({.name = tensor.name,
                       .shape = &tensor.shape,
                       .dtype = source.stored()[tensor.encoding.stored.weight()].dtype,
                       .is_quantized = formats::scheme_facts(tensor.encoding.scheme).quantized,
                       .block = {tensor.encoding.block_rows, tensor.encoding.block_cols},
                       .n_bytes = bytes_of(source, tensor)});
  }
  ProposedFamily proposed{.yaml = formats::propose_family(source.config(), weights),
                          .share = formats::other_share(weights, source.config())};
  if (!flags.file.empty()) write_absent_file(flags.file, proposed.yaml);
  return proposed;
}

std::string settle_family(const formats::Checkpoint& source, const ProposalFlags& flags,
                          const convert::Recipe& recipe) {
  const std::string yaml = proposed_family(source, flags).yaml;
  if (flags.accept) return std::string(formats::add_family(yaml, "the proposed family").spec);
  if (!quantizes(recipe)) return "generic";
  const std::string way =
      flags.file.empty()
          ? "look at the proposal (ingot inspect DIR --family auto --write-family my_model.yaml) "
            "and give it with --family-file"
          : fmt::format("look at {}, and give it with --family-file", flags.file);
  throw Error(ErrorCode::kUnsupported,
              "a proposed family does not decide which tensors may be quantized ({}; "
              "--accept-family takes it as it is)",
              way)
      .in_file(source.directory().string());
}

}  // namespace ingot
