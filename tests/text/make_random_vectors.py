#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes vectors/random.json: checksums of what Hugging Face's `tokenizers` makes of random texts.

    python3 tests/text/make_random_vectors.py [SHARED_DIR] [GEMMA_DIR]     # needs: pip install tokenizers==0.23.1

The texts are those of random_texts.hpp, drawn here a second time: 8,000 for each small tokenizer of vectors/tokenizers.json,
100,000 for each real one in SHARED_DIR (../shared) and for Gemma's (scripts/real_model).
"""
import json
import sys
from pathlib import Path

from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
REAL = ["models/recall_tiny", "models/stories260k", "tokenizers/phi3_mini_hf"]
PIECES = [" ", "  ", "\n", "\r\n", "\t", "a", "the", "king", " and", "ing", "'s", "'ll", "I'M", "0", "12", "2026", "3.14", "...", "?!", "--",
          "<s>", "</s>", "<unk>", "<0x41>", "<|bos|>", "<|left|>", "<|right|>", "[MASK]", "##a", "\u2581", "e\u0301", "\u200d", "\ufe0f",
          "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u0915\u094d\u0937", "\u1100\u1161\u11a8", "for (int i = 0;", "https://a.b/c?d=e"]
# First and last character: scripts, signs, emoji, controls, marks, what is private. Not U+061D, punctuation since Unicode 14, which
# Hugging Face's BERT takes for a letter (docs/models.md).
BLOCKS = [(0x20, 0x7e), (0x20, 0x7e), (0x00, 0x1f), (0x7f, 0xa0), (0xa1, 0xff), (0x100, 0x24f), (0x250, 0x2af), (0x300, 0x36f), (0x370, 0x3ff),
          (0x400, 0x52f), (0x531, 0x556), (0x5d0, 0x5ea), (0x620, 0x6ff), (0x905, 0x939), (0xe01, 0xe3a), (0x10a0, 0x10c5), (0x1100, 0x11ff),
          (0x1e00, 0x1eff), (0x2000, 0x206f), (0x20a0, 0x20bf), (0x2150, 0x218b), (0x2190, 0x23ff), (0x2600, 0x27bf), (0x3000, 0x30ff),
          (0x4e00, 0x9fa5), (0xac00, 0xd7a3), (0xe000, 0xe0ff), (0xfb00, 0xfb06), (0xff01, 0xff9f), (0x10330, 0x1034a), (0x1d400, 0x1d454),
          (0x1f300, 0x1f5ff), (0x1f600, 0x1f64f), (0x20000, 0x2a6d6), (0xe0100, 0xe01ef), (0x10ff00, 0x10fffd)]


class Texts:
    def __init__(self):
        self.state = 1

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n

    def text(self):
        parts = []
        for _ in range(1 + self.below(24)):
            if self.below(3) == 0:
                parts.append(PIECES[self.below(len(PIECES))])
            else:
                first, last = BLOCKS[self.below(len(BLOCKS))]
                parts.append(chr(first + self.below(last - first + 1)))
        return "".join(parts)


def add(h, number):
    return ((h ^ number) * 0x100000001b3) % 2**64


def row(tokenizer, name, count, decodes=True):
    """Checksums of all ids, each text's behind their number, and of the decoded texts unless one has half a character."""
    texts, ids_sum, text_sum = Texts(), 0xcbf29ce484222325, 0xcbf29ce484222325 if decodes else None
    for _ in range(count):
        ids = tokenizer.encode(texts.text()).ids
        ids_sum = add(ids_sum, len(ids))
        for i in ids:
            ids_sum = add(ids_sum, i)
        if text_sum is not None:
            decoded = tokenizer.decode(ids, skip_special_tokens=False)
            text_sum = None if "\ufffd" in decoded else text_sum
        if text_sum is not None:
            for byte in decoded.encode():
                text_sum = add(text_sum, byte)
    return {"name": name, "count": count, "ids": str(ids_sum), "texts": text_sum and str(text_sum)}


def main():
    shared = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[2] / "shared"
    small = json.loads((HERE / "vectors/tokenizers.json").read_text())
    out = {"pieces": PIECES, "blocks": BLOCKS, "kinds": [], "real": []}
    for kind in small["kinds"]:
        whole = dict(kind["tokenizer"], model=dict(small["models"][kind["model"]], **kind["change"]))
        # tokenizers 0.23 forgets that special tokens are special if they are normalized
        forgets = any(a["normalized"] and a["special"] for a in whole["added_tokens"])
        out["kinds"].append(row(Tokenizer.from_str(json.dumps(whole)), kind["name"], 8000, not forgets))
    for name in REAL:
        out["real"].append(row(Tokenizer.from_file(str(shared / "data" / name / "tokenizer.json")), name, 100000))
    if len(sys.argv) > 2:
        out["real"].append(row(Tokenizer.from_file(sys.argv[2] + "/tokenizer.json"), "gemma3_270m", 100000))
    with open(HERE / "vectors/random.json", "w") as f:
        f.write("{\n" + ",\n".join(json.dumps(k) + ": " + ("[\n" + ",\n".join(json.dumps(x) for x in v) + "\n]" if k in ("kinds", "real")
                                                            else json.dumps(v, separators=(",", ":"))) for k, v in out.items()) + "}\n")


if __name__ == "__main__":
    main()
