# SPDX-License-Identifier: Apache-2.0
# What the scripts share. Sourced, not run: expects `set -euo pipefail`.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cache=${EPISODIC_CACHE:-$root/.cache}
build=${EPISODIC_BUILD_DIR:-$root/build}

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() {
  say "error: $*"
  exit 1
}

# The header comment of the calling script, from its third line on: its help text.
print_help() { awk 'NR > 2 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"; }

# Folder of a libtorch that links and loads, as scripts/setup left it; empty if there is none.
recorded_torch() {
  local dir=${EPISODIC_TORCH_ROOT:-}
  if [ -z "$dir" ] && [ -r "$cache/torch_root" ]; then dir=$(cat "$cache/torch_root"); fi
  if [ -n "$dir" ] && [ -e "$dir/lib/libtorch_cpu.so" ]; then printf '%s' "$dir"; fi
}

# Path of a CUDA compiler that runs; empty if there is none.
find_nvcc() {
  local nvcc
  for nvcc in "${CUDACXX:-}" nvcc "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" /usr/local/cuda/bin/nvcc; do
    if [ -n "$nvcc" ] && nvcc=$(command -v "$nvcc") && "$nvcc" --version >/dev/null 2>&1; then
      printf '%s' "$nvcc"
      return 0
    fi
  done
}

# Compile jobs: one per core, and about 2 GB of available memory for each.
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ { print int($2 / 2000000) }' /proc/meminfo 2>/dev/null || true)
  [ -n "$memory" ] || memory=$cores
  if [ "$memory" -lt "$cores" ]; then cores=$memory; fi
  if [ "$cores" -lt 1 ]; then cores=1; fi
  printf '%s' "$cores"
}
