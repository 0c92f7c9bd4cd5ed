// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/window_vectors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "closed_text.hpp"
#include "encoder_voice.hpp"
#include "episodic/base/error.hpp"
#include "window_store.hpp"

namespace episodic {

VectorFolder VectorFolder::of(const EpisodicMemory& memory) {
  if (!memory.kept()) return {};
  return {memory.folder(), memory.manifest().id, memory.manifest().generation};
}

WindowVectors::WindowVectors(std::shared_ptr<const SentenceEncoder> encoder, std::int64_t bytes) {
  if (!encoder) throw ConfigError("window vectors: the encoder is null; open one");
  if (bytes < 0) throw ConfigError(fmt::format("window vectors: bytes = {}, must be >= 0", bytes));
  const std::int64_t width = encoder->width();
  impl_.reset(new Impl{std::move(encoder), {width, bytes}});
}
WindowVectors::~WindowVectors() = default;

const SentenceEncoder& WindowVectors::encoder() const { return *impl_->encoder; }
WindowVectorsCounters WindowVectors::counters() const { return impl_->store.counters(); }

bool WindowVectors::keep(const EpisodicMemory& memory, const Tokenizer& tokenizer,
                         const ProgressCallback& progress) {
  if (!memory.kept())
    throw ConfigError("window vectors: the memory is kept in no folder, so they cannot be either");
  const std::int64_t end = closed_end(memory);
  std::vector<std::int32_t> ids;
  add_closed_ids(memory, memory.token_ids(0, end), ids);
  // a holder that nobody else has: what it held stays in the store while there is room
  EncoderVoice voice(std::shared_ptr<WindowVectors>(std::shared_ptr<void>(), this));
  voice.keep_in(VectorFolder::of(memory));
  voice.follow(tokenizer, ids, 0);
  return voice.encode(progress);
}

}  // namespace episodic
