#include "formats/storage/unread_codes.h"

#include <algorithm>

#include <fmt/format.h>

#include "convert/plan/passes.h"

namespace ingot::convert {

void keep_unread_codes(Plan& plan) {
  const formats::Checkpoint& source = plan.source;
  const auto codes = formats::unread_codes(source, [&](const formats::LogicalTensor& tensor) {
    return any_matches(plan.recipe.allow.unknown_tensor, tensor.name);
  });
  if (!codes) return;
  plan.is_whole_copy = true;
  const bool copies_all = std::ranges::all_of(
      plan.tensors, [](const PlannedTensor& planned) { return planned.action == Action::kCopy; });
  if (copies_all && !plan.recipe.to && !plan.is_sliced()) return;
  const formats::StoredTensor& first = source.stored()[codes->first->encoding.stored.weight()];
  const std::string others =
      codes->n == 1 ? "" : fmt::format(", as do {} more tensors", codes->n - 1);
  throw Error(ErrorCode::kUnsupported,
              "holds {} codes that this version cannot read{}{}; they can only be copied, with "
              "every file and its JSON (leave out --to, --rule and slicing; or take the checkpoint "
              "that was quantized{})",
              formats::dtype_name(first.dtype), others,
              codes->is_said ? ", and config.json says that the model is quantized" : "",
              codes->is_said ? "" : "; --allow unknown-tensor=PATTERN if they are no codes")
      .in_file(source.files()[first.file].name)
      .in_tensor(codes->first->name);
}

}  // namespace ingot::convert
