#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include <utf8proc.h>

#include "formats/base/error.h"
#include "inference/tokenizer/characters.h"
#include "inference/tokenizer/component.h"
#include "inference/tokenizer/pre_tokenizer.h"

namespace ingot::inference {
namespace {

using NormalizerStep = std::function<std::string(std::string, TextWork&)>;

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// Marks behind one character are sorted, in quadratic time. Texts have a few of them.
constexpr std::size_t kMostMarks = 1024;

void check_marks(std::string_view text) {
  std::size_t n_marks = 0;
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint c = code_point_at(text, i);
    i += c.n_bytes;
    n_marks = is_mark(c.value) ? n_marks + 1 : 0;
    if (n_marks > kMostMarks)
      throw Error(ErrorCode::kLimit, "the text has more than 1024 accents on one character");
  }
}

std::string normal_form(std::string text, int options) {
  if (is_ascii(text)) return text;
  check_marks(text);
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (size < 0) {
    throw Error(ErrorCode::kLimit,
                std::string("the text cannot be normalized: ") + utf8proc_errmsg(size));
  }
  return {reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(size)};
}

template <int kOptions>
NormalizerStep make_normal_form(const Component& /*component*/) {
  return
      [](std::string text, TextWork& /*work*/) { return normal_form(std::move(text), kOptions); };
}

/// Appends for every character the output of `write(character, out)`.
template <class Write>
NormalizerStep character_step(Write write) {
  return [write](const std::string& text, TextWork& /*work*/) {
    std::string result;
    result.reserve(text.size());
    for (std::size_t i = 0; i < text.size();) {
      const CodePoint c = code_point_at(text, i);
      write(c.value, result);
      i += c.n_bytes;
    }
    return result;
  };
}

NormalizerStep make_lowercase(const Component& /*component*/) {
  return character_step([](char32_t c, std::string& out) {
    // The one character whose lower case is two: i and a combining dot above.
    if (c == 0x130) {
      out += "i\xCC\x87";
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  });
}

NormalizerStep make_strip_accents(const Component& /*component*/) {
  return character_step([](char32_t c, std::string& out) {
    if (!is_mark(c)) append_utf8(out, c);
  });
}

NormalizerStep make_strip(const Component& component) {
  return [left = component.boolean("strip_left", true),
          right = component.boolean("strip_right", true)](const std::string& text,
                                                          TextWork& /*work*/) {
    return std::string(without_white_space(text, left, right));
  };
}

NormalizerStep make_replace(const Component& component) {
  return make_replacement(component);
}

NormalizerStep make_prepend(const Component& component) {
  return [prefix = component.text("prepend")](const std::string& text, TextWork& /*work*/) {
    return text.empty() ? text : prefix + text;
  };
}

NormalizerStep make_byte_normalizer(const Component& /*component*/) {
  return [](const std::string& text, TextWork& /*work*/) {
    std::string result;
    append_byte_characters(text, result);
    return result;
  };
}

constexpr std::array<ComponentRow<NormalizerStep (*)(const Component&)>, 10> kNormalizerRows{{
    {"ByteLevel", &make_byte_normalizer},
    {"Lowercase", &make_lowercase},
    {"NFC", &make_normal_form<UTF8PROC_COMPOSE>},
    {"NFD", &make_normal_form<UTF8PROC_DECOMPOSE>},
    {"NFKC", &make_normal_form<UTF8PROC_COMPOSE | UTF8PROC_COMPAT>},
    {"NFKD", &make_normal_form<UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT>},
    {"Prepend", &make_prepend},
    {"Replace", &make_replace},
    {"Strip", &make_strip},
    {"StripAccents", &make_strip_accents},
}};

}  // namespace

Normalizer Normalizer::parse(const formats::Json* value) {
  Normalizer result;
  result.steps_ = make_steps(kNormalizerRows, value, "normalizer", "normalizers");
  return result;
}

std::string Normalizer::apply(std::string text, TextWork& work) const {
  for (const NormalizerStep& step : steps_) {
    text = step(std::move(text), work);
    work.require_size(text.size());
    work.look();
  }
  return text;
}

}  // namespace ingot::inference
