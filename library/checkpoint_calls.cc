#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/checkpoint/checkpoint_files.h"
#include "formats/family/roles.h"
#include "library/call.h"
#include "library/decoded_bands.h"
#include "library/handles.h"
#include "library/options/flag_table.h"
#include "library/options/settings.h"
#include "shard/join/source.h"

namespace ingot::library {
namespace {

using formats::Checkpoint;
using formats::LogicalTensor;
using formats::Part;
using formats::StoredTensor;

const LogicalTensor& tensor_at(const ingot_checkpoint* checkpoint, std::size_t index) {
  require_given(checkpoint, "checkpoint");
  const auto tensors = checkpoint->source->tensors();
  if (index >= tensors.size())
    throw Error(ErrorCode::kInvalidArgument, "there is no tensor {} of {}", index, tensors.size());
  return tensors[index];
}

std::vector<std::pair<Part, std::uint32_t>> parts_of(const LogicalTensor& tensor) {
  std::vector<std::pair<Part, std::uint32_t>> parts;
  tensor.encoding.stored.for_each(
      [&](Part part, std::uint32_t stored) { parts.emplace_back(part, stored); });
  return parts;
}

std::pair<Part, std::uint32_t> part_at(const ingot_checkpoint* checkpoint, std::size_t tensor,
                                       std::size_t index) {
  const LogicalTensor& of = tensor_at(checkpoint, tensor);
  const auto parts = parts_of(of);
  if (index >= parts.size()) {
    throw Error(ErrorCode::kInvalidArgument, "has no part {} of {}", index, parts.size())
        .in_tensor(of.name);
  }
  return parts[index];
}

// "global scale": the meaning without its article.
const char* kind_of(Part part) {
  const std::string_view meaning = formats::part_facts(part).meaning;
  return meaning.data() + meaning.find(' ') + 1;
}

// The stamp of a file when its header was read; of slices that are joined there is none.
ingot::FileStamp stamp_of_file(const ingot_checkpoint& checkpoint, std::uint32_t file) {
  if (checkpoint.paths.empty()) return {};
  return dynamic_cast<const formats::CheckpointFiles&>(checkpoint.source->bytes())
      .stamp(file)
      .value_or(ingot::FileStamp());
}

// Throws for a file that was written to, also where its time was put back. Files that are read by
// jobs may be linked meanwhile; here they can be opened again. Tensors that are joined, or seen in
// another layout, may be of any file.
void require_unwritten(const ingot_checkpoint& checkpoint, const StoredTensor& stored) {
  const formats::CheckpointFiles* files = checkpoint.source->bytes().on_disk();
  if (files == nullptr) return;
  const auto require = [&](std::uint32_t file) {
    const auto now = ingot::stamp_of(files->path(file));
    if (now && files->stamp(file).value_or(ingot::FileStamp()).is_unwritten(*now)) return;
    throw ingot::Error(ingot::ErrorCode::kMismatch,
                       "its file was replaced, written to or removed after the checkpoint was "
                       "opened (open it again)")
        .in_file(files->path(file).string())
        .in_tensor(stored.name);
  };
  if (!checkpoint.paths.empty()) return require(stored.file);
  for (std::uint32_t file = 0; file < files->files().size(); ++file) require(file);
}

std::vector<std::string> paths_of(const Checkpoint& source) {
  std::vector<std::string> paths;
  // Sources of other types join tensors, or change their layout.
  if (dynamic_cast<const formats::CheckpointFiles*>(&source.bytes()) == nullptr) return paths;
  for (const formats::SourceFile& file : source.files())
    paths.push_back((source.directory() / file.name).string());
  return paths;
}

void require_room(const LogicalTensor& tensor, std::uint64_t n, const float* values,
                  std::uint64_t n_values) {
  if (n_values != n) {
    throw Error(ErrorCode::kInvalidArgument, "has {} values, and there is room for {}", n, n_values)
        .in_tensor(tensor.name);
  }
  if (n > 0) require_given(values, "values");
}

void read_decoded(const ingot_checkpoint& checkpoint, const LogicalTensor& tensor, float* values,
                  std::size_t threads, RowRange rows) {
  tensor.encoding.stored.for_each([&](Part, std::uint32_t stored) {
    require_unwritten(checkpoint, checkpoint.source->stored()[stored]);
  });
  const std::uint64_t cols = tensor.shape.empty() ? 1 : tensor.shape.back();
  const bool is_decoded = decode_bands(
      *checkpoint.source, tensor, threads == 0 ? available_processors() : threads,
      [&](const auto& band, std::span<const float> decoded) {
        for (std::uint64_t row = 0; row < band.rows; ++row) {
          std::ranges::copy(decoded.subspan(row * band.cols, band.cols),
                            values + (band.row + row - rows.begin) * cols + band.col);
        }
      },
      rows);
  if (is_decoded) return;
  const auto& stored = checkpoint.source->stored()[tensor.encoding.stored.weight()];
  throw Error(ErrorCode::kUnsupported,
              "is {}, which is copied and never computed with (read it as stored)",
              formats::dtype_name(stored.dtype))
      .in_tensor(tensor.name);
}

}  // namespace
}  // namespace ingot::library

using namespace ingot::library;

int ingot_open(const char* path, const char* options, ingot_checkpoint** checkpoint) {
  return call([&] {
    require_given(path, "path");
    require_given(checkpoint, "checkpoint");
    std::string found, family, config;
    ingot::FlagTable table;
    table.add(ingot::FlagGroup::kCommon,
              {{"path", &found, ingot::kPathHelp, {.kind = ingot::ValueKind::kCheckpointOrFile}}});
    ingot::declare_source(table, family, config, ingot::kFamilyHelp);
    auto settings = ingot::settings_of_json(text_or_empty(options));
    settings["path"] = path;
    ingot::take_settings(settings, table);
    settings.erase("path");
    auto source = std::make_shared<const Checkpoint>(ingot::shard::open_source(
        found, {.open = {.family = family, .threads = ingot::available_processors()},
                .may_be_file = true,
                .config = config}));
    std::vector<std::string> paths = paths_of(*source);
    *checkpoint = new ingot_checkpoint{std::move(source), std::move(paths), found, settings};
  });
}

void ingot_close(ingot_checkpoint* checkpoint) {
  delete checkpoint;
}

size_t ingot_tensor_count(const ingot_checkpoint* checkpoint) {
  return checkpoint == nullptr ? 0 : checkpoint->source->tensors().size();
}

int ingot_tensor_info(const ingot_checkpoint* checkpoint, size_t tensor, ingot_tensor* info) {
  return call([&] {
    const LogicalTensor& of = tensor_at(checkpoint, tensor);
    fill(info, ingot_tensor{
                   .size = 0,
                   .name = of.name.c_str(),
                   .role = ingot::formats::role_name(role_of(of)).data(),
                   .scheme = ingot::formats::scheme_name(of.encoding.scheme).data(),
                   .shape = of.shape.data(),
                   .n_dims = of.shape.size(),
                   .layer = of.layer ? static_cast<std::int64_t>(*of.layer) : -1,
                   .expert = of.expert ? static_cast<std::int64_t>(*of.expert) : -1,
                   .n_parts = parts_of(of).size(),
               });
  });
}

int ingot_part_info(const ingot_checkpoint* checkpoint, size_t tensor, size_t part,
                    ingot_part* info) {
  return call([&] {
    const auto [kind, index] = part_at(checkpoint, tensor, part);
    const StoredTensor& stored = checkpoint->source->stored()[index];
    const auto& paths = checkpoint->paths;
    const ingot::FileStamp stamp = stamp_of_file(*checkpoint, stored.file);
    fill(info, ingot_part{.size = 0,
                          .kind = kind_of(kind),
                          .name = stored.name.c_str(),
                          .dtype = ingot::formats::dtype_name(stored.dtype).data(),
                          .shape = stored.shape.data(),
                          .n_dims = stored.shape.size(),
                          .n_bytes = stored.n_bytes,
                          .path = paths.empty() ? nullptr : paths[stored.file].c_str(),
                          .offset = stored.offset,
                          .device = stamp.device,
                          .inode = stamp.inode,
                          .file_bytes = stamp.n_bytes,
                          .modified_ns = stamp.modified_ns,
                          .changed_ns = stamp.changed_ns,
                          .n_links = stamp.n_links});
  });
}

int ingot_read_stored(const ingot_checkpoint* checkpoint, size_t tensor, size_t part,
                      uint64_t offset, void* bytes, uint64_t n_bytes) {
  return call([&] {
    const std::uint32_t index = part_at(checkpoint, tensor, part).second;
    const StoredTensor& stored = checkpoint->source->stored()[index];
    if (offset > stored.n_bytes || n_bytes > stored.n_bytes - offset) {
      throw ingot::Error(ingot::ErrorCode::kInvalidArgument,
                         "has {} bytes, and {} from byte {} on were asked for", stored.n_bytes,
                         n_bytes, offset)
          .in_tensor(stored.name);
    }
    if (n_bytes == 0) return;
    require_given(bytes, "bytes");
    require_unwritten(*checkpoint, stored);
    checkpoint->source->read(index, offset, {static_cast<std::byte*>(bytes), n_bytes});
  });
}

int ingot_read_decoded(const ingot_checkpoint* checkpoint, size_t tensor, float* values,
                       uint64_t n_values, size_t threads) {
  return call([&] {
    const LogicalTensor& of = tensor_at(checkpoint, tensor);
    require_room(of, ingot::formats::element_count(of.shape).value_or(0), values, n_values);
    read_decoded(*checkpoint, of, values, threads, {});
  });
}

int ingot_read_rows(const ingot_checkpoint* checkpoint, size_t tensor, uint64_t first_row,
                    uint64_t n_rows, float* values, uint64_t n_values, size_t threads) {
  return call([&] {
    const LogicalTensor& of = tensor_at(checkpoint, tensor);
    const std::uint64_t all = of.shape.size() < 2 ? 0 : of.shape[0];
    if (first_row > all || n_rows > all - first_row) {
      throw ingot::Error(ingot::ErrorCode::kInvalidArgument,
                         "has {} rows, and {} from row {} on were asked for", all, n_rows,
                         first_row)
          .in_tensor(of.name);
    }
    if (all == 0) return;
    const std::uint64_t n = ingot::formats::element_count(of.shape).value_or(0) / all;
    require_room(of, n * n_rows, values, n_values);
    const std::uint64_t n_inner = n == 0 ? 0 : n / of.shape.back();
    read_decoded(*checkpoint, of, values, threads,
                 {.begin = first_row * n_inner, .end = (first_row + n_rows) * n_inner});
  });
}
