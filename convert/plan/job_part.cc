#include "convert/plan/job_part.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "convert/plan/passes.h"
#include "formats/base/error.h"
#include "formats/base/printable.h"
#include "formats/base/words.h"

namespace ingot::convert {

std::string text_of(const JobPart& part) {
  return fmt::format("{}/{}", part.index, part.n);
}

JobPart parse_job_part(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash != std::string_view::npos) {
    const auto index = number_from(text.substr(0, slash)), n = number_from(text.substr(slash + 1));
    if (index && n && *index < *n) return {.index = *index, .n = *n};
  }
  throw Error(ErrorCode::kInvalidArgument, "--part '{}' is not I/N with I from 0 to N-1, e.g. 0/4",
              printable(text));
}

std::vector<std::uint32_t> dealt_parts(const Plan& plan, std::uint32_t n) {
  const auto n_files = plan.files.size();
  if (n > n_files) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "{} parts are more than the {} file(s) to deal: a part writes whole files{} (give at most "
        "{} parts{})",
        n, n_files, plan.is_sliced() ? ", those with the same tensors of all ranks together" : "",
        n_files, plan.options.layout->takes_mp ? "" : ", or smaller files with --max-shard-size");
  }
  const auto bytes_of = [&](std::uint32_t f) {
    return plan.files[f].n_bytes * plan.files[f].members.size();
  };
  std::vector<std::uint32_t> order(n_files);
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return bytes_of(a) > bytes_of(b); });
  std::vector<std::uint64_t> loads(n, 0);
  std::vector<std::uint32_t> parts(n_files, 0);
  for (const std::uint32_t f : order) {
    const auto lightest = std::min_element(loads.begin(), loads.end());
    parts[f] = static_cast<std::uint32_t>(lightest - loads.begin());
    *lightest += bytes_of(f);
  }
  return parts;
}

void deal_files(Plan& plan) {
  if (!plan.options.part) return;
  const std::vector<std::uint32_t> parts = dealt_parts(plan, plan.options.part->n);
  for (std::size_t f = 0; f < plan.files.size(); ++f)
    plan.files[f].is_here = parts[f] == plan.options.part->index;
}

}  // namespace ingot::convert
