// SPDX-License-Identifier: Apache-2.0
#include "engine.hpp"

#include "engines.hpp"

namespace episodic::tools {

std::unique_ptr<Engine> load_engine(const CommonFlags& common, const std::filesystem::path& model) {
  if (std::unique_ptr<Engine> engine = load_device_engine(common, model)) return engine;
  return load_host_engine(model);
}

std::unique_ptr<Engine> make_engine(const CommonFlags& common, const ModelFlags& flags,
                                    const MemoryConfig& config, std::int64_t max_tokens) {
  std::unique_ptr<Engine> engine = load_engine(common, flags.model);
  if (flags.full_attention)
    engine->attend_fully(max_tokens);
  else
    engine->remember(config, max_tokens);
  return engine;
}

}  // namespace episodic::tools
