// SPDX-License-Identifier: Apache-2.0
#include "episodic/grammar/token_grammar.hpp"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "automaton.hpp"
#include "episodic/base/error.hpp"

namespace episodic {
namespace {

// Ways looked at for one mask: about 0.2 s. The schemas of practice need some thousands.
constexpr std::uint64_t kMostWork = std::uint64_t{1} << 22;

}  // namespace

/// States and the masks of some of them. Numbers of states live as long as it does.
struct GrammarState::Place {
  explicit Place(std::shared_ptr<const grammar::Program> program) : automaton(std::move(program)) {}
  grammar::Automaton automaton;
  std::unordered_map<grammar::Automaton::State, std::shared_ptr<const TokenMask>> masks;
  std::size_t mask_bytes = 0;

  std::size_t bytes() const { return automaton.bytes() + mask_bytes; }
};

struct TokenGrammar::Impl {
  Grammar grammar;
  std::shared_ptr<const TokenTrie> trie;
  std::size_t cache_bytes;
  mutable std::mutex mutex;  // of all places, those of older states too
  mutable std::shared_ptr<GrammarState::Place> place;

  using State = grammar::Automaton::State;

  std::shared_ptr<GrammarState::Place> fresh() const {
    return std::make_shared<GrammarState::Place>(grammar.shared_program());
  }

  TokenMask walk(grammar::Automaton& automaton, State from) const;
};

TokenGrammar::TokenGrammar(Grammar grammar, std::shared_ptr<const TokenTrie> trie,
                           std::size_t cache_bytes)
    : impl_(new Impl{std::move(grammar), std::move(trie), cache_bytes, {}, {}}) {
  if (!impl_->trie)
    throw ConfigError("grammar: needs the tokens of a vocabulary; give a TokenTrie");
  impl_->place = impl_->fresh();
}
TokenGrammar::~TokenGrammar() = default;

const TokenTrie& TokenGrammar::trie() const { return *impl_->trie; }

/// Goes through the tree once, and only where the grammar goes.
TokenMask TokenGrammar::Impl::walk(grammar::Automaton& automaton, State from) const {
  const std::uint64_t most_work = automaton.work() + kMostWork;
  TokenMask mask(static_cast<std::size_t>(trie->vocab_size() + 63) / 64, 0);
  const std::span<const TokenTrie::Node> nodes = trie->nodes();
  const std::span<const TokenTrie::Token> tokens = trie->tokens();
  std::vector<State> way(trie->longest() + 1);
  way[0] = from;
  for (std::uint32_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    const State state = automaton.next(way[node.depth - 1u], node.byte);
    if (state == grammar::Automaton::kNone) {
      i = node.end;
      continue;
    }
    way[node.depth] = state;
    if (node.has_tokens)
      for (std::size_t t = node.first_token; t < tokens.size() && tokens[t].node == i; ++t)
        mask[tokens[t].id / 64] |= std::uint64_t{1} << tokens[t].id % 64;
    ++i;
    if (automaton.work() > most_work)
      throw DataError(
          "grammar: finding the tokens that may come next takes too long; write rules that begin "
          "differently");
  }
  return mask;
}

GrammarState::GrammarState(std::shared_ptr<const TokenGrammar> grammar)
    : grammar_(std::move(grammar)) {
  if (!grammar_) throw ConfigError("grammar: a state needs a grammar");
  const TokenGrammar::Impl& g = *grammar_->impl_;
  const std::lock_guard lock(g.mutex);
  place_ = g.place;
  state_ = place_->automaton.start();
}

/// In the present place, which is a new one where the last is full. Called with the mutex held.
void GrammarState::settle() {
  const TokenGrammar::Impl& g = *grammar_->impl_;
  if (g.place->bytes() > g.cache_bytes) g.place = g.fresh();
  if (place_ == g.place) return;
  const std::shared_ptr<Place> to = g.place;
  state_ = place_->automaton.move(state_, to->automaton);
  place_ = to;
}

bool GrammarState::advance(std::string_view bytes) {
  const std::lock_guard lock(grammar_->impl_->mutex);
  settle();
  grammar::Automaton::State state = state_;
  for (const char c : bytes) {
    state = place_->automaton.next(state, static_cast<std::uint8_t>(c));
    if (state == grammar::Automaton::kNone) return false;
  }
  state_ = state;
  return true;
}

bool GrammarState::advance(std::int64_t id) {
  const std::string_view bytes = grammar_->trie().bytes(id);
  return !bytes.empty() && advance(bytes);
}

bool GrammarState::may_end() const {
  const std::lock_guard lock(grammar_->impl_->mutex);
  return place_->automaton.may_end(state_);
}

std::shared_ptr<const TokenMask> GrammarState::allowed() const {
  const TokenGrammar::Impl& g = *grammar_->impl_;
  const std::lock_guard lock(g.mutex);
  GrammarState here = *this;
  here.settle();
  Place& place = *here.place_;
  const auto state = place.automaton.within(here.state_, g.trie->longest());
  auto& known = place.masks[state];
  if (!known) {
    known = std::make_shared<const TokenMask>(g.walk(place.automaton, state));
    place.mask_bytes += known->size() * sizeof(std::uint64_t) + 64;
  }
  return known;
}

}  // namespace episodic
