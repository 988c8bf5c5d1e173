#include "formats/container/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/foreign_files.h"
#include "formats/json/json.h"

// The header goes from JSON events straight into StoredTensor, without a tree: 100 MB of hostile
// JSON then costs a few times its size instead of gigabytes, and the first wrong entry ends the
// reading.

namespace ingot::formats {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMetadataKey = "__metadata__";

// The format bounds none of these; they keep the memory for a hostile header in proportion to its
// size.
constexpr std::size_t kMaxRank = 64;
constexpr std::size_t kMaxEntryKeys = 64;
constexpr std::size_t kMaxDTypeBytes = 64;
constexpr std::size_t kMaxMetadataKeys = 1'000'000;

template <typename... Args>
Error corrupt_header(fmt::format_string<Args...> fact, Args&&... args) {
  return Error(ErrorCode::kCorrupt, fmt::format(fact, std::forward<Args>(args)...));
}

/// A name that occurs more than once, or nullopt. Sorting, unlike hashing, has no bad case to be
/// aimed at.
template <typename Items, typename NameOf>
std::optional<std::string> repeated_name(const Items& items, NameOf name_of) {
  std::vector<std::string_view> names;
  names.reserve(items.size());
  for (const auto& item : items) names.push_back(name_of(item));
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return std::nullopt;
  return std::string(*twice);
}

std::uint64_t header_length(std::span<const std::byte> bytes, std::uint64_t file_bytes) {
  if (bytes.size() < kLengthBytes || file_bytes < kLengthBytes) {
    throw corrupt_header(
        "is {} bytes long, a safetensors file has at least 8 (truncated? fetch it again)",
        std::min<std::uint64_t>(bytes.size(), file_bytes));
  }
  std::uint64_t n = 0;
  std::memcpy(&n, bytes.data(), sizeof n);
  const std::string_view start(reinterpret_cast<const char*>(bytes.data()), kLengthBytes);
  if (n > kMaxHeaderBytes) {
    if (const std::string_view fact = foreign_start(start); !fact.empty())
      throw corrupt_header("{}", fact);
    if (std::ranges::all_of(start, [](char c) { return c >= ' ' && c <= '~'; }))
      throw corrupt_header(
          "begins with the text '{}', which no weights file does (an answer of a server? fetch the "
          "file again)",
          start);
    throw Error(ErrorCode::kLimit,
                "header claims {} bytes, at most {} are allowed (not a safetensors file?)", n,
                kMaxHeaderBytes);
  }
  if (n == 0)
    throw corrupt_header(
        "begins with zeros: its place was reserved, and it was not written (fetch it again)");
  if (kLengthBytes + n > file_bytes) {
    throw corrupt_header("header ends at byte {}, file has {} (truncated? fetch it again)",
                         kLengthBytes + n, file_bytes);
  }
  return n;
}

class HeaderReader final : public JsonEvents {
 public:
  HeaderReader(std::uint64_t data_start, std::uint64_t file_bytes)
      : data_bytes_(file_bytes - data_start) {
    header_.data_start = data_start;
    header_.file_bytes = file_bytes;
  }

  void begin_object() override { begin(/*is_object=*/true); }
  void begin_array() override { begin(/*is_object=*/false); }

  void end() override {
    if (place() == Place::kEntry) finish_entry();
    if (place() == Place::kOffsets && n_offsets_ != 2U) wrong_type();
    --depth_;
  }

  void key(std::string_view name) override {
    switch (place()) {
      case Place::kTensors:
        name_ = name;
        if (name_ == kMetadataKey && std::exchange(has_metadata_, true)) {
          throw corrupt_header("__metadata__ occurs twice");
        }
        return;
      case Place::kMetadata:
        metadata_key_ = name;
        return;
      case Place::kEntry:
        start_field(name);
        return;
      default:
        return;
    }
  }

  void value(Json&& scalar) override {
    switch (place()) {
      case Place::kTensors:
        // Readers in use take null for an absent __metadata__.
        if (name_ != kMetadataKey || !scalar.is_null()) wrong_type();
        return;
      case Place::kMetadata:
        if (!scalar.is_string()) wrong_type();
        if (header_.metadata.size() == kMaxMetadataKeys)
          throw Error(ErrorCode::kLimit, "__metadata__ has more than {} keys", kMaxMetadataKeys);
        header_.metadata.emplace_back(std::move(metadata_key_),
                                      std::move(scalar.get_ref<std::string&>()));
        return;
      case Place::kEntry:
        if (field_ == Field::kOther) return;
        if (field_ != Field::kDType || !scalar.is_string()) wrong_type();
        dtype_ = std::move(scalar.get_ref<std::string&>());
        if (dtype_->size() > kMaxDTypeBytes)
          throw corrupt_header("dtype is {} bytes long", dtype_->size()).in_tensor(name_);
        return;
      case Place::kShape:
        if (!scalar.is_number_unsigned()) wrong_number(scalar);
        if (shape_->size() == kMaxRank) {
          throw Error(ErrorCode::kLimit, "shape has more than {} dimensions", kMaxRank)
              .in_tensor(name_);
        }
        shape_->push_back(scalar.get<std::uint64_t>());
        return;
      case Place::kOffsets:
        if (!scalar.is_number_unsigned()) wrong_number(scalar);
        if (*n_offsets_ == offsets_.size()) wrong_type();
        offsets_.at((*n_offsets_)++) = scalar.get<std::uint64_t>();
        return;
      case Place::kIgnored:
        return;
      case Place::kOutside:
        wrong_type();
    }
  }

  SafetensorsHeader take() {
    if (const auto name = repeated_name(
            header_.metadata, [](const auto& pair) { return std::string_view(pair.first); })) {
      throw corrupt_header("__metadata__ key '{}' occurs twice", *name);
    }
    check_layout();
    const std::uint64_t data_end = header_.data_start + claimed_bytes_;
    if (data_end != header_.file_bytes) {
      throw corrupt_header(
          "the last tensor ends at byte {}, file has {} ({} bytes belong to nothing)", data_end,
          header_.file_bytes, header_.file_bytes - data_end)
          .at_byte(data_end);
    }
    return std::move(header_);
  }

 private:
  enum class Place : std::uint8_t {
    kOutside,
    kTensors,
    kMetadata,
    kEntry,
    kShape,
    kOffsets,
    kIgnored
  };
  enum class Field : std::uint8_t { kNone, kDType, kShape, kOffsets, kOther };

  /// Follows from how deep it is, and behind which key.
  [[nodiscard]] Place place() const {
    if (depth_ == 0) return Place::kOutside;
    if (depth_ == 1) return Place::kTensors;
    if (depth_ == 2) return name_ == kMetadataKey ? Place::kMetadata : Place::kEntry;
    if (field_ == Field::kOther) return Place::kIgnored;
    return field_ == Field::kShape ? Place::kShape : Place::kOffsets;
  }

  void begin(bool is_object) {
    bool fits = false;
    switch (place()) {
      case Place::kOutside:
        fits = is_object;
        break;
      case Place::kTensors:
        fits = is_object;
        field_ = Field::kNone;
        dtype_.reset();
        shape_.reset();
        n_offsets_.reset();
        other_keys_.clear();
        break;
      case Place::kEntry:
        fits = field_ == Field::kOther ||
               (!is_object && (field_ == Field::kShape || field_ == Field::kOffsets));
        if (field_ == Field::kShape) shape_.emplace();
        if (field_ == Field::kOffsets) n_offsets_ = 0;
        break;
      case Place::kIgnored:
        fits = true;
        break;
      default:
        break;
    }
    if (!fits) wrong_type();
    ++depth_;
  }

  [[noreturn]] void wrong_type() const {
    switch (place()) {
      case Place::kOutside:
        throw corrupt_header("header is not a JSON object");
      case Place::kMetadata:
        throw corrupt_header("value of __metadata__ key '{}' is not a string", metadata_key_);
      case Place::kTensors:
        if (name_ == kMetadataKey) throw corrupt_header("__metadata__ is not an object");
        throw corrupt_header("entry is not an object").in_tensor(name_);
      default:
        break;
    }
    switch (field_) {
      case Field::kDType:
        throw corrupt_header("dtype is not a string").in_tensor(name_);
      case Field::kShape:
        throw corrupt_header("shape is not a list of whole numbers").in_tensor(name_);
      default:
        throw corrupt_header("data_offsets is not a list of two whole numbers").in_tensor(name_);
    }
  }

  [[noreturn]] void wrong_number(const Json& scalar) const {
    throw corrupt_header("{} holds {}, which is not a whole number of at least 0",
                         field_ == Field::kShape ? "shape" : "data_offsets",
                         scalar.is_number() ? scalar.dump() : std::string(scalar.type_name()))
        .in_tensor(name_);
  }

  void start_field(std::string_view name) {
    bool repeated = false;
    if (name == "dtype") {
      field_ = Field::kDType;
      repeated = dtype_.has_value();
    } else if (name == "shape") {
      field_ = Field::kShape;
      repeated = shape_.has_value();
    } else if (name == "data_offsets") {
      field_ = Field::kOffsets;
      repeated = n_offsets_.has_value();
    } else {
      field_ = Field::kOther;
      repeated = std::find(other_keys_.begin(), other_keys_.end(), name) != other_keys_.end();
      if (!repeated) other_keys_.emplace_back(name);
      if (other_keys_.size() > kMaxEntryKeys) {
        throw Error(ErrorCode::kLimit, "entry has more than {} unknown keys", kMaxEntryKeys)
            .in_tensor(name_);
      }
    }
    if (repeated) throw corrupt_header("key '{}' occurs twice in one entry", name).in_tensor(name_);
  }

  void finish_entry() {
    if (!dtype_) throw corrupt_header("entry has no dtype").in_tensor(name_);
    if (!shape_) throw corrupt_header("entry has no shape").in_tensor(name_);
    if (!n_offsets_) throw corrupt_header("entry has no data_offsets").in_tensor(name_);
    const auto [begin, end] = offsets_;
    if (begin > end) {
      throw corrupt_header("data_offsets [{}, {}] end before they begin", begin, end)
          .in_tensor(name_);
    }
    const std::optional<DType> dtype = find_dtype(*dtype_);
    if (!dtype) {
      throw Error(ErrorCode::kUnsupported,
                  "dtype '{}' is not known to this version (a newer format?)", *dtype_)
          .in_tensor(name_);
    }
    const std::optional<std::uint64_t> n_elements = element_count(*shape_);
    if (!n_elements || !checked_mul(*n_elements, dtype_bits(*dtype))) {
      throw corrupt_header("shape {} of {} overflows 64 bits", shape_text(*shape_), *dtype_)
          .in_tensor(name_);
    }
    const std::optional<std::uint64_t> n_bytes = byte_count(*dtype, *shape_);
    if (!n_bytes) {
      throw corrupt_header("shape {} of {} does not fill whole bytes", shape_text(*shape_), *dtype_)
          .in_tensor(name_);
    }
    if (*n_bytes != end - begin) {
      throw corrupt_header("shape {} of {} takes {} bytes, data_offsets [{}, {}] hold {}",
                           shape_text(*shape_), *dtype_, *n_bytes, begin, end, end - begin)
          .in_tensor(name_);
    }
    if (end > data_bytes_) {
      throw corrupt_header("data ends at byte {}, file has {} (truncated? fetch it again)",
                           checked_add(header_.data_start, end).value_or(end), header_.file_bytes)
          .in_tensor(name_);
    }
    header_.tensors.push_back({.name = std::move(name_),
                               .dtype = *dtype,
                               .shape = std::move(*shape_),
                               .file = 0,
                               .offset = header_.data_start + begin,
                               .n_bytes = *n_bytes});
    // More bytes claimed than there are: some overlap, so millions of aliases need not be read to
    // the end.
    if (*n_bytes > data_bytes_ - claimed_bytes_) {
      check_layout();
      INGOT_CHECK(false);
    }
    claimed_bytes_ += *n_bytes;
  }

  /// Checks that no name is there twice, and that each tensor begins where the one before it ends.
  void check_layout() {
    auto& tensors = header_.tensors;
    if (const auto name =
            repeated_name(tensors, [](const auto& t) { return std::string_view(t.name); })) {
      throw Error(ErrorCode::kDuplicate, "occurs twice in the header").in_tensor(*name);
    }
    const auto in_data_order = [](const StoredTensor& a, const StoredTensor& b) {
      return a.offset != b.offset ? a.offset < b.offset : a.n_bytes < b.n_bytes;
    };
    if (!std::is_sorted(tensors.begin(), tensors.end(), in_data_order)) {
      std::stable_sort(tensors.begin(), tensors.end(), in_data_order);
    }
    std::uint64_t expected = header_.data_start;
    std::string_view previous = "header";
    for (const StoredTensor& tensor : tensors) {
      if (tensor.offset != expected) {
        throw corrupt_header("data start at byte {}, but '{}' ends at byte {} ({})", tensor.offset,
                             previous, expected, tensor.offset > expected ? "a hole" : "an overlap")
            .in_tensor(tensor.name);
      }
      expected = tensor.offset + tensor.n_bytes;
      previous = tensor.name;
    }
  }

  SafetensorsHeader header_;
  std::uint64_t data_bytes_;
  std::uint64_t claimed_bytes_ = 0;  // bytes of all tensors so far, at most data_bytes_
  Field field_ = Field::kNone;
  std::size_t depth_ = 0;
  bool has_metadata_ = false;

  // The entry being read.
  std::string name_;
  std::optional<std::string> dtype_;
  std::optional<Shape> shape_;
  std::array<std::uint64_t, 2> offsets_{};
  std::optional<std::size_t> n_offsets_;
  std::vector<std::string> other_keys_;
  std::string metadata_key_;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes,
                                           std::uint64_t file_bytes, std::string_view file) {
  try {
    const std::uint64_t n = header_length(bytes, file_bytes);
    if (bytes.size() - kLengthBytes < n) {
      throw corrupt_header("header of {} bytes is cut off after {}", n,
                           bytes.size() - kLengthBytes);
    }
    const std::span<const std::byte> header =
        bytes.subspan(kLengthBytes, static_cast<std::size_t>(n));
    const std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
    HeaderReader reader(kLengthBytes + n, file_bytes);
    parse_json_events(text, file, reader, kLengthBytes);
    return reader.take();
  } catch (Error& error) {
    error.in_file(file);
    throw;
  }
}

std::vector<std::byte> read_safetensors_header_bytes(const Fd& file) {
  const std::uint64_t file_bytes = file.size();
  std::vector<std::byte> bytes(std::min<std::uint64_t>(kLengthBytes, file_bytes));
  file.read_exact(bytes, 0);
  try {
    const std::uint64_t n = header_length(bytes, file_bytes);
    bytes.resize(static_cast<std::size_t>(kLengthBytes + n));
  } catch (Error& error) {
    error.in_file(file.path());
    throw;
  }
  file.read_exact(std::span(bytes).subspan(kLengthBytes), kLengthBytes);
  return bytes;
}

SafetensorsHeader read_safetensors_header(const Fd& file) {
  return parse_safetensors_header(read_safetensors_header_bytes(file), file.size(), file.path());
}

}  // namespace ingot::formats
