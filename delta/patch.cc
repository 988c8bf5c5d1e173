#include "delta/patch.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include <zstd.h>
#include <zstd_errors.h>

#include "formats/base/error.h"
#include "formats/base/stop_scope.h"

namespace ingot::delta {
namespace {

constexpr int kDeltaLevel = 1;
// A frame that is made in jobs, by threads of its own, has the same bytes for any number of these.
constexpr std::uint64_t kJobsFrom = std::uint64_t{64} << 20;
constexpr int kJobBytes = 1 << 20;
constexpr std::size_t kMostCompressing = 2;
constexpr int kMaxDeltaWindowLog = 27;
constexpr std::size_t kSkippedBytes = std::size_t{1} << 20;
constexpr std::size_t kPositionBytes = 4;

void require_zstd_memory(std::size_t result) {
  if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation) throw std::bad_alloc();
}

// Calls look(offset, old, new) with pieces of both states, in order.
template <typename Look>
void for_each_pair(const TensorSides& sides, const Look& look) {
  for (std::uint64_t at = 0; at < sides.n_bytes; at += DifferenceWriter::kPieceBytes) {
    StopScope::check();
    const auto n = static_cast<std::size_t>(
        std::min<std::uint64_t>(DifferenceWriter::kPieceBytes, sides.n_bytes - at));
    const std::span<std::byte> before = sides.read_old(at, n);
    look(at, before, std::span<const std::byte>(sides.read_new(at, n)));
  }
}

// Puts the XOR in place of `old`; returns how many bytes differ. Words, and counts of a word's
// bytes in these: compilers make vectors of both.
std::uint64_t xor_onto(std::span<std::byte> old, std::span<const std::byte> now) {
  using Word = std::uint64_t;
  constexpr Word kOnes = 0x0101010101010101U;
  constexpr std::size_t kMostWords = 255;  // a byte counts so far
  std::uint64_t n_changed = 0;
  std::size_t at = 0;
  while (old.size() - at >= sizeof(Word)) {
    const std::size_t n = std::min(kMostWords, (old.size() - at) / sizeof(Word));
    Word counts = 0;
    for (std::size_t i = 0; i < n; ++i) {
      Word a = 0, b = 0;
      std::memcpy(&a, old.data() + at + i * sizeof(Word), sizeof(Word));
      std::memcpy(&b, now.data() + at + i * sizeof(Word), sizeof(Word));
      a ^= b;
      std::memcpy(old.data() + at + i * sizeof(Word), &a, sizeof(Word));
      a |= a >> 4U;
      a |= a >> 2U;
      a |= a >> 1U;
      counts += a & kOnes;
    }
    for (; counts != 0; counts >>= 8U) n_changed += counts & 0xFFU;
    at += n * sizeof(Word);
  }
  for (; at < old.size(); ++at) {
    old[at] ^= now[at];
    n_changed += old[at] != std::byte{0} ? 1U : 0U;
  }
  return n_changed;
}

// Calls change(i) for each byte that is not zero.
template <typename Change>
void for_each_change(std::span<const std::byte> difference, const Change& change) {
  for (std::size_t i = 0; i < difference.size();) {
    std::uint64_t word = 0;
    if (difference.size() - i >= sizeof(word)) {
      std::memcpy(&word, difference.data() + i, sizeof(word));
      if (word == 0) {
        i += sizeof(word);
        continue;
      }
    }
    const std::size_t end = std::min(difference.size(), i + sizeof(word));
    for (; i < end; ++i) {
      if (difference[i] != std::byte{0}) change(i);
    }
  }
}

/// The content of an overwrite, as long as it is short.
struct Changes {
  static constexpr std::size_t kMost = std::size_t{1} << 20;
  std::vector<std::uint32_t> positions;
  std::vector<std::byte> values;

  void clear() {
    positions.clear();
    values.clear();
  }
  void add(std::uint64_t at, std::span<const std::byte> difference,
           std::span<const std::byte> after) {
    for_each_change(difference, [&](std::size_t i) {
      positions.push_back(static_cast<std::uint32_t>(at + i));
      values.push_back(after[i]);
    });
  }
};

// The content of a payload, which may be several frames, piece by piece.
class FrameReader {
 public:
  FrameReader(ReadBytes read, std::uint64_t n_payload)
      : context_(ZSTD_createDCtx()),
        read_(std::move(read)),
        n_payload_(n_payload),
        input_(static_cast<std::size_t>(std::min<std::uint64_t>(ZSTD_DStreamInSize(), n_payload))) {
    if (context_ == nullptr) throw std::bad_alloc();
    INGOT_CHECK(!ZSTD_isError(
        ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kMaxDeltaWindowLog)));
  }

  // Fills `out` with the bytes of the content that there still are; returns their number.
  std::size_t read_some(std::span<std::byte> out) {
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    while (to.pos < to.size) {
      if (in_.pos == in_.size && offset_ < n_payload_) refill();
      const bool is_last = in_.pos == in_.size;
      if (is_last && !is_inside_) break;
      const std::size_t before = to.pos;
      const std::size_t left = ZSTD_decompressStream(context_.get(), &to, &in_);
      require_zstd_memory(left);
      if (ZSTD_isError(left)) corrupt("is not a sound zstd frame (cut, or changed?)");
      is_inside_ = left != 0;
      if (is_last && is_inside_ && to.pos == before)
        corrupt("ends within a zstd frame (truncated? fetch it again)");
    }
    return to.pos;
  }
  void read_all(std::span<std::byte> out) {
    if (read_some(out) != out.size())
      corrupt("has less content than the tensor (is it of another tensor?)");
  }
  void require_end() {
    std::byte more{};
    if (read_some({&more, 1}) != 0)
      corrupt("has more content than the tensor (is it of another tensor?)");
  }

  [[noreturn]] static void corrupt(std::string_view fact) {
    throw Error(ErrorCode::kCorrupt, "its payload {}", fact);
  }

 private:
  struct Free {
    void operator()(ZSTD_DCtx_s* context) const { ZSTD_freeDCtx(context); }
  };

  void refill() {
    const auto n =
        static_cast<std::size_t>(std::min<std::uint64_t>(input_.size(), n_payload_ - offset_));
    read_(offset_, std::span(input_).first(n));
    offset_ += n;
    in_ = {input_.data(), n, 0};
  }

  std::unique_ptr<ZSTD_DCtx_s, Free> context_;
  ReadBytes read_;
  std::uint64_t n_payload_, offset_ = 0;
  std::vector<std::byte> input_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool is_inside_ = true;
};

class XorPatch final : public Patch {
 public:
  XorPatch(ReadBytes read, std::uint64_t n_payload) : frame_(std::move(read), n_payload) {}

  void apply(std::span<std::byte> bytes) override {
    while (!bytes.empty()) {
      const auto piece = bytes.first(std::min(bytes.size(), mask_.size()));
      const auto mask = std::span(mask_).first(piece.size());
      frame_.read_all(mask);
      for (std::size_t i = 0; i < piece.size(); ++i) piece[i] ^= mask[i];
      bytes = bytes.subspan(piece.size());
    }
  }
  void finish() override { frame_.require_end(); }

 private:
  FrameReader frame_;
  std::vector<std::byte> mask_ = std::vector<std::byte>(std::size_t{128} << 10);
};

class OverwritePatch final : public Patch {
 public:
  OverwritePatch(std::uint64_t tensor_bytes, const ReadBytes& read, std::uint64_t n_payload)
      : tensor_bytes_(tensor_bytes), positions_(read, n_payload), values_(read, n_payload) {
    std::uint32_t n = 0;
    positions_.read_all(std::as_writable_bytes(std::span(&n, 1)));
    if (n > tensor_bytes) FrameReader::corrupt("changes more bytes than the tensor has");
    n_left_ = n;
    // A second reader of the same frames is moved to the first of the bytes.
    std::vector<std::byte> skipped(kSkippedBytes);
    for (std::uint64_t left = kPositionBytes * (std::uint64_t{n} + 1); left > 0;) {
      const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(left, skipped.size()));
      values_.read_all(std::span(skipped).first(size));
      left -= size;
    }
    next();
  }

  void apply(std::span<std::byte> bytes) override {
    for (; has_next_ && position_ < at_ + bytes.size(); next())
      bytes[static_cast<std::size_t>(position_ - at_)] = value_;
    at_ += bytes.size();
  }
  void finish() override {
    INGOT_CHECK(!has_next_);
    values_.require_end();
  }

 private:
  void next() {
    has_next_ = n_left_ > 0;
    if (!has_next_) return;
    if (used_ == n_buffered_) {
      n_buffered_ = static_cast<std::size_t>(std::min<std::uint64_t>(kBuffered, n_left_));
      used_ = 0;
      positions_.read_all(std::as_writable_bytes(std::span(position_buffer_).first(n_buffered_)));
      values_.read_all(std::span(value_buffer_).first(n_buffered_));
    }
    const std::uint64_t position = position_buffer_[used_];
    if (position >= tensor_bytes_) FrameReader::corrupt("changes bytes behind the tensor's end");
    if (is_begun_ && position <= position_)
      FrameReader::corrupt("has positions that do not ascend");
    is_begun_ = true;
    position_ = position;
    value_ = value_buffer_[used_++];
    --n_left_;
  }

  static constexpr std::size_t kBuffered = 16'384;
  std::uint64_t tensor_bytes_, at_ = 0, n_left_ = 0, position_ = 0;
  std::byte value_{};
  bool has_next_ = false, is_begun_ = false;
  FrameReader positions_, values_;
  std::size_t n_buffered_ = 0, used_ = 0;
  std::vector<std::uint32_t> position_buffer_ = std::vector<std::uint32_t>(kBuffered);
  std::vector<std::byte> value_buffer_ = std::vector<std::byte>(kBuffered);
};

}  // namespace

std::string_view encoding_name(DeltaEncoding encoding) {
  return encoding == DeltaEncoding::kXor ? "xor" : "overwrite";
}

std::optional<DeltaEncoding> find_encoding(std::string_view name) {
  for (const DeltaEncoding encoding : {DeltaEncoding::kXor, DeltaEncoding::kOverwrite}) {
    if (encoding_name(encoding) == name) return encoding;
  }
  return std::nullopt;
}

/// The frame of a difference.
class DifferenceWriter::Frame {
 public:
  explicit Frame(std::size_t threads)
      : n_workers_(static_cast<int>(std::clamp<std::size_t>(threads, 1, kMostCompressing))),
        context_(ZSTD_createCCtx()),
        out_(ZSTD_CStreamOutSize()) {
    if (context_ == nullptr) throw std::bad_alloc();
    set(ZSTD_c_compressionLevel, kDeltaLevel);
  }

  using Put = std::function<void(std::span<const std::byte>)>;
  void begin(std::uint64_t n_content) {
    // The frame before may have been left in the middle.
    INGOT_CHECK(!ZSTD_isError(ZSTD_CCtx_reset(context_.get(), ZSTD_reset_session_only)));
    const bool has_jobs = n_content >= kJobsFrom;
    set(ZSTD_c_nbWorkers, has_jobs ? n_workers_ : 0);
    if (has_jobs) set(ZSTD_c_jobSize, kJobBytes);
    INGOT_CHECK(!ZSTD_isError(ZSTD_CCtx_setPledgedSrcSize(context_.get(), n_content)));
    n_written_ = 0;
  }
  void write(std::span<const std::byte> content, const Put& put) {
    feed(content, ZSTD_e_continue, put);
  }
  /// Returns the bytes of the frame.
  std::uint64_t finish(const Put& put) {
    feed({}, ZSTD_e_end, put);
    return n_written_;
  }

  Changes changes;

 private:
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const { ZSTD_freeCCtx(context); }
  };

  void set(ZSTD_cParameter parameter, int value) {
    INGOT_CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(context_.get(), parameter, value)));
  }
  void feed(std::span<const std::byte> content, ZSTD_EndDirective directive, const Put& put) {
    ZSTD_inBuffer in{content.data(), content.size(), 0};
    while (true) {
      ZSTD_outBuffer out{out_.data(), out_.size(), 0};
      const std::size_t left = ZSTD_compressStream2(context_.get(), &out, &in, directive);
      require_zstd_memory(left);
      INGOT_CHECK(!ZSTD_isError(left));
      if (out.pos > 0) put(std::span(out_).first(out.pos));
      n_written_ += out.pos;
      if (directive == ZSTD_e_end ? left == 0 : in.pos == in.size) return;
    }
  }

  int n_workers_;
  std::unique_ptr<ZSTD_CCtx_s, Free> context_;
  std::vector<std::byte> out_;
  std::uint64_t n_written_ = 0;
};

DifferenceWriter::DifferenceWriter(DeltaEncoding encoding, ChecksumKind checksum,
                                   std::size_t threads)
    : encoding_(encoding), checksum_(checksum), frame_(std::make_unique<Frame>(threads)) {}
DifferenceWriter::~DifferenceWriter() = default;
DifferenceWriter::DifferenceWriter(DifferenceWriter&&) noexcept = default;
DifferenceWriter& DifferenceWriter::operator=(DifferenceWriter&&) noexcept = default;

TensorDifference DifferenceWriter::write(
    const TensorSides& sides, const std::function<void(std::span<const std::byte>)>& put) {
  const bool is_xor = encoding_ == DeltaEncoding::kXor;
  INGOT_CHECK(is_xor || sides.n_bytes < kOverwriteLimit);
  TensorDifference difference;
  TensorHasher old_hash, new_hash;
  Checksum sum(checksum_);
  Changes& changes = frame_->changes;
  changes.clear();
  // Most tensors of some versions are equal: until a change only one side is hashed.
  const auto catch_up = [&](std::uint64_t end) {
    if (is_xor) frame_->begin(sides.n_bytes);
    const std::vector<std::byte> zeros(end > 0 && is_xor ? kPieceBytes : 0);
    for (std::uint64_t at = 0; at < end; at += kPieceBytes) {
      StopScope::check();
      const std::span<const std::byte> equal = sides.read_new(at, kPieceBytes);
      new_hash.update(equal);
      sum.update(equal);
      if (is_xor) frame_->write(zeros, put);
    }
  };
  for_each_pair(
      sides, [&](std::uint64_t at, std::span<std::byte> before, std::span<const std::byte> after) {
        old_hash.update(before);
        if (difference.n_changed == 0) {
          if (std::memcmp(before.data(), after.data(), before.size()) == 0) return;
          catch_up(at);
          if (at > 0) after = sides.read_new(at, before.size());
        }
        new_hash.update(after);
        sum.update(after);
        difference.n_changed += xor_onto(before, after);
        if (is_xor) {
          frame_->write(before, put);
        } else if (difference.n_changed <= Changes::kMost) {
          changes.add(at, before, after);
        }
      });
  difference.old_hash = old_hash.finish();
  if (difference.n_changed == 0) {
    difference.new_hash = difference.old_hash;
    return difference;
  }
  difference.new_hash = new_hash.finish();
  difference.checksum = sum.finish();
  if (!is_xor) {
    const auto n = static_cast<std::uint32_t>(difference.n_changed);
    frame_->begin(kPositionBytes + difference.n_changed * (kPositionBytes + 1));
    frame_->write(std::as_bytes(std::span(&n, 1)), put);
    if (difference.n_changed <= Changes::kMost) {
      frame_->write(std::as_bytes(std::span(changes.positions)), put);
      frame_->write(changes.values, put);
    } else {
      // Positions, then bytes: the content is in this order, so the pair is read once more for
      // each.
      for (const bool of_positions : {true, false}) {
        for_each_pair(sides, [&](std::uint64_t at, std::span<std::byte> before,
                                 std::span<const std::byte> after) {
          changes.clear();
          (void)xor_onto(before, after);
          changes.add(at, before, after);
          frame_->write(of_positions ? std::as_bytes(std::span(changes.positions))
                                     : std::span<const std::byte>(changes.values),
                        put);
        });
      }
    }
  }
  difference.n_payload = frame_->finish(put);
  return difference;
}

std::unique_ptr<Patch> Patch::open(DeltaEncoding encoding, std::uint64_t tensor_bytes,
                                   ReadBytes read_payload, std::uint64_t n_payload) {
  if (encoding == DeltaEncoding::kXor)
    return std::make_unique<XorPatch>(std::move(read_payload), n_payload);
  return std::make_unique<OverwritePatch>(tensor_bytes, read_payload, n_payload);
}

}  // namespace ingot::delta
