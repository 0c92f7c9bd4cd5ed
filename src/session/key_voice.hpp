// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Events by what a model's keys say of them: cosines of whitened keys, a question's against those
/// of each event (passages.hpp says why).

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "episodic/memory/sequence_memory.hpp"
#include "episodic/session/model.hpp"

namespace episodic {

class KeyVoice {
 public:
  /// \param model must outlive it
  explicit KeyVoice(std::shared_ptr<const Model> model) : model_(std::move(model)) {}

  /// Takes in events [size(), memory's events). \pre the others are those of earlier calls
  void add(const SequenceMemory& memory);
  void clear();
  /// Of each event; 0 for all where there are too few to tell. Forgotten ones have the least.
  std::vector<double> score(std::string_view question);

  std::int64_t size() const { return events_; }
  std::int64_t bytes() const;

 private:
  /// One key/value head of one layer.
  struct Head {
    std::int64_t layer = 0, head = 0;  ///< of the memory
    std::vector<float> mean;           ///< [d] of the events' keys
    std::vector<float>
        whitening;  ///< [d, d] lower triangular: the inverse of their Cholesky factor
    std::vector<std::int8_t> codes;  ///< [events, d] whitened, centred and of unit length
    std::vector<float> scales;       ///< [events] of a code's step; 0: forgotten
  };

  std::vector<std::vector<float>> keys_of(const SequenceMemory& memory, EventId first, EventId end,
                                          std::int64_t layer) const;
  void fit(Head& head, const std::vector<std::vector<float>>& keys) const;
  void encode(Head& head, const std::vector<std::vector<float>>& keys) const;
  void whiten(const Head& head, std::vector<float>& key) const;
  /// [layers of the memory, G * d]: mean keys of a text's tokens, read by the model alone.
  std::vector<std::vector<float>> mean_keys(std::string_view text) const;

  std::shared_ptr<const Model> model_;
  std::vector<Head> heads_;
  std::vector<std::vector<float>> usual_;  // mean_keys of questions about nothing, their mean
  std::int64_t events_ = 0, fitted_ = 0, n_heads_ = 0, n_kv_heads_ = 0, d_ = 0;
};

}  // namespace episodic
