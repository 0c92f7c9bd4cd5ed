# SPDX-License-Identifier: Apache-2.0
"""Random tiny checkpoints of every family, and what the reference implementation says of them.

usage: make_checkpoints.py [OUT_DIR] [--only NAME...]        OUT_DIR: tests/model/families

Needs torch and transformers from PyPI, and the network only to install them:

    python3 -m venv v && v/bin/pip install torch==2.11.0 transformers==5.23.0 safetensors numpy
    v/bin/python models/reference/make_checkpoints.py

For each case a directory: config.json, model.safetensors (float32) and expected.safetensors:
  ids [n] int32, logits [n, vocab]       one prefill of all ids, longer than any sliding window
  short [m, vocab]                       one prefill of the first m ids alone
  greedy [32] int32                      what follows ids[:start] token by token; start is [1] int32
The numbers do not change from run to run on one machine, and by rounding between machines.
"""
import argparse
import json
import pathlib
import shutil
import tempfile
import zlib

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

GREEDY = 32
# what config.json may hold and a model does not depend on
NOT_OF_THE_MODEL = {"id2label", "label2id", "chunk_size_feed_forward", "output_attentions", "output_hidden_states",
                    "return_dict", "problem_type", "use_cache", "initializer_range", "is_encoder_decoder", "dtype"}
# alike in all cases; small, and no two sizes equal
BASE = dict(vocab_size=72, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0)
GEMMA = dict(head_dim=8, query_pre_attn_scalar=12, sliding_window=8, hidden_activation="gelu_pytorch_tanh")

GRANITE = dict(embedding_multiplier=6.0, logits_scaling=4.0, residual_multiplier=0.3, attention_multiplier=0.2,
               tie_word_embeddings=True)


def rope(kind, theta=10000.0, **more):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=theta, **more))


def case(model_type, old=None, ids=40, start=12, seed=None, as_saved=False, mxfp4=False, **changes):
    """`old` replaces keys of the written config.json by those of the generation before (None: removes). `as_saved`:
    tensors by the names that save_pretrained gives them, not by those that they have in memory. `mxfp4`: gpt-oss's
    experts rounded and stored so."""
    return dict(model_type=model_type, old=old, ids=ids, start=start, seed=seed, as_saved=as_saved, mxfp4=mxfp4,
                config={**BASE, **changes})


LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
GPT_OSS_YARN = dict(factor=8.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=64, truncate=False)
LONGROPE = dict(short_factor=[1.0, 1.1, 1.3], long_factor=[1.5, 4.0, 9.0], original_max_position_embeddings=24)
CASES = {
    # LLaMA 2, as written by transformers 4: theta outside
    "llama2": case("llama", old=dict(rope_parameters=None, rope_theta=10000.0, rope_scaling=None),
                   num_key_value_heads=4),
    "llama_biases": case("llama", attention_bias=True, mlp_bias=True, head_dim=10, tie_word_embeddings=True),
    # LLaMA 3.1 to 3.3
    "llama3": case("llama", tie_word_embeddings=True,
                   old=dict(rope_parameters=None, rope_theta=500000.0, rope_scaling=dict(rope_type="llama3", **LLAMA3)),
                   **rope("llama3", 500000.0, **LLAMA3)),
    "rope_linear": case("llama", **rope("linear", factor=4.0)),
    # within its window for the greedy tokens, beyond it in the prefill
    "rope_dynamic": case("llama", ids=64, start=8, **{**rope("dynamic", factor=3.0), "max_position_embeddings": 48}),
    "rope_yarn": case("llama", **rope("yarn", 10000.0, factor=4.0, original_max_position_embeddings=128)),
    # Mistral v0.1; v0.3; Nemo, whose heads are not hidden / heads wide
    "mistral_window": case("mistral", sliding_window=9),
    "mistral": case("mistral", sliding_window=None, **rope("default", 1e6)),
    "mistral_nemo": case("mistral", sliding_window=None, head_dim=10, **rope("default", 1e6)),
    "qwen2": case("qwen2", **rope("default", 1e6)),
    "qwen2_window": case("qwen2", use_sliding_window=True, sliding_window=7, max_window_layers=1,
                         num_hidden_layers=3, tie_word_embeddings=True),
    "qwen3": case("qwen3", head_dim=10, tie_word_embeddings=True, **rope("default", 1e6)),
    # Phi-3-mini 4K; 128K, whose long factors hold beyond 24 tokens; Phi-4-mini turns a part of each head
    "phi3": case("phi3", sliding_window=11),
    "phi3_longrope": case("phi3", ids=48, start=30, **rope("longrope", **LONGROPE)),
    "phi3_partial": case("phi3", ids=48, start=30, hidden_size=32, tie_word_embeddings=True,
                         **rope("longrope", partial_rotary_factor=0.75, **LONGROPE)),
    "gemma2": case("gemma2", attn_logit_softcapping=2.0, final_logit_softcapping=3.0, num_hidden_layers=3, **GEMMA),
    "gemma3": case("gemma3_text", num_hidden_layers=3,
                   layer_types=["sliding_attention", "full_attention", "sliding_attention"], **GEMMA),
    # as transformers 4 wrote it, full layers scaled as in the larger models
    "gemma3_linear": case("gemma3_text", num_hidden_layers=3, sliding_window_pattern=3,
                          old=dict(rope_parameters=None, layer_types=None, rope_theta=1e6,
                                   rope_local_base_freq=10000.0, rope_scaling=dict(rope_type="linear", factor=8.0)),
                          rope_parameters=dict(
                              sliding_attention=dict(rope_type="default", rope_theta=10000.0),
                              full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6)), **GEMMA),
    "smollm3": case("smollm3", num_hidden_layers=4, **rope("default", 5e6)),
    "olmo2": case("olmo2", **rope("default", 5e5)),
    "granite": case("granite", **GRANITE),
    # mixtures of experts: sizes that no vector divides, some layers dense, tensors as in memory
    "qwen2_moe": case("qwen2_moe", seed=101, as_saved=True, num_experts=6, num_experts_per_tok=2,
                      moe_intermediate_size=20, shared_expert_intermediate_size=28),
    "qwen3_moe": case("qwen3_moe", seed=102, as_saved=True, head_dim=10, num_experts=7, num_experts_per_tok=3,
                      moe_intermediate_size=20, norm_topk_prob=True, **rope("default", 1e6)),
    "qwen3_moe_sparse": case("qwen3_moe", seed=103, as_saved=True, num_hidden_layers=4, decoder_sparse_step=2,
                             mlp_only_layers=[3], num_experts=5, num_experts_per_tok=5, moe_intermediate_size=20,
                             norm_topk_prob=False, tie_word_embeddings=True),
    "qwen3_moe_fused": case("qwen3_moe", seed=104, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20,
                            norm_topk_prob=True),
    "mixtral": case("mixtral", seed=105, as_saved=True, num_local_experts=5, num_experts_per_tok=2),
    "olmoe": case("olmoe", seed=106, as_saved=True, num_experts=6, num_experts_per_tok=3, clip_qkv=None),
    "granitemoe": case("granitemoe", seed=107, as_saved=True, num_local_experts=5, num_experts_per_tok=2, **GRANITE),
    "granitemoeshared": case("granitemoeshared", seed=108, as_saved=True, num_local_experts=5, num_experts_per_tok=1,
                             shared_intermediate_size=28, **{**GRANITE, "residual_multiplier": 1.7, "tie_word_embeddings": False}),
    # both clamps at work; sizes that MXFP4 wants, and experts stored in it as OpenAI stores them
    "gpt_oss": case("gpt_oss", seed=120, head_dim=10, sliding_window=9, num_local_experts=5, num_experts_per_tok=2,
                    swiglu_limit=1.0, **rope("yarn", 150000.0, **GPT_OSS_YARN)),
    "gpt_oss_mxfp4": case("gpt_oss", seed=121, mxfp4=True, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
                          head_dim=16, sliding_window=9, num_local_experts=4, num_experts_per_tok=3, swiglu_limit=1.0,
                          old=dict(quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=[
                              "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                              "lm_head"])),
                          **rope("yarn", 150000.0, **GPT_OSS_YARN)),
    # as its makers write it: 2 of 3 parts of the width that is named, times 1.1, in multiples of 8
    "lfm2": case("lfm2", num_hidden_layers=4, conv_L_cache=3, full_attn_idxs=[1, 3], intermediate_size=54,
                 block_multiple_of=8, block_ffn_dim_multiplier=1.1, tie_word_embeddings=True,
                 old=dict(layer_types=None, rope_parameters=None, rope_theta=1e6, norm_eps=1e-5, block_ff_dim=54,
                          intermediate_size=None, block_auto_adjust_ff_dim=True, tie_embedding=True,
                          tie_word_embeddings=None), **rope("default", 1e6)),
    # heads of 16, which a device does not pad: its memories go from the host to the device and back
    "lfm2_biases": case("lfm2", num_hidden_layers=3, hidden_size=32, num_attention_heads=2, num_key_value_heads=1,
                        conv_L_cache=5, conv_bias=True, block_auto_adjust_ff_dim=False, tie_word_embeddings=False,
                        layer_types=["conv", "full_attention", "conv"], **rope("default", 1e6)),
}


def dense(model_type, prefix=None, **changes):
    """A case that another one beside it does not change: config.json is written whole, the seed is of the name.

    `prefix` renames the tensors that begin so; a model that sees has a text_config.
    """
    made = dict(case(model_type, **changes), whole=True, prefix=prefix or {})
    if "text_config" in changes:
        made["config"] = {k: v for k, v in changes.items() if k != "old"}
    return made


YARN = dict(factor=4.0, original_max_position_embeddings=6, beta_fast=32.0, beta_slow=1.0)
HYBRID = dict(num_hidden_layers=4, layer_types=["sliding_attention"] * 3 + ["full_attention"], sliding_window=7)
PAIR = dict(hidden_size=32, intermediate_size=40, num_attention_heads=2, num_key_value_heads=1)
TALL = dict(hidden_size=32, intermediate_size=40)
VISION = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
CASES |= {
    # positions beyond 6 scale queries
    "ministral3": dense("ministral3", head_dim=8, **rope("yarn", 1e4, mscale=1.0, mscale_all_dim=1.0,
                                                          llama_4_scaling_beta=0.4, **YARN)),
    "olmo3": dense("olmo3", rope_parameters=dict(
        sliding_attention=dict(rope_type="default", rope_theta=5e5),
        full_attention=dict(rope_type="yarn", rope_theta=5e5, factor=8.0, original_max_position_embeddings=24,
                            attention_factor=1.2079441541679836, beta_fast=32.0, beta_slow=1.0)), **HYBRID),
    # as transformers 4 wrote it
    "olmo3_old": dense("olmo3", old=dict(rope_parameters=None, layer_types=None, rope_theta=5e5,
                                         rope_scaling=dict(rope_type="yarn", factor=8.0,
                                                           original_max_position_embeddings=24)),
                       rope_parameters=dict(
                           sliding_attention=dict(rope_type="default", rope_theta=5e5),
                           full_attention=dict(rope_type="yarn", rope_theta=5e5, factor=8.0,
                                               original_max_position_embeddings=24)), **HYBRID),
    # 32B: sliding layers, full ones without rotary embedding; 1.2B: all layers full, all rotate
    "exaone4": dense("exaone4", **rope("llama3", 1e6, **LLAMA3), **HYBRID),
    "exaone4_full": dense("exaone4", sliding_window=None, layer_types=["full_attention"] * 2, tie_word_embeddings=True,
                          **rope("llama3", 1e6, **LLAMA3)),
    "cohere2": dense("cohere2", logit_scale=0.25, **PAIR, **rope("default", 5e4), **HYBRID),
    "cohere": dense("cohere", logit_scale=0.25, **PAIR, **rope("default", 1e4)),
    "cohere_biases": dense("cohere", attention_bias=True, tie_word_embeddings=False, **PAIR, **rope("default", 1e4)),
    "glm4": dense("glm4", head_dim=32, **TALL, **rope("default", 1e4, partial_rotary_factor=0.5)),
    "glm": dense("glm", head_dim=16, **PAIR, **rope("default", 1e4, partial_rotary_factor=0.5)),
    "seed_oss": dense("seed_oss", head_dim=10, **rope("default", 1e7)),
    "seed_oss_biases": dense("seed_oss", head_dim=10, attention_bias=False, attention_out_bias=True, mlp_bias=True,
                             **rope("default", 1e7)),
    "apertus": dense("apertus", attention_bias=False, **rope("llama3", 12e6, **LLAMA3)),
    "arcee": dense("arcee", **rope("yarn", 1e4, factor=4.0, original_max_position_embeddings=128)),
    "ernie4_5": dense("ernie4_5", head_dim=16, **TALL, **rope("default", 5e5)),
    "ernie4_5_biases": dense("ernie4_5", head_dim=16, use_bias=True, tie_word_embeddings=False, **TALL,
                             **rope("default", 5e5)),
    "nemotron": dense("nemotron", hidden_size=32, **rope("default", 1e4, partial_rotary_factor=0.5)),
    "starcoder2": dense("starcoder2", **rope("default", 1e5)),
    "starcoder2_window": dense("starcoder2", sliding_window=9, **rope("default", 1e5)),
    "stablelm": dense("stablelm", hidden_size=32, use_qkv_bias=True, **rope("default", 1e4, partial_rotary_factor=0.25)),
    "stablelm_parallel": dense("stablelm", hidden_size=32, use_parallel_residual=True,
                               **rope("default", 1e4, partial_rotary_factor=0.25)),
    # Phi-4, whose window and table are plain
    "phi4": dense("phi3", sliding_window=None, **rope("default", 25e4)),
    # the text parts of models that see: by the names of transformers 5, and of 4
    "gemma3_sees": dense("gemma3", vision_config=dict(model_type="siglip_vision_model", **VISION), mm_tokens_per_image=4,
                         text_config=dict(BASE, num_hidden_layers=3, tie_word_embeddings=True,
                                          layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                          **GEMMA)),
    "mistral_small3": dense("mistral3", prefix={"model.language_model.": "language_model.model.",
                                                "lm_head.": "language_model.lm_head.", "model.": ""},
                            vision_config=dict(model_type="pixtral", head_dim=8, **VISION), tie_word_embeddings=False,
                            text_config=dict(BASE, model_type="mistral", head_dim=8, sliding_window=None,
                                             **rope("default", 1e9))),
    "ministral3_sees": dense("mistral3", vision_config=dict(model_type="pixtral", head_dim=8, **VISION),
                             tie_word_embeddings=True,
                             text_config=dict(BASE, model_type="ministral3", head_dim=8, tie_word_embeddings=True,
                                              **rope("yarn", 1e4, mscale=1.0, mscale_all_dim=1.0,
                                                     llama_4_scaling_beta=0.4, **YARN))),
}

SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA4 = dict(head_dim=8, sliding_window=8, final_logit_softcapping=3.0, tie_word_embeddings=True)
CASES |= {
    # E2B and E4B, as their makers write them: inputs of the layers, the last three attend to earlier layers' keys
    "gemma4": dense("gemma4_text", seed=203, old=dict(per_layer_config=None, global_head_dim=16, num_global_key_value_heads=None),
                    num_hidden_layers=7, layer_types=[SLIDING, FULL, SLIDING, FULL, SLIDING, SLIDING, FULL],
                    global_head_dim=16, num_kv_shared_layers=3, use_double_wide_mlp=True, hidden_size_per_layer_input=6,
                    vocab_size_per_layer_input=72, **GEMMA4),
    # 31B: keys are values, heads of 512 in full layers
    "gemma4_wide": dense("gemma4_text", hidden_size=16, num_hidden_layers=2, num_attention_heads=2, global_head_dim=512,
                         layer_types=[SLIDING, FULL], num_global_key_value_heads=1, attention_k_eq_v=True,
                         hidden_size_per_layer_input=0, **{**GEMMA4, "final_logit_softcapping": None}),
    # 26B-A4B
    "gemma4_moe": dense("gemma4_text", as_saved=True, num_hidden_layers=3, layer_types=[SLIDING, SLIDING, FULL],
                        global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True,
                        hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=6, top_k_experts=2,
                        moe_intermediate_size=20, **GEMMA4),
    "gemma4_sees": dense("gemma4", audio_config=None,
                         vision_config=dict(model_type="gemma4_vision", num_key_value_heads=2, head_dim=8,
                                            position_embedding_size=16, **VISION),
                         text_config=dict(BASE, num_hidden_layers=2, layer_types=[SLIDING, FULL], global_head_dim=16,
                                          hidden_size_per_layer_input=0, **GEMMA4)),
}

LATENT = dict(num_key_value_heads=4, num_hidden_layers=3, q_lora_rank=14, kv_lora_rank=10, qk_rope_head_dim=4,
              qk_nope_head_dim=6, v_head_dim=9, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=20,
              as_saved=True)
CASES |= {
    "deepseek_v3": dense("deepseek_v3", **LATENT, n_group=4, topk_group=2, first_k_dense_replace=1,
                         old=dict(rope_parameters=None, rope_theta=1e4, rope_scaling=dict(
                             type="yarn", mscale=1.0, mscale_all_dim=0.8, factor=40.0, beta_fast=32.0, beta_slow=1.0,
                             original_max_position_embeddings=16), scoring_func="sigmoid", topk_method="noaux_tc",
                             num_nextn_predict_layers=1),
                         **rope("yarn", 1e4, mscale=1.0, mscale_all_dim=0.8, factor=40.0, beta_fast=32.0, beta_slow=1.0,
                                original_max_position_embeddings=16)),
    # Moonlight and others: all groups are looked at; biases, pairs half a head apart
    "deepseek_v3_biases": dense("deepseek_v3", **LATENT, n_group=1, topk_group=1, first_k_dense_replace=1,
                                attention_bias=True, rope_interleave=False, norm_topk_prob=False,
                                **rope("default", 5e4)),
    # V2; V2-Lite, whose queries are made by one product
    "deepseek_v2": dense("deepseek_v2", **LATENT, n_group=4, topk_group=2, topk_method="group_limited_greedy",
                         routed_scaling_factor=1.6, first_k_dense_replace=1,
                         **rope("yarn", 1e4, mscale=0.7, mscale_all_dim=0.7, factor=4.0, beta_fast=32.0, beta_slow=1.0,
                                original_max_position_embeddings=16)),
    "deepseek_v2_lite": dense("deepseek_v2", **{**LATENT, "q_lora_rank": None}, first_k_dense_replace=1,
                              topk_method="greedy", **rope("default", 1e4)),
    "glm4_moe_lite": dense("glm4_moe_lite", **LATENT, n_group=1, topk_group=1, n_shared_experts=2,
                           mlp_layer_types=["dense", "sparse", "sparse"], **rope("default", 1e6)),
}


# sizes that no vector divides; llama.cpp knows keys and values of one size alone
DELTA = dict(num_hidden_layers=4, head_dim=12, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=10,
             linear_value_head_dim=10, linear_conv_kernel_dim=4)
TURNS = rope("default", 1e6, partial_rotary_factor=0.5)
EXPERTS = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=20, shared_expert_intermediate_size=28)
MAMBA = dict(num_hidden_layers=3, layer_types=["mamba", "attention", "mamba"], mamba_n_heads=6, mamba_n_groups=2,
             mamba_d_state=10, mamba_d_head=8, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=8,
             shared_intermediate_size=28, **{**GRANITE, "residual_multiplier": 1.7, "tie_word_embeddings": False})
CASES |= {
    "qwen3_5": dense("qwen3_5_text", tie_word_embeddings=True, **DELTA, **TURNS),
    # the sizes that a device does not pad, as many heads of keys as of values, of other sizes, biases, a long convolution
    "qwen3_5_biases": dense("qwen3_5_text", attention_bias=True,
                            layer_types=["linear_attention", "full_attention", "linear_attention"],
                            **{**DELTA, "num_hidden_layers": 3, "hidden_size": 32, "head_dim": 16,
                               "num_attention_heads": 2, "num_key_value_heads": 1, "linear_num_key_heads": 4,
                               "linear_key_head_dim": 6, "linear_conv_kernel_dim": 6},
                            **rope("default", 1e6, partial_rotary_factor=1.0)),
    # a model that sees, as its makers name its tensors
    "qwen3_5_sees": dense("qwen3_5", tie_word_embeddings=True,
                          vision_config=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=4,
                                             temporal_patch_size=1, out_hidden_size=24, num_position_embeddings=16),
                          text_config=dict(BASE, tie_word_embeddings=True, **DELTA,
                                           **rope("default", 1e6, partial_rotary_factor=0.5, mrope_section=[1, 1, 1],
                                                  mrope_interleaved=True))),
    "qwen3_5_moe": dense("qwen3_5_moe_text", old=dict(intermediate_size=None), **DELTA, **TURNS, **EXPERTS),
    "qwen3_next": dense("qwen3_next", as_saved=True, norm_topk_prob=True, decoder_sparse_step=1, **DELTA, **TURNS,
                        **EXPERTS),
    "granite4": dense("granitemoehybrid", num_local_experts=0, num_experts_per_tok=0, **MAMBA),
    "granite4_rope": dense("granitemoehybrid", num_local_experts=0, num_experts_per_tok=0, position_embedding_type="rope",
                           **MAMBA, **rope("default", 1e4)),
    # as transformers 4 wrote it; heads that a device does not pad
    "granite4_biases": dense("granitemoehybrid", num_local_experts=0, num_experts_per_tok=0,
                             old=dict(layer_types=["mamba", "attention", "mamba"], mamba_d_head="auto",
                                      time_step_limit=None, rope_parameters=None, rope_theta=10000.0),
                             **{**MAMBA, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1,
                                "mamba_n_heads": 8, "mamba_n_groups": 1, "mamba_proj_bias": True, "attention_bias": True,
                                "mamba_conv_bias": False}),
    "granite4_moe": dense("granitemoehybrid", as_saved=True, num_local_experts=5, num_experts_per_tok=2, **MAMBA),
}


def randomise(model, seed):
    """Weights at which every part of the model matters: norms away from 1, biases and heads away from 0."""
    config = model.config.get_text_config()
    multiplier = getattr(config, "embedding_multiplier", config.hidden_size**0.5 if "gemma" in config.model_type else 1)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        draw = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            scale = 0.5 / multiplier if "embed" in name or "lm_head" in name else 1.6 / parameter.shape[-1] ** 0.5
            parameter.data.copy_(draw * scale)
        elif name.endswith("bias"):
            parameter.data.copy_(0.3 * draw)
        elif name.endswith("A_log"):  # decays of which some last for the whole text
            parameter.data.copy_(1.5 * draw - 2)
        else:
            parameter.data.add_(0.3 * draw)
    for name, buffer in model.named_buffers():  # weights that no gradient reaches
        if name.endswith(("layer_scalar", "e_score_correction_bias")):
            buffer.add_(0.3 * torch.randn(buffer.shape, generator=generator))


def renamed(name, spec):
    for old, new in spec.get("prefix", {}).items():
        if name.startswith(old):
            return new + name[len(old):]
    return name


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def to_mxfp4(x):
    """Blocks and scales of rows of a multiple of 32 numbers, and the numbers that they stand for."""
    in_blocks = x.reshape(*x.shape[:-1], -1, 32)
    exponent = np.floor(np.log2(np.abs(in_blocks).max(-1))) - 2
    unit = in_blocks / 2 ** exponent[..., None]
    code = np.abs(np.abs(unit)[..., None] - FP4).argmin(-1).astype(np.uint8)
    back = np.sign(unit) * FP4[code] * 2 ** exponent[..., None]
    code |= (unit < 0).astype(np.uint8) << 3
    return code[..., 0::2] | code[..., 1::2] << 4, (exponent + 127).astype(np.uint8), back.reshape(x.shape)


def quantised_experts(model):
    """Rounds gpt-oss's experts. The checkpoint that holds them as OpenAI's does."""
    state = {k: v.contiguous().numpy() for k, v in model.state_dict().items()}
    for name in [k for k in state if k.endswith(("gate_up_proj", "down_proj"))]:
        rows = np.ascontiguousarray(state.pop(name).transpose(0, 2, 1))  # [experts, out, in]
        state[name + "_blocks"], state[name + "_scales"], back = to_mxfp4(rows)
        dict(model.named_parameters())[name].data.copy_(torch.from_numpy(back.transpose(0, 2, 1).copy()))
    return state


def saved_state(model):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(pathlib.Path(folder) / "model.safetensors")


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def make(name, spec, out):
    config = AutoConfig.for_model(spec["model_type"], **spec["config"])
    config._attn_implementation = "eager"
    text = config.get_text_config()
    named = zlib.crc32(name.encode()) if spec.get("whole") else 1 + list(CASES).index(name)
    seed = spec["seed"] or named
    kind = AutoModelForCausalLM if text is config else AutoModelForImageTextToText
    model = kind.from_config(config).float().eval()
    randomise(model, seed)

    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if spec["mxfp4"]:
        state = quantised_experts(model)
    elif spec["as_saved"]:
        state = saved_state(model)
    else:
        state = {renamed(k, spec): v.contiguous().numpy() for k, v in model.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    save_file(state, folder / "model.safetensors")
    written = json.loads(config.to_json_string(use_diff=False))
    known = {"architectures", "model_type", "transformers_version", "layer_types", "no_rope_layers", "rope_parameters",
             "tie_word_embeddings", "rms_norm_eps", "hidden_act", *spec["config"], *(spec["old"] or {})}
    known |= {k for k in written if "multiplier" in k or "window" in k or k.endswith(("_bias", "softcapping", "scaling"))}
    if spec.get("whole"):
        known |= written.keys() - NOT_OF_THE_MODEL
    written = {k: v for k, v in written.items() if k in known and (v is not None or k in spec["config"])}
    if "num_experts" in spec["config"]:  # transformers 5 calls it num_local_experts, the released files do not
        written["num_experts" if spec["as_saved"] else "num_local_experts"] = spec["config"]["num_experts"]
    for key, value in (spec["old"] or {}).items():
        if value is None and key != "rope_scaling":
            written.pop(key, None)
        else:
            written[key] = value
    (folder / "config.json").write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")

    random = np.random.default_rng(seed)
    ids = random.integers(3, text.vocab_size, spec["ids"]).tolist()
    short = 16
    sequence = ids[:spec["start"]]
    for _ in range(GREEDY):
        sequence.append(int(logits_of(model, sequence)[-1].argmax()))
    expected = {
        "ids": np.array(ids, np.int32),
        "logits": logits_of(model, ids).numpy(),
        "short": logits_of(model, ids[:short]).numpy(),
        "start": np.array([spec["start"]], np.int32),
        "greedy": np.array(sequence[spec["start"]:], np.int32),
    }
    save_file(expected, folder / "expected.safetensors")
    size = sum(p.stat().st_size for p in folder.iterdir())
    largest = float(np.abs(expected["logits"]).max())
    print(f"{name}: {size / 1000:.0f} KB, logits up to {largest:.2f}, {len(set(expected['greedy'].tolist()))} greedy ids")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("out", nargs="?", type=pathlib.Path, default=root / "tests/model/families")
    parser.add_argument("--only", choices=CASES, nargs="+")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    for name, spec in CASES.items():
        if args.only is None or name in args.only:
            make(name, spec, args.out)


main()
