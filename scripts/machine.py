# SPDX-License-Identifier: Apache-2.0
"""Where and with what a result was made: what the scripts that measure write into theirs."""
import datetime
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def commit():
    git = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True,
                         text=True)
    return git.stdout.strip() or "unknown"


def cpu_field(name):
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(name):
            return line.split(":", 1)[1].strip()
    return "unknown"


def cpu_name():
    return cpu_field("model name")


def environment():
    flags = cpu_field("flags").split()
    return {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "commit": commit(),
            "cpu": cpu_name(), "simd": [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_tile") if f in flags],
            "cores": os.cpu_count(), "load_average_at_start": os.getloadavg()[0]}


def made_with(env):
    return f"commit {env['commit']}, {env['date'][:10]}, {env['cpu']} ({', '.join(env['simd']) or 'no AVX2'}), {env['cores']} cores"
