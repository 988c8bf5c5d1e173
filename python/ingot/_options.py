"""Options of the functions, made of the program's tables of flags by scripts/python_options.py.

Each class has the keywords of one function, or those that several have in common; their texts are the end of the text
of each function."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike
    from typing import Literal

    Path = str | bytes | PathLike[str]
    Size = str | int
    Texts = str | Sequence[str]


class InspectConvertComposePrune(TypedDict, total=False):
    """Options of inspect, convert, compose and prune:

    accept_family: --family auto: take the family without a look at it where its proof is not complete
    to: target scheme: bf16, f16, f32, fp8-block (or fp8), fp8-channel, fp8-tensor, int8-channel (or int8),
        int8-block, nvfp4, mxfp4, mxfp8, int4-group (or int4); which tensors take it: ingot list recipes
        (default: keep each scheme)
    for_: engine for the output, which chooses dialect and activations: vllm, sglang, trtllm, vllm-ascend,
        transformers, deepseek; forms that each loads: ingot list loads
    dialect: layout of quantized tensors: deepseek, compressed-tensors, modelopt, modelslim, mxfp4 (default: by
        scheme); forms that engines refuse: ingot list engines
    mtp: MTP layers: convert as any other layer (default), bf16 (default for nvfp4, mxfp4, int4), keep (in the
        source's scheme), or drop
    quantize_attention: nvfp4, mxfp4, int4: attention projections too
    activations: how the engine treats activations: weight-only, dynamic or static (default: by dialect and
        scheme)
    activation_scales: ranges of inputs for static activations: a directory that ingot calibrate wrote, or a
        safetensors file with MODULE.input_amax, or .input_min and .input_max
    input_scale: one scale for every static input instead of a file, e.g. 1
    fp8_grid: FP8 scales: amax, or ue8m0 (powers of two); default: as in the source, else amax
    scales_from: take the FP8 block or INT4 scales of this release instead of computing them
    search: how scales are chosen: mse (default), the least squared error; hessian, the least error of the
        layer's output by the moments of --importance, among all scales of nvfp4, mxfp4 and int4, in fp8 and
        int8 among those of mse; or amax; nvfp4 by 4over6 too, int4 by signed (mse, and negative scales too)
    group_size: INT4: columns that share a scale, 32, 64, 128 or row (default: the source's if it is INT4, else
        128)
    zero_points: INT4: a zero point for each group, chosen with its scale; vLLM loads them
    importance: weight the errors of columns by the mean squares in this directory or file, which ingot
        calibrate writes, when scales are searched
    gptq: int4, nvfp4, mxfp4: choose the codes of a weight column by column, so that its outputs change least
        (GPTQ); needs --importance with moments of inputs
    kv_scales: write scales of an FP8 cache of keys and values, largest magnitude / 448, from the ranges in this
        directory of ingot calibrate, or in its cache.safetensors; or the scales of a kv_cache_scales.json
    via: values pass through f32 (default), or bf16, as if cast first
    lora: fold the adapter in this directory of PEFT into the weights; tensors that it does not change stay as
        they are
    lora_scale: with --lora: a factor of alpha / rank, e.g. 0.5 (default: 1)
    expert_b_order: with --lora: order of the numbers in lora_B of stacked experts: peft (default), or block, in
        which an unsloth before September 2026 trained them
    keep_touched: with --lora: quantized weights that change, and those that loaders fuse with them, become bf16
        or fp8 where their scheme has fewer bits
    pp: pipeline stages
    """

    accept_family: bool
    to: str | int | float
    for_: str | int | float
    dialect: str | int | float
    mtp: str | int | float
    quantize_attention: bool
    activations: str | int | float
    activation_scales: Path
    input_scale: str | int | float
    fp8_grid: str | int | float
    scales_from: Path
    search: str | int | float
    group_size: str | int | float
    zero_points: bool
    importance: Path
    gptq: bool
    kv_scales: Path
    via: str | int | float
    lora: Path
    lora_scale: str | int | float
    expert_b_order: str | int | float
    keep_touched: str | int | float
    pp: int


class ConvertPrune(TypedDict, total=False):
    """Options of convert and prune:

    bits: average bits of a weight of the quantized linear layers, scales included: chooses among nvfp4, fp8 and
        bf16 by role and layer, by what each loses under the inputs of --importance, and prints the recipe
    bits_from: the schemes that --bits chooses among, of nvfp4, fp8, bf16, int4, mxfp4 and int8; the default
        recipe of the first says which layers count
    kv_scales_only: write only the scales of --kv-scales, and the index and config that name them, to be put
        into the folder of the model
    """

    bits: float
    bits_from: str | int | float
    kv_scales_only: bool


class ConvertComposePrune(TypedDict, total=False):
    """Options of convert, compose and prune:

    experts: routed experts: keep, stacked (one tensor for all of a layer), or separate (a tensor per expert and
        projection); default: as loaders of the target read them
    layers: 0-K: only the first layers, and no MTP layers, as a model of its own, to try engines and jobs with
    base_model: ORG/NAME of the source on the hub, for the model card (default: its name in the hub's cache,
        else that of its own card)
    max_shard_size: re-shard into files of at most this size (default: keep the source's files and their
        contents)
    tp: tensor parallelism: ranks that cut attention, MLPs, vocabulary
    ep: expert parallelism: groups that share out the experts
    etp: ranks that cut each expert (default: --tp without --ep, else 1)
    pp_layers: layers of each stage, e.g. 0-30,31-60 (default: balanced by bytes)
    layout: hf, ranks, deepseek-mp, vllm-sharded, sglang-sharded (default: hf, or ranks when a topology is
        given)
    mp: ranks of layout deepseek-mp
    tp_fit: where a cut splits a block of scales: refuse (default), retile (smaller FP8 blocks), pad (wider MLPs
        and vocabulary) or bf16
    shared_experts: tp (default): cut by --tp; replicated: whole everywhere
    expert_map: JSON: logical expert by physical slot (default: contiguous blocks)
    redundant_experts: let --expert-map give an expert several slots
    uneven_experts: let --expert-map give ranks different numbers of slots
    links: yes (default): files that several ranks load are hard links to one, and files that are taken over
        from --base whole are hard links to its own; no: copies
    explain: print the rule that applies to TENSOR, and the result
    part: write only the files of part I of N, I from 0; all parts share the output's directory, and publish
        nothing; join: publish their output (ingot join)
    base: an output of an earlier version of the source: tensors whose source did not change are taken over from
        it, by the same recipe and version of ingot
    base_source: the source of --base: it is read and compared with the records of --base
    verify: compare with the source before anything is published: structure, weights, layers, greedy, draft, or
        all; below a gate nothing is published, and the exit code is 1
    lossless_only: publish only an output that holds every value of the source exactly; else name the first
        tensor that loses one, and exit with 1
    no_verify: with --resume: publish without the verification that the conversion began with (recorded in the
        manifest)
    delta: stream that gets the difference to --base as its next version (ingot delta make)
    """

    experts: str | int | float
    layers: str | int | float
    base_model: str | int | float
    max_shard_size: Size
    tp: int
    ep: int
    etp: int
    pp_layers: str | int | float
    layout: str | int | float
    mp: int
    tp_fit: str | int | float
    shared_experts: str | int | float
    expert_map: Path
    redundant_experts: bool
    uneven_experts: bool
    links: Literal["yes", "no"]
    explain: str | int | float
    part: str | int | float
    base: Path
    base_source: Path
    verify: str | int | float
    lossless_only: bool
    no_verify: bool
    delta: Path


class ConvertComposePruneMerge(TypedDict, total=False):
    """Options of convert, compose, prune and merge:

    files: re-shard into so many files of even size, or the next multiple of them with files below 5 GB: layers
        in order, MTP layers and towers in files of their own behind them (readers that share files out want a
        multiple of the ranks)
    order: order of the tensors in a file: dtype (default), or name, in which the default loaders of vLLM and
        SGLang read; data then begin at a multiple of 16
    align: tensors whose size is a multiple of so many bytes begin at one, a weight and its scales are
        neighbours, and files are even (of at most 5 GB unless --max-shard-size is given): 4096 for loaders that
        read past the page cache
    """

    files: int
    order: Literal["dtype", "name"]
    align: int


class ConvertComposePruneMergeRepair(TypedDict, total=False):
    """Options of convert, compose, prune, merge and repair:

    dry_run: print the plan and write nothing; refuses what a run would
    resume: continue a stopped conversion
    force: replace the checkpoint that is in the output
    hash: xxh3 per tensor; sha256 adds a plain SHA-256 per file, in a second pass
    consume_source: delete each source file once its tensors are safe
    buffered: write through the page cache even where direct I/O works
    read_back: read everything again from the disk, past the page cache, before it is published
    follow_links: copy side files that are links to something outside the source
    assume_disk: plan for a host with so much free disk, e.g. 2TB
    """

    dry_run: bool
    resume: bool
    force: bool
    hash: Literal["xxh3", "sha256"]
    consume_source: bool
    buffered: bool
    read_back: bool
    follow_links: bool
    assume_disk: Size


class VerifyCompare(TypedDict, total=False):
    """Options of verify and compare:

    levels: how closely: structure, weights, layers, greedy, draft, or all
    prompts: texts for layers, greedy and draft, separated by blank lines, or JSON lines (.jsonl) (default:
        built in); - is stdin
    tokens: tokens that greedy generates per prompt
    text: measure the perplexity of this text, and drafts on it: .txt, .json {"docs": [...]}, or JSON lines
        (.jsonl); - is stdin
    sample: part of every tensor's rows that weights looks at
    profile: arithmetic of the output: native, bf16, f32 (the source's is f32)
    sources: the directory of one of the sources of a composed output, by its name there; may be repeated (a
        recipe as the source names all)
    lora: the adapter that was folded into the output: it is compared with what the source is with it
    lora_scale: the factor that it was given
    expert_b_order: the order that it was given
    html: write the report as one self-contained page
    markdown: write the report for a model card
    """

    levels: str | int | float
    prompts: Path
    tokens: int
    text: Path
    sample: float
    profile: str | int | float
    sources: Texts
    lora: Path
    lora_scale: float
    expert_b_order: Literal["peft", "block"]
    html: Path
    markdown: Path


class InspectOptions(InspectConvertComposePrune, total=False):
    """Options:

    tensors: list tensors, with pattern those that match
    family: model family instead of config.json's; generic accepts any names, auto makes a family
    family_file: a file that describes the model's family (docs/families.md)
    config: config.json of the model, for shards without one
    gpu_memory: show the memory of a rank and whether it fits into so much, e.g. 80GB; with --to and so on for a
        conversion that has not been made
    gpu: the same for the memory of this GPU, and how many of them are needed
    count: whether it fits this many of these GPUs (--tp, and --ep of experts, of so many): without --to in each
        of some schemes, and which of them the GPU computes natively
    loading: the bytes that each rank reads while an engine loads the checkpoint, by loader, and the ways to
        make them fewer
    rule: SELECTOR=SCHEME; may be repeated, first match wins. A selector is a glob over names, re:EXPR,
        role:NAME (experts, attention, mlp, linear ...: ingot list roles), layers:0-2,last, or several with &
        between them
    recipe: YAML file of rules, which come after those of --rule; or one of experts-int8-attention-fp8,
        first-and-last-layers-bf16, mtp-kept, nvfp4-attention-fp8
    tp: tensor parallelism
    ep: expert parallelism
    etp: ranks that cut each expert
    pp_layers: layers of each stage, e.g. 0-30,31-60
    tp_fit: as of convert: refuse, retile, pad or bf16
    kv_cache: numbers of the cache of keys and values: f32, bf16, fp8, int8, fp8-static (default bf16)
    context: tokens of each sequence, e.g. 128k
    sequences: sequences at once in each group of tensor parallelism
    """

    tensors: bool
    family: str | int | float
    family_file: Path
    config: Path
    gpu_memory: Size
    gpu: Literal["a100", "l40s", "h100", "h200", "b200", "mi300x", "ascend910b"]
    count: int
    loading: bool
    rule: Texts
    recipe: Path
    tp: int
    ep: int
    etp: int
    pp_layers: str | int | float
    tp_fit: str | int | float
    kv_cache: str | int | float
    context: str | int | float
    sequences: int


class CheckOptions(TypedDict, total=False):
    """Options:

    deep: read every tensor, FP8 weights for NaN codes, and tell the rates of reading
    no_hashes: compare sizes with the manifest, not bytes
    tp: also warn where a cut for so many tensor-parallel ranks would split a scale group, or leave experts so
        narrow that an engine is wrong
    engine: tell whether this engine loads it, and how it builds every linear layer, by headers, JSON and small
        scales: vllm, sglang, trtllm, vllm-ascend, transformers, deepseek; ENGINE:VERSION insists on a version
    source_of: only tell whether this is the source of the directory CONVERTED
    family: model family instead of config.json's; generic accepts any names, auto makes a family
    family_file: a file that describes the model's family (docs/families.md)
    config: config.json of the model, for shards without one
    threads: threads (default: every processor)
    live: ask the engine at this address (http://127.0.0.1:8000) for the hashes of its loaded weights, and
        compare them with the files; a key comes from the variable INGOT_LIVE_TOKEN
    live_answer: compare an answer that was fetched otherwise, or by LLM.collective_rpc, or the checksum.json of
        SGLang's presharded weights
    live_ep: ranks of expert parallelism: all of a stage, or 1 (default: what fits)
    gpu: the card that it runs on, a100, l40s, h100, h200 or b200 (default: what fits any)
    learn: keep these digests as those of a trusted start, for parameters that kernels pack
    against: compare with the digests of a trusted start, too
    allow_http: let --live name another host by plain HTTP, where anyone on the way may answer
    live_timeout: seconds after which an answer comes too late (hashing 100 GB takes minutes)
    """

    deep: bool
    no_hashes: bool
    tp: int
    engine: str | int | float
    source_of: Path
    family: str | int | float
    family_file: Path
    config: Path
    threads: int
    live: str | int | float
    live_answer: Path
    live_ep: int
    gpu: str | int | float
    learn: Path
    against: Path
    allow_http: bool
    live_timeout: int


class CalibrateOptions(TypedDict, total=False):
    """Options:

    max_tokens: stop after so many tokens (default: read all)
    without: leave out of the directory: cache (ranges of keys and values), blocks (second moments of 16 inputs
        each), moments (those of all inputs, the largest); a list
    shrinkage: tokens that the layer's moments count for in the blocks of an expert, which borrows what too few
        tokens leave open (default: 32); 0: only its own
    quantized: a scheme of convert --to, or an output of convert for this model (./NAME where it is called like
        a scheme): each layer is given what the layers before it make there, weights and inputs quantized
    family: model family instead of config.json's
    family_file: a file that describes the model's family (docs/families.md)
    mem_limit: memory budget
    threads: threads (default: every processor)
    resume: continue a directory whose calibration was stopped or killed; the options must be the same
    """

    max_tokens: int
    without: str | int | float
    shrinkage: int
    quantized: Path
    family: str | int | float
    family_file: Path
    mem_limit: Size
    threads: int
    resume: bool


class BalanceOptions(TypedDict, total=False):
    """Options:

    text: text to read: a .txt file as one document, JSON {"docs": [...]}, or JSON lines (.jsonl); - is stdin
    loads: tokens per expert that were counted: a directory or file of ingot calibrate, or JSON {"layers": {"3":
        [tokens, ...]}} (.json)
    slots: places for experts on all ranks together (default: one for each expert); the busiest experts are in
        several
    nodes: machines that the ranks run on: groups of experts stay within one where the router has as many
        groups, or a multiple (default: 1)
    format: reader of the map: ingot (convert --expert-map), or sglang (--init-expert-location, which places the
        experts of an uncut checkpoint as it loads)
    max_tokens: stop after so many tokens (default: read all)
    family: model family instead of config.json's
    family_file: a file that describes the model's family (docs/families.md)
    mem_limit: memory budget
    threads: threads (default: every processor)
    html: also write a page with the tokens by layer and rank
    markdown: also write the report as Markdown
    """

    text: Path
    loads: Path
    slots: int
    nodes: int
    format: Literal["ingot", "sglang"]
    max_tokens: int
    family: str | int | float
    family_file: Path
    mem_limit: Size
    threads: int
    html: Path
    markdown: Path


class ConvertOptions(InspectConvertComposePrune, ConvertPrune, ConvertComposePrune, ConvertComposePruneMerge, ConvertComposePruneMergeRepair, total=False):
    """Options:

    family: model family instead of config.json's; generic accepts any names, auto makes a family
    family_file: a file that describes the model's family (docs/families.md)
    allow: accept a fault, KIND=PATTERN of one or more tensors, KIND one of nan-code, zero-scale,
        unknown-tensor, duplicate-tensor, nonfinite, f16-overflow, underflow, engine-refuses, lora-base;
        recorded in the manifest
    rule: SELECTOR=SCHEME; may be repeated, first match wins. A selector is a glob over names, re:EXPR,
        role:NAME (experts, attention, mlp, linear ...: ingot list roles), layers:0-2,last, or several with &
        between them
    recipe: YAML file of rules, which come after those of --rule; or one of experts-int8-attention-fp8,
        first-and-last-layers-bf16, mtp-kept, nvfp4-attention-fp8
    thresholds: YAML file of gates, instead of the defaults
    require: a gate, METRIC>=LIMIT or METRIC<=LIMIT, of one scheme METRIC[SCHEME]; may be repeated; metrics:
        ingot list metrics
    mem_limit: memory budget
    threads: threads (default: every processor)
    worst: print so many of the worst tensors, and every other line (default: 5, and at most 40 lines in all)
    log: append a line per event to this file
    """

    family: str | int | float
    family_file: Path
    allow: Texts
    rule: Texts
    recipe: Path
    thresholds: Path
    require: Texts
    mem_limit: Size
    threads: int
    worst: int
    log: Path


class ComposeOptions(InspectConvertComposePrune, ConvertComposePrune, ConvertComposePruneMerge, ConvertComposePruneMergeRepair, total=False):
    """Options:

    family: model family instead of config.json's; generic accepts any names, auto makes a family
    family_file: a file that describes the model's family (docs/families.md)
    allow: accept a fault, KIND=PATTERN of one or more tensors, KIND one of nan-code, zero-scale,
        unknown-tensor, duplicate-tensor, nonfinite, f16-overflow, underflow, engine-refuses, lora-base;
        recorded in the manifest
    source: another directory for a name of the recipe, or for `base`; may be repeated
    thresholds: YAML file of gates, instead of the defaults
    require: a gate, METRIC>=LIMIT or METRIC<=LIMIT, of one scheme METRIC[SCHEME]; may be repeated; metrics:
        ingot list metrics
    mem_limit: memory budget
    threads: threads (default: every processor)
    worst: print so many of the worst tensors, and every other line (default: 5, and at most 40 lines in all)
    log: append a line per event to this file
    """

    family: str | int | float
    family_file: Path
    allow: Texts
    source: Texts
    thresholds: Path
    require: Texts
    mem_limit: Size
    threads: int
    worst: int
    log: Path


class PruneOptions(InspectConvertComposePrune, ConvertPrune, ConvertComposePrune, ConvertComposePruneMerge, ConvertComposePruneMergeRepair, total=False):
    """Options:

    keep: experts that stay in each layer: a share below 1, as 0.75, or their number
    by: what experts are ranked by: saliency (router weight times size of the output, a mean over the expert's
        tokens), or tokens
    statistics: directory that ingot calibrate wrote of this model, to rank experts by
    keep_map: JSON with the experts that stay, by layer: {"layers": {"3": [0, 2, 5]}}
    measure: run the output next to the whole model: KL and drafts on built-in prompts (default: if the model
        has a forward pass here, and fits in --mem-limit)
    text: measure the perplexity of both on this text, too
    family: model family instead of config.json's; generic accepts any names, auto makes a family
    family_file: a file that describes the model's family (docs/families.md)
    allow: accept a fault, KIND=PATTERN of one or more tensors, KIND one of nan-code, zero-scale,
        unknown-tensor, duplicate-tensor, nonfinite, f16-overflow, underflow, engine-refuses, lora-base;
        recorded in the manifest
    rule: SELECTOR=SCHEME; may be repeated, first match wins. A selector is a glob over names, re:EXPR,
        role:NAME (experts, attention, mlp, linear ...: ingot list roles), layers:0-2,last, or several with &
        between them
    recipe: YAML file of rules, which come after those of --rule; or one of experts-int8-attention-fp8,
        first-and-last-layers-bf16, mtp-kept, nvfp4-attention-fp8
    thresholds: YAML file of gates, instead of the defaults
    require: a gate, METRIC>=LIMIT or METRIC<=LIMIT, of one scheme METRIC[SCHEME]; may be repeated; metrics:
        ingot list metrics
    mem_limit: memory budget
    threads: threads (default: every processor)
    worst: print so many of the worst tensors, and every other line (default: 5, and at most 40 lines in all)
    log: append a line per event to this file
    """

    keep: float
    by: str | int | float
    statistics: Path
    keep_map: Path
    measure: bool
    text: Path
    family: str | int | float
    family_file: Path
    allow: Texts
    rule: Texts
    recipe: Path
    thresholds: Path
    require: Texts
    mem_limit: Size
    threads: int
    worst: int
    log: Path


class JoinOptions(TypedDict, total=False):
    """Options:

    dry_run: refuse what would be refused, and publish nothing
    threads: threads (default: every processor)
    log: append a line per event to this file
    """

    dry_run: bool
    threads: int
    log: Path


class MergeOptions(ConvertComposePruneMerge, ConvertComposePruneMergeRepair, total=False):
    """Options:

    config: config.json of the model, for shards without one
    family: model family instead of config.json's
    family_file: a file that describes the model's family (docs/families.md)
    max_shard_size: re-shard into files of at most this size (default: the files that the unsliced checkpoint
        had, else 5GB)
    mem_limit: memory budget
    threads: threads (default: every processor)
    worst: print so many of the worst tensors, and every other line (default: 5, and at most 40 lines in all)
    log: append a line per event to this file
    """

    config: Path
    family: str | int | float
    family_file: Path
    max_shard_size: Size
    mem_limit: Size
    threads: int
    worst: int
    log: Path


class RepairOptions(ConvertComposePruneMergeRepair, total=False):
    """Options:

    family: model family instead of config.json's
    family_file: a file that describes the model's family (docs/families.md)
    allow: accept a fault, KIND=PATTERN of one or more tensors, KIND one of nan-code, zero-scale,
        unknown-tensor, duplicate-tensor, nonfinite, f16-overflow, underflow, engine-refuses, lora-base;
        recorded in the manifest
    dialect: layout of the quantized tensors, if it is not known any more: deepseek, compressed-tensors,
        modelopt, modelslim, mxfp4 (default: as it is recognized)
    links: yes (default): unchanged files are hard links to those of the source; no: all are written
    mem_limit: memory budget
    threads: threads (default: every processor)
    worst: print so many of the worst tensors, and every other line (default: 5, and at most 40 lines in all)
    log: append a line per event to this file
    """

    family: str | int | float
    family_file: Path
    allow: Texts
    dialect: str | int | float
    links: str | int | float
    mem_limit: Size
    threads: int
    worst: int
    log: Path


class DeltaOptions(TypedDict, total=False):
    """Options:

    out: stream that gets the new version, its last + 1; it is made where it is absent
    encoding: differences as XOR of all bytes, or as positions and bytes of those that changed; xor where a
        tensor has 4 GiB
    checksum: checksum of each tensor's new bytes
    in_place: write into the files of the base, by a journal, instead of a sibling directory that takes its
        place
    threads: threads (default: every processor)
    """

    out: Path
    encoding: Literal["xor", "overwrite"]
    checksum: Literal["xxh3-128", "blake3", "adler32"]
    in_place: bool
    threads: int


class VerifyOptions(VerifyCompare, total=False):
    """Options:

    family: model family instead of config.json's; generic accepts any names
    family_file: a file that describes the model's family (docs/families.md)
    source_config: config.json of the source, for shards without one, or one file
    config: config.json of the output, for shards without one, or one file
    thresholds: YAML file of gates, instead of the defaults
    require: a gate, METRIC>=LIMIT or METRIC<=LIMIT, of one scheme METRIC[SCHEME]; may be repeated; metrics:
        ingot list metrics
    no_hashes: compare sizes with the manifest, not bytes
    mem_limit: memory budget
    threads: threads (default: every processor)
    reference: compare one checkpoint with activations recorded elsewhere (safetensors)
    activation_scales: statistics of ingot calibrate, a directory or a file, that static scales are compared
        with, by structure
    part: compare only part I of N of the weights, I from 0, and print a report of the part, which is to be
        joined
    join: join the reports of all parts, given in place of the checkpoints, to the one report of an undivided
        run, and judge it
    reports: the report of a part, for a command that is given whole; may be repeated
    worst: print so many of the worst tensors, and every other line (default: 5, and at most 40 lines in all)
    ranks: how a sliced checkpoint runs: joined (slices seen as one model), or threads (each rank by itself with
        only its slice, all in this process)
    """

    family: str | int | float
    family_file: Path
    source_config: Path
    config: Path
    thresholds: Path
    require: Texts
    no_hashes: bool
    mem_limit: Size
    threads: int
    reference: Path
    activation_scales: Path
    part: str | int | float
    join: bool
    reports: Texts
    worst: int
    ranks: Literal["joined", "threads"]


class CompareOptions(VerifyCompare, total=False):
    """Options:

    reference: the source of both, or the recipe of ingot compose that names it: each is held against it, and
        the differences are paired
    require: A is no worse than B: METRIC<=B, or METRIC>=B where more is better, by the bad end of the 95%
        interval; B+MARGIN, B-MARGIN allow some; may be repeated
    family: model family instead of config.json's; generic accepts any names
    family_file: a file that describes the model's family (docs/families.md)
    a_config: config.json of A, for shards without one
    b_config: the same of B
    reference_config: the same of the reference
    no_hashes: compare sizes with the manifest, not bytes
    mem_limit: memory budget
    threads: threads (default: every processor)
    worst: print so many of the worst tensors, and every other line (default: 5, and at most 40 lines in all)
    """

    reference: Path
    require: Texts
    family: str | int | float
    family_file: Path
    a_config: Path
    b_config: Path
    reference_config: Path
    no_hashes: bool
    mem_limit: Size
    threads: int
    worst: int


class AttestOptions(TypedDict, total=False):
    """Options:

    verify: check signature and files: exit code 1 where one is not as it was signed
    form: in-toto (default): source, recipe and files, in ingot.intoto.json; model-signing: all files, for
        OpenSSF Model Signing, in model.sig
    bundle: file of the signed statement (default: in the output)
    source: the checkpoint that the output was made from; with --verify its files are compared too
    with_: OPTION=PATH: the file of an option that the conversion had, such as importance=DIR
    source_uri: address of the source in the statement, such as hf://ORG/NAME@COMMIT (default: that of the hub's
        cache)
    builder_id: URI of who made the output, for the statement
    passphrase_fd: descriptor that gives the passphrase of the key (default: the terminal is asked)
    threads: threads (default: every processor)
    """

    verify: bool
    form: Literal["in-toto", "model-signing"]
    bundle: Path
    source: Path
    with_: Texts
    source_uri: str | int | float
    builder_id: str | int | float
    passphrase_fd: int
    threads: int


class RederiveOptions(TypedDict, total=False):
    """Options:

    sample: tensors that are drawn and made again, with all their parts (default 64)
    all: make every tensor again
    seed: decides which tensors are drawn (default: a random one, which is told)
    with_: OPTION=PATH: the file of an option that the conversion had, such as importance=DIR
    bundle: statement that says how the output was made (default: ingot.intoto.json in the output, else its
        ingot.json)
    key: public key whose signature the statement must have
    threads: threads (default: every processor)
    """

    sample: int
    all: bool
    seed: int
    with_: Texts
    bundle: Path
    key: Path
    threads: int


class GenerateOptions(TypedDict, total=False):
    """Options:

    greedy: take the likeliest token, whatever the files say
    profile: arithmetic: native, bf16, f32
    config: config.json of the model, for shards without one
    prompts: file of prompts, separated by blank lines, or JSON lines (.jsonl); - is stdin
    arrivals: JSON lines of prompts, each with the "seconds" after the start at which it arrives; - is stdin
    messages: JSON conversation: a list of messages, or {"messages": [...], "tools": [...]}; - is stdin
    tokens: token ids in, token ids out; needs no tokenizer; - is stdin, a list in each line
    system: system message before the prompt
    chat_format: format that makes text of messages, instead of the checkpoint's: template, deepseek-v2,
        deepseek-v3, deepseek-r1, deepseek-v3.1, deepseek-v3.2, deepseek-v4
    raw: the prompt as it is, without chat format
    thinking: ask chat formats that can for a reasoned answer, or for none (default: as the format has it)
    max_new_tokens: longest answer (generation_config.json, else 512)
    temperature: 0 takes the likeliest token
    top_p: keep the likeliest tokens up to this probability
    top_k: keep this many tokens; 0: all
    seed: the same seed (default 0), prompt and options give the same answer
    draft: tokens that the layer for multi-token prediction proposes and a step checks at once (few hold beyond
        the first); the answers stay the same (default 0: the layer is not used)
    batch_tokens: tokens of all sequences that a step takes at most (default 512)
    kv_cache: numbers of the cache: f32, bf16, fp8, int8, fp8-static (f32 in profile f32, else bf16)
    mem_limit: memory for weights and caches; experts beyond it are read when needed (default: the available
        memory)
    threads: threads (default: every processor)
    log: write a JSON line per step: its tokens, caches, time, and messages between ranks
    ranks: how a sliced checkpoint runs: joined (slices seen as one model), or threads (each rank by itself with
        only its slice, all in this process)
    """

    greedy: bool
    profile: str | int | float
    config: Path
    prompts: Path
    arrivals: Path
    messages: Path
    tokens: str | int | float
    system: str | int | float
    chat_format: str | int | float
    raw: bool
    thinking: bool
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    draft: int
    batch_tokens: int
    kv_cache: str | int | float
    mem_limit: Size
    threads: int
    log: Path
    ranks: Literal["joined", "threads"]


class FamilyOptions(TypedDict, total=False):
    """Options:

    out: the family's file (default: printed)
    answer: the answer to a question that this command asks, once for each
    python: the Python whose transformers and torch are asked for the model's class; none: none is
    without: a family of the program that is not asked, as if there were none
    """

    out: Path
    answer: Texts
    python: str | int | float
    without: str | int | float


class SynthOptions(TypedDict, total=False):
    """Options:

    family: model family whose tensors to make; without --config one of deepseek_v2, deepseek_v3, deepseek_v32,
        glm_moe_dsa, kimi_k2, qwen3_moe
    family_file: a file that describes the model's family (docs/families.md)
    config: config.json whose model is made as it is, in BF16: any family, every width; without towers for
        images and sound
    like: widths: a tiny model for tests, few layers of the real one, or the whole model, released or of
        --config, as sparse files (headers; 671b-headers is the same)
    seed: decides every byte, with the options below (default 0)
    layers: decoder layers (default 2; released number with headers)
    dense_layers: how many of them, from the first, have a dense MLP
    mtp_layers: multi-token prediction layers after them
    experts: routed experts of a layer
    hidden: hidden width
    moe_intermediate: width of an expert
    intermediate: width of a dense MLP
    vocab: tokens in the vocabulary
    heads: attention heads
    scheme: how the weights are held that the family's FP8 release quantizes
    fp8_grid: scales: any F32 (amax), or powers of two (ue8m0)
    stacked: routed experts as stacks, in families that have them in both forms
    shards: weights files (default 1; released number with headers)
    zero_block: plant an all-zero 128x128 block
    subnormal_scales: plant a tensor with subnormal scales
    split_scale: plant a scale in another file than its weight
    threads: threads (default: every processor)
    """

    family: str | int | float
    family_file: Path
    config: Path
    like: Literal["tiny", "layer", "headers", "671b-headers"]
    seed: int
    layers: int
    dense_layers: int
    mtp_layers: int
    experts: int
    hidden: int
    moe_intermediate: int
    intermediate: int
    vocab: int
    heads: int
    scheme: Literal["fp8-block", "fp8", "bf16"]
    fp8_grid: Literal["amax", "ue8m0"]
    stacked: bool
    shards: int
    zero_block: bool
    subnormal_scales: bool
    split_scale: bool
    threads: int


class ListOptions(TypedDict, total=False):
    """Options:

    family: model family instead of config.json's; generic accepts any names
    family_file: a file that describes the model's family (docs/families.md)
    since: list engines: what the newest version changed, e.g. since vllm:0.32
    """

    family: str | int | float
    family_file: Path
    since: str | int | float


INHERITED: dict[str, list[type]] = {
    "InspectOptions": [InspectConvertComposePrune],
    "ConvertOptions": [InspectConvertComposePrune, ConvertPrune, ConvertComposePrune, ConvertComposePruneMerge, ConvertComposePruneMergeRepair],
    "ComposeOptions": [InspectConvertComposePrune, ConvertComposePrune, ConvertComposePruneMerge, ConvertComposePruneMergeRepair],
    "PruneOptions": [InspectConvertComposePrune, ConvertPrune, ConvertComposePrune, ConvertComposePruneMerge, ConvertComposePruneMergeRepair],
    "MergeOptions": [ConvertComposePruneMerge, ConvertComposePruneMergeRepair],
    "RepairOptions": [ConvertComposePruneMergeRepair],
    "VerifyOptions": [VerifyCompare],
    "CompareOptions": [VerifyCompare],
}
