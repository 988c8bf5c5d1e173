"""Makes modelopt_nvfp4_awq and modelopt_w4a16_awq: a linear layer each, as ModelOpt stores it, and its values.

Every product of a code, its scales and the factor of its column has few bits, so any order of products is exact.
"""

import hashlib
import json
import pathlib
import random
import struct

HERE = pathlib.Path(__file__).parent
NAME = "model.layers.0.mlp.down_proj"
ROWS, COLS = 48, 96
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
draw = random.Random(63)


def bf16(value):
    word = struct.unpack("<I", struct.pack("<f", value))[0]
    return struct.pack("<H", (word + 0x7FFF + (word >> 16 & 1)) >> 16)


def short_number(low, high):
    """A number of eight bits, as BF16 has them, with any sign left out."""
    return (128 + draw.randrange(128)) / 128 * 2.0 ** draw.randrange(low, high)


def save(folder, config, tensors, values):
    (HERE / folder).mkdir(exist_ok=True)
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[f"{NAME}.{name}"] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    (HERE / folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    block = {"quant_method": "modelopt", "has_zero_point": False, "pre_quant_scale": True, **config}
    model = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization_config": block}
    (HERE / folder / "config.json").write_text(json.dumps(model, indent=1) + "\n")
    entry = {"shape": [ROWS, COLS]}
    for kind, form in (("f32", lambda value: struct.pack("<f", value)), ("bf16", bf16)):
        all_values = b"".join(form(value) for row in values for value in row)
        entry[f"{kind}_sha256"] = hashlib.sha256(all_values).hexdigest()
    (HERE / folder / "decoded.json").write_text(json.dumps({f"{NAME}.weight": entry}, indent=1) + "\n")


factors = [short_number(-3, 4) for _ in range(COLS)]
stored_factors = ("BF16", [COLS], b"".join(map(bf16, factors)))

# E4M3: bias 7, three bits of mantissa; two codes to a byte, the first in the lower half.
codes = [[draw.randrange(16) for _ in range(COLS)] for _ in range(ROWS)]
scales = [[draw.randrange(8, 120) for _ in range(COLS // 16)] for _ in range(ROWS)]
scale_2 = 1.25 * 2.0**-9


def e4m3(byte):
    return (8 + byte % 8) / 8 * 2.0 ** (byte // 8 - 7)


save(
    "modelopt_nvfp4_awq",
    {"quant_algo": "NVFP4_AWQ", "group_size": 16},
    {
        "weight": (
            "U8",
            [ROWS, COLS // 2],
            bytes(row[i] | row[i + 1] << 4 for row in codes for i in range(0, COLS, 2)),
        ),
        "weight_scale": ("F8_E4M3", [ROWS, COLS // 16], bytes(byte for row in scales for byte in row)),
        "weight_scale_2": ("F32", [], struct.pack("<f", scale_2)),
        "pre_quant_scale": stored_factors,
    },
    [
        [
            (-1 if codes[r][c] & 8 else 1) * E2M1[codes[r][c] & 7] * e4m3(scales[r][c // 16]) * scale_2 * factors[c]
            for c in range(COLS)
        ]
        for r in range(ROWS)
    ],
)

# Signed codes; a byte has those of an even row and of the next.
codes = [[draw.randrange(-8, 8) for _ in range(COLS)] for _ in range(ROWS)]
scales = [[short_number(-8, -4) for _ in range(COLS // 32)] for _ in range(ROWS)]
save(
    "modelopt_w4a16_awq",
    {"quant_algo": "W4A16_AWQ", "group_size": 32},
    {
        "weight": (
            "U8",
            [ROWS // 2, COLS],
            bytes(codes[r][c] & 15 | (codes[r + 1][c] & 15) << 4 for r in range(0, ROWS, 2) for c in range(COLS)),
        ),
        "weight_scale": ("BF16", [ROWS, COLS // 32], b"".join(bf16(scale) for row in scales for scale in row)),
        "pre_quant_scale": stored_factors,
    },
    [[codes[r][c] * scales[r][c // 32] * factors[c] for c in range(COLS)] for r in range(ROWS)],
)
