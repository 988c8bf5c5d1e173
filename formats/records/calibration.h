#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/base/fd.h"
#include "formats/base/hash.h"
#include "formats/container/tensor.h"

// Statistics of activations (docs/formats.md, "Activation statistics"): a directory that `ingot
// calibrate` writes, or one file of it. Tensors are called OWNER followed by one of the endings
// below. The owner is MODULE, as module_name() of a linear's weight; LAYER (`model.layers.3`); or
// ATTENTION, the module of a layer's attention (`model.layers.3.self_attn`).

namespace ingot::formats {

inline constexpr std::string_view kInputAmax = ".input_amax";               // MODULE, F32 [1]
inline constexpr std::string_view kInputMin = ".input_min";                 // MODULE, F32 [1]
inline constexpr std::string_view kInputMax = ".input_max";                 // MODULE, F32 [1]
inline constexpr std::string_view kInputMeanSquare = ".input_mean_square";  // MODULE, F32 [K]
inline constexpr std::string_view kExpertTokens = ".expert_tokens";         // LAYER, I64 [E]
inline constexpr std::string_view kExpertSaliency = ".expert_saliency";     // LAYER, F32 [E]
inline constexpr std::string_view kKeyAmax = ".k_amax";                     // ATTENTION, F32 [Hkv]
inline constexpr std::string_view kValueAmax = ".v_amax";                   // ATTENTION, F32 [Hkv]
inline constexpr std::string_view kLatentAmax = ".latent_amax";             // ATTENTION, F32 [1]
inline constexpr std::string_view kRopeKeyAmax = ".rope_key_amax";          // ATTENTION, F32 [1]
/// MODULE, F32 [K/16, 16, 16]: means of x_b x_b^T, x_b 16 inputs next to each other.
inline constexpr std::string_view kInputBlockMoments = ".input_block_moments";
/// MODULE or the module of all experts, F32 [K, K]: the mean of x x^T.
inline constexpr std::string_view kInputMoments = ".input_moments";
/// Inputs that a block of moments has.
inline constexpr std::uint64_t kMomentBlock = 16;

/// Tokens that a layer's moments count for in the blocks of an expert, unless it is told otherwise:
/// twice the width of a block.
inline constexpr std::uint64_t kUsualShrinkage = 2 * kMomentBlock;

/// Names in a directory of statistics.
inline constexpr std::string_view kCalibrationName = "calibration.json";
inline constexpr std::string_view kInputsName = "inputs.safetensors";
inline constexpr std::string_view kCacheName = "cache.safetensors";
inline constexpr std::string_view kBlocksName = "blocks.safetensors";
inline constexpr std::string_view kMomentsFolder = "moments";  // a file per layer

/// A file of the directory; `name` is relative to it.
struct CalibrationFile {
  std::string name;
  std::uint64_t n_bytes = 0;
  Hash128 hash;  ///< tensor hash of its bytes
};

/// Modules with the same input: their moments are stored under the first name.
using SharedInputs = std::vector<std::vector<std::string>>;

/// `calibration.json`: what was read, and what was found. Holds no text, time, host or path.
struct CalibrationRecord {
  std::string tool_version;
  Hash128 source;  ///< fingerprint of the model (check::model_fingerprint)
  Hash128 text;    ///< hash of the token ids
  std::uint64_t documents = 0, tokens = 0;
  std::uint64_t shrinkage = kUsualShrinkage;
  std::string quantized = {};  ///< scheme of the layers that inputs came from; empty: the source's
  std::vector<CalibrationFile> files;
  SharedInputs shared_blocks = {}, shared_moments = {};
};

std::string calibration_text(const CalibrationRecord& record);
/// Throws kCorrupt for another form or version, and for names outside the directory.
CalibrationRecord parse_calibration(std::string_view text, std::string_view where);

/// A tensor of a file of statistics.
struct StatisticTensor {
  std::uint32_t file = 0;    ///< index of the file
  std::uint64_t offset = 0;  ///< absolute
  DType dtype{};
  Shape shape;
  [[nodiscard]] std::uint64_t count() const;  ///< number of values
};

/// Statistics of a model's activations: a directory with its record, or one file without any. Safe
/// from many threads.
class CalibrationStatistics {
 public:
  /// Reads the record and every header, of ranges and the cache every byte, which must have the
  /// record's hash. Throws kCorrupt, collected, for names, dtypes and shapes that
  /// docs/formats.md does not have, a negative number of tokens, sizes and hashes other than the
  /// record's, and files that it does not name; also as read_safetensors_header does.
  static CalibrationStatistics open(const std::filesystem::path& path);

  /// Nullptr for a single file: nothing says which model it belongs to.
  [[nodiscard]] const CalibrationRecord* record() const { return record_ ? &*record_ : nullptr; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Hash of the record, which has those of all files, or of the single file.
  [[nodiscard]] const Hash128& hash() const { return hash_; }
  /// The files with their stamps when they were opened, the record included.
  [[nodiscard]] const std::vector<std::pair<std::filesystem::path, FileStamp>>& stamps() const {
    return stamps_;
  }

  /// The statistic of an owner, of moments also where they are stored under another module with the
  /// same input; nullptr without one.
  [[nodiscard]] const StatisticTensor* find(std::string_view owner, std::string_view ending) const;
  /// Calls visit(owner, tensor) for every tensor with this ending, by ascending owner.
  void for_each(std::string_view ending,
                const std::function<void(const std::string& owner, const StatisticTensor& tensor)>&
                    visit) const;

  /// Values of F32 as they are stored. The first read of a file of moments compares its hash with
  /// the record's (kCorrupt).
  [[nodiscard]] std::vector<float> values(const StatisticTensor& tensor) const;
  /// Values [first, first + out.size()) of F32, in row-major order.
  void read(const StatisticTensor& tensor, std::uint64_t first, std::span<float> out) const;
  /// values(); throws kCorrupt naming the file where one is not finite.
  [[nodiscard]] std::vector<float> finite_values(const StatisticTensor& tensor) const;
  /// Values of I64.
  [[nodiscard]] std::vector<std::int64_t> counts(const StatisticTensor& tensor) const;

 private:
  struct File;
  void add_file(Fd file, std::string_view name, std::optional<Hash128> hash);
  void require_intact(const File& file) const;
  [[nodiscard]] const File& file_of(const StatisticTensor& tensor) const;

  std::filesystem::path path_;
  std::optional<CalibrationRecord> record_;
  Hash128 hash_;
  std::vector<std::pair<std::filesystem::path, FileStamp>> stamps_;
  std::vector<std::shared_ptr<const File>> files_;
  /// Tensors by ending and owner.
  std::map<std::string_view, std::map<std::string, StatisticTensor, std::less<>>> tensors_;
  /// First modules by the others of their inputs, by ending.
  std::map<std::string_view, std::map<std::string, std::string, std::less<>>> shared_;
};

}  // namespace ingot::formats
