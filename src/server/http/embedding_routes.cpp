// SPDX-License-Identifier: Apache-2.0
// OpenAI's embeddings, of the sentence encoder that the server was given.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "base/strict_json.hpp"
#include "episodic/model/sentence_encoder.hpp"
#include "http/routes.hpp"
#include "protocol/fields.hpp"

namespace episodic::server {
namespace {

constexpr std::size_t kMostTexts = 2048;  // as OpenAI
constexpr std::size_t kBetweenLooks = 8;  // texts, until the client is looked after

std::string base64(std::span<const float> numbers) {
  static_assert(std::endian::native == std::endian::little);
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<unsigned char> bytes(numbers.size_bytes());
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t j = 0; j < 3; ++j)
      three = three << 8 | (i + j < bytes.size() ? bytes[i + j] : 0U);
    for (std::size_t j = 0; j < 4; ++j)
      text += i + j <= bytes.size() ? kDigits[three >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

std::vector<std::string> texts_of(Fields& fields) {
  const nlohmann::json* input = fields.find("input");
  if (!input) Fields::wrong("input", "is missing");
  if (input->is_string()) return {input->get<std::string>()};
  if (!input->is_array() || input->empty() || input->size() > kMostTexts ||
      !std::all_of(input->begin(), input->end(), [](const auto& x) { return x.is_string(); }))
    Fields::wrong("input", fmt::format("must be a text or a list of 1 to {} texts; tokens are not "
                                       "read, for each encoder has its own",
                                       kMostTexts));
  return input->get<std::vector<std::string>>();
}

/// \return tokens of all texts together \throws RequestError for one that is too long
std::int64_t count_texts(const SentenceEncoder& encoder, std::span<const std::string> texts,
                         bool cuts) {
  std::int64_t all = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::int64_t tokens = encoder.count_tokens(texts[i]);
    if (!cuts && tokens > encoder.max_tokens())
      throw RequestError(
          fmt::format("text {} has {} tokens, of which the encoder reads {}; shorten "
                      "it, or give \"truncate_prompt_tokens\": -1 to leave the rest "
                      "out",
                      i, tokens, encoder.max_tokens()),
          "input", 400, "context_length_exceeded");
    all += std::min(tokens, encoder.max_tokens());
  }
  return all;
}

void embed(RouteContext& context, Exchange& exchange, httplib::Response& response) {
  const SentenceEncoder* encoder = context.options.encoder.get();
  if (!encoder)
    throw RequestError("this server has no encoder of texts; it was started without one", "", 404,
                       "model_not_found");
  std::vector<std::string> texts;
  bool as_base64 = false, cuts = false;
  {
    const Body body(exchange.body);
    Fields fields(*body);
    texts = texts_of(fields);
    const std::string format = fields.text("encoding_format", "float");
    if (format != "float" && format != "base64")
      Fields::wrong("encoding_format", "must be float or base64");
    as_base64 = format == "base64";
    if (fields.count("dimensions", 1, encoder->width()) != encoder->width())
      Fields::wrong("dimensions",
                    fmt::format("must be {}, the encoder's, or left out", encoder->width()));
    if (fields.find("truncate_prompt_tokens")) {
      if (fields.count("truncate_prompt_tokens", -1, -1) != -1)
        Fields::wrong("truncate_prompt_tokens", "must be -1: all that the encoder reads");
      cuts = true;
    }
    fields.require_known();
  }
  exchange.body = {};
  exchange.connection.release_body();
  const std::int64_t tokens = count_texts(*encoder, texts, cuts);
  const auto width = static_cast<std::size_t>(encoder->width());
  Json list = Json::array();
  for (std::size_t first = 0; first < texts.size(); first += kBetweenLooks) {
    if (exchange.connection.client() == Connection::Client::gone) return;
    const auto some =
        std::span(texts).subspan(first, std::min(kBetweenLooks, texts.size() - first));
    std::vector<float> vectors;
    {
      const std::lock_guard lock(context.encoding);
      vectors = encoder->encode_all(some);
    }
    for (std::size_t i = 0; i < some.size(); ++i) {
      const auto vector = std::span(vectors).subspan(i * width, width);
      Json one{{"object", "embedding"}, {"index", first + i}};
      one["embedding"] =
          as_base64 ? Json(base64(vector)) : Json(std::vector<float>(vector.begin(), vector.end()));
      list.push_back(std::move(one));
    }
  }
  answer_json(response, {{"object", "list"},
                         {"data", std::move(list)},
                         {"model", context.options.encoder_name},
                         {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}});
}

}  // namespace

void add_embedding_routes(Router& router, RouteContext& context) {
  router.add("POST", "/embeddings", [&context](Exchange& exchange, const Target&, auto& response) {
    embed(context, exchange, response);
  });
}

}  // namespace episodic::server
