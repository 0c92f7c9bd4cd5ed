// SPDX-License-Identifier: Apache-2.0
// generate --chat and ask --chat: the prompt that the model's template makes, read as text is.
#include "support/test.hpp"

#include "program.hpp"

using namespace program;

namespace {

constexpr const char* kTemplate =
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}answer{{ ' (' ~ mood ~ ')' if mood is defined }}: {% endif %}";

/// The shipped model with a chat format.
void make_model(const fs::path& from, const fs::path& dir) {
  fs::create_directories(dir);
  for (const auto& entry : fs::directory_iterator(from))
    if (entry.path().filename() != "tokenizer_config.json")
      fs::create_symlink(fs::absolute(entry.path()), dir / entry.path().filename());
  Json config = Json::parse(contents(from / "tokenizer_config.json"));
  config["chat_template"] = kTemplate;
  put(dir / "tokenizer_config.json", config.dump());
}

Json answer(const fs::path& model, const std::string& arguments) {
  return json_of("generate --quiet --max-new 6 --model " + quoted(model.string()) + " " +
                 arguments);
}

}  // namespace

TEST_CASE("generate --chat reads what the template makes of the prompt") {
  const auto shipped = recall_model();
  if (!shipped) EPISODIC_SKIP("no model");
  const Scratch scratch;
  const fs::path model = scratch / "model";
  make_model(*shipped, model);

  const auto same = [&](const std::string& chat, const std::string& text) {
    INFO(chat);
    const Json got = answer(model, chat), want = answer(model, "--no-special --prompt " + text);
    CHECK(got["ids"].size() == 6);
    CHECK(got["ids"] == want["ids"]);
    CHECK(got["prompt_tokens"] == want["prompt_tokens"]);
  };
  same("--chat --prompt '  The king said '", "'<|bos|>user: The king said\nanswer: '");
  same("--chat --system 'Be brief.' --prompt Who",
       "'<|bos|>system: Be brief.\nuser: Who\nanswer: '");
  same("--chat --chat-variables '{\"mood\": \"calm\"}' --prompt Who",
       "'<|bos|>user: Who\nanswer (calm): '");
  // the question is a step of its own; the tokens are those of the whole
  same("--chat --prompt 'The key is 7.\n' --question 'What is the key?'",
       "'<|bos|>user: The key is 7.\nWhat is the key?\nanswer: '");

  const auto refused = [&](const fs::path& dir, const std::string& flags, const char* why) {
    const Run run = episodic("generate --model " + quoted(dir.string()) + " " + flags);
    INFO(flags << "\n" << run.err);
    CHECK(run.status == 1);
    CHECK(one_line(run.err));
    CHECK(run.err.find(why) != std::string::npos);
  };
  refused(*shipped, "--chat --prompt Who", "no chat template");
  refused(model, "--chat --prompt 'a<|eos|>b'", "holds '<|eos|>', which is a special token");
  refused(model, "--chat --no-special --prompt a", "--no-special");
  refused(model, "--system a --prompt a", "--system: says nothing without --chat");
  refused(model, "--chat --chat-variables 3 --prompt a", "no JSON object");
  put(scratch / "ids", "[1, 5]");
  refused(model, "--chat --ids " + quoted((scratch / "ids").string()), "takes a prompt of text");
}

TEST_CASE("ask --chat goes on behind what the memory holds") {
  const auto shipped = recall_model();
  if (!shipped) EPISODIC_SKIP("no model");
  const Scratch scratch;
  const fs::path model = scratch / "model";
  make_model(*shipped, model);
  put(scratch / "text", "The pass key is 4711.");
  const std::string memory = " --model " + quoted(model.string()) + " --memory-dir " +
                             quoted((scratch / "memory").string());
  const Run ingest =
      episodic("ingest --quiet --text " + quoted((scratch / "text").string()) + memory);
  INFO(ingest.err);
  REQUIRE(ingest.status == 0);
  const auto ask = [&](const std::string& flags) {
    return json_of("ask --quiet --max-new 6" + memory + " " + flags);
  };
  // no second beginning of the sequence
  const Json chat = ask("--chat --prompt What"), text = ask("--prompt 'user: What\nanswer: '");
  CHECK(chat["ids"] == text["ids"]);
  CHECK(chat["prompt_tokens"] == text["prompt_tokens"]);
}
