# SPDX-License-Identifier: Apache-2.0
"""usage: check_program.py PROGRAM COMPONENT: runs a consumer, and sees which libraries it loads.

Those of the torch rooms have torch, the others not; that of the headers alone has nothing. The kernels' may say that there is no CUDA device."""
import subprocess
import sys

program, component = sys.argv[1:]
ran = subprocess.run([program], capture_output=True, text=True)
print(ran.stdout + ran.stderr, end="")
no_device = component == "kernels" and ran.returncode == 1 and "no CUDA device" in ran.stderr
if ran.returncode != 0 and not no_device:
    sys.exit(f"{program}: exit code {ran.returncode}")
libraries = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
if "not found" in libraries:
    sys.exit(f"{component}: a library is not found\n{libraries}")
on_torch = component in ("torch", "device_torch")
if ("libtorch_cpu" in libraries) != on_torch:
    sys.exit(f"{component}: libtorch is {'not linked' if on_torch else 'linked'}\n{libraries}")
if component == "headers" and any(name in libraries for name in ("gomp", "fmt", "faiss", "pcre", "utf8proc")):
    sys.exit(f"headers: more is linked than a compiler brings\n{libraries}")
if component == "kernels" and "libcudart" not in libraries:
    sys.exit(f"kernels: the CUDA runtime is not the shared one\n{libraries}")
