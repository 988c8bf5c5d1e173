#include "engines/live/live_answer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/base/hash.h"
#include "formats/base/printable.h"
#include "formats/base/words.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"

namespace ingot::engines {

using formats::Json;
using formats::JsonFields;

namespace {

constexpr std::size_t kSha256Hex = 64, kShortHex = 16, kLedgerHex = 32;
constexpr std::uint32_t kMostLiveRanks = 4096;
constexpr std::string_view kDraftPrefix = "draft";

[[noreturn]] void refuse_answer(std::string_view where, const std::string& fact) {
  throw Error(ErrorCode::kCorrupt, "{}", fact).in_file(where);
}

std::string digest_from(const Json& value, std::size_t n_digits, const std::string& name,
                        std::string_view where) {
  const std::string text = value.is_string() ? value.get<std::string>() : std::string();
  if (text.size() == n_digits && text.find_first_not_of("0123456789abcdef") == text.npos)
    return text;
  refuse_answer(where, fmt::format("the digest of '{}' is not {} lower-case hexadecimal digits",
                                   name, n_digits));
}

// A number behind a word, and a colon.
std::optional<std::uint32_t> take_part(std::string_view& key, std::string_view word) {
  if (!key.starts_with(word)) return std::nullopt;
  std::string_view rest = key.substr(word.size());
  const auto number = take_number(rest, ":");
  if (!number || *number >= kMostLiveRanks) return std::nullopt;
  key = rest;
  return static_cast<std::uint32_t>(*number);
}

// Ranks by their places.
class RankTable {
 public:
  explicit RankTable(std::string_view where) : where_(where) {}

  void add(const LivePlace& place, std::string name, std::string digest) {
    LiveRank& rank = ranks_[place];
    rank.place = place;
    if (!rank.digests.emplace(name, std::move(digest)).second)
      refuse_answer(where_, fmt::format("tells '{}' of one rank twice", name));
  }
  void add(const LivePlace& place) { ranks_[place].place = place; }

  void give(LiveAnswer& answer) const {
    if (ranks_.empty()) refuse_answer(where_, "tells of no parameter");
    for (const auto& [place, rank] : ranks_) {
      answer.dp = std::max(answer.dp, place.dp + 1);
      answer.pp = std::max(answer.pp, place.pp + 1);
      answer.tp = std::max(answer.tp, place.tp + 1);
      answer.ranks.push_back(rank);
    }
  }

 private:
  std::string_view where_;
  std::map<LivePlace, LiveRank> ranks_;
};

// dp{D}:pp{P}:pcp{C}:tp{T}:{name}
void add_vllm(const Json& checksums, std::string_view where, RankTable& ranks) {
  if (!checksums.is_object()) refuse_answer(where, "'checksums' is no object");
  for (const auto& [key, value] : checksums.items()) {
    std::string_view rest = key;
    const auto dp = take_part(rest, "dp"), pp = take_part(rest, "pp"), pcp = take_part(rest, "pcp"),
               tp = take_part(rest, "tp");
    if (!dp || !pp || !pcp || !tp || rest.empty())
      refuse_answer(where, fmt::format("'{}' is no key of vLLM", key));
    if (*pcp > 0) {
      throw Error(
          ErrorCode::kUnsupported,
          "is of an engine with context parallelism for prefills, whose ranks are not known")
          .in_file(where);
    }
    ranks.add({.dp = *dp, .pp = *pp, .tp = *tp}, std::string(rest),
              digest_from(value, kSha256Hex, key, where));
  }
}

LiveAnswer vllm_answer(const Json& json, std::string_view where) {
  LiveAnswer answer{.engine = Engine::kVllm};
  RankTable ranks(where);
  if (json.is_array()) {
    for (const Json& worker : json) add_vllm(worker, where, ranks);
  } else {
    add_vllm(json.at("checksums"), where, ranks);
  }
  ranks.give(answer);
  return answer;
}

// The digest of a GPU over its names and digests: what was cut or changed on the way shows here.
void require_whole_rank(const Json& checksums, const JsonFields& rank, std::string_view where) {
  std::map<std::string, std::string> sorted;
  for (const auto& [name, value] : checksums.items()) sorted[name] = value.get<std::string>();
  Sha256 sha;
  for (const auto& [name, digest] : sorted) {
    sha.update(std::as_bytes(std::span(name)));
    sha.update(std::as_bytes(std::span(digest)));
  }
  if (sha.finish_hex() != rank.text("per_gpu_checksum"))
    refuse_answer(where, "'per_gpu_checksum' is not that of the digests of its rank");
}

LiveAnswer sglang_answer(const Json& json, std::string_view where) {
  const JsonFields whole(json, where);
  if (!whole.boolean("success")) {
    throw Error(ErrorCode::kUnsupported, "SGLang refuses: {}", printable(whole.text("message", "")))
        .in_file(where);
  }
  LiveAnswer answer{.engine = Engine::kSglang, .hash = LiveHash::kSum};
  RankTable ranks(where);
  for (const Json& entry : whole.array("ranks")) {
    const JsonFields rank(entry, where, "ranks");
    std::optional<LivePlace> place;
    std::uint32_t dp_size = 1;
    for (const Json& row : rank.array("parallelism_info")) {
      const JsonFields info(row, where, "ranks.parallelism_info");
      if (info.text("role", "target") == kDraftPrefix) continue;
      dp_size = std::max(1U, info.optional_number32("dp_size").value_or(1));
      // Attention is cut by what data parallelism leaves of the ranks.
      const std::uint32_t tp_size = std::max(1U, info.number32("tp_size"));
      const std::uint32_t tp = info.number32("tp_rank");
      const std::uint32_t pp = info.optional_number32("pp_rank").value_or(0);
      if (tp >= tp_size || std::max(tp_size, pp) > kMostLiveRanks || tp_size % dp_size != 0)
        info.refuse("tells of ranks that cannot be");
      const std::uint32_t own = tp_size / dp_size;
      place = {.dp = tp / own, .pp = pp, .tp = tp % own};
    }
    if (!place) rank.refuse("parallelism_info", "tells of no target model");
    ranks.add(*place);
    const Json& checksums = rank.get("checksums");
    if (!checksums.is_object()) rank.refuse("checksums", "is no object");
    for (const auto& [name, value] : checksums.items()) {
      std::string digest = digest_from(value, kShortHex, name, where);
      if (name.starts_with("draft.") || name.starts_with("draft_step_")) {
        ++answer.n_drafts;
      } else {
        ranks.add(*place, name, std::move(digest));
      }
    }
    require_whole_rank(checksums, rank, where);
  }
  ranks.give(answer);
  return answer;
}

// The sum over a rank's names and digests: what was cut or changed on the way shows here.
std::uint64_t sum_of_rank(const LiveRank& rank) {
  std::uint64_t total = 0;
  for (const auto& [name, digest] : rank.digests) {
    const std::string text = name + ":" + digest;
    total += hash_bytes(std::as_bytes(std::span(text))).high;
  }
  return total;
}

// The ledger of a start with --load-format presharded: presharded/TP-{n}-sig-{hex}/checksum.json.
LiveAnswer ledger_answer(const Json& json, std::string_view where) {
  constexpr std::uint64_t kVersion = 1;
  const JsonFields whole(json, where);
  if (whole.number("version") != kVersion) whole.refuse("version", "is not known (1 is)");
  const JsonFields config(whole.get("shard_config"), where, "shard_config");
  const std::uint32_t tp = config.number32("tp"), pp = config.number32("pp");
  const std::uint64_t n_ranks = std::uint64_t{tp} * pp;
  if (n_ranks == 0 || n_ranks > kMostLiveRanks || whole.number("world_size") != n_ranks)
    whole.refuse("world_size", "is not that of the ranks of shard_config");
  for (const char* key : {"dp", "moe_dp_size"}) {
    if (config.optional_number32(key).value_or(1) > 1)
      throw Error(ErrorCode::kUnsupported, "is of an engine with several groups for experts ({})",
                  key)
          .in_file(where);
  }
  if (config.optional_number32("ep_num_redundant_experts").value_or(0) > 0)
    throw Error(ErrorCode::kUnsupported, "is of an engine with redundant experts").in_file(where);
  LiveAnswer answer{.engine = Engine::kSglang, .hash = LiveHash::kLedger};
  answer.ep = config.number32("ep");
  RankTable table(where);
  const Json& reads = whole.get("rank_to_reads");
  if (!reads.is_object()) whole.refuse("rank_to_reads", "is no object");
  for (const auto& [key, list] : reads.items()) {
    std::string_view rest = key;
    const auto number = take_number(rest, "");
    if (!number || !rest.empty() || *number >= n_ranks || !list.is_array())
      whole.refuse("rank_to_reads", fmt::format("has no list of a rank at '{}'", printable(key)));
    const auto rank = static_cast<std::uint32_t>(*number);
    const LivePlace place{.dp = 0, .pp = rank / tp, .tp = rank % tp};
    table.add(place);
    for (const Json& entry : list) {
      const JsonFields read(entry, where, "rank_to_reads");
      std::string name = read.text("name");
      std::string digest = digest_from(read.get("stored_key"), kLedgerHex, name, where);
      table.add(place, std::move(name), std::move(digest));
    }
  }
  table.give(answer);
  const JsonFields sums(whole.get("rank_checksums"), where, "rank_checksums");
  for (const LiveRank& rank : answer.ranks) {
    const std::string key = fmt::to_string(rank.place.pp * tp + rank.place.tp);
    if (sums.text(key.c_str()) != fmt::format("{:016x}", sum_of_rank(rank)))
      sums.refuse(key.c_str(), "is not that of the digests of its rank");
  }
  if (answer.ranks.size() != n_ranks) whole.refuse("rank_to_reads", "has not all ranks");
  return answer;
}

// Words of torch for the dtypes that parameters have in SGLang.
std::string_view torch_name(formats::DType dtype) {
  using enum formats::DType;
  switch (dtype) {
    case kBf16:
      return "torch.bfloat16";
    case kF16:
      return "torch.float16";
    case kF32:
      return "torch.float32";
    case kF8E4M3:
      return "torch.float8_e4m3fn";
    case kF8E8M0:
      return "torch.float8_e8m0fnu";
    case kI8:
      return "torch.int8";
    case kU8:
      return "torch.uint8";
    case kI32:
      return "torch.int32";
    case kI64:
      return "torch.int64";
    default:
      return "";
  }
}

// The text of a tuple in Python: (3, 4), (3,), ().
std::string tuple_text(const formats::Shape& shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

// Sum and mixing of 32 bits as in MurmurHash3.
constexpr std::uint32_t mixed(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x85EBCA6BU;
  x ^= x >> 13;
  x *= 0xC2B2AE35U;
  return x ^ x >> 16;
}

constexpr std::uint32_t kSumSeed = 0x243F6A88U;
constexpr std::uint32_t kSecondSeed = (kSumSeed * 0x9E3779B1U) ^ 0xDEADBEEFU;
constexpr std::uint32_t kTileWords = 8192;

}  // namespace

std::string_view live_path(Engine engine) {
  return engine == Engine::kSglang ? "/weights_checker" : "/weight_checker";
}

LiveAnswer parse_live_answer(std::string_view text, std::string_view where) {
  const Json json = formats::parse_json(text, where);
  if (json.is_array() || (json.is_object() && json.contains("checksums")))
    return vllm_answer(json, where);
  if (json.is_object() && json.contains("success")) return sglang_answer(json, where);
  if (json.is_object() && json.contains("rank_to_reads")) return ledger_answer(json, where);
  for (const char* key : {"detail", "error"}) {
    if (const std::string fact = formats::text_at(json, key); !fact.empty())
      throw Error(ErrorCode::kUnsupported, "the engine refuses: {}", printable(fact))
          .in_file(where);
  }
  refuse_answer(where, "is no answer of vLLM's or SGLang's end point, and no ledger");
}

SumOfWords::SumOfWords(std::uint64_t n_bytes)
    : size_(static_cast<std::uint32_t>((n_bytes + 3) / 4 * 4)), left_(n_bytes) {}

void SumOfWords::add_word(std::uint32_t word) {
  const auto index = static_cast<std::uint32_t>(n_words_);
  a_ += mixed(word ^ ((index * 0x27D4EB2DU + kSumSeed) ^ std::rotl(index, 15)));
  b_ += mixed(word ^ ((index * 0x165667B1U + kSecondSeed) ^ std::rotl(index, 13)));
  ++n_words_;
  if (++n_in_tile_ == kTileWords) close_tile();
}

void SumOfWords::close_tile() {
  total_ += std::uint64_t{mixed(a_ ^ size_)} << 32 | mixed(b_ ^ size_);
  a_ = b_ = n_in_tile_ = 0;
}

void SumOfWords::update(std::string_view bytes) {
  INGOT_CHECK(bytes.size() <= left_);
  left_ -= bytes.size();
  for (std::uint32_t word = 0; n_pending_ == 0 && bytes.size() >= sizeof word;) {
    std::memcpy(&word, bytes.data(), sizeof word);
    add_word(word);
    bytes.remove_prefix(sizeof word);
  }
  for (const char byte : bytes) {
    pending_ |= std::uint32_t{static_cast<unsigned char>(byte)} << (8 * n_pending_);
    if (++n_pending_ < 4) continue;
    add_word(pending_);
    pending_ = n_pending_ = 0;
  }
}

std::string SumOfWords::finish_hex() {
  INGOT_CHECK(left_ == 0);
  if (n_pending_ > 0) add_word(pending_);
  if (n_in_tile_ > 0) close_tile();
  if (n_words_ == 0) return std::string(kShortHex, '0');
  std::uint64_t x = total_;
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ULL;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBULL;
  x ^= x >> 31;
  return fmt::format("{:016x}", x);
}

LiveDigest::LiveDigest(LiveHash hash, std::uint64_t n_bytes, formats::DType dtype,
                       const formats::Shape& shape)
    : hash_(hash), sum_(n_bytes) {
  const std::string begin = tuple_text(shape) + std::string(torch_name(dtype));
  ledger_.update(std::as_bytes(std::span(begin)));
}

void LiveDigest::update(std::span<const std::byte> bytes) {
  if (hash_ == LiveHash::kLedger) return ledger_.update(bytes);
  sha_.update(bytes);
  if (hash_ == LiveHash::kSum)
    sum_.update({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::vector<std::string> LiveDigest::finish() {
  if (hash_ == LiveHash::kLedger) return {ledger_.finish().hex()};
  const std::string sha = sha_.finish_hex();
  if (hash_ == LiveHash::kSha256) return {sha};
  return {sum_.finish_hex(), sha.substr(0, kShortHex)};
}

}  // namespace ingot::engines
