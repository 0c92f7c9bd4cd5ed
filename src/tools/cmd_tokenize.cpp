// SPDX-License-Identifier: Apache-2.0
// `episodic tokenize`: ids and tokens of a text.

#include "commands.hpp"
#include "common.hpp"
#include "episodic/text/tokenizer.hpp"

namespace episodic::tools {
namespace {

struct TokenizeFlags {
  CommonFlags common;
  std::filesystem::path model, text, json;
};

void run(const TokenizeFlags& flags) {
  flags.common.apply();
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(flags.model);
  const std::vector<std::int64_t> ids = tokenizer->encode(read_text(flags.text));
  Json tokens = Json::array();
  for (const std::int64_t id : ids) tokens.push_back(tokenizer->token(id));
  write_json(flags.json, {{"ids", ids}, {"tokens", tokens}});
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* sub = app.add_subcommand("tokenize", "Token ids of a text");
  sub->footer("Example:\n  episodic tokenize --model M --text book.txt --json ids.json");
  sub->add_option("--model", flags->model, "Model directory with tokenizer.json")->required();
  sub->add_option("--text", flags->text, "Text file; - is stdin")->required();
  sub->add_option("--json", flags->json, "Result file (default: stdout)");
  flags->common.add_to(*sub, false);
  sub->callback([flags] { run(*flags); });
}

}  // namespace episodic::tools
