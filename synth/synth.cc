#include "synth/synth.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/parallel.h"
#include "formats/config/model_config.h"
#include "formats/container/checkpoint_index.h"
#include "formats/container/safetensors.h"
#include "formats/dialect/dialect.h"
#include "formats/family/family_yaml.h"
#include "formats/files/folder.h"
#include "formats/files/free_space.h"
#include "formats/json/json.h"
#include "formats/storage/encoding.h"
#include "synth/synth_values.h"

// The layout first, then the bytes: every tensor has its place in a file before anything is
// written, and a value depends on seed, tensor and position only. So the files are cut into windows
// that any thread may fill in any order.

namespace ingot::formats {
namespace {

constexpr std::uint64_t kBlock = 128;
constexpr std::uint64_t kMaxWindowBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kMaxBufferBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kMaxShards = 99'999;
// The released 671B checkpoints have 163 files of about this size.
constexpr std::uint64_t kReleaseShardBytes = 4'240'000'000;

struct SynthTensor {
  TensorSpec spec;
  SynthKind kind{};
  std::uint64_t n_bytes = 0;
  std::uint32_t file = 0;
  bool zero_first_block = false;
};

struct SynthFile {
  std::string name;
  std::string header;
  std::vector<const SynthTensor*> tensors;  // tensors in data order
  std::vector<std::uint64_t> offsets;       // offset of each tensor, absolute
  std::uint64_t n_bytes = 0;
};

SynthKind plain_kind(DType dtype, const ExpectedTensor& tensor) {
  const bool norm = is_norm(tensor.rule->role) && !tensor.name.ends_with(".bias");
  if (dtype == DType::kBf16) return norm ? SynthKind::kBf16Norm : SynthKind::kBf16Weight;
  if (dtype == DType::kF32) return norm ? SynthKind::kF32Norm : SynthKind::kF32Weight;
  if (dtype == DType::kI64) return SynthKind::kI64Zero;
  if (dtype == DType::kI32) return SynthKind::kI32Zero;
  throw Error(ErrorCode::kUnsupported, "cannot make random values of dtype {}", dtype_name(dtype))
      .in_tensor(tensor.name);
}

std::uint64_t size_of(const TensorSpec& spec) {
  const auto n_bytes = byte_count(spec.dtype, spec.shape);
  if (!n_bytes) {
    throw Error(ErrorCode::kLimit, "shape {} is too large", shape_text(spec.shape))
        .in_tensor(spec.name);
  }
  return *n_bytes;
}

// Every stored tensor in the order of the model; a scale follows its weight.
std::vector<SynthTensor> list_tensors(const SynthOptions& options, const ModelConfig& config) {
  const StorageRow* row =
      find_storage(formats::default_dialect(SchemeId::kFp8Block), SchemeId::kFp8Block);
  INGOT_CHECK(row != nullptr && row->parts[1].part == Part::kScale);
  std::vector<SynthTensor> tensors;
  const auto add = [&](std::string name, DType dtype, Shape shape, SynthKind kind) {
    SynthTensor& tensor = tensors.emplace_back();
    tensor.spec = {std::move(name), dtype, std::move(shape)};
    tensor.kind = kind;
    tensor.n_bytes = size_of(tensor.spec);
  };
  const bool is_fp8 = options.fp8 && options.config.empty();
  for_each_expected(*options.family, config, options.stacked, [&](const ExpectedTensor& expected) {
    if (expected.rule->any_shape) {
      throw Error(ErrorCode::kUnsupported, "the table of family {} does not say which shape it has",
                  options.family->name)
          .in_tensor(expected.name);
    }
    const Shape shape = rule_shape(*expected.rule, config, expected.layer);
    if (is_fp8 && expected.rule->fp8_by_default) {
      add(expected.name, DType::kF8E4M3, shape, SynthKind::kE4m3);
      add(part_name(row->parts[1], expected.name), DType::kF32,
          block_scale_shape(shape, kBlock, kBlock),
          options.ue8m0 ? SynthKind::kF32PowerScale : SynthKind::kF32Scale);
    } else {
      const DType dtype = expected.rule->synth_dtype;
      add(expected.name, dtype, stored_shape(expected.rule, shape), plain_kind(dtype, expected));
    }
  });
  return tensors;
}

bool is_scale(const SynthTensor& tensor) {
  return tensor.kind == SynthKind::kF32Scale || tensor.kind == SynthKind::kF32PowerScale;
}

// Deals tensors to files in order; each file takes its share of the rest, so that one huge tensor
// leaves enough for all files.
void deal(std::vector<SynthTensor>& tensors, std::uint64_t n_files) {
  std::uint64_t bytes_left = 0, groups_left = 0;
  for (const SynthTensor& tensor : tensors) {
    bytes_left += tensor.n_bytes;
    if (!is_scale(tensor)) ++groups_left;
  }
  if (n_files > groups_left) {
    throw Error(ErrorCode::kInvalidArgument, "{} tensors do not fill {} files (--shards)",
                groups_left, n_files);
  }
  std::uint32_t file = 0;
  std::uint64_t in_file = 0;
  std::uint64_t share = bytes_left / n_files;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!is_scale(tensors[i])) {
      const std::uint64_t files_left = n_files - file;
      // The last groups go one to a file, so that no file stays empty.
      const bool full = in_file >= share || groups_left < files_left;
      if (in_file != 0 && files_left > 1 && full) {
        ++file;
        in_file = 0;
        share = bytes_left / (n_files - file);
      }
      --groups_left;
    }
    tensors[i].file = file;
    in_file += tensors[i].n_bytes;
    bytes_left -= tensors[i].n_bytes;
  }
  INGOT_CHECK(file + 1 == n_files);
}

template <typename Iterator, typename Test>
SynthTensor& find_or_refuse(Iterator begin, Iterator end, const Test& test, const char* message) {
  const Iterator found = std::find_if(begin, end, test);
  if (found == end) throw Error(ErrorCode::kInvalidArgument, message);
  return *found;
}

void plant_edge_cases(std::vector<SynthTensor>& tensors, const SynthOptions& options) {
  if (options.zero_block) {
    // FP8 where there is some: a zero block under a scale that is not zero.
    const bool quantized = std::any_of(tensors.begin(), tensors.end(), is_scale);
    find_or_refuse(
        tensors.begin(), tensors.end(),
        [&](const SynthTensor& tensor) {
          return tensor.spec.shape.size() == 2 && (!quantized || tensor.kind == SynthKind::kE4m3);
        },
        "there is no matrix for a zero block")
        .zero_first_block = true;
  }
  if (options.split_scale) {
    const SynthTensor& first =
        find_or_refuse(tensors.begin(), tensors.end(), is_scale, "a split scale needs FP8 weights");
    SynthTensor& moved = find_or_refuse(
        tensors.rbegin(), tensors.rend(),
        [&](const SynthTensor& tensor) { return is_scale(tensor) && tensor.file == first.file; },
        "a split scale needs FP8 weights");
    const std::uint32_t last = tensors.back().file;
    if (last == 0) {
      throw Error(ErrorCode::kInvalidArgument, "a split scale needs two files (--shards 2)");
    }
    moved.file = moved.file == last ? moved.file - 1 : moved.file + 1;
  }
  if (options.subnormal_scales) {
    find_or_refuse(tensors.rbegin(), tensors.rend(), is_scale, "subnormal scales need FP8 weights")
        .kind = options.ue8m0 ? SynthKind::kF32TinyPowerScale : SynthKind::kF32TinyScale;
  }
}

std::uint64_t count_shards(const SynthOptions& options, const std::vector<SynthTensor>& tensors) {
  if (options.shards == 0 || options.shards > kMaxShards) {
    throw Error(ErrorCode::kInvalidArgument, "there can be 1 to {} files, not {}", kMaxShards,
                options.shards);
  }
  if (options.size != SynthSize::kHeaders || options.shards != 1) return options.shards;
  std::uint64_t total = 0;
  for (const SynthTensor& tensor : tensors) total += tensor.n_bytes;
  return std::max<std::uint64_t>(ceil_div(total, kReleaseShardBytes), 1);
}

std::string file_name(const SynthOptions& options, std::uint64_t number, std::uint64_t total) {
  // The released checkpoints of DeepSeek number their files with 5 digits of 6.
  if (options.size == SynthSize::kHeaders && options.config.empty() && total > 1) {
    return fmt::format("model-{:05}-of-{:06}.safetensors", number, total);
  }
  return shard_file_name(number, total);
}

std::vector<SynthFile> lay_out(const std::vector<SynthTensor>& tensors, const SynthOptions& options,
                               std::uint64_t n_files) {
  std::vector<SynthFile> files(n_files);
  for (const SynthTensor& tensor : tensors) files[tensor.file].tensors.push_back(&tensor);
  for (std::size_t i = 0; i < files.size(); ++i) {
    SynthFile& file = files[i];
    file.name = file_name(options, i + 1, n_files);
    std::sort(file.tensors.begin(), file.tensors.end(),
              [](const SynthTensor* a, const SynthTensor* b) {
                return writes_before(a->spec.dtype, a->spec.name, b->spec.dtype, b->spec.name);
              });
    std::vector<TensorSpec> specs;
    specs.reserve(file.tensors.size());
    for (const SynthTensor* tensor : file.tensors) specs.push_back(tensor->spec);
    file.header = safetensors_header_text(specs);
    file.n_bytes = file.header.size();
    for (const SynthTensor* tensor : file.tensors) {
      file.offsets.push_back(file.n_bytes);
      file.n_bytes += tensor->n_bytes;
    }
  }
  return files;
}

// Fills `out` with a tensor's bytes from `begin` on.
void fill_tensor(const SynthTensor& tensor, std::uint64_t seed, std::uint64_t begin,
                 std::span<std::byte> out) {
  const std::size_t width = synth_element_bytes(tensor.kind);
  SynthStream(seed, tensor.spec.name, tensor.kind).fill(begin / width, out);
  if (!tensor.zero_first_block) return;
  const std::uint64_t row_bytes = tensor.spec.shape[1] * width;
  const std::uint64_t zero_bytes = std::min(kBlock, tensor.spec.shape[1]) * width;
  for (std::uint64_t row = 0; row < std::min(kBlock, tensor.spec.shape[0]); ++row) {
    const std::uint64_t from = std::max(row * row_bytes, begin);
    const std::uint64_t to = std::min(row * row_bytes + zero_bytes, begin + out.size());
    if (from < to)
      std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(from - begin), to - from, std::byte{0});
  }
}

// Fills `out` with the bytes of a file from `begin` on.
void fill_window(const SynthFile& file, std::uint64_t seed, std::uint64_t begin,
                 std::span<std::byte> out) {
  const std::uint64_t end = begin + out.size();
  if (begin < file.header.size()) {
    const std::uint64_t n = std::min<std::uint64_t>(end, file.header.size()) - begin;
    const auto bytes = std::as_bytes(std::span(file.header)).subspan(begin, n);
    std::copy(bytes.begin(), bytes.end(), out.begin());
  }
  auto after = std::upper_bound(file.offsets.begin(), file.offsets.end(), begin);
  std::size_t i = after == file.offsets.begin()
                      ? 0
                      : static_cast<std::size_t>(after - file.offsets.begin()) - 1;
  for (; i < file.tensors.size() && file.offsets[i] < end; ++i) {
    const std::uint64_t from = std::max(file.offsets[i], begin);
    const std::uint64_t to = std::min(file.offsets[i] + file.tensors[i]->n_bytes, end);
    if (from < to) {
      fill_tensor(*file.tensors[i], seed, from - file.offsets[i],
                  out.subspan(from - begin, to - from));
    }
  }
}

struct Window {
  std::size_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t n_bytes = 0;
};

void write_files(const std::filesystem::path& directory, const std::vector<SynthFile>& files,
                 const SynthOptions& options) {
  const std::size_t workers = std::max<std::size_t>(options.threads, 1);
  // Multiples of 8 keep every element whole: data start at a multiple of 8 and wide dtypes come
  // first.
  const std::uint64_t window_bytes = std::max<std::uint64_t>(
      round_down(std::min(kMaxWindowBytes, kMaxBufferBytes / workers), 4096), 4096);
  std::vector<Window> windows;
  std::vector<Fd> fds;
  for (std::size_t i = 0; i < files.size(); ++i) {
    fds.push_back(Fd::open_for_writing(directory / files[i].name, O_WRONLY | O_CREAT | O_EXCL));
    fds.back().reserve(files[i].n_bytes);
    for (std::uint64_t begin = 0; begin < files[i].n_bytes; begin += window_bytes) {
      windows.push_back({i, begin, std::min(window_bytes, files[i].n_bytes - begin)});
    }
  }
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  run_workers(std::min(workers, windows.size()), [&](std::size_t) {
    try {
      std::vector<std::byte> buffer(window_bytes);
      for (std::size_t i = next++; i < windows.size() && !failed; i = next++) {
        const Window& window = windows[i];
        const auto out = std::span(buffer).first(window.n_bytes);
        fill_window(files[window.file], options.seed, window.begin, out);
        fds[window.file].write_exact(out, window.begin);
      }
    } catch (...) {
      failed = true;
      throw;
    }
  });
  for (Fd& fd : fds) fd.close();
}

void write_sparse_files(const std::filesystem::path& directory,
                        const std::vector<SynthFile>& files) {
  for (const SynthFile& file : files) {
    Fd fd = Fd::open_for_writing(directory / file.name, O_WRONLY | O_CREAT | O_EXCL);
    fd.write_exact(std::as_bytes(std::span(file.header)), 0);
    fd.truncate(file.n_bytes);
    fd.close();
  }
}

std::string index_text(const std::vector<SynthFile>& files) {
  CheckpointIndex index;
  std::uint64_t total = 0;
  for (const SynthFile& file : files) {
    for (const SynthTensor* tensor : file.tensors) {
      index.weight_map.emplace_back(tensor->spec.name, file.name);
      total += tensor->n_bytes;
    }
  }
  return checkpoint_index_text(index, total);
}

// Checks before reserving: a full disk harms every user.
void require_space(const std::filesystem::path& directory, const std::vector<SynthFile>& files) {
  std::uint64_t needed = 0;
  for (const SynthFile& file : files)
    needed = checked_add(needed, file.n_bytes).value_or(std::numeric_limits<std::uint64_t>::max());
  const std::uint64_t free = free_bytes(directory);
  if (needed <= free) return;
  throw Error(ErrorCode::kNoSpace,
              "the weights take {} bytes, the file system has {} free (choose a directory on "
              "another disk, or --like headers, whose data are holes)",
              needed, free)
      .in_file(directory.string());
}

void make_empty_directory(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error && !std::filesystem::is_directory(directory)) {
    throw system_error(error.value(), "create directory", directory.string());
  }
  const bool empty = names_in(directory, error).empty();
  if (error) throw system_error(error.value(), "read directory", directory.string());
  if (!empty) {
    throw Error(ErrorCode::kExists,
                "directory is not empty (name another one, or delete what is in it)")
        .in_file(directory.string());
  }
}

// Config and index last, so that an interrupted run is not taken for a checkpoint.
void write_all(const std::filesystem::path& directory, const std::vector<SynthFile>& files,
               const SynthOptions& options, const std::string& config_text) {
  if (options.size == SynthSize::kHeaders) {
    write_sparse_files(directory, files);
  } else {
    write_files(directory, files, options);
  }
  write_text_file(
      directory / "README.md",
      fmt::format("Random weights in the layout of {}, written by `ingot synth`. Seed {}.\n",
                  options.family->name, options.seed));
  write_text_file(directory / "generation_config.json",
                  json_text(Json{{"bos_token_id", 0}, {"eos_token_id", 1}, {"do_sample", false}}));
  if (files.size() > 1) write_text_file(directory / kIndexName, index_text(files));
  write_text_file(directory / "config.json", config_text);
}

// Before that, the directory was empty.
void remove_all_written(const std::filesystem::path& directory,
                        const std::vector<SynthFile>& files) {
  std::vector<std::string> names = {"README.md", "generation_config.json", std::string(kIndexName),
                                    "config.json"};
  for (const SynthFile& file : files) names.push_back(file.name);
  std::error_code ignored;
  for (const std::string& name : names) std::filesystem::remove(directory / name, ignored);
}

}  // namespace

SynthReport write_synthetic_checkpoint(const std::filesystem::path& directory,
                                       const SynthOptions& options) {
  const std::string config_text = synth_config_text(options);
  const ModelConfig config =
      config_of(*options.family, parse_model_config(config_text, "synthetic config.json"));
  require_widths(*options.family, config);
  std::vector<SynthTensor> tensors = list_tensors(options, config);
  const std::uint64_t n_files = count_shards(options, tensors);
  deal(tensors, n_files);
  plant_edge_cases(tensors, options);
  const std::vector<SynthFile> files = lay_out(tensors, options, n_files);

  if (options.size != SynthSize::kHeaders) require_space(directory, files);
  make_empty_directory(directory);
  try {
    write_all(directory, files, options, config_text);
  } catch (...) {
    // A full disk gets its space back, and the same command can be run again.
    remove_all_written(directory, files);
    throw;
  }

  SynthReport report{.n_files = n_files, .n_tensors = tensors.size()};
  for (const SynthFile& file : files) report.n_bytes += file.n_bytes;
  return report;
}

}  // namespace ingot::formats
