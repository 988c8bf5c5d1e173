#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "formats/family/family.h"

namespace ingot::formats {

/// A name of some releases, and that of the family, as engines read it; or, with a dot at the end,
/// how names begin. `{layer}` is any number, the same in both.
struct NameAlias {
  std::string stored, meant;
};

/// A family that was read, with the objects that its rows point to.
class FamilyTable {
 public:
  virtual ~FamilyTable() = default;
  [[nodiscard]] virtual const Family& family() const = 0;
  /// Beginnings of names that are read, and written, as others.
  [[nodiscard]] virtual std::span<const NameAlias> aliases() const = 0;
  /// The meaning of absent keys of the text model's config (key_defaults.h); null: the usual one.
  [[nodiscard]] virtual const Json& defaults() const = 0;
};

/// Reads a family from YAML, as docs/families.md describes it. At most 256 KiB and 4,096 rows.
/// Throws kInvalidArgument, naming the line, for anything unknown, missing or out of range, for
/// patterns that cannot match, and for two rows that may match one name in the same layers.
/// `where` names the file. A family that begins with the rows of another takes those of the
/// program.
std::unique_ptr<const FamilyTable> parse_family(std::string_view yaml, std::string_view where);

/// FamilyTable::aliases of a family that find_family() and its like return.
std::span<const NameAlias> aliases_of(const Family& family);
/// FamilyTable::defaults of such a family.
JsonValue defaults_of(const Family& family);

/// The config with what the family says of absent keys.
ModelConfig config_of(const Family& family, const ModelConfig& config);

}  // namespace ingot::formats
