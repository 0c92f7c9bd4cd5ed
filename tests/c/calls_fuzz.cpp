// SPDX-License-Identifier: Apache-2.0
// Calls of the C API in any order, with good and bad arguments of every kind: each returns a code,
// and none falls. Buffers have exactly the size that is named, so that the address sanitizer sees a
// byte too many. EPISODIC_FUZZ_SECONDS prolongs the run.
#include "episodic/c/episodic.h"

#include "support/model.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace c_calls_test {

constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();

/// An array that ends where a sanitizer looks.
template <class T>
class Exactly {
 public:
  explicit Exactly(std::size_t n, T value = T()) : items_(new T[n]), n_(n) {
    std::fill_n(items_.get(), n, value);
  }
  T* data() { return items_.get(); }
  T& operator[](std::size_t i) { return items_[i]; }
  std::size_t size() const { return n_; }

 private:
  std::unique_ptr<T[]> items_;
  std::size_t n_;
};

/// A struct as a caller of some version has it: as many bytes as its struct_size says.
template <class T>
class Aged {
 public:
  static constexpr char kBeyond = 0x5a;
  Aged(T fields, std::size_t size)
      : size_(size), bytes_(std::clamp(size, sizeof size, std::size_t{4096}), kBeyond) {
    fields.struct_size = size;
    std::memcpy(bytes_.data(), &fields, std::min(bytes_.size(), sizeof(T)));
  }
  T* get() { return reinterpret_cast<T*>(bytes_.data()); }
  /// What only a later version knows is as it was.
  bool beyond_untouched() {
    for (std::size_t i = sizeof(T); i < bytes_.size(); ++i)
      if (bytes_[i] != kBeyond) return false;
    return get()->struct_size == size_;
  }

 private:
  std::size_t size_;
  Exactly<char> bytes_;
};

/// The layers that a memory was made for.
struct Geometry {
  std::int64_t layers = 2, heads = 2, kv_heads = 1, dim = 4;
};
constexpr Geometry kShippedModel{4, 4, 2, 64};

/// Handles that are in use, and all that ever were; of several threads.
class Pools {
 public:
  explicit Pools(std::string model_path) : model_path_(std::move(model_path)) {}

  template <class Handle>
  void keep(const char* kind, Handle handle) {
    const std::lock_guard lock(mutex_);
    ever_.push_back(handle);
    live_[kind].push_back(handle);
  }
  /// The oldest, where there are more than `most`.
  void* surplus(const char* kind, std::size_t most) {
    const std::lock_guard lock(mutex_);
    std::vector<void*>& live = live_[kind];
    if (live.size() <= most) return nullptr;
    void* const oldest = live.front();
    live.erase(live.begin());
    return oldest;
  }
  /// It was freed: drawn only among all that ever were.
  void gone(const char* kind, const void* handle) {
    const std::lock_guard lock(mutex_);
    std::vector<void*>& live = live_[kind];
    live.erase(std::remove(live.begin(), live.end(), handle), live.end());
  }
  void* any(const char* kind, std::size_t draw) {
    const std::lock_guard lock(mutex_);
    std::vector<void*>& live = live_[kind];
    return live.empty() ? nullptr : live[draw % live.size()];
  }
  void set_geometry(const void* memory, const Geometry& of) {
    const std::lock_guard lock(mutex_);
    geometries_[memory] = of;
  }
  Geometry geometry(const void* memory) {
    const std::lock_guard lock(mutex_);
    const auto found = geometries_.find(memory);
    return found == geometries_.end() ? Geometry{} : found->second;
  }
  void* any_ever(std::size_t draw) {
    const std::lock_guard lock(mutex_);
    return ever_.empty() ? nullptr : ever_[draw % ever_.size()];
  }
  const std::string& model_path() const { return model_path_; }
  const TempDir& folder() const { return folder_; }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<void*>> live_;
  std::vector<void*> ever_;
  std::map<const void*, Geometry> geometries_;  // of memories that are not of the usual one
  std::string model_path_;
  TempDir folder_;
};

/// How often each function said yes and no, with which codes.
struct Seen {
  std::map<std::string, std::array<std::size_t, 2>> functions;  // [ok, failed]
  std::map<std::int32_t, std::size_t> codes;
  std::vector<std::string> wrong;  // what must not be

  void add(const Seen& other) {
    for (const auto& [name, n] : other.functions) {
      functions[name][0] += n[0];
      functions[name][1] += n[1];
    }
    for (const auto& [code, n] : other.codes) codes[code] += n;
    wrong.insert(wrong.end(), other.wrong.begin(), other.wrong.end());
  }
};

/// One thread that calls.
class Caller {
 public:
  Caller(Pools& pools, unsigned seed) : pools_(pools), random_(seed) { list_calls(); }

  /// Any function, with any arguments.
  void call_one() {
    const auto& [name, body] = calls_[below(calls_.size())];
    hostile_ = one_of(3);
    note(name, body());
  }
  /// Some handles that are good, so that calls come to what lies behind them.
  void begin() {
    for (int i = 0; i < 4; ++i) {
      note("model_load", load_model(true));
      note("sequence_new", new_sequence(pools_.any("model", i)));
      note("sequence_attach", episodic_sequence_attach(sequence(false), kGoodSettings, 0));
      note("memory_new", new_memory(kGoodSettings, good_shape()));
      note("memory_make", made_as_attach_does(i % 2 == 1));
    }
  }
  /// Frees all that this pool has.
  void end() {
    while (void* h = pools_.surplus("answer", 0)) free_with(episodic_answer_free, h);
    while (void* h = pools_.surplus("snapshot", 0)) free_with(episodic_snapshot_free, h);
    while (void* h = pools_.surplus("sequence", 0)) free_with(episodic_sequence_free, h);
    while (void* h = pools_.surplus("memory", 0)) free_with(episodic_memory_free, h);
    while (void* h = pools_.surplus("model", 0)) free_with(episodic_model_free, h);
  }
  const Seen& seen() const { return seen_; }
  std::set<std::string> functions() const {
    std::set<std::string> names;
    for (const auto& [name, body] : calls_) names.insert("episodic_" + name);
    return names;
  }

 private:
  static constexpr const char* kGoodSettings =
      "{\"n_local\": 16, \"n_mem\": 16, \"chunk\": 8, \"n_init\": 2, \"min_block\": 2, "
      "\"max_block\": 8}";

  // -- draws

  std::size_t below(std::size_t n) { return random_() % n; }
  bool one_of(std::size_t n) { return below(n) == 0; }
  /// Whether this argument is to be a bad one: never in calls that go as deep as they can.
  bool bad(std::size_t n) { return hostile_ && one_of(n); }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[below(values.size())];
  }
  template <class T>
  T* or_null(T* p) {
    return bad(10) ? nullptr : p;
  }
  /// Mostly a small one.
  std::int64_t integer(std::size_t small) {
    if (!bad(3)) return static_cast<std::int64_t>(below(small));
    return of<std::int64_t>({-1, -2, kLowest, kLowest + 1, kHighest, kHighest - 1, kHighest / 2,
                             std::int64_t{1} << 31, std::int64_t{1} << 32, std::int64_t{1} << 61,
                             1000003});
  }
  /// How many there are; now and then a negative number or one that no memory holds.
  std::size_t count(std::size_t n) {
    if (!bad(12)) return n;
    return of<std::size_t>({SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2 + 1, SIZE_MAX / 2, SIZE_MAX / 4});
  }
  double number() {
    if (!hostile_) return static_cast<double>(1 + below(3)) / 2;
    return of<double>({0, 0, 0, 1, 0.5, 1.5, 2, -1, 1e300, 1e-300, NAN, HUGE_VAL, -HUGE_VAL});
  }
  std::size_t struct_size(std::size_t right) {
    if (!bad(6)) return right;
    return of<std::size_t>({0, 1, 7, 8, right - 1, right - 8, right + 1, right + 8, right + 64,
                            4096, SIZE_MAX, SIZE_MAX / 2 + 1});
  }
  const char* others() {
    return of<const char*>(
        {"{\"preset\": \"memoria\", \"n_local\": 16, \"chunk\": 8, \"n_mem\": 16, \"n_init\": 2, "
         "\"min_block\": 2, \"max_block\": 8}",
         "{\"scope\": \"head\", \"n_local\": 16, \"chunk\": 8, \"n_mem\": 16, \"n_init\": 2, "
         "\"min_block\": 2, \"max_block\": 8}",
         "{\"score\": \"max\", \"kv_dtype\": \"int8\", \"n_local\": 16, \"chunk\": 4, \"n_mem\": "
         "32, \"n_init\": 0, \"min_block\": 1, \"max_block\": 4, \"contiguity\": 0.3}",
         "{\"reweight\": \"broad\", \"n_local\": 16, \"chunk\": 8, \"n_init\": 2, \"min_block\": "
         "2, \"max_block\": 8, \"refine\": \"modularity\"}"});
  }
  const char* settings() {
    if (!bad(2)) return one_of(3) ? others() : kGoodSettings;
    return of<const char*>(
        {nullptr, "", "{", "[]", "null", "{}", "{\"n_local\": -1}", "{\"n_local\": 1e308}",
         "{\"n_local\": 9223372036854775807}", "{\"n_local\": 9007199254740993, \"chunk\": 8}",
         "{\"n_local\": 16, \"n_local\": 17}", "{\"no_such\": 1}", "{\"preset\": 3}", "\xff\xfe{}",
         "{\"segmenter\": \"\xc3\"}", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
         "{\"n_local\": 16, \"chunk\": 8, \"n_mem\": 16, \"host_bytes\": 4096}",
         "{\"n_local\": 16, \"chunk\": 8, \"segmenter\": \"given\"}"});
  }
  std::string folder() {
    if (bad(5))
      return of<std::string>({"", "/", "/proc/self/mem", (pools_.folder() / "no/such").string(),
                              pools_.model_path(), "/" + std::string(5000, 'x'),
                              (pools_.folder() / "\xff\xfe").string(), "/dev/null"});
    return (pools_.folder() / std::string(1, static_cast<char>('a' + below(6)))).string();
  }
  /// A text without an end, as the API takes them.
  Exactly<char> text() {
    static const std::string kTexts[] = {"The old man walked to the river. ",
                                         "Who?",
                                         "",
                                         std::string("a\0b", 3),
                                         "\xff\xfe\x80",
                                         "\xe2\x82",
                                         "\n\n",
                                         std::string(300, ' '),
                                         "<|im_start|>user\n",
                                         "\xf0\x9f\x98\x80 and so"};
    const std::string& t = kTexts[!hostile_ || one_of(2) ? 0 : below(std::size(kTexts))];
    Exactly<char> copy(t.size());
    std::copy(t.begin(), t.end(), copy.data());
    return copy;
  }
  Exactly<std::int64_t> ids(std::size_t most) {
    Exactly<std::int64_t> list(hostile_ ? below(most + 1) : 1 + below(most));
    for (std::size_t i = 0; i < list.size(); ++i) list[i] = static_cast<std::int64_t>(below(200));
    if (list.size() > 0 && bad(5)) list[below(list.size())] = integer(5);
    return list;
  }
  episodic_range range() {
    if (!hostile_) return {0, static_cast<std::int64_t>(1 + below(12))};  // of what was read first
    return {integer(60), integer(120)};
  }

  /// A range, where there are events and no bad one is wanted: one of them.
  template <class Handle>
  episodic_range one_of_events(std::int32_t (*getter)(Handle, std::int64_t, episodic_range*,
                                                      std::size_t, std::size_t*),
                               Handle handle) {
    Exactly<episodic_range> events(4);
    std::size_t n = 0;
    if (hostile_ || getter(handle, 1, events.data(), 4, &n) != EPISODIC_OK || n == 0)
      return range();
    return events[below(n)];
  }

  // -- handles

  template <class Handle>
  Handle handle(const char* kind, bool may_be_bad) {
    if (may_be_bad && hostile_) {
      if (one_of(10)) return nullptr;
      if (one_of(10)) return static_cast<Handle>(pools_.any_ever(random_()));
      if (one_of(30)) return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(random_()));
    }
    return static_cast<Handle>(pools_.any(kind, random_()));
  }
  /// The oldest, where there are several: what is called would soon be all refusals.
  template <class Handle>
  Handle surplus(const char* kind) {
    return static_cast<Handle>(pools_.surplus(kind, 2));
  }
  episodic_model model(bool bad = true) { return handle<episodic_model>("model", bad); }
  episodic_sequence sequence(bool bad = true) { return handle<episodic_sequence>("sequence", bad); }
  episodic_memory memory(bool bad = true) { return handle<episodic_memory>("memory", bad); }
  episodic_snapshot snapshot() { return handle<episodic_snapshot>("snapshot", true); }
  episodic_answer answer() { return handle<episodic_answer>("answer", true); }

  template <class Handle>
  std::int32_t kept(const char* kind, std::int32_t code, const Handle& given,
                    std::int32_t (*frees)(Handle)) {
    if (code != EPISODIC_OK) return code;
    pools_.keep(kind, given);
    if (void* old = pools_.surplus(kind, 6)) note("free", frees(static_cast<Handle>(old)));
    return code;
  }
  template <class Handle>
  std::int32_t freed(const char* kind, Handle handle, std::int32_t (*frees)(Handle)) {
    const std::int32_t code = frees(handle);
    if (code == EPISODIC_OK) pools_.gone(kind, handle);
    return code;
  }
  template <class Handle>
  void free_with(std::int32_t (*frees)(Handle), void* h) {
    note("free", frees(static_cast<Handle>(h)));
  }
  std::int32_t load_model(bool good) {
    episodic_model m = nullptr;
    const std::string path = good ? pools_.model_path() : folder();
    episodic_load_options o{};
    episodic_load_options_init(&o);
    o.device = good ? nullptr : of<const char*>({"cpu", "cpu", "", "cuda", "tpu", "\xff", nullptr});
    if (!good) o.device_number = static_cast<std::int32_t>(integer(2));
    Aged<episodic_load_options> options(o, good ? sizeof o : struct_size(sizeof o));
    return kept("model",
                episodic_model_load(path.c_str(), or_null(options.get()), good ? &m : or_null(&m)),
                m, episodic_model_free);
  }
  std::int32_t new_sequence(void* of_model) {
    episodic_sequence s = nullptr;
    const std::int32_t code = episodic_sequence_new(static_cast<episodic_model>(of_model), &s);
    if (code == EPISODIC_OK && !hostile_)
      note("sequence_attach", episodic_sequence_attach(s, kGoodSettings, 0));
    return kept("sequence", code, s, episodic_sequence_free);
  }
  std::int32_t new_memory(const char* how, episodic_shape shape) {
    episodic_memory m = nullptr;
    return kept("memory", episodic_memory_new(how, &shape, &m), m, episodic_memory_free);
  }

  // -- structs

  static episodic_shape good_shape() {
    episodic_shape s{};
    s.struct_size = sizeof s;
    s.n_layers = s.n_heads = 2;
    s.n_kv_heads = 1;
    s.head_dim = s.rotary_dim = 4;
    s.rotary_theta = 100;
    return s;
  }
  Aged<episodic_shape> shape() {
    return Aged<episodic_shape>(shape_fields(), struct_size(sizeof(episodic_shape)));
  }
  episodic_shape shape_fields() {
    static const double kFrequencies[2] = {1, 0.1};
    episodic_shape s = good_shape();
    if (bad(3)) s.n_layers = integer(4);
    if (bad(6)) s.n_heads = integer(8);
    if (bad(6)) s.n_kv_heads = integer(4);
    if (bad(6)) s.head_dim = integer(9);
    if (bad(4)) s.rotary_dim = one_of(2) ? s.head_dim : integer(5);
    if (bad(4)) s.rotary_theta = number();
    if (bad(4)) s.attention_factor = number();
    if (bad(4)) s.scale = static_cast<float>(number());
    if (bad(4)) s.softcap = static_cast<float>(number());
    if (bad(2)) s.interleaved = static_cast<std::int32_t>(integer(2));
    if (s.rotary_dim == 4 && one_of(4)) s.frequencies = kFrequencies;
    return s;
  }

  /// A view and what it is of.
  struct View {
    Exactly<char> bytes;
    Aged<episodic_view> view;
  };
  View view(std::int64_t n, std::int64_t heads, bool rotated, std::int64_t dim = Geometry{}.dim) {
    episodic_view v{};
    v.dtype = static_cast<std::int32_t>(below(3));
    v.rotated = rotated;
    v.n = n;
    v.heads = heads;
    v.dim = dim;
    if (one_of(2)) {  // a wider row
      v.head_stride = dim + static_cast<std::int64_t>(below(3));
      v.row_stride = heads * v.head_stride + static_cast<std::int64_t>(below(3));
    }
    const std::int64_t size = v.dtype == EPISODIC_FLOAT32 ? 4 : 2;
    const std::int64_t row = v.row_stride ? v.row_stride : heads * dim,
                       head = v.head_stride ? v.head_stride : dim;
    const std::int64_t elements = n > 0 ? (n - 1) * row + (heads - 1) * head + dim : 0;
    View made{Exactly<char>(static_cast<std::size_t>(elements * size)),
              Aged<episodic_view>(v, struct_size(sizeof v))};
    for (std::size_t i = 0; i < made.bytes.size(); i += 2)  // small numbers of each type
      made.bytes[i] = static_cast<char>(below(256)), made.bytes[i + 1] = 0x2e;
    v.data = or_null(made.bytes.data());
    if (bad(6)) {  // one field that cannot be
      switch (below(6)) {
        case 0:
          v.dtype = static_cast<std::int32_t>(of<std::int64_t>({-1, 3, 77, 1 << 30}));
          break;
        case 1:
          v.n = integer(5);
          break;
        case 2:
          v.heads = integer(5);
          break;
        case 3:
          v.dim = integer(6);
          break;
        case 4:
          v.row_stride = beyond();
          break;
        case 5:
          v.head_stride = beyond();
          break;
      }
    }
    std::memcpy(&v, made.view.get(), sizeof v.struct_size);
    std::memcpy(made.view.get(), &v, std::clamp(v.struct_size, sizeof v.struct_size, sizeof v));
    return made;
  }
  /// A stride: negative, or past all memory in any row but the first.
  std::int64_t beyond() {
    return of<std::int64_t>({-1, -5, kLowest, kHighest, kHighest / 2, std::int64_t{1} << 60});
  }

  /// Options with the texts that they point at.
  Aged<episodic_generate_options> options() {
    static const char* const kStops[] = {"river", "", "\xff", nullptr};
    episodic_generate_options o{};
    episodic_generate_options_init(&o);
    o.max_new = static_cast<std::int64_t>(below(4));
    if (bad(10)) o.max_new = of<std::int64_t>({-1, kLowest});
    if (one_of(4)) o.temperature = number();
    if (bad(4)) o.top_p = number();
    if (bad(4)) o.top_k = integer(4);
    if (bad(4)) o.min_p = number();
    if (bad(4)) o.repetition_penalty = number();
    if (one_of(3)) o.recall = 1;
    if (bad(4)) o.chat = static_cast<std::int32_t>(integer(2));
    if (one_of(4)) o.reread = one_of(2) ? -static_cast<std::int64_t>(below(4)) : integer(4);
    if (one_of(3)) o.ignore_eos = 1;
    o.seed = random_();
    if (bad(3)) {
      o.n_stop = count(below(5));
      o.stop = or_null(kStops);
    }
    return Aged<episodic_generate_options>(o, struct_size(sizeof o));
  }

  // -- callbacks: they stop the work, call back, or free what they are called for

  struct Meddler {
    Caller* caller;
    episodic_sequence sequence;
    int calls = 0;
  };
  static std::int32_t meddle(Meddler& m) {
    Caller& c = *m.caller;
    if (++m.calls > 40) return 1;
    if (c.one_of(6) && m.sequence) {
      const std::int32_t code = episodic_sequence_commit(m.sequence);
      if (code != EPISODIC_BUSY && code != EPISODIC_BAD_HANDLE)
        c.wrong("a callback used the sequence that it was called for");
    }
    if (c.one_of(40)) c.freed("sequence", m.sequence, episodic_sequence_free);
    if (c.one_of(10)) c.call_one_within();
    return c.one_of(6) ? 1 : 0;
  }
  static std::int32_t on_progress(std::int64_t done, std::int64_t total, void* user) {
    Meddler& m = *static_cast<Meddler*>(user);
    if (done < 0 || done > total) m.caller->wrong("progress says " + std::to_string(done));
    return meddle(m);
  }
  static std::int32_t on_token(std::int64_t, const char* text, std::size_t length, void* user) {
    if (length > 0 && !text) static_cast<Meddler*>(user)->caller->wrong("a token without text");
    return meddle(*static_cast<Meddler*>(user));
  }
  static std::int32_t on_token_of(std::size_t prompt, std::int64_t, const char*, std::size_t,
                                  void* user) {
    Meddler& m = *static_cast<Meddler*>(user);
    if (prompt > 3) m.caller->wrong("a token of no prompt");
    if (++m.calls > 40) return 1;
    if (m.caller->one_of(10)) m.caller->call_one_within();
    return m.caller->one_of(6) ? 1 : 0;
  }
  /// A call within a call, one level deep.
  void call_one_within() {
    if (within_) return;
    within_ = true;
    const bool before = hostile_;
    call_one();
    hostile_ = before;
    within_ = false;
  }

  // -- what every call must hold

  void wrong(std::string what) { seen_.wrong.push_back(std::move(what)); }
  void note(const std::string& name, std::int32_t code) {
    ++seen_.functions["episodic_" + name][code == EPISODIC_OK ? 0 : 1];
    ++seen_.codes[code];
    const std::string named = episodic_code_name(code);
    if (named == "?" || code == EPISODIC_INTERNAL)
      wrong(name + " returned " + std::to_string(code) + ": " + episodic_last_error());
    const std::string message = episodic_last_error();
    if (code != EPISODIC_OK && (message.empty() || message.find('\n') != std::string::npos))
      wrong(name + ": the message of " + named + " is no line: '" + message + "'");
  }
  /// A getter that copies: twice, first for its length. The buffer is now and then too small.
  template <class T, class Getter>
  std::int32_t get(Getter getter, std::size_t spare = 0) {
    std::size_t n = 0;
    const std::int32_t asked = getter(nullptr, 0, or_null(&n));
    if (asked != EPISODIC_OK) return asked;
    const std::size_t room = bad(3) ? below(n + 1) : n + spare;
    Exactly<T> buffer(room);
    return getter(buffer.data(), bad(15) ? SIZE_MAX : room, or_null(&n));
  }
  template <class T, class Handle>
  std::int32_t get_info(std::int32_t (*getter)(Handle, T*), Handle h) {
    Aged<T> info(T{}, struct_size(sizeof(T)));
    const std::int32_t code = getter(h, or_null(info.get()));
    if (!info.beyond_untouched()) wrong("a getter wrote beyond what it knows");
    return code;
  }

  /// Opens a step and attends in its layers, some or all or more than there are.
  std::int32_t begin_and_attend(episodic_memory m, std::int64_t n, std::int64_t layers) {
    const Geometry of = pools_.geometry(m);
    const bool rotated = one_of(4);
    std::int32_t code = episodic_memory_begin_step(m, n, one_of(2));
    note("memory_begin_step", code);
    for (std::int64_t layer = 0; layer < layers && code == EPISODIC_OK; ++layer) {
      View q = view(n, of.heads, rotated, of.dim), k = view(n, of.kv_heads, rotated, of.dim),
           v = view(n, of.kv_heads, false, of.dim), out = view(n, of.heads, false, of.dim);
      code = episodic_memory_attend(m, layer, q.view.get(), k.view.get(), v.view.get(),
                                    out.view.get());
      note("memory_attend", code);
    }
    return code;
  }
  /// How many layers to attend in: mostly all.
  std::int64_t layers_of(episodic_memory m) {
    const std::int64_t all = pools_.geometry(m).layers;
    return bad(4) ? static_cast<std::int64_t>(below(static_cast<std::size_t>(all) + 2)) : all;
  }

  /// A step of a memory from its beginning to its end, as a caller's decoder makes it.
  std::int32_t whole_step(episodic_memory m) {
    const auto n = static_cast<std::int64_t>(1 + below(8));
    begin_and_attend(m, n, layers_of(m));
    Exactly<float> surprise(static_cast<std::size_t>(n), 2.0f);
    for (std::size_t i = 0; i < surprise.size(); ++i)
      surprise[i] = static_cast<float>(below(100)) / 10;
    if (bad(10)) surprise[0] = static_cast<float>(number());
    return episodic_memory_end_step(m, surprise.data(), surprise.size());
  }

  /// A step as episodic.attach makes it: with its ids, or given up between two layers.
  std::int32_t step_with_ids(episodic_memory m, std::int64_t n) {
    if (one_of(6)) {
      const std::size_t layers = static_cast<std::size_t>(pools_.geometry(m).layers);
      begin_and_attend(m, n, static_cast<std::int64_t>(below(layers)));
      return episodic_memory_abandon_step(m);
    }
    if (!bad(4)) begin_and_attend(m, n, layers_of(m));
    Exactly<std::int64_t> list(static_cast<std::size_t>(n), 3);
    if (bad(5)) list[0] = integer(5);
    Exactly<float> surprise(static_cast<std::size_t>(n - 1), 1.0f), logits(8, 0.5f);
    if (bad(6)) logits[below(8)] = static_cast<float>(number());
    if (bad(6) && n > 1) surprise[0] = static_cast<float>(number());
    const std::int64_t vocab = bad(6) ? of<std::int64_t>({0, -1, kLowest}) : 8;
    return episodic_memory_end_step_ids(m, or_null(list.data()), count(list.size()),
                                        or_null(surprise.data()), or_null(logits.data()), vocab);
  }

  /// A memory for all layers of a model, as episodic.attach makes it: some have windows; of a model
  /// it says how the model's layers are. Some are kept, and then read from and opened again.
  std::int32_t made_as_attach_does(bool of_model) {
    const Geometry g = of_model ? kShippedModel : Geometry{};
    episodic_shape s{};
    s.struct_size = sizeof s;
    s.n_layers = g.layers;
    s.n_heads = g.heads;
    s.n_kv_heads = g.kv_heads;
    s.head_dim = s.rotary_dim = g.dim;
    s.rotary_theta = 10000;
    s.interleaved = one_of(4);  // the model's channels in another order
    Exactly<episodic_layer> layers(static_cast<std::size_t>(g.layers));
    for (std::size_t i = 0; i < layers.size(); ++i) {
      layers[i].struct_size = sizeof layers[i];
      layers[i].rotary_dim = g.dim;
      layers[i].rotary_theta = 10000;
      layers[i].interleaved = s.interleaved;
      if (!of_model && i == 1) layers[i].window = 1 + static_cast<std::int64_t>(below(12));
    }
    const std::string where = folder();
    episodic_memory_options o{};
    o.struct_size = sizeof o;
    o.settings = kGoodSettings;
    o.shape = &s;
    o.layers = layers.data();
    o.writes = 1;
    if (one_of(2)) o.folder = where.c_str();
    if (of_model) o.model = pools_.model_path().c_str();
    episodic_memory m = nullptr;
    std::int32_t code = episodic_memory_make(&o, &m);
    if (code != EPISODIC_OK) {  // a folder that has one opens with the settings that it has
      note("memory_make", code);
      o.settings = nullptr;
      o.writes = one_of(2);
      code = episodic_memory_make(&o, &m);
    }
    if (code != EPISODIC_OK) return code;
    pools_.set_geometry(m, g);
    for (int i = 0; i < 6; ++i)
      note("memory_end_step_ids", step_with_ids(m, static_cast<std::int64_t>(1 + below(8))));
    if (o.folder) note("memory_commit", episodic_memory_commit(m));
    return kept("memory", code, m, episodic_memory_free);
  }

  void add(const char* name, std::function<std::int32_t()> body) {
    calls_.emplace_back(name, std::move(body));
  }
  void list_calls();

  Pools& pools_;
  std::mt19937 random_;
  Seen seen_;
  std::vector<std::pair<std::string, std::function<std::int32_t()>>> calls_;
  bool within_ = false, hostile_ = false;
};

void Caller::list_calls() {
  // what needs no handle
  add("api_version", [] { return episodic_api_version() == EPISODIC_API_VERSION ? 0 : 105; });
  add("version", [] { return episodic_version()[0] != '\0' ? 0 : 105; });
  add("last_error", [] { return episodic_last_error() ? 0 : 105; });
  add("code_name",
      [this] { return episodic_code_name(static_cast<std::int32_t>(integer(200))) ? 0 : 105; });
  add("generate_options_init", [this] {
    Exactly<episodic_generate_options> o(1);
    return episodic_generate_options_init(or_null(o.data()));
  });
  add("load_options_init", [this] {
    Exactly<episodic_load_options> o(1);
    return episodic_load_options_init(or_null(o.data()));
  });
  // models
  add("model_load", [this] { return load_model(one_of(4)); });
  add("model_load", [this] {
    episodic_model m = nullptr;
    return kept("model", episodic_model_load(nullptr, nullptr, &m), m, episodic_model_free);
  });
  add("model_free", [this] {
    // the last one stays: what is made of models would soon be all refusals
    return freed("model", hostile_ ? model() : surplus<episodic_model>("model"),
                 episodic_model_free);
  });
  add("model_get_info", [this] { return get_info(episodic_model_get_info, model()); });
  add("model_encode", [this] {
    const episodic_model m = model();
    Exactly<char> t = text();
    const std::size_t n = count(t.size());
    return get<std::int64_t>([&](std::int64_t* to, std::size_t room, std::size_t* length) {
      return episodic_model_encode(m, or_null(t.data()), n, one_of(2), to, room, length);
    });
  });
  add("model_decode", [this] {
    const episodic_model m = model();
    Exactly<std::int64_t> list = ids(8);
    const std::size_t n = count(list.size());
    return get<char>(
        [&](char* to, std::size_t room, std::size_t* length) {
          return episodic_model_decode(m, or_null(list.data()), n, to, room, length);
        },
        1);
  });
  // sequences
  add("sequence_new", [this] {
    if (!bad(4)) return new_sequence(model());
    return episodic_sequence_new(model(), nullptr);
  });
  add("sequence_free", [this] {
    return freed("sequence", hostile_ ? sequence() : surplus<episodic_sequence>("sequence"),
                 episodic_sequence_free);
  });
  add("sequence_attach",
      [this] { return episodic_sequence_attach(sequence(), settings(), integer(2)); });
  add("sequence_attach_full_attention", [this] {
    if (!one_of(6)) return episodic_sequence_attach(sequence(), kGoodSettings, 0);
    return episodic_sequence_attach_full_attention(sequence(), integer(2));
  });
  add("sequence_open", [this] {
    const episodic_sequence s = sequence();
    const std::int32_t code = episodic_sequence_open(s, or_null(folder().c_str()), one_of(2),
                                                     one_of(3) ? settings() : nullptr, integer(2));
    if (code == EPISODIC_OK && one_of(2)) {  // something to go back behind
      Exactly<std::int64_t> list(24, 7);
      note("sequence_read_ids",
           episodic_sequence_read_ids(s, list.data(), list.size(), nullptr, nullptr, nullptr));
      note("sequence_commit", episodic_sequence_commit(s));
      note("sequence_pin", episodic_sequence_pin(s, integer(2), 1));
      note("sequence_rewind", episodic_sequence_rewind(s, integer(24)));
    }
    return code;
  });
  add("sequence_get_info", [this] { return get_info(episodic_sequence_get_info, sequence()); });
  for (int again = 0; again < 4; ++again) {  // these make the others worth calling
    add("sequence_read", [this] {
      Exactly<char> t = text();
      Meddler meddler{this, sequence()};
      std::int64_t read = 0;
      return episodic_sequence_read(meddler.sequence, or_null(t.data()), count(t.size()),
                                    one_of(3) ? on_progress : nullptr, &meddler, or_null(&read));
    });
    add("sequence_read_ids", [this] {
      Exactly<std::int64_t> list = ids(24);
      Meddler meddler{this, sequence()};
      std::int64_t read = 0;
      return episodic_sequence_read_ids(meddler.sequence, or_null(list.data()), count(list.size()),
                                        one_of(3) ? on_progress : nullptr, &meddler,
                                        or_null(&read));
    });
    add("memory_end_step", [this] { return whole_step(memory(false)); });
    add("memory_end_step_ids",
        [this] { return step_with_ids(memory(), static_cast<std::int64_t>(1 + below(8))); });
  }
  const auto answering = [this](const char* name, auto function, auto input) {
    add(name, [this, function, input] {
      auto t = input();
      Aged<episodic_generate_options> o = options();
      Meddler meddler{this, sequence()};
      episodic_answer a = nullptr;
      const std::int32_t code =
          function(meddler.sequence, or_null(t.data()), count(t.size()), or_null(o.get()),
                   one_of(2) ? on_token : nullptr, &meddler, or_null(&a));
      return kept("answer", code, a, episodic_answer_free);
    });
  };
  answering("sequence_ask", episodic_sequence_ask, [this] { return text(); });
  answering("sequence_generate", episodic_sequence_generate, [this] { return text(); });
  answering("sequence_generate_ids", episodic_sequence_generate_ids, [this] { return ids(12); });
  // answers
  add("answer_text", [this] {
    const episodic_answer a = answer();
    return get<char>([&](auto... to) { return episodic_answer_text(a, to...); }, 1);
  });
  add("answer_ids", [this] {
    const episodic_answer a = answer();
    return get<std::int64_t>([&](auto... to) { return episodic_answer_ids(a, to...); });
  });
  add("answer_reasoning", [this] {
    const episodic_answer a = answer();
    return get<char>([&](auto... to) { return episodic_answer_reasoning(a, to...); }, 1);
  });
  add("answer_finish", [this] {
    std::int32_t finish = -1;
    return episodic_answer_finish(answer(), or_null(&finish));
  });
  add("answer_passages_only", [this] {
    std::int32_t only = -1;
    return episodic_answer_passages_only(answer(), or_null(&only));
  });
  add("answer_recalled", [this] {
    const episodic_answer a = answer();
    return get<episodic_recalled>([&](auto... to) { return episodic_answer_recalled(a, to...); });
  });
  add("answer_passages", [this] {
    const episodic_answer a = answer();
    return get<episodic_passage>([&](auto... to) { return episodic_answer_passages(a, to...); });
  });
  add("answer_free", [this] { return freed("answer", answer(), episodic_answer_free); });
  // states of sequences
  add("sequence_fork", [this] {
    episodic_sequence s = nullptr;
    return kept("sequence", episodic_sequence_fork(sequence(), or_null(&s)), s,
                episodic_sequence_free);
  });
  add("sequence_snapshot", [this] {
    episodic_snapshot s = nullptr;
    return kept("snapshot", episodic_sequence_snapshot(sequence(), or_null(&s)), s,
                episodic_snapshot_free);
  });
  add("sequence_restore", [this] {
    const episodic_sequence s = sequence();
    if (hostile_) return episodic_sequence_restore(s, snapshot());
    episodic_snapshot before = nullptr;
    note("sequence_snapshot", episodic_sequence_snapshot(s, &before));
    note("sequence_read", episodic_sequence_read(s, "The old man", 11, nullptr, nullptr, nullptr));
    const std::int32_t code = episodic_sequence_restore(s, before);
    note("snapshot_free", episodic_snapshot_free(before));
    return code;
  });
  add("snapshot_free", [this] { return freed("snapshot", snapshot(), episodic_snapshot_free); });
  add("sequence_commit", [this] { return episodic_sequence_commit(sequence()); });
  add("sequence_rewind", [this] { return episodic_sequence_rewind(sequence(), integer(80)); });
  add("sequence_forget", [this] {
    const episodic_sequence s = sequence();
    std::size_t n = 0;
    return episodic_sequence_forget(s, one_of_events(episodic_sequence_events, s), or_null(&n));
  });
  add("sequence_pin", [this] {
    return episodic_sequence_pin(sequence(), integer(6), static_cast<std::int32_t>(integer(2)));
  });
  add("sequence_events", [this] {
    const episodic_sequence s = sequence();
    const std::int64_t first = integer(2);
    return get<episodic_range>(
        [&](auto... to) { return episodic_sequence_events(s, first, to...); });
  });
  add("sequence_text", [this] {
    const episodic_sequence s = sequence();
    const episodic_range tokens = range();
    return get<char>([&](auto... to) { return episodic_sequence_text(s, tokens, to...); }, 1);
  });
  add("sequence_logits", [this] {
    const episodic_sequence s = sequence();
    return get<float>([&](auto... to) { return episodic_sequence_logits(s, to...); });
  });
  add("run", [this] {
    const std::size_t n = below(4), size = struct_size(sizeof(episodic_step));
    const std::size_t stride = std::clamp(size, sizeof size, std::size_t{4096});
    Exactly<char> bytes(std::max<std::size_t>(n, 1) * stride);
    std::vector<Exactly<std::int64_t>> lists;
    std::vector<std::unique_ptr<Exactly<float>>> rows;
    const episodic_model m = model();
    episodic_model_info info{};
    info.struct_size = sizeof info;
    const bool known = episodic_model_get_info(m, &info) == EPISODIC_OK;
    for (std::size_t i = 0; i < n; ++i) {
      lists.push_back(ids(6));
      episodic_step s{};
      s.struct_size = bad(15) ? size + 8 : size;
      s.sequence = sequence();
      s.ids = or_null(lists.back().data());
      s.n = count(lists.back().size());
      s.decodes = one_of(2);
      if (known && one_of(2)) {
        rows.push_back(std::make_unique<Exactly<float>>(static_cast<std::size_t>(info.vocab_size)));
        s.logits = rows.back()->data();
      }
      std::memcpy(bytes.data() + i * stride, &s, std::min(stride, sizeof s));
    }
    const auto steps = reinterpret_cast<episodic_step*>(bytes.data());
    const std::int32_t code = episodic_run(m, or_null(steps), n == 0 ? 0 : count(n));
    for (std::size_t i = 0; i < n && code == EPISODIC_OK; ++i) {
      episodic_step s{};
      std::memcpy(&s, bytes.data() + i * stride, sizeof s);
      ++seen_.codes[s.code];
      if (s.code == EPISODIC_INTERNAL) wrong(std::string("run: ") + s.message);
      if ((s.code == EPISODIC_OK) != (s.message[0] == '\0'))
        wrong("run: a code beside its message");
    }
    return code;
  });
  add("generate_many", [this] {
    const std::size_t n = below(4), size = struct_size(sizeof(episodic_prompt));
    const std::size_t stride = std::clamp(size, sizeof size, std::size_t{4096});
    Exactly<char> bytes(std::max<std::size_t>(n, 1) * stride);
    std::vector<Exactly<char>> texts;
    std::vector<Exactly<std::int64_t>> lists;
    std::vector<Aged<episodic_generate_options>> all_options;
    for (std::size_t i = 0; i < n; ++i) {
      texts.push_back(text());
      lists.push_back(ids(12));
      all_options.push_back(options());
      episodic_prompt p{};
      p.struct_size = bad(15) ? size + 8 : size;
      p.sequence = sequence();
      if (one_of(2)) {
        p.ids = or_null(lists.back().data());
        p.n_ids = count(lists.back().size());
      }
      if (!p.ids || one_of(10)) {
        p.text = or_null(texts.back().data());
        p.length = count(texts.back().size());
      }
      p.options = or_null(all_options.back().get());
      if (!p.options) p.asks = 1;  // 128 tokens of an answer stay nowhere
      if (one_of(2)) p.asks = 1;
      std::memcpy(bytes.data() + i * stride, &p, std::min(stride, sizeof p));
    }
    Meddler meddler{this, nullptr};
    const std::int32_t code =
        episodic_generate_many(model(), or_null(reinterpret_cast<episodic_prompt*>(bytes.data())),
                               n == 0 ? 0 : count(n), on_token_of, &meddler);
    for (std::size_t i = 0; i < n && code == EPISODIC_OK; ++i) {
      episodic_prompt p{};
      std::memcpy(&p, bytes.data() + i * stride, sizeof p);
      ++seen_.codes[p.code];
      if (p.code == EPISODIC_INTERNAL) wrong(std::string("generate_many: ") + p.message);
      if ((p.code == EPISODIC_OK) != (p.message[0] == '\0') ||
          (p.code == EPISODIC_OK) != (p.answer != nullptr))
        wrong("generate_many: a code beside its answer");
      kept("answer", p.code, p.answer, episodic_answer_free);
    }
    return code;
  });
  // memories
  add("memory_new", [this] {
    Aged<episodic_shape> s = shape();
    episodic_memory m = nullptr;
    return kept("memory", episodic_memory_new(settings(), or_null(s.get()), or_null(&m)), m,
                episodic_memory_free);
  });
  add("memory_create", [this] {
    Aged<episodic_shape> s = shape();
    episodic_memory m = nullptr;
    const std::int32_t code = kept("memory",
                                   episodic_memory_create(or_null(folder().c_str()), settings(),
                                                          or_null(s.get()), or_null(&m)),
                                   m, episodic_memory_free);
    for (int i = 0; i < 8 && code == EPISODIC_OK && !hostile_; ++i)  // events that can be pinned
      note("memory_end_step", whole_step(m));
    if (code == EPISODIC_OK) {
      const episodic_range event = one_of_events(episodic_memory_events, m);
      note("memory_forget", episodic_memory_forget(m, event, nullptr));
      note("memory_pin", episodic_memory_pin(m, integer(2), 1));
    }
    return code;
  });
  add("memory_open", [this] {
    Aged<episodic_shape> s = shape();
    episodic_memory m = nullptr;
    return kept(
        "memory",
        episodic_memory_open(or_null(folder().c_str()), one_of(2), or_null(s.get()), or_null(&m)),
        m, episodic_memory_free);
  });
  add("memory_free", [this] {
    return freed("memory", hostile_ ? memory() : surplus<episodic_memory>("memory"),
                 episodic_memory_free);
  });
  add("memory_begin_step",
      [this] { return episodic_memory_begin_step(memory(), integer(9), one_of(2)); });
  add("memory_attend", [this] {
    const episodic_memory m = memory();
    episodic_memory_info info{};
    info.struct_size = sizeof info;
    if (episodic_memory_get_info(m, &info) != EPISODIC_OK || info.open_tokens == 0)
      info.open_tokens = static_cast<std::int64_t>(1 + below(4));
    const Geometry of = pools_.geometry(m);
    View q = view(info.open_tokens, of.heads, one_of(2), of.dim),
         k = view(info.open_tokens, of.kv_heads, one_of(2), of.dim),
         v = view(info.open_tokens, of.kv_heads, one_of(2), of.dim),
         out = view(info.open_tokens, of.heads, one_of(2), of.dim);
    return episodic_memory_attend(m, integer(3), or_null(q.view.get()), or_null(k.view.get()),
                                  or_null(v.view.get()),
                                  bad(10) ? q.view.get() : or_null(out.view.get()));
  });
  add("memory_end_step", [this] {
    Exactly<float> surprise(below(9), 1.0f);
    return episodic_memory_end_step(memory(), or_null(surprise.data()), count(surprise.size()));
  });
  add("memory_on_device", [this] {
    const episodic_shape fields = shape_fields();
    Aged<episodic_shape> s(fields, struct_size(sizeof fields));
    episodic_device_options o{};
    o.settings = kGoodSettings;
    o.shape = s.get();
    o.dtype = static_cast<std::int32_t>(bad(6) ? integer(4) : 0);
    o.device_number = static_cast<std::int32_t>(bad(6) ? integer(4) : 0);
    o.max_tokens = integer(6);
    Aged<episodic_device_options> options(o, struct_size(sizeof o));
    episodic_memory m = nullptr;
    const std::int32_t code = episodic_memory_on_device(or_null(options.get()), &m);
    episodic_memory_free(m);  // the other calls hand over rows of the host
    return code;
  });
  add("memory_use_stream", [this] { return episodic_memory_use_stream(memory(), nullptr); });
  add("memory_make", [this] { return made_as_attach_does(one_of(4)); });
  add("memory_make", [this] {
    const episodic_shape fields = shape_fields();
    Aged<episodic_shape> s(fields, struct_size(sizeof fields));
    const std::int64_t n = std::clamp<std::int64_t>(fields.n_layers, 1, 65536);
    Exactly<episodic_layer> layers(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < layers.size(); ++i) {
      episodic_layer& l = layers[i];
      l.struct_size = sizeof l;
      l.rotary_dim = 4;
      l.rotary_theta = 100;
      l.window = i == 1 && one_of(2) ? 6 : 0;  // beside the first, which the memory serves
      if (bad(6)) l.struct_size = static_cast<std::size_t>(of<std::int64_t>({0, 3, 63, 65}));
      if (bad(6)) l.window = integer(6);
      if (bad(6)) l.rotary_dim = integer(4);
      if (bad(6)) l.rotary_theta = number();
      if (bad(6)) l.attention_factor = number();
      if (bad(6)) l.scale = static_cast<float>(number());
      if (bad(6)) l.softcap = static_cast<float>(number());
    }
    episodic_memory_options o{};
    o.settings = settings();
    if (!one_of(4)) o.shape = s.get();
    if (!one_of(3)) o.layers = layers.data();
    const std::string where = folder();
    if (one_of(4)) o.folder = where.c_str();
    o.writes = static_cast<std::int32_t>(below(2));
    if (one_of(8)) o.model = one_of(4) ? where.c_str() : pools_.model_path().c_str();
    Aged<episodic_memory_options> options(o, struct_size(sizeof o));
    episodic_memory m = nullptr;
    return kept("memory", episodic_memory_make(or_null(options.get()), or_null(&m)), m,
                episodic_memory_free);
  });
  add("memory_abandon_step", [this] { return episodic_memory_abandon_step(memory()); });
  add("memory_ids", [this] {
    const episodic_memory m = memory();
    const episodic_range tokens{bad(2) ? integer(5) : 0, one_of(2) ? 0 : integer(9)};
    return get<std::int64_t>([&](auto... to) { return episodic_memory_ids(m, tokens, to...); });
  });
  add("memory_end_step_logits", [this] {
    const episodic_memory m = memory();
    const auto n = static_cast<std::int64_t>(1 + below(4));
    if (!bad(2)) begin_and_attend(m, n, layers_of(m));  // a step that only wants its end
    Exactly<std::int64_t> list(static_cast<std::size_t>(n), 3);
    if (bad(5)) list[0] = integer(5);
    std::int64_t vocab = 8, stride = 8 + static_cast<std::int64_t>(below(3));
    Exactly<float> logits(static_cast<std::size_t>((n - 1) * stride + vocab), 0.5f);
    if (bad(6)) logits[below(logits.size())] = static_cast<float>(number());
    if (bad(6)) vocab = of<std::int64_t>({0, -1, kLowest, stride + 1});
    if (bad(6)) stride = of<std::int64_t>({0, -1, kLowest, 7, kHighest, kHighest / 2});
    return episodic_memory_end_step_logits(m, or_null(list.data()),
                                           count(static_cast<std::size_t>(n)),
                                           or_null(logits.data()), vocab, stride);
  });
  add("memory_reset", [this] { return episodic_memory_reset(memory()); });
  add("memory_get_info", [this] { return get_info(episodic_memory_get_info, memory()); });
  add("memory_events", [this] {
    const episodic_memory m = memory();
    const std::int64_t first = integer(2);
    return get<episodic_range>([&](auto... to) { return episodic_memory_events(m, first, to...); });
  });
  add("memory_recalled", [this] {
    const episodic_memory m = memory();
    const std::int64_t lane = integer(3);
    return get<std::int64_t>([&](auto... to) { return episodic_memory_recalled(m, lane, to...); });
  });
  add("memory_snapshot", [this] {
    episodic_snapshot s = nullptr;
    return kept("snapshot", episodic_memory_snapshot(memory(), or_null(&s)), s,
                episodic_snapshot_free);
  });
  add("memory_restore", [this] {
    const episodic_memory m = memory();
    if (hostile_) return episodic_memory_restore(m, snapshot());
    episodic_snapshot before = nullptr;
    note("memory_snapshot", episodic_memory_snapshot(m, &before));
    note("memory_end_step", whole_step(m));
    const std::int32_t code = episodic_memory_restore(m, before);
    note("snapshot_free", episodic_snapshot_free(before));
    return code;
  });
  add("memory_fork", [this] {
    const episodic_memory from = memory();
    episodic_memory m = nullptr;
    const std::int32_t code = episodic_memory_fork(from, or_null(&m));
    if (code == EPISODIC_OK) pools_.set_geometry(m, pools_.geometry(from));
    return kept("memory", code, m, episodic_memory_free);
  });
  add("memory_commit", [this] { return episodic_memory_commit(memory()); });
  add("memory_forget", [this] {
    std::size_t n = 0;
    const episodic_memory m = memory();
    return episodic_memory_forget(m, one_of_events(episodic_memory_events, m), or_null(&n));
  });
  add("memory_pin", [this] {
    return episodic_memory_pin(memory(), integer(6), static_cast<std::int32_t>(integer(2)));
  });
  // folders
  add("folder_fork", [this] {
    return episodic_folder_fork(or_null(folder().c_str()), or_null(folder().c_str()));
  });
  add("folder_verify", [this] {
    const std::string at = folder();
    std::size_t damages = 0;
    return get<char>(
        [&](auto... to) {
          return episodic_folder_verify(or_null(at.c_str()), or_null(&damages), to...);
        },
        1);
  });
}

/// \param least seconds of a run that was not prolonged
bool goes_on(std::chrono::steady_clock::time_point begin, unsigned done, unsigned least) {
  if (done < least) return true;
  const char* seconds = std::getenv("EPISODIC_FUZZ_SECONDS");
  return seconds && std::chrono::steady_clock::now() - begin < std::chrono::seconds(atol(seconds));
}

void require_nothing_wrong(const Seen& seen) {
  for (const std::string& what : seen.wrong) {
    CAPTURE(what);
    CHECK(false);
  }
  REQUIRE(seen.wrong.empty());
}

TEST_CASE("c: calls in any order with any arguments return codes") {
  if (no_model()) return;
  Seen seen;
  std::set<std::string> called;
  const auto begin = std::chrono::steady_clock::now();
  std::size_t calls = 0;
  constexpr std::string_view kCannotFail[] = {"episodic_api_version", "episodic_version",
                                              "episodic_last_error", "episodic_code_name"};
  const auto can_fail = [&](const std::string& function) {
    return std::find(std::begin(kCannotFail), std::end(kCannotFail), function) ==
           std::end(kCannotFail);
  };
  const auto can_succeed = [](std::string_view function) {  // without a device, and on the host
    return function != "episodic_memory_on_device" && function != "episodic_memory_use_stream";
  };
  constexpr std::int32_t kCodes[] = {
      EPISODIC_OK,         EPISODIC_CONFIG, EPISODIC_FILE,          EPISODIC_DATA,
      EPISODIC_BAD_HANDLE, EPISODIC_BUSY,   EPISODIC_NULL_ARGUMENT, EPISODIC_TOO_SMALL};
  const auto often_said = [&](std::int32_t code) { return seen.codes[code] > 2; };
  const auto all_seen = [&] {  // each function says yes and no, which takes some luck
    if (!std::all_of(std::begin(kCodes), std::end(kCodes), often_said)) return false;
    return std::all_of(called.begin(), called.end(), [&](const std::string& function) {
      return (seen.functions[function][0] > 0 || !can_succeed(function)) &&
             (seen.functions[function][1] > 0 || !can_fail(function));
    });
  };
  constexpr unsigned kMostSeeds = 60;
  for (unsigned seed = 0; goes_on(begin, seed, 8) || (seed < kMostSeeds && !all_seen()); ++seed) {
    Pools pools(shipped_model_dir().string());
    Caller caller(pools, seed);
    caller.begin();
    for (int i = 0; i < 800; ++i, ++calls) caller.call_one();
    caller.end();
    seen.add(caller.seen());
    called = caller.functions();
    CAPTURE(seed);
    require_nothing_wrong(seen);
  }
  std::printf("%zu calls\n", calls);
  if (std::getenv("EPISODIC_FUZZ_SECONDS"))
    for (const auto& [name, n] : seen.functions)
      std::printf("%-40s %8zu ok %8zu failed\n", name.c_str(), n[0], n[1]);
  // every function of the header is among them, and says yes and no
  std::ifstream file(std::string(EPISODIC_SOURCE_DIR) + "/include/episodic/c/episodic.h");
  const std::string header(std::istreambuf_iterator<char>(file), {});
  std::size_t declared = 0;
  for (std::size_t at = 0; (at = header.find("\nEPISODIC_C_API ", at)) != std::string::npos; ++at) {
    const std::size_t bracket = header.find('(', at), name = header.rfind("episodic_", bracket);
    const std::string function = header.substr(name, bracket - name);
    CAPTURE(function);
    ++declared;
    REQUIRE(called.count(function) == 1);
    REQUIRE((!can_succeed(function) || seen.functions[function][0] > 0));
    REQUIRE((!can_fail(function) || seen.functions[function][1] > 0));
  }
  REQUIRE(declared == called.size());
  for (const std::int32_t code : kCodes) {
    CAPTURE(code);
    REQUIRE(often_said(code));
  }
}

TEST_CASE("c: threads that share all handles return codes") {
  if (no_model()) return;
  Seen seen;
  const auto begin = std::chrono::steady_clock::now();
  for (unsigned round = 0; goes_on(begin, round, 2); ++round) {
    Pools pools(shipped_model_dir().string());
    std::vector<std::unique_ptr<Caller>> callers;
    for (unsigned t = 0; t < 3; ++t)
      callers.push_back(std::make_unique<Caller>(pools, 1000 + 3 * round + t));
    callers[0]->begin();
    std::vector<std::thread> threads;
    for (const auto& caller : callers)
      threads.emplace_back([&caller] {
        for (int i = 0; i < 400; ++i) caller->call_one();
      });
    for (std::thread& t : threads) t.join();
    callers[0]->end();
    for (const auto& caller : callers) seen.add(caller->seen());
    CAPTURE(round);
    require_nothing_wrong(seen);
  }
}

TEST_CASE("c: two threads do not meet in one handle") {
  if (no_model()) return;
  const std::string path = shipped_model_dir().string();
  episodic_model model = nullptr;
  episodic_sequence sequence = nullptr;
  REQUIRE(episodic_model_load(path.c_str(), nullptr, &model) == EPISODIC_OK);
  REQUIRE(episodic_sequence_new(model, &sequence) == EPISODIC_OK);
  REQUIRE(episodic_sequence_attach(sequence, nullptr, 0) == EPISODIC_OK);
  std::array<int, 2> busy{}, ok{};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        const std::int32_t code =
            episodic_sequence_read(sequence, "The old man walked. ", 20, nullptr, nullptr, nullptr);
        ++(code == EPISODIC_BUSY ? busy : ok)[t];
        if (code != EPISODIC_OK && code != EPISODIC_BUSY) ok[t] = -1000;
      }
    });
  for (std::thread& t : threads) t.join();
  REQUIRE(ok[0] + ok[1] > 0);
  REQUIRE(ok[0] + ok[1] + busy[0] + busy[1] == 80);
  episodic_sequence_info info{};
  info.struct_size = sizeof info;
  REQUIRE(episodic_sequence_get_info(sequence, &info) == EPISODIC_OK);
  REQUIRE(info.tokens > 0);
  episodic_sequence_free(sequence);
  episodic_model_free(model);
}

}  // namespace c_calls_test
