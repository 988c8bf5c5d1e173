#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "convert/plan/plan.h"

// Outputs against what their plan makes of a source: tensors are converted again and compared by
// their bytes, so that nothing rests on a hash.

namespace ingot::convert {

struct RederiveOptions {
  /// Tensors that are drawn of those that the output has; nullopt: all.
  std::optional<std::uint64_t> sample = 64;
  std::uint64_t seed = 0;  ///< decides which
  std::size_t threads = 1;
  /// (bytes done, bytes in all) of the output; called from several threads.
  std::function<void(std::uint64_t, std::uint64_t)> progress;
};

/// A stored tensor of the output that is not what its source makes of it.
struct DifferingTensor {
  std::string tensor;        ///< logical tensor
  std::string part;          ///< stored tensor
  std::string file;          ///< path in the output
  std::uint64_t offset = 0;  ///< first byte of the file that differs
};

/// A file, or its header, that is not what the plan has.
struct DifferingFile {
  std::string file;  ///< path in the output
  std::string fact;  ///< "is missing"
};

struct RederiveReport {
  std::uint64_t n_tensors = 0;   ///< tensors of the output
  std::uint64_t n_drawn = 0;     ///< tensors of the sample
  std::uint64_t n_compared = 0;  ///< these, and others that share a scale with one
  std::uint64_t n_bytes = 0;     ///< bytes of them, in all their places
  std::uint64_t n_files = 0;     ///< files whose headers, or which as a whole, were compared
  std::vector<DifferingTensor> tensors;  ///< tensors in the order of the plan
  std::vector<DifferingFile> files;
  /// Files that nothing was compared with: records of the conversion, the model card, and files of
  /// others that no loader reads.
  std::vector<std::string> not_derived;

  [[nodiscard]] bool passed() const { return tensors.empty() && files.empty(); }
};

/// Converts the tensors of a sample again, in memory, and compares every part in every place with
/// the bytes of `output`; and compares headers of all weights files, JSON around them, and side
/// files. Reads of source and output what belongs to the sample. Throws as a conversion does for
/// values of the source that no allowance covers.
RederiveReport rederive(const Plan& plan, const std::filesystem::path& output,
                        const RederiveOptions& options);

/// The probability that a sample of `n_drawn` of `n_tensors` has none of `n_altered`:
/// C(n - altered, drawn) / C(n, drawn).
double missing_probability(std::uint64_t n_tensors, std::uint64_t n_drawn, std::uint64_t n_altered);

/// The fewest altered tensors that such a sample misses with a probability of at most `most`.
std::uint64_t least_found(std::uint64_t n_tensors, std::uint64_t n_drawn, double most);

}  // namespace ingot::convert
