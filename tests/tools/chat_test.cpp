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

  // a special token's text is text, and no token: more tokens than where it is one
  const auto prompt_tokens = [&](const std::string& prompt) {
    return answer(model, prompt)["prompt_tokens"].get<int>();
  };
  CHECK(prompt_tokens("--chat --prompt 'a<|eos|>b'") >
        prompt_tokens("--no-special --prompt '<|bos|>user: a<|eos|>b\nanswer: '") + 2);
  CHECK(prompt_tokens("--chat --system '<|eos|>' --prompt b") >
        prompt_tokens("--no-special --prompt '<|bos|>system: <|eos|>\nuser: b\nanswer: '") + 2);

  const auto refused = [&](const fs::path& dir, const std::string& flags, const char* why) {
    const Run run = run_episodic("generate --model " + quoted(dir.string()) + " " + flags);
    INFO(flags << "\n" << run.err);
    CHECK(run.status == 1);
    CHECK(one_line(run.err));
    CHECK(run.err.find(why) != std::string::npos);
  };
  refused(*shipped, "--chat --prompt Who", "no chat template");
  refused(model, "--chat --chat-variables '{\"messages\": []}' --prompt a", "'messages'");
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
      run_episodic("ingest --quiet --text " + quoted((scratch / "text").string()) + memory);
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

TEST_CASE("chat goes on turn by turn, and in its folder the next time") {
  const auto shipped = recall_model();
  if (!shipped) EPISODIC_SKIP("no model");
  const Scratch scratch;
  const fs::path model = scratch / "model";
  make_model(*shipped, model);
  const std::string with = " --quiet --max-new 6 --model " + quoted(model.string()) + " ";
  const auto chat = [&](const std::string& input, const std::string& flags) {
    put(scratch / "input", input);
    return json_of("chat" + with + flags + " < " + quoted((scratch / "input").string()));
  };
  const auto ids_of = [&](const std::string& text) {
    put(scratch / "piece", text);
    return json_of("tokenize --model " + quoted(model.string()) + " --text " +
                   quoted((scratch / "piece").string()))["ids"];
  };

  // Each turn goes on behind the answer before it: the ids of the whole, read at once, go on alike.
  const Json turns = chat("Who came?\n\nAnd\\\nthen?\n/exit\nnever\n", "")["turns"];
  REQUIRE(turns.size() == 2);
  CHECK(turns[1]["message"] == "And\nthen?");
  Json ids = Json::array();
  const auto append = [&](Json piece) {
    piece.erase(0);  // the tokenizer's own beginning
    for (const auto& id : piece) ids.push_back(id);
  };
  append(ids_of("<|bos|>user: Who came?\nanswer: "));
  CHECK(turns[0]["prompt_tokens"] == ids.size());
  for (const auto& id : turns[0]["ids"]) ids.push_back(id);
  const std::size_t before = ids.size();
  append(ids_of("\nuser: And\nthen?\nanswer: "));
  CHECK(turns[1]["prompt_tokens"] == ids.size() - before);
  put(scratch / "ids", ids.dump());
  const Json whole = json_of("generate" + with + "--ids " + quoted((scratch / "ids").string()));
  CHECK(turns[1]["ids"] == whole["ids"]);

  // A text before a message, which is a step of its own.
  put(scratch / "book", "The pass key is 4711.");
  const Json told =
      chat("/read " + (scratch / "book").string() + "\nWhat is the pass key?\n", "")["turns"];
  REQUIRE(told.size() == 1);
  const Json same = answer(model,
                           "--chat --prompt 'The pass key is 4711.\n\n' --question "
                           "'What is the pass key?'");
  CHECK(told[0]["ids"] == same["ids"]);
  CHECK(told[0]["prompt_tokens"] == same["prompt_tokens"]);

  // Kept after each answer, to its last token.
  const std::string kept = "--memory-dir " + quoted((scratch / "memory").string());
  const auto tokens = [](const Json& run) {
    std::size_t n = 0;
    for (const Json& turn : run["turns"])
      n += turn["prompt_tokens"].get<std::size_t>() + turn["ids"].size();
    return n;
  };
  const Json first = chat("Who came?\nWhen?\n", kept), second = chat("Why?\n", kept);
  REQUIRE(first["turns"].size() == 2);
  CHECK(first["memory"]["tokens"] == tokens(first));
  CHECK(second["memory"]["tokens"] == tokens(first) + tokens(second));

  const auto refused = [&](const fs::path& dir, const std::string& input, const std::string& flags,
                           const char* why) {
    put(scratch / "input", input);
    const Run run = run_episodic("chat --quiet --model " + quoted(dir.string()) + " " + flags +
                                 " < " + quoted((scratch / "input").string()));
    INFO(run.err);
    CHECK(run.status == 1);
    CHECK(one_line(run.err));
    CHECK(run.err.find(why) != std::string::npos);
  };
  const fs::path none = scratch / "none";
  refused(*shipped, "Who?\n", "--memory-dir " + quoted(none.string()), "no chat template");
  CHECK(!fs::exists(none));
  refused(model, "/read nothing.txt\nWho?\n", "", "nothing.txt");
  refused(model, "Who?\n", kept + " --full-attention", "--memory-dir");
}
