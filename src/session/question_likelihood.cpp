// SPDX-License-Identifier: Apache-2.0
#include "question_likelihood.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>

#include "episodic/session/session.hpp"

namespace episodic {

// Plain text rather than the model's chat format: a question after "Question:" is what every model
// has read, and of the two ways tried this one told the right passage better (docs/finding.md).

QuestionLikelihood::QuestionLikelihood(const std::shared_ptr<const Model>& model,
                                       std::string_view question)
    : model_(model),
      sequence_(model),
      question_(encode_continuation(model->tokenizer(), " " + std::string(question))) {}

double QuestionLikelihood::log_likelihood(std::string_view passage) {
  std::vector<std::int64_t> ids =
      model_->tokenizer().encode(std::string(passage) + "\n\nQuestion:");
  const std::size_t before = ids.size();
  ids.insert(ids.end(), question_.begin(), question_.end());
  sequence_.attach_full_attention(std::ssize(ids));
  const auto chunk = static_cast<std::size_t>(sequence_.chunk());
  // What lies before the token that the question follows is read in steps of its own: its rows need
  // no logits, and the head is a quarter of a small model.
  const std::size_t scored = before - 1;
  for (std::size_t at = 0; at < scored; at += chunk)
    sequence_.step(std::span(ids).subspan(at, std::min(chunk, scored - at)), StepKind::prompt);
  std::vector<float> nll(ids.size());
  for (std::size_t at = scored; at < ids.size(); at += chunk)
    sequence_.score(ids, at, std::min(chunk, ids.size() - at), nll);
  return -std::accumulate(nll.begin() + static_cast<std::ptrdiff_t>(before), nll.end(), 0.0);
}

}  // namespace episodic
