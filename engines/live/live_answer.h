#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engines/row/engine.h"
#include "formats/base/hash.h"
#include "formats/container/dtype.h"
#include "formats/container/tensor.h"

// The hashes of loaded weights that running engines tell (docs/trust.md, "The running engine").
// Sources: vLLM 0.33, entrypoints/serve/weight_checker and v1/worker/gpu_worker.py; SGLang 0.5.23,
// entrypoints/http_server.py, utils/weight_checker.py, kernels/ops/memory/gpu_tensor_hash.py, and
// PreshardedModelLoader in model_loader/loader.py.

namespace ingot::engines {

/// The only word that is ever sent to such an end point: next to it are others that write zeros or
/// random numbers into all weights.
inline constexpr std::string_view kLiveRequest = R"({"action": "checksum"})";

/// The place of a process that has weights.
struct LivePlace {
  std::uint32_t dp = 0, pp = 0, tp = 0;
  friend auto operator<=>(const LivePlace&, const LivePlace&) = default;
};

/// The words of one process: from names of parameters to digests in lower-case hexadecimal digits.
struct LiveRank {
  LivePlace place;
  std::map<std::string, std::string, std::less<>> digests;
};

/// Digests that engines tell.
enum class LiveHash : std::uint8_t {
  kSha256,  ///< SHA-256 of the bytes: vLLM
  kSum,     ///< SGLang's sum of words; of models on a CPU, the begin of SHA-256
  kLedger,  ///< XXH3-128 of shape, dtype and bytes: SGLang's checksum.json of presharded weights
};

/// An answer, as any of an engine's end points gives it, or a ledger of loaded weights.
struct LiveAnswer {
  Engine engine{};
  LiveHash hash{};
  std::uint32_t dp = 1, pp = 1, tp = 1;  ///< ranks of each kind; dp: that of attention
  std::vector<LiveRank> ranks;           ///< ranks by place
  std::optional<std::uint32_t> ep;       ///< ranks that share experts; nullopt: not told
  std::uint64_t n_drafts = 0;            ///< parameters of draft models, which are left out
};

/// The path of the end point that answers.
std::string_view live_path(Engine engine);

/// Longest answer that is read: a model of 61 layers on 8 ranks has 2 MB.
inline constexpr std::uint64_t kMaxLiveBytes = std::uint64_t{256} << 20;

/// Reads the answer of vLLM's or SGLang's end point, the list of LLM.collective_rpc(
/// "compute_weight_checksums"), with a dictionary for each worker, or the ledger (checksum.json) of
/// SGLang's presharded weights. Throws kCorrupt for any other text, kUnsupported for an error that
/// the engine tells, for context parallelism and for redundant experts.
LiveAnswer parse_live_answer(std::string_view text, std::string_view where);

/// SGLang's 64-bit hash of a tensor on a GPU, computed piece by piece: a sum of independent words.
/// It detects accidents, not attacks.
class SumOfWords {
 public:
  /// `n_bytes`: of the whole tensor, which the hash mixes into each part.
  explicit SumOfWords(std::uint64_t n_bytes);
  void update(std::string_view bytes);
  /// 16 hexadecimal digits. REQUIRES: all bytes were given.
  [[nodiscard]] std::string finish_hex();

 private:
  void add_word(std::uint32_t word);
  void close_tile();

  std::uint32_t size_;
  std::uint64_t n_words_ = 0, left_, total_ = 0;
  std::uint32_t a_ = 0, b_ = 0, pending_ = 0, n_pending_ = 0, n_in_tile_ = 0;
};

/// The digests of a parameter's bytes that an engine may tell, computed piece by piece.
class LiveDigest {
 public:
  /// `dtype`, `shape`: those that the parameter has in the engine, for a ledger.
  LiveDigest(LiveHash hash, std::uint64_t n_bytes, formats::DType dtype,
             const formats::Shape& shape);
  void update(std::span<const std::byte> bytes);
  /// All that an engine may tell of these bytes.
  [[nodiscard]] std::vector<std::string> finish();

 private:
  LiveHash hash_;
  Sha256 sha_;
  SumOfWords sum_;
  ChunkHasher ledger_;
};

}  // namespace ingot::engines
