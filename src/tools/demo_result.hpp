// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the demo found out; printed, written as JSON and drawn.

#include <optional>
#include <string>
#include <vector>

#include "common.hpp"
#include "episodic/base/units.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "hidden_facts.hpp"
#include "reading.hpp"
#include "recalled.hpp"

namespace episodic::tools {

struct FactResult {
  Fact fact;
  bool far = false;  ///< wholly in closed events when the question comes
  Answer with_memory, without_memory;
  std::optional<Answer> full;
  std::vector<Recalled> holding;  ///< recalled events that hold a part of the fact
  std::vector<Recalled> best;     ///< all that was recalled in the layer of `source`, by rank
  std::optional<Recalled>
      source;  ///< of `holding`, the one with the value, then with the best rank
};

struct DemoResult {
  std::string model, book;
  std::uint64_t seed = 0;
  MemoryConfig config;
  HiddenFacts text;
  Reading reading;
  double without_seconds = 0;      ///< of the second reading, without recall
  std::vector<TokenRange> events;  ///< closed when the text had been read
  std::vector<FactResult> facts;
  Json memory;  ///< memory_json when the text had been read
  std::int64_t resident = 0, peak_resident = 0;
  std::optional<double> full_seconds;
  std::string full_note;  ///< why there is no full attention, or what to think of it

  std::int64_t n_tokens() const { return static_cast<std::int64_t>(text.ids.size()); }
  double tokens_per_second() const {
    return reading.seconds > 0 ? static_cast<double>(n_tokens()) / reading.seconds : 0;
  }
  /// One of the memory's sizes.
  std::int64_t bytes(const char* key) const { return memory.at(key).get<std::int64_t>(); }
  /// Right answers of one kind, of the far facts only if asked.
  template <class Get>
  std::int64_t right(Get&& answer, bool far_only = false) const {
    std::int64_t n = 0;
    for (const FactResult& f : facts)
      if (!far_only || f.far) n += answer(f).right ? 1 : 0;
    return n;
  }
  std::int64_t far() const {
    std::int64_t n = 0;
    for (const FactResult& f : facts) n += f.far ? 1 : 0;
    return n;
  }
};

/// The page of `--html`.
std::string demo_page(const DemoResult& result, const Tokenizer& tokenizer);

/// The document of `--json`; its keys are in docs/programs.md.
Json demo_json(const DemoResult& result, const Tokenizer& tokenizer);

/// The table on stdout.
std::string demo_table(const DemoResult& result, const Tokenizer& tokenizer);

/// "rank 1 in layers 2, 3; rank 4 in layer 0": where an event of `holding` was recalled.
std::string ranks_text(const FactResult& fact, EventId event);

}  // namespace episodic::tools
