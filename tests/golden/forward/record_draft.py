#!/usr/bin/env python3
"""Records draft.safetensors of a checkpoint in FP32 with vLLM's own module for multi-token prediction.

    record_draft.py CHECKPOINT GOLDEN OUT    GOLDEN: the recording of the main model; OUT: the file to write

The module is built and filled by vLLM. It gets the states of GOLDEN's last layer after the final norm,
each with the token that follows, as in one pass over a prompt. Only two kernels are written here: attention,
since vLLM's reads pages of a cache, and the chosen experts, whose kernel needs widths of 32. Positions count from 1: vLLM takes zeros for the embedding at position 0 of some
families, and rope depends only on distances."""
import json
import os
import sys
import tempfile

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind",
                  VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")

import torch
from safetensors.torch import load_file, save_file

torch.cpu._is_amx_tile_supported = lambda: False  # kernels for AMX know no FP32
torch.set_num_threads(1)

from vllm.config import set_current_vllm_config
from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.utils.torch_utils import set_default_torch_dtype


def attend(self, query, key, value, output_shape=None, output_dtype=None):
    n = query.shape[0]
    query = query.view(n, self.num_heads, -1).transpose(0, 1)
    key, value = (rows.view(n, self.num_kv_heads, -1).transpose(0, 1).repeat_interleave(
        self.num_heads // self.num_kv_heads, dim=0) for rows in (key, value))
    distance = torch.arange(n)[:, None] - torch.arange(n)[None, :]
    seen = distance >= 0
    if self.sliding_window is not None:
        seen &= distance < self.sliding_window
    scores = (query @ key.transpose(1, 2)) * self.impl.scale
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return (weights @ value).transpose(0, 1).reshape(n, -1)


def apply_experts(self, output, hidden_states, w1, w2, topk_weights, topk_ids, *rest, **more):
    output.zero_()
    for row, x in enumerate(hidden_states):
        for weight, expert in zip(topk_weights[row], topk_ids[row].tolist()):
            gate, up = (w1[expert] @ x).chunk(2)
            output[row] += weight * (w2[expert] @ (torch.nn.functional.silu(gate) * up))


Attention.forward = attend
CPUUnquantizedExperts.is_supported_config = staticmethod(lambda *args: (True, None))
CPUUnquantizedExperts.process_weights_after_loading = lambda self, layer: None
CPUUnquantizedExperts.apply = apply_experts
source, recorded, out = sys.argv[1:]
golden = load_file(recorded)
config = EngineArgs(model=source, dtype="float32", enforce_eager=True, max_model_len=256, skip_tokenizer_init=True,
                    speculative_config={"method": "mtp", "model": source, "num_speculative_tokens": 1}
                    ).create_engine_config()
draft = config.speculative_config.draft_model_config
with tempfile.TemporaryDirectory() as directory, set_current_vllm_config(config):
    init_distributed_environment(1, 0, f"file://{directory}/meeting", 0, "gloo")
    initialize_model_parallel(1, 1)
    with set_default_torch_dtype(torch.float32), torch.device("cpu"):
        model = initialize_model(vllm_config=config, model_config=draft)
    for parameter in model.parameters():
        parameter.data.fill_(float("nan"))  # an unread weight shows
    get_model_loader(config.load_config).load_weights(model, draft)
    process_weights_after_loading(model, draft, torch.device("cpu"))

weights = {}
for name in sorted(os.listdir(source)):
    if name.endswith(".safetensors"):
        weights.update(load_file(os.path.join(source, name)))
settings = json.load(open(os.path.join(source, "config.json")))
states = golden[f"hidden.{settings['num_hidden_layers']}"]
states = states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + settings["rms_norm_eps"])
states = (states * weights["model.norm.weight"].float())[:-1]
tokens = golden["input_ids"][1:]
with torch.no_grad(), set_current_vllm_config(config), set_forward_context(None, config, num_tokens=len(tokens)):
    hidden = model(tokens, torch.arange(1, len(tokens) + 1), states)
    logits = model.compute_logits(hidden)
assert hidden.isfinite().all() and logits.isfinite().all()
save_file({"hidden": hidden.contiguous(), "logits": logits[:, :settings["vocab_size"]].contiguous()}, out)
