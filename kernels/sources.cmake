# The sources of the kernels, also read by tests/emulator, which compiles them for the host.
set(EPISODIC_KERNEL_SOURCES
  attention.cu
  attention_bfloat16.cu
  attention_float.cu
  attention_half.cu
  close_events.cu
  copies.cu
  decoder.cu
  place_events.cu
  recall.cu
  refine.cu
  relevance.cu
  rows.cu
  surprise.cu
  threshold.cu
  window.cu
)
