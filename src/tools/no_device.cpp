// SPDX-License-Identifier: Apache-2.0
// In place of with_device.cpp where nothing of CUDA is linked.

#include "engines.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/memory_settings.hpp"
#include "trace_parts.hpp"

namespace episodic::tools {
namespace {

void refuse_cuda(const CommonFlags& common) {
  if (common.device == "cuda")
    throw NotBuiltError(
        "--device cuda: this build has no CUDA path; build with -DEPISODIC_CUDA=ON, or use "
        "--device cpu");
}

}  // namespace

std::string device_name_of(const CommonFlags& common) {
  refuse_cuda(common);
  return {};
}

std::unique_ptr<Engine> load_engine_on_device(const CommonFlags& common,
                                              const std::filesystem::path& /*model*/,
                                              const ModelOptions& /*changes*/,
                                              std::optional<DType> /*dtype*/) {
  refuse_cuda(common);
  return nullptr;
}

std::int64_t free_memory(const CommonFlags& /*common*/) { return available_host_bytes(); }

std::unique_ptr<FrozenProducts> products_on_device(const CommonFlags& common,
                                                   const OpenModel& /*model*/) {
  refuse_cuda(common);
  return nullptr;
}

std::optional<DevicePlan> plan_for_device(const CommonFlags& common, const ModelFlags& /*flags*/,
                                          const MemoryConfig& /*config*/, std::int64_t /*tokens*/) {
  refuse_cuda(common);
  return std::nullopt;
}

std::unique_ptr<TraceParts> trace_parts_of_device(const CommonFlags& common) {
  refuse_cuda(common);
  return nullptr;
}

}  // namespace episodic::tools
