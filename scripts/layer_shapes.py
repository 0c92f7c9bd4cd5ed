# SPDX-License-Identifier: Apache-2.0
"""The shapes of a layer that scripts/bench and scripts/beside_authors measure, as flags of the benchmarks."""

LARGE = {"heads": 32, "kv-heads": 8, "head-dim": 128, "n-init": 128, "n-local": 4096, "n-mem": 2048,
         "chunk": 512, "n-repr": 4}
SMALL = {"heads": 8, "kv-heads": 4, "head-dim": 64, "n-init": 128, "n-local": 512, "n-mem": 512,
         "chunk": 128, "n-repr": 4}
