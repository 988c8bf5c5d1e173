#include "inference/tokenizer/character_property.h"

#include <array>
#include <cstddef>
#include <memory>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace ingot::inference {
namespace {

constexpr std::size_t kMaxNameBytes = 64;

// Long names of general categories, which PCRE2 does not know, and "digit", Oniguruma's name of Nd.
constexpr std::array<std::pair<std::string_view, std::string_view>, 40> kLongCategories{{
    {"other", "C"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"unassigned", "Cn"},
    {"privateuse", "Co"},
    {"surrogate", "Cs"},
    {"letter", "L"},
    {"casedletter", "L&"},
    {"lowercaseletter", "Ll"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"titlecaseletter", "Lt"},
    {"uppercaseletter", "Lu"},
    {"mark", "M"},
    {"combiningmark", "M"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"nonspacingmark", "Mn"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"digit", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"closepunctuation", "Pe"},
    {"finalpunctuation", "Pf"},
    {"initialpunctuation", "Pi"},
    {"otherpunctuation", "Po"},
    {"openpunctuation", "Ps"},
    {"symbol", "S"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"mathsymbol", "Sm"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"spaceseparator", "Zs"},
}};
constexpr std::array<std::string_view, 37> kShortCategories{
    "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",
    "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe", "Pf", "Pi",
    "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs"};

std::string lower(std::string_view name) {
  std::string result;
  for (const char c : name) result += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

bool compiles(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE at = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr),
      &pcre2_code_free);
  return code != nullptr;
}

}  // namespace

std::optional<std::string> pcre2_property(std::string_view name) {
  if (name.size() > kMaxNameBytes) return std::nullopt;
  std::string plain;
  for (const char c : lower(name)) {
    if (c == ' ' || c == '_' || c == '-') continue;
    if ((c < 'a' || c > 'z') && (c < '0' || c > '9')) return std::nullopt;
    plain += c;
  }
  if (plain.empty()) return std::nullopt;
  for (const std::string_view category : kShortCategories)
    if (lower(category) == plain) return std::string(category);
  for (const auto& [long_name, category] : kLongCategories)
    if (long_name == plain) return std::string(category);
  for (const std::string& spelling : {"sc:" + plain, plain})
    if (compiles("\\p{" + spelling + "}")) return spelling;
  return std::nullopt;
}

}  // namespace ingot::inference
