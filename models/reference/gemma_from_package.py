# SPDX-License-Identifier: Apache-2.0
"""Writes Gemma 3 270M, which scripts/real_model fetches as a quantised GGUF file, as a Hugging Face directory.

usage: gemma_from_package.py OUT_DIR --gguf FILE

Needs the packages gguf, numpy, sentencepiece and protobuf (scripts/real_model installs them). The
weights become bfloat16. The GGUF file lies in the directory too. Gemma's terms of use hold for the
result: measure with it, do not pass it on.
"""
import argparse
import json
import os
import pathlib
import shutil
import struct

import gguf
import numpy as np
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_pb

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# kinds of tokens in a GGUF vocabulary
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


def hf_name(name):
    whole = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in whole:
        return whole[name]
    _, layer, kind, _ = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[kind]}.weight"


def to_bfloat16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_weights(reader, path):
    tensors = {}
    for tensor in reader.tensors:
        x = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name = hf_name(tensor.name)
        if name.endswith("norm.weight"):
            x = x - 1  # the file holds the factor 1 + w
        tensors[name] = to_bfloat16(x)
    header, offset = {}, 0
    for name in sorted(tensors):
        end = offset + tensors[name].nbytes
        header[name] = {"dtype": "BF16", "shape": list(tensors[name].shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            out.write(tensors[name].tobytes())


def model_config(field, n_tokens):
    def g(key):
        return field("gemma3." + key)

    layers = g("block_count")
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": n_tokens,
        "hidden_size": g("embedding_length"),
        "intermediate_size": g("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": g("attention.head_count"),
        "num_key_value_heads": g("attention.head_count_kv"),
        "head_dim": g("attention.key_length"),
        "query_pre_attn_scalar": g("attention.key_length"),
        "max_position_embeddings": g("context_length"),
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "rope_theta": g("rope.freq_base"),
        "rope_local_base_freq": 10000.0,
        "rope_scaling": None,
        "sliding_window": g("attention.sliding_window"),
        "layer_types": ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(layers)],
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "torch_dtype": "bfloat16",
        **{f"{k}_token_id": field(f"tokenizer.ggml.{v}_token_id")
           for k, v in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))},
    }


def tokenizer_model(tokens, scores, kinds, special):
    model = sentencepiece_pb.ModelProto()
    unknown = sentencepiece_pb.ModelProto.SentencePiece.UNKNOWN
    for i, (token, score, kind) in enumerate(zip(tokens, scores, kinds)):
        # The file counts the unknown token among the control tokens, which SentencePiece 0.1 does not load.
        kind = unknown if i == special["unknown"] else int(kind)
        model.pieces.add(piece=token, score=float(score), type=kind)
    trainer = model.trainer_spec
    trainer.model_type = sentencepiece_pb.TrainerSpec.BPE
    trainer.byte_fallback = True
    trainer.vocab_size = len(tokens)
    trainer.bos_id, trainer.eos_id = special["bos"], special["eos"]
    trainer.pad_id, trainer.unk_id = special["padding"], special["unknown"]
    normalizer = model.normalizer_spec
    normalizer.name = "identity"
    normalizer.add_dummy_prefix = False
    normalizer.remove_extra_whitespaces = False
    normalizer.escape_whitespaces = True
    return model.SerializeToString()


def merges_of(tokens, scores, kinds):
    """A SentencePiece vocabulary as merges: every cut of a token into two, tokens of high score first."""
    ids = {token: i for i, token in enumerate(tokens)}
    cuts = []
    for token, score, kind in zip(tokens, scores, kinds):
        if kind != NORMAL:
            continue
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        pairs = [(a, b) for a, b in pairs if a in ids and b in ids]
        cuts += [(-score, ids[a], ids[b], (a, b)) for a, b in pairs]
    # tokens of one score keep their order, as they have one score each
    order = {token: i for i, token in enumerate(tokens)}
    cuts.sort(key=lambda c: (c[0], order[c[3][0] + c[3][1]], c[1], c[2]))
    return [list(c[3]) for c in cuts]


def tokenizer_json(tokens, scores, kinds, special):
    bos = tokens[special["bos"]]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": kind == CONTROL}
            for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind in (CONTROL, USER_DEFINED)
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {bos: {"id": bos, "ids": [special["bos"]], "tokens": [bos]}},
        },
        "decoder": {"type": "Sequence",
                    "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                                 {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": tokens[special["unknown"]],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges_of(tokens, scores, kinds),
        },
    }


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--gguf", type=pathlib.Path, required=True)
    args = parser.parse_args()

    building = args.out.with_name(args.out.name + ".part")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    joined = building / "gemma-3-270m-q4_k_m.gguf"
    try:
        os.link(args.gguf, joined)
    except OSError:  # another file system
        shutil.copyfile(args.gguf, joined)
    reader = gguf.GGUFReader(joined)

    def field(key):
        return reader.fields[key].contents()

    tokens, scores, kinds = (field("tokenizer.ggml." + k) for k in ("tokens", "scores", "token_type"))
    special = {k: field(f"tokenizer.ggml.{k}_token_id") for k in ("bos", "eos", "padding", "unknown")}
    config = model_config(field, len(tokens))
    write_weights(reader, building / "model.safetensors")
    write_json(building / "config.json", config)
    write_json(building / "generation_config.json", {k: config[k] for k in config if k.endswith("_token_id")})
    write_json(building / "tokenizer.json", tokenizer_json(tokens, scores, kinds, special))
    (building / "tokenizer.model").write_bytes(tokenizer_model(tokens, scores, kinds, special))
    write_json(building / "tokenizer_config.json", {
        "tokenizer_class": "GemmaTokenizer",
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        "bos_token": tokens[special["bos"]],
        "eos_token": tokens[special["eos"]],
        "pad_token": tokens[special["padding"]],
        "unk_token": tokens[special["unknown"]],
    })
    building.rename(args.out)
    print(f"{args.out}: {len(reader.tensors)} tensors, {len(tokens)} tokens")


main()
