#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ingot/ingot.h>

#include "convert/run/memory/memory_encoder.h"
#include "formats/checkpoint/checkpoint.h"
#include "library/conversion.h"

// The handles of the C interface.

struct ingot_checkpoint {
  std::shared_ptr<const ingot::formats::Checkpoint> source;
  /// Path of each weights file. Empty if stored tensors are not byte ranges of these files.
  std::vector<std::string> paths;
  std::string path;                    ///< the one that was opened
  ingot::formats::JsonValue settings;  ///< options of that call
};

struct ingot_plan {
  ingot::library::ConvertOptions options;
  ingot::JobOptions job;
  ingot::FlagTable table;  ///< flags of `options` and `job`
  /// Nothing where the output is finished, and its source was deleted for it.
  std::optional<ingot::library::Conversion> conversion;
  std::string json;  ///< text of ingot_plan_json()
  // For a plan made of shapes only: the model that is given, and where its bytes are held.
  std::shared_ptr<const ingot::formats::Checkpoint> given;
  ingot::convert::HeldBytes* held = nullptr;
  bool has_encoder = false;
};

struct ingot_encoder {
  using Made = std::vector<ingot::convert::EncodedTensor>;

  ingot::convert::MemoryEncoder encoder;
  mutable std::mutex mutex = {};  ///< guards the map, whose entries are each of one thread
  mutable std::map<std::thread::id, Made> made = {};

  Made& of_thread() const {
    const std::lock_guard lock(mutex);
    return made[std::this_thread::get_id()];
  }
};
