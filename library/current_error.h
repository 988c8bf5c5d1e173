#pragma once

#include "formats/base/error.h"

namespace ingot::library {

/// The exception that is being handled, whatever its type, as the one that users see.
Error current_error();

}  // namespace ingot::library
