# SPDX-License-Identifier: Apache-2.0
"""usage: check_program.py PROGRAM COMPONENT: runs a consumer, and sees that the core's has no torch."""
import subprocess
import sys

program, component = sys.argv[1:]
subprocess.run([program], check=True)
libraries = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
if ("libtorch_cpu" in libraries) != (component == "episodic"):
    sys.exit(f"{component}: libtorch is {'linked' if component == 'core' else 'not linked'}\n{libraries}")
