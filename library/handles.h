#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ingot/ingot.h>

#include "formats/checkpoint/checkpoint.h"

// The handles of the C interface.

struct ingot_checkpoint {
  std::shared_ptr<const ingot::formats::Checkpoint> source;
  /// By file: where it is. Empty where stored tensors are no stretches of files as they are.
  std::vector<std::string> paths;
};
