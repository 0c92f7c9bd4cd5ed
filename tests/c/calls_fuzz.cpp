// SPDX-License-Identifier: Apache-2.0
// Calls of the C API in any order, with handles that are good, freed, of another kind or null: each
// returns a code, and none falls. Meant for the address sanitizer, and true without.
#include "episodic/c/episodic.h"

#include "support/model.hpp"
#include "support/test.hpp"

#include <array>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace c_calls_test {

/// Every handle that was ever given, freed or not, of any kind.
class Handles {
 public:
  explicit Handles(unsigned seed) : random_(seed) {}
  std::size_t below(std::size_t n) { return random_() % n; }
  bool one_of(std::size_t n) { return below(n) == 0; }
  template <class Handle>
  Handle any(std::vector<Handle>& of) {
    if (one_of(12)) return nullptr;
    if (one_of(12) && !all_.empty()) return static_cast<Handle>(all_[below(all_.size())]);
    if (one_of(40)) return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(random_()));
    return of.empty() ? nullptr : of[below(of.size())];
  }
  /// \param handle by reference: the call that gives it is an argument too
  template <class Handle>
  void keep(std::vector<Handle>& of, std::int32_t code, const Handle& handle) {
    if (code != EPISODIC_OK) return;
    all_.push_back(handle);
    of.push_back(handle);
    if (of.size() > 6) of.erase(of.begin());  // known to `all_` alone: may be in use, never freed
  }

 private:
  std::mt19937 random_;
  std::vector<void*> all_;
};

template <class T>
T* or_null(Handles& h, T* p) {
  return h.one_of(15) ? nullptr : p;
}

TEST_CASE("c: calls in any order with any handles return codes") {
  if (no_model()) return;
  const std::string path = shipped_model_dir().string();
  episodic_model loaded = nullptr;
  REQUIRE(episodic_model_load(path.c_str(), nullptr, &loaded) == EPISODIC_OK);
  std::array<std::size_t, 110> codes{};
  for (unsigned seed = 0; seed < 6; ++seed) {
    Handles h(seed);
    std::vector<episodic_model> models{loaded};
    std::vector<episodic_sequence> sequences;
    std::vector<episodic_memory> memories;
    std::vector<episodic_snapshot> snapshots;
    std::vector<episodic_answer> answers;
    const char* settings[] = {nullptr,
                              "{\"n_local\": 16, \"n_mem\": 16, \"chunk\": 8, \"n_init\": 2}", "{",
                              "{\"n_local\": -1}", "[]"};
    std::vector<float> numbers(4096, 0.25f);
    std::vector<std::int64_t> ids(64, 5);
    char text[64];
    // some that are good, so that calls come to what lies behind the handles
    for (int i = 0; i < 4; ++i) {
      episodic_sequence s = nullptr;
      h.keep(sequences, episodic_sequence_new(loaded, &s), s);
      REQUIRE(episodic_sequence_attach(s, settings[1], 0) == EPISODIC_OK);
      episodic_shape shape{};
      shape.struct_size = sizeof shape;
      shape.n_layers = shape.n_heads = 2;
      shape.n_kv_heads = 1;
      shape.head_dim = shape.rotary_dim = 4;
      shape.rotary_theta = 100;
      episodic_memory m = nullptr;
      h.keep(memories, episodic_memory_new(settings[1], &shape, &m), m);
    }
    for (int step = 0; step < 600; ++step) {
      std::int32_t code = EPISODIC_OK;
      std::size_t n = 0;
      std::int64_t count = 0;
      const char* setting = settings[h.below(5)];
      episodic_generate_options options;
      episodic_generate_options_init(&options);
      options.max_new = static_cast<std::int64_t>(h.below(3));
      if (h.one_of(8)) options.struct_size = h.below(200);
      if (h.one_of(10)) options.temperature = -1;
      if (h.one_of(10)) options.chat = 1;
      if (h.one_of(10)) options.n_stop = 2;
      const episodic_range range{static_cast<std::int64_t>(h.below(40)) - 5,
                                 static_cast<std::int64_t>(h.below(60)) - 5};
      episodic_shape shape{};
      shape.struct_size = h.one_of(10) ? h.below(80) : sizeof shape;
      shape.n_layers = static_cast<std::int64_t>(h.below(3));
      shape.n_heads = 2;
      shape.n_kv_heads = h.one_of(6) ? 3 : 1;
      shape.head_dim = 4;
      shape.rotary_dim = 4;
      shape.rotary_theta = 100;
      episodic_view view{};
      view.struct_size = sizeof view;
      view.data = or_null(h, numbers.data());
      view.n = static_cast<std::int64_t>(h.below(4));
      view.heads = 1 + static_cast<std::int64_t>(h.below(2));
      view.dim = 4;
      view.rotated = static_cast<std::int32_t>(h.below(2));
      switch (h.below(28)) {
        case 0: {
          episodic_sequence s = nullptr;
          h.keep(sequences, code = episodic_sequence_new(h.any(models), or_null(h, &s)), s);
          break;
        }
        case 1:
          code = episodic_sequence_attach(h.any(sequences), setting, 0);
          break;
        case 2:
          code = episodic_sequence_attach_full_attention(h.any(sequences), 0);
          break;
        case 3:
          code = episodic_sequence_read(h.any(sequences), "The old man. ", h.below(14), nullptr,
                                        nullptr, &count);
          break;
        case 4:
          ids[0] = static_cast<std::int64_t>(h.below(8)) - 1;
          code = episodic_sequence_read_ids(h.any(sequences), or_null(h, ids.data()), h.below(20),
                                            nullptr, nullptr, &count);
          break;
        case 5: {
          episodic_answer a = nullptr;
          h.keep(
              answers,
              code = episodic_sequence_ask(h.any(sequences), "Who?", h.below(5),
                                           or_null(h, &options), nullptr, nullptr, or_null(h, &a)),
              a);
          break;
        }
        case 6: {
          episodic_answer a = nullptr;
          h.keep(answers,
                 code = episodic_sequence_generate(h.any(sequences), "Who?", h.below(5),
                                                   or_null(h, &options), nullptr, nullptr, &a),
                 a);
          break;
        }
        case 7:
          code = episodic_answer_text(h.any(answers), or_null(h, text), h.below(sizeof text), &n);
          break;
        case 8:
          code = episodic_answer_ids(h.any(answers), ids.data(), h.below(3), &n);
          break;
        case 9:
          code = episodic_answer_free(h.any(answers));
          break;
        case 10: {
          episodic_sequence s = nullptr;
          h.keep(sequences, code = episodic_sequence_fork(h.any(sequences), &s), s);
          break;
        }
        case 11: {
          episodic_snapshot s = nullptr;
          h.keep(snapshots, code = episodic_sequence_snapshot(h.any(sequences), &s), s);
          break;
        }
        case 12:
          code = episodic_sequence_restore(h.any(sequences), h.any(snapshots));
          break;
        case 13:
          code = episodic_snapshot_free(h.any(snapshots));
          break;
        case 14:
          code = episodic_sequence_free(h.any(sequences));
          break;
        case 15:
          code = episodic_sequence_forget(h.any(sequences), range, &n);
          break;
        case 16:
          code = episodic_sequence_commit(h.any(sequences));
          break;
        case 17: {
          episodic_memory m = nullptr;
          h.keep(memories, code = episodic_memory_new(setting, or_null(h, &shape), &m), m);
          break;
        }
        case 18:
          code = episodic_memory_begin_step(h.any(memories),
                                            static_cast<std::int64_t>(h.below(5)) - 1, 0);
          break;
        case 19: {
          episodic_view out = view;
          out.data = or_null(h, numbers.data() + 2048);
          code = episodic_memory_attend(h.any(memories), static_cast<std::int64_t>(h.below(3)) - 1,
                                        or_null(h, &view), &view, &view, &out);
          break;
        }
        case 20:
          code = episodic_memory_end_step(h.any(memories), or_null(h, numbers.data()), h.below(4));
          break;
        case 21:
          code = episodic_memory_end_step_logits(h.any(memories), ids.data(), h.below(4),
                                                 numbers.data(),
                                                 static_cast<std::int64_t>(h.below(8)) - 1, 8);
          break;
        case 22: {
          episodic_memory m = nullptr;
          h.keep(memories, code = episodic_memory_fork(h.any(memories), &m), m);
          break;
        }
        case 23: {
          episodic_snapshot s = nullptr;
          h.keep(snapshots, code = episodic_memory_snapshot(h.any(memories), &s), s);
          break;
        }
        case 24:
          code = episodic_memory_restore(h.any(memories), h.any(snapshots));
          break;
        case 25:
          code = episodic_memory_free(h.any(memories));
          break;
        case 26:
          code =
              episodic_memory_recalled(h.any(memories), static_cast<std::int64_t>(h.below(4)) - 1,
                                       ids.data(), h.below(4), &n);
          break;
        case 27: {
          episodic_step one[2] = {};
          for (episodic_step& s : one) {
            s.struct_size = h.one_of(10) ? 1 : sizeof s;
            s.sequence = h.any(sequences);
            s.ids = or_null(h, ids.data());
            s.n = h.below(4);
          }
          code = episodic_run(h.any(models), or_null(h, one), 2);
          break;
        }
      }
      REQUIRE(code >= 0);
      REQUIRE(code < 110);
      REQUIRE(code != EPISODIC_INTERNAL);
      if (code != EPISODIC_OK) REQUIRE(episodic_last_error()[0] != '\0');
      ++codes[static_cast<std::size_t>(code)];
    }
    for (auto s : sequences) episodic_sequence_free(s);
    for (auto m : memories) episodic_memory_free(m);
    for (auto s : snapshots) episodic_snapshot_free(s);
    for (auto a : answers) episodic_answer_free(a);
  }
  REQUIRE(episodic_model_free(loaded) == EPISODIC_OK);
  for (const int code : {EPISODIC_OK, EPISODIC_CONFIG, EPISODIC_DATA, EPISODIC_BAD_HANDLE,
                         EPISODIC_NULL_ARGUMENT, EPISODIC_TOO_SMALL}) {
    CAPTURE(code);
    REQUIRE(codes[static_cast<std::size_t>(code)] > 5);
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
