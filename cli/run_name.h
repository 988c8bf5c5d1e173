#pragma once

#include "convert/job/claim.h"

namespace ingot::cli {

/// This process, as another run that wants the same output will read of it.
convert::RunName this_run();

}  // namespace ingot::cli
