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
constexpr int kMaxDeltaWindowLog = 27;
constexpr std::size_t kDiffPiece = std::size_t{1} << 20;
constexpr std::size_t kPositionBytes = 4;

void require_zstd_memory(std::size_t result) {
  if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation) throw std::bad_alloc();
}

class FrameWriter {
 public:
  FrameWriter(std::uint64_t n_content, const std::function<void(std::span<const std::byte>)>& put)
      : context_(ZSTD_createCCtx()), put_(put), out_(ZSTD_CStreamOutSize()) {
    if (context_ == nullptr) throw std::bad_alloc();
    INGOT_CHECK(!ZSTD_isError(
        ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, kDeltaLevel)));
    INGOT_CHECK(!ZSTD_isError(ZSTD_CCtx_setPledgedSrcSize(context_.get(), n_content)));
  }

  void write(std::span<const std::byte> content) { feed(content, ZSTD_e_continue); }
  void finish() { feed({}, ZSTD_e_end); }
  [[nodiscard]] std::uint64_t n_written() const { return n_written_; }

 private:
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const { ZSTD_freeCCtx(context); }
  };

  void feed(std::span<const std::byte> content, ZSTD_EndDirective directive) {
    ZSTD_inBuffer in{content.data(), content.size(), 0};
    while (true) {
      ZSTD_outBuffer out{out_.data(), out_.size(), 0};
      const std::size_t left = ZSTD_compressStream2(context_.get(), &out, &in, directive);
      require_zstd_memory(left);
      INGOT_CHECK(!ZSTD_isError(left));
      if (out.pos > 0) put_(std::span(out_).first(out.pos));
      n_written_ += out.pos;
      if (directive == ZSTD_e_end ? left == 0 : in.pos == in.size) return;
    }
  }

  std::unique_ptr<ZSTD_CCtx_s, Free> context_;
  const std::function<void(std::span<const std::byte>)>& put_;
  std::vector<std::byte> out_;
  std::uint64_t n_written_ = 0;
};

// Calls look(offset, old, new) with pieces of both states, in order.
template <typename Look>
void for_each_pair(const TensorSides& sides, const Look& look) {
  const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(kDiffPiece, sides.n_bytes));
  std::vector<std::byte> before(n), after(n);
  for (std::uint64_t at = 0; at < sides.n_bytes; at += kDiffPiece) {
    StopScope::check();
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(n, sides.n_bytes - at));
    sides.read_old(at, std::span(before).first(size));
    sides.read_new(at, std::span(after).first(size));
    look(at, std::span(before).first(size), std::span(after).first(size));
  }
}

// Puts the XOR in place of `old`; returns how many bytes differ.
std::uint64_t xor_onto(std::span<std::byte> old, std::span<const std::byte> now) {
  std::uint64_t n_changed = 0;
  for (std::size_t i = 0; i < old.size(); ++i) {
    old[i] ^= now[i];
    n_changed += old[i] != std::byte{0} ? 1U : 0U;
  }
  return n_changed;
}

// Positions, then bytes: the content is in this order, so the pair is read once more for each.
std::uint64_t write_overwrite(const TensorSides& sides, std::uint64_t n_changed,
                              const std::function<void(std::span<const std::byte>)>& put) {
  FrameWriter frame(kPositionBytes + n_changed * (kPositionBytes + 1), put);
  std::vector<std::byte> content;
  const auto add_number = [&](std::uint32_t number) {
    const auto bytes = std::as_bytes(std::span(&number, 1));
    content.insert(content.end(), bytes.begin(), bytes.end());
  };
  add_number(static_cast<std::uint32_t>(n_changed));
  for (const bool of_positions : {true, false}) {
    for_each_pair(sides, [&](std::uint64_t at, std::span<std::byte> before,
                             std::span<const std::byte> after) {
      for (std::size_t i = 0; i < before.size(); ++i) {
        if (before[i] == after[i]) continue;
        if (of_positions) {
          add_number(static_cast<std::uint32_t>(at + i));
        } else {
          content.push_back(after[i]);
        }
      }
      frame.write(content);
      content.clear();
    });
  }
  frame.finish();
  return frame.n_written();
}

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
    // A second reader of the same frames stands where the bytes begin.
    std::vector<std::byte> skipped(kDiffPiece);
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

TensorDifference write_difference(const TensorSides& sides, DeltaEncoding encoding,
                                  ChecksumKind checksum,
                                  const std::function<void(std::span<const std::byte>)>& put) {
  INGOT_CHECK(encoding == DeltaEncoding::kXor || sides.n_bytes < kOverwriteLimit);
  TensorDifference difference;
  TensorHasher old_hash, new_hash;
  Checksum sum(checksum);
  std::optional<FrameWriter> frame;
  for_each_pair(
      sides, [&](std::uint64_t at, std::span<std::byte> before, std::span<const std::byte> after) {
        old_hash.update(before);
        new_hash.update(after);
        sum.update(after);
        difference.n_changed += xor_onto(before, after);
        if (difference.n_changed == 0 || encoding != DeltaEncoding::kXor) return;
        if (!frame) {
          // Equal pieces until here were not compressed: most tensors of some versions are equal.
          frame.emplace(sides.n_bytes, put);
          const std::vector<std::byte> zeros(at > 0 ? kDiffPiece : 0);
          for (std::uint64_t done = 0; done < at; done += kDiffPiece) frame->write(zeros);
        }
        frame->write(before);
      });
  difference.old_hash = old_hash.finish();
  difference.new_hash = new_hash.finish();
  difference.checksum = sum.finish();
  if (frame) {
    frame->finish();
    difference.n_payload = frame->n_written();
  } else if (difference.n_changed > 0) {
    difference.n_payload = write_overwrite(sides, difference.n_changed, put);
  }
  return difference;
}

std::unique_ptr<Patch> Patch::open(DeltaEncoding encoding, std::uint64_t tensor_bytes,
                                   ReadBytes read_payload, std::uint64_t n_payload) {
  if (encoding == DeltaEncoding::kXor)
    return std::make_unique<XorPatch>(std::move(read_payload), n_payload);
  return std::make_unique<OverwritePatch>(tensor_bytes, read_payload, n_payload);
}

}  // namespace ingot::delta
