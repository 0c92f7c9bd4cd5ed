// SPDX-License-Identifier: Apache-2.0
#include "reader_flags.hpp"

#include "episodic/base/error.hpp"
#include "episodic/model/open_model.hpp"

namespace episodic::tools {

void ReaderFlags::add_to(Command& app) {
  app.option("--reader", dir,
             "Recalled events count by the trained read and write heads in DIR (train-lora "
             "--reader)")
      .type_name("DIR");
}

void ReaderFlags::apply(Engine& engine) const {
  if (dir.empty()) return;
  auto* const memory = dynamic_cast<EpisodicMemory*>(engine.memory());
  if (!memory)
    throw ConfigError(engine.has_memory()
                          ? "--reader: reads on the host alone; use --device cpu"
                          : "--reader: full attention recalls nothing; leave one of the two out");
  if (!heads_)
    heads_ =
        std::make_shared<const ReaderHeads>(load_reader_heads(dir, open_model(engine.model_dir())));
  memory->set_recall_hook(weighting(std::make_shared<HeadReader>(heads_, *memory)));
}

}  // namespace episodic::tools
