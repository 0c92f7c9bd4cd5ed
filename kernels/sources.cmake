# The sources of the kernels, also read by tests/emulator, which compiles them for the host.
set(EPISODIC_KERNEL_SOURCES surprise.cu
  window.cu relevance.cu copies.cu residency.cu reweight.cu)
