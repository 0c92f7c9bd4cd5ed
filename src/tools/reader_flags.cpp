// SPDX-License-Identifier: Apache-2.0
#include "reader_flags.hpp"

#include <fmt/format.h>

#include "episodic/base/error.hpp"
#include "episodic/model/open_model.hpp"

namespace episodic::tools {
namespace {

/// \throws ConfigError naming the flag where there is none on the host
EpisodicMemory& memory_for(const char* flag, Engine& engine) {
  if (auto* const memory = dynamic_cast<EpisodicMemory*>(engine.memory())) return *memory;
  throw ConfigError(std::string(flag) +
                    (engine.has_memory()
                         ? ": reads on the host alone; use --device cpu"
                         : ": full attention recalls nothing; leave one of the two out"));
}

}  // namespace

void ReaderFlags::add_to(Command& app) {
  app.option("--reader", dir,
             "Recalled events count by the trained read and write heads in DIR (train-lora "
             "--reader)")
      .type_name("DIR");
}

void ReaderFlags::apply(Engine& engine) const {
  if (dir.empty()) return;
  EpisodicMemory& memory = memory_for("--reader", engine);
  if (!heads_)
    heads_ =
        std::make_shared<const ReaderHeads>(load_reader_heads(dir, open_model(engine.model_dir())));
  memory.set_recall_hook(weighting(std::make_shared<HeadReader>(heads_, memory)));
}

void TextReader::attach(Engine& engine) {
  EpisodicMemory& memory = memory_for("--encoder", engine);
  if (memory.config().scope == EventScope::head)
    throw ConfigError(
        "--encoder: scope = \"head\" gives each head events of its own, which have no text; use "
        "scope = \"sequence\"");
  memory_ = &memory;
  reader_ = std::make_shared<EncoderReader>(encoder_, tokenizer_);
  memory.set_rank_hook(ranking(reader_));
}

void TextReader::ask(std::span<const std::int64_t> ids, std::string_view question) {
  reader_->write(memory_->events(), ids);
  reader_->read(question);
}

Option EncoderFlags::add_to(Command& app, const char* what) {
  return app
      .option("--encoder", dir,
              fmt::format("{} by what their text has to do with the question, as the sentence "
                          "encoder in DIR finds (scripts/sentence_encoder fetches one)",
                          what))
      .type_name("DIR");
}

const SentenceEncoder* EncoderFlags::encoder() const {
  if (!encoder_ && !dir.empty())
    encoder_ = std::make_shared<const SentenceEncoder>(
        SentenceEncoder::open(dir, SentenceEncoder::kAllPositions));
  return encoder_.get();
}

std::shared_ptr<WindowVectors> EncoderFlags::vectors() const {
  if (!vectors_ && encoder()) vectors_ = std::make_shared<WindowVectors>(encoder_);
  return vectors_;
}

std::unique_ptr<TextReader> EncoderFlags::open(Engine& engine) const {
  if (!encoder()) return nullptr;
  return std::make_unique<TextReader>(*encoder(), engine.tokenizer());
}

}  // namespace episodic::tools
