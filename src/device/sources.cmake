# The sources of this room, also read by tests/emulator, which runs them without a device.
set(EPISODIC_DEVICE_SOURCES device.cpp device_engine.cpp causal_layers.cpp device_decoder.cpp device_memory.cpp decoder_step.cpp device_weights.cpp growing_buffer.cpp head_layout.cpp lower_tiers.cpp memory_edits.cpp memory_growth.cpp memory_plan.cpp memory_state.cpp memory_step.cpp sliding_windows.cpp)
