#include "formats/storage/unread_codes.h"

#include <algorithm>

#include <fmt/format.h>

#include "convert/plan/passes.h"
#include "formats/checkpoint/promised_tensors.h"
#include "formats/config/config_meaning.h"
#include "formats/config/nested_config.h"
#include "formats/json/json.h"

namespace ingot::convert {
namespace {

// Values under a transform are no weights of the model without it.
void refuse_transformed(const formats::ModelConfig& config) {
  const formats::Json& block = formats::quantization_block(config);
  const formats::Json& transforms = formats::json_member(block, "transform_config");
  const formats::Json& groups = formats::json_member(transforms, "config_groups");
  if (formats::says_nothing(transforms) || (groups.is_object() && groups.empty())) return;
  throw Error(ErrorCode::kUnsupported,
              "quantization_config.transform_config says that weights are stored under transforms "
              "(Hadamard's or others), which engines undo as they compute and an output in another "
              "form would lack: it can only be copied (leave out --to and --rule, or take the "
              "checkpoint that was transformed)")
      .in_file("config.json");
}

}  // namespace

void refuse_unknown(const Plan& plan) {
  if (!plan.recipe.to) return;
  ErrorList faults;
  formats::refuse_unknown_weights(
      plan.source,
      [&](const formats::LogicalTensor& tensor) {
        return any_matches(plan.recipe.allow.unknown_tensor, tensor.name) ||
               plan.recipe.decide(tensor).rule != nullptr;
      },
      faults);
  faults.throw_if_any();
}

void keep_unread_codes(Plan& plan) {
  const formats::Checkpoint& source = plan.source;
  const bool copies_all = std::ranges::all_of(
      plan.tensors, [](const PlannedTensor& planned) { return planned.action == Action::kCopy; });
  if (!copies_all) refuse_transformed(source.config());
  const auto codes = formats::unread_codes(source, [&](const formats::LogicalTensor& tensor) {
    return any_matches(plan.recipe.allow.unknown_tensor, tensor.name);
  });
  if (!codes) return;
  plan.is_whole_copy = true;
  // The JSON of one checkpoint tells nothing of another's codes.
  const bool is_copy = copies_all && plan.recipe.choices.kv_scales == nullptr &&
                       plan.recipe.choices.composed == nullptr;
  if (is_copy && !plan.recipe.to && !plan.is_sliced()) return;
  const formats::StoredTensor& first = source.stored()[codes->first->encoding.stored.weight()];
  const std::string others =
      codes->n == 1 ? "" : fmt::format(", as do {} more tensors", codes->n - 1);
  throw Error(ErrorCode::kUnsupported,
              "holds {} codes that this version cannot read{}{}; they can only be copied, with "
              "every file and its JSON (leave out --to, --rule, --kv-scales and slicing; or take "
              "the checkpoint "
              "that was quantized{})",
              formats::dtype_name(first.dtype), others,
              codes->is_said ? ", and config.json says that the model is quantized" : "",
              codes->is_said ? "" : "; --allow unknown-tensor=PATTERN if they are no codes")
      .in_file(source.files()[first.file].name)
      .in_tensor(codes->first->name);
}

}  // namespace ingot::convert
