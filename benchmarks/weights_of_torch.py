# SPDX-License-Identifier: Apache-2.0
"""What torch brings for narrow weights, beside bench_weights (docs/weights.md): a 4096 x 4096 matrix times 1, 16, 512 rows.

Usage: python benchmarks/weights_of_torch.py [THREADS]

Needs the Python package torch with all it depends on. AVX2 alone, as far as the libraries listen:
ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2.
"""
import sys
import time

import torch

SIZE = 4096


def best(call, rounds=7):
    call()
    least = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - start)
    return least


def products(weight, x):
    """(name, call) of each way; random codes, for only the time counts."""
    narrow, x16 = weight.bfloat16(), x.bfloat16()
    int4 = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.randint(0, 15, (SIZE, SIZE), dtype=torch.int32), 1)
    scales_of_32 = torch.rand(SIZE // 32, SIZE, 2, dtype=torch.bfloat16)
    int8 = torch.randint(-127, 127, (SIZE, SIZE), dtype=torch.int8)
    scales = torch.rand(SIZE, dtype=torch.bfloat16)
    fbgemm = torch.ao.nn.quantized.dynamic.Linear(SIZE, SIZE)
    zeros = torch.zeros(SIZE, dtype=torch.int64)
    fbgemm.set_weight_bias(torch.quantize_per_channel(weight, torch.rand(SIZE) / 100, zeros, 0, torch.qint8), None)
    return [("float32 (MKL)", lambda: x @ weight.t()), ("bfloat16 (oneDNN)", lambda: x16 @ narrow.t()),
            ("_weight_int4pack_mm_for_cpu, groups of 32",
             lambda: torch.ops.aten._weight_int4pack_mm_for_cpu(x16, int4, 32, scales_of_32)),
            ("_weight_int8pack_mm, a scale a row", lambda: torch.ops.aten._weight_int8pack_mm(x16, int8, scales)),
            ("FBGEMM int8, a scale a row", lambda: fbgemm(x))]


def main():
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    weight = torch.randn(SIZE, SIZE)
    for n in (1, 16, 512):
        for name, call in products(weight, torch.randn(n, SIZE)):
            seconds = best(call)
            print(f"{n:4d} rows  {name:44s} {SIZE * SIZE / seconds / 1e9:7.2f} G weights/s "
                  f"{2 * n * SIZE * SIZE / seconds / 1e9:8.1f} GFLOP/s", flush=True)


if __name__ == "__main__":
    main()
