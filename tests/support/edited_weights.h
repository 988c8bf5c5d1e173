#pragma once

#include "formats/base/fd.h"
#include "formats/container/tensor.h"
#include "formats/json/json.h"
#include "tests/support/json_edit.h"
#include "tests/support/test.h"

namespace ingot::testing {

/// A stored tensor, in memory.
struct EditedTensor {
  formats::DType dtype{};
  formats::Shape shape;
  std::string bytes;

  /// The number at an index, of the type as which the bytes are to be read.
  template <typename T>
  [[nodiscard]] T get(std::size_t i) const {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    return value;
  }
  template <typename T>
  void set(std::size_t i, T value) {
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  template <typename T>
  void map(const std::function<T(T)>& change) {
    for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) set<T>(i, change(get<T>(i)));
  }
};

/// The weights files at the top of a directory, to be damaged; a tensor is read when it is asked
/// for. Written back by save(), and not
/// through our writer; only files in which something was touched, each as a new file, so that hard
/// links to the old one stay as they were. A header stays the same bytes as long as it can.
class EditedWeights {
 public:
  explicit EditedWeights(std::filesystem::path directory);
  void save() const;

  [[nodiscard]] bool has(const std::string& name) const;
  [[nodiscard]] const EditedTensor& read(const std::string& name) const;
  /// Marks its file as touched. Throws for a name that is not there.
  EditedTensor& at(const std::string& name);
  void erase(const std::string& name);
  /// Exchanges the bytes of two tensors of one dtype and shape.
  void exchange(const std::string& a, const std::string& b);
  /// Every name that begins and ends so.
  [[nodiscard]] std::vector<std::string> names(std::string_view begin = "",
                                               std::string_view end = "") const;
  [[nodiscard]] const std::string& file_of(const std::string& name) const;

 private:
  struct File {
    Fd fd;
    std::vector<formats::StoredTensor> stored;
    std::map<std::string, EditedTensor> tensors;  ///< those that were asked for
    std::set<std::string> erased;
  };

  static EditedTensor& tensor_in(File& file, const std::string& name);
  static bool has_header_of_old(const File& file);

  std::filesystem::path directory_;
  mutable std::map<std::string, File> files_;
  std::map<std::string, std::string> file_of_;
  std::set<std::string> touched_;
};

/// Changes one tensor.
void edit_tensor(const std::filesystem::path& directory, const std::string& name,
                 const std::function<void(EditedTensor&)>& change);

/// Erases tensors from their files and from the directory's index.
void drop_tensors(const std::filesystem::path& directory, const std::vector<std::string>& names);

/// Reads a JSON file, lets `change` alter it, and writes it as a new file.
void edit_json(const std::filesystem::path& path,
               const std::function<void(formats::Json&)>& change);
void edit_json(const std::filesystem::path& path, const std::vector<JsonEdit>& edits);

/// A copy of a checkpoint that a test may change. Files are links until they are changed.
class EditedCopy {
 public:
  explicit EditedCopy(const std::filesystem::path& from);
  [[nodiscard]] std::filesystem::path path() const { return directory_ / "model"; }

  void config(const std::vector<JsonEdit>& edits) const {
    edit_json(path() / "config.json", edits);
  }
  /// Sets the value at `index` of a tensor of 1, 2 or 4 bytes per value to these bits.
  template <typename T>
  void set(const std::string& name, std::size_t index, T bits) const {
    edit_tensor(path(), name, [&](EditedTensor& tensor) { tensor.set(index, bits); });
  }
  void fill_zero(const std::string& name) const {
    edit_tensor(path(), name, [](EditedTensor& tensor) { std::ranges::fill(tensor.bytes, '\0'); });
  }

 private:
  TempDir directory_;
};

}  // namespace ingot::testing
