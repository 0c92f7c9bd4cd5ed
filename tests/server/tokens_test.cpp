// SPDX-License-Identifier: Apache-2.0
// /tokenize, /detokenize, /apply-template and /v1/embeddings.
#include "support/test.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "episodic/model/sentence_encoder.hpp"
#include "serving.hpp"

using namespace serving;

namespace {

fs::path tiny_encoder() {
  return fs::path(EPISODIC_SOURCE_DIR) / "tests/model/sentence_encoder/tiny";
}

std::vector<float> from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  REQUIRE(text.size() % 4 == 0);
  std::string bytes;
  unsigned bits = 0;
  int n = 0;
  for (const char c : text) {
    if (c == '=') break;
    REQUIRE(digits.find(c) != std::string::npos);
    bits = bits << 6 | static_cast<unsigned>(digits.find(c));
    if ((n += 6) >= 8) bytes += static_cast<char>(bits >> (n -= 8) & 255);
  }
  REQUIRE(bytes.size() % sizeof(float) == 0);
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

}  // namespace

TEST_CASE("tokens: texts become tokens and come back") {
  const TempDir dir;
  make_chat_model(dir / "model");
  const auto engine = engine_of(dir / "model");
  SchedulerOptions limits;
  limits.max_tokens = 5000;
  Service service(*engine, limits);
  const Running running(service);
  const Tokenizer& tokenizer = engine->tokenizer();
  const auto ask = [&](const char* path, const json& body) {
    const auto [status, answer] = post(running, path, body.dump());
    INFO(answer.dump());
    REQUIRE(status == 200);
    return answer;
  };
  const std::string text = "The king said: \xC3\xA9t\xC3\xA9, \xF0\x9F\x98\x80!";
  const auto plain = tokenizer.encode(text, false), around = tokenizer.encode(text, true);
  REQUIRE(plain != around);
  // each engine's default under its own name, and the switch by either name
  json answer = ask("/tokenize", {{"content", text}});
  REQUIRE(answer["tokens"] == plain);
  REQUIRE(answer["count"] == plain.size());
  REQUIRE(answer["max_model_len"] == 5000);
  REQUIRE(ask("/v1/tokenize", {{"prompt", text}})["tokens"] == around);
  REQUIRE(ask("/tokenize", {{"content", text}, {"add_special", true}})["tokens"] == around);
  REQUIRE(ask("/tokenize", {{"prompt", text}, {"add_special_tokens", false}})["tokens"] == plain);
  REQUIRE(ask("/tokenize", {{"prompt", text}, {"add_special", false}})["tokens"] == plain);
  REQUIRE(ask("/tokenize", {{"content", ""}})["count"] == 0);
  // a special token's text is that token, unless it is not to be
  REQUIRE(ask("/tokenize", {{"content", "<|eos|>"}})["count"] == 1);
  REQUIRE(ask("/tokenize", {{"content", "<|eos|>"}, {"parse_special", false}})["count"].get<int>() >
          1);
  // pieces: texts, or bytes where a token is no text of its own
  answer = ask("/tokenize", {{"content", text}, {"with_pieces", true}});
  std::string joined;
  bool has_bytes = false;
  for (const json& token : answer["tokens"]) {
    const json& piece = token["piece"];
    if (piece.is_string()) joined += piece.get<std::string>();
    if (!piece.is_array()) continue;
    has_bytes = true;
    for (const json& byte : piece) joined += static_cast<char>(byte.get<int>());
  }
  REQUIRE(joined == text);
  REQUIRE(has_bytes);
  answer = ask("/tokenize", {{"prompt", text}, {"return_token_strs", true}});
  REQUIRE(answer["token_strs"].size() == around.size());
  REQUIRE(answer["token_strs"][1] == tokenizer.token(around[1]));

  answer = ask("/detokenize", {{"tokens", plain}});
  REQUIRE(answer["content"] == text);
  REQUIRE(answer["prompt"] == text);
  REQUIRE(ask("/v1/detokenize", {{"tokens", json::array()}})["content"] == "");

  const json chat{{"messages", {say("system", "Be brief."), say("user", "Who is it?")}}};
  const std::string rendered = ask("/apply-template", chat)["prompt"];
  REQUIRE(rendered.ends_with("system: Be brief.\nuser: Who is it?\nassistant:"));
  REQUIRE(ask("/tokenize", chat)["tokens"] == tokenizer.encode(rendered, false));

  const auto refused = [&](const char* path, const json& body, const char* field) {
    INFO(body.dump());
    const auto [status, error] = post(running, path, body.dump());
    REQUIRE(status == 400);
    REQUIRE(error["error"]["param"] == field);
  };
  refused("/tokenize", json::object(), "content");
  refused("/tokenize", {{"content", "a"}, {"prompt", "b"}}, "content");
  refused("/tokenize", {{"content", 5}}, "content");
  refused("/tokenize", {{"content", "a"}, {"what", 1}}, "what");
  refused("/tokenize", {{"content", "a"}, {"add_special", true}, {"parse_special", false}},
          "parse_special");
  refused("/tokenize", {{"messages", json::array()}}, "messages");
  refused("/detokenize", json::object(), "tokens");
  refused("/detokenize", {{"tokens", {1, "a"}}}, "tokens");
  refused("/detokenize", {{"tokens", {-1}}}, "tokens");
  refused("/detokenize", {{"tokens", {18446744073709551615U}}}, "tokens");
  refused("/detokenize", {{"tokens", {100'000'000}}}, "tokens");
  refused("/apply-template", json::object(), "messages");
}

TEST_CASE("tokens: a conversation's tools are in its text and its tokens") {
  const TempDir dir;
  make_chat_model(
      dir / "model",
      "{% if tools %}You may call <tools>{% for t in tools %}{{ t | tojson }}{% endfor %}"
      "</tools> as <tool_call>{\"name\": ..., \"arguments\": ...}</tool_call>\n{% endif %}"
      "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls %}"
      "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\n{% endfor %}");
  const auto engine = engine_of(dir / "model");
  Service service(*engine);
  const Running running(service);
  json chat{{"messages", {say("user", "Who is it?")}}};
  chat["tools"] = json::parse(R"([{"type": "function", "function": {"name": "knock",
    "parameters": {"type": "object", "properties": {}}}}])");
  const std::string text =
      post(running, "/apply-template", chat.dump()).second["prompt"].get<std::string>();
  REQUIRE(text.starts_with("You may call <tools>"));
  REQUIRE(text.find("\"knock\"") != std::string::npos);
  REQUIRE(post(running, "/tokenize", chat.dump()).second["tokens"] ==
          engine->tokenizer().encode(text, false));
  chat["tool_choice"] = "none";
  const std::string without =
      post(running, "/apply-template", chat.dump()).second["prompt"].get<std::string>();
  REQUIRE(without.starts_with("user: Who is it?"));
  REQUIRE(without.find("knock") == std::string::npos);
}

TEST_CASE("tokens: embeddings where there is an encoder") {
  const auto engine = engine_of(shipped());
  Service service(*engine);
  ServerOptions options;
  options.encoder = std::make_shared<const SentenceEncoder>(SentenceEncoder::open(tiny_encoder()));
  options.encoder_name = "tiny-encoder";
  const SentenceEncoder& encoder = *options.encoder;
  const Running running(service, options);
  const auto ask = [&](const json& body) {
    const auto [status, answer] = post(running, "/v1/embeddings", body.dump());
    INFO(answer.dump().substr(0, 500));
    REQUIRE(status == 200);
    REQUIRE(answer["object"] == "list");
    REQUIRE(answer["model"] == "tiny-encoder");
    return answer;
  };
  const std::vector<std::string> texts{"Who closed the door?", "", "the king", "said the queen"};
  json answer = ask({{"input", texts}, {"model", "any"}, {"user", "me"}});
  REQUIRE(answer["data"].size() == texts.size());
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const json& one = answer["data"][i];
    REQUIRE(one["object"] == "embedding");
    REQUIRE(one["index"] == i);
    const std::vector<float> wanted = encoder.encode(texts[i]);
    const auto got = one["embedding"].get<std::vector<float>>();
    REQUIRE(got.size() == wanted.size());
    for (std::size_t c = 0; c < wanted.size(); ++c) REQUIRE(std::abs(got[c] - wanted[c]) < 1e-5F);
    tokens += encoder.count_tokens(texts[i]);
  }
  REQUIRE(answer["usage"] == json{{"prompt_tokens", tokens}, {"total_tokens", tokens}});
  // the bits of the list
  const json one = ask({{"input", texts[0]}});
  const json coded = ask({{"input", texts[0]}, {"encoding_format", "base64"}});
  REQUIRE(from_base64(coded["data"][0]["embedding"]) ==
          one["data"][0]["embedding"].get<std::vector<float>>());
  // more than are encoded at a time
  answer = ask({{"input", std::vector<std::string>(21, "the king")}});
  REQUIRE(answer["data"].size() == 21);
  REQUIRE(answer["data"][20]["index"] == 20);
  REQUIRE(ask({{"input", "a"}, {"dimensions", encoder.width()}})["data"].size() == 1);

  const auto refused = [&](const json& body, const char* field) {
    INFO(body.dump().substr(0, 500));
    const auto [status, error] = post(running, "/v1/embeddings", body.dump());
    REQUIRE(status == 400);
    REQUIRE(error["error"]["param"] == field);
  };
  refused(json::object(), "input");
  refused({{"input", json::array()}}, "input");
  refused({{"input", {1, 2}}}, "input");
  refused({{"input", {"a", 2}}}, "input");
  refused({{"input", std::vector<std::string>(2049, "a")}}, "input");
  refused({{"input", "a"}, {"encoding_format", "int8"}}, "encoding_format");
  refused({{"input", "a"}, {"dimensions", 3}}, "dimensions");
  refused({{"input", "a"}, {"what", 1}}, "what");
  // what would be left out in silence
  std::string longest;
  for (std::int64_t i = 0; i < encoder.max_tokens(); ++i) longest += "the ";
  refused({{"input", longest}}, "input");
  answer = ask({{"input", longest}, {"truncate_prompt_tokens", -1}});
  REQUIRE(answer["usage"]["prompt_tokens"] == encoder.max_tokens());

  const auto models = running.client().Get("/v1/models");
  REQUIRE(models);
  REQUIRE(json::parse(models->body)["data"][1]["id"] == "tiny-encoder");
  REQUIRE(running.client().Get("/v1/models/tiny-encoder")->status == 200);
}

TEST_CASE("tokens: without an encoder the remedy is said") {
  const auto engine = engine_of(shipped());
  Service service(*engine);
  const Running running(service);
  const auto [status, error] = post(running, "/v1/embeddings", R"({"input": "a"})");
  REQUIRE(status == 404);
  REQUIRE(error["error"]["message"].get<std::string>().find("started without one") !=
          std::string::npos);
}
