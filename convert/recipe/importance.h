#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/recipe/source_stamps.h"
#include "convert/recipe/statistics_header.h"
#include "formats/base/hash.h"

namespace ingot::convert {

/// How much the columns of weights matter: mean squares of what they are multiplied with, from a
/// file of activation statistics. The values stay in the file, which for a large model is larger
/// than memory should be.
class Importance {
 public:
  /// Looks at every value once. Throws kCorrupt, collected, for what read_statistics_header refuses
  /// and for mean squares that are negative or not finite.
  static Importance read(const std::filesystem::path& path);

  /// Mean squares of a module, one per column of its weight; nothing for modules not in the file.
  [[nodiscard]] std::optional<StatisticPlace> find(std::string_view module) const;
  /// Safe from many threads.
  [[nodiscard]] std::vector<float> weights(const StatisticPlace& place) const;
  /// The hash of the file, for the record.
  [[nodiscard]] const Hash128& hash() const { return hash_; }
  [[nodiscard]] StampedFile file() const { return {file_.path(), stamp_}; }
  [[nodiscard]] const FilledExperts& filled() const { return filled_; }

 private:
  Fd file_;
  FileStamp stamp_;
  std::map<std::string, StatisticPlace, std::less<>> places_;
  FilledExperts filled_;
  Hash128 hash_;
};

}  // namespace ingot::convert
