#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes vectors/blocks.bin: blocks of every GGUF type with the numbers that the Python package `gguf` reads from them.

    python3 -m venv v && v/bin/pip install gguf==0.19.0 && v/bin/python make_vectors.py

Records, little-endian: name (8 bytes, padded with zeros), elements (uint32), block bytes (uint32), the bytes, then float32 elements.
Records "q8_0in", "q4_0in" and "mxfp4in" hold numbers instead: float32 [elements] after `block bytes` bytes that the package made of them.
"""
import os
import struct

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

random = np.random.default_rng(7)
out = bytearray()


def record(name, numbers, blocks):
    global out
    out += struct.pack("<8sII", name.encode(), numbers.size, blocks.size)
    out += blocks.tobytes() + numbers.astype("<f4").tobytes()


def finite(half):
    """A float16 that is finite and of a size that scales have, as two bytes."""
    return np.float16(half).view(np.uint16)


# where each type keeps its float16 scales
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "BF16": [], "F16": []}
for name, places in HALVES.items():
    elements, size = GGML_QUANT_SIZES[T[name]]
    count = max(1, 1024 // elements)
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    for place in places:
        scale = random.normal(0, 0.02, count).astype("<f2")
        scale[0] = 6e-8  # subnormal
        blocks[:, place:place + 2] = scale.view(np.uint8).reshape(count, 2)
    if name in ("BF16", "F16"):
        blocks = random.normal(0, 1, count).astype("<f2").view(np.uint8).reshape(count, 2)
        if name == "BF16":
            blocks = (random.normal(0, 1, count).astype("<f4").view(np.uint32) >> 16).astype("<u2").view(np.uint8).reshape(count, 2)
    flat = blocks.reshape(-1)
    record(name, dequantize(flat, T[name]).reshape(-1), flat)

for name in ("Q8_0", "Q4_0"):
    x = random.normal(0, 1, (32, 32)).astype(np.float32)
    x[1] = 0
    x[2] = -x[2].max()                      # all equal
    x[3] = np.arange(32) / 2 - 8            # ties
    x[4] *= 1e-7                            # a subnormal scale
    record(name.lower() + "in", x.reshape(-1), quantize(x, T[name]).reshape(-1))

# after the others, so that those stay as they are
blocks = random.integers(0, 256, (32, 17), dtype=np.uint8)
blocks[:, 0] = np.concatenate([[0, 1, 2, 3, 252], random.integers(100, 150, 27)])
flat = blocks.reshape(-1)
record("MXFP4", dequantize(flat, T.MXFP4).reshape(-1), flat)

x = random.normal(0, 1, (32, 32)).astype(np.float32)
x[1] = 0
x[2] = -x[2].max()
x[3] = np.resize(np.concatenate([[4, 6], np.arange(-16, 17) / 4, [0.25, 0.75, -5, 5]]), 32)  # ties
x[4] *= 1e-38                               # a subnormal scale
x[5] = np.float32(np.nextafter(np.float32(4), np.float32(0)))  # just below a power of two
record("mxfp4in", x.reshape(-1), quantize(x, T.MXFP4).reshape(-1))

for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_XS", "NVFP4"):
    elements, size = GGML_QUANT_SIZES[T[name]]
    blocks = random.integers(0, 256, (4, size), dtype=np.uint8)
    scale = random.normal(0, 0.02, 4).astype("<f2")
    scale[0] = 6e-8
    if name == "IQ1_M":
        for k in range(4):
            blocks[:, 49 + 2 * k] = (blocks[:, 49 + 2 * k] & 15) | (scale.view("<u2") >> (4 * k) & 15).astype(np.uint8) << 4
    elif name != "NVFP4":
        blocks[:, 0:2] = scale.view(np.uint8).reshape(4, 2)
    else:
        blocks[0, :4] = 0, 1, 7, 8          # zero, the least and the greatest subnormal, the least normal
        blocks[1, :4] = 0x7e, 0x7f, 0x70, 0x38
    flat = blocks.reshape(-1)
    record(name, dequantize(flat, T[name]).reshape(-1), flat)

# what long rows come to, so that every entry of a codebook is read: FNV-1a of their numbers
hashes = ""
for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_XS"):
    elements, size = GGML_QUANT_SIZES[T[name]]
    state, drawn = 1, bytearray()
    for _ in range(1024 * size):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        drawn.append(state >> 24)
    blocks = np.frombuffer(bytes(drawn), dtype=np.uint8).reshape(1024, size).copy()
    if name == "IQ1_M":
        for k in range(4):
            blocks[:, 49 + 2 * k] = (blocks[:, 49 + 2 * k] & 15) | ((0x2E66 >> (4 * k)) & 15) << 4
    else:
        blocks[:, 0], blocks[:, 1] = 0x66, 0x2E
    value = 14695981039346656037
    for byte in dequantize(blocks.reshape(-1), T[name]).astype("<f4").tobytes():
        value = ((value ^ byte) * 1099511628211) & 0xFFFFFFFFFFFFFFFF
    hashes += f"{name} {value}\n"
open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "vectors", "codebooks.txt"), "w").write(hashes)

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vectors", "blocks.bin")
open(path, "wb").write(out)
print(path, len(out), "bytes")
