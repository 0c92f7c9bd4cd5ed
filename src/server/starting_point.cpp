// SPDX-License-Identifier: Apache-2.0
#include "episodic/server/starting_point.hpp"

#include <fmt/format.h>

#include <chrono>
#include <string_view>
#include <utility>

#include "episodic/base/error.hpp"

namespace episodic::server {

StartingPoint::StartingPoint(std::shared_ptr<Sequence> root, std::int64_t max_tokens)
    : root_(std::move(root)), max_tokens_(max_tokens) {
  if (!root_) throw ConfigError("StartingPoint: the sequence is null");
  tokens_ = root_->tokens();
  ids_ = root_->known_ids();
  const bool memory = root_->has_memory();
  if (memory)
    if (const std::string why = root_->refusal(Capability::snapshot); !why.empty())
      throw ConfigError(
          fmt::format("serving goes back to the same state for each request: {}", why));
  if (memory) usage_ = root_->usage();
  if (root_->kept()) folder_ = VectorFolder::of(*root_->kept());  // before it is another's base
  on_device_ = root_->model().device() != std::string_view("cpu");
  const auto begins_alone = [&](const Error& why) {
    single_ = true;
    why_single_ = why.what();
  };
  try {
    root_->fork();
  } catch (const ConfigError& e) {  // retention, an index that searching changes, files of a device
    begins_alone(e);
  } catch (const BudgetError& e) {  // a device without room for another one
    begins_alone(e);
  }
}

std::int64_t StartingPoint::bytes_for(std::int64_t tokens) const {
  return root_->bytes_for(tokens);
}

std::shared_ptr<Sequence> StartingPoint::sequence(bool alone) {
  const std::lock_guard lock(mutex_);
  const bool gives_root = single_ || (alone && on_device_);
  if (!gives_root && !root_->has_memory()) {
    auto made = std::make_shared<Sequence>(root_->shared_model());
    made->attach_full_attention(max_tokens_);
    return made;
  }
  // The root stands here until it is given; from then on the snapshot knows where that was.
  if (here_) root_->restore(*here_);
  if (!gives_root) {
    here_.reset();  // a fork ends it
    return std::make_shared<Sequence>(root_->fork());
  }
  if (root_->has_memory()) {
    if (!here_) here_ = root_->snapshot();
  } else if (on_device_ || root_->tokens() > 0) {  // on a device it may have no cache yet
    root_->attach_full_attention(max_tokens_);
  }
  return root_;
}

/// Holds the finder, which another request may have encode a long text meanwhile.
class StartingPoint::FinderTurn {
 public:
  /// \param wanted asked while it waits; where it says false the finder is not given
  FinderTurn(StartingPoint& of, const std::function<bool()>& wanted) : of_(of) {
    std::unique_lock lock(of.finding_);
    while (!of.given_back_.wait_for(lock, std::chrono::milliseconds(100),
                                    [&] { return !of.taken_; })) {
      lock.unlock();
      if (!wanted()) return;
      lock.lock();
    }
    has_ = of.taken_ = true;
  }
  ~FinderTurn() {
    if (!has_) return;
    {
      const std::lock_guard lock(of_.finding_);
      of_.taken_ = false;
    }
    of_.given_back_.notify_one();
  }
  FinderTurn(const FinderTurn&) = delete;
  FinderTurn& operator=(const FinderTurn&) = delete;
  explicit operator bool() const { return has_; }

 private:
  StartingPoint& of_;
  bool has_ = false;
};

FoundPassages StartingPoint::passages(PassageUse use, std::string_view question,
                                      const PassageOptions& options,
                                      const std::shared_ptr<WindowVectors>& vectors,
                                      const std::function<bool()>& wanted) {
  if (!root_->has_memory()) return {};
  // On a device one thread reads the memory, the one that computes. But the host has what it was
  // loaded from, in a folder.
  const std::shared_ptr<EpisodicMemory>& kept = root_->kept();
  if (on_device_ && (!kept || kept->tokens() != tokens_))
    throw ConfigError(
        "passages of a memory that lies on a device alone cannot be read again by a server; keep "
        "it in a folder");
  if (single_ && !on_device_)  // whoever begins here steps the memory itself
    throw ConfigError(
        fmt::format("passages cannot be read again here, where one sequence at a time begins: {}",
                    why_single_));
  const auto still_wanted = [&] { return !wanted || wanted(); };
  const FinderTurn turn(*this, still_wanted);
  if (!turn) return {};
  if (!finder_) {
    PassageFinder finder(root_->shared_model());
    finder.set_vectors(vectors);
    finder.keep_vectors(folder_);
    if (on_device_)
      finder.follow(*kept, ids_);
    else  // through a reader of its own: others begin here meanwhile
      finder.follow(*sequence()->memory(), ids_);
    finder_.emplace(std::move(finder));
  }
  bool gone = false;
  finder_->encode([&](std::int64_t, std::int64_t) { return !(gone = !still_wanted()); });
  if (gone) return {};
  return finder_->find_for(use, question, options,
                           [&](std::int64_t, std::int64_t) { return still_wanted(); });
}

}  // namespace episodic::server
