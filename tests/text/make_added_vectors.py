#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes vectors/added.json: directories of tokenizer files that name special and added tokens in
every place there is, and what AutoTokenizer (transformers 5.24) makes of texts with them.

    python3 tests/text/make_added_vectors.py     # needs: pip install transformers tokenizers
"""
import json
import tempfile
from pathlib import Path

from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

HERE = Path(__file__).resolve().parent
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
MARK = "\u2581"
TEXTS = ["a<tool>b<|im_end|>", "x <tool> y  <|im_end|>\n z", "<|im_end|><tool>a<|end|>",
         "atool <TOOL> toolA tool", "<s>a</s> b<pad><unk><mask> ", " a", "", "<x><y> <z>", "aTOOLb"]


def added(i, content, special=True, **flags):
    return dict(dict(id=i, content=content, single_word=False, lstrip=False, rstrip=False,
                     normalized=not special, special=special), **flags)


def token(content, **flags):
    return dict(dict(__type="AddedToken", content=content, lstrip=False, rstrip=False, single_word=False,
                     normalized=False, special=True), **flags)


def template(name, i):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]}}}


def byte_level():
    vocab = {c: i for i, c in enumerate(ALPHABET)}
    vocab["<|end|>"] = 256
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [added(256, "<|end|>")],
            "normalizer": None, "pre_tokenizer": LEVEL, "post_processor": None, "decoder": LEVEL,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "vocab": vocab, "merges": []}}


def pieces():
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for b in range(256):
        vocab["<0x%02X>" % b] = 3 + b
    for c in [MARK] + list("abtolxyzTOL<>|_imend/spk"):
        vocab[c] = len(vocab)
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": MARK},
                {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]},
            "pre_tokenizer": None, "post_processor": template("<s>", 1),
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
                      "vocab": vocab, "merges": []}}


BASES = {"bytes": byte_level(), "pieces": pieces()}
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
LLAMA = {"tokenizer_class": "LlamaTokenizer"}
TOOL = "<tool>"


def rows():
    """name, base, changes of tokenizer.json, tokenizer_config, special_tokens_map, added_tokens"""
    c = lambda **k: dict(FAST, **k)
    decoder = lambda *tokens: {str(i): {k: v for k, v in token(t, **f).items() if k != "__type"} for i, t, f in tokens}
    yield "nothing", "bytes", {}, None, None, None
    yield "decoder adds", "bytes", {}, c(added_tokens_decoder=decoder((257, TOOL, {}), (258, "<|im_end|>", {}))), None, None
    yield "decoder adds, ids far away", "bytes", {}, c(added_tokens_decoder=decoder((300, TOOL, {}), (290, "<|im_end|>", {}))), None, None
    yield "decoder: not special", "bytes", {}, c(added_tokens_decoder=decoder((257, TOOL, dict(special=False, normalized=True)))), None, None
    yield "decoder: flags", "bytes", {}, c(added_tokens_decoder=decoder((257, TOOL, dict(lstrip=True)), (258, "<|im_end|>", dict(rstrip=True)), (259, "tool", dict(single_word=True)))), None, None
    yield "decoder changes flags", "bytes", {}, c(added_tokens_decoder=decoder((256, "<|end|>", dict(lstrip=True, rstrip=True)))), None, None
    yield "decoder: id of another", "bytes", {}, c(added_tokens_decoder=decoder((256, TOOL, {}))), None, None
    yield "decoder: a token of the vocabulary", "bytes", {}, c(added_tokens_decoder=decoder((1, "a", {}))), None, None
    yield "additional_special_tokens", "bytes", {}, c(additional_special_tokens=[TOOL, "<|im_end|>"]), None, None
    yield "additional_special_tokens as objects", "bytes", {}, c(additional_special_tokens=[token(TOOL, lstrip=True), "<|im_end|>"]), None, None
    yield "extra_special_tokens, a list", "bytes", {}, c(extra_special_tokens=[TOOL, "<x>"]), None, None
    yield "extra_special_tokens, named", "bytes", {}, c(extra_special_tokens={"tool_token": TOOL, "x_token": "<x>"}), None, None
    yield "both extra lists", "bytes", {}, c(extra_special_tokens=["<x>"], additional_special_tokens=[TOOL]), None, None
    yield "pad_token", "bytes", {}, c(pad_token="<pad>"), None, None
    yield "all named", "bytes", {}, c(bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>", mask_token="<mask>"), None, None
    yield "named as objects", "bytes", {}, c(bos_token=token("<s>"), mask_token=token("<mask>", lstrip=True)), None, None
    yield "a name of its own", "bytes", {}, c(image_token=TOOL), None, None
    yield "names of their own, in order", "bytes", {}, c(z_token="<z>", a_token="<x>", extra_special_tokens={"y_token": "<y>", "b_token": TOOL}), None, None
    yield "named null", "bytes", {}, c(bos_token=None, eos_token="<|end|>"), None, None
    yield "eos by decoder", "bytes", {}, c(eos_token="<|im_end|>", added_tokens_decoder=decoder((257, "<|im_end|>", {}))), None, None
    yield "eos not special in the decoder", "bytes", {}, c(eos_token="<|im_end|>", added_tokens_decoder=decoder((257, "<|im_end|>", dict(special=False)))), None, None
    yield "added_tokens.json", "bytes", {}, c(), None, {TOOL: 257, "<|im_end|>": 258}
    yield "added_tokens.json, far ids", "bytes", {}, c(), None, {TOOL: 400, "<|im_end|>": 300}
    yield "added_tokens.json over tokenizer.json's id", "bytes", {}, c(), None, {TOOL: 256}
    yield "added_tokens.json, named", "bytes", {}, c(eos_token="<|im_end|>"), None, {TOOL: 257, "<|im_end|>": 258}
    yield "added_tokens.json beside a decoder", "bytes", {}, c(added_tokens_decoder=decoder((257, "<x>", {}))), None, {TOOL: 258}
    yield "special_tokens_map", "bytes", {}, c(), {"eos_token": "<|im_end|>", "pad_token": {"content": "<pad>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}}, None
    yield "special_tokens_map, additional", "bytes", {}, c(), {"additional_special_tokens": [TOOL]}, None
    yield "special_tokens_map over the config", "bytes", {}, c(eos_token="<x>"), {"eos_token": "<|im_end|>"}, None
    yield "special_tokens_map beside a decoder", "bytes", {}, c(added_tokens_decoder=decoder((257, "<x>", {}))), {"eos_token": "<|im_end|>"}, None
    yield "no config", "bytes", {}, None, {"eos_token": "<|im_end|>"}, {TOOL: 257}
    yield "json: other id", "bytes", {"added_tokens": [added(300, "<|end|>"), added(256, TOOL)]}, c(), None, None
    yield "json: beyond the vocabulary", "bytes", {"added_tokens": [added(256, "<|end|>"), added(300, TOOL), added(280, "<x>")]}, c(), None, None
    yield "json: twice", "bytes", {"added_tokens": [added(256, "<|end|>"), added(257, TOOL), added(258, TOOL, lstrip=True)]}, c(), None, None
    yield "json: empty", "bytes", {"added_tokens": [added(256, "<|end|>"), added(257, "")]}, c(), None, None
    yield "json: prefixes", "bytes", {"added_tokens": [added(257, "<x>"), added(258, "<x><y>"), added(259, "<")]}, c(), None, None
    yield "json: single word", "bytes", {"added_tokens": [added(257, "tool", single_word=True), added(258, "TOOL", special=False, single_word=True, normalized=False)]}, c(), None, None
    yield "normalized, lower case", "bytes", {"normalizer": {"type": "Replace", "pattern": {"String": "T"}, "content": "t"}, "added_tokens": [added(257, "TOOL", special=False, normalized=True), added(258, "<TOOL>", special=False, normalized=False)]}, c(), None, None
    yield "normalized changes to special", "bytes", {"added_tokens": [added(257, TOOL, special=False)]}, c(added_tokens_decoder=decoder((257, TOOL, dict(rstrip=True)))), None, None
    yield "lstrip over lines", "bytes", {"added_tokens": [added(257, TOOL, lstrip=True, rstrip=True), added(258, "<|im_end|>", lstrip=True, rstrip=True)]}, c(), None, None
    for bos in (None, True, False):
        for eos in (None, True, False):
            for post in (None, template("<|end|>", 256)):
                k = {n: v for n, v in (("add_bos_token", bos), ("add_eos_token", eos)) if v is not None}
                yield "add %s %s %s" % (bos, eos, post is not None), "bytes", {"post_processor": post}, c(bos_token="<s>", eos_token="<|end|>", **k), None, None
    yield "add_bos_token without bos", "bytes", {}, c(add_bos_token=True), None, None
    yield "add_eos_token without eos", "bytes", {"post_processor": template("<|end|>", 256)}, c(add_eos_token=True), None, None
    yield "pieces", "pieces", {}, c(bos_token="<s>", eos_token="</s>"), None, None
    yield "pieces add bos and eos", "pieces", {}, c(bos_token="<s>", eos_token="</s>", add_bos_token=True, add_eos_token=True), None, None
    yield "pieces add no bos", "pieces", {}, c(bos_token="<s>", eos_token="</s>", add_bos_token=False), None, None
    yield "pieces, normalized", "pieces", {}, c(added_tokens_decoder=decoder((283, TOOL, dict(special=False, normalized=True)), (284, "<|im_end|>", {}))), None, None
    for k in ({}, {"add_bos_token": True, "add_eos_token": True}, {"add_bos_token": False}):
        for post in (template("<s>", 1), None):
            yield "LLaMA's class %s %s" % (k, post is not None), "pieces", {"post_processor": post, "normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": False}}, dict(LLAMA, legacy=False, **k), None, None
    yield "pieces, LLaMA's class, byte-level", "bytes", {}, dict(LLAMA, add_bos_token=True, bos_token="<s>"), None, None
    yield "bos is of the template alone", "bytes", {"post_processor": template("<|end|>", 256)}, c(), None, None


def main():
    out = {"bases": BASES, "texts": TEXTS, "rows": []}
    for name, base, change, config, special_map, added_tokens in rows():
        with tempfile.TemporaryDirectory() as d:
            files = {"tokenizer.json": dict(BASES[base], **change), "tokenizer_config.json": config,
                     "special_tokens_map.json": special_map, "added_tokens.json": added_tokens}
            for file, content in files.items():
                if content is not None:
                    (Path(d) / file).write_text(json.dumps(content))
            row = {"name": name, "base": base, "change": change, "config": config, "special_map": special_map,
                   "added": added_tokens}
            try:
                t = AutoTokenizer.from_pretrained(d)
                row.update(bos=t.bos_token_id if t.bos_token else -1, eos=t.eos_token_id if t.eos_token else -1, size=len(t))
                row["cases"] = []
                for text in TEXTS:
                    ids = t.encode(text)
                    assert ids == t(text)["input_ids"]
                    row["cases"].append([ids, t.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)])
            except Exception as e:
                row["refused"] = "%s: %s" % (type(e).__name__, e)
                print(name, "->", row["refused"][:200])
        out["rows"].append(row)
    body = ",\n".join(json.dumps(r) for r in out["rows"])
    head = json.dumps({"bases": BASES, "texts": TEXTS})
    (HERE / "vectors/added.json").write_text(head[:-1] + ', "rows": [\n' + body + "\n]}\n")
    print(len(out["rows"]), "rows")


if __name__ == "__main__":
    main()
