// SPDX-License-Identifier: Apache-2.0
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "episodic/base/error.hpp"
#include "episodic/text/chat_template.hpp"
#include "target.hpp"

using namespace episodic;

// Input: a template, then after a zero byte its variables as JSON.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto zero = text.find('\0');
  try {
    const ChatTemplate chat(text.substr(0, zero), "fuzz",
                            {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    ChatOptions options;
    options.now = std::tm{};  // the same every time
    if (zero != std::string_view::npos) options.variables = text.substr(zero + 1);
    const ChatMessage messages[] = {{"system", "Be brief."},
                                    {"user", " Who wrote Emma? "},
                                    {"assistant", "Austen"},
                                    {"user", ""}};
    const std::string once = chat.render(messages, options);
    fuzz::require(chat.render(messages, options) == once, "it writes the same twice");
  } catch (const Error&) {
  }
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
    inputs.push_back(t["template"].get<std::string>() + std::string(1, '\0') +
                     cases[which++ % cases.size()]["variables"].dump());
  }
  return inputs;
}

void repair(std::string&) {}

}  // namespace fuzz
