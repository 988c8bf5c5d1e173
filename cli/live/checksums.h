#pragma once

#include <functional>
#include <string>

namespace ingot::cli {

/// An end point that tells digests of loaded weights.
struct LiveEndpoint {
  std::string url;           ///< http:// or https://; without a path: that of each engine in turn
  std::string token;         ///< key for the header Authorization: Bearer; empty: none
  bool allows_http = false;  ///< plain HTTP to other hosts than this one
  std::uint64_t timeout_seconds = 900;
  std::function<bool()> stop_requested;
};

/// Asks for checksums, and returns the answer. No other request can be made: both engines' end
/// points also write zeros or random numbers into all weights. By libcurl, which is loaded here.
/// Follows no redirect, and uses no proxy. Throws kInvalidArgument for an address that is none of
/// these, or plain HTTP elsewhere, kLimit for an answer that is too long, kIo for one that does not
/// come, kUnsupported for an error of the engine, and without libcurl.
std::string ask_checksums(const LiveEndpoint& endpoint);

}  // namespace ingot::cli
