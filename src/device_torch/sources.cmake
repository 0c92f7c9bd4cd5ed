# The sources of this room, also read by tests/device_torch, which runs them without a device.
set(EPISODIC_DEVICE_TORCH_SOURCES device_attention.cpp)
