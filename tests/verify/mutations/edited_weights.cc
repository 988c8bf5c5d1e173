#include "tests/verify/mutations/edited_weights.h"

#include <algorithm>
#include <stdexcept>

#include "formats/base/fd.h"
#include "formats/container/safetensors.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::testing {

namespace fs = std::filesystem;

EditedWeights::EditedWeights(fs::path directory) : directory_(std::move(directory)) {
  for (const auto& entry : fs::directory_iterator(directory_)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string name = entry.path().filename().string();
    File& file = files_[name];
    const Fd fd = Fd::open_for_reading(entry.path());
    const std::vector<std::byte> header = formats::read_safetensors_header_bytes(fd);
    for (const std::byte byte : header) file.header += static_cast<char>(byte);
    file.stored = formats::read_safetensors_header(fd).tensors;
    for (const formats::StoredTensor& stored : file.stored) {
      EditedTensor tensor{stored.dtype, stored.shape, std::string(stored.n_bytes, '\0')};
      fd.read_exact(std::as_writable_bytes(std::span(tensor.bytes)), stored.offset);
      file.order.push_back(stored.name);
      file.tensors.emplace(stored.name, std::move(tensor));
      file_of_[stored.name] = name;
    }
  }
}

bool EditedWeights::has_header_of_old(const File& file) {
  return std::equal(file.stored.begin(), file.stored.end(), file.order.begin(), file.order.end(),
                    [&](const formats::StoredTensor& before, const std::string& name) {
                      const EditedTensor& now = file.tensors.at(name);
                      return before.name == name && before.dtype == now.dtype &&
                             before.shape == now.shape;
                    });
}

void EditedWeights::save() const {
  for (const std::string& name : touched_) {
    const File& file = files_.at(name);
    fs::remove(directory_ / name);
    if (has_header_of_old(file)) {
      std::string bytes = file.header;
      for (const std::string& tensor : file.order) bytes += file.tensors.at(tensor).bytes;
      write_bytes(directory_ / name, bytes);
      continue;
    }
    std::vector<TinyTensor> tensors;
    for (const std::string& tensor : file.order) {
      const EditedTensor& edited = file.tensors.at(tensor);
      tensors.push_back({.name = tensor,
                         .dtype = std::string(formats::dtype_name(edited.dtype)),
                         .shape = edited.shape,
                         .data = edited.bytes});
    }
    write_bytes(directory_ / name, safetensors_bytes(tensors));
  }
}

bool EditedWeights::has(const std::string& name) const {
  return file_of_.contains(name);
}

const std::string& EditedWeights::file_of(const std::string& name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) throw std::runtime_error("there is no tensor " + name);
  return found->second;
}

const EditedTensor& EditedWeights::read(const std::string& name) const {
  return files_.at(file_of(name)).tensors.at(name);
}

EditedTensor& EditedWeights::at(const std::string& name) {
  touched_.insert(file_of(name));
  return files_.at(file_of(name)).tensors.at(name);
}

void EditedWeights::erase(const std::string& name) {
  File& file = files_.at(file_of(name));
  touched_.insert(file_of(name));
  std::erase(file.order, name);
  file.tensors.erase(name);
  file_of_.erase(name);
}

void EditedWeights::exchange(const std::string& a, const std::string& b) {
  EditedTensor& first = at(a);
  EditedTensor& second = at(b);
  if (first.dtype != second.dtype || first.shape != second.shape)
    throw std::runtime_error(a + " and " + b + " are not alike");
  std::swap(first.bytes, second.bytes);
}

std::vector<std::string> EditedWeights::names(std::string_view begin, std::string_view end) const {
  std::vector<std::string> found;
  for (const auto& [name, file] : file_of_) {
    if (name.starts_with(begin) && name.ends_with(end)) found.push_back(name);
  }
  return found;
}

void edit_tensor(const fs::path& directory, const std::string& name,
                 const std::function<void(EditedTensor&)>& change) {
  EditedWeights weights(directory);
  change(weights.at(name));
  weights.save();
}

void drop_tensors(const fs::path& directory, const std::vector<std::string>& names) {
  EditedWeights weights(directory);
  for (const std::string& name : names) weights.erase(name);
  weights.save();
  edit_json(directory / "model.safetensors.index.json", [&](formats::Json& index) {
    for (const std::string& name : names) index.at("weight_map").erase(name);
  });
}

void edit_json(const fs::path& path, const std::vector<JsonEdit>& edits) {
  edit_json(path, [&](formats::Json& json) { json = edited(json, edits); });
}

void edit_json(const fs::path& path, const std::function<void(formats::Json&)>& change) {
  formats::Json json = formats::read_json_file(path, 1 << 24);
  change(json);
  fs::remove(path);
  write_bytes(path, formats::json_text(json));
}

}  // namespace ingot::testing
