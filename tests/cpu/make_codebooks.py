#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/cpu/codebooks.inc: the codebooks of GGUF's IQ types, as the Python package `gguf` has them.

    python3 -m venv v && v/bin/pip install gguf==0.19.0 && v/bin/python make_codebooks.py

An entry stands for eight numbers of two bits, or for four of four bits, the first number in the lowest bits. The
numbers are indices into the few values that a type has; those stand in src/cpu/weights_codebooks.inc.
"""
import os

from gguf import quants

HEAD = """// SPDX-License-Identifier: Apache-2.0
// Written by tests/cpu/make_codebooks.py. The codebooks of GGUF's IQ types: indices of eight numbers in two bits each,
// or of four numbers in four bits each, the first in the lowest bits. They are part of the file format (ggml, MIT).
// clang-format off
"""
TABLES = [("kEightOf256", "IQ2_XXS", 2), ("kEightOf512", "IQ2_XS", 2), ("kEightOf1024", "IQ2_S", 2),
          ("kSignsOf2048", "IQ1_S", 2), ("kFourOf256", "IQ3_XXS", 4), ("kFourOf512", "IQ3_S", 4)]


def entries(name, bits):
    kind = getattr(quants, name)
    kind.init_grid()
    values = list(kind.grid_map)
    for row in kind.grid.reshape(kind.grid_shape):
        yield sum(values.index(int(number)) << (bits * i) for i, number in enumerate(row))


def main():
    text = HEAD
    for table, name, bits in TABLES:
        numbers = [f"0x{entry:04x}" for entry in entries(name, bits)]
        text += f"constexpr uint16_t {table}[{len(numbers)}] = {{  // {name}\n"
        for i in range(0, len(numbers), 12):
            text += "  " + ", ".join(numbers[i:i + 12]) + ",\n"
        text += "};\n"
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(os.path.join(root, "src", "cpu", "codebooks.inc"), "w") as file:
        file.write(text + "// clang-format on\n")


main()
