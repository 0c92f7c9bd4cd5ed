// SPDX-License-Identifier: Apache-2.0
// The C API's answers: of one sequence, and of many at once.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "calls.hpp"
#include "episodic/base/error.hpp"
#include "episodic/session/chat_answer.hpp"
#include "episodic/session/run.hpp"
#include "episodic/session/session.hpp"
#include "objects.hpp"

namespace episodic::c {
namespace {

// Of the version that brought them, for ever: these stay when a struct grows (tests/c/abi_v*.txt).
constexpr std::size_t kOptionsLeast = 104, kPromptLeast = 328;

/// The passages that a prompt reads again.
/// \param asks the sequence is not to go on from the prompt
FoundPassages passages_of(SequenceObject& object, std::string_view text,
                          const episodic_generate_options& o, bool asks) {
  if (o.reread < EPISODIC_REREAD_ALONE)
    throw ConfigError("options: reread = " + std::to_string(o.reread) +
                      "; must be a number of passages or an EPISODIC_REREAD_... value");
  if (o.reread < 0 && !asks)
    throw ConfigError("options: reread = " + std::to_string(o.reread) +
                      " may answer without the sequence; that is for questions, so ask");
  Sequence& sequence = object.sequence;
  if (o.reread == 0 || !sequence.has_memory()) return {};
  if (!object.finder) object.finder = std::make_unique<PassageFinder>(sequence.shared_model());
  PassageFinder& finder = *object.finder;
  finder.read(*sequence.memory(), sequence.known_ids());
  if (o.reread == EPISODIC_REREAD_WHERE_SURE) return finder.find_for(PassageUse::where_sure, text);
  if (o.reread == EPISODIC_REREAD_ALONE) return finder.find_for(PassageUse::alone, text);
  return finder.find_for(PassageUse::behind_memory, text, {.count = o.reread, .rerank = o.rerank});
}

/// A prompt in two steps, as `Conversation` and `encode_continuation` give it.
/// \param passages that it reads again \param reply in the chat format
ChatPrompt prompt_of(const Sequence& sequence, std::string_view text, bool chat,
                     std::span<const Passage> passages, std::optional<ChatAnswer>& reply) {
  const Model& model = sequence.model();
  std::string before = joined_text(passages);
  if (!before.empty()) before += "\n\n";
  if (chat)
    return Conversation(model.chat_template(), model.tokenizer(),
                        {.goes_on = sequence.tokens() > 0})
        .ask(before, std::string(text), reply->turn());
  ChatPrompt prompt;
  if (!before.empty())
    prompt.text = ids_behind(sequence, sequence.tokens() > 0 ? "\n\n" + before : before);
  prompt.question =
      before.empty() ? ids_behind(sequence, text) : encode_continuation(model.tokenizer(), text);
  return prompt;
}

episodic_generate_options defaults() {
  episodic_generate_options o{};
  o.struct_size = sizeof o;
  o.max_new = 128;
  o.top_p = 1;
  o.repetition_penalty = 1;
  return o;
}

episodic_generate_options options_of(const episodic_generate_options* given) {
  return given ? known_fields(given, "options", defaults(), kOptionsLeast) : defaults();
}

GenerateOptions generation_of(const episodic_generate_options& o, TokenCallback on_token) {
  GenerateOptions options;
  options.max_new = o.max_new;
  options.sampling.temperature = o.temperature;
  options.sampling.top_p = o.top_p;
  options.sampling.top_k = o.top_k;
  options.sampling.min_p = o.min_p;
  options.sampling.repetition_penalty = o.repetition_penalty;
  options.sampling.seed = o.seed;
  options.ignore_eos = o.ignore_eos != 0;
  options.feed_last = true;  // the sequence then holds the whole answer
  for (const char* stop : array_of(o.stop, o.n_stop, "options: stop"))
    options.stop.emplace_back(require(stop, "options: stop"));
  options.on_token = std::move(on_token);
  return options;
}

/// What an answer is asked for with.
struct Prompt {
  std::optional<std::string_view> text;
  std::span<const std::int64_t> ids;  ///< without a text
  episodic_generate_options options = defaults();
  bool asks = false;  ///< the sequence is afterwards as it was
  TokenCallback on_token;
};

/// A prompt on its way to an answer, one step of its sequence after another.
class Answering {
 public:
  /// Reads nothing yet. \param object must outlive it
  Answering(SequenceObject& object, Prompt prompt)
      : answer_(found(object, prompt)),
        own_(own(object, prompt, answer_->passages_only)),
        object_(own_ ? *own_ : object) {
    Sequence& sequence = object_.sequence;
    const episodic_generate_options& o = prompt.options;
    std::vector<std::int64_t> shown;
    if (o.chat) {
      const ToolCallFormat format(sequence.model().chat_template());
      shown = format.shown_tokens(sequence.model().tokenizer());
      reply_.emplace(format);
    }
    ChatPrompt parts =
        prompt.text ? prompt_of(sequence, *prompt.text, o.chat != 0, answer_->passages, reply_)
                    : ChatPrompt{{}, {prompt.ids.begin(), prompt.ids.end()}};
    if (answer_->passages_only) {
      const std::int64_t read = std::ssize(parts.text) + std::ssize(parts.question);
      const std::int64_t most = std::numeric_limits<std::int64_t>::max() - read;
      sequence.attach_full_attention(read + std::min(o.max_new, most));
    }
    if (parts.question.empty()) std::swap(parts.text, parts.question);
    text_ = std::move(parts.text);
    check_token_ids(text_, sequence.config().vocab_size);
    told_ = std::move(prompt.on_token);
    GenerateOptions options = generation_of(o, [this](std::int64_t id, std::string_view piece) {
      const std::string said = reply_ ? reply_->push(piece).content : std::string(piece);
      return !told_ || told_(id, said);
    });
    options.shown_tokens = std::move(shown);
    options.feed_last = !prompt.asks;  // nothing of it stays
    if (o.recall && sequence.has_memory()) {
      notes_.emplace(sequence, dynamic_cast<EpisodicMemory*>(sequence.memory()));
      options.on_token = [this, told = std::move(options.on_token)](std::int64_t id,
                                                                    std::string_view piece) {
        notes_->note();
        return !told || told(id, piece);
      };
    }
    sees_context_ = o.repetition_penalty != 1;
    generation_.emplace(sequence.model().generation(std::move(parts.question), std::move(options)));
    if (prompt.asks && !own_) before_ = sequence.snapshot();
  }
  /// What was only asked leaves no trace, whatever came of it.
  ~Answering() {
    try {
      go_back();
    } catch (...) {  // of an answer that has failed already
    }
  }
  Answering(const Answering&) = delete;
  Answering& operator=(const Answering&) = delete;

  bool done() const { return generation_->done(); }
  /// Its part of the next step of many.
  SequenceInput next_input() {
    Sequence& sequence = object_.sequence;
    const std::int64_t chunk = sequence.chunk();
    reads_text_ = read_ < text_.size();
    if (reads_text_) {
      const std::size_t n = std::min(static_cast<std::size_t>(chunk), text_.size() - read_);
      step_ = n;
      return {&sequence, std::span(text_).subspan(read_, n), StepKind::prompt, false};
    }
    if (sees_context_) generation_->see(sequence.known_ids());
    sees_context_ = false;
    const Generation::Input input = generation_->next_input(chunk);
    draws_ = input.wants_logits;
    return {&sequence, input};
  }
  /// The step was made. \throws what kept it from being made, or ended it
  void accept(const StepResult& result) {
    result.require();
    if (reads_text_) {
      read_ += step_;
      return;
    }
    try {
      const bool reads = !generation_->writing();
      generation_->accept(result.logits);
      if (notes_ && reads && !draws_) notes_->note();  // else it was, with the token
    } catch (const DataError&) {
      // numbers that nothing can be drawn from are traced to the weights where those are at fault
      if (!std::all_of(result.logits.begin(), result.logits.end(),
                       [](float x) { return std::isfinite(x); }))
        object_.sequence.explain_not_finite();
      throw;
    }
  }
  /// The answer, once done.
  std::shared_ptr<AnswerObject> answer() {
    answer_->result = generation_->result();
    if (reply_) {
      const std::string rest = reply_->finish().content;
      if (!rest.empty() && told_) told_(kNoToken, rest);
      answer_->result.text = reply_->texts().content;
      answer_->reasoning = reply_->texts().reasoning;
    }
    if (notes_) answer_->recalled = notes_->ranked();
    go_back();
    return std::move(answer_);
  }

 private:
  void go_back() {
    if (const auto before = std::exchange(before_, nullptr)) object_.sequence.restore(*before);
  }

  /// The answer, with the passages that the prompt is read behind.
  static std::shared_ptr<AnswerObject> found(SequenceObject& object, const Prompt& prompt) {
    const episodic_generate_options& o = prompt.options;
    if (!prompt.text && (o.chat || o.reread != 0))
      throw ConfigError("options: chat and reread are for prompts that are texts");
    auto answer = std::make_shared<AnswerObject>();
    if (!prompt.text) return answer;
    FoundPassages found = passages_of(object, *prompt.text, o, prompt.asks);
    answer->passages = std::move(found.passages);
    answer->passages_only = found.alone;
    return answer;
  }
  /// Another sequence than the object's, where that one is not to answer: passages alone are read
  /// by an empty one, and full attention has no way back.
  static std::unique_ptr<SequenceObject> own(SequenceObject& object, const Prompt& prompt,
                                             bool passages_only) {
    Sequence& sequence = object.sequence;
    if (passages_only) return std::make_unique<SequenceObject>(Sequence(sequence.shared_model()));
    if (!prompt.asks || sequence.has_memory()) return nullptr;
    return std::make_unique<SequenceObject>(sequence.fork());
  }

  std::shared_ptr<AnswerObject> answer_;
  std::unique_ptr<SequenceObject> own_;  // may be null
  SequenceObject& object_;
  std::vector<std::int64_t> text_;  // read before the question
  std::size_t read_ = 0, step_ = 0;
  bool reads_text_ = false, draws_ = false, sees_context_ = false;
  std::optional<RecallNotes> notes_;
  std::optional<ChatAnswer> reply_;  // in the chat format
  TokenCallback told_;
  std::optional<Generation> generation_;
  std::shared_ptr<const Sequence::Snapshot> before_;
};

TokenCallback callback_of(episodic_on_token on_token, void* user) {
  if (!on_token) return {};
  return [on_token, user](std::int64_t id, std::string_view text) {
    return on_token(id, text.data(), text.size(), user) == 0;
  };
}

/// The call that answers one prompt. \param set gives it its text or ids
template <class Set>
int32_t answer_alone(episodic_sequence sequence, const episodic_generate_options* options,
                     episodic_on_token on_token, void* user, episodic_answer* answer,
                     const Set& set) {
  return call([&] {
    require(answer, "answer");
    const Held<SequenceObject> held(sequence);
    Prompt prompt;
    set(prompt);
    prompt.options = options_of(options);
    prompt.on_token = callback_of(on_token, user);
    Answering answering(*held, std::move(prompt));
    while (!answering.done()) {
      const SequenceInput input = answering.next_input();
      answering.accept(run(held->sequence.model(), {&input, 1}).front());
    }
    *answer = Handles::all().add<episodic_answer>(answering.answer());
  });
}

/// A prompt of many, with what became of it.
struct Part {
  episodic_prompt* told = nullptr;
  std::unique_ptr<Held<SequenceObject>> held;
  std::unique_ptr<Answering> answering;

  /// \param body a part of its work: what it throws is this prompt's failure alone
  void work(const std::function<void()>& body) {
    std::string message;
    std::int32_t code = EPISODIC_OK;
    try {
      body();
      return;
    } catch (...) {
      code = code_of_current(message);
    }
    tell(*told, code, message);
    answering.reset();
  }
};

Prompt given_prompt(const episodic_prompt& p) {
  Prompt prompt;
  if (p.text && p.ids) throw ConfigError("prompt: text and ids; give one of them");
  if (p.ids || p.n_ids > 0)
    prompt.ids = array_of(p.ids, p.n_ids, "ids");
  else
    prompt.text = text_of(p.text, p.length, "text");
  prompt.options = options_of(p.options);
  prompt.asks = p.asks != 0;
  return prompt;
}

}  // namespace
}  // namespace episodic::c

using namespace episodic;
using namespace episodic::c;

extern "C" {

int32_t episodic_generate_options_init(episodic_generate_options* options) {
  return call([&] { *require(options, "options") = defaults(); });
}

int32_t episodic_sequence_generate(episodic_sequence sequence, const char* prompt, size_t length,
                                   const episodic_generate_options* options,
                                   episodic_on_token on_token, void* user,
                                   episodic_answer* answer) {
  return answer_alone(sequence, options, on_token, user, answer,
                      [&](Prompt& p) { p.text = text_of(prompt, length, "prompt"); });
}

int32_t episodic_sequence_generate_ids(episodic_sequence sequence, const int64_t* ids, size_t n,
                                       const episodic_generate_options* options,
                                       episodic_on_token on_token, void* user,
                                       episodic_answer* answer) {
  return answer_alone(sequence, options, on_token, user, answer,
                      [&](Prompt& p) { p.ids = array_of(ids, n, "ids"); });
}

int32_t episodic_sequence_ask(episodic_sequence sequence, const char* question, size_t length,
                              const episodic_generate_options* options, episodic_on_token on_token,
                              void* user, episodic_answer* answer) {
  return answer_alone(sequence, options, on_token, user, answer, [&](Prompt& p) {
    p.text = text_of(question, length, "question");
    p.asks = true;
  });
}

int32_t episodic_generate_many(episodic_model model, episodic_prompt* prompts, size_t n,
                               episodic_on_token_of on_token, void* user) {
  return call([&] {
    const std::shared_ptr<const Model> m = model_of(model);
    const std::vector<episodic_prompt*> given = elements_of(prompts, n, "prompts", kPromptLeast);
    std::vector<Part> parts(given.size());
    std::map<const void*, std::size_t> named;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Part& part = parts[i];
      part.told = given[i];
      part.told->answer = nullptr;
      tell(*part.told, EPISODIC_FAILED, "the call ended before this answer was written");
      part.work([&] {
        if (const auto [first, is_new] = named.try_emplace(part.told->sequence, i);
            !is_new && parts[first->second].held)
          throw DataError("prompts: prompt " + std::to_string(first->second) +
                          " names the same sequence; a sequence answers one at a time");
        part.held = std::make_unique<Held<SequenceObject>>(part.told->sequence);
        if (&(*part.held)->sequence.model() != m.get())
          throw DataError("prompts: the sequence is of another model; make it of this one");
        Prompt prompt = given_prompt(*part.told);
        if (on_token)
          prompt.on_token = [i, on_token, user](std::int64_t id, std::string_view text) {
            return on_token(i, id, text.data(), text.size(), user) == 0;
          };
        part.answering = std::make_unique<Answering>(**part.held, std::move(prompt));
      });
    }
    // A step of all that are not done, until none is left.
    while (true) {
      std::vector<SequenceInput> inputs;
      std::vector<Part*> open;
      for (Part& part : parts) {
        if (!part.answering) continue;
        part.work([&] {
          if (part.answering->done()) {
            part.told->answer = Handles::all().add<episodic_answer>(part.answering->answer());
            tell(*part.told, EPISODIC_OK, "");
            part.answering.reset();
          } else {
            inputs.push_back(part.answering->next_input());
            open.push_back(&part);
          }
        });
      }
      if (open.empty()) return;
      const std::vector<StepResult> results = run(*m, inputs);
      for (std::size_t i = 0; i < open.size(); ++i)
        open[i]->work([&] { open[i]->answering->accept(results[i]); });
    }
  });
}

int32_t episodic_answer_text(episodic_answer answer, char* text, size_t capacity, size_t* length) {
  return call([&] { copy_text(Held<AnswerObject>(answer)->result.text, text, capacity, length); });
}

int32_t episodic_answer_reasoning(episodic_answer answer, char* text, size_t capacity,
                                  size_t* length) {
  return call([&] { copy_text(Held<AnswerObject>(answer)->reasoning, text, capacity, length); });
}

int32_t episodic_answer_ids(episodic_answer answer, int64_t* ids, size_t capacity, size_t* n) {
  return call(
      [&] { copy_items<int64_t>(Held<AnswerObject>(answer)->result.ids, ids, capacity, n); });
}

int32_t episodic_answer_finish(episodic_answer answer, int32_t* finish) {
  return call([&] {
    *require(finish, "finish") = static_cast<int32_t>(Held<AnswerObject>(answer)->result.finish);
  });
}

int32_t episodic_answer_recalled(episodic_answer answer, episodic_recalled* events, size_t capacity,
                                 size_t* n) {
  return call([&] {
    const Held<AnswerObject> held(answer);
    double total = 0;
    for (const RecalledEvent& e : held->recalled) total += e.attention;
    std::vector<episodic_recalled> all;
    for (const RecalledEvent& e : held->recalled)
      all.push_back(
          {e.event, e.tokens.start, e.tokens.end, e.rank, total > 0 ? e.attention / total : 0.0});
    copy_items<episodic_recalled>(all, events, capacity, n);
  });
}

int32_t episodic_answer_passages(episodic_answer answer, episodic_passage* passages,
                                 size_t capacity, size_t* n) {
  return call([&] {
    const Held<AnswerObject> held(answer);
    std::vector<episodic_passage> all;
    for (const Passage& p : held->passages) all.push_back({p.tokens.start, p.tokens.end, p.score});
    copy_items<episodic_passage>(all, passages, capacity, n);
  });
}

int32_t episodic_answer_passages_only(episodic_answer answer, int32_t* only) {
  return call([&] { *require(only, "only") = Held<AnswerObject>(answer)->passages_only ? 1 : 0; });
}

int32_t episodic_answer_free(episodic_answer answer) {
  return call([&] { Handles::all().remove<AnswerObject>(answer); });
}

}  // extern "C"
