#include "verify/report/document.h"

namespace ingot::verify {

void Table::keep(const std::vector<std::size_t>& which) {
  const auto kept = [&](const auto& all) {
    std::decay_t<decltype(all)> some;
    for (const std::size_t i : which) some.push_back(all[i]);
    return some;
  };
  columns = kept(columns);
  for (std::vector<Cell>& row : rows) row = kept(row);
}

Remarks remarks_of(std::string_view kind, const std::vector<std::string>& texts) {
  Remarks remarks;
  for (const std::string& text : texts)
    remarks.push_back({.kind = std::string(kind), .text = text});
  return remarks;
}

}  // namespace ingot::verify
