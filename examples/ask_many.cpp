// SPDX-License-Identifier: Apache-2.0
// Read a document once, then answer many questions about it in the same steps: each in a sequence
// of its own, which goes on from the one that read. The weights are read once for all of them.
// Usage: example_ask_many MODEL_DIR FILE [QUESTION...]   a question is a thing: "pass key of Tom"
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "episodic/session/run.hpp"
#include "episodic/session/session.hpp"

namespace {

struct Question {
  std::string thing;
  episodic::Sequence sequence;
  episodic::Generation answer;
  std::string problem;
};

/// Steps of all questions together until each has its answer.
void answer_all(const episodic::Model& model, std::vector<Question>& questions) {
  for (;;) {
    std::vector<Question*> open;
    std::vector<episodic::SequenceInput> inputs;
    for (Question& q : questions) {
      if (q.answer.done()) continue;
      open.push_back(&q);
      inputs.emplace_back(&q.sequence, q.answer.next_input(q.sequence.chunk()));
    }
    if (open.empty()) return;
    const std::vector<episodic::StepResult> results = episodic::run(model, inputs);
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (results[i]) {
        open[i]->answer.accept(results[i].logits);
      } else {  // the others go on
        open[i]->problem = results[i].message();
        open[i]->answer.cancel();
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3 || !std::filesystem::exists(std::filesystem::path(argv[1]) / "config.json")) {
    std::puts("EPISODIC_SKIP: no model. Usage: example_ask_many MODEL_DIR FILE [QUESTION...]");
    return argc >= 3 ? 1 : 2;
  }
  const auto model = episodic::load_model(argv[1]);
  const episodic::Tokenizer& tokenizer = model->tokenizer();
  std::ifstream file(argv[2]);
  if (!file) throw std::runtime_error(std::string(argv[2]) + ": cannot be read");
  const std::string text((std::istreambuf_iterator<char>(file)), {});

  episodic::Sequence reader(model);
  reader.attach();  // an empty memory with the settings of memory.json
  episodic::Session(reader, &tokenizer).prefill(tokenizer.encode(text));
  std::printf("%lld tokens read, %lld events\n", static_cast<long long>(reader.tokens()),
              static_cast<long long>(reader.n_events()));

  std::vector<Question> questions;
  for (int i = 3; i < argc; ++i) {
    const std::string thing = argv[i];
    episodic::GenerateOptions options;
    options.max_new = 12;
    options.stop = {".", "\n"};
    auto prompt = episodic::encode_continuation(
        tokenizer, "\n\nWhat is the " + thing + "?\n\nThe " + thing + " is");
    questions.push_back(
        {thing, reader.fork(), model->generation(std::move(prompt), std::move(options)), {}});
  }
  answer_all(*model, questions);
  for (const Question& q : questions)
    std::printf("%s:%s\n", q.thing.c_str(),
                q.problem.empty() ? q.answer.result().text.c_str()
                                  : (" (failed: " + q.problem + ")").c_str());
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
