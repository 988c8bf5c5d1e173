#pragma once

#include <string>

#include "inference/parallel/comm.h"

namespace ingot::cli {

/// What a rank sent to others, how long it waited for them, and which part of the time that
/// exchanges took was hidden by work, in one line.
std::string traffic_summary(const inference::TrafficByCollective& traffic);

/// The same by layer and collective, a JSON object in each line: collectives of a layer first, by
/// layer, then those of the whole step.
std::string traffic_lines(const inference::TrafficByCollective& traffic);

}  // namespace ingot::cli
