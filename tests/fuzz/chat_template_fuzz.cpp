// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "episodic/base/error.hpp"
#include "episodic/text/chat_template.hpp"
#include "target.hpp"
#include "text/jinja_render.hpp"

using namespace episodic;

namespace {

constexpr std::size_t kLongest = 1 << 20;
constexpr double kMostSeconds = 20;  // with sanitizers, on a machine that does something else

/// A part between \x01 and \x02 is repeated four to the power of the digit behind it, so that short
/// inputs reach long chains.
std::string unrolled(std::string_view input) {
  std::string out;
  std::size_t begin = std::string::npos;
  for (std::size_t i = 0; i < input.size() && out.size() < kLongest; ++i) {
    if (input[i] == '\x01') {
      begin = out.size();
    } else if (input[i] == '\x02') {
      const char digit = i + 1 < input.size() ? input[++i] : '0';
      const std::string part = begin == std::string::npos ? "" : out.substr(begin);
      const std::size_t n = digit >= '0' && digit <= '8' ? std::size_t{1} << 2 * (digit - '0') : 1;
      for (std::size_t k = 1; k < n && out.size() < kLongest; ++k) out += part;
      begin = std::string::npos;
    } else {
      out += input[i];
    }
  }
  return out;
}

double seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

/// Each line the fields of a message.
std::vector<ChatMessage> messages_of(std::string_view lines) {
  std::vector<ChatMessage> out{{"system", "Be brief."}, {"user", " Who <s> wrote Emma? "}};
  while (!lines.empty() && out.size() < 40) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    const std::string fields(lines.substr(0, end));
    const bool assistant = fields.find("assistant") != std::string::npos;
    out.push_back({assistant ? "assistant" : "user", "", fields});
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return out;
}

/// Within a small budget, so that many inputs can be tried: what holds for it holds for larger
/// ones. \return whether it came to an end
bool ends_within_bounds(std::string_view source) {
  namespace jinja = text::jinja;
  try {
    const jinja::Block block = jinja::parse(source);
    jinja::Budget budget(200'000, std::size_t{16} << 20);
    jinja::Named globals;
    globals.emplace_back("text", jinja::text_value(budget, "a<s>\xc3\xa9 b\n", true));
    globals.emplace_back("list", jinja::list_value(budget, {jinja::Value(jinja::Integer{1}), {}}));
    const RenderedPrompt prompt = jinja::render(block, std::move(globals), budget);
    std::size_t at = 0;
    for (const TextSpan& span : prompt.input) {
      fuzz::require(span.begin < span.end && (at == 0 || span.begin > at),
                    "its spans are in order");
      at = span.end;
    }
    fuzz::require(at <= prompt.text.size(), "its spans are within the text");
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

// Input: a template, then after a zero byte its variables as JSON, and after another the messages.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text = unrolled({reinterpret_cast<const char*>(data), size});
  const std::size_t zero = std::min(text.find('\0'), text.size());
  const std::size_t next = std::min(text.find('\0', std::min(zero + 1, text.size())), text.size());
  const std::string source = text.substr(0, zero);
  const double begin = seconds();
  const bool ends = ends_within_bounds(source);
  if (ends || next < text.size()) try {
      const ChatTemplate chat(source, "fuzz", {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
      ChatOptions options;
      options.now = std::tm{};  // the same every time
      if (zero < next) options.variables = text.substr(zero + 1, next - zero - 1);
      const auto messages =
          messages_of(std::string_view(text).substr(std::min(next + 1, text.size())));
      const RenderedPrompt once = chat.render_prompt(messages, options);
      fuzz::require(chat.render_prompt(messages, options).input == once.input,
                    "it writes the same twice");
    } catch (const Error&) {
    }
  fuzz::require(seconds() - begin < kMostSeconds, "it is done in time");
  return 0;
}

namespace fuzz {

/// The templates that the tests compare with transformers, each with the variables of one of its
/// conversations.
std::vector<std::string> seeds() {
  std::ifstream file(EPISODIC_SOURCE_DIR "/tests/text/vectors/chat.json");
  std::vector<std::string> inputs;
  std::size_t which = 0;
  const auto all = nlohmann::ordered_json::parse(file);
  for (const auto& t : all["templates"]) {
    const auto& cases = t["cases"];
    auto variables = cases[which++ % cases.size()]["variables"];
    std::string messages;
    for (const auto& message : variables["messages"]) messages += message.dump() + '\n';
    variables.erase("messages");
    inputs.push_back(t["template"].get<std::string>() + std::string(1, '\0') + variables.dump() +
                     std::string(1, '\0') + messages);
  }
  for (const char* chain : {"{{ x\x01.a\x02"
                            "8 }}",
                            "{{ 'a'\x01|trim\x02"
                            "6 }}",
                            "{{ \x01(\x02"
                            "7",
                            "{{ 1\x01+1\x02"
                            "8 }}",
                            "\x01{% if 1 %}\x02"
                            "7",
                            "{% if 0 %}\x01{% elif 0 %}\x02"
                            "7{% endif %}",
                            "{{ \x01[\x02"
                            "3\x01]\x02"
                            "3 }}",
                            "{{ 1\x01 if 1 else 1\x02"
                            "7 }}",
                            "{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = "
                            "[n.x, n] %}{% endfor %}{{ n.x }}",
                            "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = "
                            "n.x ~ n.x %}{% endfor %}{{ n.x | upper }}",
                            "{% macro f(a, b=1) %}{{ f(b, a) }}{{ caller() }}{% endmacro %}{% call "
                            "f(1) %}{{ text }}{% endcall %}",
                            "{% for a in [1, [2]] recursive %}{{ loop([a]) }}{% endfor %}{% filter "
                            "indent(2) %}{{ text }}{% endfilter %}",
                            "{% with a = text %}{{ a.split() | map('upper') | join('-') }}{{ '%s' "
                            "% a }}{{ [a] | tojson(indent=2) }}{% endwith %}",
                            "{{ list | sort(reverse=true) | unique | list | groupby(0) }}{{ "
                            "text[::-1] }}{{ range(9)[1:5:2] | list }}"})
    inputs.push_back(chain);
  return inputs;
}

void repair(std::string&) {}

}  // namespace fuzz
