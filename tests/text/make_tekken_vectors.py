#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes vectors/tekken/: small files of the kind tekken.json, and the ids that mistral-common gives to texts.

    python3 -m venv v && v/bin/pip install mistral-common==1.13.1 && v/bin/python make_tekken_vectors.py

The vocabulary is the beginning of the one that mistral-common has (Apache-2.0). One file names its special tokens, the
other is of a version that did not. Each is NAME/tekken.json, beside texts.json: [[text, ids], ...].
"""
import json
import pathlib
import random

import mistral_common
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

REAL = pathlib.Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
OUT = pathlib.Path(__file__).parent / "vectors" / "tekken"
TEXTS = ["", "a", " ", "Hello, world!", "The quick brown fox jumps over the lazy dog.", "  two  spaces\n\n and lines\r\n",
         "1234567 and 3.14", "\u4f60\u597d\uff0c\u4e16\u754c", "na\u00efve caf\u00e9 \u00c5ngstr\u00f6m", "DON'T don't I'LL we've",
         "\U0001f600 \U0001f469\u200d\U0001f4bb", "int main() { return 0; }\n\t\t// done", "\u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0442\u0435\u043a\u0441\u0442",
         "...!!!???", "a/b/c//d", "\u0301combining \u0301", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "[INST] hi [/INST]", "<s></s>",
         "CamelCaseWordsAndUPPERCase", "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22", "\t\n\r ", "x" * 300]


def drawn(seed):
    draw = random.Random(seed)
    pieces = ["the ", "ing", "\n", "  ", "A", "b", "7", "\u00e9", "\u4e16", "'s", "/", "-", "\U0001f600", "Ed", ", "]
    return ["".join(draw.choice(pieces) for _ in range(draw.randint(1, 30))) for _ in range(60)]


def main():
    real = json.loads(REAL.read_text())
    vocab = real["vocab"][:700]
    named = [{"rank": i, "token_str": text, "is_control": text != "[THINK]"}
             for i, text in enumerate(["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[THINK]"])]
    for name, special, version in (("named", named, "v11"), ("old", None, "v3")):
        count = 10 if special else 25
        config = {"pattern": real["config"]["pattern"], "num_vocab_tokens": len(vocab),
                  "default_vocab_size": 600 + count, "default_num_special_tokens": count, "version": version}
        content = {"config": config, "vocab": vocab}
        if special:
            content["special_tokens"] = special
        folder = OUT / name
        folder.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(token) for token in vocab)
        head = json.dumps({k: v for k, v in content.items() if k != "vocab"}, indent=1)
        (folder / "tekken.json").write_text(head[:-2] + ',\n "vocab": [\n' + lines + "\n]}\n")
        reader = Tekkenizer.from_file(folder / "tekken.json")
        rows = [[text, reader.encode(text, bos=False, eos=False)] for text in TEXTS + drawn(1)]
        (folder / "texts.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


main()
