#pragma once

#include <string>

#include "formats/base/error.h"
#include "formats/json/json_fwd.h"

namespace ingot::cli {

/// A name as it is, escaped where JSON cannot hold it.
std::string json_name(const std::string& name);

/// The member `error` of JSON documents.
formats::Json error_json(const Error& error);

}  // namespace ingot::cli
