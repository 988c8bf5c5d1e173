#include "inference/tokenizer/decoder.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "inference/tokenizer/characters.h"
#include "inference/tokenizer/component.h"
#include "inference/tokenizer/split_pattern.h"

namespace ingot::inference {
namespace {

using MakeStage = Decoder::MakeStage;

/// A stage that needs whole tokens: collects the chunks of one.
class WholeTokenStage : public DecodeStage {
 public:
  void push(std::string_view chunk, bool ends_token) final {
    token_ += chunk;
    if (!ends_token) return;
    on_token(token_);
    token_.clear();
  }

 protected:
  virtual void on_token(const std::string& token) = 0;

 private:
  std::string token_;
};

/// Every token's bytes make up one text; invalid UTF-8 in it becomes U+FFFD.
class ByteLevelStage final : public WholeTokenStage {
 public:
  void finish() override {
    std::string text;
    utf8_.finish(text);
    send(text, true);
  }

 private:
  void on_token(const std::string& token) override {
    std::string bytes;
    append_token_bytes(token, bytes);
    std::string text;
    utf8_.push(bytes, text);
    send(text, false);
  }

  LossyUtf8 utf8_;
};

std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned byte = 0;
  const char* const end = token.data() + 5;
  if (std::from_chars(token.data() + 3, end, byte, 16).ptr != end) return std::nullopt;
  return static_cast<char>(byte);
}

/// A run of tokens <0xHH> becomes the text that its bytes are, or one U+FFFD for each. The whole
/// run decides, so nothing of it can be sent before it ends.
class ByteFallbackStage final : public WholeTokenStage {
 public:
  void finish() override { end_run(); }

 private:
  void on_token(const std::string& token) override {
    if (const auto byte = fallback_byte(token)) {
      run_ += *byte;
      return;
    }
    end_run();
    send(token, true);
  }

  void end_run() {
    if (run_.empty()) return;
    if (!find_invalid_utf8(run_)) {
      send(run_, true);
    } else {
      for (std::size_t i = 0; i < run_.size(); ++i) send("\xEF\xBF\xBD", true);
    }
    run_.clear();
  }

  std::string run_;
};

/// Everything becomes one token.
class FuseStage final : public DecodeStage {
 public:
  void push(std::string_view chunk, bool /*ends_token*/) override { send(chunk, false); }
  void finish() override { send({}, true); }
};

/// Takes up to `start` and `stop` times one character from the ends of every token.
class StripStage final : public DecodeStage {
 public:
  StripStage(std::string character, std::uint64_t start, std::uint64_t stop)
      : character_(std::move(character)), start_(start), stop_(stop), n_left_(start) {}

  void push(std::string_view chunk, bool ends_token) override {
    while (n_left_ > 0 && chunk.starts_with(character_)) {
      chunk.remove_prefix(character_.size());
      --n_left_;
    }
    if (!chunk.empty()) n_left_ = 0;
    std::string text;
    for (; !chunk.empty(); chunk.remove_prefix(code_point_at(chunk, 0).n_bytes)) {
      if (stop_ > 0 && chunk.starts_with(character_)) {
        // At the end at most `stop_` characters are removed, so an earlier one can be given out.
        if (n_held_ == stop_) {
          text += character_;
        } else {
          ++n_held_;
        }
        continue;
      }
      for (; n_held_ > 0; --n_held_) text += character_;
      text += chunk.substr(0, code_point_at(chunk, 0).n_bytes);
    }
    if (ends_token) {
      n_held_ = 0;
      n_left_ = start_;
    }
    send(text, ends_token);
  }

 private:
  std::string character_;
  std::uint64_t start_, stop_;
  std::uint64_t n_left_;      // characters that may still go from the start of this token
  std::uint64_t n_held_ = 0;  // characters that will go if the token ends here
};

/// Every token becomes the result of a function.
class MapStage final : public WholeTokenStage {
 public:
  using Map = std::function<std::string(const std::string&)>;
  explicit MapStage(Map map) : map_(std::move(map)) {}

 private:
  void on_token(const std::string& token) override { send(map_(token), true); }

  Map map_;
};

/// Turns the suffix that ends words into a space, and drops it in the last token.
class WordEndStage final : public WholeTokenStage {
 public:
  explicit WordEndStage(std::string suffix) : suffix_(std::move(suffix)) {}
  void finish() override {
    if (held_) send(replaced(*held_, suffix_, ""), true);
  }

 private:
  void on_token(const std::string& token) override {
    if (held_) send(replaced(*held_, suffix_, " "), true);
    held_ = token;
  }

  std::string suffix_;
  std::optional<std::string> held_;
};

/// Puts a space between any two tokens, where the file has no decoder.
class JoinStage final : public DecodeStage {
 public:
  void push(std::string_view chunk, bool ends_token) override {
    if (wants_space_) send(" ", false);
    wants_space_ = ends_token;
    send(chunk, ends_token);
  }

 private:
  bool wants_space_ = false;
};

/// The end of a chain: appends to a text.
class OutputStage final : public DecodeStage {
 public:
  explicit OutputStage(std::string& text) : text_(text) {}
  void push(std::string_view chunk, bool /*ends_token*/) override { text_ += chunk; }

 private:
  std::string& text_;
};

template <class Stage>
MakeStage make_plain(const Component& /*component*/) {
  return [](TextWork& /*work*/) { return std::make_unique<Stage>(); };
}

MakeStage strip_stage(const Component& component) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint32_t>::max();
  return [character = character_field(component, "content"),
          start = component.number("start", kMax), stop = component.number("stop", kMax)](
             TextWork& /*work*/) { return std::make_unique<StripStage>(character, start, stop); };
}

MakeStage replace_stage(const Component& component) {
  return [replacement = make_replacement(component)](TextWork& work) {
    return std::make_unique<MapStage>(
        [replacement, &work](const std::string& token) { return replacement(token, work); });
  };
}

// Marks become spaces, except in the first token, where they vanish if they had been put there.
MakeStage metaspace_stage(const Component& component) {
  const bool drops_first = component.boolean("add_prefix_space", true) &&
                           component.text("prepend_scheme", "always") != "never";
  return [mark = character_field(component, "replacement"), drops_first](TextWork& /*work*/) {
    return std::make_unique<MapStage>(
        [mark, drops = drops_first](const std::string& token) mutable {
          return replaced(token, mark, std::exchange(drops, false) ? "" : " ");
        });
  };
}

MakeStage make_word_end(const Component& component) {
  const std::string suffix = component.text("suffix");
  if (suffix.empty()) component.refuse("suffix", "is empty");
  return [suffix](TextWork& /*work*/) { return std::make_unique<WordEndStage>(suffix); };
}

constexpr std::array<ComponentRow<MakeStage (*)(const Component&)>, 7> kDecoderRows{{
    {"BPEDecoder", &make_word_end},
    {"ByteFallback", &make_plain<ByteFallbackStage>},
    {"ByteLevel", &make_plain<ByteLevelStage>},
    {"Fuse", &make_plain<FuseStage>},
    {"Metaspace", &metaspace_stage},
    {"Replace", &replace_stage},
    {"Strip", &strip_stage},
}};

}  // namespace

Decoder Decoder::parse(const formats::Json* value) {
  Decoder result;
  result.stages_ = make_steps(kDecoderRows, value, "decoder", "decoders");
  if (value == nullptr)
    result.stages_.emplace_back([](TextWork& /*work*/) { return std::make_unique<JoinStage>(); });
  return result;
}

DecodeChain::DecodeChain(const Decoder& decoder)
    : work_(std::make_unique<TextWork>()), text_(std::make_unique<std::string>()) {
  work_->pause();
  for (const MakeStage& make : decoder.stages()) stages_.push_back(make(*work_));
  stages_.push_back(std::make_unique<OutputStage>(*text_));
  for (std::size_t i = 1; i < stages_.size(); ++i) stages_[i - 1]->set_next(stages_[i].get());
}

std::string DecodeChain::push(std::string_view token) {
  work_->resume();
  work_->give(token.size());
  stages_.front()->push(token, true);
  work_->pause();
  return std::exchange(*text_, {});
}

std::string DecodeChain::finish() {
  work_->resume();
  for (const auto& stage : stages_) stage->finish();
  work_->pause();
  return std::exchange(*text_, {});
}

}  // namespace ingot::inference
