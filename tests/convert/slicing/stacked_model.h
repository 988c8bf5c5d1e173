#pragma once

#include <regex>

#include "tests/check/editable_checkpoint.h"
#include "tests/support/test.h"

namespace ingot::testing {

/// Writes a model with the experts of each layer in two tensors, as transformers 5 holds them:
/// `gate_up_proj` [E, 2I, H], the rows of gate before those of up, and `down_proj` [E, H, I], with
/// `_scale_inv` where they are FP8. From one that has them apart, in widths that 128 divides.
inline std::filesystem::path write_stacked(const std::filesystem::path& from,
                                           const std::filesystem::path& to) {
  EditableCheckpoint model = EditableCheckpoint::load(from);
  const std::regex apart(R"((.*\.experts\.)0\.down_proj\.weight(_scale_inv)?)");
  std::map<std::string, EditableCheckpoint::Tensor> stacks;
  std::vector<std::string> stems;
  const auto append = [](EditableCheckpoint::Tensor& stack, const EditableCheckpoint::Tensor& one) {
    stack.dtype = one.dtype;
    stack.bytes.insert(stack.bytes.end(), one.bytes.begin(), one.bytes.end());
  };
  for (const auto& [name, tensor] : model.tensors) {
    std::smatch found;
    if (!std::regex_match(name, found, apart)) continue;
    const std::string stem = found[1].str(), scale = found[2].str();
    EditableCheckpoint::Tensor gate_up, down;
    std::uint64_t n = 0;
    const auto part = [&](const char* which) -> const EditableCheckpoint::Tensor& {
      return model.at(fmt::format("{}{}.{}_proj.weight{}", stem, n, which, scale));
    };
    for (; model.tensors.contains(fmt::format("{}{}.up_proj.weight", stem, n)); ++n) {
      append(gate_up, part("gate"));
      append(gate_up, part("up"));
      append(down, part("down"));
    }
    n = 0;
    gate_up.shape = {0, 2 * part("gate").shape[0], part("gate").shape[1]};
    down.shape = {0, part("down").shape[0], part("down").shape[1]};
    for (EditableCheckpoint::Tensor* stack : {&gate_up, &down}) {
      const auto one = formats::byte_count(stack->dtype, {1, stack->shape[1], stack->shape[2]});
      stack->shape[0] = stack->bytes.size() / one.value();
    }
    stacks[stem + "gate_up_proj" + scale] = gate_up;
    stacks[stem + "down_proj" + scale] = down;
    stems.push_back(stem);
  }
  for (const std::string& stem : stems) model.erase_prefix(stem);
  for (auto& [name, stack] : stacks) model.tensors[name] = std::move(stack);
  std::filesystem::create_directories(to);
  model.write(to);
  return to;
}

}  // namespace ingot::testing
