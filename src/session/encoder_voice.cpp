// SPDX-License-Identifier: Apache-2.0
#include "encoder_voice.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "episodic/base/dtype.hpp"
#include "window_file.hpp"

namespace episodic {
namespace {

constexpr std::size_t kAtOnce = 16;     // windows, between two calls of the progress
constexpr std::size_t kUnsaved = 4096;  // windows encoded, till they are left in the folder

std::span<const std::int32_t> tokens_of(std::span<const std::int32_t> ids, std::size_t window) {
  const auto first = std::min(ids.size(), window * static_cast<std::size_t>(EncoderVoice::kStep));
  return ids.subspan(first,
                     std::min(ids.size() - first, static_cast<std::size_t>(EncoderVoice::kWindow)));
}

/// Tokens without text leave a gap.
std::string text_of(const Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  std::string text;
  StreamDecoder decoder(tokenizer);
  for (const std::int32_t id : ids)
    if (id >= 0) text += decoder.push(id);
  return text + decoder.finish();
}

/// The inner product with a vector in float16 whose numbers are finite: those are floats with
/// another exponent.
double product(std::span<const float> a, std::span<const std::uint16_t> b) {
  constexpr std::size_t kSums = 16;
  constexpr float kExponent = 0x1p112f;
  std::array<float, kSums> sums{};
  const auto add = [&](std::size_t i, std::size_t sum) {
    const std::uint32_t bits = (b[i] & 0x8000U) << 16 | (b[i] & 0x7fffU) << 13;
    sums[sum] += a[i] * (std::bit_cast<float>(bits) * kExponent);
  };
  std::size_t i = 0;
  for (; i + kSums <= b.size(); i += kSums)
    for (std::size_t s = 0; s < kSums; ++s) add(i + s, s);
  for (; i < b.size(); ++i) add(i, i % kSums);
  double total = 0;
  for (const float sum : sums) total += static_cast<double>(sum);
  return total;
}

}  // namespace

std::int64_t EncoderVoice::windows(std::int64_t tokens) {
  if (tokens == 0) return 0;
  return 1 + (std::max<std::int64_t>(0, tokens - kWindow) + kStep - 1) / kStep;
}

std::int64_t EncoderVoice::window_of(const TokenRange& event, std::int64_t windows) {
  const std::int64_t middle = (event.start + event.end) / 2;
  return std::clamp<std::int64_t>((middle - kWindow / 2 + kStep / 2) / kStep, 0, windows - 1);
}

/// Gives up the windows from so many on.
void EncoderVoice::cut(std::size_t windows) {
  WindowStore& store = vectors_->impl_->store;
  for (std::size_t w = windows; w < windows_.size(); ++w)
    store.release(windows_[w].digest, windows_[w].vector);
  windows_.resize(std::min(windows, windows_.size()));
  while (!missing_.empty() && missing_.back().window >= windows) missing_.pop_back();
}

void EncoderVoice::follow(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                          std::int64_t same) {
  // windows that end within what is the same stay; a window that the text's end cut does not
  cut(same < kWindow ? 0 : static_cast<std::size_t>((same - kWindow) / kStep + 1));
  WindowStore& store = vectors_->impl_->store;
  const auto count = static_cast<std::size_t>(windows(std::ssize(ids)));
  std::int64_t reused = 0;
  for (std::size_t w = windows_.size(); w < count; ++w) {
    std::string text = text_of(tokenizer, tokens_of(ids, w));
    Window window{TextDigest::of(text)};
    if (text.find_first_not_of(" \t\r\n") != std::string::npos) {
      window.vector = store.hold(window.digest);
      if (window.vector)
        ++reused;
      else
        missing_.push_back({w, std::move(text)});
    }
    windows_.push_back(window);
  }
  store.count_reused(reused);
}

void EncoderVoice::take_from_folder() {
  const std::optional<WindowFile> file = WindowFile::read(folder_, vectors_->encoder());
  if (!file) return;
  WindowStore& store = vectors_->impl_->store;
  const auto width = static_cast<std::size_t>(vectors_->encoder().width());
  std::map<TextDigest, std::size_t> places;
  for (std::size_t i = 0; i < file->digests.size(); ++i) places.emplace(file->digests[i], i);
  const std::size_t before = missing_.size();
  std::erase_if(missing_, [&](const Missing& m) {
    Window& window = windows_[m.window];
    const auto at = places.find(window.digest);
    if (at == places.end()) return false;
    window.vector =
        store.add(window.digest, std::span(file->numbers).subspan(at->second * width, width));
    return window.vector != nullptr;
  });
  store.count_reused(static_cast<std::int64_t>(before - missing_.size()));
}

void EncoderVoice::leave_in_folder() {
  WindowFile file;
  std::set<TextDigest> there;
  for (const Window& w : windows_) {
    if (!w.vector || !there.insert(w.digest).second) continue;
    file.digests.push_back(w.digest);
    file.numbers.insert(file.numbers.end(), w.vector->numbers.begin(), w.vector->numbers.end());
  }
  if (file.digests.empty()) return;
  leaves_ = file.write(folder_, vectors_->encoder());
  if (leaves_) unsaved_ = false;
}

/// Another holder may have encoded some of them meanwhile, and a text may stand there twice.
void EncoderVoice::encode_some(std::span<const Missing> some) {
  WindowVectors::Impl& shared = *vectors_->impl_;
  const std::lock_guard lock(shared.encoding);
  std::vector<std::string> texts;
  std::vector<const Missing*> unknown;
  std::set<TextDigest> asked;
  for (const Missing& m : some) {
    Window& window = windows_[m.window];
    if (!window.vector) window.vector = shared.store.hold(window.digest);
    if (window.vector) continue;
    unknown.push_back(&m);
    if (asked.insert(window.digest).second) texts.push_back(m.text);
  }
  shared.store.count_reused(static_cast<std::int64_t>(some.size() - texts.size()));
  if (texts.empty()) return;
  const std::vector<float> all = shared.encoder->encode_all(texts);
  shared.store.count_encoded(std::ssize(texts));
  const auto width = static_cast<std::size_t>(shared.encoder->width());
  std::map<TextDigest, std::vector<std::uint16_t>> made;
  std::size_t next = 0;
  for (const Missing* m : unknown) {
    Window& window = windows_[m->window];
    const auto [at, is_new] = made.try_emplace(window.digest);
    if (is_new)
      for (const float x : std::span(all).subspan(width * next++, width))
        at->second.push_back(to_float16(x));
    window.vector = shared.store.add(window.digest, at->second);
  }
}

bool EncoderVoice::encode(const ProgressCallback& progress) {
  const auto leave_out_known = [&] {
    std::erase_if(missing_, [&](const Missing& m) { return windows_[m.window].vector != nullptr; });
  };
  leave_out_known();  // of a call that did not come to its end
  const bool keeps = !folder_.dir.empty();
  if (!missing_.empty() && keeps && vectors_->impl_->store.has_room()) take_from_folder();
  if (keeps && !windows_.empty() && !WindowFile::is_there(folder_, vectors_->encoder()))
    unsaved_ = true;
  const std::size_t all = missing_.size();
  std::size_t done = 0, saved = 0;
  while (done < all) {
    if (!vectors_->impl_->store.has_room()) {
      vectors_->impl_->store.count_refused(static_cast<std::int64_t>(all - done));
      break;
    }
    const std::size_t n = std::min(kAtOnce, all - done);
    encode_some(std::span(missing_).subspan(done, n));
    done += n;
    unsaved_ = true;
    if (keeps && leaves_ && done - saved >= kUnsaved) {
      leave_in_folder();
      saved = done;
    }
    if (progress && !progress(static_cast<std::int64_t>(done), static_cast<std::int64_t>(all)))
      break;
  }
  leave_out_known();
  if (unsaved_ && keeps && leaves_) leave_in_folder();
  return missing_.empty();
}

std::vector<double> EncoderVoice::score(std::string_view question,
                                        std::span<const TokenRange> events) const {
  const std::vector<float> asked = vectors_->encoder().encode(question);
  std::vector<double> of_windows;
  of_windows.reserve(windows_.size());
  for (const Window& w : windows_)
    of_windows.push_back(w.vector ? product(asked, w.vector->numbers) : -1);
  std::vector<double> scores;
  scores.reserve(events.size());
  for (const TokenRange& e : events)
    scores.push_back(
        of_windows.empty()
            ? -1
            : of_windows[static_cast<std::size_t>(window_of(e, std::ssize(of_windows)))]);
  return scores;
}

std::int64_t EncoderVoice::bytes() const {
  const std::int64_t held = std::count_if(windows_.begin(), windows_.end(),
                                          [](const Window& w) { return w.vector != nullptr; });
  return static_cast<std::int64_t>(sizeof(Window)) * std::ssize(windows_) +
         held * vectors_->impl_->store.bytes_of_one();
}

}  // namespace episodic
