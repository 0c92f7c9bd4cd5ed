// SPDX-License-Identifier: Apache-2.0
#include "common.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/base/presets.hpp"
#include "episodic/base/stream_path.hpp"
#include "episodic/base/units.hpp"
#include "episodic/cpu/kernels.hpp"
#include "episodic/memory/sizes.hpp"
#include "episodic/model/activations.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/model/quantize.hpp"
#include "episodic/session/engine.hpp"

namespace episodic::tools {

Option add_count(Command& app, const std::string& name, std::int64_t& value,
                 const std::string& help, std::int64_t least) {
  const auto take = [&value, name, least](const std::string& text) {
    try {
      value = parse_count(text, name);
    } catch (const ConfigError& e) {
      throw UsageError(e.what());
    }
    if (value < least)
      throw UsageError(fmt::format("{}: {} is too little, at least {}", name, text, least));
  };
  const Option option = app.option_read_by(name, take, help).type_name("N");
  if (value >= least) option.shows_default(fmt::format("{}", value));
  return option;
}

void JsonFlag::add_to(Command& app, const std::string& what) {
  app.option("--json", path, what + "; - is stdout, and nothing else then goes there")
      .type_name("FILE");
}

void JsonFlag::write(const Json& json) const {
  if (wanted()) write_json(path, json);
}

void JsonFlag::say(const std::string& text) const {
  if (on_stdout()) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

Option TextFlags::add_to(Command& app, Command& group, const std::string& flag,
                         const std::string& help) {
  app.option("--encoding", encoding, "Of the text file: utf-8, latin-1 or utf-16")
      .one_of({"utf-8", "latin-1", "utf-16"})
      .shows_default();
  return group.option(flag, text, help + "; - is stdin").type_name("FILE");
}

std::string TextFlags::read() const { return read_document(text, encoding); }

void CommonFlags::add_to(Command& app, bool with_model) {
  app.option("--threads", threads, "Threads of parallel loops (0: all cores)")
      .between(0, 1024)
      .shows_default();
  app.option("--device", device,
             with_model ? "Where the model runs: cpu, cuda, or auto (cuda if there is one)"
                        : "cpu, cuda or auto: all the same here, where no model runs")
      .one_of({"cpu", "cuda", "auto"})
      .shows_default();
  if (with_model)
    app.option(
           "--activations", activations,
           "What products on the CPU do with activations: rounded to 8 bits for quantised "
           "weights (the default, fastest), exact (take it where a small model, under 0.5B with "
           "Q4_0 or Q4_1 weights, writes nonsense), or bfloat16 (fast with AMX). Without it: as "
           "EPISODIC_ACTIVATIONS says")
        .one_of({"rounded", "exact", "bfloat16"});
  if (with_model)
    app.option("--event-tokens", event_tokens,
               "Mean length of an event: what plan counts with, and what a device's device_bytes "
               "is divided for (default: there min_block)")
        .positive();
  app.flag("--quiet", quiet, "No progress on stderr");
}

void CommonFlags::apply() const {
  cpu::kernels();  // an EPISODIC_CPU that is none is refused before anything is made
  if (threads > 0) set_max_threads(threads);
  if (!activations.empty()) set_activations(parse_activations(activations));
}

std::int64_t CommonFlags::whole_event_tokens() const {
  constexpr double kMost = 1e15;  // fits the integer
  return event_tokens > 0 ? static_cast<std::int64_t>(std::clamp(event_tokens, 1.0, kMost)) : 0;
}

void CommonFlags::apply_on_host() const {
  apply();
  if (device == "cuda")
    throw ConfigError(
        "--device cuda: this benchmark measures the host; bench_kernels and bench_device_model "
        "measure a device");
  if (!activations.empty())
    throw ConfigError("--activations: this benchmark computes no model; leave it out");
  if (event_tokens > 0)
    throw ConfigError("--event-tokens: this benchmark has no device_bytes to divide; leave it out");
}

void ModelFlags::add_to(Command& app, bool with_full_attention, bool model_required) {
  const Option path =
      app.option("--model", model, "Model directory in Hugging Face layout, or a GGUF file");
  if (model_required) path.required();
  const Option adapters = app.option(
      "--lora", lora,
      "Adapter as PEFT saves it, with a factor behind a colon if it is not 1 (may be given several "
      "times)");
  adapters.type_name("DIR[:SCALE]").one_value_each();
  app.flag("--merge-lora", merge_lora, "Add the adapters to the weights, not beside them")
      .needs(adapters);
  app.option(
         "--quantize", quantize,
         "Round the weights to 8 or 4 bits when they are loaded; fp8: on a device, a scale a row")
      .one_of({"q8_0", "q4_0", "fp8"});
  const Option m = app.option(
      "--memory", memory,
      std::string(
          "Changes to the memory's settings: a JSON file or inline JSON. What it does not "
          "name is as in MODEL/memory.json, else as plan shows for the model (measurements: "
          "as in the paper). \"preset\" begins with a paper's system: ") +
          preset_names());
  if (with_full_attention)
    app.flag("--full-attention", full_attention, "Full causal attention instead of the memory")
        .excludes(m);
}

namespace {

/// "DIR:SCALE" or "DIR"; a directory of that whole name is meant first.
LoraChoice parse_lora(const std::string& text) {
  std::error_code ignored;
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || std::filesystem::exists(text, ignored)) return {text, 1.0};
  const char* number = text.c_str() + colon + 1;
  char* end = nullptr;
  const double scale = std::strtod(number, &end);
  if (end == number || *end != '\0' || !std::isfinite(scale))
    throw ConfigError(
        fmt::format("--lora {}: expected DIR or DIR:SCALE with a number as scale", text));
  return {text.substr(0, colon), scale};
}

}  // namespace

ModelOptions ModelFlags::options() const {
  ModelOptions options;
  for (const std::string& text : lora) options.lora.push_back(parse_lora(text));
  options.merge_lora = merge_lora;
  options.fp8 = quantize == "fp8";
  if (!options.fp8 && !quantize.empty()) options.quantize = quantized_type(quantize);
  options.group = group;
  return options;
}

MemoryConfig ModelFlags::memory_config() const { return fitting(changed(memory_config_of(model))); }

namespace {

/// Settings themselves, rather than the file that has them.
bool is_json(const std::string& text) {
  const std::size_t at = text.find_first_not_of(" \t\r\n");
  return at != std::string::npos && text[at] == '{';
}

/// Whether settings name one of the lengths that default_memory chooses.
bool names_lengths(const std::string& text) {
  Json json;
  try {
    json = parse_ordered(text, "--memory", {.depth = 4, .array_length = 1 << 16});
  } catch (const FileError&) {
    return false;  // whoever reads the settings says what is wrong with them
  }
  return json.is_object() && std::any_of(json.items().begin(), json.items().end(), [](auto& item) {
           return item.key() == "n_init" || item.key() == "n_local" || item.key() == "n_mem" ||
                  item.key() == "chunk";
         });
}

}  // namespace

ModelFlags::NewMemory ModelFlags::new_memory() const {
  const auto [text, label] = memory_text();
  const auto changed = [&](const MemoryConfig& base, const std::string& from) {
    return NewMemory{fitting(text.empty() ? base : change_memory_config(base, text, label)),
                     from + (text.empty() ? "" : "; changed by --memory")};
  };
  if (full_attention || brings_memory_settings(model))
    return changed(memory_config_of(model), "as in memory.json");
  require_model_dir(model);
  if (names_lengths(text)) return changed({}, "the paper's");
  const DefaultMemory chosen = default_memory(model_facts(model, options()));
  return changed(chosen.config, chosen.why);
}

std::string ModelFlags::settings_origin() const {
  const std::string file = episodic::settings_origin(model);
  if (memory.empty()) return file;
  const std::string changes = is_json(memory) ? "--memory" : memory;
  return file.empty() ? changes : fmt::format("{}, changed by {}", file, changes);
}

MemoryConfig ModelFlags::fitting(MemoryConfig config) const {
  const std::string origin = full_attention ? std::string() : settings_origin();
  if (origin.empty()) return config;
  const MemoryShape shape = memory_shape(load_model_config(model), config.n_local);
  naming_origin(origin, [&] { check_shape(config, shape); });
  return config;
}

std::pair<std::string, std::string> ModelFlags::memory_text() const {
  if (memory.empty() || is_json(memory)) return {memory, "--memory"};
  constexpr std::size_t kLongest = 1 << 20;
  return {read_text(memory, kLongest), memory};
}

MemoryConfig ModelFlags::changed(const MemoryConfig& base) const {
  if (memory.empty()) return base;
  const auto [text, label] = memory_text();
  return change_memory_config(base, text, label);
}

double expected_event_tokens(const MemoryConfig& c) {
  if (c.segmenter == SegmenterKind::fixed) return static_cast<double>(c.max_block);
  if (c.segmenter == SegmenterKind::random)
    return static_cast<double>(c.min_block + c.max_block) / 2.0;
  return std::min(static_cast<double>(c.max_block), 1.7 * static_cast<double>(c.min_block));
}

void warn_of_window(const CommonFlags& common, const MemoryConfig& config,
                    const ModelConfig& model) {
  if (const std::string text = window_warning(config, model); !text.empty() && !common.quiet)
    fmt::print(stderr, "episodic: warning: {}\n", text);
}

LogCallback model_log(const CommonFlags& common) {
  if (common.quiet) return {};
  return
      [](LogLevel, std::string_view line) { fmt::print(stderr, "episodic: warning: {}\n", line); };
}

int finished(const char* program) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  std::fprintf(stderr, "%s: stdout: cannot be written; check the space left\n", program);
  return 1;
}

namespace {

struct Readable {
  std::int64_t most;        ///< bytes that are taken of it
  std::int64_t length = 0;  ///< of a regular file
};

/// What is read of a file whose reader has no bound of its own: what the machine has room for, more
/// than once over, since ids are made of it. Devices give zeros, or noise, without end.
Readable readable(const std::filesystem::path& path) {
  constexpr std::int64_t kOfDevice = std::int64_t{16} << 20, kOfAnything = std::int64_t{4} << 30;
  struct stat info {};
  const int failed = path == "-" ? ::fstat(STDIN_FILENO, &info) : ::stat(path.c_str(), &info);
  if (failed == 0 && S_ISCHR(info.st_mode)) return {kOfDevice};
  const std::int64_t available = available_host_bytes();
  const std::int64_t room = available < 0 ? kOfAnything : available / 3;
  return {std::min(kOfAnything, room), failed == 0 && S_ISREG(info.st_mode) ? info.st_size : 0};
}

}  // namespace

std::string read_text(const std::filesystem::path& path) {
  const Readable found = readable(path);
  const std::string name = path == "-" ? "stdin" : path.string();
  if (found.length > found.most)
    throw FileError(
        fmt::format("{}: has {}, and {} can be read at once here; check the path, or give it in "
                    "parts",
                    name, bytes_text(found.length), bytes_text(found.most)));
  return read_text(path, static_cast<std::size_t>(found.most));
}

std::string read_text(const std::filesystem::path& path, std::size_t most) {
  const bool is_stdin = path == "-";
  const std::string name = is_stdin ? "stdin" : path.string();
  std::ifstream file;
  if (!is_stdin) {
    file.open(path, std::ios::binary);
    if (!file || std::filesystem::is_directory(path))
      throw FileError(fmt::format("{}: cannot be read ({}); check the path", name,
                                  file ? "it is a directory" : std::strerror(errno)));
  }
  std::istream& in = is_stdin ? std::cin : file;
  std::string text;
  std::array<char, 1 << 16> part;
  while (in.read(part.data(), part.size()) || in.gcount() > 0) {
    text.append(part.data(), static_cast<std::size_t>(in.gcount()));
    if (text.size() > most)
      throw FileError(fmt::format("{}: is longer than {} bytes; check the path", name, most));
  }
  if (in.bad() || (is_stdin && std::ferror(stdin) != 0))
    throw FileError(
        fmt::format("{}: cannot be read ({}); check the path", name, std::strerror(errno)));
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

Json settings_json(const MemoryConfig& config) {
  return parse_ordered(to_json(config), "memory", {});
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
    constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
    if (!x.is_number_integer() || (x.is_number_unsigned() && x.get<std::uint64_t>() > kMost))
      throw FileError(fmt::format("{}: token ids must be integers, found {}", path.string(),
                                  printable_value(x)));
    ids.push_back(x.get<std::int64_t>());
  }
  return ids;
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  if (!is_stream(path)) return replace_text(path, text);
  std::ofstream out(path, std::ios::binary | std::ios::app);
  out << text;
  out.close();
  if (!out)
    throw FileError(fmt::format("{}: cannot be written ({})", path.string(), std::strerror(errno)));
}

void replace_text(const std::filesystem::path& path, const std::string& text) {
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
  if (path.empty() || path == "-")
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
      on_(!quiet),
      terminal_(::isatty(STDERR_FILENO) != 0),
      log_(label_),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputc('\n', stderr);
}

ProgressCallback ProgressBar::callback() {
  return [this](std::int64_t done, std::int64_t total) {
    if (on_ && terminal_) draw(done, total);
    if (on_ && !terminal_) {
      const std::string line = log_.line(done, total, seconds());
      std::fwrite(line.data(), 1, line.size(), stderr);
    }
    return true;
  };
}

double ProgressBar::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

namespace {

/// "1:02:03" or "2:03".
std::string clock_text(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace

std::string ProgressLog::line(std::int64_t done, std::int64_t total, double seconds) {
  constexpr double kEvery = 60;
  const bool end = done >= total;
  if (end ? !told_ : seconds < due_) return {};
  told_ = true;
  due_ = seconds + kEvery;
  const std::size_t last = label_.find_last_not_of(' ');  // labels may be padded for a bar
  const std::string label = label_.substr(0, last == std::string::npos ? 0 : last + 1);
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  std::string out = fmt::format("{}: {} of {} tokens", label, count_text(done), count_text(total));
  if (end) return out + fmt::format(" in {}\n", clock_text(seconds));
  out += fmt::format(" ({:.0f}%), {} tokens/s",
                     100 * static_cast<double>(done) / static_cast<double>(total),
                     count_text(std::llround(rate)));
  if (rate > 0)
    out += fmt::format(", {} left", clock_text(static_cast<double>(total - done) / rate));
  return out + "\n";
}

std::string progress_line(const std::string& label, std::int64_t done, std::int64_t total,
                          double seconds, int columns) {
  const double share =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 1;
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  std::string left;
  if (done < total && rate > 0) {
    left = clock_text(static_cast<double>(total - done) / rate) + " left";
  }
  const auto join = [](std::initializer_list<std::string> parts) {
    std::string out;
    for (const std::string& p : parts)
      if (!p.empty()) out += (out.empty() ? "" : " ") + p;
    return out;
  };
  const std::string percent = fmt::format("{:3.0f}%", 100 * share);
  const std::string tokens = fmt::format("{}/{} tokens", count_text(done), count_text(total));
  const std::string speed = fmt::format("{} tokens/s", count_text(std::llround(rate)));
  constexpr int kBar = 24;
  const std::string bar =
      fmt::format("[{:<{}}]", std::string(static_cast<std::size_t>(kBar * share), '#'), kBar);
  const auto most = static_cast<std::size_t>(std::max(1, columns - 1));
  for (const std::string& line :
       {join({label, bar, percent, tokens, speed, left}),
        join({label, percent, tokens, speed, left}), join({label, percent, speed, left}),
        join({label, percent, left}), join({percent, left})})
    if (line.size() <= most) return line;
  return percent.substr(0, most);
}

void ProgressBar::draw(std::int64_t done, std::int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ && done < total && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  winsize size{};
  const int columns =
      ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  const std::string line =
      "\r" + progress_line(label_, done, total, seconds(), columns) + "\x1b[K";  // clears the rest
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace episodic::tools
