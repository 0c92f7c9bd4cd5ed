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

void run(const VerifyFlags& flags) {
  flags.common.apply();
  require_memory_dir(flags.dir);
  const VerifyReport report = verify_memory(flags.dir);
  Json json{{"files", report.files}, {"bytes", report.bytes}};
  json["damaged"] = Json::array();
  for (const auto& d : report.damages)
    json["damaged"].push_back({{"file", d.file.string()}, {"what", d.what}});
  json["unnamed"] = report.unnamed;
  if (flags.digest && report.damages.empty())
    json["digest"] = fmt::format("{:016x}", open_kept(flags.dir, OpenMode::read).digest());
  flags.json.write(json);
  if (report.damages.empty()) {
    std::string text = fmt::format("{}: {} files, {}, all of it as it was written\n",
                                   flags.dir.string(), report.files, bytes_text(report.bytes));
    if (flags.digest) text += fmt::format("digest {}\n", json["digest"].get<std::string>());
    for (const std::string& name : report.unnamed)
      text += fmt::format("{}: left by a crash, no part of the memory\n", name);
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
      "Exit 0: all is well; 1: something is damaged, and stderr names it. \"unnamed\" lists files "
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
