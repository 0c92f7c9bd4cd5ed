# SPDX-License-Identifier: Apache-2.0
"""What transformers makes of the rope settings of config.json: inverse frequencies and attention factors.

usage: make_rope_vectors.py [OUT]        OUT: tests/model/rope_vectors.json

    python3 -m venv v && v/bin/pip install torch==2.11.0 transformers==5.24.0
    v/bin/python models/reference/make_rope_vectors.py

A list of cases: "config", the keys of config.json; then for each kind of layer ("full", and "sliding" where the
family has a table of its own for it) and each length of context [length, attention factor, inverse frequencies], or
"refused" with the type of what transformers raised.
"""
import json
import math
import pathlib
import sys

import torch
from transformers import logging
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.gemma2.modeling_gemma2 import Gemma2RotaryEmbedding
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.granite.modeling_granite import GraniteRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.mistral.modeling_mistral import MistralRotaryEmbedding
from transformers.models.olmo2.modeling_olmo2 import Olmo2RotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding
from transformers.models.smollm3.modeling_smollm3 import SmolLM3RotaryEmbedding

logging.set_verbosity_error()
FAMILIES = {"llama": LlamaRotaryEmbedding, "mistral": MistralRotaryEmbedding, "qwen2": Qwen2RotaryEmbedding,
            "qwen3": Qwen3RotaryEmbedding, "phi3": Phi3RotaryEmbedding, "gemma2": Gemma2RotaryEmbedding,
            "gemma3_text": Gemma3RotaryEmbedding, "smollm3": SmolLM3RotaryEmbedding, "olmo2": Olmo2RotaryEmbedding,
            "granite": GraniteRotaryEmbedding}
BASE = dict(vocab_size=64, hidden_size=48, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128)
LENGTHS = (1, 40, 128, 129, 300)
NAN, INF = float("nan"), float("inf")

YARN = dict(rope_type="yarn", factor=4.0)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
LONG = dict(rope_type="longrope", short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5], long_factor=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


def settings():
    """Every kind with each of its keys there, absent, null, zero, in both places and by both names."""
    yield {}
    yield dict(rope_theta=500.0)
    for kind in ("default", "linear", "dynamic"):
        for factor in (2.5, 1.0, 0.5, 8):
            yield dict(rope_scaling=dict(type=kind, factor=factor))
            yield dict(rope_parameters=dict(rope_type=kind, factor=factor, rope_theta=700.0))
        yield dict(rope_scaling=dict(rope_type=kind, factor=2.0, original_max_position_embeddings=32))
        yield dict(rope_scaling=dict(rope_type=kind, factor=2.0), original_max_position_embeddings=32)
    yield dict(rope_scaling=dict(rope_type="linear"))
    yield dict(rope_scaling=dict(rope_type="linear", factor=None))
    yield dict(rope_scaling=dict(rope_type="linear", factor=2.0), rope_parameters=dict(rope_type="default", rope_theta=900.0))
    yield dict(rope_scaling={}, rope_parameters=dict(rope_type="linear", factor=3.0, rope_theta=900.0))
    yield dict(rope_scaling=None, rope_parameters=dict(rope_type="linear", factor=3.0), rope_theta=900.0)
    yield dict(rope_parameters=dict(rope_type="linear", factor=3.0, rope_theta=900.0), rope_theta=800.0)
    yield dict(rope_scaling=dict(rope_type="linear", type="dynamic", factor=3.0))
    yield dict(rope_scaling=dict(rope_type="ntk", factor=3.0))
    for more in ({}, dict(original_max_position_embeddings=32), dict(attention_factor=1.7), dict(attention_factor=None),
                 dict(mscale=0.7), dict(mscale=0.7, mscale_all_dim=0.4), dict(mscale=0.7, mscale_all_dim=0),
                 dict(mscale=0, mscale_all_dim=0.4), dict(mscale=1.0, mscale_all_dim=1.0), dict(mscale=0.0, mscale_all_dim=0.0),
                 dict(mscale=None, mscale_all_dim=0.5), dict(beta_fast=16.0), dict(beta_fast=0), dict(beta_fast=None),
                 dict(beta_slow=2), dict(beta_slow=0.0), dict(beta_fast=4, beta_slow=2), dict(beta_fast=1, beta_slow=32),
                 dict(truncate=False), dict(truncate=True), dict(truncate=None), dict(factor=1.0), dict(factor=0.5),
                 dict(factor=None), dict(factor=None, original_max_position_embeddings=32), dict(factor=40),
                 dict(rope_theta=1.0), dict(rope_theta=5e6)):
        yield dict(rope_parameters={**YARN, **more})
        yield dict(rope_scaling={**YARN, **more}, original_max_position_embeddings=64)
    yield dict(rope_scaling=dict(rope_type="yarn"))
    for more in ({}, dict(original_max_position_embeddings=32), dict(low_freq_factor=2.0, high_freq_factor=3.0),
                 dict(factor=2), dict(rope_theta=5e5)):
        yield dict(rope_parameters={**LLAMA3, **more})
        yield dict(rope_scaling={**LLAMA3, **more}, original_max_position_embeddings=64)
    for missing in ("factor", "low_freq_factor", "high_freq_factor"):
        yield dict(rope_scaling={k: v for k, v in LLAMA3.items() if k != missing})
    for more in ({}, dict(original_max_position_embeddings=32), dict(attention_factor=1.7), dict(attention_factor=None),
                 dict(factor=3.0), dict(factor=None), dict(factor=1.0, original_max_position_embeddings=32),
                 dict(factor=6.0, original_max_position_embeddings=32), dict(rope_type="su", type="su")):
        yield dict(rope_parameters={**LONG, **more})
        yield dict(rope_scaling={**LONG, **more}, original_max_position_embeddings=64)
    yield dict(rope_scaling=dict(rope_type="longrope", short_factor=LONG["short_factor"]))
    for more in ({}, dict(factor=2.0), dict(partial_rotary_factor=0.5), dict(partial_rotary_factor=0.5, factor=4.0)):
        yield dict(rope_parameters=dict(rope_type="proportional", **more))
    # 12 channels of a head; half of them
    for kind in (dict(rope_type="default"), dict(rope_type="linear", factor=2.0), dict(rope_type="dynamic", factor=2.0),
                 YARN, {**LONG, "short_factor": [1.0, 1.1, 1.2], "long_factor": [1.0, 2.0, 3.0]}):
        yield dict(rope_parameters=dict(kind, partial_rotary_factor=0.5))
        yield dict(rope_scaling=kind, partial_rotary_factor=0.5)
    for bad in (NAN, INF, -INF, -1.0, 0, "2", [2.0], True):
        yield dict(rope_scaling=dict(rope_type="linear", factor=bad))


def of_layer_types():
    """Gemma 3's: by type of layer, and what older releases wrote."""
    full, sliding = dict(rope_type="linear", factor=8.0, rope_theta=2e6), dict(rope_type="default", rope_theta=300.0)
    yield dict(rope_parameters=dict(full_attention=full, sliding_attention=sliding))
    yield dict(rope_parameters=dict(full_attention=full))
    yield dict(rope_parameters=dict(sliding_attention=sliding))
    yield dict(rope_parameters=dict(full_attention=full, sliding_attention=dict(rope_type="linear", factor=2.0)))
    yield dict(rope_parameters=dict(full_attention={**YARN, "truncate": False}, sliding_attention=sliding))
    yield dict(rope_parameters=dict(full_attention=YARN, sliding_attention=sliding), original_max_position_embeddings=32)
    yield dict(rope_parameters=dict(full_attention={**YARN, "original_max_position_embeddings": 32}))
    yield dict(rope_parameters=dict(full_attention=dict(rope_type="default")), rope_theta=5e4, rope_local_base_freq=77.0)
    yield dict(rope_theta=5e4, rope_local_base_freq=77.0)
    yield dict(rope_theta=5e4, rope_local_base_freq=77.0, rope_scaling=dict(rope_type="linear", factor=8.0))
    yield dict(rope_scaling=dict(rope_type="linear", factor=8.0),
               rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=3e4), sliding_attention=sliding))
    yield dict(rope_parameters=dict(rope_type="linear", factor=3.0, rope_theta=900.0))


def tables(model_type, config):
    """{kind of layer: [[length, attention factor, inverse frequencies], ...]}"""
    made = CONFIG_MAPPING[model_type].from_dict(json.loads(json.dumps(config)))
    kinds = {"full": "full_attention", "sliding": "sliding_attention"} if model_type == "gemma3_text" else {"full": None}
    heads = made.hidden_size // made.num_attention_heads
    width = getattr(made, "head_dim", None) or heads
    result = {}
    for kind, layer_type in kinds.items():
        rows = []
        for length in LENGTHS:
            rope = FAMILIES[model_type](made)
            more = {"layer_type": layer_type} if layer_type else {}
            cos, _ = rope(torch.zeros(1, 1, width), torch.arange(length)[None], **more)
            name = f"{layer_type}_" if layer_type else ""
            scale = getattr(rope, name + "attention_scaling")
            frequencies = getattr(rope, name + "inv_freq").double().tolist()
            turned = 2 * len(frequencies)
            # of a family that turns whole heads, a table of another width breaks where it is applied
            if turned != width and model_type != "phi3":
                raise ValueError("the table has not the head's width")
            if not all(map(math.isfinite, frequencies)) or not torch.isfinite(cos).all():
                raise ValueError("not finite")
            rows.append([length, float(scale), frequencies])
        result[kind] = [rows[0]] + [row for before, row in zip(rows, rows[1:]) if row[1:] != before[1:]]
    return result


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/model/rope_vectors.json")
    lines, refused = [], 0
    for family in FAMILIES:
        chosen = list(of_layer_types()) if family == "gemma3_text" else list(settings())
        if family not in ("llama", "phi3", "gemma3_text"):  # share llama's function: a few of each kind
            chosen = chosen[:: 7 if family in ("mistral", "qwen2") else 13]
        for changes in chosen:
            config = {**BASE, "model_type": family, **changes}
            case = {"config": config}
            try:
                case.update(tables(family, config))
            except Exception as error:
                case["refused"] = type(error).__name__
                refused += 1
            lines.append(json.dumps(case))
    out.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"{out}: {len(lines)} cases, {refused} of them refused")


if __name__ == "__main__":
    main()
