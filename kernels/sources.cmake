# The sources of the kernels, also read by tests/emulator, which compiles them for the host.
set(EPISODIC_KERNEL_SOURCES
  close_events.cu
  copies.cu
  decoder.cu
  recall.cu
  refine.cu
  relevance.cu
  rows.cu
  surprise.cu
  threshold.cu
  window.cu
)
