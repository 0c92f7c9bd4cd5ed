#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts ranks as processes: mpi_test.py MPIRUN MPI_RANKS."""
import os
import subprocess
import sys
import time

mpirun, ranks = sys.argv[1:3]
if not os.path.exists(mpirun):
    print("EPISODIC_SKIP: no mpirun")
    sys.exit(0)
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1",
                   OMPI_MCA_btl_vader_single_copy_mechanism="none")  # which containers forbid


def start(n, *words, options=()):
    begun = time.monotonic()
    done = subprocess.run([mpirun, *options, "-n", str(n), ranks, *words], env=ENVIRONMENT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    return done, time.monotonic() - begun


for n in (1, 2, 4):
    done, _ = start(n, "sums")
    assert done.returncode == 0, done.stdout
    assert all(f"rank {r} is done" in done.stdout for r in range(n)), done.stdout
done, _ = start(3, "fails")
assert done.returncode == 0, done.stdout

# One that is killed: with recovery mpirun leaves the others alone, and each of them says one sentence in time.
done, seconds = start(3, "ends", "3", options=["--enable-recovery"])
for rank in (0, 1):
    said = [line for line in done.stdout.splitlines() if f"rank {rank} says" in line]
    assert len(said) == 1 and "rank 2 of 3" in said[0] and "has sent nothing for 3 s" in said[0], done.stdout
assert seconds < 30, seconds
# Without, mpirun ends all of them.
done, seconds = start(2, "ends", "60")
assert done.returncode != 0 and seconds < 30, (done.stdout, seconds)
print("ok")
