// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How likely a model makes a question behind a passage. A passage that answers a question makes it
/// likelier than one that only has its words (unsupervised passage re-ranking, Sachan et al. 2022).

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "episodic/session/model.hpp"
#include "episodic/session/sequence.hpp"

namespace episodic {

/// Reads passages with full attention, in a sequence of its own. One thread at a time.
class QuestionLikelihood {
 public:
  /// \param question not empty
  QuestionLikelihood(const std::shared_ptr<const Model>& model, std::string_view question);

  /// Log-likelihood, in nats, of all tokens of the question behind the passage.
  double log_likelihood(std::string_view passage);
  /// Tokens of the question.
  std::int64_t tokens() const { return static_cast<std::int64_t>(question_.size()); }

 private:
  std::shared_ptr<const Model> model_;
  Sequence sequence_;
  std::vector<std::int64_t> question_;  // its ids, as they go on behind a passage
};

}  // namespace episodic
