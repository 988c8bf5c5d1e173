#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "formats/cache_views.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/config/nested_config.h"
#include "formats/family/cache_scales.h"
#include "shard/join/joined.h"
#include "verify/structure/structure_comparisons.h"

namespace ingot::verify {

using formats::Checkpoint;
using formats::LogicalTensor;

namespace {

bool is_of_mtp(const LogicalTensor& tensor, const Checkpoint& model) {
  return model.config().num_nextn_predict_layers > 0 && tensor.layer &&
         *tensor.layer >= model.config().num_hidden_layers;
}

bool holds_mtp(const Checkpoint& model) {
  return std::ranges::any_of(model.tensors(),
                             [&](const auto& tensor) { return is_of_mtp(tensor, model); });
}

class Pairing {
 public:
  Pairing(const Checkpoint& source, const Checkpoint& output, check::Findings& found)
      : source_(source), output_(output), found_(found) {
    for (const LogicalTensor& tensor : output.tensors()) {
      if (by_name_.emplace(tensor.name, &tensor).second) continue;
      tell(output_, tensor, "structure.twice", ErrorCode::kDuplicate, "is there twice");
    }
  }

  void mtp(const std::optional<formats::Manifest>& manifest) {
    const std::uint64_t promised = output_.config().num_nextn_predict_layers;
    const std::uint64_t wanted = source_.config().num_nextn_predict_layers;
    const std::string_view key = formats::mtp_layer_key(formats::text_keys(output_.config()));
    const auto fact = [](std::string message) {
      return Error(ErrorCode::kMissingTensor, std::move(message)).in_file("config.json");
    };
    const bool is_wanted = holds_mtp(source_);
    if (is_wanted && promised == 0) {
      lacks_mtp_ = true;
      if (manifest && manifest->drops_mtp()) return;
      found_.warning("structure.mtp",
                     fact(fmt::format("{} is 0: the {} MTP layer(s) of the source were left out",
                                      key, wanted)));
    } else if (is_wanted && output_.lacks_promised_mtp()) {
      lacks_mtp_ = true;
      found_.error(
          "structure.mtp",
          fact(fmt::format("{} promises {} MTP layer(s), of which the source has the tensors "
                           "and the output none (convert it again, or say 0)",
                           key, promised)));
    } else if (promised != wanted && promised != 0) {
      found_.error("structure.mtp",
                   fact(fmt::format("{} is {}, in the source {}", key, promised, wanted)));
    }
  }

  std::uint64_t tensors(const std::optional<formats::Manifest>& manifest) {
    std::uint64_t n_wanted = 0;
    for (const LogicalTensor& tensor : source_.tensors()) {
      if (lacks_mtp_ && is_of_mtp(tensor, source_)) continue;
      if (lacks_caches_ && formats::is_cache_scale(tensor.rule) && !by_name_.contains(tensor.name))
        continue;
      ++n_wanted;
      const auto found = by_name_.find(tensor.name);
      if (found == by_name_.end()) {
        tell(source_, tensor, "structure.missing", ErrorCode::kMissingTensor,
             "is in the source, but not in the output");
        continue;
      }
      if (found->second->shape != tensor.shape) {
        tell(
            output_, *found->second, "structure.shape", ErrorCode::kShapeMismatch,
            fmt::format("has shape {}, in the source {}", formats::shape_text(found->second->shape),
                        formats::shape_text(tensor.shape)));
      }
      by_name_.erase(found);
    }
    const bool has_made_caches = manifest && formats::makes_caches(*manifest);
    for (const LogicalTensor& tensor : output_.tensors()) {
      if (has_made_caches && formats::is_cache_scale(tensor.rule)) continue;
      if (by_name_.contains(tensor.name))
        tell(output_, tensor, "structure.extra", ErrorCode::kUnknownTensor,
             "is in the output, but not in the source");
    }
    return n_wanted;
  }

 private:
  void tell(const Checkpoint& where, const LogicalTensor& tensor, std::string_view rule,
            ErrorCode code, std::string message) {
    Error fact(code, std::move(message));
    // The source's file would be looked for in the output.
    if (&where == &output_) {
      const std::uint32_t stored = tensor.encoding.stored.weight();
      fact.in_file(output_.files()[output_.stored()[stored].file].name);
    }
    found_.error(rule, fact.in_tensor(tensor.name));
  }

  const Checkpoint& source_;
  const Checkpoint& output_;
  check::Findings& found_;
  std::unordered_map<std::string_view, const LogicalTensor*> by_name_;  // without a partner yet
  bool lacks_mtp_ = false;
  // The source's cache is quantized by its config, the output's is not: its scales mean nothing.
  const bool lacks_caches_ =
      !formats::cache_words(source_).empty() && formats::cache_words(output_).empty();
};

// Bytes of the whole, at a time and thread.
constexpr std::uint64_t kPairBytes = std::uint64_t{4} << 20;

std::optional<Error> read_through(const Checkpoint& output, std::uint32_t stored) {
  const formats::StoredTensor& tensor = output.stored()[stored];
  std::vector<std::byte> buffer(
      static_cast<std::size_t>(std::min<std::uint64_t>(kPairBytes, tensor.n_bytes)));
  for (std::uint64_t done = 0; done < tensor.n_bytes;) {
    StopScope::check();
    const auto piece = std::span(buffer).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), tensor.n_bytes - done)));
    try {
      output.read(stored, done, piece);
    } catch (Error& error) {
      return error.in_tensor(tensor.name);
    }
    done += piece.size();
  }
  return std::nullopt;
}

}  // namespace

std::uint64_t compare_tensors(const Checkpoint& source, const Checkpoint& output,
                              const std::optional<formats::Manifest>& manifest,
                              check::Findings& found) {
  Pairing pairing(source, output, found);
  pairing.mtp(manifest);
  return pairing.tensors(manifest);
}

void compare_replicas(const Checkpoint& output, std::size_t threads, check::Findings& found) {
  const auto* joined = dynamic_cast<const shard::JoinedBytes*>(&output.bytes());
  if (joined == nullptr) return;
  std::vector<std::uint32_t> replicated;
  for (std::uint32_t i = 0; i < output.stored().size(); ++i) {
    if (joined->may_have_replicas(i)) replicated.push_back(i);
  }
  std::vector<std::optional<Error>> failures(replicated.size());
  parallel_for(replicated.size(), std::max<std::size_t>(threads, 1),
               [&](std::size_t i) { failures[i] = read_through(output, replicated[i]); });
  for (const auto& failure : failures) {
    if (failure) found.error("structure.replica", *failure);
  }
}

}  // namespace ingot::verify
