#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes vectors/tokenizers.json: small tokenizers of every supported kind, with the ids that
Hugging Face's `tokenizers` gives for hard texts, and checksums of whole books where ../shared is.

    python3 tests/text/make_vectors.py [SHARED_DIR]     # needs: pip install tokenizers
"""
import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, trainers, pre_tokenizers

HERE = Path(__file__).resolve().parent
CORPUS = [
    "Once upon a time there was a king who had three daughters, and the youngest of them asked him "
    "for 12 apples, 345 pears and 2026 nuts. I'll tell you what he'd said: we're, they've, don't!",
    "Caf\u00e9 na\u00efve \u00fcber stra\u00dfe. \u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440, "
    "\u043c\u0438\u0440 \u0438 \u0432\u043e\u0439\u043d\u0430. \u4f60\u597d\u4e16\u754c \u4f60\u597d.",
    "    for (int i = 0; i < n; ++i) {\n        sum += x[i];\n    }\n\n\n",
] * 4
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+"
          r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
TEXTS = [
    "", "a", " ", "  a", "Once upon a time", " the king\n\n and  his\t\tthree   daughters ",
    "\r\nfoo\r\n\r\n  bar \n ", "I'll DON'T we'Re 'sS \u017f'\u017f", "caf\u00e9 cafe\u0301 \u1e9b\u0323",
    "\u4f60\u597d\u4e16\u754c\u3002\u65e5\u672c\u8a9e", "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 ok",
    "\u180ea \u180e b\u0085c\u00a0d\u3000e\u2028f", "123456 12 3.14 \u0663\u0664 \u2167 \u00bd 2026",
    "<s>hi</s> <s> </s>  <unk>x", "<|bos|>Once<|eos|> a <|bos|>", "a <|left|>  <|right|> \n b<|left|>",
    "a king, kings king_ king. king", "\u2581\u2581 a\u2581b \u2581", "<0x41>", "\x00\x01 a\x7f",
    "e" + "\u0301\u0323" * 3, "\u0e01\u0e33 \u0915\u094d\u0937 \u1100\u1161", "\ufeffthe", "x" * 30,
    "the" * 12, " " * 20 + "a" + "\n" * 8,
    # BERT: punctuation by Unicode, controls, ideographs, accents, what its decoder tidies
    "a\u2014b \u00bfque? \u3008x\u3009 $5+5=10 ^_^ |`~ \u00a7", "a\u0000b\ufffdc\u00add\u200be\u2060f\ue000g",
    "\u4e00a\uf900\u3400b\U00020000 \u3042\u30a2\uac00", "\u00c5ngstr\u00f6m \u0130I\u0131 \u03a3\u03c2 \u00c6\u00df \ufb01",
    "he did n't , do not ! it 's ' we 're . ok ? [MASK] [CLS]x[SEP] [unk]", "the kings' daughters asked youngest",
]
PIECES = list("abcthekings  \n\t'.,!?19-_<>|") + [
    "\u00e9", "e\u0301", "\u4f60\u597d", "\U0001f600", "\u180e", "\u0085", "\u3000", "\u2581", "<s>", "</s>",
    "<|bos|>", "<|left|>", "<|right|>", "king", "the", "'ll", "\r\n", "\u0130", "\u200d", " and"]


def added(i, content, special=True, **flags):
    return dict(dict(id=i, content=content, single_word=False, lstrip=False, rstrip=False,
                     normalized=False, special=special), **flags)


def train(pre, special, size):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if len(special) == 2 else []))
    return json.loads(t.to_str())["model"]


def train_word_pieces():
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=BERT_SPECIAL, show_progress=False))
    return json.loads(t.to_str())["model"]


def kinds():
    """Three models, and tokenizers around them."""
    bytes_model = train(pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|bos|>", "<|eos|>"], 360)
    spm = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    pieces = train(pre_tokenizers.Metaspace(), spm, 360)
    pieces.update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    shared = {"bytes": bytes_model, "pieces": pieces, "word_pieces": train_word_pieces()}
    level = lambda **k: dict(dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True,
                                  use_regex=True), **k)
    split = lambda regex: {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated",
                           "invert": False}
    template = lambda token, i, end=False: {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        + ([{"SpecialToken": {"id": token, "type_id": 0}}] if end else []),
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [i], "tokens": [token]}}}
    sequence = lambda key, *parts: {"type": "Sequence", key: list(parts)}
    n = len(bytes_model["vocab"])
    bos = [added(0, "<|bos|>"), added(1, "<|eos|>")]
    more = bos + [added(n, "<|left|>", lstrip=True), added(n + 1, "<|right|>", rstrip=True),
                  added(n + 2, "kings", special=False, single_word=True),
                  added(n + 3, " and his", special=False, normalized=True)]
    spm_added = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>", special=False, rstrip=True)]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    prepend = sequence("normalizers", {"type": "Prepend", "prepend": "\u2581"}, replace)
    fallback = sequence("decoders", {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                        {"type": "ByteFallback"}, {"type": "Fuse"},
                        {"type": "Strip", "content": " ", "start": 1, "stop": 0})
    metaspace = lambda scheme, cut: {"type": "Metaspace", "replacement": "\u2581",
                                     "prepend_scheme": scheme, "split": cut}
    row = lambda name, model, a, norm, pre, post, dec, **change: dict(
        name=name, model=model, change=change, tokenizer={
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": a,
            "normalizer": norm, "pre_tokenizer": pre, "post_processor": post, "decoder": dec})
    deepseek = sequence("pretokenizers", split("[\r\n]"), {"type": "Digits", "individual_digits": True},
                        split(r"\s?\p{L}+"), level(use_regex=False))
    bert = [added(i, t) for i, t in enumerate(BERT_SPECIAL)]
    around = dict(template("[CLS]", 2), single=[{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                                                {"Sequence": {"id": "A", "type_id": 0}},
                                                {"SpecialToken": {"id": "[SEP]", "type_id": 0}}])
    around["special_tokens"]["[SEP]"] = {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}
    normal = lambda **k: dict(dict(type="BertNormalizer", clean_text=True, handle_chinese_chars=True,
                                   strip_accents=None, lowercase=True), **k)
    word_piece = lambda cleanup: {"type": "WordPiece", "prefix": "##", "cleanup": cleanup}
    return shared, [
        row("gpt2", "bytes", bos, None, level(), level(), level()),
        row("gpt2_prefix_space", "bytes", more, None, level(add_prefix_space=True), None, level()),
        row("llama3", "bytes", more, None,
            sequence("pretokenizers", split(LLAMA3), level(use_regex=False)),
            sequence("processors", level(), template("<|bos|>", 0)), level(), ignore_merges=True),
        row("qwen2", "bytes", more, {"type": "NFC"},
            sequence("pretokenizers", split(QWEN2), level(use_regex=False)), level(), level()),
        row("deepseek", "bytes", bos, sequence("normalizers"), deepseek, template("<|bos|>", 0, True),
            level()),
        row("llama2", "pieces", spm_added, prepend, None, template("<s>", 1), fallback),
        row("llama2_normalized_tokens", "pieces",
            [dict(t, normalized=True) for t in spm_added], prepend, None, template("<s>", 1), fallback),
        row("llama2_unknown", "pieces", spm_added, prepend, None, None, fallback, byte_fallback=False),
        row("metaspace_first", "pieces", spm_added, None, metaspace("first", False), template("<s>", 1),
            metaspace("first", False)),
        row("metaspace_split", "pieces", spm_added, None, metaspace("always", True), None,
            metaspace("always", True)),
        row("bert", "word_pieces", bert, normal(), {"type": "BertPreTokenizer"}, around, word_piece(True)),
        row("bert_accents", "word_pieces", bert, normal(strip_accents=False), {"type": "BertPreTokenizer"}, around,
            word_piece(False)),
        row("bert_cased", "word_pieces", bert, normal(lowercase=False, clean_text=False, handle_chinese_chars=False),
            {"type": "BertPreTokenizer"}, None, word_piece(True), max_input_chars_per_word=7),
    ]


def checksum(ids):
    h = 0xcbf29ce484222325
    for i in ids:
        h = ((h ^ i) * 0x100000001b3) & (2**64 - 1)
    return str(h)


def books(shared):
    rows = []
    for name in ["models/recall_tiny", "models/stories260k", "tokenizers/phi3_mini_hf"]:
        t = Tokenizer.from_file(str(shared / "data" / name / "tokenizer.json"))
        for book in ["war_and_peace.txt", "frankenstein.txt"]:
            ids = t.encode((shared / "data/texts" / book).read_bytes().decode()).ids
            rows.append(dict(tokenizer=name, book=book, count=len(ids), checksum=checksum(ids)))
    return rows


def main():
    rnd = random.Random(7)
    texts = TEXTS + ["".join(rnd.choice(PIECES) for _ in range(rnd.randrange(2, 24))) for _ in range(12)]
    models_, rows = kinds()
    for row in rows:
        t = Tokenizer.from_str(json.dumps(dict(row["tokenizer"], model=dict(models_[row["model"]],
                                                                           **row["change"]))))
        row["cases"] = []
        # tokenizers 0.23 forgets that special tokens are special if they are normalized
        forgets = any(a["normalized"] and a["special"] for a in row["tokenizer"]["added_tokens"])
        for i, text in enumerate(texts):
            ids = t.encode(text).ids
            row["cases"].append([i, ids, t.decode(ids), t.decode(ids, skip_special_tokens=False)])
            row["cases"][-1][2:] = [None if forgets or "\ufffd" in d else d for d in row["cases"][-1][2:]]
            if row["cases"][-1][2] == text:
                row["cases"][-1][2] = True  # the usual case, in fewer bytes
            if row["cases"][-1][3] == text:
                row["cases"][-1][3] = True
    out = dict(texts=texts, models=models_, kinds=rows)
    shared = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[2] / "shared"
    if shared.is_dir():
        out["books"] = books(shared)
    (HERE / "vectors").mkdir(exist_ok=True)
    with open(HERE / "vectors/tokenizers.json", "w") as f:
        f.write("{\n" + ",\n".join(
            json.dumps(k) + ": " + ("[\n" + ",\n".join(json.dumps(x, separators=(",", ":")) for x in v)
                                    + "]" if isinstance(v, list) else json.dumps(v, separators=(",", ":")))
            for k, v in out.items()) + "}\n")


main()
