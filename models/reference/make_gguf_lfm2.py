# SPDX-License-Identifier: Apache-2.0
"""The checkpoint tests/model/families/lfm2 as a GGUF file of llama.cpp's names, and what llama.cpp computes with it.

usage: make_gguf_lfm2.py [OUT_DIR]              OUT_DIR: tests/model/gguf_lfm2
       make_gguf_lfm2.py --logits FILE.gguf     prints the logits of another file, one of `write_gguf` for instance

    python3 -m venv v && v/bin/pip install xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6 safetensors
    v/bin/python models/reference/make_gguf_lfm2.py

Writes lfm2.gguf and llama.json: {"logits": of the last of the checkpoint's ids}.
"""
import json
import pathlib
import subprocess
import sys

import gguf
import make_gguf_rope_vectors as llama
from safetensors.numpy import load_file

MODEL = llama.ROOT / "tests/model/families/lfm2"
NAMES = {"operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm",
         "self_attn.k_layernorm": "attn_k_norm", "conv.conv": "shortconv.conv", "conv.in_proj": "shortconv.in_proj",
         "conv.out_proj": "shortconv.out_proj", "feed_forward.w1": "ffn_gate", "feed_forward.w2": "ffn_down",
         "feed_forward.w3": "ffn_up"}
TOP = {"model.embed_tokens": "token_embd", "model.embedding_norm": "token_embd_norm"}


def name_of(tensor):
    stem = tensor.removesuffix(".weight")
    if stem in TOP:
        return TOP[stem] + ".weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def write(path):
    config = json.loads((MODEL / "config.json").read_text())
    tensors = load_file(MODEL / "model.safetensors")
    layers = config["num_hidden_layers"]
    kv = [config["num_key_value_heads"] if l in config["full_attn_idxs"] else 0 for l in range(layers)]
    out = gguf.GGUFWriter(path, "lfm2", use_temp_file=False)
    for key, value in {"context_length": config["max_position_embeddings"], "embedding_length": config["hidden_size"],
                       "block_count": layers, "vocab_size": config["vocab_size"],
                       "feed_forward_length": tensors["model.layers.0.feed_forward.w1.weight"].shape[0],
                       "attention.head_count": config["num_attention_heads"],
                       "shortconv.l_cache": config["conv_L_cache"]}.items():
        out.add_uint32("lfm2." + key, int(value))
    out.add_array("lfm2.attention.head_count_kv", kv)
    out.add_float32("lfm2.attention.layer_norm_rms_epsilon", config["norm_eps"])
    out.add_float32("lfm2.rope.freq_base", config["rope_theta"])
    out.add_string("tokenizer.ggml.model", "no_vocab")
    for name, x in tensors.items():
        out.add_tensor(name_of(name), x[:, 0, :] if name.endswith("conv.conv.weight") else x)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def main():
    llama.IDS = [int(x) for x in load_file(MODEL / "expected.safetensors")["ids"]]
    llama.VOCAB = json.loads((MODEL / "config.json").read_text())["vocab_size"]
    if len(sys.argv) > 2 and sys.argv[1] == "--logits":
        return llama.logits_of(sys.argv[2])
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else llama.ROOT / "tests/model/gguf_lfm2")
    out.mkdir(parents=True, exist_ok=True)
    write(out / "lfm2.gguf")
    run = subprocess.run([sys.executable, __file__, "--logits", out / "lfm2.gguf"], capture_output=True, text=True, check=True)
    (out / "llama.json").write_text(json.dumps({"logits": json.loads(run.stdout.strip().splitlines()[-1])}) + "\n")


if __name__ == "__main__":
    main()
