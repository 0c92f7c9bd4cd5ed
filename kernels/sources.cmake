# The sources of the kernels, also read by tests/emulator, which compiles them for the host.
set(EPISODIC_KERNEL_SOURCES attention.cu attention_bfloat16.cu attention_float.cu attention_half.cu
  surprise.cu)
