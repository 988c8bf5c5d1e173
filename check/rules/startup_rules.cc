#include <cctype>
#include <set>

#include "check/rules/rule_input.h"
#include "engines/serving.h"
#include "formats/base/fd.h"
#include "formats/base/words.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/config/nested_config.h"

// The demands of programs before they look at a weight: a class that they know, the code that it
// needs, positions that can be computed, and a tokenizer.

namespace ingot::check {
namespace {

using formats::Family;
using formats::ModelConfig;
using formats::SideFile;

// transformers chooses the class by model_type.
constexpr std::string_view kServers = "vLLM, SGLang, TensorRT-LLM";

// Without case and marks: `qwen3_5_moe` and `Qwen3_5MoeForCausalLM` begin alike.
std::string bare_letters(std::string_view name) {
  std::string letters = lower_case(name);
  std::erase_if(letters, [](unsigned char c) { return std::isalnum(c) == 0; });
  return letters;
}

bool begins_alike(std::string_view a, std::string_view b) {
  constexpr std::size_t kEnough = 5;
  const std::string one = bare_letters(a), other = bare_letters(b);
  const std::size_t least = std::min({kEnough, one.size(), other.size()});
  return least > 0 && one.compare(0, least, other, 0, least) == 0;
}

// Releases of one family have classes of several names, most of which begin alike.
bool is_of_family(std::string_view architecture, const Family& family, const ModelConfig& config) {
  if (architecture == family.architecture) return true;
  const auto is_like = [&](std::string_view name) { return begins_alike(architecture, name); };
  if (!is_like(family.architecture) && !is_like(family.name) && !is_like(config.model_type) &&
      !is_like(config.text.model_type) && std::ranges::none_of(family.model_types, is_like))
    return false;
  // Qwen3ForCausalLM has no experts.
  const auto has_mixtures = [](const Family& some) {
    return std::ranges::any_of(
        some.rules, [](const TensorRule& rule) { return rule.scope == formats::Scope::kMoeLayer; });
  };
  const auto all = formats::families();
  const auto other = std::ranges::find(all, architecture, &Family::architecture);
  return other == all.end() || has_mixtures(**other) == has_mixtures(family);
}

void known_class(const RuleInput& input) {
  const ModelConfig& config = input.config();
  const Family& family = input.checkpoint.family();
  if (!config.raw->is_object()) return;
  const std::string remedy =
      family.architecture.empty() ? "" : fmt::format(" ([\"{}\"] is usual)", family.architecture);
  const auto classes_in = [](const Json& keys) {
    std::vector<std::string> names = strings_at(keys, "architectures");
    std::erase(names, "");
    return names;
  };
  const std::vector<std::string> names = classes_in(*config.raw);
  if (names.empty()) {
    // DeepSeek-VL2 names only the class of its text model.
    if (!classes_in(text_keys(config)).empty()) return;
    input.report_config(
        kNotFound, "'architectures' names no class, by which servers choose the model{}", remedy);
    return;
  }
  // Nothing is known of the classes of other families.
  if (!family.file_hash.empty() || family.rules.empty()) return;
  const auto is_right = [&](const std::string& name) { return is_of_family(name, family, config); };
  if (std::ranges::none_of(names, is_right))
    input.report_config(kMismatch, "'architectures' names {}, which is no class of family {}{}",
                        fmt::join(names, ", "), family.name, remedy);
}

// Kinds of rope that compute frequencies with `factor`.
constexpr std::array<std::string_view, 5> kScaledRopes = {"yarn", "deepseek_yarn", "linear",
                                                          "dynamic", "llama3"};

std::string factor_remedy(const Json& keys, const Json& rope) {
  const auto number = [](const Json& value) {
    return value.is_number_unsigned() ? value.get<std::uint64_t>() : 0;
  };
  const std::uint64_t whole = number(json_member(keys, "max_position_embeddings"));
  const std::uint64_t original = number(json_member(rope, "original_max_position_embeddings"));
  constexpr const char* kRatio =
      "max_position_embeddings / original_max_position_embeddings, as the release has it";
  if (whole == 0 || original == 0) return fmt::format("it is {}", kRatio);
  return fmt::format("it is {}: here {:.6g}", kRatio,
                     static_cast<double>(whole) / static_cast<double>(original));
}

/// Numbers that programs take from the config for a kind of rope, besides its factor: vLLM's
/// rotary_embedding/__init__.py:167 and :313.
struct RopeNumbers {
  std::string_view kind;
  std::array<const char*, 3> keys;
};
constexpr std::array kRopeNumbers = {
    RopeNumbers{"llama3",
                {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}},
    RopeNumbers{"longrope", {"short_factor", "long_factor", "long_factor"}},
};

/// The parameters of a rope, and the kind that they name.
struct Rope {
  std::string path;  ///< key of the config, and of a kind of layers in it
  const Json& parameters;
  std::string kind;
};

// Calls `visit(rope)` for each rope of the config: an object may have one for each kind of layer.
template <typename Visit>
void for_each_rope(const Json& keys, const Visit& visit) {
  const auto visit_one = [&](std::string path, const Json& parameters) {
    std::string kind = text_at(parameters, "rope_type");
    if (kind.empty()) kind = text_at(parameters, "type");
    visit(Rope{std::move(path), parameters, std::move(kind)});
  };
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json& rope = json_member(keys, key);
    if (!rope.is_object()) continue;
    visit_one(key, rope);
    for (const auto& [kind, value] : rope.items())
      visit_one(fmt::format("{}.{}", key, kind), value);
  }
}

void check_factor(const RuleInput& input, const Json& keys, const Rope& found) {
  const auto& [path, rope, kind] = found;
  for (const RopeNumbers& row : kRopeNumbers) {
    const auto missing = std::ranges::find_if(
        row.keys, [&](const char* key) { return json_member(rope, key).is_null(); });
    if (row.kind == kind && missing != row.keys.end())
      input.report_config(kCorrupt, "{} is {}, and has no {} (the release has it)", path, kind,
                          *missing);
  }
  // Hunyuan's dynamic rope has `alpha` in its place.
  if (!is_in(kScaledRopes, kind) || (kind == "dynamic" && rope.contains("alpha"))) return;
  const Json& factor = json_member(rope, "factor");
  if (factor.is_number() && factor.get<double>() > 0) return;
  input.report_config(kCorrupt, "{} is {}, and its factor is {} ({})", path, kind,
                      config_text(factor), factor_remedy(keys, rope));
}

void rope_factor(const RuleInput& input) {
  const Json& keys = text_keys(input.config());
  for_each_rope(keys, [&](const Rope& rope) { check_factor(input, keys, rope); });
}

// transformers' modeling_rope_utils.py, vLLM's rotary_embedding/__init__.py and
// transformers_utils/config.py, SGLang's rotary_embedding/factory.py.
constexpr std::array<std::string_view, 16> kRopeKinds = {
    "default", "linear",        "dynamic",   "yarn",          "llama3",  "longrope",
    "su",      "proportional",  "mrope",     "deepseek_yarn", "mllama4", "deepseek_llama_scaling",
    "ntk",     "bailing_mrope", "openpangu", "telechat3-yarn"};

void rope_kind(const RuleInput& input) {
  for_each_rope(text_keys(input.config()), [&](const Rope& rope) {
    if (rope.kind.empty() || is_in(kRopeKinds, rope.kind)) return;
    input.report_config(kUnsupported,
                        "{} has rope_type '{}', which no loader knows (the release has it; known: "
                        "{})",
                        rope.path, rope.kind, fmt::join(kRopeKinds, ", "));
  });
}

// transformers' activations.py, and those of vLLM's activation.py and of single families.
constexpr std::array<std::string_view, 27> kActivations = {"gelu",
                                                           "gelu_10",
                                                           "gelu_fast",
                                                           "gelu_new",
                                                           "gelu_python",
                                                           "silu",
                                                           "gelu_pytorch_tanh",
                                                           "gelu_python_tanh",
                                                           "gelu_accurate",
                                                           "hardswish",
                                                           "laplace",
                                                           "leaky_relu",
                                                           "linear",
                                                           "mish",
                                                           "quick_gelu",
                                                           "relu",
                                                           "relu2",
                                                           "relu6",
                                                           "sigmoid",
                                                           "sqrtsoftplus",
                                                           "swish",
                                                           "tanh",
                                                           "prelu",
                                                           "xielu",
                                                           "swigluoai",
                                                           "gegelu",
                                                           "situ"};

void activation(const RuleInput& input) {
  const Json& keys = text_keys(input.config());
  for (const char* key : {"hidden_act", "hidden_activation", "mlp_hidden_act", "mamba_hidden_act",
                          "activation_function"}) {
    const std::string name = text_at(keys, key);
    if (!name.empty() && !is_in(kActivations, name))
      input.report_config(kUnsupported,
                          "{} is '{}', an activation that no loader knows (the release has it)",
                          key, name);
  }
}

void key_heads(const RuleInput& input) {
  const formats::ModelConfig& config = input.config();
  const std::uint64_t heads = config.num_attention_heads, key_heads = config.num_key_value_heads;
  if (key_heads == 0 || heads % key_heads == 0 || config.by_layer.contains("num_attention_heads") ||
      config.by_layer.contains("num_key_value_heads"))
    return;
  const auto has_keys = [](const LogicalTensor& tensor) {
    return tensor.rule != nullptr && tensor.rule->role == formats::Role::kKProj;
  };
  if (std::ranges::any_of(input.weights(), has_keys))
    input.report_config(kMismatch,
                        "num_attention_heads is {}, and num_key_value_heads is {}, which does not "
                        "divide it (the release has both)",
                        heads, key_heads);
}

void context_length(const RuleInput& input) {
  const Json& said = json_member(text_keys(input.config()), "max_position_embeddings");
  if (said.is_number() && said.get<double>() <= 0)
    input.report_config(
        kCorrupt,
        "'max_position_embeddings' is {}: no token has a place (the release has the number)",
        config_text(said));
}

bool has_side_file(const Checkpoint& checkpoint, std::string_view path) {
  const auto& files = checkpoint.side_files();
  return std::ranges::find(files, path, &SideFile::path) != files.end();
}

void code_present(const RuleInput& input) {
  if (!input.options.is_folder || input.checkpoint.slicing() != nullptr) return;
  std::set<std::string> reported;
  for (const engines::OwnClass& own : engines::own_classes(input.checkpoint)) {
    if (!own.module.empty() && !has_side_file(input.checkpoint, own.module) &&
        reported.insert(own.module).second)
      input.report_file(own.where, kNotFound,
                        "auto_map takes {} from '{}', which is not here (fetch that file, or "
                        "remove auto_map for programs that have the class)",
                        own.role, own.module);
  }
}

// Vocabularies in all formats that engines read.
constexpr std::array<std::string_view, 7> kVocabularies = {
    "tokenizer.json",          "tokenizer.model", "tiktoken.model", "spiece.model",
    "sentencepiece.bpe.model", "tekken.json",     "vocab.txt"};
constexpr std::string_view kFastTokenizer = "tokenizer.json";

bool is_vocabulary(const SideFile& file) {
  return is_in(kVocabularies, file.path) || file.path.ends_with(".tiktoken");
}

bool has_vocabulary(const Checkpoint& checkpoint) {
  const auto has = [&](std::string_view name) { return has_side_file(checkpoint, name); };
  return (has("vocab.json") && has("merges.txt")) ||
         std::ranges::any_of(checkpoint.side_files(), [](const SideFile& file) {
           return is_vocabulary(file) || file.path.starts_with("tokenizer.model.");
         });
}

void tokenizer_present(const RuleInput& input) {
  const Checkpoint& checkpoint = input.checkpoint;
  if (!input.options.is_folder || checkpoint.slicing() != nullptr || has_vocabulary(checkpoint))
    return;
  // Code of the checkpoint has a vocabulary under any name.
  const std::vector<engines::OwnClass> own = engines::own_classes(checkpoint);
  if (std::ranges::find(own, "AutoTokenizer", &engines::OwnClass::role) != own.end()) return;
  input.report_file(kFastTokenizer, kNotFound,
                    "there is no tokenizer, in this format or another (copy that of the release; "
                    "--skip-tokenizer-init serves ids without one)");
}

void tokenizer_readable(const RuleInput& input) {
  constexpr std::string_view kRemedy = "copy the file of the release again";
  if (!input.options.is_folder) return;
  const Checkpoint& checkpoint = input.checkpoint;
  if (has_side_file(checkpoint, kFastTokenizer)) {
    const Vocabulary& found = input.facts.vocabulary();
    if (found.fault) {
      input.report_file(kFastTokenizer, found.fault->code(), "{} ({})", found.fault->message(),
                        kRemedy);
    } else if (!found.has_entries) {
      input.report_file(kFastTokenizer, kCorrupt, "{} ({})",
                        found.has_model ? "its 'model' has no vocabulary"
                                        : "has no object 'model', which tokenizers read",
                        kRemedy);
    }
  }
  constexpr std::string_view kTokenizerConfig = "tokenizer_config.json";
  if (has_side_file(checkpoint, kTokenizerConfig)) {
    try {
      formats::read_json_file(checkpoint.directory() / kTokenizerConfig, formats::kMaxConfigBytes);
    } catch (const Error& error) {
      input.report_file(kTokenizerConfig, error.code(), "{} ({})", error.message(), kRemedy);
    }
  }
  for (const SideFile& file : checkpoint.side_files()) {
    const bool is_tokenizer =
        is_vocabulary(file) || file.path == "vocab.json" || file.path == "merges.txt";
    if (is_tokenizer && file.n_bytes == 0 && file.path != kFastTokenizer)
      input.report_file(file.path, kCorrupt, "is empty ({})", kRemedy);
  }
}

// The rows of the largest embedding: of a text model, or of what is added to it.
std::uint64_t embedding_rows(const RuleInput& input) {
  std::uint64_t rows = 0;
  for (const LogicalTensor& tensor : input.weights()) {
    if (tensor.rule != nullptr && tensor.rule->role == formats::Role::kEmbedding &&
        !tensor.shape.empty())
      rows = std::max(rows, tensor.shape[0]);
  }
  return rows;
}

void added_tokens(const RuleInput& input) {
  const Checkpoint& checkpoint = input.checkpoint;
  if (!input.options.is_folder || checkpoint.slicing() != nullptr ||
      !has_side_file(checkpoint, kFastTokenizer))
    return;
  const std::uint64_t rows = embedding_rows(input);
  std::vector<std::uint64_t> beyond = input.facts.vocabulary().added_ids;
  std::erase_if(beyond, [&](std::uint64_t id) { return id < rows; });
  if (rows == 0 || beyond.empty()) return;
  std::ranges::sort(beyond);
  constexpr std::size_t kShown = 3;
  const std::size_t n_more = beyond.size() - std::min(beyond.size(), kShown);
  beyond.resize(beyond.size() - n_more);
  input.report_file(
      kFastTokenizer, kMismatch,
      "added tokens have ids for which the embedding, of {} rows, has none: {}{} (a text "
      "that holds one cannot be read: resize the embedding, or remove the tokens)",
      rows, fmt::join(beyond, ", "), n_more == 0 ? "" : fmt::format(" and {} more", n_more));
}

// transformers' PreTrainedConfig.validate_layer_type, by which servers read configs too.
void layer_lists(const RuleInput& input) {
  const Json& keys = text_keys(input.config());
  const Json& n_layers = json_member(keys, "num_hidden_layers");
  if (!n_layers.is_number_unsigned()) return;
  for (const char* key : {"layer_types", "mlp_layer_types"}) {
    const Json& list = json_member(keys, key);
    if (list.is_array() && list.size() != n_layers.get<std::uint64_t>())
      input.report_config(kMismatch,
                          "{} has {} entries, and num_hidden_layers is {} (give each layer one)",
                          key, list.size(), n_layers.get<std::uint64_t>());
  }
}

constexpr LoaderRule kStartupRows[] = {
    {"config.class", "", kServers, kError,
     "architectures names a class, and it is one of the family", known_class},
    {"config.code-present", "", "vLLM, SGLang, TensorRT-LLM, transformers", kError,
     "files of code that auto_map names are there", code_present},
    {"config.rope-factor", "", "all", kError,
     "rope that is scaled (yarn and others) has a factor above zero, and the numbers of its kind",
     rope_factor},
    {"config.rope-type", "", "all", kError, "a rope is of a kind that loaders know", rope_kind},
    {"config.activation", "", "all", kError, "an activation is one that loaders know", activation},
    {"config.key-heads", "", "all", kError, "heads of keys and values divide those of queries",
     key_heads},
    {"config.context-length", "", kServers, kError,
     "max_position_embeddings, if it exists, is above zero", context_length},
    {"config.layer-lists", "", "all", kError,
     "layer_types and mlp_layer_types have an entry for each layer", layer_lists},
    {"tokenizer.present", "", kServers, kWarning, "there is a tokenizer", tokenizer_present,
     kAnyScheme, false, kIsAllowable, std::nullopt, /*except=*/"", &engines::EngineRow::ids_option},
    {"tokenizer.readable", "", "all", kError,
     "tokenizer.json has a model with a vocabulary, and no file of a tokenizer is broken",
     tokenizer_readable},
    {"tokenizer.rows", "", "all", kWarning,
     "the embedding has a row for each token that was added to the tokenizer", added_tokens},
};

}  // namespace

const RuleTable kStartupRules = kStartupRows;

}  // namespace ingot::check
