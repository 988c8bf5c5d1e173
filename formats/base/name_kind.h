#pragma once

#include <string>
#include <string_view>

namespace ingot {

/// What names of one kind have in common: every run of digits as `*`, as in
/// `model.layers.*.mlp.experts.*.up_proj.weight` and `model-*-of-*.safetensors`.
std::string name_kind(std::string_view name);

}  // namespace ingot
