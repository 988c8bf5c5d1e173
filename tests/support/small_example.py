#!/usr/bin/env python3
"""small_example.py EXAMPLE OUT: writes a quarter of examples/tiny-v32 for tests whose claims do not need all of it:
layers 0, 1 and the MTP layer (as number 2), 8 of 16 experts, and 320 of 2,048 tokens."""

import json
import math
import pathlib
import re
import struct
import sys

EXPERTS, TOKENS = 8, 320
LAST_OF_FIRST_FILE = 'model.layers.1.mlp.experts.6.gate_proj.weight_scale_inv'  # the up_proj is in the second


def new_name(name):
    """The name of a tensor in the small model; None where it has no such tensor."""
    expert = re.search(r'\.experts\.(\d+)\.', name)
    if expert and int(expert[1]) >= EXPERTS or re.match(r'model\.layers\.[234]\.', name):
        return None
    return name.replace('model.layers.5.', 'model.layers.2.')


def new_rows(name, rows):
    if re.search(r'(embed_tokens|lm_head|shared_head\.head)\.weight$', name):
        return TOKENS
    return EXPERTS if re.search(r'mlp\.gate\.', name) else rows


def read(path):
    """Name, dtype, shape and bytes of each tensor of a file in its order."""
    data = path.read_bytes()
    end = 8 + struct.unpack('<Q', data[:8])[0]
    header = json.loads(data[8:end])
    header.pop('__metadata__')
    for name, entry in header.items():
        begin, stop = (end + offset for offset in entry['data_offsets'])
        yield name, entry['dtype'], entry['shape'], data[begin:stop]


def write(path, tensors):
    header, offset = {'__metadata__': {'format': 'pt'}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {'dtype': dtype, 'shape': shape, 'data_offsets': [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    path.write_bytes(struct.pack('<Q', len(text)) + text + b''.join(data for _, _, data in tensors.values()))


def main(example, out):
    out.mkdir(parents=True, exist_ok=True)
    config = json.loads((example / 'config.json').read_text())
    config.update(num_hidden_layers=2, n_routed_experts=EXPERTS, vocab_size=TOKENS)
    (out / 'config.json').write_text(json.dumps(config, indent=2) + '\n')
    for side_file in ('generation_config.json', 'tokenizer_config.json'):
        (out / side_file).write_bytes((example / side_file).read_bytes())
    tokenizer = json.loads((example / 'tokenizer.json').read_text())
    vocabulary = {token: number for token, number in tokenizer['model']['vocab'].items() if number < TOKENS}
    tokenizer['model'].update(vocab=vocabulary, merges=[pair for pair in tokenizer['model']['merges']
                                                        if ''.join(pair) in vocabulary])
    (out / 'tokenizer.json').write_text(json.dumps(tokenizer))

    tensors = {}
    for shard in sorted(example.glob('*.safetensors')):
        for name, dtype, shape, data in read(shard):
            if new_name(name) is None:
                continue
            rows = new_rows(name, shape[0])
            tensors[new_name(name)] = dtype, [rows, *shape[1:]], data[:len(data) * rows // shape[0]]
    # Wider dtypes first, then by name, as in the example.
    names = sorted(tensors, key=lambda name: (-len(tensors[name][2]) // math.prod(tensors[name][1]), name))
    weight_map = {}
    for number in (1, 2):
        file = f'model-0000{number}-of-00002.safetensors'
        part = [name for name in names if (name <= LAST_OF_FIRST_FILE) == (number == 1)]
        write(out / file, {name: tensors[name] for name in part})
        weight_map |= dict.fromkeys(part, file)
    index = {'metadata': {'total_size': sum(len(data) for _, _, data in tensors.values())}, 'weight_map': weight_map}
    (out / 'model.safetensors.index.json').write_text(json.dumps(index, indent=1, sort_keys=True))


if __name__ == '__main__':
    main(*map(pathlib.Path, sys.argv[1:3]))
