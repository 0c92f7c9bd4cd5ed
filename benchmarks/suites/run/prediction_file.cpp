// SPDX-License-Identifier: Apache-2.0
#include "run/prediction_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/strict_json.hpp"
#include "common.hpp"
#include "episodic/base/error.hpp"

namespace episodic::suites {
namespace {

/// Settings that may differ from run to run: where it ran, which part, how many examples.
constexpr const char* kFree[] = {"environment", "later_environments", "shard", "examples"};

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? number(value) : std::nullopt;
}

Json compared(Json settings) {
  for (const char* name : kFree) settings.erase(name);
  return settings;
}

/// Where a run was made, without what differs from one minute to the next.
Json place_of(Json environment) {
  if (environment.is_object())
    for (const char* name : {"date", "load_average_at_start"}) environment.erase(name);
  return environment;
}

Json list_of(const Json& settings, const char* name) {
  Json list = settings.value(name, Json());
  return list.is_array() ? list : Json::array();
}

/// Adds an environment that rows of `settings` were made in, if none of theirs is the same place.
void add_environment(Json& settings, const Json& environment) {
  if (environment.is_null()) return;
  if (!settings.contains("environment")) {
    settings["environment"] = environment;
    return;
  }
  const Json place = place_of(environment);
  if (place_of(settings["environment"]) == place) return;
  Json later = list_of(settings, "later_environments");
  for (const Json& e : later)
    if (place_of(e) == place) return;
  later.push_back(environment);
  settings["later_environments"] = std::move(later);
}

/// Adds those of another file of predictions.
void add_environments_of(Json& settings, const Json& other) {
  add_environment(settings, other.value("environment", Json()));
  for (const Json& e : list_of(other, "later_environments")) add_environment(settings, e);
}

/// \throws ConfigError naming the first setting that differs
void check_same(const Json& there, const Json& now, const std::filesystem::path& out) {
  const Json a = compared(there), b = compared(now);
  if (a == b) return;
  const auto text = [](const Json& settings, const std::string& name) {
    return settings.contains(name) ? printable_value(settings[name]) : "none";
  };
  for (const Json& settings : {b, a})
    for (const auto& [name, value] : settings.items())
      if (!a.contains(name) || !b.contains(name) || a[name] != b[name])
        throw ConfigError(
            fmt::format("{}: was made with another \"{}\" ({}, now {}); name another --out",
                        out.string(), printable(name), text(a, name), text(b, name)));
  throw ConfigError(  // in another order
      fmt::format("{}: was made with other settings; name another --out", out.string()));
}

/// The settings beside a file of predictions. \throws FileError for what is no object
Json read_settings(const std::filesystem::path& out) {
  const std::filesystem::path path = settings_path(out);
  Json settings = tools::read_json(path);
  if (!settings.is_object())
    throw FileError(fmt::format("{}: must be a JSON object, as `run` writes it; remove it and {}",
                                path.string(), out.string()));
  return settings;
}

/// How many examples a run's settings say that there are.
std::int64_t examples_of(const Json& settings, const std::filesystem::path& out) {
  constexpr std::int64_t kMost = 1 << 24;
  const Json examples = settings.value("examples", Json(0));
  if (!examples.is_number_integer() || examples < 0 || examples > kMost)
    throw FileError(fmt::format("{}: \"examples\" is {}, expected an integer in [0, {}]",
                                settings_path(out).string(), printable_value(examples), kMost));
  return examples.get<std::int64_t>();
}

}  // namespace

std::filesystem::path settings_path(const std::filesystem::path& out) {
  std::filesystem::path path = out;
  path += ".settings.json";
  return path;
}

Shard Shard::parse(const std::string& text) {
  Shard shard;
  if (text == "auto") {
    // Open MPI, MPICH and Intel MPI, srun, torchrun: a process of its own each.
    constexpr const char* kRanks[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                         {"PMI_RANK", "PMI_SIZE"},
                                         {"SLURM_PROCID", "SLURM_NTASKS"},
                                         {"RANK", "WORLD_SIZE"}};
    for (const auto& [rank, size] : kRanks)
      if (const auto i = variable(rank), n = variable(size); i && n) {
        shard = {*i, *n};
        break;
      }
  } else {
    const std::size_t slash = text.find('/');
    const auto i = number(std::string_view(text).substr(0, slash));
    const auto n = slash == std::string::npos ? std::nullopt
                                              : number(std::string_view(text).substr(slash + 1));
    if (!i || !n)
      throw ConfigError(fmt::format("--shard {}: must be PART/PARTS, as 0/4, or auto", text));
    shard = {*i, *n};
  }
  if (shard.of < 1 || shard.part < 0 || shard.part >= shard.of)
    throw ConfigError(fmt::format("--shard {}/{}: the part must be from 0 to {}", shard.part,
                                  shard.of, shard.of - 1));
  return shard;
}

std::filesystem::path Shard::file(const std::filesystem::path& out) const {
  if (of == 1) return out;
  return out.parent_path() /
         fmt::format("{}.{}-of-{}{}", out.stem().string(), part, of, out.extension().string());
}

PredictionFile::PredictionFile(const std::filesystem::path& out, const Json& settings)
    : path_(out) {
  file_ = ::open(out.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file_ < 0) fail("cannot be opened");
  try {
    if (::flock(file_, LOCK_EX | LOCK_NB) != 0)
      throw FileError(
          fmt::format("{}: another process writes it; wait, or name another --out", out.string()));
    const std::string text = tools::read_text(out);
    const std::size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
    if (::ftruncate(file_, static_cast<off_t>(whole)) != 0 || ::lseek(file_, 0, SEEK_END) < 0)
      fail("cannot be cut to its last whole line");
    if (whole > 0) {
      for (const Row& row : read_rows(out)) done_.insert(row.id("id"));
      const Json there = read_settings(out);
      check_same(there, settings, out);
      settings_ = there;
      if (settings.contains("examples")) settings_["examples"] = settings["examples"];
      add_environment(settings_, settings.value("environment", Json()));
    } else {
      settings_ = settings;
      write_settings();
    }
  } catch (...) {
    ::close(file_);
    throw;
  }
}

PredictionFile::~PredictionFile() { ::close(file_); }

void PredictionFile::write_settings() {
  tools::write_json(settings_path(path_), settings_);
  settings_written_ = true;
}

void PredictionFile::append(const Json& row) {
  if (!settings_written_) write_settings();  // a call that adds nothing leaves them as they were
  const std::string line = to_line(row) + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(file_, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot be written");
    done += static_cast<std::size_t>(n);
  }
  if (::fsync(file_) != 0) fail("cannot be written");
  const Json& id = row.at("id");
  done_.insert(id.is_string() ? id.get<std::string>() : id.dump());
}

void PredictionFile::fail(const char* what) const {
  throw FileError(fmt::format("{}: {} ({}); check the folder and the free space", path_.string(),
                              what, std::strerror(errno)));
}

Json merge_predictions(const std::vector<std::filesystem::path>& shards,
                       const std::filesystem::path& out) {
  Json settings;
  std::int64_t examples = 0;
  std::vector<std::pair<std::int64_t, Json>> rows;
  std::unordered_set<std::string> seen;
  Json doubled = Json::array();
  for (const std::filesystem::path& shard : shards) {
    const Json theirs = read_settings(shard);
    if (settings.is_null()) settings = theirs;
    check_same(theirs, settings, shard);
    add_environments_of(settings, theirs);
    examples = std::max(examples, examples_of(theirs, shard));
    for (const Row& row : read_rows(shard)) {
      if (seen.insert(row.id("id")).second)
        rows.emplace_back(row.integer("index"), row.object());
      else
        doubled.push_back(row.id("id"));
    }
  }
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string text;
  for (const auto& [index, row] : rows) text += to_line(row) + "\n";
  settings.erase("shard");
  if (settings.contains("examples")) settings["examples"] = examples;
  tools::write_text(out, text);
  tools::write_json(settings_path(out), settings);
  Json missing = Json::array();
  auto row = rows.begin();
  for (std::int64_t i = 0; i < examples; ++i) {
    while (row != rows.end() && row->first < i) ++row;
    if (row == rows.end() || row->first != i) missing.push_back(i);
  }
  return {{"rows", rows.size()},
          {"doubled", doubled},
          {"missing", missing.size()},
          {"missing_index", missing}};
}

}  // namespace episodic::suites
