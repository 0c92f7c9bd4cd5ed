// SPDX-License-Identifier: Apache-2.0
#include "make/cmd_make.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>

#include "common.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/text/tokenizer.hpp"
#include "suite_table.hpp"

namespace episodic::suites {
namespace {

struct MakeFlags {
  tools::CommonFlags common;
  MakeOptions options;
  std::vector<std::int64_t> tokens;
  std::vector<double> depths;
  std::filesystem::path model, out, json;
};

/// Rows go to a file beside OUT that takes its name when all are written: a row may be 40 MB, and
/// nobody reads half a file.
class RowWriter {
 public:
  explicit RowWriter(std::filesystem::path out)
      : out_(std::move(out)),
        part_(out_.string() + fmt::format(".{}.part", ::getpid())),
        stream_(part_, std::ios::binary) {}
  ~RowWriter() {
    std::error_code ignored;
    if (!finished_) std::filesystem::remove(part_, ignored);
  }
  void write(Json row) {
    row["id"] = rows_++;
    if (const auto tokens = row.find("tokens"); tokens != row.end()) {
      least_ = std::min(least_, tokens->get<std::int64_t>());
      most_ = std::max(most_, tokens->get<std::int64_t>());
    }
    stream_ << to_line(row) << '\n';
  }
  Json finish() {
    stream_.close();
    std::error_code error;
    if (stream_) std::filesystem::rename(part_, out_, error);
    if (!stream_ || error)
      throw FileError(
          fmt::format("{}: cannot be written; check the folder and the free space", out_.string()));
    finished_ = true;
    return {{"rows", rows_}, {"tokens", {{"min", least_}, {"max", most_}}}, {"out", out_.string()}};
  }

 private:
  std::filesystem::path out_, part_;
  std::ofstream stream_;
  std::int64_t rows_ = 0, least_ = std::numeric_limits<std::int64_t>::max(), most_ = 0;
  bool finished_ = false;
};

void make_all(const MakeFlags& flags, const SuiteRow& suite, const TokenCounter& count,
              RowWriter& out) {
  MakeOptions options = flags.options;
  std::vector<double> depths = flags.depths;
  if (depths.empty()) depths.push_back(-1);  // as the suite spreads them
  for (const std::int64_t tokens : flags.tokens)
    for (const double depth : depths) {
      options.tokens = tokens;
      options.depth = depth;
      suite.make(options, count, [&](Json row) { out.write(std::move(row)); });
      ++options.seed;  // other values in every cell
    }
}

void run(const MakeFlags& flags, const SuiteRow& suite) {
  flags.common.apply();
  const auto tokenizer = load_model_tokenizer(flags.model);
  const TokenCounter count = [&](const std::string& text) {
    return static_cast<std::int64_t>(tokenizer->encode(text, false).size());
  };
  RowWriter out(flags.out);
  make_all(flags, suite, count, out);
  Json json{{"task", flags.options.task}};
  json.update(out.finish());
  if (flags.json == "-") return tools::write_json({}, json);
  if (!flags.json.empty()) tools::write_json(flags.json, json);
  std::fputs(fmt::format("{} rows with {} to {} tokens: {}\n", json["rows"].get<std::int64_t>(),
                         json["tokens"]["min"].get<std::int64_t>(),
                         json["tokens"]["max"].get<std::int64_t>(), flags.out.string())
                 .c_str(),
             stdout);
}

}  // namespace

void add_make(tools::Command& app, Suite of) {
  auto flags = std::make_shared<MakeFlags>();
  const SuiteRow& suite = row_of(of);
  tools::Command sub = app.subcommand("make", "Make rows of a generated task");
  sub.footer(suite.make_help);
  sub.option("--task", flags->options.task, "Name of the task").required();
  sub.option("--tokens", flags->tokens,
             "Tokens at most, of the context or as the suite counts; several by commas")
      .required()
      .separated_by(',')
      .positive();
  sub.option("--depth", flags->depths,
             "Where the needle lies, from 0 to 1; several by commas (default: spread)")
      .separated_by(',')
      .fraction();
  sub.option("--count", flags->options.count, "Rows for every length and depth").positive();
  sub.option(
      "--seed", flags->options.seed,
      "Of what is drawn. The n-th combination of length and depth draws with SEED + n - 1: seeds "
      "of\nindependent files lie further apart than there are combinations");
  sub.option("--model", flags->model, "Model directory: its tokenizer counts").required();
  sub.option("--out", flags->out, "File of rows").required();
  sub.option("--haystack", flags->options.haystack_file,
             "Text file that what is asked for is hidden in");
  sub.option("--source", flags->options.source, "File that a task is made from");
  sub.option("--json", flags->json, "What was made as JSON; - is stdout");
  flags->common.add_to(sub, false);
  sub.action([flags, &suite] { run(*flags, suite); });
}

}  // namespace episodic::suites
