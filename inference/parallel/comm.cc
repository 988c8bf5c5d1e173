#include "inference/parallel/comm.h"

namespace ingot::inference {

void OneRank::all_reduce(Group /*group*/, std::span<float> /*values*/) {}

std::vector<float> OneRank::all_gather(Group /*group*/, std::span<const float> mine) {
  return {mine.begin(), mine.end()};
}

std::vector<std::vector<std::byte>> OneRank::all_to_all_v(
    Group /*group*/, const std::vector<std::vector<std::byte>>& send) {
  return send;
}

void OneRank::broadcast(Group /*group*/, std::size_t /*root*/, std::span<std::byte> /*bytes*/) {}

}  // namespace ingot::inference
