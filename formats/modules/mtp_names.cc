#include "formats/modules/mtp_names.h"

#include <fmt/format.h>

#include "formats/modules/module_census.h"

namespace ingot::formats {

std::vector<std::string> MtpNames::all() const {
  std::vector<std::string> names;
  for (const std::string* name : {&head, &block, &draft})
    if (!name->empty()) names.push_back(*name);
  return names;
}

MtpNames mtp_names(std::string_view module, std::uint64_t n_main_layers) {
  MtpNames names;
  constexpr std::string_view kHead = ".shared_head.head";
  if (module.ends_with(kHead))
    names.head = std::string(module.substr(0, module.size() - kHead.size())).append(".head");
  const auto split = split_layer(module);
  if (!split || n_main_layers == 0 || split->layer < n_main_layers ||
      split->prefix != "model.layers.")
    return names;
  const std::string layer = fmt::format("{}{}.", split->prefix, split->layer);
  const std::string_view rest = module.substr(layer.size());
  if (!rest.starts_with("self_attn.") && !rest.starts_with("mlp.")) return names;
  names.block = fmt::format("{}mtp_block.{}", layer, rest);
  if (split->layer == n_main_layers) names.draft = fmt::format("model.decoder.{}", rest);
  return names;
}

}  // namespace ingot::formats
