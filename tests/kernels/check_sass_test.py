# SPDX-License-Identifier: Apache-2.0
"""usage: check_sass_test.py CHECK_SASS SIZES: scripts/check_sass over machine code that is only told.

SIZES: the program of tests/kernels/launch_sizes.cpp.
"""
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

CHECK_SASS, SIZES = map(pathlib.Path, sys.argv[1:])
KERNELS = CHECK_SASS.parent.parent / "kernels"
ARCHITECTURES = ("sm_80", "sm_90", "sm_90a")
HALVES = ("6__half", "13__nv_bfloat16")
DIMS = [f"Li{d}E" for d in (64, 96, 128, 256)]
ROOMS = ("Ll8E", "Ll64E")  # sequences in a launch
TEMPLATES = {
    "MmaAttentionKernel": list(map("".join, itertools.product(HALVES, DIMS, ("Lb0E", "Lb1E")))),
    "MmaColumnSumsKernel": list(map("".join, itertools.product(HALVES, DIMS))),
    "WgmmaAttentionKernel": list(map("".join, itertools.product(HALVES, (DIMS[0], DIMS[2], DIMS[3])))),
    "WgmmaColumnSumsKernel": list(map("".join, itertools.product(HALVES, (DIMS[0], DIMS[2], DIMS[3])))),
    "FloatAttentionKernel": [DIMS[0], DIMS[2], DIMS[3]],
    "FloatColumnSumsKernel": [DIMS[0], DIMS[2], DIMS[3]],
    "MmaRowMassKernel": list(map("".join, itertools.product(HALVES, (DIMS[0], DIMS[2], DIMS[3])))),
    "RowMassKernel": list(map("".join, itertools.product(("f",) + HALVES, (DIMS[0], DIMS[2], DIMS[3]), ROOMS))),
    "MergeSplitsKernel": list(map("".join, itertools.product(("f",) + HALVES, ("Li1E", "Li8E")))),
    "ScoresToColumnSumsKernel": list(HALVES),
}
SOUND = dict(registers=64, stack=0, static=0, local=0, code=("HMMA", "LDSM", "LDGSTS", "FFMA", "HGMMA", "SYNCS"))


def declared():
    for path in sorted(KERNELS.glob("*.cu*")):
        yield from re.findall(r"__global__[^;{]*?\b(\w+Kernel)\s*\(", path.read_text())


def check(changes=None, without=(), more=()):
    """(exit code, output) where `changes` {kernel: {figure: value}} replace sound figures."""
    resources, code = [], []
    for architecture in ARCHITECTURES:
        resources.append(f"arch = {architecture}")
        code.append(f"arch = {architecture}")
        for kernel in sorted(set(declared()) - set(without)):
            if (architecture == "sm_90a") != kernel.startswith("Wgmma"):
                continue
            for arguments in TEMPLATES.get(kernel, [""]):
                space = "41_GLOBAL__N__c85f6c55_9_limits_cu_5e18ec5b" if kernel == "ProbeKernel" else ""
                name = f"_ZN8episodic7kernels{space}{len(kernel)}{kernel}" + (f"I{arguments}EEvv" if arguments else "Ev")
                figures = {**SOUND, **(changes or {}).get(kernel, {})}
                static = figures["static"] + (1024 if architecture != "sm_80" else 0)
                resources.append(f" Function {name}:\n  REG:{figures['registers']} STACK:{figures['stack']} "
                                 f"SHARED:{static} LOCAL:{figures['local']} CONSTANT[0]:640")
                code.append(f"\t\tFunction : {name}")
                code += [f"        /*0{i}00*/                   {op} R1, R2 ;" for i, op in enumerate(figures["code"])]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "resources").write_text("\n".join(resources) + "\n")
        (folder / "code").write_text("\n".join(code) + "\n")
        fake = folder / "cuobjdump"
        fake.write_text(f'#!/bin/sh\n[ "$1" = -sass ] && exec cat {folder}/code\nexec cat {folder}/resources\n')
        fake.chmod(0o755)
        done = subprocess.run(
            [sys.executable, str(CHECK_SASS), "--architectures", ",".join(ARCHITECTURES), "--sizes", str(SIZES), str(fake), *more],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "CUOBJDUMP": str(fake), "NVDISASM": str(fake)})
    return done.returncode, done.stdout


def expect(code, says, **arguments):
    got, text = check(**arguments)
    if got != code or says not in text:
        sys.exit(f"wanted exit code {code} and '{says}', got {got} and:\n{text}")


expect(0, "| MmaAttention | 16 | 128 | 0 | 91648 |")
expect(1, "RecallKernel<> on sm_90 spills", changes={"RecallKernel": {"stack": 128, "code": ("STL", "LDL")}})
expect(0, "RotaryAngles", changes={"RotaryAnglesKernel": {"stack": 40}})
expect(1, "RecallKernel<> on sm_80 may ask for 40000 + 98368", changes={"RecallKernel": {"static": 40000}})
expect(0, "| WgmmaAttention | 6 | 384 | 0 | 166992 | 64 (sm_90a) | 1 |")
expect(1, "WgmmaAttentionKernel<half,128> on sm_90a has no HGMMA",
       changes={"WgmmaAttentionKernel": {"code": ("LDGSTS", "SYNCS")}})
expect(1, "WgmmaAttentionKernel<half,128> on sm_90a waits for each wgmma by itself",
       changes={"WgmmaAttentionKernel": {"code": ("LDGSTS", "SYNCS", "HGMMA", "WARPGROUP")}})
expect(2, "0 of 6 instances of WgmmaAttentionKernel on sm_90a", without=["WgmmaAttentionKernel"])
expect(1, "RowsKernel<> on sm_90 has 50000 bytes of static", changes={"RowsKernel": {"static": 50000}})
expect(1, "MergeSplitsKernel<float,1> on sm_80 has 65 registers", changes={"MergeSplitsKernel": {"registers": 65}})
expect(1, "RowsKernel<> on sm_80: 0 blocks", changes={"RowsKernel": {"registers": 72}})  # 1024 threads of 72
expect(1, "GraphHalfKernel<> on sm_90 has no HMMA", changes={"GraphHalfKernel": {"code": ("FFMA", "LDSM", "LDGSTS")}})
expect(2, "0 of 16 instances of MmaAttentionKernel on sm_80", without=["MmaAttentionKernel"])
expect(2, "0 of 1 instances of ProbeKernel on sm_90", without=["ProbeKernel"])
# Of the resources alone: no instruction is looked for, all else is.
few = {"more": ["--resources"]}
expect(0, "| WgmmaAttention | 6 |", changes={"WgmmaAttentionKernel": {"code": ()}}, **few)
expect(1, "RecallKernel<> on sm_90 spills", changes={"RecallKernel": {"stack": 128}}, **few)
expect(1, "MergeSplitsKernel<float,1> on sm_80 has 65 registers", changes={"MergeSplitsKernel": {"registers": 65}}, **few)
expect(2, "0 of 16 instances of MmaAttentionKernel on sm_80", without=["MmaAttentionKernel"], **few)
print("check_sass tells what is out of bounds")
