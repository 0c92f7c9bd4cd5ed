#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that are processes of torch.distributed with Gloo: c10d_test.py LIBRARY. Starts itself once for each rank."""
import datetime
import os
import subprocess
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"EPISODIC_SKIP: no torch for Python ({error})")
    sys.exit(0)
if not (dist.is_available() and dist.is_gloo_available()):
    print("EPISODIC_SKIP: torch without Gloo")
    sys.exit(0)


def rank_main(library, rank, size, mode, seconds, file):
    torch.ops.load_library(library)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=60))
    own = dist.new_group(list(range(size)), backend="gloo")
    said = torch.ops.episodic_ranks.run(own.group_name, mode, seconds)
    print(f"rank {rank} says {said}", flush=True)
    os._exit(0)  # torch waits for ranks that are gone


def start(size, mode, seconds):
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([sys.executable, __file__, sys.argv[1], str(rank), str(size), mode, str(seconds),
                                   f"{folder}/store"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                 for rank in range(size)]
        try:
            said = [rank.communicate(timeout=240)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    return said, time.monotonic() - begun


def main():
    torch.ops.load_library(sys.argv[1])
    assert "is null" in torch.ops.episodic_ranks.of_null()
    for size in (1, 2, 4) if os.environ.get("EPISODIC_ALL_CASES") == "1" else (2,):
        said, _ = start(size, "sums", 60)
        assert all(f"rank {rank} says done" in text for rank, text in enumerate(said)), said
    said, _ = start(3, "fails", 60)
    assert all(f"rank {rank} says done" in text for rank, text in enumerate(said)), said
    # One that is killed: each of the others says so in one sentence, in time.
    said, seconds = start(3, "ends", 5)
    for rank in (0, 1):
        lines = [line for line in said[rank].splitlines() if "says" in line]
        assert len(lines) == 1 and "group: " in lines[0], said
    assert "says" not in said[2] and seconds < 120, (said, seconds)
    print("ok")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        rank_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], float(sys.argv[5]), sys.argv[6])
    else:
        main()
