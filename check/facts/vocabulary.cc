#include "check/facts/vocabulary.h"

#include <string>
#include <utility>

#include "formats/base/fd.h"
#include "formats/json/json.h"

namespace ingot::check {
namespace {

constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{256} << 20;

class VocabularySearch final : public formats::JsonEvents {
 public:
  explicit VocabularySearch(Vocabulary& found) : found_(found) {}

  void begin_object() override { open(true); }
  void begin_array() override { open(false); }
  void end() override { keys_.pop_back(); }
  void key(std::string_view name) override {
    note();
    keys_.back() = name;
  }
  void value(formats::Json&& scalar) override {
    note();
    if (keys_.size() == 3 && keys_[0] == "added_tokens" && keys_[2] == "id" &&
        scalar.is_number_unsigned())
      found_.added_ids.push_back(scalar.get<std::uint64_t>());
  }

 private:
  void open(bool is_object) {
    note();
    if (keys_.size() == 1 && keys_[0] == "model") found_.has_model = is_object;
    keys_.emplace_back();
  }
  // Something is inside of model.vocab.
  void note() {
    found_.has_entries =
        found_.has_entries || (keys_.size() == 3 && keys_[0] == "model" && keys_[1] == "vocab");
  }

  Vocabulary& found_;
  std::vector<std::string> keys_;  // of each open object the last one; of a list none
};

}  // namespace

Vocabulary read_vocabulary(const std::filesystem::path& path, std::string_view bare) {
  Vocabulary found;
  try {
    VocabularySearch search(found);
    formats::parse_json_events(read_text_file(path, kMaxTokenizerBytes), bare, search);
  } catch (const Error& error) {
    found.fault = error;
  }
  return found;
}

}  // namespace ingot::check
