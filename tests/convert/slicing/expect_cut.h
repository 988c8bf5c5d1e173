#pragma once

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "formats/family/families.h"
#include "tests/convert/slicing/sliced.h"
#include "tests/convert/stored_values.h"

// Which numbers of a model a rank has, by the names of its tensors: the rules of Megatron written
// down once more, for comparison with the program's cuts.

namespace ingot::testing {

/// The place of a rank among tp, ep and etp.
struct RankPlace {
  std::size_t tp = 1, ep = 1, etp = 1;
  std::size_t tp_rank = 0, ep_rank = 0, etp_rank = 0;
};

/// Ranks of a stage: consecutive ones have consecutive slices, whole expert groups follow each
/// other.
inline RankPlace rank_place(std::size_t rank, std::size_t tp, std::size_t ep, std::size_t etp) {
  return {.tp = tp,
          .ep = ep,
          .etp = etp,
          .tp_rank = rank % tp,
          .ep_rank = rank / etp % ep,
          .etp_rank = rank % etp};
}

/// The numbers of a model's config that decide a cut, and the widths to which a rank's is padded.
struct ModelWidths {
  std::size_t n_experts = 0, kv_heads = 0;
  std::size_t vocab = 0, dense = 0, expert = 0, n_shared = 1;

  explicit ModelWidths(const formats::Json& config) {
    const auto number = [&](std::initializer_list<const char*> keys) {
      for (const char* key : keys) {
        if (config.contains(key)) return config.at(key).get<std::size_t>();
      }
      return std::size_t{0};
    };
    n_experts = number({"n_routed_experts", "num_local_experts", "num_experts"});
    kv_heads = number({"num_key_value_heads"});
    vocab = number({"vocab_size"});
    dense = number({"intermediate_size"});
    expert = number({"moe_intermediate_size"});
    n_shared = std::max<std::size_t>(number({"n_shared_experts"}), 1);
  }
};

/// A piece of every matrix: rows [row, row + n_rows) of each section, columns [col, col + n_cols).
struct Piece {
  std::vector<std::size_t> matrices;
  std::size_t sections = 1, row = 0, n_rows = 0, col = 0, n_cols = 0;
};

/// The numbers of a piece; zero beyond the end of a section or of a row.
inline std::vector<float> numbers_of(const Values& whole, const Piece& piece) {
  std::vector<float> numbers;
  const std::size_t section_rows = whole.rows() / piece.sections;
  for (const std::size_t matrix : piece.matrices) {
    for (std::size_t section = 0; section < piece.sections; ++section) {
      for (std::size_t r = piece.row; r < piece.row + piece.n_rows; ++r) {
        const std::size_t at = matrix * whole.rows() + section * section_rows + r;
        const std::size_t end = numbers.size() + piece.n_cols;
        if (r < section_rows && piece.col < whole.cols()) {
          const std::size_t n = std::min(piece.n_cols, whole.cols() - piece.col);
          const float* from = whole.numbers.data() + at * whole.cols() + piece.col;
          numbers.insert(numbers.end(), from, from + n);
        }
        numbers.resize(end);
      }
    }
  }
  return numbers;
}

/// How a tensor is cut, read from its name.
struct NamedCut {
  bool by_rows = false, by_cols = false;
  std::size_t n = 1, index = 0;
  std::size_t padded = 0;  ///< width of a section along the cut; 0: as it is
  bool is_stack = false;
  std::size_t sections = 1;
  bool is_held = true;
};

inline NamedCut named_cut(const std::string& name, const RankPlace& at, const ModelWidths& of) {
  const auto has = [&](std::string_view part) { return name.find(part) != name.npos; };
  NamedCut cut;
  const auto share = [&](std::size_t n, std::size_t index) {
    cut.n = n;
    cut.index = index;
  };
  if (has("embed_tokens.") || has("lm_head.") || has("shared_head.head.")) {
    cut.by_rows = true;
    cut.padded = of.vocab;
    share(at.tp, at.tp_rank);
  } else if (has(".q_proj.") || has(".q_b_proj.") || has(".kv_b_proj.")) {
    cut.by_rows = true;
    share(at.tp, at.tp_rank);
  } else if (has(".k_proj.") || has(".v_proj.")) {
    cut.by_rows = true;
    // Fewer heads than ranks: neighbours share one.
    const std::size_t n = std::min(at.tp, of.kv_heads);
    share(n, at.tp_rank / (at.tp / n));
  } else if (has(".o_proj.weight")) {
    cut.by_cols = true;
    share(at.tp, at.tp_rank);
  } else if (has("gate_proj") || has("up_proj") || has("down_proj")) {
    (has("down_proj") ? cut.by_cols : cut.by_rows) = true;
    const bool is_shared = has(".shared_experts."), is_routed = has(".experts.");
    cut.padded = is_routed ? of.expert : is_shared ? of.expert * of.n_shared : of.dense;
    cut.is_stack = is_routed && name.ends_with("_proj");
    cut.sections = has("gate_up_proj") ? 2 : 1;
    share(is_routed ? at.etp : at.tp, is_routed ? at.etp_rank : at.tp_rank);
    if (is_routed && !cut.is_stack) {
      const std::size_t expert = std::stoul(name.substr(name.find(".experts.") + 9));
      cut.is_held = expert / (of.n_experts / at.ep) == at.ep_rank;
    }
  }
  return cut;
}

/// A rank's part of a tensor of the whole model; nullopt where it is not its own.
inline std::optional<Values> cut_for(const RankPlace& at, const ModelWidths& of,
                                     const std::string& name, const Values& whole) {
  NamedCut cut = named_cut(name, at, of);
  if (!cut.is_held) return std::nullopt;
  // A bias goes with the rows of its weight.
  if (whole.shape.size() == 1) std::swap(cut.by_rows, cut.by_cols);
  Piece piece{.matrices = {0},
              .sections = cut.sections,
              .n_rows = whole.rows() / cut.sections,
              .n_cols = whole.cols()};
  Values part{.shape = whole.shape, .numbers = {}};
  if (cut.is_stack) {
    const std::size_t n_held = of.n_experts / at.ep;
    piece.matrices.resize(n_held);
    std::iota(piece.matrices.begin(), piece.matrices.end(), at.ep_rank * n_held);
    part.shape[0] = n_held;
  }
  if (cut.by_rows || cut.by_cols) {
    std::size_t& n = cut.by_rows ? piece.n_rows : piece.n_cols;
    n = std::max(n, cut.padded);
    EXPECT_EQ(n % cut.n, 0U) << name;
    n /= cut.n;
    (cut.by_rows ? piece.row : piece.col) = n * cut.index;
    part.shape[part.shape.size() - (cut.by_rows ? 2 : 1)] = n * (cut.by_rows ? cut.sections : 1);
  }
  part.numbers = numbers_of(whole, piece);
  return part;
}

/// The first element that differs, in words; empty when none does. Either sign of zero is zero.
inline std::string first_unlike(const Values& is, const Values& wanted) {
  if (is.shape != wanted.shape) {
    return fmt::format("shape {}, not {}", formats::shape_text(is.shape),
                       formats::shape_text(wanted.shape));
  }
  const float* a = is.numbers.data();
  const float* b = wanted.numbers.data();
  std::size_t i = 0;
  while (i < is.numbers.size() && a[i] == b[i]) ++i;
  return i == is.numbers.size() ? "" : fmt::format("element {} is {}, not {}", i, a[i], b[i]);
}

/// Compares every rank of a sliced directory with the rules' cut of the whole: the tensors that it
/// has, and all their numbers.
inline void expect_cut_from(const ValuesByName& whole, const std::filesystem::path& sliced,
                            const Cut& cut) {
  const shard::Topology topology = cut.options().slicing.topology;
  for (std::uint32_t rank = 0; rank < topology.n_ranks(); ++rank) {
    SCOPED_TRACE(cut.name() + fmt::format(", rank {}", rank));
    const std::filesystem::path directory = rank_directory(sliced, rank, cut);
    const formats::Json config = config_of(directory);
    const ValuesByName held = values_of(read_output(directory), config);
    const RankPlace at = rank_place(rank, topology.tp, topology.ep, topology.etp);
    std::size_t n_wanted = 0;
    for (const auto& [name, values] : whole) {
      const auto wanted = cut_for(at, ModelWidths(config), name, values);
      ASSERT_EQ(held.contains(name), wanted.has_value()) << name;
      if (!wanted) continue;
      ++n_wanted;
      EXPECT_EQ(first_unlike(held.at(name), *wanted), "") << name;
    }
    EXPECT_EQ(held.size(), n_wanted) << "and it has nothing else";
  }
}

/// Converts whole and in slices, in one pass each, and compares.
inline void expect_cuts(Conversion conversion, std::initializer_list<Cut> cuts) {
  const TempDir directory;
  conversion.output = directory / "whole";
  conversion.run();
  const ValuesByName whole =
      values_of(read_output(directory / "whole"), config_of(directory / "whole"));
  for (const Cut& cut : cuts) {
    conversion.output = directory / cut.name();
    conversion.plan = cut.options();
    conversion.run();
    expect_cut_from(whole, conversion.output, cut);
  }
}

inline void expect_cut(const Conversion& conversion, const Cut& cut) {
  expect_cuts(conversion, {cut});
}

/// A BF16 model of a few matrices of 128 x 128 blocks and some left over, made once per process.
inline const std::filesystem::path& synth_bf16_model() {
  static const TempDir directory;
  static const std::filesystem::path path = [] {
    formats::write_synthetic_checkpoint(directory / "model",
                                        {.family = formats::find_family("deepseek_v32"),
                                         .size = formats::SynthSize::kTiny,
                                         .fp8 = false});
    return directory / "model";
  }();
  return path;
}

}  // namespace ingot::testing
