// SPDX-License-Identifier: Apache-2.0
#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/device/device_products.hpp"
#include "episodic/model/memory_settings.hpp"

namespace episodic::tools {

bool on_device(const CommonFlags& common) {
  return common.device == "cuda" || (common.device == "auto" && has_device());
}

bool on_usable_device(const CommonFlags& common) {
  if (!on_device(common)) return false;
  try {
    require_device();
  } catch (const DeviceError& e) {
    throw DeviceError("--device " + common.device + ": " + e.what());
  }
  return true;
}

std::string device_name_of(const CommonFlags& common) {
  return on_usable_device(common) ? device_name() : "";
}

std::unique_ptr<Engine> load_engine_on_device(const CommonFlags& common,
                                              const std::filesystem::path& model,
                                              const ModelOptions& changes,
                                              std::optional<DType> dtype) {
  if (!on_usable_device(common)) return nullptr;
  DeviceDecoder::Options options;
  options.dtype = dtype;
  options.event_tokens = common.whole_event_tokens();
  return load_device_engine(model, options, changes);
}

std::int64_t free_memory(const CommonFlags& common) {
  return on_device(common) ? free_device_bytes() : available_host_bytes();
}

std::unique_ptr<FrozenProducts> products_on_device(const CommonFlags& common,
                                                   const OpenModel& model) {
  return on_usable_device(common) ? load_device_products(model) : nullptr;
}

std::optional<DevicePlan> plan_for_device(const CommonFlags& common, const ModelFlags& flags,
                                          const MemoryConfig& config, std::int64_t tokens) {
  if (!on_device(common)) return std::nullopt;
  return plan_on_device(flags.model, config, tokens, flags.options(), common.whole_event_tokens());
}

}  // namespace episodic::tools
