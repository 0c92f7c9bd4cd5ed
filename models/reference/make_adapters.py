# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters of the committed checkpoints (make_checkpoints.py), and what the reference computes with them.

usage: make_adapters.py [--only NAME] [OUT_DIR]        OUT_DIR: tests/model/adapters

Needs torch, transformers and peft from PyPI, and the network only to install them:

    python3 -m venv v && v/bin/pip install torch==2.11.0 transformers==5.23.0 peft==0.21.2 safetensors numpy
    v/bin/python models/reference/make_adapters.py

For each case a directory as PEFT saves it (adapter_config.json, adapter_model.safetensors) and expected.safetensors:
  ids [n] int32, logits [n, vocab]     one prefill of all ids through the base model with the adapter beside it
  both [n, vocab]                      with a second adapter at once (key "with", at "scale")
"""
import argparse
import json
import pathlib
import shutil

import numpy as np
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEPARATE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FUSED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]


def case(base, dtype=torch.float32, also=None, scale=1.0, **config):
    return dict(base=base, dtype=dtype, also=also, scale=scale, config=config)


CASES = {
    # everything that is a product, the head among them
    "llama2_all": case("llama2", r=4, lora_alpha=8, target_modules=[*SEPARATE, "lm_head"]),
    # rank-stabilised, one layer of two, and with the other adapter at once
    "llama2_rslora": case("llama2", r=3, lora_alpha=6, use_rslora=True, target_modules=["q_proj", "v_proj"],
                          layers_to_transform=[1], also="llama2_all", scale=0.5),
    # fused projections; ranks and alphas of their own
    "phi3_fused": case("phi3", r=4, lora_alpha=4, target_modules=FUSED,
                       rank_pattern={"down_proj": 2, "layers.1.self_attn.o_proj": 5}, alpha_pattern={"qkv_proj": 12}),
    # a tied head, whose embedding stays as it is; the adapter stored as bfloat16
    "llama3_head": case("llama3", dtype=torch.bfloat16, r=2, lora_alpha=2, target_modules=["up_proj", "lm_head"]),
    # norms of queries and keys behind the products, sliding layers
    "gemma3_attention": case("gemma3", r=3, lora_alpha=3, target_modules="all-linear"),
}


def base_model(name, dtype=torch.float32):
    model = AutoModelForCausalLM.from_pretrained(ROOT / "tests/model/families" / name, attn_implementation="eager")
    return model.to(dtype).eval()


def randomise(model, seed):
    """B is zero in a fresh adapter: numbers at which it matters as much as the weights do."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            draw = torch.randn(parameter.shape, generator=generator)
            parameter.data.copy_(draw * 0.7 / parameter.shape[1] ** 0.5)


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def make(name, spec, out):
    seed = 1 + list(CASES).index(name)
    model = get_peft_model(base_model(spec["base"]), LoraConfig(task_type="CAUSAL_LM", **spec["config"])).eval()
    randomise(model, seed)
    if spec["dtype"] != torch.float32:  # what is stored is what the reference computes with
        for key, parameter in model.named_parameters():
            if "lora_" in key:
                parameter.data = parameter.data.to(spec["dtype"])
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = spec["base"]
    config["target_modules"] = sorted(config["target_modules"])
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")

    ids = np.random.default_rng(seed).integers(3, 72, 24).tolist()
    alone = PeftModel.from_pretrained(base_model(spec["base"]), folder, autocast_adapter_dtype=True).eval()
    base = logits_of(base_model(spec["base"]), ids)
    expected = {"ids": np.array(ids, np.int32), "logits": logits_of(alone, ids)}
    if spec["also"]:
        alone.load_adapter(out / spec["also"], "also")
        alone.base_model.set_adapter(["default", "also"])
        for module in alone.modules():
            if hasattr(module, "set_scale") and "default" in getattr(module, "lora_A", {}):
                module.set_scale("default", spec["scale"])
        expected["both"] = logits_of(alone, ids)
    save_file(expected, folder / "expected.safetensors")
    moved = float(np.abs(expected["logits"] - base).max() / np.abs(base).max())
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{name}: {size / 1000:.0f} KB, logits moved by {moved:.2f} of the largest")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=pathlib.Path, default=ROOT / "tests/model/adapters")
    parser.add_argument("--only", choices=CASES)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    for name, spec in CASES.items():
        if args.only in (None, name):
            make(name, spec, args.out)


main()
