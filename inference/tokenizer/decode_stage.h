#pragma once

#include <string>
#include <string_view>

namespace ingot::inference {

/// One step of decoding. Tokens' texts go in at one end of a chain of stages and text comes out at
/// the other. A token may come in chunks, cut between characters, the last of which ends it; so a
/// stage that joins everything to one token need not wait for its end.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  /// Where results go; set before the first push, and outlives this.
  void set_next(DecodeStage* next) { next_ = next; }
  virtual void push(std::string_view chunk, bool ends_token) = 0;
  /// No more comes: sends on what is held back.
  virtual void finish() {}

 protected:
  void send(std::string_view chunk, bool ends_token) { next_->push(chunk, ends_token); }

 private:
  DecodeStage* next_ = nullptr;
};

/// A stage that needs whole tokens: collects the chunks of one.
class WholeTokenStage : public DecodeStage {
 public:
  void push(std::string_view chunk, bool ends_token) final;

 protected:
  virtual void on_token(const std::string& token) = 0;

 private:
  std::string token_;
};

}  // namespace ingot::inference
