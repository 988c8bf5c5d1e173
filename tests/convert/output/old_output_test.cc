#include "convert/output/old_output.h"

#include "convert/job/journal.h"
#include "tests/convert/conversion.h"
#include "tests/convert/targets.h"
#include "tests/support/test.h"

namespace ingot::convert {
namespace {

namespace fs = std::filesystem;
using namespace ingot::testing;

constexpr std::string_view kMine = "mine";

class OldOutput : public InTempDir {
 protected:
  [[nodiscard]] Conversion forced() const {
    Conversion conversion(small_v32(), dir_ / "out");
    conversion.execute.force = true;
    return conversion;
  }
  void write_mine(const std::string& name) const {
    fs::create_directories((dir_ / "out" / name).parent_path());
    write_text_file(dir_ / "out" / name, kMine);
  }
  [[nodiscard]] std::vector<std::string> entries() const { return top_level(dir_ / "out"); }
};

TEST_F(OldOutput, LeavesWhatAFreshRunGives) {
  copy_small(dir_ / "other");
  fs::create_directories(dir_ / "other/1_Pooling");
  for (const char* side : {"vocab.extra", "1_Pooling/config.json", "chat_template.jinja"})
    write_text_file(dir_ / "other" / side, "{}");
  Conversion(dir_ / "other", dir_ / "out").run();
  ASSERT_TRUE(fs::exists(dir_ / "out/1_Pooling/config.json"));
  forced().run();
  EXPECT_TRUE(tree(dir_ / "out") == tree(small_bf16()));
  EXPECT_EQ(entries(), top_level(small_bf16()));
}

TEST_F(OldOutput, KeepsAndNamesFilesThatNoManifestLists) {
  Conversion(small_v32(), dir_ / "out").run();
  const std::vector<std::string> mine = {"adapter_model.safetensors", "consolidated.safetensors",
                                         "docs/notes.txt", "my.safetensors",
                                         "rank-00007-of-00008/config.json"};
  for (const std::string& name : mine) {
    write_mine(name);
    const auto before = tree(dir_ / "out");
    expect_error(ErrorCode::kExists, {"no manifest there lists", "'" + name + "'"},
                 [&] { forced().run(); });
    EXPECT_TRUE(tree(dir_ / "out") == before) << name;
    fs::remove_all(dir_ / "out" / *fs::path(name).begin());
  }
  for (const std::string& name : mine) write_mine(name);
  write_mine("zzz");
  expect_error(ErrorCode::kExists, {"'adapter_model.safetensors'", "and 1 more"},
               [&] { forced().run(); });
}

TEST_F(OldOutput, WithoutAManifestTakesNamesOfCheckpoints) {
  for (const char* name :
       {"model-00009-of-00009.safetensors", "model.safetensors.index.json", "config.json"})
    write_mine(name);
  forced().run();
  EXPECT_TRUE(tree(dir_ / "out") == tree(small_bf16()));
  fs::remove(dir_ / "out/ingot.json");
  write_mine("consolidated.safetensors");
  expect_error(ErrorCode::kExists, {"consolidated.safetensors"}, [&] { forced().run(); });
}

TEST_F(OldOutput, MayBeAPublicationThatWasCut) {
  copy_small(dir_ / "other");
  write_text_file(dir_ / "other/only_there.json", "{}");
  Conversion other(dir_ / "other", dir_ / "finished");
  other.run();
  other.output = dir_ / "out";
  const auto source = formats::Checkpoint::open(dir_ / "other");
  Recipe recipe = other.recipe;
  resolve(recipe, source);
  const auto names = publish_order(plan_for(source, recipe));
  for (const std::size_t renamed : {std::size_t{1}, names.size() - 1, names.size()}) {
    fs::remove_all(dir_ / "out");
    const OutputPaths paths = stage_finished(other, dir_ / "finished");
    for (std::size_t i = 0; i < renamed; ++i)
      fs::rename(paths.staged / names[i], paths.output / names[i]);
    Journal::append_to(paths.journal, *Journal::read(paths.journal))
        .add_publishing(false, false, false, names);
    // Killed, and continued.
    Conversion conversion = forced();
    ASSERT_TRUE(run_stopped(conversion, 100));
    conversion.execute.force = false;
    conversion.execute.resume = true;
    conversion.run();
    EXPECT_TRUE(tree(dir_ / "out") == tree(small_bf16())) << renamed;
  }
}

TEST_F(OldOutput, FilesThatCameDuringTheJobStay) {
  for (const bool force : {false, true}) {
    SCOPED_TRACE(force);
    fs::remove_all(dir_ / "out");
    Conversion conversion(small_v32(), dir_ / "out");
    if (force) conversion.run();
    conversion.execute.force = force;
    const std::string name = force ? "notes.txt" : "config.json";
    conversion.execute.phase = [&](std::string_view phase) {
      if (phase == "publishing") write_mine(name);
    };
    expect_error(ErrorCode::kExists, {name}, [&] { conversion.run(); });
    EXPECT_EQ(read_text_file(dir_ / "out" / name, 100), kMine);
    fs::remove(dir_ / "out" / name);
    conversion.execute.phase = {};
    conversion.execute.force = false;
    conversion.execute.resume = true;
    conversion.run();
    EXPECT_TRUE(tree(dir_ / "out") == tree(small_bf16()));
  }
}

TEST_F(OldOutput, NeverReachesThroughLinks) {
  copy_small(dir_ / "other");
  fs::create_directories(dir_ / "other/1_Pooling");
  write_text_file(dir_ / "other/1_Pooling/config.json", "{}");
  Conversion(dir_ / "other", dir_ / "out").run();
  fs::rename(dir_ / "out/1_Pooling", dir_ / "elsewhere");
  fs::create_directory_symlink(dir_ / "elsewhere", dir_ / "out/1_Pooling");
  expect_error(ErrorCode::kExists, {"'1_Pooling'"}, [&] { forced().run(); });
  EXPECT_TRUE(fs::exists(dir_ / "elsewhere/config.json"));
}

}  // namespace
}  // namespace ingot::convert
