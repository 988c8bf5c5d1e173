#include "convert/job/source_consumer.h"
#include "convert/plan/repair.h"
#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/convert/targets.h"
#include "tests/support/test.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;
namespace fs = std::filesystem;

std::size_t n_weights(const fs::path& folder) {
  return static_cast<std::size_t>(std::ranges::count_if(
      top_level(folder), [](const std::string& name) { return name.ends_with(".safetensors"); }));
}

class Consumed : public InTempDir {
 protected:
  Consumed() : conversion_(copy_small(dir_ / "in"), dir_ / "out") {
    conversion_.execute.consume_source = true;
    conversion_.execute.read_back = true;
  }
  [[nodiscard]] bool is_done(const Conversion& job, const std::string& family = "") const {
    return is_done_without_source({job.input, family}, job.output, job.recipe, job.plan,
                                  job.execute);
  }
  Conversion conversion_;
};

TEST_F(Consumed, NothingBeforeTheOutputIsReadBack) {
  const auto before = tree(dir_ / "in");
  bool was_whole = false;
  conversion_.execute.log = [&](const std::string& line) {
    if (line != "reading back the output") return;
    was_whole = n_weights(dir_ / "in") == 2;
    const fs::path staged = OutputPaths(dir_ / "out").staged / "model-00002-of-00002.safetensors";
    std::string bytes = read_text_file(staged, 1 << 30);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_text_file(staged, bytes);
  };
  expect_error(ErrorCode::kMismatch, {"model-00002", "is read back with other bytes"},
               [&] { conversion_.run(); });
  EXPECT_TRUE(was_whole);
  EXPECT_TRUE(tree(dir_ / "in") == before);
  expect_unpublished(dir_ / "out");
  conversion_.execute.log = nullptr;
  conversion_.execute.resume = true;
  conversion_.run();
  EXPECT_TRUE(tree(small_bf16()) == tree(dir_ / "out"));
  EXPECT_EQ(n_weights(dir_ / "in"), 0U);
}

TEST_F(Consumed, KeepsWhatHasChangedSinceItWasRead) {
  const OutputPaths paths = stage_finished(conversion_, small_bf16());
  Journal::append_to(paths.journal, *Journal::read(paths.journal))
      .add_publishing(false, false, true);
  fs::last_write_time(dir_ / "in/model-00002-of-00002.safetensors",
                      fs::file_time_type::clock::now() + std::chrono::seconds(5));
  conversion_.execute.resume = true;
  EXPECT_EQ(conversion_.run().warnings.size(), 1U);
  EXPECT_TRUE(tree(small_bf16()) == tree(dir_ / "out"));
  EXPECT_EQ(n_weights(dir_ / "in"), 2U);
}

TEST_F(Consumed, AndPublishedIsDoneForAResumedRun) {
  conversion_.run();
  conversion_.execute.resume = true;
  fs::create_directories(OutputPaths(dir_ / "out").swept / "consumed");
  EXPECT_TRUE(is_done(conversion_));
  EXPECT_FALSE(fs::exists(OutputPaths(dir_ / "out").swept));
  Conversion other = conversion_;
  other.recipe.to = formats::SchemeId::kInt8Channel;
  expect_error(ErrorCode::kMismatch, {"--to bf16 (now int8"}, [&] { (void)is_done(other); });
  other = conversion_;
  other.execute.consume_source = false;
  EXPECT_TRUE(is_done(other));
  other.execute.gate = formats::Json{{"verify", "weights"}};
  expect_error(ErrorCode::kInvalidArgument, {"cannot be compared", "leave out --verify"},
               [&] { (void)is_done(other); });
  other = conversion_;
  other.output = dir_ / "elsewhere";
  EXPECT_FALSE(is_done(other));
  other = conversion_;
  other.recipe.to.reset();
  EXPECT_TRUE(is_done(other)) << "left open, it may be what it was";
  EXPECT_TRUE(is_done(conversion_, "deepseek_v32"));
  expect_error(ErrorCode::kMismatch, {"--family deepseek_v32 (now qwen3_moe"},
               [&] { (void)is_done(conversion_, "qwen3_moe"); });
  // A run without --consume-source that ended the job left what it had not deleted yet.
  copy_small(dir_ / "again");
  fs::rename(dir_ / "again/model-00002-of-00002.safetensors",
             dir_ / "in/model-00002-of-00002.safetensors");
  EXPECT_TRUE(is_done(conversion_));
  write_text_file(dir_ / "in/config.json", "{}");
  EXPECT_FALSE(is_done(conversion_));
}

TEST_F(Consumed, NotForExpertsThatAreStacked) {
  conversion_.recipe.choices.experts = ExpertChoice::kStacked;
  conversion_.recipe.allow.add("engine-refuses=*");
  expect_error(ErrorCode::kUnsupported, {"put together from several files", "--experts keep"},
               [&] { conversion_.run(); });
}

TEST_F(Consumed, NotByARepair) {
  const auto source = formats::Checkpoint::open(dir_ / "in");
  conversion_.recipe = {};
  conversion_.recipe.choices.repair =
      std::make_shared<const RepairFacts>(read_repair_facts(source));
  expect_error(ErrorCode::kUnsupported, {"--consume-source", "repair"}, [&] { conversion_.run(); });
  EXPECT_EQ(n_weights(dir_ / "in"), 2U);
}

TEST(RepairedLinks, AreNotWrittenByAnotherRun) {
  const TempDir dir;
  copy_small(dir / "in");
  const auto before = tree(dir / "in");
  const auto source = formats::Checkpoint::open(dir / "in");
  Conversion repair(dir / "in", dir / "out");
  repair.recipe = {};
  repair.recipe.choices.dialect = std::string(source.dialect().name);
  repair.recipe.choices.repair = std::make_shared<const RepairFacts>(read_repair_facts(source));
  repair.plan.links = true;
  repair.execute.log = [](const std::string& line) {
    if (line.starts_with("all tensors durable")) throw Error(ErrorCode::kInterrupted, "here");
  };
  expect_error(ErrorCode::kInterrupted, {"here"}, [&] { repair.run(); });
  repair.execute.log = nullptr;
  Conversion writing = repair;
  writing.plan.links = false;
  writing.execute.resume = true;
  expect_error(ErrorCode::kMismatch, {"--links yes (now no)"}, [&] { writing.run(); });
  repair.execute.resume = true;
  repair.run();
  expect_error(ErrorCode::kMismatch, {"--links yes (now no)"}, [&] { writing.run(); });
  EXPECT_TRUE(tree(dir / "in") == before);
}

}  // namespace
}  // namespace ingot::convert
