#include "formats/adapters/adapter_file.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/stop_scope.h"
#include "formats/checkpoint/checkpoint_files.h"
#include "formats/container/safetensors.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kAdapterWeightsName = "adapter_model.safetensors";
constexpr std::string_view kPickledName = "adapter_model.bin";
constexpr std::string_view kAdapterPrefix = "base_model.model.";
constexpr std::string_view kUntrainedWord = ".original_module.";
// Words in names of whole modules, in front of the last one.
constexpr std::array<std::string_view, 4> kWrappers = {
    ".modules_to_save.default.", ".modules_to_save.", ".base_layer.", kUntrainedWord};
constexpr std::uint64_t kMaxAdapterConfigBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kMaxAdapterCardBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kAdapterHashStep = std::uint64_t{4} << 20;

/// The tensors of the file as a source: without a family, and no logical ones.
class AdapterTensors final : public TensorSource {
 public:
  AdapterTensors(std::vector<WeightsFile> files, std::vector<StoredTensor> stored)
      : files_(std::move(files)), stored_(std::move(stored)) {}

  [[nodiscard]] const ModelConfig& config() const override { return config_; }
  [[nodiscard]] const Family& family() const override { return *find_family("generic"); }
  [[nodiscard]] std::span<const LogicalTensor> tensors() const override { return {}; }
  [[nodiscard]] std::span<const StoredTensor> stored() const override { return stored_; }
  [[nodiscard]] std::span<const SourceFile> files() const override { return files_.files(); }
  void read(std::uint32_t stored, std::uint64_t offset, std::span<std::byte> out) const override {
    files_.read(stored, stored_.at(stored), offset, out);
  }
  [[nodiscard]] const CheckpointFiles& bytes() const { return files_; }

 private:
  CheckpointFiles files_;
  std::vector<StoredTensor> stored_;
  ModelConfig config_;
};

/// A kind of tensors of an adapter, by the last words of their names: `words`, maybe the adapter's
/// own name, which PEFT takes out when it saves, and `last`.
struct AdapterEnding {
  std::string_view words;
  std::uint32_t AdapterModule::*place;
  std::string_view last = {};
  bool is_embedding = false;
  bool is_leaf = false;  ///< kind of a leaf, without an adapter's name
};
constexpr std::array kAdapterEndings = {
    AdapterEnding{".lora_A", &AdapterModule::a, ".weight"},
    AdapterEnding{".lora_B", &AdapterModule::b, ".weight"},
    AdapterEnding{".lora_B", &AdapterModule::bias, ".bias"},
    AdapterEnding{".lora_embedding_A", &AdapterModule::a, "", true},
    AdapterEnding{".lora_embedding_B", &AdapterModule::b, "", true},
    AdapterEnding{".lora_magnitude_vector", &AdapterModule::lengths, ".weight"},
    AdapterEnding{".lora_magnitude_vector", &AdapterModule::lengths},
    AdapterEnding{".token_adapter.trainable_tokens_delta", &AdapterModule::token_rows},
    AdapterEnding{".lora_A", &AdapterModule::a, "", false, true},
    AdapterEnding{".lora_B", &AdapterModule::b, "", false, true},
};

/// The module of a tensor, and the kind of the tensor.
struct NamedTensor {
  std::string_view module;
  const AdapterEnding* ending = nullptr;
};

std::optional<NamedTensor> named_tensor(std::string_view name) {
  for (const AdapterEnding& ending : kAdapterEndings) {
    std::string_view rest = name;
    if (!rest.ends_with(ending.last)) continue;
    rest.remove_suffix(ending.last.size());
    if (!rest.ends_with(ending.words) && !ending.is_leaf)
      rest = rest.substr(0, std::min(rest.rfind('.'), rest.size()));
    if (!rest.ends_with(ending.words)) continue;
    rest.remove_suffix(ending.words.size());
    return NamedTensor{.module = rest, .ending = &ending};
  }
  return std::nullopt;
}

/// The name of the model's tensor that one of the file replaces: without the words of wrappers.
std::string replaced_name(std::string_view name) {
  std::string plain(name);
  for (const std::string_view wrapper : kWrappers) {
    const std::size_t at = plain.rfind(wrapper);
    if (at == std::string::npos) continue;
    const bool is_before_leaf = plain.find('.', at + wrapper.size()) == std::string::npos;
    if (is_before_leaf) plain.erase(at, wrapper.size() - 1);
  }
  return plain;
}

/// True if a tensor is the module as it was before training, which PEFT saves next to a trained one
/// where the number of tokens changed.
bool is_original(std::string_view name) {
  return name.find(kUntrainedWord) != std::string_view::npos;
}

std::string_view without_prefix(std::string_view name) {
  if (name.starts_with(kAdapterPrefix)) name.remove_prefix(kAdapterPrefix.size());
  return name;
}

[[noreturn]] void refuse_weights(const std::filesystem::path& directory) {
  if (!stamp_of(directory / kPickledName)) {
    throw Error(ErrorCode::kNotFound, "has no {}", kAdapterWeightsName).in_file(directory.string());
  }
  throw Error(
      ErrorCode::kUnsupported,
      "has {}, which is pickled: to read it would run code of its maker (load it with PEFT, "
      "and save it with safe_serialization=True)",
      kPickledName)
      .in_file(directory.string());
}

Hash128 hash_of_both(std::string_view config, const AdapterTensors& tensors) {
  TensorHasher hasher;
  hasher.update(std::as_bytes(std::span(config)));
  std::vector<std::byte> bytes;
  const std::uint64_t n_bytes = tensors.files().front().n_bytes;
  for (std::uint64_t at = 0; at < n_bytes; at += kAdapterHashStep) {
    StopScope::check();
    bytes.resize(std::min(kAdapterHashStep, n_bytes - at));
    tensors.bytes().read_file(0, at, bytes);
    hasher.update(bytes);
  }
  return hasher.finish();
}

}  // namespace

AdapterFile AdapterFile::open(const std::filesystem::path& directory) {
  AdapterFile file;
  file.directory_ = directory;
  const auto config_path = directory / kAdapterConfigName;
  const auto weights_path = directory / kAdapterWeightsName;
  const auto config_stamp = stamp_of(config_path), weights_stamp = stamp_of(weights_path);
  if (!config_stamp) {
    throw Error(ErrorCode::kNotFound,
                "has no {} (--lora takes the directory of one adapter that PEFT saved)",
                kAdapterConfigName)
        .in_file(directory.string());
  }
  if (!weights_stamp) refuse_weights(directory);
  file.stamps_ = {{config_path, *config_stamp}, {weights_path, *weights_stamp}};
  const std::string config = read_text_file(config_path, kMaxAdapterConfigBytes);
  file.config_ = parse_adapter_config(config, config_path.string());

  std::vector<WeightsFile> files =
      locate_files({std::string(kAdapterWeightsName)}, directory, std::filesystem::path());
  ErrorList faults;
  std::vector<StoredTensor> stored = read_headers(files, 1, faults);
  faults.throw_if_any();
  const auto tensors = std::make_shared<const AdapterTensors>(std::move(files), std::move(stored));
  file.hash_ = hash_of_both(config, *tensors);
  file.numbers_ = std::make_shared<const PlainNumbers>(tensors);
  const auto card = directory / "README.md";
  const auto card_stamp = stamp_of(card);
  file.names_unsloth_ =
      config.find("unsloth") != std::string::npos ||
      (card_stamp && card_stamp->n_bytes <= kMaxAdapterCardBytes &&
       read_text_file(card, kMaxAdapterCardBytes).find("unsloth") != std::string::npos);
  file.sort_tensors();
  return file;
}

AdapterFile AdapterFile::of(AdapterConfig config, std::shared_ptr<const TensorSource> tensors) {
  AdapterFile file;
  file.config_ = std::move(config);
  file.numbers_ = std::make_shared<const PlainNumbers>(std::move(tensors));
  file.sort_tensors();
  return file;
}

bool AdapterFile::holds_same(std::uint32_t one, std::uint32_t other) const {
  const StoredTensor &mine = tensor(one), &theirs = tensor(other);
  if (mine.dtype != theirs.dtype || mine.shape != theirs.shape) return false;
  std::vector<std::byte> ours(kAdapterHashStep), others(kAdapterHashStep);
  for (std::uint64_t at = 0; at < mine.n_bytes; at += kAdapterHashStep) {
    const std::size_t n = std::min(kAdapterHashStep, mine.n_bytes - at);
    numbers_->source().read(one, at, std::span(ours).first(n));
    numbers_->source().read(other, at, std::span(others).first(n));
    if (!std::equal(ours.begin(), ours.begin() + static_cast<std::ptrdiff_t>(n), others.begin()))
      return false;
  }
  return true;
}

void AdapterFile::sort_tensors() {
  ErrorList faults;
  std::vector<std::uint32_t> originals;
  const std::span<const StoredTensor> stored = numbers_->source().stored();
  const auto fault = [&](std::uint32_t i, ErrorCode code, std::string_view text) {
    faults.add(fault_of(numbers_->source().files(), stored[i], code, "{}", text)
                   .in_directory(directory_.string()));
  };
  for (std::uint32_t i = 0; i < stored.size(); ++i) {
    const StoredTensor& tensor = stored[i];
    if (tensor.n_bytes == 0) {
      // tinker writes these for a projection that a model does not have.
      if (tensor.name.find(".experts.w3.") == std::string::npos)
        fault(i, ErrorCode::kShapeMismatch, "has no numbers");
      continue;
    }
    if (!is_plain_number(tensor.dtype)) {
      fault(i, ErrorCode::kUnsupported,
            fmt::format("is {}, and adapters are read in BF16, F16 and F32",
                        dtype_name(tensor.dtype)));
      continue;
    }
    const std::string_view name = without_prefix(tensor.name);
    const auto of = named_tensor(name);
    if (!of) {
      if (name.find("lora_") != std::string_view::npos) {
        fault(i, ErrorCode::kUnsupported, "is no tensor of an adapter that is known here");
      } else if (is_original(name)) {
        originals.push_back(i);
      } else if (const auto [at, is_new] = replaced_.emplace(replaced_name(name), i);
                 !is_new && !holds_same(at->second, i)) {
        fault(i, ErrorCode::kDuplicate, "is here twice, under two names");
      }
      continue;
    }
    const AdapterEnding& ending = *of->ending;
    const bool is_new = !modules_.contains(std::string(of->module));
    AdapterModule& module = modules_[std::string(of->module)];
    const bool is_half = ending.place == &AdapterModule::a || ending.place == &AdapterModule::b;
    const bool is_other_form =
        is_half && (module.a != kNoTensor || module.b != kNoTensor) &&
        (module.is_embedding != ending.is_embedding || module.is_leaf != ending.is_leaf);
    std::uint32_t& place = module.*ending.place;
    if (!is_new && (place != kNoTensor || is_other_form)) {
      fault(i, ErrorCode::kDuplicate, "is one of two tensors for the same place");
      continue;
    }
    place = i;
    module.is_embedding = module.is_embedding || ending.is_embedding;
    module.is_leaf = module.is_leaf || ending.is_leaf;
  }
  for (const std::uint32_t i : originals) {
    if (!replaced_.contains(replaced_name(without_prefix(stored[i].name))))
      fault(i, ErrorCode::kUnsupported, "is no tensor of an adapter that is known here");
  }
  for (const auto& [name, module] : modules_) {
    const bool has_pair = module.a != kNoTensor && module.b != kNoTensor;
    if (!has_pair && (module.a != kNoTensor || module.b != kNoTensor)) {
      fault(std::min(module.a, module.b), ErrorCode::kCorrupt,
            fmt::format("has no lora_{} next to it", module.a != kNoTensor ? "B" : "A"));
    }
    for (const std::uint32_t half : {module.a, module.b}) {
      const std::size_t n_dimensions = half == kNoTensor ? 2 : stored[half].shape.size();
      if (n_dimensions != 2 && n_dimensions != 3) {
        fault(half, ErrorCode::kShapeMismatch,
              fmt::format("has shape {}, and a half of a low-rank pair has two or three dimensions "
                          "(save the adapter with PEFT again)",
                          shape_text(stored[half].shape)));
      }
    }
    const bool has_lengths = module.lengths != kNoTensor;
    if (has_pair && config_.has_lengths && !has_lengths && !module.is_embedding) {
      fault(module.a, ErrorCode::kCorrupt,
            "has no lora_magnitude_vector, and the config says use_dora");
    }
    if (has_lengths && !(has_pair && config_.has_lengths)) {
      fault(module.lengths, ErrorCode::kCorrupt,
            "has no low-rank pair with it, or the config does not say use_dora");
    }
    if (module.bias != kNoTensor && !has_pair)
      fault(module.bias, ErrorCode::kCorrupt, "has no low-rank pair with it");
  }
  if (modules_.empty() && replaced_.empty() && faults.empty()) {
    faults.add(Error(ErrorCode::kCorrupt, "holds no tensor that would change a model")
                   .in_file((directory_ / kAdapterWeightsName).string()));
  }
  faults.throw_if_any();
}

}  // namespace ingot::formats
