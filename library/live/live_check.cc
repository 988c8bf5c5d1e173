#include "library/live/live_check.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "convert/convert.h"
#include "convert/joined_reader.h"
#include "engines/versions/versions.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/container/bfloat16.h"
#include "formats/container/float16.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "shard/join/source.h"

namespace ingot::library {

using convert::JoinedGroup;
using convert::JoinedPiece;
using engines::LiveAnswer;
using engines::LiveBytes;
using engines::LiveForm;
using engines::LivePlace;
using engines::LiveRank;
using formats::Json;

namespace {

constexpr std::array<std::string_view, kLiveStates> kStateNames = {
    "equal", "as learned", "differs", "not comparable", "missing", "unexpected"};
constexpr std::uint64_t kLearnedSchema = 1;
/// A parameter of a rank is held whole where another form than its own is computed.
constexpr std::uint64_t kMostHeld = std::uint64_t{8} << 30;

// The layout of an engine's own rank files, as processes have it: with data parallelism too, which
// names of files cannot say.
constexpr formats::Layout live_layout(std::string_view name) {
  formats::Layout layout = *formats::find_layout(name);
  layout.name = "live";
  return layout;
}
constexpr formats::Layout kVllmLive = live_layout("vllm-sharded");
constexpr formats::Layout kSglangLive = live_layout("sglang-sharded");

// A stored tensor of a rank's file, and the parameter of the engine that it is.
struct Expected {
  std::uint32_t file = 0, joined = 0;
  std::uint32_t tensor = 0;  ///< tensor of its first part
  std::string compared;      ///< name under which both sides are known
  LivePlace place;
  const std::string* told = nullptr;  ///< digest of the engine; null: it tells none
  std::string name;                   ///< name in the engine, else in the files
  std::string kind;                   ///< kind of parameter for which kernels are chosen
  engines::LiveForms forms;
  formats::DType dtype{};
  formats::Shape shape;
  std::uint64_t n_bytes = 0;
  bool is_quantized = false;
  bool shares_scale = false;  ///< codes of tensors that each have one scale
  bool is_widened = false;    ///< scales that the engine holds in FP32, and the files not
  std::vector<std::uint64_t> rows = {};  ///< rows of each of its parts
};

using Where = std::pair<std::uint32_t, std::uint32_t>;  // file and joined

// The plan of the files that the engine's ranks would load, of which nothing is written.
class LivePlan {
 public:
  LivePlan(const formats::Checkpoint& source, const LiveAnswer& answer, std::uint32_t ep)
      : plan_(make(source, answer, ep)) {}
  [[nodiscard]] const convert::Plan& plan() const { return plan_; }

 private:
  static convert::Plan make(const formats::Checkpoint& source, const LiveAnswer& answer,
                            std::uint32_t ep) {
    convert::Recipe recipe;
    // Drafts are models of their own, which vLLM does not tell of.
    recipe.mtp = convert::MtpPolicy::kDrop;
    convert::PlanOptions options;
    options.layout = answer.engine == engines::Engine::kSglang ? &kSglangLive : &kVllmLive;
    const std::uint32_t n = answer.dp * answer.tp;
    // Without expert parallelism, all ranks of a stage cut each expert.
    options.slicing.topology = shard::make_topology(
        answer.tp, ep, ep == 1 ? std::optional(n) : std::optional(1U), answer.pp);
    return convert::plan_conversion(source, std::move(recipe), options);
  }

  convert::Plan plan_;
};

LivePlace place_of(const convert::Plan& plan, const convert::PlannedFile& file, std::uint32_t tp) {
  const std::uint32_t rank = file.members.front().ranks.front();
  const std::uint32_t n = plan.slicing->topology.ranks_per_stage();
  return {.dp = rank % n / tp, .pp = rank / n, .tp = rank % n % tp};
}

// The answer by the names that are compared.
class ToldNames {
 public:
  explicit ToldNames(const LiveAnswer& answer) {
    for (const LiveRank& rank : answer.ranks) {
      for (const auto& [name, digest] : rank.digests)
        by_place_[rank.place].emplace(engines::compared_name(name), Told{&name, &digest});
    }
  }
  struct Told {
    const std::string* name = nullptr;
    const std::string* digest = nullptr;
  };
  [[nodiscard]] const Told* find(const LivePlace& place, const std::string& compared) const {
    const auto rank = by_place_.find(place);
    if (rank == by_place_.end()) return nullptr;
    const auto told = rank->second.find(compared);
    return told == rank->second.end() ? nullptr : &told->second;
  }
  /// Returns the names in the answer that are not in `asked`.
  [[nodiscard]] std::vector<std::pair<LivePlace, Told>> others(
      const std::set<std::pair<LivePlace, std::string>>& asked) const {
    std::vector<std::pair<LivePlace, Told>> list;
    for (const auto& [place, names] : by_place_) {
      for (const auto& [compared, told] : names) {
        if (!asked.contains({place, compared})) list.emplace_back(place, told);
      }
    }
    return list;
  }

 private:
  std::map<LivePlace, std::map<std::string, Told>> by_place_;
};

// The last word of a name.
std::string_view last_word(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

// The module of a parameter; gate and up of experts are one, and down is another.
std::string module_of(std::string_view name) {
  const std::string_view word = last_word(name);
  std::string module(name.substr(0, name.size() - word.size()));
  for (const std::string_view prefix : {"w13_", "w2_"}) {
    if (word.starts_with(prefix)) module += prefix;
  }
  return module;
}

bool is_half(formats::DType dtype) {
  return dtype == formats::DType::kBf16 || dtype == formats::DType::kF16;
}

constexpr std::string_view kOfSeveralSchemes = "its parts are in several schemes";

// The modules of a file that the engine joins of tensors in several schemes; plain ones are one.
std::set<std::string> mixed_modules(const convert::Plan& plan, const convert::PlannedFile& file) {
  std::map<std::string, formats::SchemeId> schemes;
  std::set<std::string> mixed;
  std::size_t part = 0;
  for (const convert::PlannedFile::Joined& joined : file.joined) {
    const std::string module = module_of(joined.spec.name);
    for (std::uint32_t i = 0; i < joined.n_parts; ++i) {
      formats::SchemeId scheme = plan.tensors[file.parts[part++].tensor].to;
      if (!formats::scheme_facts(scheme).quantized) scheme = formats::SchemeId::kBf16;
      if (schemes.emplace(module, scheme).first->second != scheme) mixed.insert(module);
    }
  }
  return mixed;
}

// The treatment of activations, by the files; nullopt: their lists are none.
std::optional<formats::SourceActivations> activations_of(const formats::Checkpoint& source) {
  try {
    return formats::SourceActivations(source.config(), source.dialect(), source.description());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    return std::nullopt;
  }
}

std::vector<Expected> expected_of(const convert::Plan& plan, const LiveAnswer& answer,
                                  const ToldNames& told, const LiveOptions& options) {
  std::vector<Expected> list;
  const auto activations = activations_of(plan.source);
  const auto is_weight_only = [&](const convert::PlannedTensor& planned) {
    const formats::LogicalTensor& tensor = plan.tensor_of(planned);
    return activations && formats::scheme_facts(planned.to).quantized &&
           activations->of(tensor.name, tensor.encoding) == formats::Activations::kWeightOnly;
  };
  for (std::uint32_t f = 0; f < plan.files.size(); ++f) {
    const convert::PlannedFile& file = plan.files[f];
    const LivePlace place = place_of(plan, file, answer.tp);
    const std::set<std::string> mixed = mixed_modules(plan, file);
    std::size_t part = 0;
    for (std::uint32_t j = 0; j < file.joined.size(); ++j) {
      const convert::PlannedFile::Joined& joined = file.joined[j];
      if (joined.is_constant()) continue;
      const std::uint32_t tensor = file.parts[part].tensor;
      const convert::PlannedTensor& first = plan.tensors[tensor];
      const std::string_view word = last_word(joined.spec.name);
      Expected& at =
          list.emplace_back(Expected{.file = f,
                                     .joined = j,
                                     .tensor = tensor,
                                     .compared = engines::compared_name(joined.spec.name),
                                     .place = place,
                                     .name = joined.spec.name});
      at.is_quantized = formats::scheme_facts(first.to).quantized;
      at.forms =
          engines::live_forms(answer.engine,
                              {.scheme = first.to,
                               .is_of_experts = word.starts_with("w13_") || word.starts_with("w2_"),
                               .is_weight_only = is_weight_only(first),
                               .part = word},
                              options.card);
      if (mixed.contains(module_of(joined.spec.name)))
        at.forms = {.forms = {}, .kernel = std::string(kOfSeveralSchemes)};
      at.shares_scale = first.to == formats::SchemeId::kFp8Tensor &&
                        first.parts[file.parts[part].part].part == formats::Part::kWeight;
      at.is_widened = engines::is_scale_in_f32(first.to, word) && is_half(joined.spec.dtype);
      for (std::uint32_t i = 0; i < joined.n_parts; ++i) {
        const convert::PartRef& piece = file.parts[part++];
        const auto shape = plan.part_cut(plan.tensors[piece.tensor], piece.part).slice_shape();
        at.rows.push_back(shape.empty() ? 1 : shape[0]);
      }
      at.kind = fmt::format("{} {}", formats::scheme_facts(first.to).name,
                            at.forms.is_rounding ? "rounded" : word);
      at.dtype = joined.spec.dtype;
      at.shape = joined.spec.shape;
      at.n_bytes = formats::dtype_bits(joined.spec.dtype) *
                   formats::element_count(joined.spec.shape).value() / 8;
      if (const ToldNames::Told* found = told.find(place, at.compared)) {
        at.told = found->digest;
        at.name = *found->name;
      }
    }
  }
  return list;
}

bool has_form(const Expected& at, LiveForm form) {
  return std::ranges::find(at.forms.forms, form) != at.forms.forms.end();
}

bool is_told(const Expected& at, const std::vector<std::string>& digests) {
  return at.told != nullptr && std::ranges::find(digests, *at.told) != digests.end();
}

std::vector<std::string> digests_of(engines::LiveHash hash, const LiveBytes& of) {
  engines::LiveDigest digest(hash, of.bytes.size(), of.dtype, of.shape);
  digest.update(of.bytes);
  return digest.finish();
}

// Zeros are what is left where nothing was loaded, or all was reset.
bool is_of_zeros(const LiveAnswer& answer, const Expected& at) {
  engines::LiveDigest digest(answer.hash, at.n_bytes, at.dtype, at.shape);
  const std::vector<std::byte> zeros(std::min<std::uint64_t>(at.n_bytes, std::uint64_t{1} << 20));
  for (std::uint64_t left = at.n_bytes; left > 0;) {
    const std::size_t n = std::min<std::uint64_t>(left, zeros.size());
    digest.update(std::span(zeros).first(n));
    left -= n;
  }
  return is_told(at, digest.finish());
}

std::vector<std::byte> widened(formats::DType dtype, std::span<const std::byte> halves) {
  std::vector<std::byte> out(2 * halves.size());
  for (std::size_t at = 0; at + 2 <= halves.size(); at += 2) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, &halves[at], sizeof bits);
    const float value = dtype == formats::DType::kBf16 ? formats::float_from_bf16(bits)
                                                       : formats::float_from_f16(bits);
    std::memcpy(&out[2 * at], &value, sizeof value);
  }
  return out;
}

// Compares the parameters of a plan.
class Comparison {
 public:
  Comparison(const convert::Plan& plan, const LiveAnswer& answer, std::vector<Expected> expected,
             const LiveOptions& options)
      : plan_(plan),
        answer_(answer),
        options_(options),
        reader_(plan),
        expected_(std::move(expected)),
        forms_(expected_.size()) {
    std::map<std::uint32_t, std::string> group_of;
    for (const JoinedGroup& group : convert::joined_groups(plan)) {
      for (const std::uint32_t tensor : group.tensors) group_of[tensor] = group.name;
    }
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      at_[{expected_[i].file, expected_[i].joined}] = i;
      members_[group_of.at(expected_[i].tensor)].push_back(i);
    }
  }

  /// Compares the parameters of some groups; the form that fits is then known.
  void compare(std::span<const JoinedGroup> groups) {
    std::uint64_t total = 0;
    for (const JoinedGroup& group : groups) total += group.n_bytes;
    std::atomic<std::uint64_t> done = 0;
    parallel_for(groups.size(), options_.threads, [&](std::size_t g) {
      compare_as_stored(groups[g]);
      compare_in_forms(groups[g]);
      const std::uint64_t n = done.fetch_add(groups[g].n_bytes) + groups[g].n_bytes;
      if (options_.progress) options_.progress(n, total);
    });
  }

  [[nodiscard]] const std::vector<Expected>& expected() const { return expected_; }
  [[nodiscard]] std::optional<LiveForm> form(std::size_t i) const { return forms_[i]; }
  /// True if every parameter of the groups that an engine tells fits, in some form.
  [[nodiscard]] bool fits(std::span<const JoinedGroup> groups) const {
    return std::ranges::all_of(groups, [&](const JoinedGroup& group) {
      return std::ranges::all_of(members_.at(group.name), [&](std::size_t i) {
        return expected_[i].told == nullptr || forms_[i];
      });
    });
  }

 private:
  void compare_as_stored(const JoinedGroup& group) {
    std::map<Where, engines::LiveDigest> digests;
    reader_.read(group, [&](const JoinedPiece& piece) {
      const Where where{piece.file, piece.joined};
      const Expected& at = expected_[at_.at(where)];
      if (at.told == nullptr || at.shares_scale || !has_form(at, LiveForm::kAsStored)) return;
      digests.try_emplace(where, answer_.hash, at.n_bytes, at.dtype, at.shape)
          .first->second.update(piece.bytes);
    });
    for (auto& [where, digest] : digests) {
      const std::size_t i = at_.at(where);
      if (is_told(expected_[i], digest.finish())) forms_[i] = LiveForm::kAsStored;
    }
  }

  // One rank after the other, each parameter whole in memory with its scale.
  void compare_in_forms(const JoinedGroup& group) {
    std::map<std::uint32_t, std::vector<std::size_t>> open;  // by file
    for (const std::size_t i : members_.at(group.name)) {
      const Expected& at = expected_[i];
      const bool has_others = at.is_widened || at.shares_scale ||
                              std::ranges::any_of(at.forms.forms, [](LiveForm form) {
                                return form != LiveForm::kAsStored;
                              });
      if (at.told != nullptr && !forms_[i] && has_others && at.n_bytes <= kMostHeld)
        open[at.file].push_back(i);
    }
    for (const auto& [file, list] : open) {
      std::map<std::uint32_t, std::vector<std::byte>> held;  // by joined
      reader_.read(group, [&, file = file](const JoinedPiece& piece) {
        if (piece.file != file) return;
        auto& bytes = held[piece.joined];
        bytes.insert(bytes.end(), piece.bytes.begin(), piece.bytes.end());
      });
      Parts parts;
      for (auto& [joined, bytes] : held) parts.emplace(joined, bytes_of(file, joined, bytes));
      for (const std::size_t i : list) {
        // Codes that change under another scale tell how an engine rounds; others do not.
        if (has_own_scales(expected_[i], parts)) expected_[i].kind += " under another scale";
        forms_[i] = form_of(expected_[i], parts);
      }
      // Codes of several scales are right only with these.
      for (const std::size_t i : list) {
        const auto scale = other_of(expected_[i], parts);
        if (forms_[i] == LiveForm::kTurnedByRows && scale != parts.end() &&
            forms_[at_.at({file, scale->first})] != LiveForm::kOfRows)
          forms_[i].reset();
      }
    }
  }

  // A parameter that is held whole; `bytes` becomes FP32 where the engine has that.
  [[nodiscard]] LiveBytes bytes_of(std::uint32_t file, std::uint32_t joined,
                                   std::vector<std::byte>& bytes) const {
    const formats::TensorSpec& spec = plan_.files[file].joined[joined].spec;
    const Expected& at = expected_[at_.at({file, joined})];
    if (at.is_widened) bytes = widened(spec.dtype, bytes);
    return {.bytes = bytes,
            .dtype = at.is_widened ? formats::DType::kF32 : spec.dtype,
            .shape = spec.shape,
            .rows = at.rows};
  }

  using Parts = std::map<std::uint32_t, LiveBytes>;  // by joined

  // The scales of codes, or the codes of scales.
  [[nodiscard]] Parts::const_iterator other_of(const Expected& at, const Parts& parts) const {
    const auto name_of = [&](std::uint32_t joined) {
      return last_word(plan_.files[at.file].joined[joined].spec.name);
    };
    return std::ranges::find_if(parts, [&](const auto& part) {
      return engines::are_codes_and_scales(name_of(at.joined), name_of(part.first));
    });
  }

  [[nodiscard]] bool has_own_scales(const Expected& at, const Parts& parts) const {
    const auto other = other_of(at, parts);
    return at.shares_scale && other != parts.end() &&
           engines::has_own_scales(parts.at(at.joined), other->second);
  }

  [[nodiscard]] std::optional<LiveForm> form_of(const Expected& at, const Parts& parts) const {
    const auto other = other_of(at, parts);
    const bool has_own = has_own_scales(at, parts);
    for (const LiveForm form : at.forms.forms) {
      const bool is_same = form == LiveForm::kAsStored;
      if ((is_same && !at.is_widened && !at.shares_scale) ||
          (has_own && (is_same || form == LiveForm::kTransposed)))
        continue;
      const LiveBytes& stored = parts.at(at.joined);
      const bool is_found =
          engines::in_form(form, stored, other == parts.end() ? nullptr : &other->second,
                           [&](std::span<const std::byte> bytes) {
                             const LiveBytes formed = engines::as_formed(form, stored, bytes);
                             return is_told(at, digests_of(answer_.hash, formed));
                           });
      if (is_found) return form;
    }
    return std::nullopt;
  }

  const convert::Plan& plan_;
  const LiveAnswer& answer_;
  const LiveOptions& options_;
  convert::JoinedReader reader_;
  std::vector<Expected> expected_;
  std::vector<std::optional<LiveForm>> forms_;  // form that fits, by expected
  std::map<Where, std::size_t> at_;
  std::map<std::string, std::vector<std::size_t>, std::less<>> members_;  // by group
};

const std::string* learned_digest(const LiveOptions& options, const LivePlace& place,
                                  const std::string& name) {
  if (!options.trusted) return nullptr;
  const auto& ranks = options.trusted->ranks;
  const auto rank = std::ranges::find(ranks, place, &LiveRank::place);
  if (rank == ranks.end()) return nullptr;
  const auto found = rank->digests.find(name);
  return found == rank->digests.end() ? nullptr : &found->second;
}

// SGLang puts shared experts behind the routed ones, unless it is told not to.
constexpr std::string_view kOfSharedExperts = ".shared_experts.";
constexpr std::string_view kFusesShared =
    "shared experts are routed ones (--disable-shared-experts-fusion keeps them apart)";

// True if an engine tells no shared experts although the checkpoint has them.
bool fuses_shared(const LiveAnswer& answer, const std::vector<Expected>& expected) {
  return answer.engine == engines::Engine::kSglang &&
         std::ranges::any_of(expected,
                             [](const Expected& at) {
                               return at.compared.find(kOfSharedExperts) != at.compared.npos;
                             }) &&
         std::ranges::none_of(expected, [](const Expected& at) {
           return at.told != nullptr && at.compared.find(kOfSharedExperts) != at.compared.npos;
         });
}

// Other parameters of its module are told: `has_module`.
LiveRow live_row(const LiveAnswer& answer, const Expected& at, std::optional<LiveForm> form,
                 const LiveOptions& options, bool has_fused, bool has_module) {
  LiveRow row{.place = at.place, .name = at.name, .n_bytes = at.n_bytes};
  if (at.told == nullptr) {
    row.state = LiveState::kMissing;
    if (has_fused && at.compared.find(kOfSharedExperts) != at.compared.npos) {
      row.state = LiveState::kNotComparable;
      row.fact = kFusesShared;
    }
    // Scales that go into decoded values have no digest of their own.
    if (answer.hash == engines::LiveHash::kSum && at.compared.ends_with("weight_scale_inv")) {
      row.state = LiveState::kNotComparable;
      row.fact = "told with its weight";
    }
    // A kernel that packs a module may give its parts other names.
    if (row.state == LiveState::kMissing && has_module && at.is_quantized &&
        !at.forms.kernel.empty()) {
      row.state = LiveState::kNotComparable;
      row.fact = at.forms.kernel;
    }
    return row;
  }
  const auto become = [&](LiveState state, std::string_view fact) {
    row.state = state;
    row.fact = std::string(fact);
    return row;
  };
  if (form) {
    return become(form == LiveForm::kFirst ? LiveState::kDiffers : LiveState::kEqual,
                  engines::live_form_name(*form));
  }
  if (is_of_zeros(answer, at))
    return become(LiveState::kDiffers, "all zeros: nothing was loaded, or weights were reset");
  if (const std::string* learned = learned_digest(options, at.place, at.name)) {
    if (*learned != *at.told) return become(LiveState::kDiffers, "not what the trusted start had");
    if (!at.forms.kernel.empty()) return become(LiveState::kLearned, "as in the trusted start");
  }
  if (!at.forms.kernel.empty()) return become(LiveState::kNotComparable, at.forms.kernel);
  return become(LiveState::kDiffers, "other bytes than the files");
}

// The kinds of which a parameter has a known form, where kernels are chosen for all of a kind.
std::set<std::string> kinds_that_fit(const Comparison& comparison) {
  std::set<std::string> kinds;
  for (std::size_t i = 0; i < comparison.expected().size(); ++i) {
    const Expected& at = comparison.expected()[i];
    // Codes that keep their scales tell nothing of others.
    if (at.forms.is_alike && comparison.form(i) && comparison.form(i) != LiveForm::kTurnedByRows)
      kinds.insert(at.kind);
  }
  return kinds;
}

// Parameters that engines make of others.
struct MadeRow {
  std::string_view word, fact;
};
constexpr MadeRow kMade[] = {
    {"W_UK_T", "made of kv_b_proj"},
    {"W_UV", "made of kv_b_proj"},
    {"w_kc", "made of kv_b_proj"},
    {"w_vc", "made of kv_b_proj"},
    {"k_scale", "a scale of the cache"},
    {"v_scale", "a scale of the cache"},
    {"alpha", "made of global scales"},
    {"input_global_scale_inv", "made of global scales"},
};

// A parameter that the checkpoint does not have: workspace, or a number made of others.
LiveRow row_of_other(const LivePlace& place, std::string name, const std::string& digest,
                     const LiveOptions& options) {
  LiveRow row{.place = place, .name = std::move(name), .state = LiveState::kUnexpected};
  const auto* const made = std::ranges::find(kMade, last_word(row.name), &MadeRow::word);
  if (made != std::end(kMade)) row.fact = made->fact;
  if (const std::string* learned = learned_digest(options, place, row.name)) {
    row.state = *learned == digest ? LiveState::kLearned : LiveState::kDiffers;
    row.fact = *learned == digest ? "as in the trusted start" : "not what the trusted start had";
  }
  return row;
}

// Groups of routed experts whose place tells how experts are dealt out.
std::vector<JoinedGroup> first_experts(const convert::Plan& plan) {
  for (JoinedGroup& group : convert::joined_groups(plan)) {
    if (last_word(group.name).starts_with("w2_")) return {std::move(group)};
  }
  return {};
}

}  // namespace

std::string_view live_state_name(LiveState state) {
  return kStateNames[static_cast<std::size_t>(state)];
}

std::uint64_t LiveReport::count(LiveState state) const {
  return static_cast<std::uint64_t>(std::ranges::count(rows, state, &LiveRow::state));
}

std::uint64_t LiveReport::bytes(LiveState state) const {
  std::uint64_t n = 0;
  for (const LiveRow& row : rows) n += row.state == state ? row.n_bytes : 0;
  return n;
}

LiveReport compare_live(const LiveAnswer& answer, const LiveOptions& options) {
  const std::optional<std::uint32_t> told_ep = options.ep ? options.ep : answer.ep;
  const formats::Checkpoint source = shard::open_source(
      options.directory, {.open = {.family = options.family, .threads = options.threads}});
  const std::uint32_t n = answer.dp * answer.tp;
  if (told_ep && *told_ep != 1 && *told_ep != n) {
    throw Error(options.ep ? ErrorCode::kInvalidArgument : ErrorCode::kUnsupported,
                "{} {}: experts are dealt out to all {} ranks of a stage, or to none (1)",
                options.ep ? "--live-ep" : "expert parallelism of", *told_ep, n);
  }
  if (options.trusted &&
      (options.trusted->engine != answer.engine || options.trusted->hash != answer.hash))
    throw Error(ErrorCode::kMismatch, "the trusted start was another engine's, or a ledger's");
  const ToldNames told(answer);
  LiveReport report{.engine = answer.engine,
                    .dp = answer.dp,
                    .pp = answer.pp,
                    .tp = answer.tp,
                    .ep = told_ep.value_or(1),
                    .n_drafts = answer.n_drafts};
  // Experts that cannot be cut, or not be dealt out, are not.
  const auto plan_of = [&](std::uint32_t ep) -> std::unique_ptr<LivePlan> {
    try {
      return std::make_unique<LivePlan>(source, answer, ep);
    } catch (const Error& error) {
      if (told_ep || n == 1 || error.code() == ErrorCode::kInterrupted) throw;
      return nullptr;
    }
  };
  const auto comparison_of = [&](const LivePlan& of, const LiveOptions& how) {
    return std::make_unique<Comparison>(of.plan(), answer,
                                        expected_of(of.plan(), answer, told, how), how);
  };
  std::unique_ptr<LivePlan> live = plan_of(report.ep);
  // The keys do not say how experts are dealt out: the first stack of them does.
  if (!told_ep && n > 1) {
    LiveOptions quiet = options;
    quiet.progress = {};
    const auto first_fits = [&](const LivePlan& of) {
      const std::vector<JoinedGroup> probe = first_experts(of.plan());
      const auto tried = comparison_of(of, quiet);
      tried->compare(probe);
      return tried->fits(probe);
    };
    if (live == nullptr || !first_fits(*live)) {
      std::unique_ptr<LivePlan> dealt = plan_of(n);
      if (live == nullptr || (dealt != nullptr && first_fits(*dealt))) {
        live = std::move(dealt);
        report.ep = n;
      }
    }
    // Neither way: with the reason of the first.
    if (live == nullptr) live = std::make_unique<LivePlan>(source, answer, 1);
  }
  const auto comparison = comparison_of(*live, options);
  comparison->compare(convert::joined_groups(live->plan()));
  std::set<std::pair<LivePlace, std::string>> asked;
  const bool has_fused = fuses_shared(answer, comparison->expected());
  const std::set<std::string> fitting = kinds_that_fit(*comparison);
  std::set<std::pair<LivePlace, std::string>> modules;
  for (const Expected& at : comparison->expected()) {
    if (at.told != nullptr) modules.emplace(at.place, module_of(at.compared));
  }
  for (std::size_t i = 0; i < comparison->expected().size(); ++i) {
    Expected at = comparison->expected()[i];
    const std::string_view word = last_word(at.compared);
    // No kernel packed it: others of its kind have a form that is known.
    if (fitting.contains(at.kind)) at.forms.kernel.clear();
    if (has_fused && (word.starts_with("w13_") || word.starts_with("w2_")))
      at.forms.kernel = kFusesShared;
    asked.emplace(at.place, at.compared);
    report.rows.push_back(live_row(answer, at, comparison->form(i), options, has_fused,
                                   modules.contains({at.place, module_of(at.compared)})));
  }
  for (const auto& [place, other] : told.others(asked))
    report.rows.push_back(row_of_other(place, *other.name, *other.digest, options));
  std::ranges::sort(report.rows, [](const LiveRow& a, const LiveRow& b) {
    return std::tie(a.place, a.name) < std::tie(b.place, b.name);
  });
  return report;
}

std::string learned_text(const LiveAnswer& answer) {
  const engines::EngineRow* engine = nullptr;
  for (const engines::EngineRow* row : engines::engines()) {
    if (row->engine == answer.engine) engine = row;
  }
  INGOT_CHECK(engine != nullptr);
  Json ranks = Json::array();
  for (const LiveRank& rank : answer.ranks) {
    ranks.push_back({{"dp", rank.place.dp},
                     {"pp", rank.place.pp},
                     {"tp", rank.place.tp},
                     {"digests", rank.digests}});
  }
  return formats::json_text({{"ingot_live", kLearnedSchema},
                             {"engine", std::string(engine->word)},
                             {"ledger", answer.hash == engines::LiveHash::kLedger},
                             {"ranks", std::move(ranks)}});
}

LiveAnswer parse_learned(std::string_view text, std::string_view where) {
  const Json json = formats::parse_json(text, where);
  const formats::JsonFields fields(json, where);
  if (fields.number("ingot_live") != kLearnedSchema)
    fields.refuse("ingot_live", "is of another version of ingot");
  const engines::EngineRow* engine = engines::find_engine(fields.text("engine"));
  if (engine == nullptr) fields.refuse("engine", "is not known");
  LiveAnswer answer{.engine = engine->engine};
  if (answer.engine == engines::Engine::kSglang) {
    answer.hash =
        fields.boolean("ledger", false) ? engines::LiveHash::kLedger : engines::LiveHash::kSum;
  }
  for (const Json& entry : fields.array("ranks")) {
    const formats::JsonFields rank(entry, where, "ranks");
    LiveRank& row = answer.ranks.emplace_back(LiveRank{
        .place = {.dp = rank.number32("dp"), .pp = rank.number32("pp"), .tp = rank.number32("tp")},
        .digests = {}});
    for (const auto& [name, value] : rank.get("digests").items()) {
      if (!value.is_string()) rank.refuse("digests", "has a digest that is no text");
      row.digests.emplace(name, value.get<std::string>());
    }
  }
  return answer;
}

}  // namespace ingot::library
