#pragma once

#include "formats/checkpoint/checkpoint.h"
#include "tests/support/bytes.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::testing {

/// A checkpoint of any tensors, with any names.
class Crafted {
 public:
  explicit Crafted(const std::vector<TinyTensor>& tensors, const std::string& config = "") {
    TinyCheckpoint checkpoint;
    checkpoint.config = config;
    checkpoint.files["model.safetensors"] = tensors;
    checkpoint.write(directory_ / "m");
  }
  [[nodiscard]] formats::Checkpoint open() const {
    return formats::Checkpoint::open(directory_ / "m", {.family = "generic"});
  }

 private:
  TempDir directory_;
};

}  // namespace ingot::testing
