# SPDX-License-Identifier: Apache-2.0
"""Ids and texts by the Python package sentencepiece: vectors/sentencepiece.json, and two small models.

usage: make_sentencepiece_vectors.py SHARED_DATA OUT_DIR [GEMMA_DIR]

Trains unigram and BPE models of a few hundred pieces on a public-domain text (committed: they are
ours), and takes the released tokenizer.model files of SHARED_DATA/tokenizers as they lie; GEMMA_DIR is
what scripts/real_model makes. "random" has checksums of 20,000 random texts of each, those of
make_random_vectors.py; "texts" null where a decoded text has half a character. Needs sentencepiece,
protobuf and tokenizers (0.2.3, 7.36.2 and 0.23.1 were used).
"""
import io
import json
import pathlib
import sys

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2

from make_random_vectors import Texts, add

shared, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
TEXTS = [
    "", " ", "a", "Hello, world!", "  two  spaces ", "\n\nlines\n", "tab\there", "The pass key is 71432.",
    "\u00e9t\u00e9 \u4e16\u754c \U0001f600 \u0416", "\ufb01ne \u00bd \u00c5", "<s> </s> <unk> [INST] <start_of_turn>user", "a\u0301 \u200b x",
    "x" * 70, "\u2581mark \u2581\u2581", "don't  stop\r\nnow", "1234567890 3.14", "\u0000nul",
]
book = (shared / "texts/frankenstein.txt").read_text(encoding="utf-8-sig")
OWN = ["<sep>", "foo bar", "--", "e m", "\u2581the x", "\n"]  # user-defined pieces
TRAINED = {
    "spm_unigram": dict(model_type="unigram", character_coverage=0.999, byte_fallback=False, normalization_rule_name="nmt_nfkc",
                        remove_extra_whitespaces=True),
    "spm_bpe": dict(model_type="bpe", character_coverage=0.999, byte_fallback=True, remove_extra_whitespaces=False),
    "spm_unigram_own": dict(model_type="unigram", byte_fallback=True, user_defined_symbols=OWN, treat_whitespace_as_suffix=True),
    "spm_bpe_own": dict(model_type="bpe", character_coverage=0.99, user_defined_symbols=OWN, add_dummy_prefix=False),
}
for name, settings in TRAINED.items():
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(book.split("\n")[:3000]), model_writer=model, num_threads=1, minloglevel=2,
        vocab_size=700 if "own" in name else 500, **{"normalization_rule_name": "identity", **settings})
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    if "own" in name:  # some pieces unused, as a restricted vocabulary leaves them
        for piece in [p for p in proto.pieces if p.type == p.NORMAL and len(p.piece) > 1][::7]:
            piece.type = piece.UNUSED
    (out / f"{name}.model").write_bytes(proto.SerializeToString())
models = {name: out / f"{name}.model" for name in TRAINED}
t = shared / "tokenizers"
models["llama2"] = t / "llama2_spm/tokenizer.model"
models["mistral1"] = t / "mistral_spm/tokenizer.model.v1"
models["mistral2"] = t / "mistral_spm/mistral_instruct_tokenizer_240216.model.v2"
models["mistral3"] = t / "mistral_spm/mistral_instruct_tokenizer_240323.model.v3"
if len(sys.argv) > 3:
    models["gemma"] = pathlib.Path(sys.argv[3]) / "tokenizer.model"
llama_cpp = t / "llama_cpp_vectors/ggml-vocab-llama-spm.gguf.inp"
extra = llama_cpp.read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
texts = TEXTS + [x for x in extra if x] + [book[i:i + 700] for i in range(5000, 200000, 20000)]


def random_sums(sp, count=20000):
    draw, ids_sum, text_sum = Texts(), 0xcbf29ce484222325, 0xcbf29ce484222325
    for _ in range(count):
        ids, begin = sp.encode(draw.text()), [sp.bos_id()] if sp.bos_id() >= 0 else []
        decoded = "".join(map(sp.id_to_piece, begin)) + sp.decode(ids)
        ids_sum = add(ids_sum, len(begin + ids))
        for i in begin + ids:
            ids_sum = add(ids_sum, i)
        text_sum = None if text_sum is None or "\ufffd" in decoded else text_sum
        for byte in decoded.encode() if text_sum is not None else b"":
            text_sum = add(text_sum, byte)
    return {"count": count, "ids": str(ids_sum), "texts": text_sum and str(text_sum)}


result = {"texts": texts, "models": []}
for name, file in models.items():
    sp = spm.SentencePieceProcessor(model_file=str(file))
    where = str(file.relative_to(shared)) if shared in file.parents else file.name
    cases = [[ids := sp.encode(x), sp.decode(ids)] for x in texts]
    result["models"].append({"name": name, "file": where, "bos": sp.bos_id(), "eos": sp.eos_id(), "vocab": sp.vocab_size(), "random": random_sums(sp),
                             "ids": [c[0] for c in cases], "decoded": [c[1] if c[1] != x else True for c, x in zip(cases, texts)]})
with open(out / "sentencepiece.json", "w", encoding="utf-8") as file:
    json.dump(result, file, ensure_ascii=False, separators=(",", ":"))
    file.write("\n")
