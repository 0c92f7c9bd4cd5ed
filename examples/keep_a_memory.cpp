// SPDX-License-Identifier: Apache-2.0
// Read a document once, keep the memory in a folder, ask it in later runs; fork it and go on.
// Usage: example_keep_a_memory MODEL_DIR DOCUMENT FOLDER QUESTION_ABOUT...
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "episodic/model/identity.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/session/session.hpp"

namespace fs = std::filesystem;
using namespace episodic;

int main(int argc, char** argv) try {
  if (argc < 5 || !fs::exists(fs::path(argv[1]) / "config.json")) {
    std::puts(
        "EPISODIC_SKIP: no model. Usage: example_keep_a_memory MODEL DOCUMENT FOLDER NAME...");
    return 2;
  }
  Decoder model = Decoder::load(argv[1]);
  const auto tokenizer = load_tokenizer(argv[1]);
  const MemoryShape shape = memory_shape(model.config());
  KeepOptions keep;
  keep.dir = argv[3];
  keep.identity = identity_of(argv[1]);  // another model is refused

  if (!holds_memory(keep.dir)) {
    MemoryConfig config;
    config.n_init = 16;
    config.n_local = config.n_mem = config.chunk = 256;
    config.host_bytes = 8 << 20;  // what does not fit is read back from the folder
    std::ifstream file(argv[2]);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const auto memory =
        std::make_shared<EpisodicMemory>(EpisodicMemory::create(keep, config, shape));
    patch(model, memory);
    Session(model, tokenizer.get()).prefill(tokenizer->encode(text));
    memory->commit();  // from here on no crash loses it
    std::printf("read %lld tokens into %s\n", static_cast<long long>(memory->tokens()), argv[3]);
    unpatch(model);
  }

  // Any number of processes may read at once; the folder stays as it is.
  const auto memory =
      std::make_shared<EpisodicMemory>(EpisodicMemory::open(keep, OpenMode::read, &shape));
  patch(model, memory);
  Session session(model, tokenizer.get());
  const auto snapshot = memory->snapshot();
  for (int i = 4; i < argc; ++i) {
    memory->restore(*snapshot);
    const std::string question =
        "\n\n\nWhat is the " + std::string(argv[i]) + "?\n\nThe " + argv[i] + " is";
    GenerateOptions options;
    options.max_new = 16;
    options.stop = {"\n", "."};
    const auto answer = session.generate(tokenizer->encode(question, false), options);
    std::printf("%s:%s\n", argv[i], answer.text.c_str());
  }

  // A fork shares the files, so it takes a moment and almost no room.
  KeepOptions draft = keep;
  draft.dir += "-draft";
  if (!holds_memory(draft.dir)) fork_memory(keep.dir, draft.dir);
  EpisodicMemory fork = EpisodicMemory::open(draft, OpenMode::write, &shape);
  fork.forget(EventId{0});
  fork.commit();
  std::printf("the fork has forgotten %zu event, the memory none\n", fork.forgotten().size());
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "keep_a_memory: %s\n", e.what());
  return 1;
}
