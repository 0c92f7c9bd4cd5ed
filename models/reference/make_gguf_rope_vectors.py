# SPDX-License-Identifier: Apache-2.0
"""A small GGUF file with rope, scale and head settings of every kind, and the logits that llama.cpp gives for each.

usage: make_gguf_rope_vectors.py [OUT_DIR]        OUT_DIR: tests/model/gguf_settings

    python3 -m venv v && v/bin/pip install xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6
    v/bin/python models/reference/make_gguf_rope_vectors.py

Writes base.gguf (a random llama of two layers, float32) and cases.json: a list of {"name", "architecture", "values":
keys of the metadata beyond the base's (null takes one away; "ARCH." is put before names without a dot's prefix),
"tensors": {name: floats}, "logits": of the last of the ids, or "refused": true where llama.cpp does not load it}.
llama.cpp runs in a process of its own for each case, for what it does not take may end the process.
"""
import ctypes
import importlib.machinery
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
IDS = [int(x) for x in np.random.default_rng(5).integers(0, 64, 48)]
N_CTX = 64
WIDTH, HEADS, KV_HEADS, INNER, LAYERS, VOCAB = 32, 4, 2, 48, 2, 64
DIM = WIDTH // HEADS


def base_values():
    return {"context_length": N_CTX, "embedding_length": WIDTH, "block_count": LAYERS, "feed_forward_length": INNER,
            "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
            "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 100.0, "rope.dimension_count": DIM,
            "vocab_size": VOCAB}


def base_tensors():
    random = np.random.default_rng(3)
    made = {"token_embd.weight": random.normal(0, 1, (VOCAB, WIDTH)), "output.weight": random.normal(0, 0.3, (VOCAB, WIDTH)),
            "output_norm.weight": random.normal(1, 0.1, WIDTH)}
    for i in range(LAYERS):
        for name, shape in {"attn_q": (WIDTH, WIDTH), "attn_k": (KV_HEADS * DIM, WIDTH), "attn_v": (KV_HEADS * DIM, WIDTH),
                            "attn_output": (WIDTH, WIDTH), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH),
                            "ffn_down": (WIDTH, INNER)}.items():
            made[f"blk.{i}.{name}.weight"] = random.normal(0, 0.35, shape)
        for name in ("attn_norm", "ffn_norm"):
            made[f"blk.{i}.{name}.weight"] = random.normal(1, 0.1, WIDTH)
    return {name: x.astype(np.float32) for name, x in made.items()}


S = "rope.scaling."
PAIRS = DIM // 2
FREQS = [1.0, 1.5, 2.0, 4.0]
FACTORS = {"rope_factors_short.weight": [1.0, 1.1, 1.2, 1.3], "rope_factors_long.weight": [1.0, 2.0, 3.0, 4.0]}
GRANITE = {"attention.scale": 0.2, "embedding_scale": 2.0, "residual_scale": 0.5, "logit_scale": 3.0}
CASES = {
    "plain": {},
    "base theta missing": {"rope.freq_base": None},
    "none with a factor": {S + "type": "none", S + "factor": 4.0},
    "none with the old factor": {S + "type": "none", "rope.scale_linear": 4.0},
    "a factor without a type": {S + "factor": 4.0},
    "the old factor": {"rope.scale_linear": 4.0},
    "both factors": {S + "factor": 2.0, "rope.scale_linear": 4.0},
    "a factor of 0 before the old one": {S + "factor": 0.0, "rope.scale_linear": 4.0},
    "linear": {S + "type": "linear", S + "factor": 4.0},
    "linear without a factor": {S + "type": "linear"},
    "linear with an attention factor": {S + "type": "linear", S + "factor": 4.0, S + "attn_factor": 1.3},
    "an attention factor alone": {S + "attn_factor": 1.3},
    "none with an attention factor": {S + "type": "none", S + "attn_factor": 1.3},
    "yarn": {S + "type": "yarn", S + "factor": 4.0},
    "yarn with its context": {S + "type": "yarn", S + "factor": 4.0, S + "original_context_length": 16},
    "yarn without a factor": {S + "type": "yarn"},
    "yarn with an attention factor": {S + "type": "yarn", S + "factor": 4.0, S + "attn_factor": 1.3},
    "yarn, finetuned": {S + "type": "yarn", S + "factor": 4.0, S + "finetuned": True},
    "yarn with a beta": {S + "type": "yarn", S + "factor": 4.0, S + "yarn_beta_fast": 4.0},
    "yarn with the usual betas": {S + "type": "yarn", S + "factor": 4.0, S + "yarn_beta_fast": 32.0, S + "yarn_beta_slow": 1.0},
    "yarn with ext_factor": {S + "type": "yarn", S + "factor": 4.0, S + "yarn_ext_factor": 0.5},
    "yarn with yarn_attn_factor": {S + "type": "yarn", S + "factor": 4.0, S + "yarn_attn_factor": 1.4},
    "longrope without lists": {S + "type": "longrope", S + "factor": 4.0},
    "longrope, long": {S + "type": "longrope", S + "original_context_length": 32, "tensors": FACTORS},
    "longrope, long, with a factor": {S + "type": "longrope", S + "factor": 2.0, S + "original_context_length": 32, "tensors": FACTORS},
    "longrope with an attention factor": {S + "type": "longrope", S + "original_context_length": 32, S + "attn_factor": 1.2, "tensors": FACTORS},
    "another type": {S + "type": "dynamic", S + "factor": 2.0},
    "rope_freqs": {"tensors": {"rope_freqs.weight": FREQS}},
    "rope_freqs with a factor": {S + "type": "linear", S + "factor": 2.0, "tensors": {"rope_freqs.weight": FREQS}},
    "rope_freqs, none with a factor": {S + "type": "none", S + "factor": 2.0, "tensors": {"rope_freqs.weight": FREQS}},
    "rope_freqs with an attention factor": {S + "attn_factor": 1.2, "tensors": {"rope_freqs.weight": FREQS}},
    "head counts as lists": {"attention.head_count": [HEADS] * LAYERS, "attention.head_count_kv": [KV_HEADS] * LAYERS,
                             "feed_forward_length": [INNER] * LAYERS},
    "dimension count missing": {"rope.dimension_count": None},
    "key and value length": {"attention.key_length": DIM, "attention.value_length": DIM},
    "attention.scale where it is not read": {"attention.scale": 0.1},
    "logit_scale where it is not read": {"logit_scale": 2.0},
    "granite": {"architecture": "granite", **GRANITE},
    "granite, attention.scale 0": {"architecture": "granite", **GRANITE, "attention.scale": 0.0},
    "granite without attention.scale": {"architecture": "granite", **GRANITE, "attention.scale": None},
    "granite without embedding_scale": {"architecture": "granite", **GRANITE, "embedding_scale": None},
    "granite without residual_scale": {"architecture": "granite", **GRANITE, "residual_scale": None},
    "granite without logit_scale": {"architecture": "granite", **GRANITE, "logit_scale": None},
    "granite, linear": {"architecture": "granite", **GRANITE, S + "type": "linear", S + "factor": 4.0},
}


def write(path, case):
    case = dict(case)
    tensors = {**base_tensors(), **{k: np.array(v, np.float32) for k, v in case.pop("tensors", {}).items()}}
    architecture = case.pop("architecture", "llama")
    out = gguf.GGUFWriter(path, architecture)
    for key, value in {**base_values(), **case}.items():
        key = f"{architecture}.{key}"
        if value is None:
            continue
        if isinstance(value, bool):
            out.add_bool(key, value)
        elif isinstance(value, str):
            out.add_string(key, value)
        elif isinstance(value, list):
            out.add_array(key, value)
        elif isinstance(value, int):
            out.add_uint32(key, value)
        else:
            out.add_float32(key, value)
    out.add_string("tokenizer.ggml.model", "no_vocab")
    for name, x in tensors.items():
        out.add_tensor(name, x)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def logits_of(path):
    """Of the last id, by llama.cpp."""
    loader = importlib.machinery.SourceFileLoader("weight_types", str(ROOT / "scripts/weight_types"))
    spec = importlib.util.spec_from_loader("weight_types", loader)
    wt = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(ROOT / "scripts"))
    loader.exec_module(wt)
    c = wt.library()
    c.llama_model_default_params.restype = c.llama_context_default_params.restype = wt.Settings
    c.llama_model_load_from_file.argtypes = [ctypes.c_char_p, wt.Settings]
    c.llama_init_from_model.argtypes = [ctypes.c_void_p, wt.Settings]
    c.llama_decode.argtypes = [ctypes.c_void_p, wt.Batch]
    c.llama_batch_init.restype = wt.Batch
    c.llama_get_logits_ith.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    c.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
    c.llama_model_load_from_file.restype = c.llama_init_from_model.restype = ctypes.c_void_p
    c.llama_backend_init()
    model = c.llama_model_load_from_file(str(path).encode(), c.llama_model_default_params())
    if not model:
        sys.exit(3)
    settings = c.llama_context_default_params()
    for i, value in {wt.N_CTX: N_CTX, wt.N_BATCH: 64, wt.N_UBATCH: 64, wt.N_OUTPUTS_MAX: 64, wt.N_THREADS: 1,
                     wt.N_THREADS_BATCH: 1, wt.TYPE_K: 0, wt.TYPE_V: 0}.items():
        settings.words[i] = value
    context = c.llama_init_from_model(model, settings)
    room = c.llama_batch_init(64, 0, 1)
    room.n_tokens = len(IDS)
    for i, token in enumerate(IDS):
        room.token[i], room.pos[i], room.n_seq_id[i], room.logits[i] = token, i, 1, 1
        room.seq_id[i][0] = 0
    if c.llama_decode(context, room) != 0:
        sys.exit(4)
    print(json.dumps([float(f"{x:.6g}") for x in np.ctypeslib.as_array(c.llama_get_logits_ith(context, len(IDS) - 1), (VOCAB,))]))


def main():
    if len(sys.argv) > 2 and sys.argv[1] == "--logits":
        return logits_of(sys.argv[2])
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "tests/model/gguf_settings")
    out.mkdir(parents=True, exist_ok=True)
    lines = []
    with tempfile.TemporaryDirectory() as work:
        for name, case in CASES.items():
            path = pathlib.Path(work) / "m.gguf"
            write(path, case)
            run = subprocess.run([sys.executable, __file__, "--logits", path], capture_output=True, text=True)
            entry = {"name": name, "architecture": case.get("architecture", "llama"),
                     "values": {k: v for k, v in case.items() if k not in ("architecture", "tensors")},
                     "tensors": case.get("tensors", {})}
            if run.returncode == 0:
                entry["logits"] = json.loads(run.stdout.strip().splitlines()[-1])
            else:
                entry["refused"] = True
            print(name, run.returncode, file=sys.stderr)
            lines.append(json.dumps(entry))
    write(out / "base.gguf", {})
    head = json.dumps({"ids": IDS, "values": base_values()})
    (out / "cases.json").write_text(head[:-1] + ', "cases": [\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
