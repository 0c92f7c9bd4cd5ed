# SPDX-License-Identifier: Apache-2.0
"""What the scripts that read a long text with a real model share: its prose, and each token's nll."""
import json
import re
import struct


def prose(file, characters):
    """The first characters of a text (None: all), one line a paragraph: the print edition's line breaks are none of the text's.

    War and Peace begins behind its title and contents, which a model knows by heart.
    """
    book = file.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    book = book[max(0, book.find("\u201cWell, Prince")):]
    parts = (re.sub(r"\s+", " ", part).strip() for part in book.split("\n\n"))
    return "\n".join(part for part in parts if part)[:characters]


def nll_of(file):
    """Each token's nll in nats, of the first one too (0), from `episodic score --per-token FILE.safetensors`."""
    data = file.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    begin, end = json.loads(data[8:8 + size])["nll"]["data_offsets"]
    return struct.unpack(f"<{(end - begin) // 4}f", data[8 + size + begin:8 + size + end])
