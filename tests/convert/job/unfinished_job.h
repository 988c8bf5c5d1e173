#pragma once

#include "convert/run/memory_plan.h"
#include "tests/convert/conversion.h"
#include "tests/support/expect_error.h"

namespace ingot::testing {

/// The smallest budget in which a conversion runs on all threads: no group of tensors is kept
/// between its passes.
inline std::uint64_t least_memory(const Conversion& conversion, std::size_t threads) {
  const formats::Checkpoint source = shard::open_source(conversion.input);
  convert::Recipe recipe = conversion.recipe;
  resolve(recipe, source);
  const convert::Plan plan = plan_for(source, recipe, conversion.plan);
  std::uint64_t low = 0, high = std::uint64_t{1} << 30;
  while (high - low > 1) {
    const std::uint64_t middle = (low + high) / 2;
    try {
      (convert::plan_memory(plan, threads, middle).threads == threads ? high : low) = middle;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kLimit);
      low = middle;
    }
  }
  return high;
}

/// Ends a conversion where every tensor is staged and in the journal, and nothing is published.
inline void run_to_the_last_tensor(Conversion conversion) {
  conversion.execute.log = [](const std::string& line) {
    if (line.starts_with("all tensors durable")) throw Error(ErrorCode::kInterrupted, "here");
  };
  expect_error(ErrorCode::kInterrupted, {"here"}, [&] { conversion.run(); });
}

}  // namespace ingot::testing
