# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint as a Hugging Face folder, weights in bfloat16, with the memory's settings
beside it (memory.json)."""

import argparse
import json
import os
import shutil

import torch
from safetensors.torch import save_file

from data import BOS, EOS, PAD
from memory import SETTINGS


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--ckpt", required=True, help="ckpt.pt of train.py")
    ap.add_argument("--tok", required=True, help="folder of make_tokenizer.py")
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    z = torch.load(a.ckpt)
    os.makedirs(a.out, exist_ok=True)

    def write(name, x):
        with open(os.path.join(a.out, name), "w") as f:
            json.dump(x, f, indent=1)
            f.write("\n")

    tokens = dict(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD)
    weights = os.path.join(a.out, "model.safetensors")
    save_file(
        {k: v.bfloat16().contiguous() for k, v in z["net"].items()},
        weights,
        metadata={"format": "pt"},
    )
    os.chmod(weights, 0o644)
    write(
        "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **z["cfg"],
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "max_position_embeddings": 512,
            "rope_scaling": None,
            "use_cache": True,
            "torch_dtype": "bfloat16",
            **tokens,
        },
    )
    write("generation_config.json", {**tokens, "do_sample": False, "max_new_tokens": 48})
    write("memory.json", SETTINGS)
    for f in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(a.tok, f), a.out)


if __name__ == "__main__":
    main()
