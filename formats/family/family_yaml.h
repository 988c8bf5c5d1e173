#pragma once

#include <memory>
#include <string_view>

#include "formats/family/family.h"

namespace ingot::formats {

/// A family that was read, with what its rows point to.
class FamilyTable {
 public:
  virtual ~FamilyTable() = default;
  [[nodiscard]] virtual const Family& family() const = 0;
};

/// Reads a family from YAML, as docs/families.md describes it. At most 256 KiB and 4,096 rows.
/// Throws kInvalidArgument, naming the line, for anything unknown, missing or out of range, for
/// patterns that cannot match, and for two rows that may match one name in the same layers.
/// `where` names the file. A family that begins with the rows of another takes those of the
/// program.
std::unique_ptr<const FamilyTable> parse_family(std::string_view yaml, std::string_view where);

}  // namespace ingot::formats
