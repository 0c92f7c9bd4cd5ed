// SPDX-License-Identifier: Apache-2.0
// Windows in 16 bits: what a token's key and value are rounded to when it comes is what the memory
// knows of it from then on. The oracles: float64 with the error that this rounding can make, and a
// float32 memory that is given the rounded numbers.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "driver.hpp"
#include "episodic/base/bytes.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/memory/detail/layer_state.hpp"
#include "episodic/memory/kept_memory.hpp"
#include "episodic/memory/plan.hpp"
#include "episodic/memory/sizes.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
using driver::random_tokens;
using driver::small_config;
using driver::small_shape;
using driver::Token;

namespace window_dtype_test {

namespace fs = std::filesystem;

constexpr DType kHalves[] = {DType::bfloat16, DType::float16};

/// Half a unit in the last place of a number, relative to it: 8 and 11 significant bits.
double rounding(DType dtype) { return dtype == DType::bfloat16 ? 1.0 / 256 : 1.0 / 2048; }

float rounded(DType dtype, float x) {
  if (dtype == DType::bfloat16) return from_bfloat16(to_bfloat16(x));
  if (dtype == DType::float16) return from_float16(to_float16(x));
  return x;
}

std::vector<Token> rounded(DType dtype, std::vector<Token> tokens) {
  for (Token& t : tokens)
    for (auto* layers : {&t.k, &t.v})
      for (std::vector<float>& row : *layers)
        for (float& x : row) x = rounded(dtype, x);
  return tokens;
}

double norm(const float* x, std::int64_t d) {
  double sum = 0;
  for (std::int64_t c = 0; c < d; ++c) sum += static_cast<double>(x[c]) * x[c];
  return std::sqrt(sum);
}

/// How far query `p`'s outputs may be from driver::reference when keys and values are rounded.
///
/// A key that is rounded once is off by u |k| at most, one that is rotated and rounded again by
/// (2 u + u^2) |k|, so by Cauchy and Schwarz its score by e_i = scale |q| |k_i| times that. With
/// e the largest, its weight is off by a factor of exp(e_i + e), and each value by one of 1 + u.
/// \return [H * d]
template <class Far>
std::vector<double> allowed(DType dtype, const std::vector<Token>& tokens, const MemoryShape& s,
                            std::int64_t layer, std::int64_t p, std::int64_t n_local, Far far) {
  const auto L = static_cast<std::size_t>(layer);
  const double u = rounding(dtype), scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim));
  std::vector<double> bound;
  for (std::int64_t h = 0; h < s.n_heads; ++h) {
    const std::int64_t g = h / (s.n_heads / s.n_kv_heads), d = s.head_dim;
    const float* query = tokens[static_cast<std::size_t>(p)].q[L].data() + h * d;
    // Softmax weights of the exact scores need not be known: their largest error will do.
    double worst = 0;
    std::vector<double> largest(static_cast<std::size_t>(d));
    for (std::int64_t i = 0; i <= p; ++i) {
      const bool local = p - i < n_local;
      if (!local && !far(i)) continue;
      const Token& t = tokens[static_cast<std::size_t>(i)];
      const double each = local ? 2 * u + u * u : u;
      worst = std::max(worst, scale * norm(query, d) * norm(t.k[L].data() + g * d, d) * each);
      for (std::int64_t c = 0; c < d; ++c)
        largest[static_cast<std::size_t>(c)] =
            std::max(largest[static_cast<std::size_t>(c)],
                     std::fabs(static_cast<double>(t.v[L][static_cast<std::size_t>(g * d + c)])));
    }
    for (const double v : largest) bound.push_back((std::exp(2 * worst) * (1 + u) - 1) * v + 1e-5);
  }
  return bound;
}

void append(std::vector<float>& to, const std::vector<float>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

/// Everything that a memory says while it reads all tokens in steps of many lengths: outputs,
/// what is recalled, boundaries, representatives, relevance.
std::vector<float> all_said(EpisodicMemory& memory, const std::vector<Token>& tokens,
                            std::int64_t from = 0) {
  std::vector<float> said;
  const auto end = static_cast<std::int64_t>(tokens.size());
  for (std::int64_t at = from, i = 0; at < end; ++i) {
    const std::int64_t n = std::min(
        i % 4 == 3 ? 1 : std::max<std::int64_t>(1, memory.config().chunk - i % 3), end - at);
    for (const auto& layer : driver::step(memory, tokens, at, n)) append(said, layer);
    for (std::int64_t lane = 0; lane < memory.lanes(); ++lane)
      for (const EventId e : memory.recalled(lane).recalled())
        said.push_back(static_cast<float>(e));
    at += n;
  }
  for (std::int64_t scope = 0; scope < memory.scopes(); ++scope)
    for (const TokenRange& e : memory.events(scope).all())
      said.push_back(static_cast<float>(e.end));
  for (std::int64_t lane = 0; memory.config().recall && lane < memory.lanes(); ++lane) {
    const std::int64_t scope = memory.scopes() > 1 ? lane : 0;
    for (EventId e = 0; e < memory.events(scope).size(); ++e)
      append(said, memory.representative(lane, e));
  }
  const MemoryShape& s = memory.shape();
  for (std::int64_t l = 0; l < s.n_layers; ++l)
    for (std::int64_t t = std::max<std::int64_t>(0, end - 20); t < end; ++t)
      said.insert(said.end(), memory.relevance(l, t), memory.relevance(l, t) + s.n_heads);
  return said;
}

struct Case {
  const char* name;
  MemoryConfig config;
  MemoryShape shape;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  MemoryConfig c = small_config();
  all.push_back({"as it is", c, small_shape(2, 4, 2, 10)});
  c.contiguity = 0.3;
  c.refine = Refinement::modularity;
  all.push_back({"refined, contiguity, one key/value head, odd size", c, small_shape(3, 5, 1, 6)});
  c.refine = Refinement::conductance;
  c.n_init = 0;
  c.chunk = 40;  // beyond the window
  all.push_back({"no sinks, long chunks, a head of 34", c, small_shape(1, 6, 3, 34)});
  c = small_config();
  c.scope = EventScope::head;
  c.segmenter = SegmenterKind::k_similarity;
  c.gamma = 0.5;
  c.n_init = 30;  // more than the window
  all.push_back({"each head's own events", c, small_shape(2, 6, 3, 10)});
  c = small_config();
  c.segmenter = SegmenterKind::gaussian;
  c.recall_groups = 2;
  c.score = RepresentativeScore::max;
  c.chunk = 1;
  all.push_back({"keys of all heads, groups, a token at a time", c, small_shape(2, 8, 4, 6)});
  return all;
}

TEST_CASE("windows of 16 bits: outputs are as far from exact ones as rounding takes them",
          "[memory][oracle][dtype]") {
  for (const DType dtype : kHalves)
    for (Case& c : cases()) {
      CAPTURE(name_of(dtype), c.name);
      c.config.kv_dtype = dtype;
      const auto tokens = random_tokens(c.shape, 150, 3);
      EpisodicMemory memory(c.config, c.shape);
      double nearest = 0;  // largest share of what is allowed
      const std::int64_t per_layer = memory.lanes() / c.shape.n_layers;
      for (std::int64_t at = 0, i = 0; at < 150; ++i) {
        const std::int64_t n = std::min({c.config.chunk, 1 + i % 13, 150 - at});
        std::vector<EventTable> before;
        for (std::int64_t s = 0; s < memory.scopes(); ++s) before.push_back(memory.events(s));
        const auto out = driver::step(memory, tokens, at, n);
        for (std::int64_t l = 0; l < c.shape.n_layers; ++l)
          for (std::int64_t lane = l * per_layer; lane < (l + 1) * per_layer; ++lane) {
            const EventTable& events =
                before[memory.scopes() > 1 ? static_cast<std::size_t>(lane) : 0];
            const auto& list = memory.recalled(lane).recalled();
            const auto far = [&](std::int64_t t) {
              return t < c.config.n_init || t >= events.pending_start() ||
                     std::any_of(list.begin(), list.end(), [&](EventId e) {
                       return t >= events[e].start && t < events[e].end;
                     });
            };
            const std::int64_t width = c.shape.n_heads * c.shape.head_dim,
                               of_lane = width / per_layer;
            for (std::int64_t p = at; p < at + n; ++p) {
              const auto want = driver::reference(tokens, c.shape, l, p, c.config.n_local, far);
              const auto most = allowed(dtype, tokens, c.shape, l, p, c.config.n_local, far);
              for (std::int64_t x = lane % per_layer * of_lane;
                   x < (lane % per_layer + 1) * of_lane; ++x) {
                const float got = out[static_cast<std::size_t>(l)]
                                     [static_cast<std::size_t>((p - at) * width + x)];
                const double off = std::fabs(got - want[static_cast<std::size_t>(x)]);
                REQUIRE(off <= most[static_cast<std::size_t>(x)]);
                nearest = std::max(nearest, off / most[static_cast<std::size_t>(x)]);
              }
            }
          }
        at += n;
      }
      CHECK(nearest > 0.03);  // what is allowed is of the size of what happens
      CHECK(memory.events().size() > 3);
    }
}

TEST_CASE("a memory of 16 bits says what one of float32 says that reads the rounded numbers",
          "[memory][dtype]") {
  for (const DType dtype : kHalves)
    for (Case& c : cases()) {
      CAPTURE(name_of(dtype), c.name);
      const auto tokens = random_tokens(c.shape, 260, 9);
      const auto seen = rounded(dtype, tokens);
      MemoryConfig in_dtype = c.config;
      in_dtype.kv_dtype = dtype;
      // With any rotary embedding: what is rounded is the same when it was round before.
      {
        EpisodicMemory memory(in_dtype, c.shape), same(in_dtype, c.shape);
        CHECK((all_said(memory, tokens) == all_said(same, seen)));
        CHECK(memory.digest() == same.digest());
      }
      // Without: nothing else is rounded, so that the other memory's dtype does not show.
      MemoryShape still = c.shape;
      still.layers.resize(static_cast<std::size_t>(still.n_layers));
      EpisodicMemory memory(in_dtype, still), exact(c.config, still);
      CHECK((all_said(memory, tokens) == all_said(exact, seen)));
      CHECK(memory.events().size() > 3);
    }
}

TEST_CASE("windows of 16 bits: the same bits for any threads, tiers and moments of going back",
          "[memory][dtype]") {
  for (const DType dtype : kHalves)
    for (Case& c : cases()) {
      CAPTURE(name_of(dtype), c.name);
      c.config.kv_dtype = dtype;
      const auto tokens = random_tokens(c.shape, 260, 10);
      const int threads = max_threads();
      set_max_threads(1);
      EpisodicMemory one(c.config, c.shape);
      const std::vector<float> want = all_said(one, tokens);
      set_max_threads(3);
      EpisodicMemory three(c.config, c.shape);
      CHECK((all_said(three, tokens) == want));
      set_max_threads(threads);

      const TempDir temp;
      MemoryConfig on_disk = c.config;
      on_disk.disk_dir = temp.path().string();
      on_disk.host_bytes = least_host_bytes(on_disk, c.shape);
      EpisodicMemory disk(on_disk, c.shape);
      CHECK((all_said(disk, tokens) == want));

      // Back to the middle, and over a base that ends there.
      EpisodicMemory again(c.config, c.shape);
      const std::vector<Token> half(tokens.begin(), tokens.begin() + 130);
      all_said(again, half);
      const auto snapshot = again.snapshot();
      const std::vector<float> rest = all_said(again, tokens, 130);
      const std::uint64_t digest = again.digest();
      again.restore(*snapshot);
      CHECK((all_said(again, tokens, 130) == rest));
      CHECK(again.digest() == digest);
      again.restore(*snapshot);
      EpisodicMemory tail(again.share());
      CHECK((all_said(tail, tokens, 130) == rest));
    }
}

TEST_CASE("windows of 16 bits go to a twin elsewhere and come back", "[memory][dtype][advance]") {
  for (const DType dtype : kHalves) {
    CAPTURE(name_of(dtype));
    MemoryConfig c = small_config();
    c.kv_dtype = dtype;
    c.recall = false;  // no event has to be handed over
    const MemoryShape s = small_shape();
    const auto tokens = random_tokens(s, 200, 12);
    const std::vector<Token> first(tokens.begin(), tokens.begin() + 120);
    EpisodicMemory memory(c, s), twin(c, s);
    all_said(memory, first);
    MemoryAdvance a;
    a.state = memory.state();
    for (const MemoryState::Layer& layer : a.state.layers)
      for (const float x : layer.keys) REQUIRE(rounded(dtype, x) == x);
    a.shared_events = {0};
    a.events = {memory.events().all()};
    twin.advance(a);
    CHECK(twin.digest() == memory.digest());
    CHECK((all_said(twin, tokens, 120) == all_said(memory, tokens, 120)));
    // Numbers that the window has no room for.
    if (dtype == DType::bfloat16) continue;
    a.state.layers[1].values[3] = 7e4f;
    EpisodicMemory stranger(c, s);
    CHECK(mentions(refusal<DataError>([&] { stranger.advance(a); }), "float16"));
    CHECK(stranger.tokens() == 0);
  }
}

TEST_CASE("numbers beyond the window's dtype are refused by name, and the step can be taken again",
          "[memory][dtype][errors]") {
  const MemoryShape s = small_shape();
  const auto tokens = random_tokens(s, 60, 13);
  const auto refused = [&](DType dtype, const auto& change) {
    MemoryConfig c = small_config();
    c.kv_dtype = dtype;
    EpisodicMemory memory(c, s), twin(c, s);
    auto bad = tokens;
    change(bad[31]);
    for (std::int64_t at = 0; at < 30; at += 10) {
      driver::step(memory, tokens, at, 10);
      driver::step(twin, tokens, at, 10);
    }
    const std::string said = refusal<DataError>([&] { driver::step(memory, bad, 30, 10); });
    if (said == "no error") return said;
    CHECK(mentions(said, "token 31"));
    CHECK(mentions(said, "layer 1"));
    CHECK(mentions(said, "kv_dtype"));
    CHECK(memory.tokens() == 30);
    for (std::int64_t at = 30; at < 60; at += 10)
      CHECK((driver::step(memory, tokens, at, 10) == driver::step(twin, tokens, at, 10)));
    CHECK(memory.digest() == twin.digest());
    return said;
  };
  const auto key = [](float x) { return [x](Token& t) { t.k[1][3] = x; }; };
  const auto value = [](float x) { return [x](Token& t) { t.v[1][7] = -x; }; };
  // Two channels that turn together: one of them grows beyond both.
  const auto pair = [](float x) { return [x](Token& t) { t.k[1][0] = t.k[1][5] = x; }; };
  CHECK(mentions(refused(DType::float16, key(65520.0f)), "k of token"));
  CHECK(mentions(refused(DType::float16, value(1e6f)), "v of token"));
  CHECK(mentions(refused(DType::float16, value(1e6f)), "65504"));
  CHECK(mentions(refused(DType::float16, pair(60000.0f)), "rotated by its position"));
  CHECK(refused(DType::float16, value(65519.0f)) == "no error");
  CHECK(refused(DType::float16, key(30000.0f)) == "no error");
  CHECK(mentions(refused(DType::bfloat16, value(3.4e38f)), "bfloat16"));
  CHECK(refused(DType::bfloat16, value(3.38e38f)) == "no error");
  CHECK(refused(DType::float32, value(3.4e38f)) == "no error");
  CHECK(refused(DType::int8, value(65520.0f)) == "no error");
  CHECK(refused(DType::fp8, value(65520.0f)) == "no error");
}

TEST_CASE("windows take what their dtype takes, and the plan says so", "[memory][dtype][plan]") {
  for (Case& c : cases()) {
    CAPTURE(c.name);
    std::int64_t bytes[5];
    for (const DType dtype :
         {DType::float32, DType::bfloat16, DType::float16, DType::int8, DType::fp8}) {
      c.config.kv_dtype = dtype;
      EpisodicMemory memory(c.config, c.shape);
      all_said(memory, random_tokens(c.shape, 70, 14));
      const std::int64_t counted = memory.counters().window_bytes;
      CHECK(plan_memory(c.config, c.shape, memory.tokens(), memory.events().size(), false)
                .host.windows == counted);
      bytes[static_cast<int>(dtype)] = counted;
    }
    // Three rings, keys and values of the sinks, keys of one event; the rest is relevance.
    const MemoryConfig& m = c.config;
    const std::int64_t ring = m.n_local + m.max_block + 2 * m.chunk;
    const std::int64_t elements = c.shape.n_layers * c.shape.n_kv_heads * c.shape.head_dim *
                                  (3 * ring + 2 * m.n_init + m.max_block);
    CHECK(bytes[0] - bytes[1] == 2 * elements);
    CHECK(bytes[2] == bytes[1]);
    CHECK(bytes[3] == bytes[0]);
    CHECK(bytes[4] == bytes[0]);
  }
}

using Json = nlohmann::ordered_json;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& text) {
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << text;
}

std::string hex(std::uint64_t x) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(x));
  return digits;
}

template <class T>
T number_at(const std::string& text, std::size_t at) {
  T x;
  std::memcpy(&x, text.data() + at, sizeof x);
  return x;
}

template <class T>
void put(std::string& text, T x) {
  text.append(reinterpret_cast<const char*>(&x), sizeof x);
}

/// Copies a counted array of 16 bits as one of float32. \return where it ends
std::size_t widen(const std::string& from, std::size_t at, DType dtype, std::string& to) {
  const auto n = number_at<std::uint64_t>(from, at);
  put(to, n);
  at += sizeof n;
  for (std::uint64_t i = 0; i < n; ++i, at += 2) {
    const auto h = number_at<std::uint16_t>(from, at);
    put(to, dtype == DType::bfloat16 ? from_bfloat16(h) : from_float16(h));
  }
  return at;
}

constexpr std::size_t kHeader = 24;  // of a state: magic, version, payload bytes, checksum

std::string state_file(const fs::path& dir) { return MemoryManifest::read(dir).state.file; }

/// The same without what says whose the rows of each layer's representatives are, which version 5
/// added behind the number of its events.
std::string with_a_row_for_each_event(std::string payload, const MemoryConfig& c,
                                      const MemoryShape& s) {
  std::string shape;
  put(shape, s.n_heads);
  put(shape, s.head_dim);
  put(shape, static_cast<std::int64_t>(c.n_repr));
  put(shape, c.score);
  std::int64_t found = 0;
  for (std::size_t at = payload.find(shape); at != std::string::npos;
       at = payload.find(shape, at + 1), ++found) {
    const std::size_t events = at + shape.size();
    REQUIRE(number_at<std::int64_t>(payload, events + 8) ==
            number_at<std::int64_t>(payload, events));
    REQUIRE(number_at<std::uint64_t>(payload, events + 16) == 0);
    payload.erase(events + 8, 16);
  }
  REQUIRE(found == s.n_layers);
  return payload;
}

/// The state of a memory whose windows are of 16 bits, as versions wrote it that kept them in
/// float32. \param ring, sinks elements of one array of a layer
std::string as_before(const std::string& state, DType dtype, std::uint64_t ring,
                      std::uint64_t sinks, std::int64_t n_layers) {
  std::string payload;
  std::size_t at = kHeader, copied = at;
  for (std::int64_t l = 0; l < n_layers; ++l) {
    while (number_at<std::uint64_t>(state, at) != ring) ++at;
    payload.append(state, copied, at - copied);
    at = widen(state, widen(state, at, dtype, payload), dtype, payload);
    const std::size_t end = at + 8 + number_at<std::uint64_t>(state, at) * sizeof(float);
    payload.append(state, at, end - at);  // relevance
    REQUIRE(number_at<std::uint64_t>(state, end) == sinks);
    copied = at = widen(state, widen(state, end, dtype, payload), dtype, payload);
  }
  payload.append(state, copied);
  return payload;
}

/// Puts another state into a folder, whose checksums are right again.
void put_state(const fs::path& dir, std::uint32_t version, const std::string& payload) {
  const std::string name = state_file(dir), old = text_of(dir / name);
  const std::uint64_t sum =
      checksum(std::as_bytes(std::span(payload)), std::stoull(name.substr(6, 16), nullptr, 16));
  std::string state = old.substr(0, 4);
  put(state, version);
  put(state, static_cast<std::uint64_t>(payload.size()));
  put(state, sum);
  state += payload;
  write(dir / name, state);
  std::string text = text_of(dir / "manifest.json");
  Json json = Json::parse(text.substr(0, text.rfind("checksum: ")));
  json["state"]["bytes"] = state.size();
  json["state"]["checksum"] = hex(sum);
  text = json.dump(1) + "\n";
  text += "checksum: " + hex(checksum_of(std::span<const char>(text))) + "\n";
  write(dir / "manifest.json", text);
}

TEST_CASE("a state takes what was read, not the room of its windows, and goes on to the bit",
          "[memory][dtype][kept]") {
  const MemoryShape s = small_shape(2, 4, 2, 10);
  const auto tokens = random_tokens(s, 200, 16);
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::int8}) {
    CAPTURE(name_of(dtype));
    MemoryConfig c = small_config();
    c.kv_dtype = dtype;
    const std::int64_t row =
        2 * 2 * 10 * size_of(::episodic::detail::window_dtype(dtype));  // keys and values
    std::int64_t last = 0;
    for (const std::int64_t n : {0, 1, 5, 11}) {
      CAPTURE(n);
      REQUIRE(n < ring_capacity(c));
      const TempDir temp;
      const KeepOptions keep{temp / "m"};
      const std::vector<Token> first(tokens.begin(), tokens.begin() + n);
      EpisodicMemory whole(c, s);
      all_said(whole, first);
      const std::vector<float> rest = all_said(whole, tokens, n);
      {
        EpisodicMemory memory = EpisodicMemory::create(keep, c, s);
        all_said(memory, first);
        memory.commit();
      }
      const std::int64_t bytes = MemoryManifest::read(keep.dir).state.bytes;
      if (n > 0) CHECK(bytes >= last);
      CHECK(bytes < 4096 + s.n_layers * 2 * n * (row + 4 * 4));
      last = bytes;
      CHECK(verify_memory(keep.dir).damages.empty());
      EpisodicMemory memory = EpisodicMemory::open(keep, OpenMode::read);
      CHECK((all_said(memory, tokens, n) == rest));
    }
  }
}

TEST_CASE("commits that are near to one another leave no earlier states but the first",
          "[memory][kept]") {
  const MemoryShape s = small_shape(2, 4, 2, 10);
  const auto tokens = random_tokens(s, 200, 17);
  const MemoryConfig c = small_config();
  const TempDir temp;
  const KeepOptions keep{temp / "m"};
  EpisodicMemory memory = EpisodicMemory::create(keep, c, s);
  std::int64_t at = 0;
  const auto read_to = [&](std::int64_t end) {
    all_said(memory, {tokens.begin(), tokens.begin() + end}, at);
    at = end;
    memory.commit();
    std::vector<std::int64_t> kept;
    for (const auto& state : MemoryManifest::read(keep.dir).checkpoints)
      kept.push_back(state.tokens);
    return kept;
  };
  for (std::int64_t end = 1; end < c.chunk; ++end)
    CHECK(read_to(end) == std::vector<std::int64_t>{0});
  CHECK(read_to(2 * c.chunk) == std::vector<std::int64_t>{0});
  CHECK(read_to(3 * c.chunk) == std::vector<std::int64_t>{0, 2 * c.chunk});
}

TEST_CASE("states keep windows of 16 bits as they are, and those kept in float32 still open",
          "[memory][dtype][kept]") {
  const MemoryShape s = small_shape(2, 4, 2, 10);
  const auto tokens = random_tokens(s, 200, 15);
  const std::vector<Token> first(tokens.begin(), tokens.begin() + 120);
  std::size_t size[5];
  for (const DType dtype :
       {DType::float32, DType::bfloat16, DType::float16, DType::int8, DType::fp8}) {
    CAPTURE(name_of(dtype));
    MemoryConfig c = small_config();
    c.kv_dtype = dtype;
    const TempDir temp;
    const KeepOptions keep{temp / "m"};
    EpisodicMemory whole(c, s);
    all_said(whole, first);
    const std::vector<float> rest = all_said(whole, tokens, 120);
    std::uint64_t digest = 0;
    {
      EpisodicMemory memory = EpisodicMemory::create(keep, c, s);
      all_said(memory, first);
      memory.commit();
      digest = memory.digest();
    }
    const std::string name = state_file(keep.dir), state = text_of(keep.dir / name);
    size[static_cast<int>(dtype)] = state.size();
    // by name, so that a build that does not know it says so
    CHECK(mentions(text_of(keep.dir / "manifest.json"), name_of(dtype)));
    const bool halves = dtype == DType::bfloat16 || dtype == DType::float16;
    CHECK(number_at<std::uint32_t>(state, 4) == 6u);
    const auto goes_on = [&] {
      CHECK(verify_memory(keep.dir).damages.empty());
      EpisodicMemory memory = EpisodicMemory::open(keep, OpenMode::read);
      CHECK(memory.digest() == digest);
      CHECK((all_said(memory, tokens, 120) == rest));
    };
    goes_on();
    // A version that nobody has written.
    put_state(keep.dir, 8, state.substr(kHeader));
    const std::string said =
        refusal<FileError>([&] { EpisodicMemory::open(keep, OpenMode::read); });
    CHECK(mentions(said, name));
    CHECK(mentions(said, "another version"));
    // The window is full, so that one that is kept whole has the same bytes.
    for (const std::uint32_t version : {5u, 6u}) {
      put_state(keep.dir, version, state.substr(kHeader));
      goes_on();
    }
    put_state(keep.dir, halves ? 4 : 3, with_a_row_for_each_event(state.substr(kHeader), c, s));
    goes_on();
    if (!halves) continue;

    const auto ring = static_cast<std::uint64_t>(2 * ring_capacity(c) * 10);
    std::string old =
        as_before(state, dtype, ring, static_cast<std::uint64_t>(2 * c.n_init * 10), 2);
    old = with_a_row_for_each_event(old, c, s);
    put_state(keep.dir, 3, old);
    goes_on();
    // A version that says one thing and holds the other.
    put_state(keep.dir, 4, old);
    CHECK_THROWS_AS(EpisodicMemory::open(keep, OpenMode::read), FileError);
    put_state(keep.dir, 3, state.substr(kHeader));
    CHECK_THROWS_AS(EpisodicMemory::open(keep, OpenMode::read), FileError);
    if (dtype == DType::bfloat16) continue;
    // A key of the window, token 100 say, that float32 held.
    const auto place = static_cast<std::size_t>(100 % ring_capacity(c) * 10 + 4);
    std::size_t at = 0;
    while (number_at<std::uint64_t>(old, at) != ring) ++at;
    const float large = 7e4f;
    std::memcpy(old.data() + at + 8 + place * sizeof large, &large, sizeof large);
    put_state(keep.dir, 3, old);
    const std::string why = refusal<FileError>([&] { EpisodicMemory::open(keep, OpenMode::read); });
    CHECK(mentions(why, "65504"));
    CHECK(mentions(why, "float32"));
  }
  CHECK(size[1] == size[2]);
  CHECK(size[1] < size[0]);
}

}  // namespace window_dtype_test
