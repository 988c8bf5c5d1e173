#include "formats/container/checkpoint_index.h"

#include <algorithm>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kWeightMap = "weight_map";
constexpr std::string_view kMetadataName = "metadata";
constexpr const char* kTotalSize = "total_size";
constexpr std::string_view kSuffix = ".safetensors";
constexpr std::size_t kMaxFileNameBytes = 255;  // limit of every file system of Linux

Error corrupt_index(std::string message) {
  return Error(ErrorCode::kCorrupt, std::move(message));
}

bool is_control_byte(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7F;
}

/// Names come from strangers and are joined to a directory: anything that could leave it is
/// refused.
void check_file_name(std::string_view name, std::string_view tensor) {
  const auto refuse = [&](std::string_view fact) {
    // The name itself is shown only where it can be printed.
    throw corrupt_index(fmt::format("weight_map names a file {}", fact)).in_tensor(tensor);
  };
  if (name.empty()) refuse("with an empty name");
  if (name.size() > kMaxFileNameBytes) refuse(fmt::format("with a name of {} bytes", name.size()));
  if (std::any_of(name.begin(), name.end(), is_control_byte))
    refuse("with a control character in its name");
  if (name.find_first_of("/\\") != std::string_view::npos ||
      name.find("..") != std::string_view::npos) {
    refuse(fmt::format("'{}', which is not a bare file name", name));
  }
  if (!name.ends_with(kSuffix))
    refuse(fmt::format("'{}', which does not end in .safetensors", name));
}

/// Events instead of a tree: 92,425 names are read in a tenth of a second and stored once.
class IndexReader final : public JsonEvents {
 public:
  void begin_object() override {
    if (depth_ == 0 || is_ignored() || (depth_ == 1 && (in_map() || top_key_ == kMetadataName))) {
      if (depth_ == 1 && in_map()) has_map_ = true;
      ++depth_;
    } else {
      wrong_type();
    }
  }
  void begin_array() override {
    if (!is_ignored()) wrong_type();
    ++depth_;
  }
  void end() override { --depth_; }
  void key(std::string_view name) override {
    if (depth_ == 1) {
      if (std::find(top_keys_.begin(), top_keys_.end(), name) != top_keys_.end()) {
        throw corrupt_index(fmt::format("key '{}' occurs twice", name));
      }
      if (top_keys_.size() == kMaxTopKeys)
        throw Error(ErrorCode::kLimit, "has more than {} keys", kMaxTopKeys);
      top_keys_.emplace_back(name);
      top_key_ = name;
    } else if (in_map() || depth_ == 2) {
      key_ = name;
    }
  }
  void value(Json&& scalar) override {
    if (depth_ == 2 && in_map() && scalar.is_string()) {
      auto& file = scalar.get_ref<std::string&>();
      check_file_name(file, key_);
      index_.weight_map.emplace_back(std::move(key_), std::move(file));
      return;
    }
    if (depth_ == 2 && top_key_ == kMetadataName) {
      if (++n_metadata_ <= kMaxTopKeys) metadata_[key_] = std::move(scalar);
      return;
    }
    const bool absent_metadata = depth_ == 1 && top_key_ == kMetadataName && scalar.is_null();
    if (!is_ignored() && !absent_metadata) wrong_type();
  }

  CheckpointIndex take() {
    if (!has_map_) throw corrupt_index("has no weight_map");
    std::vector<std::string_view> names;
    names.reserve(index_.weight_map.size());
    for (const auto& [tensor, file] : index_.weight_map) names.push_back(tensor);
    std::sort(names.begin(), names.end());
    if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
      throw Error(ErrorCode::kDuplicate, "occurs twice in weight_map").in_tensor(*twice);
    }
    if (n_metadata_ <= kMaxTopKeys) index_.frame.metadata = std::move(metadata_);
    return std::move(index_);
  }

 private:
  static constexpr std::size_t kMaxTopKeys = 64;

  [[nodiscard]] bool in_map() const { return top_key_ == kWeightMap; }
  /// Inside a value that means nothing to us: other top-level keys, and the members of metadata.
  [[nodiscard]] bool is_ignored() const {
    return !in_map() && (depth_ >= 2 || (depth_ == 1 && top_key_ != kMetadataName));
  }
  [[noreturn]] void wrong_type() const {
    if (depth_ == 0) throw corrupt_index("is not a JSON object");
    if (depth_ == 1) throw corrupt_index(fmt::format("{} is not an object", top_key_));
    throw corrupt_index("weight_map has a value that is not a string").in_tensor(key_);
  }

  CheckpointIndex index_;
  Json metadata_;
  std::size_t depth_ = 0, n_metadata_ = 0;
  bool has_map_ = false;
  std::string top_key_, key_;
  std::vector<std::string> top_keys_;
};

}  // namespace

CheckpointIndex parse_checkpoint_index(std::string_view text, std::string_view name) {
  try {
    IndexReader reader;
    parse_json_events(text, name, reader);
    CheckpointIndex index = reader.take();
    index.name = name;
    index.frame.form = json_form_of(text);
    return index;
  } catch (Error& error) {
    error.in_file(name);
    throw;
  }
}

std::string checkpoint_index_text(const CheckpointIndex& index, std::uint64_t total_bytes) {
  std::vector<const std::pair<std::string, std::string>*> sorted;
  sorted.reserve(index.weight_map.size());
  for (const auto& entry : index.weight_map) sorted.push_back(&entry);
  std::ranges::sort(sorted, [](const auto* a, const auto* b) { return *a < *b; });
  Json weight_map = Json::object();
  auto& members = weight_map.get_ref<Json::object_t&>();
  members.reserve(sorted.size());
  // Not operator[]: ordered_json would look every name up among all earlier ones.
  for (const auto* entry : sorted) members.emplace_back(entry->first, entry->second);
  Json document = Json::object();
  document[std::string(kMetadataName)] = *index.frame.metadata;
  document[std::string(kMetadataName)][kTotalSize] = total_bytes;
  document[std::string(kWeightMap)] = std::move(weight_map);
  return json_text(document, index.frame.form);
}

std::string shard_file_name(std::uint64_t number, std::uint64_t total) {
  if (total == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", number, total);
}

}  // namespace ingot::formats
