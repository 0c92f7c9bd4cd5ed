# SPDX-License-Identifier: Apache-2.0
"""Small GGUF files with a mixture of experts of every architecture, and the logits that llama.cpp gives for each.

usage: make_gguf_mixture_vectors.py [OUT]        OUT: tests/model/gguf_mixtures.json

    python3 -m venv v && v/bin/pip install xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6
    v/bin/python models/reference/make_gguf_mixture_vectors.py

Writes a list of {"architecture", "values": keys behind the architecture's name, "tensors": [name, shape, middle, width],
"logits": of the last of the ids, or "refused": true where llama.cpp does not load it}. No tensor is in it: number i of
a tensor follows from its name and i (`numbers`), so that the test makes the same file. llama.cpp runs in a process of
its own for each.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
WIDTH, HEADS, DIM, EXPERTS, CHOSEN, INNER, SHARED, LAYERS, VOCAB, N_CTX = 32, 4, 8, 5, 2, 24, 40, 2, 64, 64
IDS = [int(x) for x in np.random.default_rng(5).integers(0, 64, 48)]  # those of make_gguf_rope_vectors.py


def numbers(name, shape, middle, width):
    """A 32-bit hash of the name's (FNV-1a) plus i, as a number within middle +- width."""
    seed = np.uint64(2166136261)
    for byte in name.encode():
        seed = (seed ^ np.uint64(byte)) * np.uint64(16777619) & np.uint64(0xFFFFFFFF)
    x = (np.arange(int(np.prod(shape)), dtype=np.uint64) + seed) & np.uint64(0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        x = (x ^ x >> np.uint64(shift)) * np.uint64(factor) & np.uint64(0xFFFFFFFF)
    unit = x.astype(np.float64) / 2.0**31 - 1.0
    return (middle + width * unit).astype(np.float32).reshape(shape)


def case(architecture, kv_heads=2, biases=False, norms=0, shared=0, **values):
    inner = values.pop("feed_forward_length", INNER)
    values = {"context_length": N_CTX, "embedding_length": WIDTH, "block_count": LAYERS, "feed_forward_length": inner,
              "attention.head_count": HEADS, "attention.head_count_kv": kv_heads,
              "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 100.0, "rope.dimension_count": DIM,
              "vocab_size": VOCAB, "expert_count": EXPERTS, "expert_used_count": CHOSEN, **values}
    tensors = [("token_embd.weight", (VOCAB, WIDTH), 0, 1.5), ("output.weight", (VOCAB, WIDTH), 0, 0.5),
               ("output_norm.weight", (WIDTH,), 1, 0.2)]
    kv = kv_heads * DIM
    for i in range(LAYERS):
        parts = {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "attn_q": (WIDTH, WIDTH), "attn_k": (kv, WIDTH),
                 "attn_v": (kv, WIDTH), "attn_output": (WIDTH, WIDTH), "ffn_gate_inp": (EXPERTS, WIDTH),
                 "ffn_gate_exps": (EXPERTS, INNER, WIDTH), "ffn_up_exps": (EXPERTS, INNER, WIDTH),
                 "ffn_down_exps": (EXPERTS, WIDTH, INNER)}
        if norms:
            parts |= {"attn_q_norm": (norms,), "attn_k_norm": (norms,)}
        if shared:
            parts |= {"ffn_gate_shexp": (shared, WIDTH), "ffn_up_shexp": (shared, WIDTH), "ffn_down_shexp": (WIDTH, shared)}
        if shared and architecture == "qwen2moe":
            parts["ffn_gate_inp_shexp"] = (WIDTH,)
        for name, shape in parts.items():
            norm = name.endswith("norm")
            tensors.append((f"blk.{i}.{name}.weight", shape, 1 if norm else 0, 0.2 if norm else 0.5))
        if biases:
            tensors += [(f"blk.{i}.attn_{x}.bias", (n,), 0, 0.5) for x, n in (("q", WIDTH), ("k", kv), ("v", kv))]
    return {"architecture": architecture, "values": values, "tensors": tensors}


def gpt_oss():
    c = case("gpt-oss", biases=True, expert_feed_forward_length=INNER,
             **{"attention.sliding_window": 7, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 16, "attention.key_length": DIM, "attention.value_length": DIM})
    c["tensors"] = [(n.replace("ffn_norm", "post_attention_norm"), *rest) for n, *rest in c["tensors"]]
    for i in range(LAYERS):
        more = {"attn_output.bias": (WIDTH,), "attn_sinks.weight": (HEADS,), "ffn_gate_inp.bias": (EXPERTS,),
                "ffn_gate_exps.bias": (EXPERTS, INNER), "ffn_up_exps.bias": (EXPERTS, INNER),
                "ffn_down_exps.bias": (EXPERTS, WIDTH)}
        # gates that the limit of 7 cuts
        c["tensors"] = [(n, s, m, 3.0 if n == f"blk.{i}.ffn_gate_exps.weight" else w) for n, s, m, w in c["tensors"]]
        c["tensors"] += [(f"blk.{i}.{name}", shape, 0, 1.0) for name, shape in more.items()]
    return c


GRANITE = {"attention.scale": 0.2, "embedding_scale": 2.0, "residual_scale": 0.5, "logit_scale": 3.0}
CASES = [
    case("llama"),
    case("qwen2moe", biases=True, shared=SHARED, feed_forward_length=48, expert_feed_forward_length=INNER,
         expert_shared_feed_forward_length=SHARED),
    case("qwen3moe", norms=DIM, feed_forward_length=48, expert_feed_forward_length=INNER,
         **{"attention.key_length": DIM, "attention.value_length": DIM}),
    case("olmoe", kv_heads=HEADS, norms=WIDTH),
    case("granitemoe", **GRANITE),
    case("granitemoe", shared=SHARED, expert_shared_feed_forward_length=SHARED, **GRANITE),
    gpt_oss(),
]


def write(path, c):
    out = gguf.GGUFWriter(path, c["architecture"])
    for key, value in c["values"].items():
        add = {int: out.add_uint32, float: out.add_float32, str: out.add_string}[type(value)]
        add(f"{c['architecture']}.{key}", value)
    out.add_string("tokenizer.ggml.model", "no_vocab")
    for name, shape, middle, width in c["tensors"]:
        out.add_tensor(name, numbers(name, shape, middle, width))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent.parent / "tests/model/gguf_mixtures.json"
    lines = []
    with tempfile.TemporaryDirectory() as work:
        for c in CASES:
            path = pathlib.Path(work) / "m.gguf"
            write(path, c)
            run = subprocess.run([sys.executable, HERE / "make_gguf_rope_vectors.py", "--logits", path],
                                 capture_output=True, text=True)
            found = {"refused": True} if run.returncode else {"logits": json.loads(run.stdout.strip().splitlines()[-1])}
            print(c["architecture"], run.returncode, run.stderr[-300:] if run.returncode else "", file=sys.stderr)
            lines.append(json.dumps({**c, **found}))
    out.write_text(json.dumps({"ids": IDS})[:-1] + ', "cases": [\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
