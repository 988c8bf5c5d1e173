#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "check/rules/loader_rules.h"
#include "convert/output/planned_checkpoint.h"
#include "convert/run/memory/memory_encoder.h"
#include "formats/base/error.h"
#include "formats/config/model_config.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "library/call.h"
#include "library/handles.h"
#include "library/options/settings.h"
#include "library/plan_json.h"

namespace ingot::library {
namespace {

using formats::Checkpoint;
using formats::StoredTensor;

// In errors; there is no file of this name.
constexpr const char* kShapesName = "(shapes)";

// Reads tensors as a safetensors header has them; the places of bytes say nothing here.
std::vector<StoredTensor> stored_of(std::string_view shapes) {
  const formats::Json header = formats::parse_json(shapes, kShapesName);
  std::vector<StoredTensor> stored;
  std::uint64_t offset = 0;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const formats::JsonFields fields(entry, kShapesName, name);
    const auto dtype = formats::find_dtype(fields.text("dtype"));
    if (!dtype) fields.refuse("dtype", "is no dtype of safetensors");
    StoredTensor tensor{.name = name, .dtype = *dtype, .shape = fields.numbers("shape")};
    const auto n_bytes = formats::byte_count(*dtype, tensor.shape);
    // Sums of a model's tensors stay within 64 bits.
    if (!n_bytes || *n_bytes > std::uint64_t{1} << 50)
      fields.refuse("shape", "is too large, or fills no whole bytes");
    tensor.offset = offset;
    tensor.n_bytes = *n_bytes;
    offset += *n_bytes;
    stored.push_back(std::move(tensor));
  }
  return stored;
}

}  // namespace

convert::GivenForm given_form(const char* name, const char* dtype, const std::uint64_t* shape,
                              std::size_t n_dims, const void* bytes, std::uint64_t n_bytes) {
  require_given(dtype, "dtype");
  if (n_dims > 0) require_given(shape, "shape");
  if (n_bytes > 0) require_given(bytes, "bytes");
  const auto known = formats::find_dtype(dtype);
  if (!known) {
    throw Error(ErrorCode::kDtypeMismatch, "is given as '{}', which is no dtype of safetensors",
                dtype)
        .in_tensor(name);
  }
  return {.dtype = *known, .shape = {shape, shape + n_dims}};
}

}  // namespace ingot::library

using namespace ingot;
using namespace ingot::library;

int ingot_plan_shapes(const char* config, const char* shapes, const char* options,
                      ingot_plan** plan) {
  return call([&] {
    require_given(config, "config");
    require_given(shapes, "shapes");
    require_given(plan, "plan");
    auto made = std::make_unique<ingot_plan>();
    FlagTable table;
    declare_target(table, made->options);
    table.add(FlagGroup::kJob, {mem_limit_flag(&made->job.mem_limit)});
    take_settings(settings_of_json(text_or_empty(options)), table);
    ConversionRequest request = read_target(made->options);

    formats::Draft model;
    model.directory = kShapesName;
    model.config_text = config;
    model.config = formats::parse_model_config(config, "config.json");
    model.stored = stored_of(shapes);
    std::uint64_t n_bytes = 0;
    for (const StoredTensor& tensor : model.stored) n_bytes += tensor.n_bytes;
    auto held = std::make_unique<convert::HeldBytes>(n_bytes);
    made->held = held.get();
    model.bytes = std::move(held);
    Checkpoint opened = Checkpoint::assemble(
        std::move(model),
        {.family = made->options.family, .allow_unknown = &request.recipe.allow.unknown_tensor});
    if (&opened.bytes() != made->held) {
      throw Error(ErrorCode::kUnsupported,
                  "weights in the order of AWQ or GPTQ are converted only from files")
          .in_file(kShapesName);
    }
    auto given = std::make_shared<const Checkpoint>(std::move(opened));
    made->given = given;
    made->conversion.emplace(plan_conversion(made->options, std::move(request), given, 1));
    const convert::MemoryEncoder encoder(made->conversion->plan, given->stored(), *made->held, 0);
    formats::Json json = plan_json(made->conversion->plan);
    json["sets"] = encoder.sets();
    // A conversion refuses an output that loaders do not read; so does this, before the first
    // tensor.
    const std::vector<check::Finding> warnings =
        convert::require_loadable(made->conversion->plan, 1).warnings;
    for (const check::Finding& warning : warnings)
      json["warnings"].push_back(check::fault_json(warning));
    made->json = formats::json_text(json);
    *plan = made.release();
  });
}

int ingot_encoder_new(ingot_plan* plan, ingot_encoder** encoder) {
  return call([&] {
    require_given(plan, "plan");
    require_given(encoder, "encoder");
    if (plan->held == nullptr) {
      throw Error(ErrorCode::kUnsupported,
                  "the plan is one of files (make it of a config and shapes)");
    }
    if (std::exchange(plan->has_encoder, true))
      throw Error(ErrorCode::kExists, "the plan has an encoder (make another plan)");
    *encoder = new ingot_encoder{
        .encoder = convert::MemoryEncoder(plan->conversion->plan, plan->given->stored(),
                                          *plan->held, memory_budget(plan->job.mem_limit))};
  });
}

void ingot_encoder_free(ingot_encoder* encoder) {
  delete encoder;
}

int ingot_encoder_put(ingot_encoder* encoder, const char* name, const void* bytes, uint64_t n_bytes,
                      size_t* n_made) {
  return call([&] {
    require_given(encoder, "encoder");
    require_given(name, "name");
    require_given(n_made, "n_made");
    if (n_bytes > 0) require_given(bytes, "bytes");
    ingot_encoder::Made& made = encoder->of_thread();
    made.clear();
    made = encoder->encoder.put(name, {static_cast<const std::byte*>(bytes), n_bytes});
    *n_made = made.size();
  });
}

int ingot_encoder_put_array(ingot_encoder* encoder, const char* name, const char* dtype,
                            const uint64_t* shape, size_t n_dims, const void* bytes,
                            uint64_t n_bytes, size_t* n_made) {
  return call([&] {
    require_given(encoder, "encoder");
    require_given(name, "name");
    require_given(n_made, "n_made");
    ingot_encoder::Made& made = encoder->of_thread();
    made.clear();
    const convert::GivenForm form = given_form(name, dtype, shape, n_dims, bytes, n_bytes);
    made = encoder->encoder.put(name, {static_cast<const std::byte*>(bytes), n_bytes}, &form);
    *n_made = made.size();
  });
}

int ingot_encoder_made(const ingot_encoder* encoder, size_t index, ingot_encoded* tensor) {
  return call([&] {
    require_given(encoder, "encoder");
    const ingot_encoder::Made& all = encoder->of_thread();
    if (index >= all.size()) {
      throw Error(ErrorCode::kInvalidArgument, "there is no tensor {} of {}", index, all.size());
    }
    const convert::EncodedTensor& made = all[index];
    fill(tensor, ingot_encoded{.size = 0,
                               .name = made.name.c_str(),
                               .dtype = formats::dtype_name(made.dtype).data(),
                               .shape = made.shape.data(),
                               .n_dims = made.shape.size(),
                               .bytes = made.bytes.data(),
                               .n_bytes = made.bytes.size()});
  });
}

int ingot_encoder_finish(const ingot_encoder* encoder) {
  return call([&] {
    require_given(encoder, "encoder");
    encoder->encoder.finish();
  });
}
