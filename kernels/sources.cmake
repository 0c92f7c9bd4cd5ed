# The sources of the kernels, also read by tests/emulator, which compiles them for the host.
set(EPISODIC_KERNEL_SOURCES
  attention.cu
  attention_bfloat16.cu
  attention_float.cu
  attention_half.cu
  block_product.cu
  blocks.cu
  close_events.cu
  codes.cu
  copies.cu
  decoder.cu
  event_mass.cu
  forgetting.cu
  key_segmenter.cu
  limits.cu
  place_events.cu
  product.cu
  recall.cu
  recall_counts.cu
  refine.cu
  relevance.cu
  residency.cu
  reweight.cu
  rows.cu
  short_convolution.cu
  state.cu
  surprise.cu
  threshold.cu
  turn_back.cu
  window.cu
  mixture.cu
  linear_recurrence.cu
)
# For compute capability 9.0 alone: sm_90a. Sources that choose it then see EPISODIC_WGMMA.
set(EPISODIC_WGMMA_SOURCES attention_wgmma.cu)
