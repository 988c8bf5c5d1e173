#include "tests/support/thread_order.h"

#include <condition_variable>
#include <mutex>

#include "convert/job/journal.h"
#include "convert/output/output_directory.h"
#include "formats/base/parallel.h"
#include "tests/convert/run/window_job.h"
#include "tests/convert/targets.h"
#include "tests/support/test.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;
namespace fs = std::filesystem;

constexpr std::uint64_t kSlow = 2'000;

// Tries seeds, each with a note of how it is repeated.
template <typename Try>
void for_seeds(std::uint64_t n, const Try& try_seed) {
  const char* only = std::getenv("INGOT_SEED");
  const std::uint64_t first = only != nullptr ? std::stoull(only) : 1;
  for (std::uint64_t seed = first; seed < first + (only != nullptr ? 1 : n); ++seed) {
    try {
      try_seed(seed);
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
    if (::testing::Test::HasFailure()) FAIL() << "INGOT_SEED=" << seed << " repeats this order";
  }
}

// The harness itself.

// Two threads add to a number without a lock: how much is lost.
int lost_additions(std::uint64_t seed, std::uint64_t* trace = nullptr) {
  ThreadOrder order({.seed = seed});
  int sum = 0;
  std::mutex point;
  run_workers(2, [&](std::size_t) {
    for (int i = 0; i < 4; ++i) {
      const int before = sum;
      const std::lock_guard lock(point);
      sum = before + 1;
    }
  });
  if (trace != nullptr) *trace = order.trace();
  return 8 - sum;
}

TEST(ThreadOrder, FindsALostAdditionAndRepeatsIt) {
  std::set<std::uint64_t> traces;
  int n_lost = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::uint64_t first = 0, second = 0;
    const int lost = lost_additions(seed, &first);
    EXPECT_EQ(lost_additions(seed, &second), lost);
    EXPECT_EQ(first, second);
    traces.insert(first);
    n_lost += lost > 0 ? 1 : 0;
  }
  EXPECT_GT(traces.size(), 15U);
  EXPECT_GT(n_lost, 5);
}

TEST(ThreadOrderDeathTest, NamesTheSeedOfADeadlock) {
  const auto wait_for_nobody = [] {
    ThreadOrder order({.seed = 7});
    std::mutex mutex;
    std::condition_variable changed;
    std::unique_lock lock(mutex);
    changed.wait(lock);
  };
  EXPECT_DEATH(wait_for_nobody(), "no thread can go on \\(seed 7");
}

TEST(ThreadOrder, TimePassesForThoseThatWait) {
  ThreadOrder order({.seed = 3});
  const auto begin = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::hours(1));
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock lock(mutex);
  EXPECT_FALSE(changed.wait_for(lock, std::chrono::hours(1), [] { return false; }));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::hours(2));
}

TEST(ThreadOrder, APowerCutLosesWhatWasNotSynced) {
  const TempDir directory;
  int n_lost = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const fs::path path = directory / std::to_string(seed);
    EXPECT_TRUE(is_cut({.seed = seed, .cut_at = 5}, [&] {
      const Fd file = Fd::open_for_writing(path, 0101);
      file.write_exact(std::as_bytes(std::span("synced")).first(6), 0);
      file.sync_data();
      file.write_exact(std::as_bytes(std::span("not")).first(3), 6);
      file.sync_data();
    }));
    const std::string text = read_text_file(path, 100);
    EXPECT_EQ(text.substr(0, 6), "synced");
    n_lost += text == "syncednot" ? 0 : 1;
  }
  EXPECT_TRUE(n_lost > 0 && n_lost < 10) << n_lost;
}

// Windows.

// Writes a job of the seed by several threads through few windows. `order` says what happens to it.
void write_windows(const ThreadOrder::Options& options) {
  std::mt19937_64 random(options.seed);
  const TempDir directory;
  const bool is_tight = random() % 2 == 0;  // one file that is synced all the time
  const Job job = random_job(static_cast<std::uint32_t>(options.seed),
                             is_tight ? 1 : 1 + random() % 4, 150'000);
  std::set<std::uint32_t> used, durable;
  std::vector<std::atomic<std::size_t>> left(job.n_items);
  for (const Range& range : job.ranges) {
    used.insert(range.item);
    ++left[range.item];
  }
  ThreadOrder order(options);
  StagedFiles staged(Folder::open(directory.path()));
  const std::size_t n_threads = 1 + random() % 4;
  WindowWriter writer(staged, job.files,
                      {.window_bytes = kWindow,
                       .max_windows = 2 * n_threads + random() % 3,
                       .writer_threads = is_tight ? 2 : random() % 3,
                       .most_waiting_bytes = (random() % 4) * kWindow,
                       .max_open_files = n_threads + 2 + random() % 3,
                       .sync_bytes = is_tight ? 1 : 1 + random() % 200'000},
                      [&](const std::vector<std::uint32_t>& items) {
                        const std::set<std::uint32_t> now(items.begin(), items.end());
                        for (const Range& range : job.ranges) {
                          EXPECT_TRUE(!now.contains(range.item) ||
                                      order.is_synced(directory / job.files[range.file].name,
                                                      range.offset, range.n_bytes));
                        }
                        for (const std::uint32_t item : items)
                          EXPECT_TRUE(durable.insert(item).second) << item << " comes twice";
                      });
  std::atomic<std::size_t> next = 0;
  try {
    run_workers(n_threads, [&](std::size_t) {
      for (std::size_t i = next++; i < job.ranges.size(); i = next++) {
        write_range(writer, job.ranges[i]);
        if (--left[job.ranges[i].item] == 0) writer.finish_item(job.ranges[i].item);
      }
      writer.help();
    });
    writer.finish();
  } catch (const Error& error) {
    EXPECT_NE(order.failed(), "") << error.what();
    return;
  }
  EXPECT_EQ(order.failed(), "") << "was not seen";
  EXPECT_EQ(durable, used);
  expect_files(directory, job);
}

void write_whole(std::uint64_t seed) {
  write_windows({.seed = seed, .direct_io = seed % 2 == 0});
}

void write_with_fault(std::uint64_t seed) {
  write_windows(
      {.seed = seed, .fail_at = 1 + std::mt19937_64(seed + 1)() % 30, .direct_io = seed % 2 == 0});
}

TEST(WindowOrder, ReportsEachItemOnceWhenItIsSynced) {
  for_seeds(150, write_whole);
}

TEST(WindowOrder, ReportsEachFaultOfTheDisk) {
  for_seeds(150, write_with_fault);
  // Found among 20,000: a thread reported items after the sync of another one had failed.
  write_with_fault(4885);
}

TEST(WindowOrder, SlowSeedsOfBoth) {
  for_seeds(10 * kSlow, [](std::uint64_t seed) {
    write_whole(seed);
    write_with_fault(seed);
  });
}

// Conversions.

// A model of few small tensors, in files of which each holds several.
const fs::path& source_model() {
  static const TempDir directory;
  static const fs::path path = [] {
    formats::write_synthetic_checkpoint(directory / "model",
                                        {.family = formats::find_family("deepseek_v3"),
                                         .size = formats::SynthSize::kTiny,
                                         .layers = 2,
                                         .dense_layers = 1,
                                         .mtp_layers = 0,
                                         .experts = 2,
                                         .hidden = 128,
                                         .moe_intermediate = 128,
                                         .intermediate = 128,
                                         .vocab = 32,
                                         .heads = 2,
                                         .shards = 4,
                                         .split_scale = true});
    return directory / "model";
  }();
  return path;
}

// A job of the seed.
Conversion conversion_of(std::uint64_t seed, const fs::path& from, const fs::path& to) {
  Conversion conversion(from, to);
  if (seed % 2 == 0) conversion.recipe.to = formats::SchemeId::kNvfp4;
  conversion.recipe.allow.add("engine-refuses=*");
  conversion.plan.shards.max_shard_bytes = 100'000;
  return conversion;
}

// The bytes that one thread writes.
const std::map<std::string, std::string>& expected_of(std::uint64_t seed) {
  static const TempDir directory;
  static std::map<std::uint64_t, std::map<std::string, std::string>> trees;
  const auto [found, is_new] = trees.try_emplace(seed % 2);
  if (is_new) {
    const fs::path output = directory / std::to_string(seed % 2);
    conversion_of(seed, source_model(), output).run();
    found->second = tree(output);
  }
  return found->second;
}

class ConversionOrder : public InTempDir {
 protected:
  Conversion job(std::uint64_t seed, bool consume = false) {
    if (consume) fs::copy(source_model(), dir_ / "in");
    Conversion job = conversion_of(seed, consume ? dir_ / "in" : source_model(), dir_ / "out");
    job.execute.threads = 2 + seed % 3;
    job.execute.consume_source = consume;
    return job;
  }
  static ThreadOrder::Options order(std::uint64_t seed) {
    return {.seed = seed, .direct_io = seed % 3 == 0};
  }
  // Goes on after `seed` ended the job somewhere: nothing that the journal names is done again.
  void resume(Conversion job, std::uint64_t seed) {
    job.execute.resume = true;
    if (!is_done_without_source({job.input, {}}, job.output, job.recipe, job.plan, job.execute)) {
      const ThreadOrder drawn(order(seed + kOther));
      EXPECT_EQ(job.run().tensors_redone, 0U);
    }
    EXPECT_TRUE(tree(job.output) == expected_of(seed));
    clear();
  }
  void clear() {
    fs::remove_all(dir_ / "in");
    fs::remove_all(dir_ / "out");
  }
  // Points and changes of the job of a seed, in another order.
  static std::pair<std::uint64_t, std::uint64_t> size_of(std::uint64_t seed) {
    static std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> sizes;
    const auto [found, is_new] = sizes.try_emplace(seed % 2);
    if (is_new) {
      const TempDir directory;
      Conversion other = conversion_of(seed, source_model(), directory / "out");
      other.execute.threads = 3;
      const ThreadOrder drawn({.seed = 1});
      other.run();
      found->second = {drawn.n_points(), drawn.n_changes()};
    }
    return found->second;
  }

  void write(std::uint64_t seed) {
    Conversion whole = job(seed);
    const ThreadOrder drawn(order(seed));
    whole.run();
    EXPECT_TRUE(tree(whole.output) == expected_of(seed));
    clear();
  }
  void cut(std::uint64_t seed, bool consume) {
    std::mt19937_64 random(seed);
    Conversion cut = job(seed, consume);
    const std::uint64_t n_points = size_of(seed).first;
    (void)expected_of(seed);
    ThreadOrder::Options drawn = order(seed);
    drawn.cut_at = 1 + random() % n_points;
    if (is_cut(drawn, [&] { cut.run(); }) && random() % 2 == 0) {
      drawn.seed += 2 * kOther;
      drawn.cut_at = 1 + random() % n_points;
      cut.execute.resume = true;
      if (!is_done_without_source({cut.input, {}}, cut.output, cut.recipe, cut.plan, cut.execute))
        is_cut(drawn, [&] { cut.run(); });
    }
    resume(cut, seed);
  }
  void fail(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    Conversion failing = job(seed);
    ThreadOrder::Options drawn = order(seed);
    drawn.fail_at = 1 + random() % size_of(seed).second;
    try {
      const ThreadOrder failed(drawn);
      failing.run();
      EXPECT_EQ(failed.failed(), "") << "was not seen";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
    }
    resume(failing, seed);
  }
  void stop(std::uint64_t seed) {
    const Conversion stopped = job(seed);
    {
      const ThreadOrder drawn(order(seed));
      run_stopped(stopped, static_cast<int>(std::mt19937_64(seed)() % 150));
    }
    resume(stopped, seed);
  }

  static constexpr std::uint64_t kOther = 1'000'000;
};

TEST_F(ConversionOrder, ChangesNoByte) {
  for_seeds(10, [&](std::uint64_t seed) { write(seed); });
}

TEST_F(ConversionOrder, ResumesAfterAPowerCut) {
  for_seeds(15, [&](std::uint64_t seed) { cut(seed, false); });
}

TEST_F(ConversionOrder, LosesNothingOfAConsumedSource) {
  for_seeds(15, [&](std::uint64_t seed) { cut(seed, true); });
}

TEST_F(ConversionOrder, ResumesAfterAFaultOfTheDisk) {
  for_seeds(15, [&](std::uint64_t seed) { fail(seed); });
}

TEST_F(ConversionOrder, ResumesAfterAStop) {
  for_seeds(10, [&](std::uint64_t seed) { stop(seed); });
}

TEST_F(ConversionOrder, SlowSeedsOfAllOfThese) {
  for_seeds(kSlow, [&](std::uint64_t seed) {
    write(seed);
    cut(seed, false);
    cut(seed, true);
    fail(seed);
    stop(seed);
  });
}

}  // namespace
}  // namespace ingot::convert
