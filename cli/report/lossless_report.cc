#include "cli/report/lossless_report.h"

#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/terminal/terminal.h"
#include "convert/plan/exactness.h"
#include "convert/run/scale_proof.h"
#include "formats/json/json.h"
#include "formats/text/figures.h"

namespace ingot::cli {

using convert::BlockLoss;
using convert::LosslessProof;
using convert::Plan;
using convert::PlannedTensor;
using convert::TensorLoss;
using formats::Json;

namespace {

std::string scheme_name(formats::SchemeId scheme) {
  return std::string(formats::scheme_facts(scheme).name);
}

// The names, or some and how many more.
std::string roles_text(const std::set<std::string_view>& roles) {
  constexpr std::size_t kMostNamed = 5;
  if (roles.size() <= kMostNamed) return fmt::format("{}", fmt::join(roles, ", "));
  return fmt::format("{} and {} more",
                     fmt::join(roles.begin(), std::next(roles.begin(), kMostNamed), ", "),
                     roles.size() - kMostNamed);
}

// A power of two as one.
std::string scale_text(float scale) {
  if (scale == 0) return "-";
  return convert::significant_bits(scale) == 1 ? fmt::format("2^{}", std::ilogb(scale))
                                               : fmt::format("{:.6g}", scale);
}

std::string place_text(const formats::LogicalTensor& tensor, const BlockLoss& block) {
  if (block.scale == 0) return fmt::format("row {}, column {}", block.block_row, block.block_col);
  const char* form =
      tensor.encoding.block_rows > 1 ? "block row {}, column {}" : "row {}, group {}";
  return fmt::format(fmt::runtime(form), block.block_row, block.block_col);
}

std::string why_text(const PlannedTensor& planned, const BlockLoss& block) {
  const formats::SchemeFacts& to = formats::scheme_facts(planned.to);
  if (planned.action == convert::Action::kRepackage)
    return fmt::format("the scale becomes {:.9g}", block.becomes);
  const std::string change = fmt::format("{:.6g} at row {}, column {} becomes {:.6g}", block.value,
                                         block.row, block.col, block.becomes);
  if (to.quantized) return fmt::format("{}: no code of {} beside its group", change, to.name);
  const unsigned bits = convert::significant_bits(block.value);
  if (bits > convert::plain_bounds(to.id).bits)
    return fmt::format("{}: {} significant bits, more than {} has", change, bits, to.name);
  return fmt::format("{}: beyond the {} of {}", change,
                     std::isinf(block.becomes) ? "largest" : "least", to.name);
}

Json finite(float value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

}  // namespace

verify::Table exactness_table(const Plan& plan) {
  verify::Table held{.columns = {"every value is held", "from", "to", "roles"}};
  for (const auto& [key, roles] : convert::roles_by_exactness(plan)) {
    const auto& [exactness, from, to] = key;
    held.rows.push_back(
        {exactness_text(exactness), scheme_name(from), scheme_name(to), roles_text(roles)});
  }
  return held;
}

Json exactness_json(const Plan& plan) {
  return formats::json_list(convert::roles_by_exactness(plan),
                            [](const convert::RolesByExactness::value_type& row) -> Json {
                              const auto& [exactness, from, to] = row.first;
                              return {{"held", exactness_text(exactness)},
                                      {"from", scheme_name(from)},
                                      {"to", scheme_name(to)},
                                      {"roles", row.second}};
                            });
}

std::string proof_text(const LosslessProof& proof) {
  const std::uint64_t held = proof.by_headers + proof.by_scales + proof.by_codes;
  if (proof.holds()) {
    return fmt::format("yes: all values of {} tensors, {} by headers, {} by scales, {} by codes",
                       count_text(held), count_text(proof.by_headers), count_text(proof.by_scales),
                       count_text(proof.by_codes));
  }
  std::uint64_t n_blocks = 0, n_rounded = 0;
  for (const TensorLoss& loss : proof.losses) {
    n_blocks += loss.n_blocks;
    n_rounded += loss.is_counted ? 0 : 1;
  }
  return fmt::format("NO: {} of {} tensors would lose values, in {} blocks{}",
                     count_text(proof.losses.size()), count_text(held + proof.losses.size()),
                     count_text(n_blocks),
                     n_rounded == 0 ? ""
                                    : fmt::format(" and more ({} tensors are rounded to codes, and "
                                                  "were read to the first loss)",
                                                  count_text(n_rounded)));
}

verify::Table loss_table(const Plan& plan, const LosslessProof& proof) {
  verify::Table table{.columns = {verify::name("would lose values"), "from", "to",
                                  verify::number("blocks"), "of them", verify::number("scale"),
                                  "why"}};
  for (const TensorLoss& loss : proof.losses) {
    const PlannedTensor& planned = plan.tensors[loss.index];
    const formats::LogicalTensor& tensor = plan.tensor_of(planned);
    const std::string n_blocks = count_text(loss.n_blocks) + (loss.is_counted ? "" : "+");
    for (const BlockLoss& block : loss.blocks) {
      table.rows.push_back({tensor.name, scheme_name(tensor.encoding.scheme),
                            scheme_name(planned.to), n_blocks, place_text(tensor, block),
                            scale_text(block.scale), why_text(planned, block)});
    }
  }
  return table;
}

Json proof_json(const Plan& plan, const LosslessProof& proof) {
  const auto block_json = [](const BlockLoss& block) -> Json {
    return {{"block", {block.block_row, block.block_col}},
            {"scale", block.scale == 0 ? Json(nullptr) : Json(block.scale)},
            {"at", {block.row, block.col}},
            {"value", finite(block.value)},
            {"becomes", finite(block.becomes)}};
  };
  const auto loss_json = [&](const TensorLoss& loss) -> Json {
    const PlannedTensor& planned = plan.tensors[loss.index];
    const formats::LogicalTensor& tensor = plan.tensor_of(planned);
    return {{"tensor", tensor.name},
            {"from", scheme_name(tensor.encoding.scheme)},
            {"to", scheme_name(planned.to)},
            {"blocks", loss.n_blocks},
            {"all_counted", loss.is_counted},
            {"first_blocks", formats::json_list(loss.blocks, block_json)}};
  };
  return {{"holds", proof.holds()},
          {"by_headers", proof.by_headers},
          {"by_scales", proof.by_scales},
          {"by_codes", proof.by_codes},
          {"losses", formats::json_list(proof.losses, loss_json)}};
}

}  // namespace ingot::cli
