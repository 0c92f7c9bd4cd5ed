// SPDX-License-Identifier: Apache-2.0
// generate --chat and ask --chat: the prompt that the model's template makes, read as text is.
#include "support/test.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "program.hpp"

using namespace program;

namespace {

constexpr const char* kTemplate =
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}answer{{ ' (' ~ mood ~ ')' if mood is defined }}: {% endif %}";

/// The shipped model with a chat format.
void make_model(const fs::path& from, const fs::path& dir, const char* format = kTemplate) {
  fs::create_directories(dir);
  for (const auto& entry : fs::directory_iterator(from))
    if (entry.path().filename() != "tokenizer_config.json")
      fs::create_symlink(fs::absolute(entry.path()), dir / entry.path().filename());
  Json config = Json::parse(contents(from / "tokenizer_config.json"));
  config["chat_template"] = format;
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

TEST_CASE("generate, ask and chat show what is said, and what is thought apart from it") {
  const auto shipped = recall_model();
  if (!shipped) EPISODIC_SKIP("no model");
  const Scratch scratch;
  const fs::path thinks = scratch / "thinks", channels = scratch / "channels";
  // the first drops thoughts of earlier turns, as thinking models' formats do
  make_model(*shipped, thinks,
             "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] if not "
             "loop.last else m.content }}</s>{% endfor %}<assistant>{# <think> #}");
  make_model(
      *shipped, channels,
      "{% for m in messages %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}"
      "{{ '<|return|>' if loop.last and m.role == 'assistant' else '<|end|>' }}{% endfor %}"
      "{% if add_generation_prompt %}<|start|>assistant{% endif %}");
  put(scratch / "think.gbnf", R"(root ::= "<think>\nHm.\n</think>\n\nYes.")");
  // of an answer that is held to a form the final channel is begun
  put(scratch / "channel.gbnf",
      R"(root ::= "Yes.<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>")");
  put(scratch / "text", "The pass key is 4711.");
  put(scratch / "turns", "Is it?\nAnd now?\n");
  for (const auto& [model, grammar] :
       {std::pair(thinks, "think.gbnf"), std::pair(channels, "channel.gbnf")}) {
    const std::string with = " --model " + quoted(model.string()) + " --max-new 100 --grammar " +
                             quoted((scratch / grammar).string());
    const Json generated = json_of("generate --quiet --chat --prompt 'Is it?'" + with);
    CHECK(generated["text"] == "Yes.");
    CHECK(generated["reasoning"] == "Hm.");
    const Run said = run_episodic("generate --chat --prompt 'Is it?'" + with);
    INFO(said.err);
    CHECK(said.out == "Yes.\n");
    CHECK(said.err.find("Hm.") != std::string::npos);
    const std::string dir = quoted((scratch / (grammar + std::string(".mem"))).string());
    const Run ingest = run_episodic("ingest --quiet --text " + quoted((scratch / "text").string()) +
                                    " --model " + quoted(model.string()) + " --memory-dir " + dir);
    REQUIRE(ingest.status == 0);
    const Json asked =
        json_of("ask --quiet --chat --reread 0 --prompt 'Is it?' --memory-dir " + dir + with);
    CHECK(asked["text"] == "Yes.");
    CHECK(asked["reasoning"] == "Hm.");
    const Run chat = run_episodic("chat --quiet --no-history" + with + " --json " +
                                  quoted((scratch / "chat.json").string()) + " < " +
                                  quoted((scratch / "turns").string()));
    INFO(chat.err);
    REQUIRE(chat.status == 0);
    const Json turns = Json::parse(contents(scratch / "chat.json"))["turns"];
    REQUIRE(turns.size() == 2);  // though the format changes earlier turns
    for (const Json& turn : turns) {
      CHECK(turn["text"] == "Yes.");
      CHECK(turn["reasoning"] == "Hm.");
    }
  }
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

TEST_CASE("ask --chat reads passages again unless it keeps the turn or is told not to") {
  const auto shipped = recall_model();
  if (!shipped) EPISODIC_SKIP("no model");
  const Scratch scratch;
  const fs::path model = scratch / "model";
  make_model(*shipped, model);
  put(scratch / "text", some_book(60) + "\nThe door code of Rosalind is 48151.\n" + some_book(120));
  const std::string memory = " --model " + quoted(model.string()) + " --memory-dir " +
                             quoted((scratch / "memory").string());
  REQUIRE(run_episodic("ingest --quiet --text " + quoted((scratch / "text").string()) + memory +
                       " --memory " + quoted(kMemory))
              .status == 0);
  const char* question = "What is the door code of Rosalind?";
  const auto ask = [&](const std::string& flags) {
    return json_of("ask --quiet --max-new 2 --prompt " + quoted(question) + memory + " " + flags);
  };
  const Json chat = ask("--chat");
  REQUIRE(chat["passages"].size() > 0);
  CHECK(chat["passages"][0]["text"].get<std::string>().find("48151") != std::string::npos);
  // alone, for the model is sure of them
  CHECK(chat["passages_only"] == true);
  CHECK(chat["passages"][0]["lead"].get<double>() >= 0.7);
  const Json alone = ask("--chat --passages-only");
  CHECK(chat["ids"] == alone["ids"]);
  CHECK(chat["passages"] == alone["passages"]);
  CHECK(ask("--chat --reread 3")["passages_only"] == false);
  CHECK_FALSE(ask("--chat --reread 0").contains("passages"));
  CHECK_FALSE(ask("").contains("passages"));
  // what no place of the text answers is asked behind the memory
  question = "Tell me more.";
  const Json vague = ask("--chat"), behind = ask("--chat --reread 3");
  CHECK(vague["passages_only"] == false);
  CHECK(vague["passages"] == behind["passages"]);
  CHECK(vague["ids"] == behind["ids"]);
  CHECK_FALSE(ask("--chat --keep").contains("passages"));
}

TEST_CASE("chat --reread answers from passages, and keeps message and answer alone") {
  const auto shipped = recall_model();
  if (!shipped) EPISODIC_SKIP("no model");
  const Scratch scratch;
  const fs::path model = scratch / "model";
  make_model(*shipped, model);
  put(scratch / "text", some_book(60) + "\nThe door code of Rosalind is 48151.\n" + some_book(120));
  put(scratch / "messages", "What is the door code of Rosalind?\nWho came home?\n");
  const std::string memory = " --model " + quoted(model.string()) + " --memory-dir ";
  REQUIRE(run_episodic("ingest --quiet --text " + quoted((scratch / "text").string()) + memory +
                       quoted((scratch / "a").string()) + " --memory " + quoted(kMemory))
              .status == 0);
  REQUIRE(run_episodic("fork " + quoted((scratch / "a").string()) + " " +
                       quoted((scratch / "b").string()))
              .status == 0);
  const auto talk = [&](const char* dir, const std::string& more) {
    const std::string out = quoted((scratch / (std::string(dir) + ".json")).string());
    const Run run = run_episodic("chat --quiet --max-new 3 --json " + out + memory +
                                     quoted((scratch / dir).string()) + " " + more,
                                 "cat " + quoted((scratch / "messages").string()) + " |");
    INFO(run.err);
    REQUIRE(run.status == 0);
    return Json::parse(contents(scratch / (std::string(dir) + ".json")));
  };
  const Json with = talk("a", "--reread 2"), without = talk("b", "");
  REQUIRE(with["turns"].size() == 2);
  REQUIRE(with["turns"][0]["passages"].size() > 0);
  CHECK(with["turns"][0]["passages"][0]["text"].get<std::string>().find("48151") !=
        std::string::npos);
  CHECK_FALSE(without["turns"][0].contains("passages"));
  // the passages are in no memory: it grew by messages and answers
  const auto tokens = [&](const char* dir) {
    return json_of("inspect " + quoted((scratch / dir).string()))["tokens"].get<std::int64_t>();
  };
  const auto written = [](const Json& json) {
    std::int64_t n = 0;
    for (const Json& turn : json["turns"]) n += static_cast<std::int64_t>(turn["ids"].size());
    return n;
  };
  CHECK(tokens("a") - written(with) == tokens("b") - written(without));
  const std::string encoder =
      "--encoder " + quoted(EPISODIC_SOURCE_DIR "/tests/model/sentence_encoder/tiny");
  CHECK(talk("b", "--reread 2 " + encoder)["turns"][1]["passages"].size() > 0);
  CHECK(mentions(run_episodic("chat " + encoder + memory + quoted((scratch / "b").string())).err,
                 "--reread"));
  CHECK(run_episodic("chat --reread -1" + memory + quoted((scratch / "a").string())).status != 0);
}

TEST_CASE("chat refuses a message without an end, and answers those before it") {
  const auto shipped = recall_model();
  if (!shipped) EPISODIC_SKIP("no model");
  const Scratch scratch;
  const fs::path model = scratch / "model";
  make_model(*shipped, model);
  put(scratch / "first", "Who came?\n");
  const std::string chat = "chat --quiet --max-new 2 --model " + quoted(model.string());
  for (const std::string endless : {"cat /dev/zero", "yes 'a\\'"}) {  // a line, many that go on
    const Run run = run_episodic(chat, "( cat " + quoted((scratch / "first").string()) + "; " +
                                           endless + " ) | " + kMustEnd);
    INFO(endless << ": " << run.err);
    CHECK(run.status == 1);
    CHECK(!run.out.empty());
    CHECK(one_line(run.err));
    CHECK(run.err.find("stdin: a message is longer than 16777216 bytes") != std::string::npos);
  }
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
  refused(model, "Who?\n", kept + " --full-attention", "--memory-dir");
}

namespace {

/// The shipped model with a chat format, and `chat` on it.
struct ChatRun {
  Scratch scratch;
  fs::path model = scratch / "model";

  explicit ChatRun(const fs::path& shipped) { make_model(shipped, model); }
  Run operator()(const std::string& input, const std::string& flags) const {
    put(scratch / "input", input);
    return run_episodic("chat --threads 1 --model " + quoted(model.string()) + " " + flags + " < " +
                        quoted((scratch / "input").string()));
  }
};

/// A part of a text, with the text where it is not there.
void check_says(const std::string& text, const std::string& part) {
  INFO(text << "   should contain   " << part);
  CHECK(text.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("a mistake in a chat is a line, and the conversation goes on") {
  const auto shipped = recall_model();
  if (!shipped) EPISODIC_SKIP("no model");
  const ChatRun chat(*shipped);
  put(chat.scratch / "binary", std::string("a\0b", 3));
  const std::string folder = chat.scratch.path().string();
  struct Mistake {
    std::string line, says;
  };
  const std::vector<Mistake> mistakes{
      {"/foo", "there is no command /foo; there are /help, /read"},
      {"/Read x", "there is no command /Read"},
      {"/", "there is no command /;"},
      {"/read nothing.txt", "nothing.txt: cannot be read"},
      {"/read", "/read: say which file"},
      {"/read   ", "/read: say which file"},
      {"/read " + folder, "it is a directory"},
      {"/read " + folder + "/binary", "is binary"},
      {"/read -", "stdin is the conversation itself"},
      {"/forget", "/forget: say what: a text, tokens"},
      {"/forget nowhere in it", "/forget: 'nowhere in it' is nowhere in what was read"},
      {"/forget 7", "/forget 7: there is no such event, there are 0"},
      {"/forget \"\"", "/forget: the text is empty"},
      {"/forget 9:3", "the end must be past the start"},
      {"/save", "/save: there is no folder"},
      {"/memories", "/memories: this conversation is not kept"},
      {"/fork", "/fork: say a name"},
      {"/fork draft", "/fork: there is no folder"},
      {"/memory now", "/memory: takes nothing"},
      {"/recall 3", "/recall: takes nothing"},
  };
  std::string input;
  for (const Mistake& mistake : mistakes) input += mistake.line + "\n";
  const Run run = chat(input + "Who came?\n",
                       "--max-new 3 --quiet --json " + quoted((chat.scratch / "json").string()));
  INFO(run.err);
  CHECK(run.status == 0);
  const Json json = Json::parse(contents(chat.scratch / "json"));
  REQUIRE(json["turns"].size() == 1);
  CHECK(json["turns"][0]["message"] == "Who came?");
  CHECK(run.out == json["turns"][0]["text"].get<std::string>() + "\n");
  REQUIRE(json["refused"].size() == mistakes.size());
  for (std::size_t i = 0; i < mistakes.size(); ++i) {
    const auto said = json["refused"][i].get<std::string>();
    check_says(said, mistakes[i].says);
    check_says(run.err, "episodic: " + said + "\n");
  }
}

TEST_CASE("a chat's commands say what there is, and a slash can be sent") {
  const auto shipped = recall_model();
  if (!shipped) EPISODIC_SKIP("no model");
  const ChatRun chat(*shipped);
  put(chat.scratch / "book", some_book(120));
  const std::string small = " --memory " + quoted(kSmallMemory);
  const std::string book = "/read " + (chat.scratch / "book").string() + "\n";

  const Run run = chat("/help\n" + book + "/memory\nWhat did the doctor do?\n/recall\n/memory\n" +
                           "/forget 40:80\n//quit is a word\n/quit\nnever\n",
                       "--max-new 3 --json " + quoted((chat.scratch / "json").string()) + small);
  INFO(run.err);
  REQUIRE(run.status == 0);
  const Json json = Json::parse(contents(chat.scratch / "json"));
  REQUIRE(json["turns"].size() == 2);
  CHECK(json["turns"][1]["message"] == "/quit is a word");
  CHECK_FALSE(json.contains("refused"));
  for (const char* part : {"/read FILE", "//text", "of text wait for your next message",
                           "events were recalled for the last answer\nattention ", "%     1 ",
                           "not kept: --memory-dir", "events forgotten\n  event "})
    check_says(run.out, part);
  for (const char* part : {"greedy; an answer ends with its turn, or at 3 tokens", "/help",
                           "before your next message", "cut at 3 tokens"})
    check_says(run.err, part);
  // every row has the text of its event, where that was read; the weights fall and add up
  std::string read = "user: " + some_book(120) + "\nWhat did the doctor do?\nanswer: ";
  std::replace(read.begin(), read.end(), '\n', ' ');
  const Json& recalled = json["turns"][0]["recalled"];
  REQUIRE(recalled.size() > 3);
  double sum = 0, before = 1;
  for (const Json& e : recalled) {
    std::string text = e["text"];
    std::replace(text.begin(), text.end(), '\n', ' ');
    const bool whole = text.find("\xEF\xBF\xBD") == std::string::npos;  // no cut character
    if (whole) check_says(read, text);
    const double attention = e["attention"];
    CHECK(attention <= before);
    before = attention;
    sum += before;
  }
  CHECK(std::abs(sum - 1) < 1e-9);
  std::istringstream lines(run.out.substr(run.out.find("events were recalled")));
  std::string row;
  for (int i = 0; i < 3; ++i) std::getline(lines, row);  // the best one
  const Json& best = recalled[0];
  const auto number = [](const Json& of) { return std::to_string(of.get<int>()); };
  std::istringstream words(row);
  std::string attention, rank, event, tokens;
  words >> attention >> rank >> event >> tokens;
  CHECK(std::abs(std::stod(attention) - 100 * best["attention"].get<double>()) < 0.06);
  CHECK(rank == number(best["rank"]));
  CHECK(event == number(best["event"]));
  CHECK(tokens == number(best["start"]) + ":" + number(best["end"]));

  // from a folder: what was read before this call is recalled with its text, and edits are kept
  const std::string kept = " --quiet --memory-dir " + quoted((chat.scratch / "m").string());
  REQUIRE(chat(book + "Who?\n", "--max-new 3" + small + kept).status == 0);
  const Run later = chat("What did the doctor do?\n/recall\n/save\n/memory\n/forget 40:60\n",
                         "--max-new 3" + kept);
  INFO(later.err);
  check_says(later.out, "events were recalled for the last answer\nattention ");
  check_says(later.out, "as after every answer");
  check_says(later.out, "; kept in ");
  check_says(later.out, "events forgotten");
  const Json inspected = json_of("inspect " + quoted((chat.scratch / "m").string()));
  CHECK(inspected.dump().find("\"forgotten\":0") == std::string::npos);

  const Run full =
      chat("Who?\n/memory\n/recall\n/forget 1:3\nWhy?\n", "--max-new 3 --quiet --full-attention");
  INFO(full.err);
  CHECK(full.status == 0);
  check_says(full.out, "there is no memory");
  check_says(full.out, "nothing was recalled");
  CHECK(one_line(full.err));
}

TEST_CASE("a chat lists the memories beside its own, and forks it") {
  const auto shipped = recall_model();
  if (!shipped) EPISODIC_SKIP("no model");
  const ChatRun chat(*shipped);
  const fs::path folder = chat.scratch / "memories", away = chat.scratch / "away";
  fs::create_directories(folder / "no memory");
  fs::create_directories(folder / "damaged");
  put(folder / "damaged" / "manifest.json", "{");
  put(folder / "file", "");
  fs::create_directories(away);
  const std::string kept = "--max-new 3 --quiet --memory-dir " + quoted((folder / "talk").string());
  const Run run = chat(
      "Who came?\n/fork draft\nAnd then?\n/memories\n/fork draft\n/fork ../out\n"
      "/fork .hidden\n",
      kept + "/");
  INFO(run.err);
  REQUIRE(run.status == 0);
  const auto tokens = [](const fs::path& dir) {
    return json_of("inspect " + quoted(dir.string()))["tokens"].get<int>();
  };
  CHECK(tokens(folder / "draft") < tokens(folder / "talk"));
  CHECK(fs::exists(folder / "out") == false);
  CHECK(fs::exists(chat.scratch / "out") == false);
  check_says(run.out, "draft has this conversation up to here; this one goes on in ");
  const std::size_t list = run.out.find("memories in " + folder.string() + "\n");
  REQUIRE(list != std::string::npos);
  std::istringstream lines(run.out.substr(list));
  std::string line;
  std::getline(lines, line);
  std::getline(lines, line);
  check_says(line, "  damaged  cannot be read: ");
  std::getline(lines, line);
  check_says(line, "  draft    ");
  check_says(line, std::to_string(tokens(folder / "draft")) + " tokens");
  std::getline(lines, line);
  check_says(line, "  talk     ");
  check_says(line, std::to_string(tokens(folder / "talk")) + " tokens");
  check_says(line, "this conversation");
  CHECK_FALSE(std::getline(lines, line));
  check_says(run.err, "draft: is there already; choose another name");
  check_says(run.err, "'../out' is no name of a memory");
  check_says(run.err, "'.hidden' is no name of a memory");
  CHECK(std::count(run.err.begin(), run.err.end(), '\n') == 3);

  // another folder; the fork is a conversation that goes on
  const Run there = chat("Why?\n/memories\n/fork two\n/memories\n",
                         "--max-new 3 --quiet --memory-dir " + quoted((folder / "draft").string()) +
                             " --memories " + quoted(away.string()));
  INFO(there.err);
  check_says(there.out, away.string() + ": there are no memories\n");
  check_says(there.out, "\n  two  ");
  CHECK(tokens(away / "two") == tokens(folder / "draft"));
  check_says(chat("/memories\n", "--memories " + quoted((chat.scratch / "none").string())).err,
             "none: cannot be read");
}

TEST_CASE("a chat forgets a text, an event or tokens, and says what stays") {
  const auto shipped = recall_model();
  if (!shipped) EPISODIC_SKIP("no model");
  const ChatRun chat(*shipped);
  const std::string book = some_book(60);
  put(chat.scratch / "book", book + "The heron stood\nin the reeds. " + book +
                                 "They counted 9315 doors. " + book + "The last heron flew.");
  const std::string small = "--max-new 3 --memory " + quoted(kSmallMemory);
  const std::string kept = " --memory-dir " + quoted((chat.scratch / "m").string());
  const std::string read = "/read " + (chat.scratch / "book").string() + "\nWho?\n";
  const Run run = chat(read +
                           "/forget heron stood in the\n/forget heron stood in the\n"
                           "/forget \"9315\"\n/forget HERON\n/forget 3\n/forget 3\n"
                           "/forget last heron flew\n",
                       small + kept + " --quiet");
  INFO(run.out << run.err);
  REQUIRE(run.status == 0);
  std::vector<std::string> said;  // each command's first line
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);)
    if (line.ends_with(" forgotten")) said.push_back(line);
  const auto count = [](const std::string& line) { return std::stoi(line); };
  REQUIRE(said.size() == 5);
  CHECK(count(said[0]) >= 1);
  CHECK(count(said[0]) <= 3);  // of the one place, over a line break
  CHECK(count(said[1]) >= 1);  // a number as a text
  CHECK(said[2] == "1 event forgotten");
  CHECK(said[3] == "0 events forgotten");  // the same one again
  CHECK(said[4] == "0 events forgotten");
  check_says(run.out, "1 place is in the window");
  check_says(run.err, "/forget: 'HERON' is nowhere in what was read");
  const std::string again = "/forget: 'heron stood in the' is nowhere in what was read, or is";
  check_says(run.err, again);
  check_says(run.out, "in the reeds.");  // the text of what went
  const Json inspected = json_of("inspect " + quoted((chat.scratch / "m").string()));
  CHECK(inspected.dump().find("\"forgotten\":0") == std::string::npos);
  // and of an earlier process, by the folder's tokens: nothing is left to forget
  check_says(chat("/forget heron stood in the\n", "--quiet" + kept).err, again);

  // without a folder
  const Run own = chat(read + "/forget heron stood\n/recall\n", small + " --quiet");
  INFO(own.out << own.err);
  CHECK(own.err.empty());
  check_says(own.out, " forgotten\n  event ");
}

TEST_CASE("Ctrl-C ends an answer or takes back what is read, not the chat") {
  const auto shipped = recall_model();
  if (!shipped) EPISODIC_SKIP("no model");
  const ChatRun chat(*shipped);
  put(chat.scratch / "book", some_book(20'000));
  const std::string here = chat.scratch.path().string();
  put(chat.scratch / "script",
      "cd '" + here +
          "'; mkfifo in; '" EPISODIC_BINARY_DIR
          "/bin/episodic' chat --model model "
          "--threads 1 --ignore-eos --max-new 1000000 --max-tokens 2M --json json < in > out 2> "
          "err &\n"
          "pid=$!; exec 3> in\n"
          "printf 'Tell me.\\n' >&3; until [ -s out ]; do sleep 0.05; done; kill -INT $pid\n"
          "until grep -q stopped err; do sleep 0.05; done\n"
          "printf '/read book\\nWho?\\n' >&3; until grep -q 'next message' err; do sleep 0.05; "
          "done\n"
          "sleep 0.5; kill -INT $pid; until grep -q 'not read' err; do sleep 0.05; done\n"
          "printf '/memory\\n/quit\\n' >&3; exec 3>&-; wait $pid\n");
  const int status = std::system((kMustEnd + ("sh " + quoted(here + "/script"))).c_str());
  INFO(contents(chat.scratch / "err"));
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  const Json json = Json::parse(contents(chat.scratch / "json"));
  REQUIRE(json["turns"].size() == 1);
  CHECK(json["turns"][0]["finish"] == "cancelled");
  const std::size_t n =
      json["turns"][0]["ids"].size() + json["turns"][0]["prompt_tokens"].get<std::size_t>();
  CHECK(json["memory"]["tokens"] == n);  // the whole answer, and nothing of the book
  check_says(contents(chat.scratch / "out"), "of text wait for your next message");
}

TEST_CASE("answers are drawn as the model's files say, unless a flag says otherwise") {
  const auto shipped = recall_model();
  if (!shipped) EPISODIC_SKIP("no model");
  const ChatRun chat(*shipped);
  const auto ids = [&](const std::string& flags) {
    const Run run = chat("Who came?\nWho came?\n", "--max-new 12 --json - " + flags);
    INFO(run.err);
    REQUIRE(run.status == 0);
    const Json json = Json::parse(run.out);
    Json all = Json::array();
    for (const Json& turn : json["turns"]) all.push_back(turn["ids"]);
    return std::pair(all, json.value("seed", Json()));
  };
  fs::remove(chat.model / "generation_config.json");  // a link to the shipped one
  const auto [greedy, no_seed] = ids("");
  CHECK(no_seed.is_null());
  put(chat.model / "generation_config.json",
      R"({"do_sample": true, "temperature": 1.9, "top_k": 0, "eos_token_id": 2})");
  const auto [drawn, seed] = ids("");
  REQUIRE(seed.is_number_integer());
  CHECK(drawn != greedy);
  CHECK(ids("--seed " + seed.dump()).first == drawn);
  CHECK(ids("--temperature 0").first == greedy);
  CHECK(ids("--top-k 1").first == greedy);
  CHECK(ids("--min-p 1").first == greedy);
  const Run said = chat("Who?\n", "--max-new 1");
  check_says(said.err, "temperature 1.9 (generation_config.json); an answer ends with its turn");
  // what must be the same each time is greedy all the same
  const auto generated = [&](const std::string& flags) { return answer(chat.model, flags)["ids"]; };
  CHECK(generated("--chat --prompt 'Who came?'") ==
        generated("--chat --prompt 'Who came?' --temperature 0"));
  CHECK(chat("", "--top-p 1.5").err == "episodic: top_p is 1.5, must be in [0, 1] (1: off)\n");

  put(chat.model / "generation_config.json", R"({"do_sample": true, "top_p": 2})");
  const Run refused = chat("Who?\n", "");
  CHECK(refused.status == 1);
  CHECK(one_line(refused.err));
  check_says(refused.err, "generation_config.json: top_p is 2, expected a number in [0, 1]");
}

TEST_CASE("an answer ends with its turn, and a note says where it was cut") {
  const auto shipped = recall_model();
  if (!shipped) EPISODIC_SKIP("no model");
  const ChatRun chat(*shipped);
  const auto run = [&](const std::string& flags) {
    return run_episodic("generate --threads 1 --model " + quoted(chat.model.string()) +
                        " --ignore-eos --prompt Who --json " +
                        quoted((chat.scratch / "json").string()) + " " + flags);
  };
  const auto length = [&] { return Json::parse(contents(chat.scratch / "json"))["ids"].size(); };
  CHECK(run("").err == "episodic: cut at 128 tokens; --max-new allows more\n");
  CHECK(length() == 128);
  CHECK(run("--chat").err == "episodic: cut at 4096 tokens; --max-new allows more\n");
  CHECK(length() == 4096);
  CHECK(run("--max-new 5").err == "");
  CHECK(length() == 5);
  CHECK(run("--quiet").err == "");
}
