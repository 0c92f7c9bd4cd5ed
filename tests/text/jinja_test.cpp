// SPDX-License-Identifier: Apache-2.0
// The template language beside jinja2 (make_jinja_vectors.py), and templates that mean harm.
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "episodic/base/error.hpp"
#include "episodic/text/chat_template.hpp"
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
std::string rendered(const std::string& source, const std::string& variables, std::string* refused) {
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

}  // namespace jinja_test
