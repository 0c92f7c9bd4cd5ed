# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of the dense families as llama.cpp's converter writes them, and the logits that llama.cpp gives.

usage: make_family_gguf_vectors.py [OUT.json]        OUT.json: tests/model/families_gguf.json

    python3 -m venv v && v/bin/pip install xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6
    v/bin/python models/reference/make_family_gguf_vectors.py

Names are those of gguf's own table, settings and orders of rows those of llama.cpp's conversion/*.py. Writes a list of
{"name": folder in tests/model/families, "architecture", "values": metadata, "tensors": {name: [Hugging Face's name,
heads whose rows are put in another order or 0, what is added]}, "floats": {name: numbers}, "logits": of the last id}.
Prints how far llama.cpp's logits are from the reference's.
"""
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

import gguf
import make_gguf_rope_vectors as llama
import numpy as np

FAMILIES = llama.ROOT / "tests/model/families"
# Not among them: EXAONE 4 with windows, which llama.cpp has in models of 64 layers alone.
PERMUTED = {"llama", "mistral3", "arcee"}
ARCHITECTURES = {
    "ministral3": "mistral3",
    "olmo3": "olmo2",
    "exaone4_full": "exaone4",
    "cohere2": "cohere2",
    "cohere": "command-r",
    "glm4": "glm4",
    "glm": "chatglm",
    "seed_oss": "seed_oss",
    "apertus": "apertus",
    "arcee": "arcee",
    "ernie4_5": "ernie4_5",
    "nemotron": "nemotron",
    "starcoder2": "starcoder2",
    "stablelm": "stablelm",
    "stablelm_parallel": "stablelm",
    "mistral_small3": "mistral3",
    "ministral3_sees": "mistral3",
    "phi4": "phi3",
    "gemma4": "gemma4",
    "gemma4_moe": "gemma4",
}
XIELU = {"alpha_n": "xielu.alpha_n", "alpha_p": "xielu.alpha_p", "beta": "xielu.beta", "eps": "xielu.eps"}


def tensors_of(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    for name, entry in json.loads(data[8:8 + size]).items():
        begin, end = entry["data_offsets"]
        kind = {"F32": np.float32, "I32": np.int32}[entry["dtype"]]
        yield name, np.frombuffer(data[8 + size + begin:8 + size + end], kind).reshape(entry["shape"])


def rope_freqs(rope, dim):
    """What the converter makes of llama3's settings."""
    base, low, high = rope["rope_theta"], rope["low_freq_factor"], rope["high_freq_factor"]
    trained, factor = rope["original_max_position_embeddings"], rope["factor"]
    for i in range(0, dim, 2):
        length = 2 * math.pi * base ** (i / dim)
        if length < trained / high:
            yield 1.0
        elif length > trained / low:
            yield factor
        else:
            smooth = (trained / length - low) / (high - low)
            yield 1 / ((1 - smooth) / factor + smooth)


def gemma4_values(config):
    types, shared = config["layer_types"], config["num_kv_shared_layers"]
    full = [config.get("per_layer_config", {}).get(str(i), {}) for i, t in enumerate(types) if t == "full_attention"][0]
    dim = full.get("head_dim", config.get("global_head_dim"))
    v = {"attention.shared_kv_layers": shared, "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
         "attention.sliding_window": config["sliding_window"],
         "attention.sliding_window_pattern": [t == "sliding_attention" for t in types],
         "attention.key_length": dim, "attention.value_length": dim, "rope.dimension_count": dim,
         "rope.freq_base_swa": config["rope_parameters"]["sliding_attention"]["rope_theta"]}
    v |= {key: config["head_dim"] for key in ("attention.key_length_swa", "attention.value_length_swa",
                                              "rope.dimension_count_swa")}
    kv = config["num_key_value_heads"]
    if full.get("num_key_value_heads", kv) != kv:
        v["attention.head_count_kv"] = [kv if t == "sliding_attention" else full["num_key_value_heads"] for t in types]
    if config.get("use_double_wide_mlp"):
        inner = config["intermediate_size"]
        v["feed_forward_length"] = [inner if i < len(types) - shared else 2 * inner for i in range(len(types))]
    if config.get("final_logit_softcapping"):
        v["final_logit_softcapping"] = config["final_logit_softcapping"]
    if config.get("enable_moe_block"):
        v |= {"expert_count": config["num_experts"], "expert_used_count": config["top_k_experts"],
              "expert_feed_forward_length": config["moe_intermediate_size"]}
    return v


GEMMA4 = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
          "layer_scalar": "layer_output_scale.weight", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
          "experts.down_proj": "ffn_down_exps.weight"}


def values_of(config, architecture):
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    heads = config["num_attention_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    v = {"block_count": config["num_hidden_layers"], "context_length": config["max_position_embeddings"],
         "embedding_length": config["hidden_size"], "feed_forward_length": config["intermediate_size"],
         "attention.head_count": heads, "attention.head_count_kv": config["num_key_value_heads"],
         "rope.freq_base": rope["rope_theta"], "vocab_size": config["vocab_size"]}
    if config.get("head_dim"):
        v |= {"attention.key_length": dim, "attention.value_length": dim}
    if config.get("rms_norm_eps"):
        v["attention.layer_norm_rms_epsilon"] = config["rms_norm_eps"]
    for key in ("layer_norm_eps", "norm_epsilon", "norm_eps"):
        if config.get(key):
            v["attention.layer_norm_epsilon"] = config[key]
    if rope["rope_type"] == "yarn":
        v |= {"rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"],
              "rope.scaling.original_context_length": rope["original_max_position_embeddings"]}
        for key, to in {"attention_factor": "yarn_attn_factor", "beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}.items():
            if rope.get(key) is not None:
                v["rope.scaling." + to] = float(rope[key])
    if config["model_type"] == "ministral3":
        v |= {"rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"],
              "attention.temperature_scale": rope["llama_4_scaling_beta"]}
    if architecture in ("mistral3", "nemotron", "stablelm", "glm4", "chatglm", "cohere2", "phi3", "arcee", "apertus"):
        v["rope.dimension_count"] = int(dim * rope.get("partial_rotary_factor", 1.0))
    if architecture in ("command-r", "cohere2"):
        v |= {"logit_scale": config["logit_scale"], "rope.scaling.type": "none"}
    if architecture in ("olmo2", "exaone4", "cohere2") and config.get("sliding_window"):
        v["attention.sliding_window"] = config["sliding_window"]
        if architecture != "cohere2":
            v["attention.sliding_window_pattern"] = [t == "sliding_attention" for t in config["layer_types"]]
    if architecture == "gemma4":
        v |= gemma4_values(config)
    if architecture == "phi3":
        v["rope.scaling.original_context_length"] = config["max_position_embeddings"]
    if architecture == "stablelm":
        v["use_parallel_residual"] = config["use_parallel_residual"]
    return v, rope, dim


def case_of(folder, architecture):
    config = json.loads((folder / "config.json").read_text())
    sees = "text_config" in config
    config = config.get("text_config", config)
    values, rope, dim = values_of(config, architecture)
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    tensors, floats, arrays, xielu = {}, {}, {}, {}
    for full, array in tensors_of(folder / "model.safetensors"):
        name = full.replace("model.language_model.", "model.").replace("language_model.", "") if sees else full
        if "vision_tower" in name or "multi_modal_projector" in name:
            continue
        if ".act_fn." in name:
            xielu.setdefault(XIELU[name.rsplit(".", 1)[1]], {})[int(name.split(".")[2])] = float(array.reshape(()))
            continue
        to = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if architecture == "gemma4" and name.split(".", 3)[-1] in GEMMA4:
            to = f"blk.{name.split('.')[2]}.{GEMMA4[name.split('.', 3)[-1]]}"
        if to is None:
            raise SystemExit(f"{folder.name}: gguf has no name for {name}")
        heads = 0
        if architecture in PERMUTED and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        added = 1 if architecture == "nemotron" and name.endswith("norm.weight") else 0
        tensors[to] = [full, heads, added]
        if heads:
            array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        arrays[to] = array + np.float32(added)
    if rope["rope_type"] == "llama3":
        floats["rope_freqs.weight"] = [float(np.float32(x)) for x in rope_freqs(rope, dim)]
        arrays["rope_freqs.weight"] = np.array(floats["rope_freqs.weight"], np.float32)
    if architecture == "gemma4":
        half = values["attention.key_length"] // 2
        turning = int(half * rope["partial_rotary_factor"])
        floats["rope_freqs.weight"] = [1.0] * turning + [1e30] * (half - turning)
        arrays["rope_freqs.weight"] = np.array(floats["rope_freqs.weight"], np.float32)
    for key, of in xielu.items():
        values[key] = [of[i] for i in sorted(of)]
    return {"name": folder.name, "architecture": architecture, "values": values, "tensors": tensors, "floats": floats}, arrays


def write(path, case, arrays):
    out = gguf.GGUFWriter(path, case["architecture"])
    for key, value in case["values"].items():
        key = key if key.startswith("xielu.") else f"{case['architecture']}.{key}"
        if isinstance(value, list):
            out.add_array(key, value)
        elif isinstance(value, bool):
            out.add_bool(key, value)
        elif isinstance(value, str):
            out.add_string(key, value)
        elif isinstance(value, int):
            out.add_uint32(key, value)
        else:
            out.add_float32(key, value)
    out.add_string("tokenizer.ggml.model", "no_vocab")
    for name, array in arrays.items():
        out.add_tensor(name, np.ascontiguousarray(array, np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def main():
    if sys.argv[1:2] == ["--logits"]:
        llama.IDS = json.loads(sys.argv[3])
        llama.VOCAB, llama.N_CTX = int(sys.argv[4]), 256
        return llama.logits_of(sys.argv[2])
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else FAMILIES.parent / "families_gguf.json")
    lines = []
    with tempfile.TemporaryDirectory() as work:
        for name, architecture in ARCHITECTURES.items():
            folder = FAMILIES / name
            case, arrays = case_of(folder, architecture)
            expected = dict(tensors_of(folder / "expected.safetensors"))
            path = pathlib.Path(work) / f"{name}.gguf"
            write(path, case, arrays)
            command = [sys.executable, __file__, "--logits", path, json.dumps(expected["ids"].tolist()),
                       str(expected["logits"].shape[1])]
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode:
                print(name, "llama.cpp refuses it:", run.stderr.strip().splitlines()[-8:])
                continue
            case["logits"] = json.loads(run.stdout.strip().splitlines()[-1])
            off = np.abs(np.array(case["logits"]) - expected["logits"][-1]).max() / np.abs(expected["logits"]).max()
            print(f"{name}: {off:.1e} of the largest logit from the reference")
            lines.append(json.dumps(case))
    out.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
