#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "delta/chain.h"

namespace ingot::delta {

struct ApplyOptions {
  bool in_place = false;  ///< always write into the files that are there
  std::size_t threads = 1;
  /// Bytes of the base that were read so far, and in all. From any thread.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

/// How the new version came into its place.
enum class ApplyMethod : std::uint8_t {
  kNone,      ///< the directory holds the last version already
  kExchange,  ///< a sibling directory took its place in one step
  kJournal,   ///< ranges of its files were written, by a journal
};
std::string_view method_name(ApplyMethod method);

/// A version as the chain has it, for reports.
struct AppliedVersion {
  std::uint64_t version = 0, base = 0;
  bool is_full = false, has_record = false;
  std::string encoding, checksum;  ///< names; empty for a full version
  std::uint64_t n_tensors = 0, n_payload = 0, n_extra = 0;
};

struct Applied {
  std::uint64_t from = 0, to = 0;
  ApplyMethod method = ApplyMethod::kNone;
  /// The version that a journal of an earlier run was finished to, before anything else.
  std::optional<std::uint64_t> finished;
  std::vector<AppliedVersion> versions;
  std::uint64_t n_tensors = 0, n_bytes = 0;
  std::uint64_t n_changed = 0;     ///< tensors that some version changes
  std::uint64_t n_compared = 0;    ///< tensors of the base that were compared with recorded digests
  std::vector<std::string> names;  ///< names of the tensors
  std::vector<TensorState> states;  ///< states of these
  std::vector<std::string> remarks;
};

/// Finds the versions that lead from the state of `base` to the last one, and applies them in
/// memory: every tensor's bytes are held to what the versions say. Writes nothing. Throws
/// kMismatch for another base, a version out of order and bytes of another checksum.
Applied check_chain(const std::filesystem::path& base, std::span<const std::filesystem::path> given,
                    const ApplyOptions& options);

/// Does so, and makes `base` the last version, whatever ends the process: it is the old version or
/// the new one, or it has a journal, which readers refuse to read past and the next call finishes.
/// A sibling directory of hard links and new files takes its place in one step; where a file system
/// cannot do that, or with `in_place`, by a journal. In place, a file that has other names is
/// replaced, and not opened for writing. Nothing changes where anything is refused. Manifests that
/// are those of the old weights are removed where the versions bring no new ones.
Applied apply_chain(const std::filesystem::path& base, std::span<const std::filesystem::path> given,
                    const ApplyOptions& options);

}  // namespace ingot::delta
