#include "formats/checkpoint/file_bytes.h"

#include "formats/base/error.h"

namespace ingot::formats {
namespace {

std::vector<SourceFile> facts_of(const std::vector<WeightsFile>& files) {
  std::vector<SourceFile> facts;
  facts.reserve(files.size());
  for (const WeightsFile& file : files) facts.push_back(file.facts);
  return facts;
}

}  // namespace

FileBytes::FileBytes(std::vector<WeightsFile> files)
    : facts_(facts_of(files)), contents_(std::move(files)) {}

void FileBytes::read(std::uint32_t /*index*/, const StoredTensor& tensor, std::uint64_t offset,
                     std::span<std::byte> out) const {
  contents_.read(tensor.file, tensor.offset + offset, out);
}

std::vector<std::byte> FileBytes::header_bytes(std::uint32_t file) const {
  INGOT_CHECK(file < facts_.size());
  return read_weights_header(contents_[file]).bytes;
}

bool FileBytes::has_data(std::uint32_t file) const {
  INGOT_CHECK(file < facts_.size());
  return contents_[file].saved_header.empty();
}

void FileBytes::read_file(std::uint32_t file, std::uint64_t offset,
                          std::span<std::byte> out) const {
  contents_.read(file, offset, out);
}

void FileBytes::close_file(std::uint32_t file) const {
  contents_.close(file);
}

}  // namespace ingot::formats
