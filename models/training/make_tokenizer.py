# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE tokenizer with Qwen2's way of splitting and one token per digit ->
tokenizer.json, tokenizer_config.json."""

import argparse
import json
import os

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|pad|>", "<|bos|>", "<|eos|>"]
PROMPTS = [  # what prompts are made of, counted often enough to get whole tokens
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information there.",
    "The pass key is Remember it. is the pass key.",
    "The sequence of digits is Remember it. is the sequence of digits.",
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.",
    "What is the pass key?",
    "What is the sequence of digits?",
    "The capital word for is",
    "Extract the value corresponding to the specified key in the JSON object below.",
    "JSON data:",
    "Key: The value associated with the specified key is:",
]


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument(
        "--texts", required=True, help="folder of war_and_peace.txt and frankenstein.txt"
    )
    ap.add_argument("--out", required=True)
    ap.add_argument("--vocab", type=int, default=1024)
    a = ap.parse_args()
    tok = Tokenizer(models.BPE(byte_fallback=False))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    lines = []
    for f in ("frankenstein.txt", "war_and_peace.txt"):
        with open(os.path.join(a.texts, f), encoding="utf-8", errors="replace") as text:
            lines += text.read().split("\n\n")
    tok.train_from_iterator(
        lines + PROMPTS * 150,
        trainers.BpeTrainer(
            vocab_size=a.vocab,
            special_tokens=SPECIAL,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    tok.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|bos|> $A", pair="<|bos|> $A $B", special_tokens=[("<|bos|>", 1)]
            ),
        ]
    )
    z = json.loads(tok.to_str())
    merges = z["model"]["merges"]
    z["model"]["merges"] = [
        m if isinstance(m, str) else " ".join(m) for m in merges
    ]  # the form every reader takes
    os.makedirs(a.out, exist_ok=True)
    with open(os.path.join(a.out, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(z, f, ensure_ascii=False, indent=1)
    with open(os.path.join(a.out, "tokenizer_config.json"), "w") as f:
        json.dump(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<|bos|>",
                "eos_token": "<|eos|>",
                "pad_token": "<|pad|>",
                "add_bos_token": True,
                "add_prefix_space": False,
                "clean_up_tokenization_spaces": False,
                "model_max_length": 1000000000,
            },
            f,
            indent=1,
        )


if __name__ == "__main__":
    main()
