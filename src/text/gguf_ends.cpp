// SPDX-License-Identifier: Apache-2.0
#include "gguf_ends.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_map>

#include "episodic/text/gguf_vocabulary.hpp"

namespace episodic {
namespace {

// The names that llama.cpp of 2026 ends by (tests/text/make_ends_vectors.py asks it).
constexpr std::string_view kEnds[] = {"<|eot_id|>",
                                      "<|im_end|>",
                                      "<|end|>",
                                      "<|return|>",
                                      "<|call|>",
                                      "<|flush|>",
                                      "<|calls|>",
                                      "<end_of_turn>",
                                      "<|endoftext|>",
                                      "</s>",
                                      "<|eom_id|>",
                                      "<EOT>",
                                      "_<EOT>",
                                      "[EOT]",
                                      "[EOS]",
                                      "<eos>",
                                      "<|end_of_text|>",
                                      "<end_of_utterance>",
                                      "<turn|>",
                                      "<|tool_response>",
                                      "[e~[",
                                      "<|ifm|im_end|>",
                                      "<\xef\xbd\x9c"
                                      "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"};
constexpr std::string_view kFimPad[] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"};
constexpr std::string_view kFimRep[] = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>",
                                        "<reponame>"};
constexpr std::string_view kFimSep[] = {"<|file_sep|>", "<|plamo:file_separator|>"};
constexpr std::string_view kFimRest[] = {
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "<|code_prefix|>", "<|prefix|>",
    "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<SUF>", "<|code_suffix|>", "<|suffix|>",
    "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<MID>", "<|code_middle|>", "<|middle|>"};

template <class Names>
bool among(std::string_view token, const Names& names) {
  return std::find(std::begin(names), std::end(names), token) != std::end(names);
}

/// Two names that end nothing where others stand beside them.
struct Exceptions {
  bool end = false;  ///< <|end|>: a message of several (gpt-oss, Solar)
  bool s = false;    ///< </s>: Gemma 4
};

Exceptions exceptions_of(const std::vector<std::string_view>& tokens) {
  const auto has = [&](std::string_view name) {
    return std::find(tokens.begin(), tokens.end(), name) != tokens.end();
  };
  const bool call = has("<|call|>") || has("<|calls|>");
  return {call && (has("<|return|>") || has("<|flush|>")), has("<|tool_response>")};
}

bool is_exception(std::string_view token, const Exceptions& except) {
  return (except.end && token == "<|end|>") || (except.s && token == "</s>");
}

}  // namespace

std::vector<std::int64_t> gguf_end_tokens(const std::vector<std::string_view>& tokens,
                                          const GgufEndKeys& keys) {
  const Exceptions except = exceptions_of(tokens);
  std::vector<std::int64_t> ends;
  const auto add = [&](std::int64_t id) {
    if (id < 0 || id >= static_cast<std::int64_t>(tokens.size())) return;
    if (is_exception(tokens[static_cast<std::size_t>(id)], except)) return;
    if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  };
  for (const std::int64_t id : {keys.eos, keys.eot, keys.eom}) add(id);
  std::unordered_map<std::string_view, std::int64_t>
      last;  // of a repeated name the last one counts
  for (std::size_t id = 0; id < tokens.size(); ++id)
    last[tokens[id]] = static_cast<std::int64_t>(id);
  const auto add_by_name = [&](const auto& names, bool only_first) {
    std::vector<std::int64_t> found;
    for (const std::string_view name : names)
      if (const auto it = last.find(name); it != last.end()) found.push_back(it->second);
    std::sort(found.begin(), found.end());
    if (only_first && !found.empty()) found.erase(found.begin() + 1, found.end());
    for (const std::int64_t id : found) add(id);
  };
  add_by_name(kEnds, false);
  const auto fim = [&](std::int64_t key, const auto& names) {
    const bool named = key >= 0 && key < static_cast<std::int64_t>(tokens.size());
    named ? add(key) : add_by_name(names, true);
  };
  fim(keys.fim_pad, kFimPad);
  fim(keys.fim_rep, kFimRep);
  fim(keys.fim_sep, kFimSep);
  return ends;
}

namespace text {

std::vector<std::int64_t> corrected_types(const std::vector<std::string_view>& tokens,
                                          std::vector<std::int64_t> types) {
  constexpr std::int64_t kNormal = 1, kControl = 3, kUserDefined = 4;
  const Exceptions except = exceptions_of(tokens);
  if (types.empty()) types.assign(tokens.size(), kNormal);
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view token = tokens[id];
    if (is_exception(token, except))
      types[id] = token == "<|end|>" ? kUserDefined : kNormal;
    else if (among(token, kEnds) || among(token, kFimPad) || among(token, kFimRep) ||
             among(token, kFimSep) || among(token, kFimRest))
      types[id] = kControl;
  }
  return types;
}

}  // namespace text
}  // namespace episodic
