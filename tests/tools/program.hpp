// SPDX-License-Identifier: Apache-2.0
#pragma once
// The `episodic` program, run as a shell runs it, and what it is given to read.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "support/shared.hpp"
#include "support/temp_dir.hpp"

namespace program {

namespace fs = std::filesystem;
using Json = nlohmann::json;

using Scratch = TempDir;

inline std::string quoted(const std::string& s) { return "'" + s + "'"; }

inline std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

inline void put(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

struct Run {
  int status = -1;
  std::string out, err;
};

/// Before a command that must end, and might not. Long: sanitizers and busy machines are slow.
inline constexpr const char* kMustEnd = "timeout 900 ";

/// The program with arguments as a shell takes them. \param before words before it, as `PATH=/none`
inline Run run_episodic(const std::string& arguments, const std::string& before = "",
                        const char* program = "episodic") {
  const Scratch scratch;
  const std::string command = before + " '" EPISODIC_BINARY_DIR "/bin/" + program + "' " +
                              arguments + " > " + quoted((scratch / "out").string()) + " 2> " +
                              quoted((scratch / "err").string());
  Run run;
  const int status = std::system(command.c_str());
  run.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  run.out = contents(scratch / "out");
  run.err = contents(scratch / "err");
  return run;
}

/// What a program that must not fail says as JSON.
inline Json json_of(const std::string& arguments, const std::string& before = "",
                    const char* program = "episodic") {
  const Run run = run_episodic(arguments + " --json -", before, program);
  return run.status == 0 ? Json::parse(run.out) : Json("failed: " + run.err);
}

inline bool one_line(const std::string& text) {
  return !text.empty() && std::count(text.begin(), text.end(), '\n') == 1 && text.back() == '\n';
}

/// The shipped model, else the first one that was handed to the project.
inline std::optional<fs::path> recall_model() {
  const fs::path shipped = fs::path(EPISODIC_SOURCE_DIR) / "models" / "recall-2m6";
  if (fs::exists(shipped / "config.json")) return shipped;
  if (const auto shared = shared_dir())
    if (const fs::path tiny = *shared / "data" / "models" / "recall_tiny";
        fs::exists(tiny / "config.json"))
      return tiny;
  return std::nullopt;
}

constexpr const char* kMemory =
    R"({"n_init": 16, "n_local": 256, "n_mem": 256, "chunk": 256, "n_repr": 4, "min_block": 8,
        "max_block": 128, "gamma": 1})";

/// Settings that make events of a text of a hundred tokens.
constexpr const char* kSmallMemory =
    R"({"n_init": 4, "n_local": 32, "n_mem": 32, "chunk": 32, "min_block": 4, "max_block": 16,
        "gamma": 0.5, "contiguity": 0.3, "refine": "modularity"})";

/// English enough for a small model, with markup and characters of two bytes in it.
inline std::string some_book(int sentences) {
  const std::vector<std::string> who = {
      "The old prince",    "A young officer",           "My brother",
      "The miller's wife", "Nobody in the caf\xC3\xA9", "The doctor"};
  const std::vector<std::string> did = {
      "walked along the river",         "waited for a letter", "sold the <b>brown</b> horse",
      "spoke of the war & the weather", "closed the door",     "came home too late"};
  const std::vector<std::string> when = {"before the snow fell", "on a quiet evening",
                                         "while the bells were ringing", "as he had always done",
                                         "in spite of everything"};
  std::mt19937 random(7);
  std::string text;
  for (int i = 0; i < sentences; ++i)
    text += who[random() % who.size()] + " " + did[random() % did.size()] + " " +
            when[random() % when.size()] + (i % 5 == 4 ? ".\n\n" : ". ");
  return text;
}

}  // namespace program
