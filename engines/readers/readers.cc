#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "engines/readers/reader.h"
#include "engines/versions/words.h"
#include "formats/base/error.h"
#include "formats/json/json.h"

namespace ingot::engines {
namespace {

// The engine reads each form as the dialect says it.
Reader read_as_said(const ReaderInput& in) {
  const Checkpoint& model = in.checkpoint;
  return {.of = [&in, forms = model.dialect().config_forms(model.config(), model.description(),
                                                           nullptr)](std::size_t module) {
    const formats::ConfigForm said = forms(in.layer(module).tensor->name);
    return said.scheme && !is_quantized(*said.scheme) ? read_plain(said.because)
                                                      : read_as(said.scheme, said.because);
  }};
}

// The engine reads each weight as its headers say.
Reader read_as_held(const ReaderInput& in) {
  return {.of = [&in](std::size_t module) {
    const LinearModule& layer = in.layer(module);
    const std::string because = in.by_method();
    return layer.is_quantized ? read_as(layer.scheme, because) : read_plain(because);
  }};
}

// The engine does not know the method.
Reader read_nothing(const ReaderInput& in) {
  return {.of_all = read_refused(in.by_method())};
}

struct ReaderRow {
  std::string_view dialect;
  std::optional<Engine> engine;  ///< nullopt: every engine without a row above
  Reader (*read)(const ReaderInput& in);
};
constexpr std::array kReaders = {
    ReaderRow{kDeepseek, Engine::kTransformers, read_fp8_in_transformers},
    ReaderRow{kDeepseek, std::nullopt, read_fp8},
    ReaderRow{kCt, Engine::kTransformers, read_groups_in_transformers},
    ReaderRow{kCt, std::nullopt, read_groups},
    ReaderRow{kModelopt, Engine::kVllm, read_modelopt},
    ReaderRow{kModelopt, Engine::kVllmAscend, read_modelopt},
    ReaderRow{kModelopt, Engine::kSglang, read_modelopt},
    ReaderRow{kModelopt, std::nullopt, read_modelopt_block},
    ReaderRow{kModelslim, std::nullopt, read_as_said},
    ReaderRow{kMxfp4Stacks, std::nullopt, read_as_said},
    ReaderRow{kGptq, Engine::kVllm, read_packed_integers},
    ReaderRow{kGptq, Engine::kSglang, read_packed_integers},
    ReaderRow{kAwq, Engine::kVllm, read_packed_integers},
    ReaderRow{kAwq, Engine::kSglang, read_packed_integers},
    ReaderRow{kQuark, Engine::kVllm, read_quark},
    ReaderRow{kQuark, Engine::kSglang, read_quark},
    ReaderRow{kGemma, Engine::kTransformers, read_as_held},
    ReaderRow{kGemma, Engine::kVllm, read_nothing},
    ReaderRow{kGemma, Engine::kSglang, read_nothing},
    ReaderRow{kMinimax, Engine::kSglang, read_as_held},
    ReaderRow{kMinimax, Engine::kVllm, read_nothing},
    ReaderRow{kMinimax, Engine::kTransformers, read_nothing},
};

const ReaderRow* find_reader(const Dialect& dialect, Engine engine) {
  const auto* const row = std::ranges::find_if(kReaders, [&](const ReaderRow& at) {
    return at.dialect == dialect.name && at.engine.value_or(engine) == engine;
  });
  return row == kReaders.end() ? nullptr : row;
}

/// The reader of the table, and the facts of engines that no config changes.
struct WholeReader {
  ReaderInput in;
  Reader own = {};

  [[nodiscard]] Reading own_reading(std::size_t module) const;
  [[nodiscard]] Reading reading(std::size_t module) const;
};

Reading WholeReader::own_reading(std::size_t module) const {
  if (own.of_all) return *own.of_all;
  if (own.asks == Reader::Asks::kAll) return own.of(module);
  const LinearModule& layer = in.layer(module);
  // SGLang builds every router without a config (models/qwen3_moe.py, models/qwen2_moe.py), and
  // heads of classes in the same way (models/qwen3_classification.py:136 and others).
  const Role role = role_of(*layer.tensor);
  const bool is_router = role == Role::kRouter || role == Role::kSharedRouter;
  if (in.is_sglang() && (is_router || layer.is_class_head)) return read_plain("always plain");
  const bool may_be_named =
      own.asks == Reader::Asks::kHeads && in.built_of(module).kind == BuiltModule::Kind::kHead;
  if (!layer.is_quantizable && !may_be_named) return read_plain("always plain");
  return own.of ? own.of(module) : read_plain("no quantization_config");
}

Reading WholeReader::reading(std::size_t module) const {
  Reading reading = own_reading(module);
  const LinearModule& layer = in.layer(module);
  if (layer.is_nameless && in.is_vllm() && !reading.is_plain())
    reading.because +=
        ", since it has no name there, which only an expression of compressed-tensors matches";
  // SGLang's DeepSeek compares the configs of both linears of shared experts where the first is
  // FP8: models/deepseek_v2.py:967.
  const Role role = role_of(*layer.tensor);
  const bool is_of_shared = role == Role::kSharedGate || role == Role::kSharedUp;
  if (!in.is_sglang() || !is_of_shared || !in.built.is_latent() ||
      !reading.scheme.starts_with("fp8"))
    return reading;
  for (std::size_t i = 0; i < in.facts.modules.size(); ++i) {
    const LinearModule& other = in.layer(i);
    if (role_of(*other.tensor) == Role::kSharedDown &&
        parent_of(other.name) == parent_of(layer.name) && own_reading(i).is_plain())
      return read_refused(fmt::format("{} next to it is plain", other.name));
  }
  return reading;
}

}  // namespace

Reading read_plain(std::string because) {
  return {"plain", std::move(because)};
}

Reading read_refused(std::string because) {
  return {"refused", std::move(because)};
}

Reading read_as(std::optional<SchemeId> scheme, std::string because) {
  return {scheme ? std::string(scheme_facts(*scheme).name) : "unknown scheme", std::move(because)};
}

Reading read_partly_listed(const BuiltModule& module, std::string_view list) {
  return read_refused(fmt::format("{} has some of {}", list, module.name));
}

std::string stored_scheme(const LinearModule& module) {
  return module.is_quantized ? std::string(scheme_facts(module.scheme).name) : "plain";
}

std::string ReaderInput::by_method() const {
  const std::string method = formats::text_at(block(), "quant_method");
  return fmt::format("quant_method {}", method.empty() ? "(none)" : method);
}

bool reads_config(const Dialect& dialect, Engine engine) {
  return find_reader(dialect, engine) != nullptr;
}

Reader reader_of(const Checkpoint& checkpoint, const EngineInput& input, const EngineRow& engine,
                 bool has_draft_names) {
  const ReaderRow* row = find_reader(checkpoint.dialect(), engine.engine);
  INGOT_CHECK(row != nullptr);
  const auto whole = std::make_shared<WholeReader>(
      WholeReader{.in = {checkpoint, input, engine, has_draft_names}});
  whole->own = row->read(whole->in);
  const bool reads_older_key = whole->in.is_vllm() || whole->in.is_sglang();
  if (!whole->own.of_all && input.has_older_key && !reads_older_key)
    whole->own.of_all = read_plain("compression_config is not read");
  return {.of_all = whole->own.of_all,
          .of = [whole](std::size_t module) { return whole->reading(module); }};
}

}  // namespace ingot::engines
