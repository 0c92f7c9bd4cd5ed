// SPDX-License-Identifier: Apache-2.0
// `episodic tokenize`: ids and tokens of a text.

#include <fmt/format.h>

#include "commands.hpp"
#include "common.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/session/engine.hpp"
#include "episodic/text/tokenizer.hpp"

namespace episodic::tools {
namespace {

struct TokenizeFlags {
  CommonFlags common;
  std::filesystem::path model;
  TextFlags text;
  JsonFlag json;
};

void run(const TokenizeFlags& flags) {
  flags.common.apply();
  require_model_dir(flags.model);
  const std::unique_ptr<Tokenizer> tokenizer = load_model_tokenizer(flags.model);
  const std::vector<std::int64_t> ids = tokenizer->encode(flags.text.read());
  constexpr std::size_t kPart = 1 << 16;  // of a long text not all lines at once
  std::string lines;
  for (const std::int64_t id : ids) {
    lines += fmt::format("{:>8}  {}\n", id, on_one_line(tokenizer->token(id)));
    if (lines.size() < kPart) continue;
    flags.json.say(lines);
    lines.clear();
  }
  flags.json.say(lines);
  if (!flags.json.wanted()) return;
  Json tokens = Json::array();
  for (const std::int64_t id : ids) tokens.push_back(tokenizer->token(id));
  flags.json.write({{"ids", ids}, {"tokens", tokens}});
}

}  // namespace

void add_tokenize(Command& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  Command sub = app.subcommand("tokenize", "Token ids of a text");
  sub.footer("Example:\n  episodic tokenize --model M --text book.txt --json ids.json");
  sub.option("--model", flags->model, "Model directory with tokenizer.json").required();
  flags->text.add_to(sub, sub, "--text", "Text file").required();
  flags->json.add_to(sub, "Ids and tokens as JSON");
  flags->common.add_to(sub, false);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
