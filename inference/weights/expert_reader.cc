#include "inference/weights/expert_reader.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace ingot::inference {

/// Gate, up and down.
struct ExpertReader::Parts {
  std::array<std::string, 3> names;
  std::array<LinearPart, 3> parts;
  /// The part, with the name that it points to.
  [[nodiscard]] LinearPart operator[](std::size_t i) const {
    LinearPart part = parts[i];
    part.name = names[i];
    return part;
  }
};

ExpertReader::Parts ExpertReader::parts_of(std::uint32_t layer, std::uint32_t expert) const {
  const std::string all = fmt::format("model.layers.{}.mlp.experts.", layer);
  const Range inner = {.first = 0, .count = intermediate_};
  const Range outer = {.first = 0, .count = hidden_};
  const std::string stack = all + "gate_up_proj";
  if (store_.has(stack)) {
    const formats::Shape both = {n_experts_, 2 * intermediate_, hidden_};
    const Range second = {.first = intermediate_, .count = intermediate_};
    return {.names = {stack, stack, all + "down_proj"},
            .parts = {LinearPart{.whole = both, .matrix = expert, .rows = inner, .cols = outer},
                      LinearPart{.whole = both, .matrix = expert, .rows = second, .cols = outer},
                      LinearPart{.whole = {n_experts_, hidden_, intermediate_},
                                 .matrix = expert,
                                 .rows = outer,
                                 .cols = inner}}};
  }
  const auto name = [&](const char* module) {
    return fmt::format("{}{}.{}_proj.weight", all, expert, module);
  };
  const LinearPart in = {.whole = {intermediate_, hidden_}, .rows = inner, .cols = outer};
  return {.names = {name("gate"), name("up"), name("down")},
          .parts = {in, in,
                    LinearPart{.whole = {hidden_, intermediate_}, .rows = outer, .cols = inner}}};
}

std::uint64_t ExpertReader::bytes_of(std::uint32_t layer, std::uint32_t expert) const {
  const Parts parts = parts_of(layer, expert);
  return store_.bytes_of(parts[0]) + store_.bytes_of(parts[1]) + store_.bytes_of(parts[2]);
}

Expert ExpertReader::read(std::uint32_t layer, std::uint32_t expert, std::size_t threads) const {
  const Parts parts = parts_of(layer, expert);
  const std::array<LinearPart, 3> all = {parts[0], parts[1], parts[2]};
  std::vector<Linear> linears = store_.read(all, threads);
  return {
      .gate = std::move(linears[0]), .up = std::move(linears[1]), .down = std::move(linears[2])};
}

}  // namespace ingot::inference
