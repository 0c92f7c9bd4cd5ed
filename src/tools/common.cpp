// SPDX-License-Identifier: Apache-2.0
#include "common.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"

namespace episodic::tools {

void CommonFlags::add_to(CLI::App& app, bool with_model) {
  app.add_option("--threads", threads, "Threads of parallel loops (0: all cores)")
      ->check(CLI::Range(0, 1024));
  app.add_option("--device", device,
                 with_model ? "Where the model runs: cpu, cuda, or auto (cuda if there is one)"
                            : "cpu, cuda or auto: all the same here, where no model runs")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}));
  app.add_flag("--quiet", quiet, "No progress on stderr");
}

void CommonFlags::apply() const {
  if (threads > 0) set_max_threads(threads);
}

void CommonFlags::apply_on_host() const {
  apply();
  if (device == "cuda")
    throw NotBuiltError("--device cuda: this program has no CUDA path; use --device cpu");
}

void ModelFlags::add_to(CLI::App& app, bool with_full_attention) {
  app.add_option("--model", model, "Model directory in Hugging Face layout")->required();
  auto* m =
      app.add_option("--memory", memory,
                     "Memory settings: a JSON file or inline JSON (default: MODEL/memory.json, "
                     "else the paper's)");
  if (with_full_attention)
    app.add_flag("--full-attention", full_attention, "Full causal attention instead of the memory")
        ->excludes(m);
}

MemoryConfig ModelFlags::memory_config() const {
  if (!memory.empty()) {
    const std::size_t at = memory.find_first_not_of(" \t\r\n");
    if (at != std::string::npos && memory[at] == '{') return parse_memory_config(memory);
    try {
      return parse_memory_config(read_text(memory));
    } catch (const ConfigError& e) {
      throw ConfigError(fmt::format("{}: {}", memory, e.what()));
    }
  }
  const std::filesystem::path beside = model / "memory.json";
  if (std::filesystem::exists(beside)) {
    try {
      return parse_memory_config(read_text(beside));
    } catch (const ConfigError& e) {
      throw ConfigError(fmt::format("{}: {}", beside.string(), e.what()));
    }
  }
  return {};
}

void limit_spinning(char** argv) {
  bool changed = false;
  const auto set = [&](const char* name, const char* value) {
    changed = ::setenv(name, value, 1) == 0 || changed;
  };
  if (!std::getenv("OMP_WAIT_POLICY") && !std::getenv("GOMP_SPINCOUNT"))
    set("GOMP_SPINCOUNT", "20000");  // some tens of microseconds
  // Workers of OpenBLAS, which FAISS brings along, ask for 128 MiB each until they get them. Under
  // a limit of address space that may be never, and the end of the program waits for them.
  if (struct rlimit space{}; ::getrlimit(RLIMIT_AS, &space) == 0 &&
                             space.rlim_cur != RLIM_INFINITY &&
                             !std::getenv("OPENBLAS_NUM_THREADS"))
    set("OPENBLAS_NUM_THREADS", "1");
  if (changed) ::execv("/proc/self/exe", argv);  // returns only if it fails; then it is as it was
}

std::string read_text(const std::filesystem::path& path) {
  if (path == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  std::ifstream in(path, std::ios::binary);
  if (!in || std::filesystem::is_directory(path))
    throw FileError(fmt::format("{}: cannot be read ({}); check the path", path.string(),
                                in ? "it is a directory" : std::strerror(errno)));
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (in.bad())
    throw FileError(fmt::format("{}: reading failed ({})", path.string(), std::strerror(errno)));
  return text;
}

Json read_json(const std::filesystem::path& path) {
  constexpr std::size_t kMostEntries = std::size_t{1} << 28;  // ids of a very long text
  return parse_ordered(read_text(path), path.string(),
                       {.depth = 32,
                        .array_length = kMostEntries,
                        .bytes = std::size_t{4} << 30,
                        .remedy = "check the file"});
}

std::vector<std::int64_t> read_ids(const std::filesystem::path& path) {
  Json j = read_json(path);
  if (j.is_object() && j.contains("ids")) j = Json(j["ids"]);
  if (j.is_object() && j.contains("tokens")) j = Json(j["tokens"]);
  std::vector<std::int64_t> ids;
  if (!j.is_array())
    throw FileError(fmt::format("{}: expected a JSON array of token ids, or an object with \"ids\"",
                                path.string()));
  for (const Json& x : j) {
    if (!x.is_number_integer())
      throw FileError(fmt::format("{}: token ids must be integers, found {}", path.string(),
                                  printable_value(x)));
    ids.push_back(x.get<std::int64_t>());
  }
  return ids;
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::path part = path;
  part += fmt::format(".{}.part", ::getpid());
  {
    std::ofstream out(part, std::ios::binary);
    out << text;
    out.close();
    if (!out) {
      const int error = errno;
      std::error_code ignored;
      std::filesystem::remove(part, ignored);
      throw FileError(fmt::format("{}: cannot be written ({}); check the folder and the free space",
                                  path.string(), std::strerror(error)));
    }
  }
  std::error_code error;
  std::filesystem::rename(part, path, error);
  if (error)
    throw FileError(fmt::format("{}: cannot be written ({})", path.string(), error.message()));
}

void write_json(const std::filesystem::path& path, const Json& json) {
  const std::string text = json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (path.empty())
    std::fwrite(text.data(), 1, text.size(), stdout);
  else
    write_text(path, text);
}

std::filesystem::path shipped_model() {
  namespace fs = std::filesystem;
  constexpr const char* kName = "recall-2m6";
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  for (const fs::path& candidate :
       {program.parent_path() / "../share/episodic/models" / kName,  // installed
        fs::path(EPISODIC_SOURCE_MODELS) / kName})                   // built from the checkout
    if (fs::exists(candidate / "config.json", error)) return fs::weakly_canonical(candidate, error);
  throw FileError(
      fmt::format("models/{}: the shipped model is not there; name one with --model DIR", kName));
}

std::int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  in >> total >> resident;
  return resident * static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE));
}

std::int64_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

ProgressBar::ProgressBar(std::string label, bool quiet)
    : label_(std::move(label)),
      on_(!quiet && ::isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputc('\n', stderr);
}

ProgressCallback ProgressBar::callback() {
  return [this](std::int64_t done, std::int64_t total) {
    if (on_) draw(done, total);
    return true;
  };
}

void ProgressBar::draw(std::int64_t done, std::int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ && done < total && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  constexpr int kWidth = 30;
  const int full = total > 0 ? static_cast<int>(kWidth * done / total) : kWidth;
  const std::string line =
      fmt::format("\r{} [{:<{}}] {}/{} tokens, {:.0f} tokens/s  ", label_, std::string(full, '#'),
                  kWidth, done, total, seconds > 0 ? static_cast<double>(done) / seconds : 0.0);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace episodic::tools
