#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: make_packed_weights.py OUT: matrices as other programs quantise and store them, and what they stand for.

Writes OUT/SCHEME/model.safetensors and config.json for the tests (tests/model/packed). Each matrix X has the scheme's
tensors and X.expected, computed from the integers before they were packed. compressed-tensors are packed by that
package itself (0.20; with torch and safetensors); GPTQ and AWQ by the order that AutoGPTQ and AutoAWQ document."""
import json
import pathlib
import sys

import torch
from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
from compressed_tensors.compressors.pack_quantized import pack_to_int32
from safetensors.torch import save_file


def integers(generator, out, inner, groups, bits, symmetric):
    """Codes [out, inner], scales [out, groups] of float16's numbers, zero points [out, groups]."""
    codes = torch.randint(0, 1 << bits, (out, inner), generator=generator)
    scales = (torch.rand(out, groups, generator=generator) * 0.02 + 0.001).half()
    zeros = torch.randint(0, 1 << bits, (out, groups), generator=generator)
    return codes, scales, torch.full_like(zeros, 1 << (bits - 1)) if symmetric else zeros


def meaning(codes, scales, zeros, group):
    return (codes - zeros[:, group]).float() * scales.float()[:, group]


def words(parts, bits):
    """[..., 32 / bits] codes, the first in the lowest bits."""
    shifts = torch.arange(0, 32, bits)
    packed = (parts.long() << shifts).sum(-1)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).int().contiguous()


def gptq(generator, bits, less):
    """less: what is taken from zero points before they are stored."""
    tensors = {}
    for name, out, inner, groups, symmetric, ordered in (("a", 24, 96, 3, True, True), ("b", 16, 64, 2, False, True),
                                                         ("d", 16, 64, 4, False, True), ("e", 16, 96, 3, True, False)):
        codes, scales, zeros = integers(generator, out, inner, groups, bits, symmetric)
        zeros = zeros.clamp(less)
        group = torch.arange(inner) // (inner // groups)
        if not ordered:
            group = group[torch.randperm(inner, generator=generator)]
        each = 32 // bits
        tensors[name + ".qweight"] = words(codes.T.reshape(inner // each, each, out).transpose(1, 2), bits)
        tensors[name + ".qzeros"] = words((zeros - less).T.reshape(groups, out // each, each), bits)
        tensors[name + ".scales"] = scales.T.contiguous()
        tensors[name + ".g_idx"] = group.int()
        tensors[name + ".expected"] = meaning(codes, scales, zeros, group)
        tensors[name + ".bias"] = torch.zeros(out).half()
    return tensors


def awq(generator):
    tensors = {}
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    for name, out, inner, groups in (("a", 24, 96, 3), ("b", 16, 64, 1), ("c", 8, 96, 4)):
        codes, scales, zeros = integers(generator, out, inner, groups, 4, False)
        tensors[name + ".qweight"] = words(codes.T.reshape(inner, out // 8, 8)[:, :, order], 4)
        tensors[name + ".qzeros"] = words(zeros.T.reshape(groups, out // 8, 8)[:, :, order], 4)
        tensors[name + ".scales"] = scales.T.contiguous()
        tensors[name + ".expected"] = meaning(codes, scales, zeros, torch.arange(inner) // (inner // groups))
    return tensors


def compressed(generator):
    tensors = {}
    for name, out, inner, groups, bits, symmetric, ordered in (
            ("a", 24, 96, 3, 4, True, True), ("b", 16, 64, 2, 4, False, True), ("c", 9, 64, 1, 8, True, True),
            ("d", 10, 72, 3, 4, False, True), ("e", 16, 96, 3, 4, True, False)):
        codes, scales, zeros = integers(generator, out, inner, groups, bits, symmetric)
        half = 1 << (bits - 1)
        group = torch.arange(inner) // (inner // groups)
        if not ordered:
            group = group[torch.randperm(inner, generator=generator)]
            tensors[name + ".weight_g_idx"] = group.int()
        tensors[name + ".weight_packed"] = pack_to_int32((codes - half).to(torch.int8), bits).contiguous()
        tensors[name + ".weight_scale"] = scales.bfloat16()
        tensors[name + ".weight_shape"] = torch.tensor([out, inner])
        if not symmetric:
            tensors[name + ".weight_zero_point"] = pack_to_int32((zeros - half).to(torch.int8), bits,
                                                                 packed_dim=0).contiguous()
        tensors[name + ".expected"] = meaning(codes, scales.bfloat16(), zeros, group)
    codes = torch.randint(-127, 128, (12, 64), generator=generator).to(torch.int8)
    scale = (torch.rand(12, 1, generator=generator) * 0.01 + 0.001).bfloat16()
    tensors |= {"g.weight": codes, "g.weight_scale": scale, "g.expected": codes.float() * scale.float()}
    return tensors


def fp8(generator):
    tensors = {}
    for name, out, inner, scale in (("a", 20, 48, "block"), ("b", 20, 48, "row"), ("c", 7, 33, "one"),
                                    ("d", 9, 16, "rows")):
        codes = (torch.randn(out, inner, generator=generator) * 60).to(torch.float8_e4m3fn)
        shape = {"block": (-(-out // 16), -(-inner // 32)), "row": (out, 1), "one": (), "rows": (out,)}[scale]
        scales = torch.rand(shape, generator=generator) * 0.01 + 0.001
        full = {"block": lambda: scales.repeat_interleave(16, 0)[:out].repeat_interleave(32, 1)[:, :inner],
                "row": lambda: scales, "one": lambda: scales, "rows": lambda: scales[:, None]}[scale]()
        tensors[name + ".weight"] = codes
        tensors[name + (".weight_scale_inv" if scale == "block" else ".weight_scale")] = scales
        tensors[name + ".input_scale"] = torch.ones(())
        tensors[name + ".expected"] = (codes.float() * full).bfloat16().float()
    return tensors


def fp4(generator, scheme):
    """4-bit floats: NVFP4 as compressed-tensors or as ModelOpt stores it, or MXFP4."""
    tensors = {}
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    group = 32 if scheme == "mxfp4" else 16
    for name, out, inner in (("a", 24, 96), ("b", 9, 64)):
        draw = torch.randint(0, 16, (out, inner), generator=generator)
        numbers = values[draw % 8] * torch.where(draw < 8, 1, -1)
        weight = ".weight" if scheme == "modelopt" else ".weight_packed"
        tensors[name + weight] = pack_fp4_to_uint8(numbers.bfloat16())
        if scheme == "mxfp4":
            scales = torch.randint(118, 123, (out, inner // group), generator=generator)
            tensors[name + ".weight_scale"] = scales.to(torch.uint8)
            full = 2.0 ** (scales - 127)
        else:
            scales = (torch.rand(out, inner // group, generator=generator) * 400).to(torch.float8_e4m3fn)
            tensors[name + ".weight_scale"] = scales
            of_all = torch.tensor([26880.0 if scheme == "nvfp4" else 3e-5])
            tensors[name + (".weight_global_scale" if scheme == "nvfp4" else ".weight_scale_2")] = of_all
            tensors[name + (".input_global_scale" if scheme == "nvfp4" else ".input_scale")] = torch.ones(1)
            full = scales.float() / of_all if scheme == "nvfp4" else scales.float() * of_all
        tensors[name + ".expected"] = numbers * full.repeat_interleave(group, 1)
    return tensors


def main():
    out = pathlib.Path(sys.argv[1])
    generator = torch.Generator().manual_seed(47)
    for name, settings, tensors in (
            ("gptq", {"quant_method": "gptq", "bits": 4, "group_size": 32}, gptq(generator, 4, 1)),
            ("gptq_8", {"quant_method": "gptq", "bits": 8, "desc_act": True}, gptq(generator, 8, 1)),
            ("gptq_v2", {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}, gptq(generator, 4, 0)),
            ("awq", {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}, awq(generator)),
            ("compressed", {"quant_method": "compressed-tensors", "format": "pack-quantized"}, compressed(generator)),
            ("fp8", {"quant_method": "fp8", "weight_block_size": [16, 32]}, fp8(generator)),
            ("nvfp4", {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, fp4(generator, "nvfp4")),
            ("modelopt", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, fp4(generator, "modelopt")),
            ("mxfp4", {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}, fp4(generator, "mxfp4"))):
        (out / name).mkdir(parents=True, exist_ok=True)
        save_file(tensors, out / name / "model.safetensors")
        (out / name / "model.safetensors").chmod(0o644)
        (out / name / "config.json").write_text(json.dumps({"quantization_config": settings}, indent=2) + "\n")


if __name__ == "__main__":
    main()
