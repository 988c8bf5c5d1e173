#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json_fwd.h"
#include "inference/tokenizer/text_work.h"

namespace ingot::inference {

/// One step of decoding. Tokens' texts go in at one end of a chain of stages and text comes out at
/// the other. A token may come in chunks, cut between characters, the last of which ends it; so a
/// stage that joins everything to one token need not wait for its end.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  /// Sets the stage that gets the results, before the first push; it must outlive this.
  void set_next(DecodeStage* next) { next_ = next; }
  virtual void push(std::string_view chunk, bool ends_token) = 0;
  /// Ends the tokens: sends on the text that is held back.
  virtual void finish() {}

 protected:
  void send(std::string_view chunk, bool ends_token) { next_->push(chunk, ends_token); }

 private:
  DecodeStage* next_ = nullptr;
};

/// Turns the texts of tokens into text. Types: BPEDecoder, ByteFallback, ByteLevel, Fuse,
/// Metaspace, Replace, Strip, and Sequence; without any, tokens are joined by spaces.
class Decoder {
 public:
  /// `value` is the component of tokenizer.json, null for none.
  static Decoder parse(const formats::Json* value);

  using MakeStage = std::function<std::unique_ptr<DecodeStage>(TextWork& work)>;
  /// How to make the stages of a chain, in order; their work counts as that of `work`.
  [[nodiscard]] const std::vector<MakeStage>& stages() const { return stages_; }

 private:
  std::vector<MakeStage> stages_;
};

/// The state of decoding one text. REQUIRES: the decoder outlives it.
class DecodeChain {
 public:
  explicit DecodeChain(const Decoder& decoder);

  /// The text that this token completes, which is valid UTF-8. Throws as TextWork does for all
  /// tokens together.
  std::string push(std::string_view token);
  /// The text that was held back; the chain is at its end.
  std::string finish();

 private:
  std::unique_ptr<TextWork> work_;
  std::vector<std::unique_ptr<DecodeStage>> stages_;
  std::unique_ptr<std::string> text_;  // the output of the last stage
};

}  // namespace ingot::inference
