// SPDX-License-Identifier: Apache-2.0
// `episodic verify`: every byte of a kept memory against its checksums.

#include <fmt/format.h>

#include "commands.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/units.hpp"
#include "kept.hpp"

namespace episodic::tools {
namespace {

struct VerifyFlags {
  CommonFlags common;
  std::filesystem::path dir;
  JsonFlag json;
  bool digest = false;
};

/// What no checksum shows: whether a memory whose bytes are all well opens, and is what its
/// manifest says. Empty if so. \param digest of its content, if it is asked for
std::string trouble_with_opening(const VerifyFlags& flags, std::string& digest) {
  try {
    EpisodicMemory memory = open_kept(flags.dir, OpenMode::read);
    const MemoryManifest::State& said = memory.manifest().state;
    if (said.tokens != memory.tokens())
      return fmt::format("says {} tokens, and the state holds {}", said.tokens, memory.tokens());
    std::int64_t events = 0;
    for (std::int64_t scope = 0; scope < memory.scopes(); ++scope)
      events += memory.events(scope).size();
    if (said.events != events)
      return fmt::format("says {} events, and the state holds {}", said.events, events);
    if (flags.digest) digest = fmt::format("{:016x}", memory.digest());
    return {};
  } catch (const Error& e) {
    return fmt::format("its memory does not open: {}", e.what());
  }
}

void run(const VerifyFlags& flags) {
  flags.common.apply();
  require_memory_dir(flags.dir);
  VerifyReport report = verify_memory(flags.dir);
  std::erase(report.unnamed, ReadingNote::kName);  // it says so itself: see below
  std::string digest;
  if (report.damages.empty())
    if (const std::string trouble = trouble_with_opening(flags, digest); !trouble.empty())
      report.damages.push_back({flags.dir / "manifest.json", trouble});
  Json json{{"files", report.files}, {"bytes", report.bytes}};
  json["damaged"] = Json::array();
  for (const auto& d : report.damages)
    json["damaged"].push_back({{"file", d.file.string()}, {"what", d.what}});
  json["unnamed"] = report.unnamed;
  if (!digest.empty()) json["digest"] = digest;
  flags.json.write(json);
  if (report.damages.empty()) {
    std::string text = fmt::format("{}: {} files, {}, all of it as it was written\n",
                                   flags.dir.string(), report.files, bytes_text(report.bytes));
    if (flags.digest) text += fmt::format("digest {}\n", digest);
    for (const std::string& name : report.unnamed)
      text += fmt::format("{}: left by a crash, no part of the memory\n", name);
    if (const std::string unfinished =
            unfinished_text(flags.dir, MemoryManifest::read(flags.dir).state.tokens, false);
        !unfinished.empty())
      text += unfinished + "\n";
    flags.json.say(text);
    return;
  }
  const auto& first = report.damages.front();
  throw FileError(fmt::format(
      "{}: {}{}", first.file.string(), first.what,
      report.damages.size() > 1 ? fmt::format(" (and {} more)", report.damages.size() - 1) : ""));
}

}  // namespace

void add_verify(Command& app) {
  auto flags = std::make_shared<VerifyFlags>();
  Command sub = app.subcommand("verify", "Read every byte of a kept memory and check it");
  sub.footer(
      "Reads all bytes, then opens the memory. Exit 0: all is well; 1: something is damaged, and "
      "stderr names it. \"unnamed\" lists files "
      "that\na crash left behind; they are not part of the memory and the next writer removes "
      "them.\n\n"
      "Example:\n  episodic verify book.mem");
  sub.option("dir", flags->dir, "Folder of the memory").required();
  sub.flag("--digest", flags->digest,
           "Also the checksum of the content, the same for equal memories");
  flags->json.add_to(sub);
  flags->common.add_to(sub, false);
  sub.action([flags] { run(*flags); });
}

}  // namespace episodic::tools
