// SPDX-License-Identifier: Apache-2.0
#include "episodic/server/starting_point.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/memory/plan.hpp"

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
  try {
    root_->fork();
  } catch (const ConfigError& e) {  // a device, retention, an index that searching changes
    single_ = true;
    why_single_ = e.what();
    if (memory) here_ = root_->snapshot();
  }
}

std::int64_t StartingPoint::bytes_for(std::int64_t tokens) const {
  return host_bytes_of(*root_, tokens);
}

std::int64_t host_bytes_of(const Sequence& sequence, std::int64_t tokens) {
  const SequenceMemory* memory = sequence.memory();
  if (!memory) {
    const ModelConfig& model = sequence.config();
    const auto attending =
        std::count_if(model.layers.begin(), model.layers.end(),
                      [](const LayerSpec& layer) { return layer.mixer == Mixer::attention; });
    return tokens * attending * 2 * model.n_kv_heads * model.head_dim *
           static_cast<std::int64_t>(sizeof(float));
  }
  MemoryConfig config = memory->config();
  config.host_bytes = config.repr_bytes = config.disk_bytes = 0;  // of a tail, which has no folder
  config.disk_dir.clear();
  return plan_memory(config, memory->shape(), tokens,
                     tokens / std::max<std::int64_t>(1, config.min_block), false)
      .host.total();
}

std::shared_ptr<Sequence> StartingPoint::sequence() {
  const std::lock_guard lock(mutex_);
  if (!single_) return std::make_shared<Sequence>(root_->fork());
  if (here_)
    root_->restore(*here_);
  else if (root_->tokens() > 0)
    root_->attach_full_attention(max_tokens_);
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

std::vector<Passage> StartingPoint::passages(std::string_view question,
                                             const PassageOptions& options,
                                             const std::shared_ptr<WindowVectors>& vectors,
                                             const std::function<bool()>& wanted) {
  if (!root_->has_memory()) return {};
  if (single_)  // whoever begins here steps the memory itself
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
    // through a reader of its own: others begin here meanwhile
    finder.follow(*sequence()->memory(), ids_);
    finder_.emplace(std::move(finder));
  }
  bool gone = false;
  finder_->encode([&](std::int64_t, std::int64_t) { return !(gone = !still_wanted()); });
  if (gone) return {};
  return finder_->find(question, options,
                       [&](std::int64_t, std::int64_t) { return still_wanted(); });
}

}  // namespace episodic::server
