// SPDX-License-Identifier: Apache-2.0
// An encoder's vectors of windows of text: computed once for all who need them, within their bytes,
// and left beside a kept memory in a file that nothing depends on.
#include "session/window_store.hpp"
#include "small_memory.hpp"
#include "support/faulty_calls.hpp"
#include "support/model.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "episodic/base/bytes.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/dtype.hpp"
#include "episodic/base/error.hpp"
#include "episodic/session/engine.hpp"
#include "episodic/session/passages.hpp"
#include "episodic/session/window_vectors.hpp"
#include "session/closed_text.hpp"
#include "session/encoder_voice.hpp"
#include "session/window_file.hpp"

using namespace episodic;

namespace window_vectors_test {

namespace fs = std::filesystem;

std::shared_ptr<const Model> model() {
  static const auto m = load_model(shipped_model_dir());
  return m;
}

std::shared_ptr<const SentenceEncoder> encoder(std::int64_t max_tokens = 0) {
  return std::make_shared<const SentenceEncoder>(SentenceEncoder::open(
      fs::path(EPISODIC_SOURCE_DIR) / "tests/model/sentence_encoder/tiny", max_tokens));
}

std::shared_ptr<WindowVectors> vectors(std::int64_t bytes = WindowVectors::kBytes) {
  return std::make_shared<WindowVectors>(encoder(), bytes);
}

/// Sentences that do not repeat.
std::string sentences(int first, int n) {
  static const char* who[] = {"An old man", "The sister of Ada", "A soldier", "His doctor"};
  static const char* did[] = {"walked to", "looked at", "asked about", "painted", "sold"};
  static const char* what[] = {"the river", "a church", "the small house", "the garden"};
  std::string text;
  for (int i = first; i < first + n; ++i)
    text += std::string(who[i % 4]) + " " + did[i / 4 % 5] + " " + what[i / 20 % 4] + " on day " +
            std::to_string(1000 + i * 7) + ". ";
  return text;
}

constexpr const char* kSecret = "The donkey of Agatha is called Biscuit. ";
constexpr const char* kQuestion = "What is the donkey of Agatha called?";

std::string story() { return sentences(0, 40) + kSecret + sentences(40, 40); }

/// A kept memory of the story.
struct Kept {
  TempDir scratch;
  fs::path dir = scratch / "m";
  Kept() {
    Engine engine(model());
    engine.attach(
        std::make_shared<EpisodicMemory>(create_memory(*model(), {.dir = dir}, small_memory())));
    engine.read(story());
    engine.commit();
    REQUIRE(engine.n_events() > 40);
  }
  EpisodicMemory open(OpenMode mode = OpenMode::read, const fs::path& at = {}) const {
    return open_memory(*model(), {.dir = at.empty() ? dir : at, .mode = mode});
  }
  static std::vector<double> scores_of(const EpisodicMemory& memory, const VectorFolder& folder,
                                       WindowVectorsCounters* counters) {
    const auto store = vectors();
    EncoderVoice voice(store);
    voice.keep_in(folder);
    std::vector<std::int32_t> ids;
    const std::int64_t end = closed_end(memory);
    add_closed_ids(memory, memory.token_ids(0, end), ids);
    voice.follow(model()->tokenizer(), ids, 0);
    REQUIRE(voice.encode({}));
    if (counters) *counters = store->counters();
    return voice.score(kQuestion, memory.events().all());
  }
  /// What an encoder says of the events in a process that begins now; its counters.
  std::vector<double> scores(WindowVectorsCounters* counters = nullptr, const fs::path& at = {},
                             io::Syscalls* calls = nullptr) const {
    const EpisodicMemory memory = open(OpenMode::read, at);
    VectorFolder folder = VectorFolder::of(memory);
    folder.calls = calls;
    return scores_of(memory, folder, counters);
  }
  /// The same with nothing left beside the memory.
  std::vector<double> plain(const fs::path& at = {}) const {
    return scores_of(open(OpenMode::read, at), {}, nullptr);
  }
  /// What such a process finds.
  std::vector<Passage> find() const {
    const EpisodicMemory memory = open(OpenMode::read);
    PassageFinder finder(model());
    finder.set_vectors(vectors());
    finder.keep_vectors(VectorFolder::of(memory));
    finder.read(memory, memory.token_ids(0, memory.tokens()));
    return finder.find(kQuestion, {6, 24});
  }
  /// The caches that lie in a folder, whole or not.
  static std::vector<fs::path> caches(const fs::path& dir) {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(dir))
      if (entry.path().filename().string().starts_with("encoded-")) found.push_back(entry.path());
    return found;
  }
};

std::string content(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void put(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

std::vector<std::int32_t> ids_of(const std::string& text) {
  const auto ids = model()->tokenizer().encode(text);
  return {ids.begin(), ids.end()};
}

TEST_CASE("window vectors: finders that share them have each window encoded once") {
  if (no_model()) return;
  Engine engine(model());
  engine.attach(small_memory());
  engine.read(story());
  const auto shared = vectors();
  std::vector<Passage> first;
  std::int64_t encoded = 0;
  {
    PassageFinder finder(model());
    finder.set_vectors(shared);
    finder.read(*engine.memory(), engine.known_ids());
    first = finder.find(kQuestion, {6, 24});
    encoded = shared->counters().encoded;
    REQUIRE(encoded > 20);
    REQUIRE(shared->counters().vectors == encoded);
  }
  // a fork adds to the text; what both have is not encoded again, and the first finder has gone
  Sequence fork = engine.fork();
  Session(fork, &model()->tokenizer())
      .prefill(encode_continuation(model()->tokenizer(), sentences(100, 20)));
  PassageFinder other(model());
  other.set_vectors(shared);
  other.read(*fork.memory(), fork.known_ids());
  const std::int64_t more = shared->counters().encoded - encoded;
  REQUIRE(more > 0);
  REQUIRE(more < encoded);
  REQUIRE(shared->counters().reused >= encoded - 2);
  // the same passages as with vectors of its own
  PassageFinder own(model());
  const auto alone = encoder();
  own.set_encoder(alone.get());
  own.read(*engine.memory(), engine.known_ids());
  REQUIRE(own.find(kQuestion, {6, 24}) == first);
  REQUIRE(mentions(joined_text(first), "Biscuit"));
}

TEST_CASE("window vectors: many threads encode one text once, and find the same") {
  if (no_model()) return;
  const Tokenizer& tokenizer = model()->tokenizer();
  const std::vector<std::int32_t> ids = ids_of(story() + story() + sentences(200, 60));
  std::vector<TokenRange> events;
  for (std::int64_t t = 0; t + 10 <= std::ssize(ids); t += 10) events.push_back({t, t + 10});
  EncoderVoice plain(vectors());
  plain.follow(tokenizer, ids, 0);
  REQUIRE(plain.encode({}));
  const std::vector<double> expected = plain.score(kQuestion, events);
  std::set<std::string> texts;
  for (std::int64_t w = 0; w < EncoderVoice::windows(std::ssize(ids)); ++w) {
    const std::int64_t first = w * EncoderVoice::kStep;
    std::vector<std::int64_t> some(
        ids.begin() + first,
        ids.begin() + std::min(first + EncoderVoice::kWindow, std::ssize(ids)));
    StreamDecoder decoder(tokenizer);
    std::string text;
    for (const std::int64_t id : some) text += decoder.push(id);
    texts.insert(text + decoder.finish());
  }
  const auto shared = vectors();
  std::atomic<int> same = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      EncoderVoice voice(shared);
      // each meets the text another way: whole, in two parts, stopped and begun again
      const auto part = std::span(ids).first(ids.size() * static_cast<std::size_t>(4 - t) / 4);
      voice.follow(tokenizer, part, 0);
      voice.encode([&](std::int64_t done, std::int64_t) { return t != 2 || done < 32; });
      voice.follow(tokenizer, ids, t == 3 ? 0 : std::ssize(part));
      if (voice.encode({}) && voice.score(kQuestion, events) == expected) ++same;
    });
  for (std::thread& thread : threads) thread.join();
  REQUIRE(same == 4);
  const WindowVectorsCounters c = shared->counters();
  REQUIRE(c.vectors >= std::ssize(texts));
  // the ends of parts are windows of their own
  REQUIRE(c.encoded <= std::ssize(texts) + 3 * 2);
  REQUIRE(c.vectors == c.encoded);
}

TEST_CASE("window vectors: no more bytes than are given; what is held stays") {
  REQUIRE(mentions(refusal<ConfigError>([] { WindowVectors(nullptr); }), "encoder is null"));
  REQUIRE(mentions(refusal<ConfigError>([] { WindowVectors(encoder(), -1); }), "bytes = -1"));
  WindowStore probe(4, 0);
  const std::int64_t one = probe.bytes_of_one();
  WindowStore store(4, 3 * one);
  const std::vector<std::uint16_t> numbers{1, 2, 3, 4};
  const auto digest = [](int i) { return TextDigest::of(std::to_string(i)); };
  std::vector<const HeldVector*> held;
  for (int i = 0; i < 3; ++i) held.push_back(store.add(digest(i), numbers));
  REQUIRE(store.add(digest(1), numbers) == held[1]);  // known: held twice
  REQUIRE(store.add(digest(3), numbers) == nullptr);
  REQUIRE(!store.has_room());
  store.release(digest(1), held[1]);
  REQUIRE(store.add(digest(3), numbers) == nullptr);  // one still holds it
  store.release(digest(2), held[2]);
  store.release(digest(1), held[1]);
  REQUIRE(store.counters().vectors == 3);  // there while there is room
  REQUIRE(store.hold(digest(2)) == held[2]);
  store.release(digest(2), held[2]);
  REQUIRE(store.add(digest(4), numbers) != nullptr);  // in place of the longest unused, 1
  REQUIRE(store.hold(digest(1)) == nullptr);
  REQUIRE(store.hold(digest(2)) != nullptr);
  REQUIRE(store.hold(digest(0)) == held[0]);
  REQUIRE(store.counters().bytes == 3 * one);
  REQUIRE(held[0]->numbers == numbers);

  if (no_model()) return;
  // a text that is longer than they allow is encoded as far as they reach, and then no further
  const auto few = vectors(10 * WindowStore(encoder()->width(), 0).bytes_of_one());
  const std::vector<std::int32_t> ids = ids_of(story());
  EncoderVoice voice(few);
  voice.follow(model()->tokenizer(), ids, 0);
  REQUIRE(!voice.encode({}));
  REQUIRE(few->counters().vectors == 10);
  REQUIRE(few->counters().refused > 0);
  const std::int64_t encoded = few->counters().encoded;
  REQUIRE(!voice.encode({}));
  REQUIRE(few->counters().encoded == encoded);  // nothing is encoded in vain again
  const std::vector<double> scores = voice.score("Who?", {{TokenRange{20, 30}, {900, 910}}});
  REQUIRE(scores[0] > -1);
  REQUIRE(scores[1] == -1);
}

TEST_CASE("window vectors: a long text lets short ones in between") {
  Turns turns;
  turns.lock();
  std::atomic<bool> served = false;
  std::thread other([&] {
    turns.lock();
    served = true;
    turns.unlock();
  });
  while (turns.taken() < 2) std::this_thread::yield();
  turns.unlock();
  turns.lock();  // asked for later than the other did
  REQUIRE(served);
  turns.unlock();
  other.join();
  REQUIRE(turns.taken() == 0);

  const auto shared = vectors();
  const Tokenizer& tokenizer = model()->tokenizer();
  const std::vector<std::int32_t> ids = ids_of(story()), few = ids_of(sentences(900, 3));
  EncoderVoice long_one(shared);
  long_one.follow(tokenizer, ids, 0);
  int pieces = 0;
  bool short_one_done = false;
  REQUIRE(long_one.encode([&](std::int64_t, std::int64_t) {
    if (pieces++ == 0) {
      std::thread([&] {
        EncoderVoice short_one(shared);
        short_one.follow(tokenizer, few, 0);
        short_one_done = short_one.encode({});
      }).join();
      REQUIRE(short_one_done);
    }
    return true;
  }));
  REQUIRE(pieces > 1);
}

TEST_CASE("window vectors: what lies beside a memory is computed once, for forks too") {
  if (no_model()) return;
  const Kept kept;
  WindowVectorsCounters first, second, forked;
  const std::vector<double> expected = kept.plain();
  REQUIRE(Kept::caches(kept.dir).empty());
  REQUIRE(kept.scores(&first) == expected);
  REQUIRE(first.encoded > 20);
  REQUIRE(Kept::caches(kept.dir).size() == 1);
  const fs::path cache = Kept::caches(kept.dir)[0];
  REQUIRE(is_cache_file(cache.filename().string()));
  REQUIRE(cache.filename() == WindowFile::name(*encoder()));
  REQUIRE(kept.scores(&second) == expected);  // to the bit
  REQUIRE(second.encoded == 0);
  REQUIRE(second.reused == first.encoded);
  const auto written = fs::last_write_time(cache);
  kept.scores();
  REQUIRE(fs::last_write_time(cache) == written);  // nothing new: not written again

  const VerifyReport report = verify_memory(kept.dir);
  REQUIRE(report.damages.empty());
  REQUIRE(report.unnamed.empty());

  fork_memory(kept.dir, kept.scratch / "f");
  REQUIRE(fs::equivalent(kept.scratch / "f" / cache.filename(), cache));
  REQUIRE(kept.scores(&forked, kept.scratch / "f") == expected);
  REQUIRE(forked.encoded == 0);

  // a memory that goes on: what is new is encoded, what was there is not
  {
    Engine engine(model());
    const auto memory = std::make_shared<EpisodicMemory>(kept.open(OpenMode::write));
    engine.attach(memory);
    engine.read(encode_continuation(model()->tokenizer(), sentences(300, 10)));
    engine.commit();
    REQUIRE(Kept::caches(kept.dir).size() == 1);
    const auto store = vectors();
    REQUIRE(store->keep(*memory, model()->tokenizer()));
    REQUIRE(store->counters().encoded > 0);
    REQUIRE(store->counters().encoded < first.encoded / 2);
  }
  WindowVectorsCounters later;
  REQUIRE(kept.scores(&later) == kept.plain());
  REQUIRE(later.encoded == 0);
  REQUIRE(content(kept.scratch / "f" / cache.filename()).size() < content(cache).size());
  // another encoder's are beside them
  REQUIRE(WindowFile::name(*encoder(16)) != cache.filename());
}

TEST_CASE("window vectors: those of what was forgotten or undone go with the commit") {
  if (no_model()) return;
  const Kept kept;
  const Tokenizer& tokenizer = model()->tokenizer();
  WindowVectorsCounters c;
  const std::vector<Passage> found = kept.find();
  const auto at = std::find_if(found.begin(), found.end(),
                               [](const Passage& p) { return mentions(p.text, "Biscuit"); });
  REQUIRE(at != found.end());
  const auto cached = [&] { return Kept::caches(kept.dir); };
  const auto digests = [&] {
    const EpisodicMemory memory = kept.open();
    const auto file = WindowFile::read(VectorFolder::of(memory), *encoder());
    REQUIRE(file);
    return file->digests;
  };
  // of the windows that hold any of it
  std::set<TextDigest> secret;
  {
    const EpisodicMemory memory = kept.open();
    const std::vector<std::int64_t> ids = memory.token_ids(0, memory.tokens());
    for (std::int64_t first = 0; first + 48 <= std::ssize(ids); first += EncoderVoice::kStep) {
      StreamDecoder decoder(tokenizer);
      std::string text;
      for (std::int64_t t = first; t < first + 48; ++t)
        text += decoder.push(ids[static_cast<std::size_t>(t)]);
      text += decoder.finish();
      if (mentions(text, "Biscuit")) secret.insert(TextDigest::of(text));
    }
  }
  const auto holds_secret = [&] {
    const std::vector<TextDigest> all = digests();
    return std::any_of(all.begin(), all.end(),
                       [&](const TextDigest& d) { return secret.count(d) > 0; });
  };
  REQUIRE(holds_secret());
  {
    EpisodicMemory memory = kept.open(OpenMode::write);
    REQUIRE(!memory.forget(at->tokens).empty());
    REQUIRE(cached().size() == 1);  // nothing is done before the commit
    memory.commit();
    REQUIRE(cached().empty());
    memory.commit();
  }
  REQUIRE(!mentions(joined_text(kept.find()), "Biscuit"));
  REQUIRE(cached().size() == 1);
  REQUIRE(!holds_secret());
  {
    EpisodicMemory memory = kept.open(OpenMode::write);
    memory.commit();  // nothing was forgotten: it stays
    REQUIRE(cached().size() == 1);
    memory.compact();
    REQUIRE(cached().empty());
  }
  kept.scores();
  REQUIRE(cached().size() == 1);
  {
    Engine engine(model());
    engine.attach(std::make_shared<EpisodicMemory>(kept.open(OpenMode::write)));
    engine.read(encode_continuation(tokenizer, sentences(500, 10)));
    engine.commit();
    REQUIRE(cached().size() == 1);
  }
  {
    Engine engine(model());
    const auto memory = std::make_shared<EpisodicMemory>(kept.open(OpenMode::write));
    engine.attach(memory);
    const std::int64_t before = engine.tokens();
    engine.read(encode_continuation(tokenizer, sentences(600, 2)));
    const auto snapshot = engine.snapshot();
    engine.read(encode_continuation(tokenizer, sentences(700, 2)));
    engine.restore(*snapshot);
    engine.commit();  // back behind nothing that was committed
    REQUIRE(cached().size() == 1);
    engine.rewind(before);
    engine.commit();
    REQUIRE(cached().empty());
  }
  REQUIRE(verify_memory(kept.dir).damages.empty());
}

TEST_CASE("window vectors: a file that is not whole, or not ours, is not believed") {
  if (no_model()) return;
  const Kept kept;
  const std::vector<double> expected = kept.scores();
  const fs::path cache = Kept::caches(kept.dir)[0];
  const std::string whole = content(cache);
  WindowVectorsCounters c;
  const auto try_with = [&](const std::string& bytes) {
    put(cache, bytes);
    REQUIRE(kept.scores(&c) == expected);
    REQUIRE(c.encoded > 20);
    REQUIRE(content(cache) == whole);  // made anew
    REQUIRE(Kept::caches(kept.dir).size() == 1);
  };
  for (const std::size_t n : {std::size_t{0}, std::size_t{3}, std::size_t{15}, std::size_t{40},
                              whole.size() / 2, whole.size() - 1})
    try_with(whole.substr(0, n));
  for (std::size_t i = 0; i < whole.size(); i += whole.size() / 23) {
    std::string flipped = whole;
    flipped[i] = static_cast<char>(flipped[i] ^ 4);
    try_with(flipped);
  }
  try_with(whole + "x");
  try_with(std::string(4096, '\0'));
  // whole by its checksum, and nonsense: numbers that are none, other lengths, another encoder
  const auto with_checksum = [&](std::string bytes) {
    const std::string payload = bytes.substr(16);
    const std::uint64_t sum = checksum_of(std::span<const char>(payload));
    std::copy_n(reinterpret_cast<const char*>(&sum), 8, bytes.begin() + 8);
    return bytes;
  };
  std::string bad = whole;
  for (const char* number : {"\xff\x7f", "\x00\x7c", "\x00\x40"}) {  // NaN, infinity, 2
    std::copy_n(number, 2, bad.end() - 2);
    try_with(with_checksum(bad));
  }
  bad = whole;
  bad[24] = bad[24] == '0' ? '1' : '0';  // of the encoder's fingerprint
  try_with(with_checksum(bad));
  bad = whole;
  for (const std::uint64_t n : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
    // the number of digests stands behind the encoder's description
    std::uint64_t length = 0;
    std::copy_n(whole.begin() + 16, 8, reinterpret_cast<char*>(&length));
    std::copy_n(reinterpret_cast<const char*>(&n), 8,
                bad.begin() + static_cast<std::ptrdiff_t>(24 + length));
    try_with(with_checksum(bad));
  }
  put(cache, with_checksum(whole));
  REQUIRE(kept.scores(&c) == expected);
  REQUIRE(c.encoded == 0);  // that is how it is done

  // what is no file is left alone, and so is what a link leads to
  const fs::path outside = kept.scratch / "outside";
  put(outside, whole);
  for (int kind = 0; kind < 3; ++kind) {
    fs::remove_all(cache);
    if (kind == 0) fs::create_directory(cache);
    if (kind == 1) fs::create_symlink(outside, cache);
    if (kind == 2) REQUIRE(::mkfifo(cache.c_str(), 0600) == 0);
    REQUIRE(kept.scores(&c) == expected);
    REQUIRE(c.encoded > 20);
    REQUIRE(content(outside) == whole);
    fs::remove_all(kept.scratch / "f");
    fork_memory(kept.dir, kept.scratch / "f");
    REQUIRE(kept.scores(nullptr, kept.scratch / "f") == expected);
    EpisodicMemory memory = kept.open(OpenMode::write);
    memory.compact();  // nothing of ours is in a folder
    REQUIRE(fs::is_directory(cache) == (kind == 0));
    REQUIRE(content(outside) == whole);
  }
}

TEST_CASE("window vectors: where nothing can be written, all goes on") {
  if (no_model()) return;
  const Kept kept;
  const std::vector<double> expected = kept.plain();
  using Op = io::Op;
  WindowVectorsCounters c;
  for (const Op op : {Op::create, Op::write, Op::rename, Op::open, Op::read})
    for (const int error : {ENOSPC, EROFS, EACCES, EIO}) {
      const bool reads = op == Op::open || op == Op::read;
      for (const fs::path& cache : Kept::caches(kept.dir)) fs::remove(cache);
      if (reads) kept.scores();
      FaultyCalls calls;
      calls.play({.site = {io::Kind::cache, op}, .error = error, .for_ever = true});
      REQUIRE(kept.scores(&c, {}, &calls) == expected);
      REQUIRE(c.encoded > 20);
      REQUIRE(calls.faults() > 0);
      REQUIRE(Kept::caches(kept.dir).size() == (reads ? 1 : 0));
    }
  {  // a folder that refused is not tried at each question again
    const EpisodicMemory memory = kept.open();
    FaultyCalls full;
    full.play({.site = {io::Kind::cache, Op::create}, .error = ENOSPC, .for_ever = true});
    VectorFolder folder = VectorFolder::of(memory);
    folder.calls = &full;
    EncoderVoice voice(vectors());
    voice.keep_in(folder);
    voice.follow(model()->tokenizer(), ids_of(story()), 0);
    for (int i = 0; i < 3; ++i) REQUIRE(voice.encode({}));
    REQUIRE(full.faults() == 1);
    voice.keep_in(folder);  // but after a commit
    REQUIRE(voice.encode({}));
    REQUIRE(full.faults() == 2);
  }
  // half of each write, and a folder that has gone
  FaultyCalls calls;
  calls.play(
      {.site = {io::Kind::cache, Op::write}, .fault = FaultyCalls::Fault::half, .for_ever = true});
  for (const fs::path& cache : Kept::caches(kept.dir)) fs::remove(cache);
  REQUIRE(kept.scores(&c, {}, &calls) == expected);
  REQUIRE(kept.scores(&c) == expected);
  REQUIRE(c.encoded == 0);
  const auto memory = std::make_unique<EpisodicMemory>(kept.open());
  const VectorFolder folder = VectorFolder::of(*memory);
  fs::rename(kept.dir, kept.scratch / "elsewhere");
  REQUIRE(Kept::scores_of(*memory, folder, nullptr) == expected);
  REQUIRE(!fs::exists(kept.dir));
}

TEST_CASE("window vectors: a reader that is behind leaves nothing of what is gone") {
  if (no_model()) return;
  const Kept kept;
  const EpisodicMemory old = kept.open();
  // a commit in between, which a reader of the state before does not know of
  {
    EpisodicMemory memory = kept.open(OpenMode::write);
    memory.forget(TokenRange{200, 300});
    memory.commit();
  }
  Kept::scores_of(old, VectorFolder::of(old), nullptr);
  REQUIRE(Kept::caches(kept.dir).empty());
  // one that forgets just before the file gets its name
  const EpisodicMemory now = kept.open();
  FaultyCalls calls;
  bool forgot = false;
  calls.watch = [&](io::Site site) {
    if (!(site == io::Site{io::Kind::cache, io::Op::rename})) return;
    EpisodicMemory memory = kept.open(OpenMode::write);
    memory.forget(TokenRange{400, 500});
    memory.commit();
    forgot = true;
  };
  VectorFolder folder = VectorFolder::of(now);
  folder.calls = &calls;
  Kept::scores_of(now, folder, nullptr);
  REQUIRE(forgot);
  REQUIRE(Kept::caches(kept.dir).empty());
  // what a kill leaves is taken away by the next writer, and no other file
  const std::string name = WindowFile::name(*encoder());
  put(kept.dir / (name + ".0123456789abcdef.new"), "half");
  REQUIRE(verify_memory(kept.dir).unnamed.size() == 1);
  put(kept.dir / "notes.txt", "mine");
  kept.open(OpenMode::write);
  REQUIRE(Kept::caches(kept.dir).empty());
  REQUIRE(fs::exists(kept.dir / "notes.txt"));
  REQUIRE(!is_cache_file("encoded-0123456789abcdeg.win"));
  REQUIRE(!is_cache_file("encoded-0123456789abcdef.win.new"));
  REQUIRE(!is_cache_file("state-0123456789abcdef.bin"));
  // a memory that is made where one was has nothing of it
  kept.scores();
  REQUIRE(Kept::caches(kept.dir).size() == 1);
  fs::remove(kept.dir / "manifest.json");
  fs::remove(kept.dir / "notes.txt");
  create_memory(*model(), {.dir = kept.dir}, small_memory());
  REQUIRE(Kept::caches(kept.dir).empty());
}

TEST_CASE("window vectors: refused where there is nothing to keep them of") {
  if (no_model()) return;
  Engine engine(model());
  engine.attach(small_memory());
  engine.read(story());
  const auto* memory = dynamic_cast<const EpisodicMemory*>(engine.memory());
  REQUIRE(memory);
  REQUIRE(VectorFolder::of(*memory).dir.empty());
  REQUIRE(mentions(refusal<ConfigError>([&] { vectors()->keep(*memory, model()->tokenizer()); }),
                   "no folder"));
}

}  // namespace window_vectors_test
