# The sources of the kernels, also read by tests/emulator, which compiles them for the host.
set(EPISODIC_KERNEL_SOURCES surprise.cu
  threshold.cu refine.cu close_events.cu key_segmenter.cu)
