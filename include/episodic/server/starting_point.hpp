// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `StartingPoint`: a state that any number of answers begin from, each by itself.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "episodic/session/passages.hpp"
#include "episodic/session/sequence.hpp"

namespace episodic::server {

/// What was read before an answer begins: a memory, or nothing. Sequences that begin here share its
/// events (Sequence::fork). Where its memory cannot be shared, or a device has no room for a second
/// one, one sequence at a time begins here.
///
///     StartingPoint book(std::make_shared<Sequence>(std::move(read)));
///     const std::shared_ptr<Sequence> mine = book.sequence();
///
/// May be called from several threads at once.
class StartingPoint {
 public:
  /// \param root which nobody else uses from now on; with full attention it has read nothing
  /// \param max_tokens that work may come to, which a device makes room for
  /// \throws ConfigError for a memory without snapshots, and for a null root
  explicit StartingPoint(std::shared_ptr<Sequence> root, std::int64_t max_tokens = 0);

  /// A sequence that stands here. With `single` it is the same one each time, brought back here.
  /// \param alone nobody begins here before it is given back: on a device it is the same one each
  ///        time then too, which saves another one's windows
  /// \throws as Sequence::fork
  std::shared_ptr<Sequence> sequence(bool alone = false);
  /// Whether that one is a sequence's: the memory is then counted with the starting point.
  bool gave(const Sequence& sequence) const { return &sequence == root_.get(); }
  /// Whether one sequence at a time can begin here.
  bool single() const { return single_; }
  /// Why, where it is so.
  const std::string& why_single() const { return why_single_; }
  std::int64_t tokens() const { return tokens_; }
  /// Tokens before it as far as they are known: -1 where not.
  std::span<const std::int64_t> ids() const { return ids_; }
  /// \see Sequence::bytes_for
  std::int64_t bytes_for(std::int64_t tokens) const;
  /// Of the memory; nothing with full attention.
  MemoryUsage usage() const { return usage_; }
  const Model& model() const { return root_->model(); }
  /// Passages of what was read before it; none with full attention. The first call takes as long as
  /// an encoder needs for the text, in which sequences begin here as at any time.
  /// \param vectors of an encoder that finds them too; null: there is none
  /// \param wanted asked several times a second meanwhile; may be empty. Where it says false
  /// nothing
  ///        is found, and what was encoded is not lost
  /// \throws ConfigError where `single`, on a device without a folder, and for a memory whose heads
  ///         have events of their own
  FoundPassages passages(PassageUse use, std::string_view question, const PassageOptions& options,
                         const std::shared_ptr<WindowVectors>& vectors = nullptr,
                         const std::function<bool()>& wanted = {});

 private:
  std::shared_ptr<Sequence> root_;
  std::int64_t max_tokens_, tokens_;
  std::shared_ptr<const Sequence::Snapshot> here_;  // once the root was given, with a memory
  std::vector<std::int64_t> ids_;
  MemoryUsage usage_;
  std::string why_single_;
  bool single_ = false, on_device_ = false;
  VectorFolder folder_;  // of its memory, if it is kept
  std::mutex mutex_;
  class FinderTurn;
  // One request at a time has the finder. No std::timed_mutex, which ThreadSanitizer does not know.
  std::mutex finding_;
  std::condition_variable given_back_;
  bool taken_ = false;
  std::optional<PassageFinder> finder_;  // once passages were asked for
};

}  // namespace episodic::server
