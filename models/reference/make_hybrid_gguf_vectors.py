# SPDX-License-Identifier: Apache-2.0
"""The checkpoints with recurrences as llama.cpp's converter writes them, and the logits that llama.cpp gives.

usage: make_hybrid_gguf_vectors.py [OUT.json]        OUT.json: tests/model/gguf_hybrids.json

    python3 -m venv v && v/bin/pip install xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6
    v/bin/python models/reference/make_hybrid_gguf_vectors.py

Names are those of gguf's own table, settings and orders of rows those of llama.cpp's conversion. Writes a list of
{"name": folder in tests/model/families, "architecture", "values": metadata, "tensors": {name: {"shape", "rows":
[[Hugging Face's name, first row, rows], ...], "columns": [[first, count], ...] or none, "op": "", "1+" or "-exp",
"pairs": heads whose rows lie in pairs, or 0}}, "logits": of the last id, or "refused": true where llama.cpp does not
load it}. Prints how far llama.cpp's logits are from the reference's.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import make_gguf_rope_vectors as llama
import numpy as np
from make_family_gguf_vectors import tensors_of, write

FAMILIES = llama.ROOT / "tests/model/families"
ARCHITECTURES = {"qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe", "qwen3_next": "qwen3next",
                 "granite4": "granitehybrid", "granite4_rope": "granitehybrid", "granite4_moe": "granitehybrid"}


class Case:
    def __init__(self, folder, architecture):
        self.config = json.loads((folder / "config.json").read_text())
        self.source = dict(tensors_of(folder / "model.safetensors"))
        self.architecture, self.name, self.tensors = architecture, folder.name, {}

    def flat(self, name):
        x = self.source[name]
        return x.reshape(-1, x.shape[-1]) if x.ndim > 1 else x.reshape(-1, 1)

    def put(self, to, name, rows=None, shape=None, op="", columns=None, pairs=0):
        """`rows`: runs of [first, count] of one tensor, or of [name, first, count] of several."""
        rows = [[0, self.flat(name).shape[0]]] if rows is None else rows
        rows = [r if len(r) == 3 else [name, *r] for r in rows]
        x = np.concatenate([self.flat(n)[first:first + count] for n, first, count in rows])
        if columns:
            x = np.concatenate([x[:, first:first + count] for first, count in columns], axis=1)
        if shape is None:
            source = self.source[name].shape
            shape = [x.shape[0]] if len(source) == 1 else [x.shape[0], x.shape[1]]
        self.tensors[to] = {"shape": list(shape), "rows": rows, "columns": columns, "op": op, "pairs": pairs}

    def array(self, to):
        t = self.tensors[to]
        x = np.concatenate([self.flat(n)[first:first + count] for n, first, count in t["rows"]])
        if t["columns"]:
            x = np.concatenate([x[:, first:first + count] for first, count in t["columns"]], axis=1)
        if t["pairs"]:
            x = x.reshape(t["pairs"], 2, -1, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        x = {"": lambda v: v, "1+": lambda v: v + np.float32(1), "-exp": lambda v: -np.exp(v)}[t["op"]](x)
        return np.ascontiguousarray(x, np.float32).reshape(t["shape"])


def common(c):
    config = c.config
    rope = config.get("rope_parameters") or {"rope_theta": 10000.0}
    v = {"block_count": config["num_hidden_layers"], "context_length": config["max_position_embeddings"],
         "embedding_length": config["hidden_size"], "attention.head_count": config["num_attention_heads"],
         "attention.layer_norm_rms_epsilon": config["rms_norm_eps"], "rope.freq_base": rope["rope_theta"],
         "vocab_size": config["vocab_size"]}
    for to, name in {"token_embd": "model.embed_tokens", "output": "lm_head"}.items():
        if name + ".weight" in c.source:
            c.put(to + ".weight", name + ".weight")
    return v, rope


def experts(c, layer, at, prefix, shared):
    """As conversion merges them: all of a product in one tensor."""
    names = {k for k in c.source if k.startswith(prefix)}
    number, width, hidden = c.config.get("num_experts") or c.config["num_local_experts"], None, c.config["hidden_size"]
    fused = next((n for n in names if n.endswith(("experts.gate_up_proj", "input_linear.weight")) and "shared" not in n), None)
    if fused:
        down = fused.replace("gate_up_proj", "down_proj").replace("input_linear", "output_linear")
        width = c.source[fused].shape[1] // 2
        for part, to in enumerate(("gate", "up")):
            c.put(f"{at}ffn_{to}_exps.weight", fused, [[e * 2 * width + part * width, width] for e in range(number)],
                  shape=[number, width, hidden])
        c.put(f"{at}ffn_down_exps.weight", down, shape=[number, hidden, width])
    else:
        for to in ("gate", "up", "down"):
            each = [f"{prefix}mlp.experts.{e}.{to}_proj.weight" for e in range(number)]
            rows, columns = c.source[each[0]].shape
            c.put(f"{at}ffn_{to}_exps.weight", each[0], [[n, 0, rows] for n in each], shape=[number, rows, columns])
    for to, name in shared.items():
        c.put(at + to, prefix + name)


def delta(c):
    config, v = c.config, {}
    v, rope = common(c)
    heads, keys = config["linear_num_value_heads"], config["linear_num_key_heads"]
    key, value, each = config["linear_key_head_dim"], config["linear_value_head_dim"], heads // keys
    v |= {"attention.head_count_kv": config["num_key_value_heads"], "attention.key_length": config["head_dim"],
          "attention.value_length": config["head_dim"],
          "rope.dimension_count": int(config["head_dim"] * rope["partial_rotary_factor"]),
          "ssm.conv_kernel": config["linear_conv_kernel_dim"], "ssm.state_size": key, "ssm.group_count": keys,
          "ssm.time_step_rank": heads, "ssm.inner_size": value * heads, "full_attention_interval": 4}
    if c.architecture != "qwen3next":
        v["rope.dimension_sections"] = [1, 1, 1, 0]
    if "num_experts" in config or "num_local_experts" in config:
        v |= {"expert_count": config.get("num_experts") or config["num_local_experts"],
              "expert_used_count": config["num_experts_per_tok"],
              "expert_feed_forward_length": config["moe_intermediate_size"],
              "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"]}
    if c.architecture != "qwen35moe":
        v["feed_forward_length"] = config["intermediate_size"]
    tiled = c.architecture != "qwen3next"
    order = [k * each + j for j in range(each) for k in range(keys)] if tiled else list(range(heads))
    c.put("output_norm.weight", "model.norm.weight", op="1+")
    for layer in range(config["num_hidden_layers"]):
        at, hf = f"blk.{layer}.", f"model.layers.{layer}."
        c.put(at + "attn_norm.weight", hf + "input_layernorm.weight", op="1+")
        c.put(at + "post_attention_norm.weight", hf + "post_attention_layernorm.weight", op="1+")
        if config["layer_types"][layer] == "full_attention":
            for to, name in {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj"}.items():
                c.put(at + to + ".weight", f"{hf}self_attn.{name}.weight")
            for x in "qk":
                c.put(f"{at}attn_{x}_norm.weight", f"{hf}self_attn.{x}_norm.weight", op="1+")
        else:
            hf += "linear_attn."
            of_heads = lambda first, width: [[first + h * width, width] for h in order]
            if tiled:
                c.put(at + "attn_qkv.weight", hf + "in_proj_qkv.weight",
                      [[0, 2 * keys * key], *of_heads(2 * keys * key, value)])
                c.put(at + "attn_gate.weight", hf + "in_proj_z.weight", of_heads(0, value))
                c.put(at + "ssm_alpha.weight", hf + "in_proj_a.weight", of_heads(0, 1))
                c.put(at + "ssm_beta.weight", hf + "in_proj_b.weight", of_heads(0, 1))
            else:
                group = 2 * key + 2 * each * value
                parts = [[g * group + first, n] for first, n in ((0, key), (key, key), (2 * key, each * value))
                         for g in range(keys)]
                c.put(at + "attn_qkv.weight", hf + "in_proj_qkvz.weight", parts)
                c.put(at + "attn_gate.weight", hf + "in_proj_qkvz.weight",
                      [[g * group + 2 * key + each * value, each * value] for g in range(keys)])
                c.put(at + "ssm_ba.weight", hf + "in_proj_ba.weight")
            c.put(at + "ssm_conv1d.weight", hf + "conv1d.weight", [[0, 2 * keys * key], *of_heads(2 * keys * key, value)],
                  shape=[2 * keys * key + heads * value, config["linear_conv_kernel_dim"]])
            c.put(at + "ssm_a", hf + "A_log", of_heads(0, 1), op="-exp")
            c.put(at + "ssm_dt.bias", hf + "dt_bias", of_heads(0, 1))
            c.put(at + "ssm_norm.weight", hf + "norm.weight")
            c.put(at + "ssm_out.weight", hf + "out_proj.weight", columns=of_heads(0, value))
            hf = hf.removesuffix("linear_attn.")
        if "moe_intermediate_size" in config:
            c.put(at + "ffn_gate_inp.weight", hf + "mlp.gate.weight")
            c.put(at + "ffn_gate_inp_shexp.weight", hf + "mlp.shared_expert_gate.weight", shape=[config["hidden_size"]])
            experts(c, layer, at, hf, {f"ffn_{x}_shexp.weight": f"mlp.shared_expert.{x}_proj.weight"
                                       for x in ("gate", "up", "down")})
        else:
            for x in ("gate", "up", "down"):
                c.put(f"{at}ffn_{x}.weight", f"{hf}mlp.{x}_proj.weight")
    return v


def granite(c):
    config = c.config
    v, _ = common(c)
    attends = [t == "full_attention" for t in config["layer_types"]]
    shared, hidden = config["shared_intermediate_size"], config["hidden_size"]
    mixture = config["num_local_experts"] > 0
    groups, inner = config["mamba_n_groups"], config["mamba_expand"] * hidden
    v |= {"attention.head_count_kv": [config["num_key_value_heads"] if a else 0 for a in attends],
          "ssm.conv_kernel": config["mamba_d_conv"], "ssm.state_size": config["mamba_d_state"], "ssm.group_count": groups,
          "ssm.time_step_rank": config["mamba_n_heads"], "ssm.inner_size": inner,
          "rope.dimension_count": hidden // config["num_attention_heads"],
          "rope.scaling.finetuned": config.get("position_embedding_type") == "rope",
          "attention.scale": config["attention_multiplier"], "embedding_scale": config["embedding_multiplier"],
          "residual_scale": config["residual_multiplier"], "logit_scale": config["logits_scaling"],
          "feed_forward_length": config["intermediate_size"] if mixture else shared}
    if mixture:
        v |= {"expert_count": config["num_local_experts"], "expert_used_count": config["num_experts_per_tok"],
              "expert_shared_feed_forward_length": shared}
    c.put("output_norm.weight", "model.norm.weight")
    for layer, attention in enumerate(attends):
        at, hf = f"blk.{layer}.", f"model.layers.{layer}."
        c.put(at + "attn_norm.weight", hf + "input_layernorm.weight")
        c.put(at + "ffn_norm.weight", hf + "post_attention_layernorm.weight")
        if attention:
            for to, name in {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj"}.items():
                pairs = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}.get(to, 0)
                c.put(at + to + ".weight", f"{hf}self_attn.{name}.weight", pairs=pairs)
        else:
            m = hf + "mamba."
            c.put(at + "ssm_in.weight", m + "in_proj.weight")
            if m + "in_proj.bias" in c.source:
                c.put(at + "ssm_in.bias", m + "in_proj.bias")
                c.put(at + "ssm_out.bias", m + "out_proj.bias")
            channels = inner + 2 * groups * config["mamba_d_state"]
            c.put(at + "ssm_conv1d.weight", m + "conv1d.weight", shape=[channels, config["mamba_d_conv"]])
            c.put(at + "ssm_conv1d.bias", m + "conv1d.bias")
            c.put(at + "ssm_a", m + "A_log", shape=[config["mamba_n_heads"], 1], op="-exp")
            c.put(at + "ssm_d", m + "D", shape=[config["mamba_n_heads"], 1])
            c.put(at + "ssm_dt.bias", m + "dt_bias")
            c.put(at + "ssm_norm.weight", m + "norm.weight", shape=[groups, inner // groups])
            c.put(at + "ssm_out.weight", m + "out_proj.weight")
        s = "_shexp" if mixture else ""
        c.put(f"{at}ffn_gate{s}.weight", hf + "shared_mlp.input_linear.weight", [[0, shared]])
        c.put(f"{at}ffn_up{s}.weight", hf + "shared_mlp.input_linear.weight", [[shared, shared]])
        c.put(f"{at}ffn_down{s}.weight", hf + "shared_mlp.output_linear.weight")
        if mixture:
            c.put(at + "ffn_gate_inp.weight", hf + "block_sparse_moe.router.layer.weight")
            experts(c, layer, at, hf, {})
    return v


def main():
    if len(sys.argv) > 3 and sys.argv[1] == "--logits":
        expected = dict(tensors_of(FAMILIES / sys.argv[3] / "expected.safetensors"))
        llama.IDS, llama.VOCAB = [int(x) for x in expected["ids"]], expected["logits"].shape[1]
        return llama.logits_of(sys.argv[2])
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else llama.ROOT / "tests/model/gguf_hybrids.json")
    cases = []
    for name, architecture in ARCHITECTURES.items():
        c = Case(FAMILIES / name, architecture)
        values = (granite if architecture == "granitehybrid" else delta)(c)
        case = {"name": name, "architecture": architecture, "values": values, "tensors": c.tensors}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "m.gguf"
            write(path, case, {to: c.array(to) for to in c.tensors})
            run = subprocess.run([sys.executable, __file__, "--logits", path, name], capture_output=True, text=True)
        if run.returncode:
            print(name, "refused:", run.stderr.strip().splitlines()[-12:])
            case["refused"] = True
        else:
            case["logits"] = json.loads(run.stdout.strip().splitlines()[-1])
            expected = dict(tensors_of(FAMILIES / name / "expected.safetensors"))["logits"]
            off = np.abs(np.array(case["logits"]) - expected[-1]).max() / np.abs(expected).max()
            print(f"{name}: off by {off:.1e} of the largest logit")
        cases.append(case)
    out.write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


if __name__ == "__main__":
    main()
