#include "cli/generate_session.h"

#include <iostream>

#include "cli/terminal.h"
#include "formats/base/error.h"
#include "inference/family/model_family.h"
#include "inference/generate/sampling.h"
#include "shard/join/source.h"

namespace ingot::cli {

GenerateSession::GenerateSession(const GenerateWords& words)
    : words_(words),
      source_(shard::open_source(words.directory,
                                 {.open = {.threads = words.n_threads()}, .config = words.config})),
      spec_(inference::model_spec(source_.family(), source_.config())) {
  shard::require_all_ranks(source_);
  std::cerr << remark_lines("warning", source_.remarks());
  if (source_.lacks_promised_mtp()) {
    std::cerr << "warning: config.json promises layers for multi-token prediction "
                 "(num_nextn_predict_layers) that are not there\n";
  }
}

inference::GenerateOptions GenerateSession::options() const {
  const inference::GenerationConfig config =
      inference::read_generation_config(source_.directory(), source_.config());
  inference::GenerateOptions options;
  options.sampling = config.sampling;
  if (!config.do_sample) options.sampling.temperature = 0;
  if (words_.temperature) options.sampling.temperature = static_cast<float>(*words_.temperature);
  if (words_.top_p) options.sampling.top_p = static_cast<float>(*words_.top_p);
  if (words_.top_k) options.sampling.top_k = *words_.top_k;
  if (words_.greedy) options.sampling.temperature = 0;
  options.sampling.seed = words_.seed.value_or(0);
  options.max_new_tokens = words_.max_new_tokens.value_or(config.max_new_tokens.value_or(512));
  options.eos = config.eos;
  options.kv_format = words_.kv_format();
  return options;
}

void GenerateSession::open(std::span<const std::size_t> final_lengths) {
  const inference::Profile profile = words_.chosen_profile();
  const inference::RunMemory need = inference::run_memory(source_, profile, words_.kv_format(),
                                                          final_lengths, words_.n_threads());
  const inference::ModelOptions options = {
      .profile = profile,
      .threads = words_.n_threads(),
      .weight_limit = inference::weight_limit(need, words_.memory_limit()),
      .without_mtp = true};
  model_ = std::make_unique<inference::Model>(inference::Model::open(source_, {}, comm_, options));
}

}  // namespace ingot::cli
