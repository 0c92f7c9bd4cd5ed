// SPDX-License-Identifier: Apache-2.0
// What is wrong with a command line, in one line, with what was probably meant.

#include "usage.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

namespace episodic::tools {
namespace {

/// Edits (a letter in, out, changed, or two neighbours swapped) from one word to another.
std::size_t edits(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

/// Flags that people know from llama.cpp, vLLM, transformers and Ollama.
struct Known {
  std::vector<std::string_view> words;
  std::vector<std::string_view> flags;  ///< ours: the first that the program has
  std::string_view otherwise;           ///< what is said where it has none
};

const std::vector<Known> kKnown{
    {{"--ctx-size", "-c", "--max-model-len", "--n-ctx", "--num-ctx", "--context-length",
      "--max-seq-len"},
     {},
     "a text may be of any length, and --memory '{\"n_local\": N}' sets the window"},
    {{"--n-predict", "-n", "--predict", "--num-predict", "--max-new-tokens", "--max-tokens"},
     {"--max-new"},
     "nothing is generated here"},
    {{"-m", "--model-path", "--hf-model"}, {"--model"}, "no model is read here"},
    {{"-hf", "-hfr", "--hf-repo", "--model-id", "--tokenizer"},
     {},
     "models are not fetched: 'hf download' one, and name its folder with --model"},
    {{"--temp"}, {"--temperature"}, "nothing is drawn here"},
    {{"--repeat-penalty"}, {"--repetition-penalty"}, "nothing is drawn here"},
    {{"-s"}, {"--seed"}, "nothing is drawn here"},
    {{"-ngl", "--gpu-layers", "--n-gpu-layers", "--gpu", "--cuda", "-dev"},
     {"--device"},
     "no model is computed here"},
    {{"-t", "-tb", "--threads-batch", "--n-threads", "--num-threads"},
     {"--threads"},
     "it has no loops to divide"},
    {{"-p"}, {"--prompt", "--text"}, "it takes no prompt"},
    {{"-f", "--file"}, {"--prompt-file", "--text"}, "it takes no text"},
    {{"-sys", "--system-prompt"}, {"--system"}, "it takes no message of the system"},
    {{"-cnv", "--conversation", "-i", "--interactive"}, {}, "a conversation is 'episodic chat'"},
    {{"--jinja", "--chat-template", "--chat-template-file"},
     {"--chat"},
     "the model's own template is taken"},
    {{"-r", "--reverse-prompt"}, {"--stop"}, "nothing is generated here"},
    {{"-b", "-ub", "--batch-size", "--ubatch-size", "--max-num-batched-tokens"},
     {},
     "--memory '{\"chunk\": N}' sets the tokens of a step"},
    {{"-ctk", "-ctv", "--cache-type-k", "--cache-type-v", "--kv-cache-dtype"},
     {},
     "--memory '{\"kv_dtype\": \"int8\"}' sets the type of keys and values"},
    {{"--gpu-memory-utilization"}, {}, "--memory '{\"device_bytes\": \"8GB\"}' bounds the memory"},
    {{"--dtype", "--load-in-4bit", "--load-in-8bit", "--quantization", "-q"},
     {"--quantize"},
     "weights are taken as they are stored"},
    {{"--served-model-name", "--alias", "-a"}, {"--name"}, "it serves nothing"},
    {{"--api-key"}, {}, "the variable EPISODIC_API_KEY holds the key of 'episodic serve'"},
    {{"--parallel", "-np", "--max-num-seqs"}, {}, "one sequence is computed at a time"},
    {{"--flash-attn", "-fa"}, {}, "attention never stores its scores; leave it out"},
    {{"--mlock", "--no-mmap"}, {}, "weights are mapped as they lie; leave it out"},
    {{"--trust-remote-code"}, {}, "no model brings code; leave it out"},
    {{"--verbose", "-v", "--log-disable"}, {"--quiet"}, "leave it out"},
};

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& names) {
  constexpr std::size_t kPrefix = 5;  // "--mem"
  std::string best;
  std::size_t least = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& name : names)
    if (const std::size_t n = edits(word, name); n < least) {
      least = n;
      best = name;
    }
  if (!best.empty() || word.size() < kPrefix) return best;
  for (const std::string& name : names)  // the shortest that it begins
    if (name.starts_with(word) && (best.empty() || name.size() < best.size())) best = name;
  return best;
}

std::string known_elsewhere(const std::string& word, const std::vector<std::string>& flags) {
  for (const Known& known : kKnown) {
    if (std::find(known.words.begin(), known.words.end(), word) == known.words.end()) continue;
    for (const std::string_view flag : known.flags)
      if (std::find(flags.begin(), flags.end(), flag) != flags.end())
        return fmt::format("it is {} here", flag);
    return std::string(known.otherwise);
  }
  return {};
}

namespace {

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// What is said of the first flag that is none of `flags`; empty if each is one.
std::string unknown_flag(const std::string& who, const std::string& help,
                         std::span<const std::string> words, const std::vector<std::string>& flags,
                         const UsageError& error) {
  const auto says = [&](std::string_view part) {
    return std::string_view(error.what()).find(part) != std::string_view::npos;
  };
  for (std::string word : words) {
    if (word == "--") break;
    word = word.substr(0, word.find('='));
    if (word.starts_with("--")) {
      if (has(flags, word)) continue;
    } else if (!word.starts_with("-") || (!says(word) && !says("required"))) {
      continue;  // a word with one dash may be a value
    }
    const std::string elsewhere = known_elsewhere(word, flags);
    if (elsewhere.empty() && !word.starts_with("--") && !says(word)) continue;
    const std::string meant = elsewhere.empty() ? nearest(word, flags) : std::string();
    if (!elsewhere.empty())
      return fmt::format("{} has no flag {}; {} ({} --help)", who, word, elsewhere, help);
    if (!meant.empty())
      return fmt::format("{} has no flag {}; did you mean {}? ({} --help)", who, word, meant, help);
    if (word.starts_with("--"))
      return fmt::format("{} has no flag {}; {} --help lists those it has", who, word, help);
  }
  return {};
}

}  // namespace

std::string usage_problem(const Command& app, const std::string& program,
                          const std::vector<std::string>& words, const UsageError& error) {
  const std::vector<std::string> commands = app.subcommand_names();
  if (commands.empty()) {
    const std::string flag = unknown_flag("it", program, words, app.flag_names(), error);
    return flag.empty() ? fmt::format("{} ({} --help)", error.what(), program) : flag;
  }
  if (words.empty())
    return fmt::format("a command is missing; there are {} ({} --help)", fmt::join(commands, ", "),
                       program);
  const std::string& command = words.front();
  if (!has(commands, command)) {
    if (command.starts_with("-")) return fmt::format("{} ({} --help)", error.what(), program);
    const std::string meant = nearest(command, commands);
    return meant.empty()
               ? fmt::format("there is no command '{}'; there are {}", command,
                             fmt::join(commands, ", "))
               : fmt::format("there is no command '{}'; did you mean '{}'?", command, meant);
  }
  const std::string help = fmt::format("{} {}", program, command);
  const std::string flag = unknown_flag(command, help, std::span(words).subspan(1),
                                        app.subcommand(command).flag_names(), error);
  return flag.empty() ? fmt::format("{}: {} ({} --help)", command, error.what(), help) : flag;
}

}  // namespace episodic::tools
