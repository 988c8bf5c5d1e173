#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::convert {

struct Plan;

/// One of several runs, maybe on several hosts, that make an output together, each its own files.
struct JobPart {
  std::uint32_t index = 0;  ///< index of the part, from 0
  std::uint32_t n = 1;      ///< parts in all
  friend auto operator<=>(const JobPart&, const JobPart&) = default;
};

/// `1/4`.
std::string text_of(const JobPart& part);
/// Throws kInvalidArgument for a text other than I/N with I below N.
JobPart parse_job_part(std::string_view text);

/// The part of `n` that writes each entry of Plan::files: the largest file first, each to the part
/// that has the fewest bytes; ties by index. Every part has a file. Throws kInvalidArgument for
/// more parts than files.
std::vector<std::uint32_t> dealt_parts(const Plan& plan, std::uint32_t n);

}  // namespace ingot::convert
