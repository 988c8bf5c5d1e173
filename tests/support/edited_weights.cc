#include "tests/support/edited_weights.h"

#include "formats/container/safetensors.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::testing {

namespace fs = std::filesystem;

EditedWeights::EditedWeights(fs::path directory) : directory_(std::move(directory)) {
  for (const auto& entry : fs::directory_iterator(directory_)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string name = entry.path().filename().string();
    File file{.fd = Fd::open_for_reading(entry.path())};
    file.stored = formats::read_safetensors_header(file.fd).tensors;
    for (const formats::StoredTensor& stored : file.stored) file_of_[stored.name] = name;
    files_.emplace(name, std::move(file));
  }
}

EditedTensor& EditedWeights::tensor_in(File& file, const std::string& name) {
  const auto [at, is_new] = file.tensors.try_emplace(name);
  EditedTensor& tensor = at->second;
  if (!is_new) return tensor;
  const auto stored = std::ranges::find(file.stored, name, &formats::StoredTensor::name);
  tensor = {stored->dtype, stored->shape, std::string(stored->n_bytes, '\0')};
  file.fd.read_exact(std::as_writable_bytes(std::span(tensor.bytes)), stored->offset);
  return tensor;
}

bool EditedWeights::has_header_of_old(const File& file) {
  return file.erased.empty() && std::ranges::all_of(file.stored, [&](const auto& before) {
           const auto now = file.tensors.find(before.name);
           return now == file.tensors.end() ||
                  (before.dtype == now->second.dtype && before.shape == now->second.shape);
         });
}

void EditedWeights::save() const {
  for (const std::string& name : touched_) {
    File& file = files_.at(name);
    fs::remove(directory_ / name);
    if (has_header_of_old(file)) {
      std::string bytes(file.fd.size(), '\0');
      file.fd.read_exact(std::as_writable_bytes(std::span(bytes)), 0);
      for (const formats::StoredTensor& stored : file.stored) {
        const auto now = file.tensors.find(stored.name);
        if (now != file.tensors.end())
          bytes.replace(stored.offset, stored.n_bytes, now->second.bytes);
      }
      write_bytes(directory_ / name, bytes);
      continue;
    }
    std::vector<TinyTensor> tensors;
    for (const formats::StoredTensor& stored : file.stored) {
      if (file.erased.contains(stored.name)) continue;
      const EditedTensor& edited = tensor_in(file, stored.name);
      tensors.push_back({.name = stored.name,
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
  return tensor_in(files_.at(file_of(name)), name);
}

EditedTensor& EditedWeights::at(const std::string& name) {
  touched_.insert(file_of(name));
  return tensor_in(files_.at(file_of(name)), name);
}

void EditedWeights::erase(const std::string& name) {
  File& file = files_.at(file_of(name));
  touched_.insert(file_of(name));
  file.erased.insert(name);
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

EditedCopy::EditedCopy(const fs::path& from) {
  fs::create_directory(path());
  for (const auto& entry : fs::directory_iterator(from))
    fs::create_symlink(fs::absolute(entry.path()), path() / entry.path().filename());
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
