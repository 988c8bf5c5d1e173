#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "formats/base/fd.h"
#include "formats/container/safetensors.h"
#include "tests/support/json_edit.h"
#include "tests/support/temp_dir.h"

namespace ingot::testing {

/// A copy of a checkpoint that a test may change. Files are links until they are changed.
class EditedCopy {
 public:
  explicit EditedCopy(const std::filesystem::path& from) {
    std::filesystem::create_directory(path());
    for (const auto& entry : std::filesystem::directory_iterator(from)) {
      std::filesystem::create_symlink(std::filesystem::absolute(entry.path()),
                                      path() / entry.path().filename());
    }
  }

  [[nodiscard]] std::filesystem::path path() const { return directory_ / "model"; }

  void config(const std::vector<JsonEdit>& edits) const {
    own("config.json");
    const formats::Json json = formats::read_json_file(path() / "config.json", 1 << 20);
    std::ofstream(path() / "config.json") << edited(json, edits).dump(2);
  }

  /// The bytes of a stored tensor, in place.
  void tensor(const std::string& name,
              const std::function<void(std::span<unsigned char>)>& edit) const {
    for (const auto& entry : std::filesystem::directory_iterator(path())) {
      if (entry.path().extension() != ".safetensors") continue;
      for (const formats::StoredTensor& stored : header(entry.path())) {
        if (stored.name != name) continue;
        own(entry.path().filename().string());
        std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
        std::vector<unsigned char> bytes(stored.n_bytes);
        const auto at = static_cast<std::streamoff>(stored.offset);
        file.seekg(at).read(reinterpret_cast<char*>(bytes.data()),
                            static_cast<std::streamsize>(bytes.size()));
        edit(bytes);
        file.seekp(at).write(reinterpret_cast<const char*>(bytes.data()),
                             static_cast<std::streamsize>(bytes.size()));
        if (!file) throw std::runtime_error("cannot edit " + name);
        return;
      }
    }
    throw std::runtime_error("there is no " + name);
  }

  /// Sets the value at `index` of a tensor of 1, 2 or 4 bytes per value to these bits.
  template <typename T>
  void set(const std::string& name, std::size_t index, T bits) const {
    tensor(name, [&](std::span<unsigned char> bytes) {
      std::memcpy(bytes.data() + index * sizeof bits, &bits, sizeof bits);
    });
  }

  void fill_zero(const std::string& name) const {
    tensor(name,
           [](std::span<unsigned char> bytes) { std::memset(bytes.data(), 0, bytes.size()); });
  }

 private:
  static std::vector<formats::StoredTensor> header(const std::filesystem::path& file) {
    return formats::read_safetensors_header(Fd::open_for_reading(file)).tensors;
  }

  // Puts a file in the place of a link to it.
  void own(const std::string& name) const {
    const std::filesystem::path file = path() / name;
    if (!std::filesystem::is_symlink(file)) return;
    const std::filesystem::path target = std::filesystem::read_symlink(file);
    std::filesystem::remove(file);
    std::filesystem::copy_file(target, file);
    std::filesystem::permissions(file, std::filesystem::perms::owner_write,
                                 std::filesystem::perm_options::add);
  }

  TempDir directory_;
};

}  // namespace ingot::testing
