#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes vectors/odd.json: tokenizer.json files that are odd, damaged or hostile, and what Hugging
Face's `tokenizers` makes of them: ids and decoded texts, or that it refuses them.

    python3 tests/text/make_odd_vectors.py     # needs: pip install tokenizers
"""
import copy
import json
import os
from pathlib import Path

from tokenizers import Tokenizer

from make_added_vectors import BASES, LEVEL, MARK, added, template

HERE = Path(__file__).resolve().parent
TEXTS = ["ab a  b", " tool\n12,3 aab", "", "x\u00e9\u4f60\U0001f600z", "<|end|>a <s>b", "aAbB tOl"]


def split(pattern, behavior="Isolated", invert=False):
    kind = pattern if isinstance(pattern, dict) else {"Regex": pattern}
    return {"type": "Split", "pattern": kind, "behavior": behavior, "invert": invert}


def rows():
    """name, base, {path: value} to change (value None: as JSON null, "-": taken out)"""
    s = lambda kind, key, *items: {"type": "Sequence", key: list(items)}
    pre = lambda *items: {"pre_tokenizer": s("", "pretokenizers", *items)}
    level = dict(LEVEL, use_regex=False)
    yield "an added token of one space", "bytes", {"added_tokens": [added(256, "<|end|>"), added(257, " ")]}
    yield "an added token of control characters", "bytes", {"added_tokens": [added(256, "<|end|>"), added(257, "\u0000\u0007\n")]}
    yield "an added token within another", "bytes", {"added_tokens": [added(257, "tool"), added(258, "oo"), added(259, "<|end|>a")]}
    yield "added tokens: null", "bytes", {"added_tokens": None}
    yield "added tokens: 300 of them", "bytes", {"added_tokens": [added(257 + i, "<%d>" % i) for i in range(300)]}
    yield "vocabulary with a hole", "bytes", {"model/vocab/hole": 900}
    yield "two tokens of one id", "bytes", {"model/vocab/ab": 5}
    yield "negative id", "bytes", {"model/vocab/ab": -1}
    yield "an empty token", "bytes", {"model/vocab/": 257}
    yield "merges", "bytes", {"model/vocab/aa": 257, "model/vocab/aab": 258, "model/vocab/ab": 259, "model/merges": [["a", "b"], ["a", "a"], ["aa", "b"]]}
    yield "a merge twice", "bytes", {"model/vocab/aa": 257, "model/vocab/ab": 258, "model/merges": [["a", "a"], ["a", "b"], ["a", "a"]]}
    yield "merges as strings", "bytes", {"model/vocab/aa": 257, "model/merges": ["a a"]}
    yield "a merge with a space too many", "bytes", {"model/vocab/aa": 257, "model/merges": ["a  a"]}
    yield "a merge to no token", "bytes", {"model/merges": [["a", "b"]]}
    yield "a merge of no token", "bytes", {"model/merges": [["a", "nothing"]]}
    yield "merges that undo each other", "bytes", {"model/vocab/ab": 257, "model/vocab/ba": 258, "model/vocab/aba": 259, "model/merges": [["b", "a"], ["ab", "a"], ["a", "ba"], ["a", "b"]]}
    yield "ignore_merges", "bytes", {"model/vocab/ab": 257, "model/ignore_merges": True}
    yield "dropout", "bytes", {"model/dropout": 0.5}
    yield "dropout 0", "bytes", {"model/dropout": 0.0}
    yield "unk_token that is not there", "pieces", {"model/unk_token": "<none>"}
    yield "no unk_token", "pieces", {"model/unk_token": None, "model/byte_fallback": False}
    yield "byte_fallback without a byte", "pieces", {"model/vocab/<0xC3>": "-", "model/vocab/q": 6 + 0xc0}
    yield "no fuse_unk", "pieces", {"model/fuse_unk": False, "model/byte_fallback": False}
    yield "fuse_unk", "pieces", {"model/byte_fallback": False}
    yield "model without a type", "bytes", {"model/type": "-"}
    yield "model Unigram", "bytes", {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]}}
    yield "model WordLevel", "bytes", {"model": {"type": "WordLevel", "unk_token": "<unk>", "vocab": {"<unk>": 0, "a": 1}}, "added_tokens": []}
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            yield "split %s %s" % (behavior, invert), "bytes", dict(pre(split("[a ]", behavior, invert), level), **{"model/vocab/aa": 257, "model/vocab/ab": 258, "model/vocab/ba": 259, "model/vocab/\u0120a": 260, "model/merges": [["a", "a"], ["a", "b"], ["b", "a"], ["\u0120", "a"]]})
    yield "split at nothing", "bytes", dict(pre(split(""), level), **{"model/vocab/ab": 257, "model/merges": [["a", "b"]]})
    yield "split at an empty string", "bytes", dict(pre(split({"String": ""}), level), **{"model/vocab/ab": 257, "model/merges": [["a", "b"]]})
    yield "split at a word's border", "bytes", dict(pre(split(r"\b"), level), **{"model/vocab/ab": 257, "model/merges": [["a", "b"]]})
    yield "split at a string of signs", "bytes", dict(pre(split({"String": "."}), level), **{"model/vocab/ab": 257, "model/merges": [["a", "b"]]})
    yield "split by a class within a class", "bytes", dict(pre(split(r"[a-c[x-z]]+"), level))
    yield "a pattern that is damaged", "bytes", pre(split("(a"), level)
    yield "digits", "bytes", dict(pre({"type": "Digits", "individual_digits": True}, level), **{"model/vocab/12": 257, "model/merges": [["1", "2"]]})
    yield "empty sequences", "bytes", {"pre_tokenizer": s("", "pretokenizers", s("", "pretokenizers"), LEVEL), "normalizer": s("", "normalizers")}
    yield "prefix space", "bytes", {"pre_tokenizer": dict(LEVEL, add_prefix_space=True)}
    for scheme in ("always", "first", "never"):
        for cut in (True, False):
            yield "metaspace %s %s" % (scheme, cut), "pieces", {"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": cut}}
    yield "metaspace of two signs", "pieces", {"pre_tokenizer": {"type": "Metaspace", "replacement": "__", "prepend_scheme": "always", "split": True}}
    yield "replace by what looks like a group", "bytes", {"normalizer": {"type": "Replace", "pattern": {"Regex": "(a)(b)"}, "content": "$2\\1"}}
    yield "replace of nothing", "bytes", {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "-"}}
    yield "replace by a pattern of nothing", "bytes", {"normalizer": {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "-"}}
    yield "replace by nothing", "bytes", {"normalizer": {"type": "Replace", "pattern": {"Regex": "[ab]"}, "content": ""}}
    yield "prepend", "bytes", {"normalizer": {"type": "Prepend", "prepend": "ab"}}
    yield "normal forms", "bytes", {"normalizer": s("", "normalizers", {"type": "NFKD"}, {"type": "NFC"})}
    yield "the lower-casing normalizer", "bytes", {"normalizer": {"type": "Lowercase"}}
    yield "the stripping normalizer", "bytes", {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}
    yield "a normalizer of no kind", "bytes", {"normalizer": {"type": "Nothing"}}
    yield "template around", "bytes", {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"SpecialToken": {"id": "<|end|>", "type_id": 1}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|end|>", "type_id": 0}}], "pair": [], "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [256, 1], "tokens": ["<|end|>", "!"]}}}}
    yield "template without the text", "bytes", {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}], "pair": [], "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [256], "tokens": ["<|end|>"]}}}}
    yield "template of an unknown token", "bytes", {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<no>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {}}}
    yield "template in a sequence", "bytes", {"post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}, template("<|end|>", 256)]}}
    yield "decoder: null", "bytes", {"decoder": None}
    yield "decoder: replace", "bytes", {"decoder": s("", "decoders", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})}
    yield "decoder: of two", "pieces", {"decoder": s("", "decoders", {"type": "Replace", "pattern": {"String": MARK}, "content": "_"}, {"type": "ByteFallback"}, {"type": "Strip", "content": "_", "start": 2, "stop": 1})}
    yield "truncation and padding", "bytes", {"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}}
    yield "a key too many", "bytes", {"surprise": 1}
    yield "no version", "bytes", {"version": "-"}


def changed(base, change):
    out = copy.deepcopy(BASES[base])
    for path, value in change.items():
        at, keys = out, path.split("/")
        for key in keys[:-1]:
            at = at[key]
        if value == "-":
            at.pop(keys[-1])
        else:
            at[keys[-1]] = value
    return out


def main():
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    lines = []
    for name, base, change in rows():
        row = {"name": name, "base": base, "change": [[k.split("/"), v, v == "-"] for k, v in change.items()]}
        try:
            t = Tokenizer.from_str(json.dumps(changed(base, change)))
            t.no_truncation()
            row["cases"] = []
            for text in TEXTS:
                ids = t.encode(text).ids
                row["cases"].append([ids, t.decode(ids, skip_special_tokens=False)])
        except BaseException as e:
            row.pop("cases", None)
            row["refused"] = str(e)[:100]
        lines.append(json.dumps(row))
    head = json.dumps({"bases": BASES, "texts": TEXTS})
    (HERE / "vectors/odd.json").write_text(head[:-1] + ', "rows": [\n' + ",\n".join(lines) + "\n]}\n")
    print(len(lines), "rows;", [json.loads(l)["name"] for l in lines if "refused" in json.loads(l)])


if __name__ == "__main__":
    main()
