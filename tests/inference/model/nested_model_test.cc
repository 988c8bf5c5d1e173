#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "tests/convert/output_tensors.h"
#include "tests/inference/model/runner.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

// A text model inside a model of several modalities is computed as the text model by itself.

namespace ingot::testing {
namespace {

TEST(NestedModel, IsComputedAsTheTextModelAlone) {
  const std::filesystem::path flat_directory =
      INGOT_SOURCE_DIR "/tests/golden/arch/deepseek_v3/checkpoint";
  TinyCheckpoint nested;
  auto& tensors = nested.files["model.safetensors"];
  for (const auto& [name, tensor] : read_output(flat_directory))
    tensors.push_back({"language_model." + name, std::string(formats::dtype_name(tensor.dtype)),
                       tensor.shape, tensor.bytes});
  tensors.push_back({"vision_tower.patch_embed.proj.weight", "BF16", {8, 4}});
  nested.config = formats::json_text(
      {{"model_type", "kimi_k25"},
       {"text_config", formats::read_json_file(flat_directory / "config.json", 1 << 20)}});
  const TempDir directory;
  nested.write(directory.path());

  const OpenedModel flat(flat_directory), inside(directory.path());
  const std::vector<std::int64_t> ids = {3, 1, 4, 1, 5, 9, 2, 6};
  const Recording wanted = run(flat.model, ids), is = run(inside.model, ids);
  EXPECT_EQ(is.logits, wanted.logits);
  EXPECT_EQ(is.hidden, wanted.hidden);
}

}  // namespace
}  // namespace ingot::testing
