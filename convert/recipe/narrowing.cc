#include "convert/recipe/narrowing.h"

#include <fmt/format.h>

#include "formats/storage/encoding.h"
#include "formats/text/list_text.h"

namespace ingot::convert {

namespace {

// `8 plain tensors of more bits ('a', 'b' and 6 more)`.
std::string plain_tensors(const std::vector<std::string>& names) {
  return fmt::format("{} plain tensor{} of more bits ({})", names.size(),
                     names.size() == 1 ? "" : "s", list_text(names, 5, "'"));
}

}  // namespace

void Narrowing::note(const formats::LogicalTensor& tensor, const Decision& decision) {
  const auto has_more_bits = [&](formats::SchemeId to) {
    const formats::SchemeFacts& from = formats::scheme_facts(tensor.encoding.scheme);
    return !is_coded(from.id) && !is_quantized(to) &&
           from.code_bits > formats::scheme_facts(to).code_bits;
  };
  if (decision.scheme && has_more_bits(*decision.scheme)) {
    narrowed_[decision.rule].push_back(tensor.name);
  } else if (decision.spared_by != nullptr && !decision.scheme) {
    spared_[decision.spared_by].push_back(tensor.name);
  }
}

std::vector<std::string> Narrowing::sentences(const Recipe& recipe) const {
  std::vector<std::string> all;
  for (const Rule& rule : recipe.rules) {
    const std::string text = fmt::format("rule '{}={}'", rule.selector.text(),
                                         rule.scheme ? scheme_name(*rule.scheme) : "keep");
    if (const auto found = spared_.find(&rule); found != spared_.end()) {
      all.push_back(fmt::format(
          "{} leaves {} as they are: a rule dequantizes, and narrows only a tensor whose whole "
          "name or role it gives (role:NAME={})",
          text, plain_tensors(found->second), scheme_name(*rule.scheme)));
    }
    const auto found = narrowed_.find(&rule);
    if (found == narrowed_.end()) continue;
    if (rule.narrows_saved) {
      all.push_back(
          fmt::format("config.json says that weights are {0}: --to {0} narrows {1}, which "
                      "were saved so, and not what releases of this family have in F32",
                      scheme_name(*rule.scheme), plain_tensors(found->second)));
    } else {
      all.push_back(fmt::format("{} narrows {}", text, plain_tensors(found->second)));
    }
  }
  return all;
}

}  // namespace ingot::convert
