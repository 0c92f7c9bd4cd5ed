// SPDX-License-Identifier: Apache-2.0
// The template language beside jinja2 (make_jinja_vectors.py), and templates that mean harm.
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "episodic/base/error.hpp"
#include "episodic/text/chat_template.hpp"
#include "support/sampled.hpp"
#include "support/test.hpp"
#include "text/jinja_render.hpp"

using namespace episodic;

namespace jinja_test {

using Json = nlohmann::ordered_json;

Json matrix() {
  const char* other = std::getenv("EPISODIC_JINJA_VECTORS");
  std::ifstream file(other ? std::string(other)
                           : std::string(EPISODIC_SOURCE_DIR) + "/tests/text/vectors/jinja.json");
  return Json::parse(file);
}

/// What is printed; `*refused` is the error where there is one.
std::string rendered(const std::string& source, const std::string& variables,
                     std::string* refused) {
  try {
    ChatOptions options;
    options.variables = variables;
    return ChatTemplate(source, "T").render({}, options);
  } catch (const Error& e) {
    *refused = e.what();
    return "";
  }
}

TEST_CASE("chat templates: the language is jinja2's, or refused by name and line") {
  const Json all = matrix();
  const std::string variables = all["variables"].dump();
  REQUIRE(all["rows"].size() > 15000);
  std::size_t wrong = 0;
  for (const Json& row : all["rows"]) {
    const auto source = row[0].get<std::string>();
    std::string refused;
    const std::string got = rendered(source, variables, &refused);
    bool well = !refused.empty();
    if (!row[1].is_null())
      well = refused.empty() && got == row[1].get<std::string>();
    else if (row.size() > 2)  // a text for jinja2, and not built here: named
      well = refused.find("not supported") != std::string::npos;
    if (well && !refused.empty()) well = refused.starts_with("T: chat template, line ");
    if (well) continue;
    if (++wrong > 40) break;  // enough to see
    UNSCOPED_INFO(source << "\n  here: " << (refused.empty() ? "[" + got + "]" : refused)
                         << "\n  jinja2: " << row.dump());
  }
  CHECK(wrong == 0);
}

std::string times(std::size_t n, const std::string& part) {
  std::string out;
  out.reserve(n * part.size());
  for (std::size_t i = 0; i < n; ++i) out += part;
  return out;
}

/// `set` makes ns.x from ns.x, over and over; then comes `use`.
std::string grown(const std::string& first, const std::string& next, const std::string& use,
                  int turns = 100000) {
  return "{% set ns = namespace(x=" + first + ") %}{% for i in range(" + std::to_string(turns) +
         ") %}{% set ns.x = " + next + " %}{% endfor %}" + use;
}

struct Hostile {
  const char* name;
  std::string source;
};

std::vector<Hostile> hostile() {
  const std::size_t many = 90000;
  std::vector<Hostile> all;
  // chains: `before`, `part` many times, `behind`
  const auto chain = [&](const char* name, const std::string& before, const std::string& part,
                         const std::string& behind) {
    all.push_back({name, before + times(many, part) + behind});
  };
  chain("attributes", "{{ messages", ".a", " }}");
  chain("filters", "{{ 'a'", "|trim", " }}");
  chain("filters of a name", "{{ x", "|default('a')", " }}");
  chain("sums", "{{ 1", "+1", " }}");
  chain("differences", "{{ 1", "-1", " }}");
  chain("products", "{{ 1", "*1", " }}");
  chain("divisions", "{{ 1", "//1", " }}");
  chain("joins", "{{ 'a'", "~'a'", " }}");
  chain("and", "{{ 1", " and 1", " }}");
  chain("or", "{{ 0", " or 0", " }}");
  chain("powers", "{{ 1", "**2", " }}");
  chain("calls", "{{ x", "()", " }}");
  chain("items", "{{ 'a'", "[0]", " }}");
  chain("slices", "{{ 'a'", "[0:]", " }}");
  chain("tests", "{{ 1", " is defined", " }}");
  chain("tests negated", "{{ 1", " is not none", " }}");
  chain("comparisons", "{{ 1", "==1", " }}");
  chain("in", "{{ 'a'", " in 'a'", " }}");
  chain("choices to the left", "{{ 1", " if 1", " }}");
  chain("choices to the right", "{{ 1", " if 0 else 1", " }}");
  chain("not", "{{ ", "not ", "1 }}");
  chain("minus", "{{ ", "-", "1 }}");
  chain("round brackets", "{{ ", "(", times(many, ")") + " }}");
  chain("square brackets", "{{ ", "[", times(many, "]") + " }}");
  chain("mappings", "{{ ", "{1:", "1" + times(many, "}") + " }}");
  chain("calls within calls", "{{ ", "f(", times(many, ")") + " }}");
  chain("filters within filters", "{{ 1", "|d(1", times(many, ")") + " }}");
  chain("tests within tests", "{{ 1", " is eq(1", times(many, ")") + " }}");
  chain("bounds within bounds", "{{ x", "[x:x", times(many, "]") + " }}");
  chain("strings side by side", "{{ ", "'a' ", " }}");
  chain("elements", "{{ [", "1,", "] }}");
  chain("members", "{{ {", "1:1,", "} }}");
  chain("arguments", "{{ range(", "1,", "1) }}");
  chain("parameters", "{% macro f(", "a,", "a) %}{% endmacro %}{{ f() }}");
  chain("names", "{% set ", "a,", "a = 1 %}");
  chain("names in brackets", "{% set ", "(", "a = 1 %}");
  chain("elif", "{% if 0 %}", "{% elif 0 %}", "{% endif %}");
  chain("if", "", "{% if 1 %}", "");
  chain("for", "", "{% for a in [1] %}", "");
  chain("for with else", "", "{% for a in [] %}{% else %}", "");
  chain("macros", "", "{% macro f() %}", "");
  chain("captures", "", "{% set x %}", "");
  chain("calls of blocks", "", "{% call f() %}", "");
  chain("filters of blocks", "", "{% filter trim %}", "");
  chain("with", "", "{% with %}", "");
  chain("generation", "", "{% generation %}", "");
  chain("open tags", "", "{{", "");
  chain("comments", "", "{# #}", "");
  chain("raw", "", "{% raw %}{% endraw %}", "");
  chain("outputs", "", "{{1}}", "");
  chain("digits", "{{ ", "1234567890", " }}");
  chain("digits of a float", "{{ 1.", "123456789", "e5 }}");
  chain("zeros of an exponent", "{{ 1e", "0", "1 }}");
  chain("escapes", "{{ '", "\\u00e9", "' }}");
  chain("spaces", "{{", "\n \t", "1 }}");
  all.push_back({"blocks as deep as they may be", times(90, "{% if 1 %}{% for a in [1] %}") + "x" +
                                                      times(90, "{% endfor %}{% endif %}")});
  // values that hold themselves, or nest, or are shared
  const std::string self = "{% set n = namespace() %}{% set n.a = n %}";
  for (const char* use :
       {"{{ n }}", "{{ [n] }}", "{{ n | string | length }}", "{{ n.a | tojson }}", "{{ n == n.a }}",
        "{{ [n] == [n.a] }}", "{{ [n, n] | unique | list }}", "{{ [n, n] | sort }}",
        "{{ '%r' % n }}", "{{ [n] | join }}", "{{ n in [n.a] }}"})
    all.push_back({"a namespace that holds itself", self + use});
  all.push_back({"two that hold each other",
                 "{% set n = namespace() %}{% set m = namespace(a=n) %}{% set n.a = m %}{{ n == m "
                 "}}{{ n }}"});
  all.push_back({"a namespace in its own list",
                 "{% set n = namespace() %}{% set n.a = [n, [n]] %}{{ n.a }}"});
  for (const char* use : {"{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x == ns.x }}", ""}) {
    all.push_back({"nested lists", grown("[]", "[ns.x]", use)});
    all.push_back({"nested mappings", grown("{}", "{'a': ns.x}", use)});
    all.push_back({"nested tuples as keys", grown("()", "{(ns.x,): 1} | first", use)});
    all.push_back({"shared lists", grown("[]", "[ns.x, ns.x]", use, 60)});
    all.push_back({"shared mappings", grown("{}", "{'a': ns.x, 'b': ns.x}", use, 60)});
    all.push_back({"views", grown("[]", "{'a': ns.x}.values()", use)});
    all.push_back({"methods of methods", grown("[]", "[ns.x.count]", use)});
    all.push_back({"generators", grown("[1]", "[ns.x] | map('list')", use)});
    all.push_back({"namespaces", grown("1", "namespace(a=ns.x)", use)});
  }
  const std::string two =
      "{% set a = namespace(x=[]) %}{% set b = namespace(x=[]) %}{% for i in range(60) %}"
      "{% set a.x = [a.x, a.x] %}{% set b.x = [b.x, b.x] %}{% endfor %}";
  for (const char* use : {"{{ a.x == b.x }}", "{{ a.x < b.x }}", "{{ a.x in [b.x] }}",
                          "{{ a.x is eq b.x }}", "{{ [a.x, b.x] | sort }}",
                          "{{ [a.x, b.x] | max }}", "{{ [b.x].index(a.x) }}", "{{ a.x | string }}",
                          "{{ [a.x] | join }}", "{{ a.x ~ 'x' }}", "{{ {'a': a.x} | dictsort }}"})
    all.push_back({"two lists of 2 to the 60 elements", two + use});
  all.push_back(
      {"a chain of namespaces",
       "{% set l = namespace(x=[]) %}{% for i in range(3000) %}{% set l.x = l.x + [namespace()] "
       "%}{% endfor %}"
       "{% for i in range(2999) %}{% set n = l.x[i] %}{% set n.next = l.x[i + 1] %}{% endfor %}"});
  all.push_back({"a chain of loops",
                 "{% set ns = namespace(l=1) %}{% for i in range(90000) %}{% for a in [ns.l] %}{% "
                 "set ns.l = loop %}"
                 "{% endfor %}{% endfor %}"});
  all.push_back({"a loop that remembers itself",
                 "{% for a in [1, 2] %}{{ loop.changed(loop, [loop]) }}{% endfor %}"});
  all.push_back({"a chain of macros",
                 "{% set ns = namespace(m=1) %}{% for i in range(90000) %}{% set before = ns.m %}"
                 "{% macro m() %}{{ before }}{% endmacro %}{% set ns.m = m %}{% endfor %}"});
  all.push_back(
      {"a chain of macros in scopes of their own",
       "{% set ns = namespace(m=1) %}{% for i in range(90000) %}{% set before = ns.m %}{% with %}"
       "{% macro m() %}{{ before }}{% endmacro %}{% set ns.m = m %}{% endwith %}{% endfor %}"});
  all.push_back({"a macro in its own scope",
                 "{% macro f() %}{% set g = f %}{% endmacro %}{% set h = [f] %}{{ f() }}"});
  // recursion
  all.push_back({"a macro that calls itself", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"});
  all.push_back(
      {"two macros",
       "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}"});
  all.push_back({"a macro twice", "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}"});
  all.push_back({"a macro to a depth",
                 "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro "
                 "%}{{ f(60) }}"});
  all.push_back({"a macro's parameter", "{% macro f(a=f()) %}{% endmacro %}{{ f() }}"});
  all.push_back(
      {"a caller",
       "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}"});
  all.push_back(
      {"a loop without an end", "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}"});
  all.push_back({"a loop over itself",
                 "{% set ns = namespace() %}{% for a in [1] recursive %}{% set ns.l = loop %}{{ "
                 "ns.l([ns.l]) }}{% endfor %}"});
  all.push_back({"map within map", "{{ 'a' | map(" + times(20000, "'map',") + "'list') | list }}"});
  all.push_back(
      {"select within map", "{{ ['a'] | map('select'" + times(20000, ",'select'") + ") | list }}"});
  // texts and lists that grow
  for (const char* next : {"ns.x ~ ns.x",
                           "ns.x + ns.x",
                           "ns.x * 9",
                           "[ns.x, ns.x] | join",
                           "ns.x.replace('a', 'aa')",
                           "ns.x | replace('', 'aa')",
                           "ns.x.join(['', '', ''])",
                           "'%s%s' % (ns.x, ns.x)",
                           "'{0}{0}'.format(ns.x)",
                           "ns.x.center((ns.x | length) * 2)",
                           "ns.x.zfill((ns.x | length) * 2)",
                           "[ns.x] | tojson",
                           "[ns.x, ns.x] | string",
                           "(ns.x ~ '\\n') | indent(ns.x)",
                           "ns.x | urlencode ~ '%%'",
                           "(ns.x ~ '<') | e | string * 2",
                           "ns.x.ljust((ns.x | length) * 3)",
                           "(ns.x ~ '\\t').expandtabs(1000)",
                           "(ns.x ~ '\xc3\x9f\xef\xac\x83').upper() * 2",
                           "ns.x | batch(1) | list | string",
                           "ns.x.split('a') | string"})
    all.push_back({next, grown("'a'", next, "{{ ns.x | length }}", 100)});
  for (const char* next :
       {"ns.x + ns.x", "ns.x * 3", "ns.x | list + ns.x", "ns.x[::1] + ns.x", "(ns.x | sort) + ns.x",
        "(ns.x | reverse | list) + ns.x", "(ns.x | map('string') | list) + ns.x",
        "(ns.x | select | list) * 2", "(ns.x | groupby(0) | list) * 2",
        "ns.x | batch(2, 1) | list * 3", "(ns.x | slice(2) | list) * 3"})
    all.push_back({next, grown("[1]", next, "{{ ns.x | length }}", 100)});
  for (const char* whole : {"'a' * 10**9",
                            "'' * 2**62",
                            "[] * 2**62",
                            "() * 2**100",
                            "'a' * 2**100",
                            "[1] * 10**9",
                            "'ab' * 268435456",
                            "'a'.ljust(2**31)",
                            "'a'.center(10**18)",
                            "'a'.zfill(10**12)",
                            "'a' | center(10**9)",
                            "'\\t'.expandtabs(10**9)",
                            "'%1000000000d' % 1",
                            "'%099999999d' % 1",
                            "'%.99999f' % 1.5",
                            "'%99999s' * 9999 % 1",
                            "2 ** 10**9",
                            "10 ** 10 ** 10",
                            "1.5 ** 10**30",
                            "range(10**30)",
                            "range(-(2**126), 2**126, 2**125) | list",
                            "[1][::2**126]",
                            "'abc'[2**126::-(2**126)]",
                            "'abc'[-(2**126)]",
                            "(-(2**126) * 2) // -1",
                            "(-(2**126) * 2) % -1",
                            "-(-(2**126) * 2)",
                            "(-(2**126) * 2) | abs",
                            "[1] | batch(10**9, 0) | list",
                            "[1] | slice(10**9) | list",
                            "[1] | slice(9999999) | list",
                            "[1] | tojson(indent=10**9)",
                            "[[1]] | tojson(indent='a' * 9999999)",
                            "1.5 | round(10**9)",
                            "'x' | indent(10**9)",
                            "'9' * 9999999 | int",
                            "('9' * 99999) | int",
                            "('9' * 99999 ~ '.5') | float",
                            "'a' | truncate(10**30)",
                            "'a' | truncate(-5)",
                            "'a' | truncate(5, leeway=-(2**100))",
                            "'a'.split('a', 2**100)",
                            "'a'.replace('', 'b' * 9999999) * 99",
                            "'a'.find('a', -(2**126), 2**126)",
                            "'a' | int(base=2**90)",
                            "strftime_now('%Y' * 99999)",
                            "strftime_now('%')",
                            "strftime_now('%5000d')",
                            "strftime_now('%Q%E%')",
                            "'%(' ~ 'a' * 99999 ~ ')s'",
                            "'{' * 99999",
                            "'{99999999999999999999}'.format(1)",
                            "messages[2**100]",
                            "[1, 2, 3][2**64]"})
    all.push_back({whole, "{{ " + std::string(whole) + " }}"});
  // work without much to show for it
  const std::string large = "{% set s = 'ab\xc3\xa9' * 1000000 %}{% set l = range(90000) | list %}";
  for (const char* use : {"s[0]",
                          "s[-1]",
                          "s[2999999]",
                          "s | first",
                          "s | last",
                          "'b' * 200 ~ 'x' in s",
                          "s.count('ab')",
                          "s.find('zz')",
                          "s.rfind('zz')",
                          "s.split('a') | length",
                          "s.upper() | length",
                          "s | title | length",
                          "s | wordcount",
                          "s | trim | length",
                          "s.strip(s) | length",
                          "s == s ~ ''",
                          "s < s ~ 'a'",
                          "s.isalpha()",
                          "s | unique | list | length",
                          "s | list | length",
                          "s[::-1] | length",
                          "s | reverse | length",
                          "[s] | tojson | length",
                          "s in l",
                          "l == l + []",
                          "99999 in l",
                          "l.index(89999)",
                          "l.count(5)",
                          "l | unique | list | length",
                          "(l + l) | unique | list | length",
                          "l | sort(reverse=true) | first",
                          "l | map('string') | sort | first",
                          "l | max",
                          "l | sum",
                          "l | join | length",
                          "l | string | length",
                          "l | groupby(0) | length",
                          "l | select('in', l) | list | length",
                          "l | reject('in', s) | list | length",
                          "s.splitlines() | length",
                          "s.partition('zz') | length",
                          "s.rsplit('a', 1) | length",
                          "s.swapcase() | length",
                          "s.lower() | lower | length",
                          "s ~ s | length",
                          "s | e | length",
                          "s.startswith(s)",
                          "(s, s) == (s, s ~ '')",
                          "{s: 1}[s ~ '']",
                          "s | urlencode | length",
                          "s.translate({})",
                          "s % 1",
                          "l[::-1][::-1] | length",
                          "s.replace('a', 'b').replace('b', 'a') | length"})
    all.push_back({use, large + "{% for i in range(90000) %}{% if (" + use +
                            ") == 'never' %}1{% endif %}{% endfor %}"});
  all.push_back(
      {"loops", "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"});
  all.push_back(
      {"conditions of loops", "{% for i in range(90000) if range(90000) | list %}{% endfor %}"});
  all.push_back(
      {"text", "{% for i in range(90000) %}" + times(20000, "abcdefghij") + "{% endfor %}"});
  all.push_back({"captures",
                 "{% set x = 'a' * 1000000 %}{% for i in range(90000) %}{% set y %}{{ x }}{% "
                 "endset %}{% endfor %}"});
  all.push_back({"names", "{% for i in range(90000) %}{{ " + times(2000, "x") +
                              " }}{% set a = i %}{% endfor %}"});
  all.push_back({"many variables", [] {
                   std::string s;
                   for (int i = 0; i < 40000; ++i) s += "{% set v" + std::to_string(i) + "=1 %}";
                   return s +
                          "{% for i in range(90000) %}{% for j in range(1000) %}{{ v9 }}{% endfor "
                          "%}{% endfor %}";
                 }()});
  all.push_back({"names in deep scopes", times(100, "{% with a = 1 %}") +
                                             "{% for i in range(90000) %}{{ " + times(99, "x ~ ") +
                                             "x }}{% endfor %}" + times(100, "{% endwith %}")});
  all.push_back({"long names", [] {
                   const std::string name(20000, 'n');
                   std::string s;
                   for (char c = 'a'; c < 'u'; ++c) s += "{% set " + name + c + " = 1 %}";
                   return s + "{% for i in range(90000) %}{{ " + name + "a ~ " + name +
                          "z }}{% endfor %}";
                 }()});
  const auto named = [](std::size_t n) {
    std::string s;
    for (std::size_t i = 0; i < n; ++i) s += "n" + std::to_string(i) + "=1,";
    return s;
  };
  all.push_back({"arguments by name", "{{ dict(" + named(80000) + ") | length }}"});
  all.push_back({"parameters and arguments by name",
                 "{% macro f(" + named(30000) + ") %}{% endmacro %}{{ f(" + named(30000) + ") }}"});
  all.push_back(
      {"attributes of a namespace", "{% set n = namespace(" + named(80000) + ") %}{{ n.n7 }}"});
  // what a generator keeps silent about
  all.push_back({"failures that nobody sees",
                 large +
                     "{% for i in range(90000) %}{% set g = [s ~ s] | map('replace', 'zz', 'y') %}"
                     "{% set h = [s] | map('nothing') %}{% endfor %}"});
  all.push_back({"keys", large + "{% set d = {s: 1} %}{% for i in range(90000) %}{% if s in d and "
                                 "d[s] and d.get(s) %}{% endif %}{% endfor %}"});
  all.push_back({"a needle that is nearly everywhere",
                 "{% set s = 'a' * 9000000 %}{% set n = 'a' * 200 ~ 'b' ~ 'a' * 50 %}{% for i in "
                 "range(90000) %}{% if n in s %}{% endif %}{% endfor %}"});
  all.push_back(
      {"undefined names",
       "{% for i in range(90000) %}{{ x ~ y ~ z }}{{ x | default(y) | default(z) }}{% endfor %}"});
  all.push_back({"namespaces by the thousand",
                 "{% for i in range(90000) %}{% set n = namespace(a=namespace(b=i)) %}{% for j in "
                 "range(50) %}{% set m = namespace() %}{% endfor %}{% endfor %}"});
  all.push_back({"macros by the thousand",
                 "{% for i in range(90000) %}{% for j in range(90) %}{% macro f() %}{% endmacro "
                 "%}{{ f() }}{% endfor %}{% endfor %}"});
  all.push_back({"spans",
                 "{% set c = messages[0].content %}{% for i in range(90000) %}{% for j in "
                 "range(99) %}{{ c[0] ~ 'x' ~ c[1] }}{% endfor %}{% endfor %}"});
  return all;
}

double seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

long peak_mebibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

TEST_CASE("chat templates that mean harm render or are refused, within bounds", "[heavy]") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr double kSlower = 12;
  constexpr long kLarger = 8;
#else
  constexpr double kSlower = 1;
  constexpr long kLarger = 1;
#endif
  const std::vector<ChatMessage> messages{{"user", "Hi <|im_end|> \xc3\xa9"}, {"assistant", ""}};
  const std::vector<Hostile> all = hostile();
  REQUIRE(all.size() > 250);
  const long before = peak_mebibytes();
  double longest = 0;
  for (const Hostile& h : episodic_test::sampled(all, all.size() / 3)) {
    if (const char* only = std::getenv("EPISODIC_HOSTILE"); only && h.name != std::string(only))
      continue;
    const double begin = seconds();
    std::string said = "it renders";
    try {
      ChatTemplate(h.source, "T").render_prompt(messages);
    } catch (const Error& e) {
      said = e.what();
      CHECK(said.size() < 500);
      CHECK(said.find('\n') == std::string::npos);
    }
    const double took = seconds() - begin;
    longest = std::max(longest, took);
    INFO(h.name << ": " << h.source.substr(0, 200) << "\n" << said);
    CHECK(took < 3 * kSlower);
    CHECK(peak_mebibytes() - before < 400 * kLarger);
    if (std::getenv("EPISODIC_HOSTILE_SHOW"))
      std::printf("%6.2f s %5ld MB  %s: %s\n", took, peak_mebibytes() - before, h.name,
                  said.c_str());
  }
}

TEST_CASE("chat templates: what is benign is not refused for its size", "[heavy]") {
  const ChatTemplate chat(
      "{% for m in messages %}{% if m.role == 'user' and m.content is string %}"
      "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] | trim + '<|im_end|>' + '\\n' }}"
      "{% else %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% endif %}{% endfor %}",
      "T");
  const std::vector<ChatMessage> empty(100000, ChatMessage{"user", ""});
  CHECK(chat.render(empty).size() == 100000 * 28);
  std::vector<ChatMessage> long_ones(100, ChatMessage{"assistant", std::string(100000, 'a')});
  long_ones.resize(200, ChatMessage{"user", times(25000, "\xe4\xb8\x96 ")});
  CHECK(chat.render(long_ones).size() > 19'000'000);
  // as a template may put a conversation together
  const ChatTemplate slow(
      "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s ~ m.content %}{% "
      "endfor %}{{ ns.s }}",
      "T");
  CHECK(slow.render(long_ones).size() == 20'000'000);
}

}  // namespace jinja_test
