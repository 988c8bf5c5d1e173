#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/dialect/input_major.h"
#include "formats/records/manifest.h"

// The passes that open a checkpoint, in the order in which Checkpoint::open() runs them
// (checkpoint.cc). Each takes the draft and fills more of it, and adds its faults to the draft's.

namespace ingot::formats {

// Words of config.json and manifest: config_words.cc, rank_slices.cc.

/// Reads config.json into the draft. A generic checkpoint may lack it. False, with a fault, where
/// it cannot be read.
bool read_config_words(Draft& draft);
/// Sets the family: the one of the options, of a family file next to the weights, or of
/// config.json, and the keys that follow from it. False, with a fault, where there is none.
bool choose_family(Draft& draft);
/// Sets dialect and block, or Draft::unread_form.
void choose_dialect(Draft& draft);
/// Reads the dialect's description file. A form of it that is not read is Draft::unread_form.
void read_description(Draft& draft);
/// Sets the slices of a rank's manifest from its records, with the faults of read_tensor_records()
/// and rank_slices(). Others have none.
void read_rank_slices(Draft& draft, const Manifest& manifest);

// Files of the directory: checkpoint_listing.cc, checkpoint_files.cc.

/// Lists the weights files: those of the index (kIndexName, else the one of msmodelslim,
/// `quant_model_weight*`), or model.safetensors where there is none; any *.safetensors without an
/// index if the draft takes any names and no file has a name that loaders expect. Reports missing
/// index files, and signs of an index that is not of these files: other weights files that have the
/// name of one more of their kind, or of a checkpoint in one file.
void list_weights(Draft& draft);
/// Reads every header. A file that cannot be read is reported and has no tensors.
void read_headers(Draft& draft);
/// Leaves one tensor of each name: the one in the file that the index names, else the first.
/// Reports the names that several had (kDuplicate), unless the options say that one was meant; then
/// it remarks on them. For a report, few bytes are compared; to merge, all; none if `may_read` is
/// false.
void resolve_duplicates(Draft& draft, bool may_read);
/// Reports tensors that the index names and the files lack, and the reverse. Files that could not
/// be read have been reported and are passed over.
void check_index(Draft& draft);
/// Judges weights files that belong to no file list. A file with a tensor of this model that no
/// other file has means that the index is out of date: kMissingTensor. Any other file (the weights
/// once more, other names, an adapter, or one that cannot be read) is left out, with a remark.
void judge_stray_files(Draft& draft);

// Names: family_match.cc, stored_facts.cc.

/// Gives tensors whose names begin as an alias of the family says the names that are meant, unless
/// another tensor has that name; lost names likewise. Adds a remark per alias that was met.
void rename_aliases(Draft& draft);
/// Gives plain stacks that are stored as one matrix (TensorRule::is_flat) a side for the experts:
/// [experts, rows, columns], by the rows and columns of the config, in either order.
void see_flat_stacks(Draft& draft);
/// Leaves out gates and ups of experts that have no tensors in releases, since they give their
/// input back: transformers 5 saves those, without down projections. Adds a remark.
void leave_out_identity_experts(Draft& draft);
/// Gives the head of a tied model, and the parts next to it, the embedding's name, under which
/// loaders look for the table: some tools save it only as the head. Draft::table_called_head is the
/// name that the head had.
void name_tied_table(Draft& draft);

// Weights: made_parts.cc, repacked_codes.cc, recognition.cc, repeated_scales.cc, family_match.cc,
// rank_slices.cc.

/// Shows forms of single makers as parts that schemes read, without rounding:
/// - Thinking Machines' NVFP4, `P_amax` and `P_outer_scale_denominator`: their quotient, P_scale_2;
/// - MiMo's `qkv_proj` (attention_projection_layout fused_qkv): q_proj, k_proj and v_proj, in FP8
///   with a scale for each row and run of columns (Draft::reordered);
/// - quant_method gemma: codes of 2 and 4 bits as INT4 (X.weight_packed, X.weight_shape), or as
///   INT8 (X.weight) where groups are no whole words; `X.embedding_quantized` as X.weight; scales
///   of activations and caches are left out;
/// - ModelOpt's W4A16_AWQ, two rows to a byte: X.weight_packed and X.weight_shape.
/// Reports parts of other shapes and dtypes than the config says (kShapeMismatch, kMismatch), a
/// stored tensor by a name that is given here (kDuplicate) and expressions that are none
/// (kUnsupported).
void make_parts(Draft& draft);

/// Changes the weights of an AWQ or GPTQ checkpoint to the form in which compressed-tensors would
/// store them: `X.qweight`, `X.scales`, `X.qzeros` and `X.g_idx` become X.weight_packed [N, K/8],
/// X.weight_scale [N, groups], X.weight_zero_point [N/8, groups], X.weight_g_idx [K] and
/// X.weight_shape [2]. Nothing is rounded: words are transposed as they are read, zero points where
/// every one is 8 and an order that is none are left out, as the config promises them. Codes of 2
/// and 3 bits take 4 bits, moved so that 8 means zero where no zero points are stored. Weights of 8
/// bits become INT8: X.weight I8 [N, K], codes less 128, X.weight_scale, and X.weight_shape as a
/// mark that they are packed in the files (is_packed_int8); X.weight_zero_point [N/4, groups] and
/// X.weight_g_idx make kInt8Group of them. Weights that compressed-tensors packs in 8 bits
/// (`num_bits` 8, four to a word) become INT8, too.
///
/// Reports parts that are missing (kMissingTensor), of another shape or group than the config has
/// it (kShapeMismatch, kMismatch) or dtype (kDtypeMismatch), and leaves such a weight out; also a
/// stored tensor by a name that is given here (kDuplicate), and codes of bits that are not read
/// (kUnsupported). Where config and files are of different forms, the draft is not understood.
/// Reading throws kMismatch where a promise of the config does not hold, and kUnsupported for a
/// zero point that codes do not reach.
void repack_codes(Draft& draft);

/// Groups stored tensors into logical ones, in source order, without `rule`, `layer` and `expert`.
/// This is the one place where an encoding is recognised. Parts are found by their names in any
/// dialect (part_names.h); the scheme is the row of schemes() that reads the dtype of the codes and
/// the dtype of their scale, and whose groups give the scale its shape: for a weight [..., N, K] a
/// value per block (that of most weights which it fits, of the config's and those of released
/// models: 128, 64 and 32 square, and the same along rows), [..., N, 1] or [..., N] per row, one
/// value per matrix, or one per row and group of columns. INT8 of Ascend may have its scale in
/// deq_scale. Where two rows fit, the one whose scales have a dtype of their own wins, then the
/// first. Under family generic, weights in forms that are not read are copied as they are.
///
/// The logical name is `X.weight` and the shape that of the decoded weight, whatever the codes are
/// called and however they are packed. Reports tensors that cannot be decoded: codes that lack a
/// part or have one twice, parts without codes (kMissingTensor, kDuplicate), parts of a wrong shape
/// or dtype (kShapeMismatch, kDtypeMismatch), integers of 4 bits (kUnsupported). FP8 of other kinds
/// than E4M3 and INT8 with zero points or an order of columns are rows that are only read.
/// Returns the weights that no scheme fits, with the parts that they have.
std::vector<StoredParts> recognise_encodings(Draft& draft);

/// Shows a scale for several rows once for each of them (Encoding::rows_of_scales). Where several
/// scales of activations are stored, shows the greatest only: engines take it.
void repeat_scales(Draft& draft);

/// Gives every logical tensor its row, layer and expert, or marks it as unknown, which is judged by
/// judge_unknown(). Reports a shape that contradicts the config (kShapeMismatch), numbers that are
/// no floating point (kDtypeMismatch). A stack is taken in the order that its shape has. A family
/// without rows knows only the names of shared_rule() and finds no fault. An MTP layer with experts
/// of its own number may be left out of an output: those tensors get their layer and no row, and
/// loader rules tell of them. The draft is not understood where names have another prefix than the
/// family's, which is one fault: all others would follow from it.
void match_family(Draft& draft);

/// Reports contradictions between config, manifest, records and tensors of a rank:
/// - kMismatch: stages or the family's layers that the config does not have, a tensor of a layer,
///   an expert or an end of the model that the rank does not hold, a slice that is another rank's;
/// - kShapeMismatch: a whole that config.json (or, before retiling and padding, whole_config) does
///   not promise, a tensor that is not of the shape that its slice has.
/// Tensors must have their rows, layers and experts (match_family).
void match_slices(Draft& draft);

/// Adds a fault (kUnknownTensor, the list in one) for unknown tensors that may be weights under
/// other names:
/// - a tensor that config.json promises is missing;
/// - a row has the name in another place: another layer, an expert too many, another config;
/// - one ends as a scale does, and there is no weight for it;
/// - one is a misspelling of a tensor that the family may have in this place and that is not here,
///   or of a scale or another part of a quantized weight;
/// - Draft::cuts_are_known is false: a shard may hold a slice of it.
/// Those that match a pattern of OpenOptions::allow_unknown are taken; null: the command has no
/// --allow. Adds a remark for each kind of name that is taken: how many there are, with which share
/// of the bytes, and that they are copied. `opened` is of this draft.
void judge_unknown(const Checkpoint& opened, Draft& draft);

// A file of a checkpoint, in place of a directory.

/// Takes out the parts of weights whose other parts are elsewhere, with a remark.
void leave_out_parts_of_others(Draft& draft);
/// Tells for each stored tensor if it is a part of a weight of AWQ or GPTQ that lacks another part.
std::vector<bool> parts_of_incomplete_weights(const InputMajorLayout& layout, Draft& draft);

}  // namespace ingot::formats
