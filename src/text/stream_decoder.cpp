// SPDX-License-Identifier: Apache-2.0
#include "episodic/text/tokenizer.hpp"

#include <algorithm>

#include "utf8.hpp"

namespace episodic {
namespace {
// Ids decoded anew with each push: enough context for decoders that treat the first token
// differently, few enough to cost nothing.
constexpr std::size_t kLongestWindow = 32, kKept = 16;
}  // namespace

std::string StreamDecoder::push(std::int64_t id) {
  const std::vector<std::int64_t> one{id};
  if (const std::string shown = tokenizer_->decode(one, false);
      shown != tokenizer_->decode(one, true)) {  // special
    if (std::find(shown_.begin(), shown_.end(), id) == shown_.end()) return {};
    return finish() + shown;  // what was held back can no longer be completed
  }
  ids_.push_back(id);
  const std::string text = tokenizer_->decode(ids_);
  const std::size_t certain = text.size() - text::utf8_incomplete_tail(text);
  std::string out;
  if (certain > emitted_) {
    out = text.substr(emitted_, certain - emitted_);
    emitted_ = certain;
  }
  if (ids_.size() > kLongestWindow && emitted_ == text.size()) {
    ids_.erase(ids_.begin(), ids_.end() - static_cast<std::ptrdiff_t>(kKept));
    emitted_ = tokenizer_->decode(ids_).size();
  }
  return out;
}

std::string StreamDecoder::finish() {
  const std::string text = tokenizer_->decode(ids_);
  std::string out = text.substr(std::min(emitted_, text.size()));
  ids_.clear();
  emitted_ = 0;
  return out;
}

}  // namespace episodic
