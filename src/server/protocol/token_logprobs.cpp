// SPDX-License-Identifier: Apache-2.0
#include "protocol/token_logprobs.hpp"

namespace episodic::server {

std::string TokenTexts::bytes(std::int64_t id) const {
  const std::string_view bytes = trie_->bytes(id);
  return bytes.empty() ? tokenizer_->token(id) : std::string(bytes);
}

Json TokenTexts::token(const TokenLogprob& token) const {
  const std::string text = bytes(token.id);
  Json list = Json::array();
  for (const char c : text) list.push_back(static_cast<unsigned char>(c));
  return {{"token", text}, {"logprob", token.logprob}, {"bytes", std::move(list)}};
}

Json TokenTexts::token(const Logprobs& one) const {
  Json json = token(one.token);
  json["top_logprobs"] = Json::array();
  for (const TokenLogprob& top : one.top) json["top_logprobs"].push_back(token(top));
  return json;
}

void TextLogprobs::add(const Logprobs& token) {
  if (!dropped_) waiting_.push_back(token);
}

Json TextLogprobs::behind(std::size_t bytes) {
  Json all = Json::array();
  if (!texts_.asked()) return all;
  bytes_ += bytes;
  while (!waiting_.empty() && texts_.text_bytes(waiting_.front().token.id) <= bytes_) {
    bytes_ -= texts_.text_bytes(waiting_.front().token.id);
    all.push_back(texts_.token(waiting_.front()));
    waiting_.pop_front();
  }
  return all;
}

Json TextLogprobs::rest() {
  Json all = Json::array();
  for (const Logprobs& token : waiting_) all.push_back(texts_.token(token));
  waiting_.clear();
  return all;
}

void TextLogprobs::keep(std::size_t bytes) {
  std::size_t kept = 0, covered = 0;
  for (auto token = waiting_.rbegin(); token != waiting_.rend() && covered < bytes; ++token, ++kept)
    covered += texts_.text_bytes(token->token.id);
  while (waiting_.size() > kept) waiting_.pop_front();
  bytes_ = 0;
}

void TextLogprobs::drop() {
  dropped_ = true;
  waiting_.clear();
}

}  // namespace episodic::server
