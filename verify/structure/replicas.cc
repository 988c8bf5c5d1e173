#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "formats/base/parallel.h"
#include "shard/join/joined.h"
#include "verify/structure/structure_comparisons.h"

namespace ingot::verify {

using formats::Checkpoint;

namespace {

// Bytes of the whole, at a time and thread.
constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;

std::optional<Error> read_through(const Checkpoint& output, std::uint32_t stored,
                                  const std::function<bool()>& stop_requested) {
  const formats::StoredTensor& tensor = output.stored()[stored];
  std::vector<std::byte> buffer(
      static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, tensor.n_bytes)));
  for (std::uint64_t done = 0; done < tensor.n_bytes;) {
    if (stop_requested && stop_requested())
      throw Error(ErrorCode::kInterrupted, "the verification was stopped");
    const auto piece = std::span(buffer).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), tensor.n_bytes - done)));
    try {
      output.read(stored, done, piece);
    } catch (Error& error) {
      return error.in_tensor(tensor.name);
    }
    done += piece.size();
  }
  return std::nullopt;
}

}  // namespace

void compare_replicas(const Checkpoint& output, std::size_t threads,
                      const std::function<bool()>& stop_requested, StructureFindings& found) {
  const auto* joined = dynamic_cast<const shard::JoinedBytes*>(&output.bytes());
  if (joined == nullptr) return;
  std::vector<std::uint32_t> replicated;
  for (std::uint32_t i = 0; i < output.stored().size(); ++i) {
    if (joined->may_have_replicas(i)) replicated.push_back(i);
  }
  std::vector<std::optional<Error>> failures(replicated.size());
  parallel_for(replicated.size(), std::max<std::size_t>(threads, 1), [&](std::size_t i) {
    failures[i] = read_through(output, replicated[i], stop_requested);
  });
  for (const auto& failure : failures) {
    if (failure) found.error("structure.replica", *failure);
  }
}

}  // namespace ingot::verify
