#include "shard/join/joined.h"

#include "shard/join/slice_files.h"
#include "shard/join/slice_join.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::shard {
namespace {

using formats::SliceRecord;
using namespace ingot::testing;

// A tensor as bytes, sliced element by element: slow, and independent of the product.
struct NaiveTensor {
  std::string dtype;
  std::size_t element_bytes = 1;
  std::vector<std::uint64_t> shape;
  std::string data;

  [[nodiscard]] std::uint64_t count() const {
    std::uint64_t n = 1;
    for (const std::uint64_t dimension : shape) n *= dimension;
    return n;
  }
  [[nodiscard]] std::string element(const std::vector<std::uint64_t>& at) const {
    std::uint64_t index = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) index = index * shape[d] + at[d];
    return data.substr(index * element_bytes, element_bytes);
  }
};

NaiveTensor random_tensor(std::string dtype, std::size_t element_bytes,
                          std::vector<std::uint64_t> shape, unsigned seed) {
  NaiveTensor tensor{std::move(dtype), element_bytes, std::move(shape), {}};
  std::mt19937 generator(seed);
  for (std::uint64_t i = 0; i < tensor.count() * element_bytes; ++i)
    tensor.data += static_cast<char>(generator() & 0xff);
  return tensor;
}

// The tensor of `shape` whose element at each place is that of `pick` for this place.
template <typename Pick>
NaiveTensor build(const NaiveTensor& like, std::vector<std::uint64_t> shape, const Pick& pick) {
  NaiveTensor made{like.dtype, like.element_bytes, std::move(shape), {}};
  std::vector<std::uint64_t> at(made.shape.size(), 0);
  for (std::uint64_t i = 0; i < made.count(); ++i) {
    std::uint64_t rest = i;
    for (std::size_t d = made.shape.size(); d-- > 0; rest /= made.shape[d])
      at[d] = rest % made.shape[d];
    made.data += pick(at);
  }
  return made;
}

// Slice `number` of `n` along `axis`, of each of the equal sections of that axis; of a stack, only
// `experts` of the first dimension (empty: all).
NaiveTensor naive_slice(const NaiveTensor& whole, std::size_t axis, std::uint64_t number,
                        std::uint64_t n, std::uint64_t sections = 1,
                        const std::vector<std::uint32_t>& experts = {}) {
  std::vector<std::uint64_t> shape = whole.shape;
  shape[axis] /= n;
  if (!experts.empty()) shape[0] = experts.size();
  const std::uint64_t length = shape[axis] / sections;
  return build(whole, shape, [&](std::vector<std::uint64_t> at) {
    at[axis] =
        at[axis] / length * (whole.shape[axis] / sections) + number * length + at[axis] % length;
    if (!experts.empty()) at[0] = experts[at[0]];
    return whole.element(at);
  });
}

// Extends every section of `axis` at its end by elements of 0xEE.
NaiveTensor naive_pad(const NaiveTensor& tensor, std::size_t axis, std::uint64_t padded,
                      std::uint64_t sections = 1) {
  std::vector<std::uint64_t> shape = tensor.shape;
  const std::uint64_t before = shape[axis] / sections;
  shape[axis] = padded;
  const std::uint64_t after = padded / sections;
  return build(tensor, shape, [&](std::vector<std::uint64_t> at) {
    const std::uint64_t section = at[axis] / after;
    const std::uint64_t within = at[axis] % after;
    if (within >= before) return std::string(tensor.element_bytes, '\xEE');
    at[axis] = section * before + within;
    return tensor.element(at);
  });
}

// Every scale repeated for the smaller blocks that take the place of its own; the last row and
// column may have fewer of them.
NaiveTensor naive_retile(const NaiveTensor& scales, std::array<std::uint64_t, 2> repeat,
                         std::uint64_t rows, std::uint64_t cols) {
  std::vector<std::uint64_t> shape = scales.shape;
  const std::size_t r = shape.size() - 2;
  shape[r] = rows;
  shape[r + 1] = cols;
  return build(scales, shape, [&](std::vector<std::uint64_t> at) {
    at[r] /= repeat[0];
    at[r + 1] /= repeat[1];
    return scales.element(at);
  });
}

using Experts = std::vector<std::uint32_t>;

SliceRecord record_of(const NaiveTensor& whole, int axis, std::uint64_t offset,
                      std::uint32_t sections = 1, Experts experts = {}) {
  SliceRecord record;
  record.whole = whole.shape;
  record.axis = axis;
  record.offset = offset;
  record.sections = formats::Sections::equal(sections);
  record.experts = std::move(experts);
  return record;
}

// Files `r0/a.safetensors`, `r1/a.safetensors`, ... with one or more tensors each.
class Ranks {
 public:
  void hold(std::size_t rank, const std::string& name, const NaiveTensor& tensor,
            std::optional<SliceRecord> record = std::nullopt) {
    if (ranks_.size() <= rank) ranks_.resize(rank + 1);
    ranks_[rank].tensors.push_back({name, tensor.dtype, tensor.shape, tensor.data});
    ranks_[rank].records[name] = std::move(record);
  }
  /// A slice of "w" on each of `n` ranks, and how the whole was changed before it was cut.
  void hold_slices(const NaiveTensor& whole, std::size_t axis, std::uint64_t n,
                   std::uint32_t sections = 1, const formats::Shape& original = {},
                   const decltype(SliceRecord::repeat)& repeat = SliceRecord().repeat) {
    for (std::uint64_t r = 0; r < n; ++r) {
      SliceRecord record =
          record_of(whole, static_cast<int>(axis), whole.shape[axis] / sections / n * r, sections);
      record.original = original;
      record.repeat = repeat;
      hold(r, "w", naive_slice(whole, axis, r, n, sections), record);
    }
  }
  [[nodiscard]] std::filesystem::path path(std::size_t rank) const {
    return dir_.path() / fmt::format("r{}/a.safetensors", rank);
  }
  void write() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      write_bytes(path(rank), safetensors_bytes(ranks_[rank].tensors));
  }
  /// Joins the files as they are on disk.
  void join(bool compare_replicas = true) {
    SliceJoin slices;
    std::uint32_t n_files = 0;
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      const auto [index, is_new] =
          slices.add_file(path(rank), fmt::format("r{}/a.safetensors", rank), std::nullopt, rank);
      n_files += is_new ? 1 : 0;
    }
    // The last first: the order must not matter.
    for (std::uint32_t file = n_files; file-- > 0;) {
      std::vector<FoundSlice> found;
      for (const formats::StoredTensor& stored : read_stored(slices, file)) {
        const auto& record = ranks_[rank_of(slices.file(file).facts.name)].records.at(stored.name);
        found.push_back({.name = stored.name,
                         .kind = slices.kind(
                             place_slice(stored.dtype, stored.shape, record ? &*record : nullptr)),
                         .file = file,
                         .offset = stored.offset,
                         .home_file = {}});
      }
      slices.add(found);
    }
    JoinedModel model = slices.finish();
    stored_ = std::move(model.stored);
    bytes_ = std::make_unique<JoinedBytes>(std::move(model.slices), compare_replicas);
  }
  std::string read(const std::string& name, std::uint64_t offset, std::uint64_t n_bytes) {
    for (std::uint32_t i = 0; i < stored_.size(); ++i) {
      if (stored_[i].name != name) continue;
      std::string out(n_bytes, '?');
      bytes_->read(i, stored_[i], offset, std::as_writable_bytes(std::span(out)));
      return out;
    }
    throw std::runtime_error("no tensor " + name);
  }
  /// Writes, joins, and reads from every offset: to the end, and one byte less than half of it.
  void expect_joined(const std::string& name, const NaiveTensor& whole) {
    write();
    join();
    ASSERT_EQ(stored_.size(), 1U);
    EXPECT_EQ(stored_[0].shape, whole.shape);
    ASSERT_EQ(stored_[0].n_bytes, whole.data.size());
    for (std::uint64_t offset = 0; offset <= whole.data.size(); ++offset) {
      const std::uint64_t rest = whole.data.size() - offset;
      for (const std::uint64_t n_bytes : {rest, rest > 2 ? rest / 2 - 1 : rest}) {
        ASSERT_EQ(read(name, offset, n_bytes), whole.data.substr(offset, n_bytes))
            << offset << " " << n_bytes;
      }
    }
  }
  [[nodiscard]] const std::vector<formats::StoredTensor>& stored() const { return stored_; }
  [[nodiscard]] const JoinedBytes& bytes() const { return *bytes_; }

 private:
  struct Rank {
    std::vector<TinyTensor> tensors;
    std::map<std::string, std::optional<SliceRecord>> records;
  };
  static std::size_t rank_of(const std::string& file) {
    return static_cast<std::size_t>(std::stoul(file.substr(1)));
  }

  TempDir dir_;
  std::vector<Rank> ranks_;
  std::vector<formats::StoredTensor> stored_;
  std::unique_ptr<JoinedBytes> bytes_;
};

void overwrite_last_byte(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char before = static_cast<char>(file.get());
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(before ^ 0x40));
}

TEST(Joined, PutsSlicesOfRowsOneBelowTheOther) {
  const NaiveTensor whole = random_tensor("BF16", 2, {12, 5}, 1);
  Ranks ranks;
  ranks.hold_slices(whole, 0, 4);
  ranks.expect_joined("w", whole);
  EXPECT_EQ(ranks.stored()[0].file, 0U);
  EXPECT_FALSE(ranks.bytes().is_whole());
}

TEST(Joined, InterleavesSlicesOfColumns) {
  const NaiveTensor whole = random_tensor("F32", 4, {5, 6}, 2);
  Ranks ranks;
  ranks.hold_slices(whole, 1, 3);
  ranks.expect_joined("w", whole);
}

TEST(Joined, CutsEachSectionOnItsOwn) {
  const NaiveTensor whole = random_tensor("F8_E4M3", 1, {3, 8, 3}, 3);
  Ranks ranks;
  ranks.hold_slices(whole, 1, 2, 2);
  ranks.expect_joined("w", whole);
}

TEST(Joined, TakesEachExpertFromWhoHasIt) {
  const NaiveTensor whole = random_tensor("BF16", 2, {6, 4, 3}, 4);
  const std::vector<Experts> held = {{0, 2, 3}, {1, 2}, {4, 5}};
  Ranks ranks;
  for (std::size_t r = 0; r < held.size(); ++r) {
    ranks.hold(r, "w", naive_slice(whole, 1, 0, 1, 1, held[r]),
               record_of(whole, -1, 0, 1, held[r]));
  }
  ranks.expect_joined("w", whole);
}

TEST(Joined, JoinsExpertsThatAreCutToo) {
  const NaiveTensor gate_up = random_tensor("BF16", 2, {5, 8, 3}, 5);
  const NaiveTensor down = random_tensor("BF16", 2, {5, 3, 6}, 6);
  const std::vector<Experts> held = {{0, 1, 4}, {1, 2, 3}};
  for (const bool is_down : {false, true}) {
    const NaiveTensor& whole = is_down ? down : gate_up;
    const std::size_t axis = is_down ? 2 : 1;
    const std::uint32_t sections = is_down ? 1 : 2;
    const std::uint64_t length = whole.shape[axis] / 2 / sections;
    Ranks ranks;
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const std::uint64_t slice = rank % 2;
      ranks.hold(
          rank, "w", naive_slice(whole, axis, slice, 2, sections, held[rank / 2]),
          record_of(whole, static_cast<int>(axis), length * slice, sections, held[rank / 2]));
    }
    ranks.expect_joined("w", whole);
  }
}

TEST(Joined, DropsPaddedRowsOfEverySection) {
  const NaiveTensor original = random_tensor("BF16", 2, {2, 6, 3}, 7);
  const NaiveTensor padded = naive_pad(original, 1, 16, 2);
  Ranks ranks;
  ranks.hold_slices(padded, 1, 4, 2, original.shape);
  ranks.expect_joined("w", original);
}

TEST(Joined, DropsPaddedColumns) {
  const NaiveTensor original = random_tensor("BF16", 2, {4, 5}, 8);
  const NaiveTensor padded = naive_pad(original, 1, 8);
  Ranks ranks;
  ranks.hold_slices(padded, 1, 2, 1, original.shape);
  ranks.expect_joined("w", original);
}

TEST(Joined, DropsPaddingOfNumbersPerRow) {
  for (const std::vector<std::uint64_t>& shape :
       {std::vector<std::uint64_t>{6}, std::vector<std::uint64_t>{3, 6}}) {
    const std::size_t axis = shape.size() - 1;
    const std::uint32_t sections = shape.size() == 1 ? 1 : 2;
    const NaiveTensor original = random_tensor("F32", 4, shape, 9);
    const NaiveTensor padded = naive_pad(original, axis, 16, sections);
    Ranks ranks;
    ranks.hold_slices(padded, axis, 4, sections, original.shape);
    ranks.expect_joined("w", original);
  }
}

TEST(Joined, DropsPaddingOfWhatIsNotCut) {
  const NaiveTensor original = random_tensor("BF16", 2, {2, 6, 3}, 10);
  const NaiveTensor padded = naive_pad(original, 1, 10, 2);
  const std::vector<Experts> held = {{0}, {1}};
  Ranks ranks;
  for (std::size_t r = 0; r < 2; ++r) {
    SliceRecord record = record_of(padded, 1, 0, 2, held[r]);
    record.original = original.shape;
    ranks.hold(r, "w", naive_slice(padded, 1, 0, 1, 2, held[r]), record);
  }
  ranks.expect_joined("w", original);
}

TEST(Joined, TakesEachParentScaleOnce) {
  struct Case {
    std::array<std::uint64_t, 2> repeat;
    std::vector<std::uint64_t> original;
    std::uint64_t rows, cols;
    std::size_t axis;
    std::uint64_t n;
  };
  // The last parent block may be shorter than the others, and has fewer children then.
  const std::vector<Case> cases = {
      {{2, 1}, {3, 4}, 6, 4, 0, 6},    {{2, 1}, {3, 4}, 6, 4, 1, 2},
      {{1, 4}, {3, 3}, 3, 12, 1, 4},   {{1, 4}, {3, 3}, 3, 10, 0, 3},
      {{2, 2}, {3, 2}, 6, 4, 1, 4},    {{4, 2}, {2, 3, 2}, 10, 4, 1, 5},
      {{2, 4}, {2, 2, 2}, 4, 5, 2, 5},
  };
  for (const Case& test : cases) {
    const NaiveTensor original = random_tensor("F32", 4, test.original, 11);
    const NaiveTensor whole = naive_retile(original, test.repeat, test.rows, test.cols);
    Ranks ranks;
    ranks.hold_slices(whole, test.axis, test.n, 1, original.shape, test.repeat);
    ranks.expect_joined("w", original);
  }
}

TEST(Joined, TakesAReplicatedTensorFromTheFirstRank) {
  const NaiveTensor whole = random_tensor("BF16", 2, {3, 5}, 12);
  Ranks ranks;
  for (std::size_t r = 0; r < 3; ++r) ranks.hold(r, "w", whole);
  ranks.expect_joined("w", whole);
  std::filesystem::remove(ranks.path(1));
  std::filesystem::create_hard_link(ranks.path(0), ranks.path(1));
  ranks.join();
  EXPECT_EQ(ranks.bytes().files().size(), 2U);
  EXPECT_EQ(ranks.bytes().files()[1].name, "r2/a.safetensors");
  EXPECT_EQ(ranks.read("w", 0, whole.data.size()), whole.data);
}

TEST(Joined, ReadsLargeTensorsBlockByBlock) {
  // More than one block, in rows that no block is a multiple of.
  const NaiveTensor by_cols = random_tensor("BF16", 2, {1100, 1530}, 13);
  const NaiveTensor padded = naive_pad(by_cols, 1, 1800);
  Ranks ranks;
  for (std::uint64_t r = 0; r < 3; ++r) {
    ranks.hold(r, "cols", naive_slice(by_cols, 1, r, 3), record_of(by_cols, 1, 510 * r));
    ranks.hold(r, "rows", naive_slice(by_cols, 0, r % 2, 2), record_of(by_cols, 0, 550 * (r % 2)));
    SliceRecord record = record_of(padded, 1, 600 * r);
    record.original = by_cols.shape;
    ranks.hold(r, "padded", naive_slice(padded, 1, r, 3), record);
  }
  ranks.write();
  ranks.join();
  for (const char* name : {"cols", "rows", "padded"}) {
    EXPECT_EQ(ranks.read(name, 0, by_cols.data.size()), by_cols.data) << name;
    EXPECT_EQ(ranks.read(name, 12345, 2'600'001), by_cols.data.substr(12345, 2'600'001)) << name;
  }
}

TEST(Joined, FirstRankHasTheBiasOthersZero) {
  const NaiveTensor bias = random_tensor("I32", 4, {7}, 14);
  NaiveTensor zeros = bias;
  zeros.data.assign(zeros.data.size(), '\0');
  SliceRecord record = record_of(bias, -1, 0);
  record.is_zeroed = true;
  Ranks ranks;
  ranks.hold(0, "b", zeros, record);
  ranks.hold(1, "b", bias);
  ranks.hold(2, "b", zeros, record);
  ranks.expect_joined("b", bias);

  overwrite_last_byte(ranks.path(2));
  ranks.join();
  EXPECT_EQ(ranks.read("b", 0, 27), bias.data.substr(0, 27));
  expect_error(ErrorCode::kMismatch, {"'b'", "is not zero in r2 at byte 27", "r1"},
               [&] { ranks.read("b", 1, 27); });
  ranks.join(false);
  EXPECT_EQ(ranks.read("b", 0, 28), bias.data);
}

TEST(Joined, FindsOneAlteredByteInAReplica) {
  const NaiveTensor whole = random_tensor("BF16", 2, {4, 6}, 15);
  Ranks ranks;
  for (std::uint64_t r = 0; r < 4; ++r)
    ranks.hold(r, "w", naive_slice(whole, 1, r % 2, 2), record_of(whole, 1, 3 * (r % 2)));
  ranks.expect_joined("w", whole);
  overwrite_last_byte(ranks.path(3));
  ranks.join();
  expect_error(ErrorCode::kMismatch, {"'w'", "differs between r1 and r3 at byte 23", "ingot check"},
               [&] { ranks.read("w", 0, whole.data.size()); });
  ranks.join(false);
  EXPECT_EQ(ranks.read("w", 0, whole.data.size()), whole.data);
}

TEST(Joined, FindsOneAlteredByteInARedundantExpert) {
  const NaiveTensor whole = random_tensor("BF16", 2, {3, 2, 2}, 16);
  const std::vector<Experts> held = {{0, 1}, {1, 2}, {0, 2}};
  Ranks ranks;
  for (std::size_t r = 0; r < 3; ++r)
    ranks.hold(r, "w", naive_slice(whole, 1, 0, 1, 1, held[r]),
               record_of(whole, -1, 0, 1, held[r]));
  ranks.expect_joined("w", whole);
  overwrite_last_byte(ranks.path(2));  // of expert 2
  ranks.join();
  EXPECT_EQ(ranks.read("w", 0, 16), whole.data.substr(0, 16));
  expect_error(ErrorCode::kMismatch, {"differs between r1 and r2 at byte 15"},
               [&] { ranks.read("w", 0, 24); });
}

TEST(Joined, RefusesSlicesThatDoNotAddUp) {
  const NaiveTensor whole = random_tensor("BF16", 2, {8, 2}, 17);
  {
    Ranks ranks;
    for (const std::uint64_t r : {0U, 1U, 3U})
      ranks.hold(r == 3 ? 2 : r, "w", naive_slice(whole, 0, r, 4), record_of(whole, 0, 2 * r));
    ranks.write();
    expect_error(ErrorCode::kMismatch, {"'w'", "no file has slice 2 of 4"}, [&] { ranks.join(); });
  }
  {
    Ranks ranks;
    ranks.hold(0, "w", naive_slice(whole, 1, 0, 1, 1, {0, 1, 5}),
               record_of(whole, -1, 0, 1, {0, 1, 5}));
    ranks.hold(1, "w", naive_slice(whole, 1, 0, 1, 1, {2, 3, 5, 7}),
               record_of(whole, -1, 0, 1, {2, 3, 5, 7}));
    ranks.write();
    expect_error(ErrorCode::kMismatch, {"no file has experts 4, 6 of 8"}, [&] { ranks.join(); });
  }
  {
    SliceRecord record = record_of(whole, -1, 0);
    record.is_zeroed = true;
    Ranks ranks;
    ranks.hold(0, "w", whole, record);
    ranks.write();
    expect_error(ErrorCode::kMismatch, {"every rank holds zeros"}, [&] { ranks.join(); });
  }
}

TEST(Joined, RefusesSlicesThatWereNotCutAlike) {
  const NaiveTensor whole = random_tensor("BF16", 2, {8, 2}, 18);
  {
    Ranks ranks;
    ranks.hold(0, "w", naive_slice(whole, 0, 0, 2), record_of(whole, 0, 0));
    ranks.hold(1, "w", naive_slice(whole, 0, 3, 4), record_of(whole, 0, 6));
    ranks.write();
    expect_error(ErrorCode::kMismatch, {"'w'", "r0/a.safetensors", "r1/a.safetensors", "4 slices"},
                 [&] { ranks.join(); });
  }
  {
    Ranks ranks;
    ranks.hold(0, "w", whole);
    ranks.hold(1, "w", naive_slice(whole, 0, 0, 2));
    ranks.write();
    expect_error(ErrorCode::kMismatch, {"[8, 2]", "[4, 2]"}, [&] { ranks.join(); });
  }
}

TEST(Joined, RefusesATensorThatARankHasTwice) {
  const NaiveTensor whole = random_tensor("BF16", 2, {2, 2}, 19);
  TempDir dir;
  SliceJoin slices;
  for (const std::string name : {"a", "b"}) {
    write_bytes(dir / name, safetensors_bytes({{"w", "BF16", whole.shape, whole.data}}));
    slices.add_file(dir / name, "r0/" + name, std::nullopt, 0);
  }
  for (std::uint32_t file = 0; file < 2; ++file) {
    const std::vector<FoundSlice> found = {
        {.name = "w",
         .kind = slices.kind(place_slice(formats::DType::kBf16, whole.shape, nullptr)),
         .file = file,
         .offset = read_stored(slices, file)[0].offset,
         .home_file = {}}};
    slices.add(found);
  }
  expect_error(ErrorCode::kDuplicate, {"'w'", "r0/a", "r0/b"}, [&] { slices.finish(); });
}

TEST(PlacedSlice, RefusesRecordsThatContradictTheTensor) {
  const NaiveTensor whole{"BF16", 2, {8, 6}, {}};
  const auto refuses = [&](const formats::Shape& stored, const SliceRecord& record) {
    expect_error(ErrorCode::kMismatch, {"which is not the slice that the manifest tells of"},
                 [&] { place_slice(formats::DType::kBf16, stored, &record); });
  };
  refuses({4, 5}, record_of(whole, 0, 0));     // the other side
  refuses({3, 6}, record_of(whole, 0, 0));     // no divisor
  refuses({4, 6}, record_of(whole, 0, 2));     // between two slices
  refuses({4, 6}, record_of(whole, 0, 0, 3));  // sections
  refuses({4, 6}, record_of(whole, -1, 0));    // not cut
  refuses({4, 6, 1}, record_of(whole, 0, 0));  // dimensions
  refuses({4, 6}, record_of(whole, 2, 0));     // no such side
  refuses({2, 6}, record_of(whole, -1, 0, 1, {1}));
  SliceRecord record = record_of(whole, 0, 0);
  record.repeat = {3, 1};
  refuses({4, 6}, record);

  // Sections of 3 and 5 rows are not of one size.
  SliceRecord sections = record_of(whole, 0, 0, 2);
  sections.original = {7, 6};
  expect_error(ErrorCode::kMismatch, {"before it was retiled or padded", "2 section(s)"}, [&] {
    place_slice(formats::DType::kBf16, {4, 6}, &sections);
  });
  SliceRecord vast = record_of({"BF16", 2, {std::uint64_t{1} << 62, 4}, {}}, 0, 0);
  expect_error(ErrorCode::kLimit, {"overflows 64 bits"}, [&] {
    place_slice(formats::DType::kBf16, {std::uint64_t{1} << 60, 4}, &vast);
  });
}

}  // namespace
}  // namespace ingot::shard
