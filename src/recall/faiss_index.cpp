// SPDX-License-Identifier: Apache-2.0
#include <faiss/Index.h>
#include <faiss/IndexHNSW.h>
#include <faiss/impl/DistanceComputer.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <limits>

#include "episodic/base/error.hpp"
#include "episodic/recall/detail/exact_index.hpp"

namespace episodic {
namespace {

using detail::ExactIndex;

constexpr int kLinks = 32;                  // M of the graph
constexpr int kBuildWidth = 80;             // candidates looked at when an event is linked in
constexpr std::int64_t kSearchWidth = 128;  // least number of candidates of a search
constexpr std::int64_t kCheckEvery = 32;  // searches from one that is repeated exactly to the next
constexpr std::int64_t kBatch = 256;      // events linked in at a time; until then they are scanned

/// Score of a forgotten event: it stays in the graph, behind all others.
constexpr float kNowhere = std::numeric_limits<float>::lowest();

/// Lets the graph read the vectors where they lie, so that they are held once.
class Distances final : public faiss::DistanceComputer {
 public:
  Distances(const ExactIndex& vectors, std::int64_t width) : vectors_(vectors), width_(width) {}
  void set_query(const float* x) override { query_ = x; }
  float operator()(std::int64_t i) override {
    if (vectors_.forgotten(i)) return kNowhere;
    return detail::dot(query_, vectors_.row(i), width_);
  }
  float symmetric_dis(std::int64_t i, std::int64_t j) override {
    if (vectors_.forgotten(i) || vectors_.forgotten(j)) return kNowhere;
    return detail::dot(vectors_.row(i), vectors_.row(j), width_);
  }

 private:
  const ExactIndex& vectors_;
  std::int64_t width_;
  const float* query_ = nullptr;
};

class Storage final : public faiss::Index {
 public:
  Storage(const ExactIndex& vectors, std::int64_t width)
      : faiss::Index(static_cast<int>(width), faiss::METRIC_INNER_PRODUCT), vectors_(vectors) {}
  void add(std::int64_t n, const float*) override { ntotal += n; }
  void reset() override { ntotal = 0; }
  void search(std::int64_t, const float*, std::int64_t, float*, std::int64_t*,
              const faiss::SearchParameters*) const override {
    throw Error("representative index: only the graph over this storage can be searched");
  }
  faiss::DistanceComputer* get_distance_computer() const override {
    return new Distances(vectors_, d);
  }

 private:
  const ExactIndex& vectors_;
};

/// A graph and the storage it reads.
struct Graph {
  Graph(const ExactIndex& vectors, std::int64_t width)
      : storage(vectors, width), hnsw(&storage, kLinks) {
    hnsw.hnsw.efConstruction = kBuildWidth;
  }
  Storage storage;
  faiss::IndexHNSW hnsw;
};

/// Runs FAISS on one thread: links added by several threads depend on their timing.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

/// All vectors lie in an exact index; the first `linked` of them are in the graph too. How many are
/// linked, and in which batches, follows from the number of events alone, so that a rewound index
/// equals one that never went further.
class FaissIndex final : public RepresentativeIndex {
 public:
  FaissIndex(const IndexShape& shape, std::int64_t exact_up_to)
      : width_(shape.width()), exact_up_to_(exact_up_to), vectors_(shape, rows_in_place()) {
    if (shape.score == RepresentativeScore::max)
      throw ConfigError(
          "representative index: FAISS searches by inner product and cannot serve score "
          "= \"max\"; use index = \"exact\" or score = \"mean\"");
    if (exact_up_to < 0)
      throw ConfigError(
          fmt::format("representative index: exact_up_to = {}, must be at least 0", exact_up_to));
  }

  void add(const float* mean, const float* each, std::int64_t count) override {
    link();
    vectors_.add(mean, each, count);
    link();
  }

  void finish_truncate() override { link(); }

  void search(const float* query, std::int64_t k, std::vector<ScoredEvent>& out) override {
    out.clear();
    if (k <= 0) return;
    link();
    if (!graph_ || 4 * k >= linked()) return vectors_.search(query, k, out);
    score_.resize(static_cast<std::size_t>(k));
    label_.resize(static_cast<std::size_t>(k));
    graph_->hnsw.hnsw.efSearch = static_cast<int>(std::max(kSearchWidth, k));
    {
      const OneThread one;
      graph_->hnsw.search(1, query, k, score_.data(), label_.data());
    }
    for (std::int64_t i = 0; i < k; ++i)
      if (label_[static_cast<std::size_t>(i)] >= 0 &&
          !vectors_.forgotten(label_[static_cast<std::size_t>(i)]))
        out.push_back({label_[static_cast<std::size_t>(i)], score_[static_cast<std::size_t>(i)]});
    // The graph may lose its way; too few answers are no answer.
    if (static_cast<std::int64_t>(out.size()) < k) return vectors_.search(query, k, out);
    vectors_.scan(query, linked(), out);
    detail::keep_best(out, k);
    if (searches_++ % kCheckEvery == 0) {
      vectors_.search(query, k, exact_);
      quality_.recall_sum += recall_of(out, exact_);
      ++quality_.checked;
    }
  }

  float score(const float* query, EventId event) const override {
    return vectors_.score(query, event);
  }

  std::vector<float> each(EventId event) const override { return vectors_.each(event); }

  void freeze() override { refuse_readers(); }
  std::unique_ptr<IndexReader> reader() const override { refuse_readers(); }

  IndexQuality quality() const override { return quality_; }

  void truncate(std::int64_t n_events) override {
    vectors_.truncate(n_events);
    if (n_events < linked()) graph_.reset();  // finish_truncate makes it anew
  }

  void forget(EventId event) override { vectors_.forget(event); }
  bool forgotten(EventId event) const override { return vectors_.forgotten(event); }

  void save(ByteWriter& to) const override {
    vectors_.save(to);
    to.put(exact_up_to_);
    to.put(searches_);
    to.put(quality_.checked);
    to.put(quality_.recall_sum);
    to.put(linked());
    if (!graph_) return;
    // The graph itself: events forgotten since they were linked cannot be linked alike again.
    const faiss::HNSW& h = graph_->hnsw.hnsw;
    to.put_vector(h.levels);
    to.put_vector(h.neighbors);
    to.put(h.entry_point);
    to.put(h.max_level);
  }

  void load(ByteReader& from) override {
    vectors_.load(from);
    const auto exact_up_to = from.get<std::int64_t>();
    if (exact_up_to != exact_up_to_)
      throw FileError(fmt::format(
          "{}: a FAISS index with exact_up_to = {}, this memory has {}: open it with the settings "
          "that made it",
          from.where(), exact_up_to, exact_up_to_));
    searches_ = from.get<std::int64_t>();
    quality_.checked = from.get<std::int64_t>();
    quality_.recall_sum = from.get<double>();
    const auto linked = from.get<std::int64_t>();
    const bool counted = searches_ >= 0 && quality_.checked >= 0 && quality_.recall_sum >= 0.0 &&
                         quality_.recall_sum <= static_cast<double>(quality_.checked);
    if (!counted || linked != due()) damaged(from, "counters");
    if (linked > 0) load_graph(from, linked);
  }

  const float* mean(EventId event) const override { return vectors_.mean(event); }
  std::int64_t size() const override { return vectors_.size(); }
  std::int64_t bytes() const override {
    if (!graph_) return vectors_.bytes();
    const faiss::HNSW& h = graph_->hnsw.hnsw;
    return vectors_.bytes() +
           static_cast<std::int64_t>(h.neighbors.size() * sizeof(h.neighbors[0]) +
                                     h.offsets.size() * sizeof(h.offsets[0]) +
                                     h.levels.size() * sizeof(h.levels[0]));
  }

 private:
  [[noreturn]] static void refuse_readers() {
    throw ConfigError(
        "representative index: index = \"faiss\" counts and checks its searches, and is not read "
        "by several at once; use index = \"exact\"");
  }

  static detail::ExactTuning rows_in_place() {
    detail::ExactTuning tuning;
    tuning.shrinks = false;
    return tuning;
  }

  std::int64_t linked() const { return graph_ ? graph_->storage.ntotal : 0; }

  [[noreturn]] static void damaged(const ByteReader& from, const char* what) {
    throw FileError(
        fmt::format("{}: impossible {} of a FAISS index; the file is damaged", from.where(), what));
  }

  void load_graph(ByteReader& from, std::int64_t linked) {
    graph_ = std::make_unique<Graph>(vectors_, width_);
    faiss::HNSW& h = graph_->hnsw.hnsw;
    const auto n = static_cast<std::size_t>(linked);
    h.levels = from.get_vector<int>(n, "the levels of a graph");
    int top = 0;
    for (const int level : h.levels) {
      // The generator draws once for each event that is linked, so that the next ones are linked as
      // they would have been; what it draws is what was saved.
      if (level != h.random_level() + 1) damaged(from, "levels");
      h.offsets.push_back(h.offsets.back() + static_cast<std::size_t>(h.cum_nb_neighbors(level)));
      top = std::max(top, level);
    }
    h.neighbors =
        from.get_vector<faiss::HNSW::storage_idx_t>(h.offsets.back(), "the links of a graph");
    h.entry_point = from.get<faiss::HNSW::storage_idx_t>();
    h.max_level = from.get<int>();
    if (h.entry_point < 0 || h.entry_point >= linked || h.max_level != top - 1 ||
        h.levels[static_cast<std::size_t>(h.entry_point)] != top)
      damaged(from, "entry");
    for (std::size_t i = 0; i < n; ++i)
      for (int level = 0; level < h.levels[i]; ++level) {
        std::size_t begin, end;
        h.neighbor_range(static_cast<std::int64_t>(i), level, &begin, &end);
        for (std::size_t j = begin; j < end; ++j) {
          const auto to = h.neighbors[j];
          // A link must lead to an event of its own level, or a search would leave the arrays.
          if (to < -1 || to >= linked ||
              (to >= 0 && h.levels[static_cast<std::size_t>(to)] <= level))
            damaged(from, "links");
        }
      }
    graph_->storage.ntotal = graph_->hnsw.ntotal = linked;
  }

  /// Events that are linked when there are size() of them.
  std::int64_t due() const {
    if (size() <= exact_up_to_) return 0;
    return exact_up_to_ + 1 + (size() - exact_up_to_ - 1) / kBatch * kBatch;
  }

  /// Links what is due: the first exact_up_to + 1 events at once, then full batches.
  void link() {
    while (true) {
      const std::int64_t due = graph_ ? linked() + kBatch : exact_up_to_ + 1;
      if (size() < due) return;
      if (!graph_) graph_ = std::make_unique<Graph>(vectors_, width_);
      const std::int64_t from = linked();
      // FAISS takes the new vectors as one block.
      std::vector<float> block(static_cast<std::size_t>((due - from) * width_));
      for (std::int64_t i = from; i < due; ++i)
        std::copy_n(vectors_.row(i), width_, block.data() + (i - from) * width_);
      const OneThread one;
      try {
        graph_->hnsw.add(due - from, block.data());
      } catch (...) {
        graph_.reset();  // half linked; the next call begins anew
        throw;
      }
    }
  }

  std::int64_t width_, exact_up_to_;
  ExactIndex vectors_;
  std::unique_ptr<Graph> graph_;
  std::vector<float> score_;
  std::vector<std::int64_t> label_;
  std::int64_t searches_ = 0;  // of the graph
  std::vector<ScoredEvent> exact_;
  IndexQuality quality_;
};

}  // namespace

std::unique_ptr<RepresentativeIndex> make_faiss_index(const IndexShape& shape,
                                                      std::int64_t exact_up_to) {
  return std::make_unique<FaissIndex>(shape, exact_up_to);
}

}  // namespace episodic
