// SPDX-License-Identifier: Apache-2.0
// Calls of tools in answers: each form whole, cut anywhere, damaged at random.
#include "episodic/text/tool_calls.hpp"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <random>
#include <span>

#include "episodic/base/error.hpp"
#include "support/sampled.hpp"
#include "support/test.hpp"
#include "tool_call_answers.hpp"

using namespace episodic;
using namespace episodic::test;

namespace tool_calls_test {

using Json = nlohmann::ordered_json;
using Kind = ToolCallEvent::Kind;

std::vector<ToolCallEvent> whole(const ToolCallFormat& format, std::string_view text,
                                 const ToolCallOptions& options = fixed_ids()) {
  ToolCallParser parser(format, answer_tools(), options);
  std::vector<ToolCallEvent> events = parser.push(text);
  for (ToolCallEvent& e : parser.finish()) events.push_back(std::move(e));
  return joined_events(events);
}

using episodic::test::told;

std::string told(const char* form, std::string_view text,
                 const ToolCallOptions& options = fixed_ids()) {
  return told(whole(format_named(form), text, options));
}

TEST_CASE("tool calls: every form is read, with the text around the calls") {
  for (const Answer& answer : answers()) {
    INFO(answer.form << ": " << answer.text);
    CHECK(told(answer.form, answer.text) == answer.told);
  }
}

TEST_CASE("tool calls: where an answer is cut changes nothing") {
  std::mt19937 random(7);
  for (const Answer& answer : answers()) {
    const ToolCallFormat& format = format_named(answer.form);
    const std::string text = answer.text;
    for (const bool early : {false, true}) {
      ToolCallOptions options = fixed_ids();
      options.early_arguments = early;
      const std::vector<ToolCallEvent> expected = whole(format, text, options);
      const auto same = [&](const std::vector<std::size_t>& cuts) {
        ToolCallParser parser(format, answer_tools(), options);
        std::vector<ToolCallEvent> events;
        std::size_t at = 0;
        for (std::size_t i = 0; i <= cuts.size(); ++i) {
          const std::size_t end = i < cuts.size() ? cuts[i] : text.size();
          for (ToolCallEvent& e : parser.push(text.substr(at, end - at)))
            events.push_back(std::move(e));
          at = end;
        }
        for (ToolCallEvent& e : parser.finish()) events.push_back(std::move(e));
        return joined_events(events) == expected;
      };
      INFO(answer.form << (early ? ", early: " : ": ") << text);
      std::vector<std::size_t> every;
      for (std::size_t cut = 0; cut <= text.size(); ++cut) {
        if (!same({cut})) FAIL("cut at byte " << cut);
        every.push_back(cut);
      }
      CHECK(same(every));
      for (int n = 0; n < 20; ++n) {
        std::vector<std::size_t> cuts(1 + random() % 8);
        for (std::size_t& cut : cuts) cut = random() % (text.size() + 1);
        std::sort(cuts.begin(), cuts.end());
        CHECK(same(cuts));
      }
    }
  }
}

TEST_CASE("tool calls: text that can begin no call is given at once") {
  ToolCallParser parser(format_named("hermes"), answer_tools(), fixed_ids());
  const auto pushed = [&](std::string_view piece) { return told(parser.push(piece)); };
  CHECK(pushed("Let me") == "Let me");
  CHECK(pushed(" see") == " see");
  CHECK(pushed(".\n").empty() == false);
  CHECK(pushed("<").empty());
  CHECK(pushed("b>") == "\n<b>");
  CHECK(pushed(" <tool_ca") == "");
  CHECK(pushed("lls>") == " <tool_calls>");
  CHECK(pushed("\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1") == "");
  CHECK(pushed("}") == "");
  CHECK(pushed("}") == "[add({\"a\": 1})]");
  CHECK(pushed("\n</tool_call>\n") == "");
  CHECK(parser.calls() == 1);
  CHECK(pushed("Done") == "\nDone");
  CHECK(told(parser.finish()).empty());
}

/// How much of an answer there is when its first call is over.
std::string up_to_first_call(const char* form, const std::string& text) {
  ToolCallParser parser(format_named(form), answer_tools(), fixed_ids());
  for (std::size_t i = 0; i < text.size(); ++i) {
    parser.push(text.substr(i, 1));
    if (parser.first_call_over()) return text.substr(0, i + 1);
  }
  return "never";
}

TEST_CASE("tool calls: where the first call is over, each form's last mark included") {
  const std::string hermes = "Wait.\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>";
  CHECK(up_to_first_call("hermes", hermes + "\n<tool_call>\n{\"name\": \"now\"}") == hermes);
  CHECK(up_to_first_call("general", hermes + "\nAnd so") == hermes);
  // a call without its mark: what follows ends it
  CHECK(up_to_first_call("hermes", "{\"name\": \"now\"}\n\nAnd so") == "{\"name\": \"now\"}\n\nA");
  CHECK(up_to_first_call("hermes", "<tool_call>[{\"name\": \"now\"}, {\"name\": \"now\"}]") ==
        "<tool_call>[{\"name\": \"now\"},");
  CHECK(up_to_first_call("llama", "{\"name\": \"now\", \"parameters\": {}}; {\"name\"") ==
        "{\"name\": \"now\", \"parameters\": {}}");
  CHECK(up_to_first_call("mistral", "[TOOL_CALLS][{\"name\": \"now\"}]X") ==
        "[TOOL_CALLS][{\"name\": \"now\"}]");
  CHECK(up_to_first_call("mistral", "[TOOL_CALLS][{\"name\": \"now\"}, {") ==
        "[TOOL_CALLS][{\"name\": \"now\"},");
  CHECK(up_to_first_call("mistral_named", "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]") ==
        "[TOOL_CALLS]now[ARGS]{}");
  CHECK(up_to_first_call("functionary", "<function=now>{}</function><function=now>") ==
        "<function=now>{}</function>");
  CHECK(up_to_first_call("phi4", "<|tool_call|>[{\"name\": \"now\"}]<|/tool_call|>X") ==
        "<|tool_call|>[{\"name\": \"now\"}]<|/tool_call|>");
  // what is none, and what is not over
  CHECK(up_to_first_call("hermes", "<tool_call>{\"name\": \"nobody\"}</tool_call> text") ==
        "never");
  CHECK(up_to_first_call("hermes", "<tool_call>{\"name\": \"now\"}\n</tool_c") == "never");
  CHECK(up_to_first_call("hermes", "<think>{\"name\": \"now\"} x") == "never");
}

TEST_CASE("tool calls: an answer that ends at its first call has that call, in every form") {
  std::size_t longer = 0;
  for (const Answer& answer : answers()) {
    const std::string cut = up_to_first_call(answer.form, answer.text);
    INFO(answer.form << ": " << answer.text);
    const std::vector<ToolCallEvent> all = whole(format_named(answer.form), answer.text);
    const auto first = std::find_if(all.begin(), all.end(),
                                    [](const ToolCallEvent& e) { return e.kind == Kind::ended; });
    if (first == all.end()) {
      CHECK(cut == "never");
      continue;
    }
    if (cut == "never") continue;  // it is whole, but for a mark that never came
    longer += cut.size() < std::string(answer.text).size();
    const std::vector<ToolCallEvent> some = whole(format_named(answer.form), cut);
    const auto same = [](const ToolCallEvent& a, const ToolCallEvent& b) {
      return a.kind == b.kind && a.name == b.name && a.text == b.text;
    };
    const auto upto = static_cast<std::size_t>(first - all.begin()) + 1;
    REQUIRE(some.size() >= upto);
    CHECK(std::equal(all.begin(), first + 1, some.begin(), same));
    CHECK(std::none_of(some.begin() + static_cast<std::ptrdiff_t>(upto), some.end(),
                       [](const ToolCallEvent& e) { return e.kind == Kind::ended; }));
  }
  CHECK(longer > 5);
}

TEST_CASE("tool calls: arguments come early where that is asked for") {
  ToolCallOptions options = fixed_ids();
  options.early_arguments = true;
  ToolCallParser parser(format_named("hermes"), answer_tools(), options);
  CHECK(told(parser.push("<tool_call>{\"name\": \"add\", ")) == "");
  CHECK(told(parser.push("\"arguments\": {\"a\"")) == "[add({\"a\"");
  CHECK(told(parser.push(": \"x")) == ": \"x");
  CHECK(told(parser.push("\"}}")) == "\"})]");
  CHECK(told(parser.push("</tool_call><tool_call>{\"name\": \"now\", \"arguments\": {\"b\": ")) ==
        "[now({\"b\": ");
  // broken off: the whole text of it is content
  const std::vector<ToolCallEvent> rest = parser.finish();
  CHECK(told(rest) == "!]<tool_call>{\"name\": \"now\", \"arguments\": {\"b\": ");
  REQUIRE(rest.size() == 2);
  CHECK(rest[0].index == 1);
  CHECK(parser.calls() == 1);
}

TEST_CASE("tool calls: ids are nine letters and digits, and differ") {
  const auto ids = [&](std::optional<std::uint64_t> seed) {
    ToolCallOptions options;
    options.id_seed = seed;
    std::vector<std::string> out;
    for (const ToolCallEvent& e : whole(format_named("hermes"),
                                        "<tool_call>{\"name\": \"now\"}</tool_call><tool_call>"
                                        "{\"name\": \"now\"}",
                                        options))
      if (e.kind == Kind::begun) out.push_back(e.id);
    return out;
  };
  const std::vector<std::string> seven = ids(7), free = ids({});
  REQUIRE(seven.size() == 2);
  CHECK(seven == ids(7));
  CHECK(seven[0] != seven[1]);
  CHECK(ids(8)[0] != seven[0]);
  CHECK(free != ids({}));
  for (const std::string& id : seven) {
    CHECK(id.size() == 9);
    CHECK(std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isalnum(c); }));
  }
}

TEST_CASE("tool calls: what is kept of an endless call is bounded") {
  ToolCallOptions options = fixed_ids();
  options.longest_call = 1000;
  for (const char* form : {"hermes", "mistral_named", "functionary", "deepseek", "llama"}) {
    const ToolCallFormat& format = format_named(form);
    for (const std::string& begin : endless_beginnings(form)) {
      ToolCallParser parser(format, answer_tools(), options);
      std::string got = told(parser.push(begin));
      std::size_t fed = begin.size();
      for (int i = 0; i < 3000; ++i, ++fed)
        got += told(parser.push(begin.substr(begin.size() - 1)));
      INFO(form << ": " << begin);
      CHECK(got.size() + 1300 > fed);  // nothing longer is held
      got += told(parser.finish());
      CHECK(got == begin + std::string(3000, begin.back()));
    }
  }
}

/// Whether a part of an answer that no content tells of is these calls, with marks and white space.
bool are_calls(std::string_view gap,
               const std::vector<std::pair<std::string, std::string>>& calls) {
  std::string left;
  std::size_t at = 0, found = 0;
  while (at < gap.size()) {
    if (gap[at] != '{') {
      left += gap[at++];
      continue;
    }
    std::size_t end = at;
    Json value;
    do {
      end = gap.find('}', end + 1);
      if (end == std::string_view::npos) return false;
      value = Json::parse(gap.substr(at, end + 1 - at), nullptr, false);
    } while (value.is_discarded());
    if (found == calls.size()) return false;
    const auto& [name, text] = calls[found++];
    const Json arguments = Json::parse(text);
    const Json inner = value.contains("arguments")    ? value["arguments"]
                       : value.contains("parameters") ? value["parameters"]
                                                      : Json();
    const bool within =
        (value.value("name", Json()) == name || value.value("function", Json()) == name) &&
        (inner == arguments || (inner.is_null() && arguments.empty()) ||
         (inner.is_string() && inner == text));
    const bool behind = value == arguments && left.find(name) != std::string::npos;
    if (!within && !behind) return false;
    at = end + 1;
  }
  if (found != calls.size()) return false;
  const auto remove = [&](std::string_view mark) {
    for (std::size_t i = left.find(mark); i != std::string::npos; i = left.find(mark))
      left.erase(i, mark.size());
  };
  for (const std::string_view mark : all_marks()) remove(mark);
  for (const Tool& tool : answer_tools()) remove(tool.name);
  return left.find_first_not_of(" \n\r\t,;[]abc123") == std::string::npos;
}

/// Contents with the calls before each of them; the last one may be empty.
struct Told {
  std::vector<std::pair<std::string, std::string>> calls;
  std::string content;
};

/// Whether the text from here is these, with nothing between them but marks and white space.
bool tells_all(std::string_view text, std::span<const Told> parts) {
  if (parts.empty()) return text.empty();
  const Told& part = parts.front();
  if (parts.size() == 1 && part.content.empty()) return are_calls(text, part.calls);
  // a content may begin like a mark of the calls before it: every place is tried
  for (std::size_t at = text.find(part.content); at != std::string_view::npos;
       at = text.find(part.content, at + 1)) {
    if (part.calls.empty() && at > 0) return false;
    if ((part.calls.empty() || are_calls(text.substr(0, at), part.calls)) &&
        tells_all(text.substr(at + part.content.size()), parts.subspan(1)))
      return true;
  }
  return false;
}

/// Nothing is lost: what is neither content nor a call is marks.
bool tells_all(const std::string& text, const std::vector<ToolCallEvent>& events) {
  std::vector<Told> parts(1);
  for (const ToolCallEvent& e : events) {
    if (e.kind == Kind::broken) return false;
    if (e.kind == Kind::begun) parts.back().calls.push_back({e.name, ""});
    if (e.kind == Kind::arguments) parts.back().calls.back().second += e.text;
    if (e.kind != Kind::content) continue;
    parts.back().content = e.text;
    parts.emplace_back();
  }
  if (parts.back().calls.empty()) parts.pop_back();
  return tells_all(std::string_view(text), parts);
}

TEST_CASE("tool calls: 10,000 damaged answers are told whole, however they are cut") {
  std::mt19937 random(11);
  const std::vector<Answer> all = answers();
  std::size_t with_calls = 0;
  for (int n = 0; n < 10'000; ++n) {
    const Answer& answer = all[random() % all.size()];
    const std::string text = damaged(answer.text, all, random);
    const ToolCallFormat& format = format_named(answer.form);
    ToolCallOptions options = fixed_ids();
    options.part_reasoning = false;  // which leaves marks out
    const std::vector<ToolCallEvent> events = whole(format, text, options);
    if (!tells_all(text, events)) FAIL("lost: " << text << "\n" << told(events));
    with_calls += std::any_of(events.begin(), events.end(),
                              [](const ToolCallEvent& e) { return e.kind == Kind::ended; });
    ToolCallParser parser(format, answer_tools(), options);
    std::vector<ToolCallEvent> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = 1 + random() % 9;
      for (ToolCallEvent& e : parser.push(std::string_view(text).substr(at, size)))
        pieces.push_back(std::move(e));
      at += size;
    }
    for (ToolCallEvent& e : parser.finish()) pieces.push_back(std::move(e));
    if (joined_events(pieces) != events) FAIL("cut elsewhere: " << text);
  }
  CHECK(with_calls > 2000);
  CHECK(with_calls < 9000);
}

TEST_CASE("tool calls: hostile answers take time in proportion to their length") {
  for (const char* form : {"hermes", "llama", "mistral_named", "deepseek"})
    for (const std::string& part :
         {std::string("<tool_call>"),
          std::string("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \""),
          std::string("<tool_call>["), std::string("{\"name\":"), std::string("[TOOL_CALLS]add"),
          std::string("<"), std::string(" "), std::string("[{"), std::string("{\"a\":")}) {
      std::string text;
      while (text.size() < (std::size_t{1} << episodic_test::all_or(20, 18))) text += part;
      const std::vector<ToolCallEvent> events = whole(format_named(form), text);
      CHECK(told(events) == text);
      ToolCallParser parser(format_named(form), answer_tools(), fixed_ids());
      std::size_t n = 0;
      for (std::size_t i = 0; i < text.size(); ++i)
        n += told(parser.push(std::string_view(text).substr(i, 1))).size();
      CHECK(n + told(parser.finish()).size() == text.size());
    }
}

}  // namespace tool_calls_test
