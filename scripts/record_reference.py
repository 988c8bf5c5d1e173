#!/usr/bin/env python3
"""record_reference.py MODEL PROMPTS OUT.safetensors: activations of Hugging Face transformers, for ingot verify --reference.

MODEL is a directory that transformers can load: a quantized checkpoint dequantized (ingot convert --to bf16). PROMPTS is a
text file with prompts between blank lines, encoded as they are with the special tokens that the tokenizer adds; with
--ids, a line of token ids per prompt instead. Runs in float32 with eager attention on the CPU and writes per prompt i
prompti.input_ids, prompti.hidden.0 (the embedding) to .n (the output of the last decoder layer, before the final norm),
prompti.logits_last and prompti.greedy. Needs torch, transformers and safetensors.
"""
import argparse
import pathlib
import re


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, metavar="MODEL")
    parser.add_argument("prompts", type=pathlib.Path, metavar="PROMPTS")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT.safetensors")
    parser.add_argument("--ids", action="store_true", help="PROMPTS holds token ids, a prompt per line")
    parser.add_argument("--greedy", type=int, default=20, metavar="N", help="tokens to generate, 0 for none (default 20)")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the code that the checkpoint brings")
    return parser.parse_args()


def read_prompts(arguments):
    text = arguments.prompts.read_text(encoding="utf-8")
    if arguments.ids:
        prompts = [[int(word) for word in re.split(r"[,\s]+", line.strip())] for line in text.splitlines() if line.strip()]
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(arguments.model, trust_remote_code=arguments.trust_remote_code)
        blocks = [block.strip("\n") for block in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")) if block.strip()]
        prompts = [tokenizer(block)["input_ids"] for block in blocks]
    if not prompts:
        raise SystemExit(f"{arguments.prompts}: holds no prompt")
    return prompts


def record(model, ids, n_greedy):
    """Activations of one prompt, by name."""
    import torch

    layers = model.get_decoder().layers
    hidden = []
    # Hooks rather than output_hidden_states, whose last entry is after the final norm.
    def keep(module, inputs, output):
        hidden.append((output[0] if isinstance(output, tuple) else output).detach().clone())

    hooks = [module.register_forward_hook(keep) for module in [model.get_input_embeddings(), *layers]]
    tokens = torch.tensor([ids])
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    assert len(hidden) == len(layers) + 1
    found = {f"hidden.{i}": state[0].float() for i, state in enumerate(hidden)}
    found["input_ids"] = tokens[0]
    found["logits_last"] = logits[-1].float()
    if n_greedy > 0:
        with torch.no_grad():
            answer = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=n_greedy, do_sample=False,
                                    num_beams=1)
        found["greedy"] = answer[0, len(ids):]
    return {name: tensor.contiguous().clone() for name, tensor in found.items()}


def main():
    arguments = parse_arguments()
    import torch
    import transformers
    from safetensors.torch import save_file

    model = transformers.AutoModelForCausalLM.from_pretrained(
        arguments.model, dtype=torch.float32, attn_implementation="eager",
        trust_remote_code=arguments.trust_remote_code)
    model.eval()
    # The model's own settings may ask for penalties or other choices than the likeliest token.
    ends = model.generation_config.eos_token_id
    model.generation_config = transformers.GenerationConfig(eos_token_id=ends, pad_token_id=0)
    tensors = {}
    for i, ids in enumerate(read_prompts(arguments)):
        for name, tensor in record(model, ids, arguments.greedy).items():
            tensors[f"prompt{i}.{name}"] = tensor
    source = f"transformers {transformers.__version__} {model.config.model_type} float32 eager"
    save_file(tensors, str(arguments.out), metadata={"source": source})


if __name__ == "__main__":
    main()
