// SPDX-License-Identifier: Apache-2.0
#include "memory/token_log.hpp"

#include <cerrno>
#include <random>

#include "episodic/base/error.hpp"
#include "support/faulty_calls.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
using detail::TokenLog;
namespace fs = std::filesystem;

namespace {

/// A log beside a plain list of what it must hold.
struct Account {
  std::vector<std::uint32_t> all;

  void push(TokenLog& log, std::int64_t n) {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(n));
    for (std::int64_t& id : ids) id = static_cast<std::int64_t>(all.size() % 50021) + n;
    log.reserve(n);
    log.push(ids.data(), n);
    for (const std::int64_t id : ids) all.push_back(static_cast<std::uint32_t>(id));
  }
  void truncate(TokenLog& log, std::int64_t n) {
    log.truncate(n);
    all.resize(static_cast<std::size_t>(n));
  }
  bool holds(const TokenLog& log) const {
    return log.tokens() == static_cast<std::int64_t>(all.size()) &&
           log.read(0, log.tokens()) == all;
  }
};

TokenLog reopened(const fs::path& dir, const TokenLog& log, io::Syscalls& calls) {
  ByteWriter saved;
  log.save(saved);
  ByteReader from(saved.bytes(), "state");
  TokenLog other(dir, calls, true);
  other.load(from);
  return other;
}

std::int64_t files_in(const fs::path& dir) {
  return std::distance(fs::directory_iterator(dir), fs::directory_iterator());
}

}  // namespace

TEST_CASE("token ids of many runs lie in few files", "[memory][kept]") {
  const TempDir dir;
  TokenLog log(dir.path(), io::system_calls(), true);
  Account account;
  std::size_t most = 0;
  for (int run = 0; run < 100; ++run) {
    log = reopened(dir.path(), log, io::system_calls());
    account.push(log, run % 10 == 0 ? 1000 : 20);
    const std::size_t before = log.parts().size();
    CHECK(log.merge_files(4) == (before >= 4));  // what was pushed would be one more
    log.sync();
    REQUIRE(account.holds(log));
    most = std::max(most, log.parts().size());
    for (const TokenLog::Part& part : log.parts())
      TokenLog::verify(dir.path(), part, io::system_calls());
  }
  CHECK(most <= 6);
  // a damaged one is left as it is, for whoever asks for its tokens to hear of it
  log = reopened(dir.path(), log, io::system_calls());
  account.push(log, 20);
  log.sync();
  const fs::path damaged = dir.path() / TokenLog::file_name(log.parts().back().id);
  fs::resize_file(damaged, fs::file_size(damaged) - 4);
  CHECK(!log.merge_files(1));
}

TEST_CASE("a log of token ids agrees with a plain list, over blocks, files and runs",
          "[memory][kept]") {
  std::mt19937 rng(31);
  const TempDir dir;
  TokenLog log(dir.path(), io::system_calls(), true);
  Account account;
  for (int op = 0; op < 60; ++op) {
    CAPTURE(op);
    const auto dice = rng() % 10;
    const auto n = static_cast<std::int64_t>(account.all.size());
    if (dice < 6) {
      account.push(log, 1 + static_cast<std::int64_t>(rng() % 40000));
    } else if (dice < 8) {
      account.truncate(log,
                       std::max<std::int64_t>(0, n - static_cast<std::int64_t>(rng() % 90000)));
    } else {
      if (rng() % 2 == 0) log.merge_files(2);
      log.sync();
      if (dice == 9) log = reopened(dir.path(), log, io::system_calls());
    }
    REQUIRE(account.holds(log));
  }
  log.rewrite([](std::int64_t t) { return t % 3 == 1; });
  for (std::size_t t = 1; t < account.all.size(); t += 3) account.all[t] = TokenLog::kUnknown;
  REQUIRE(account.holds(log));
  REQUIRE(log.parts().size() == 1);
  TokenLog::verify(dir.path(), log.parts()[0], io::system_calls());
}

TEST_CASE("many token ids are written behind; one that only reads writes nothing",
          "[memory][kept]") {
  for (const bool writes : {false, true}) {
    const TempDir dir;
    FaultyCalls calls;
    TokenLog log(dir.path(), calls, writes);
    Account account;
    account.push(log, 70000);
    CHECK(files_in(dir.path()) == 0);
    FaultyCalls::Script late{{io::Kind::tokens, io::Op::write}, FaultyCalls::Fault::late, 0, 1};
    late.delay = std::chrono::milliseconds(500);
    calls.play(late);
    account.push(log, 10);
    CHECK(files_in(dir.path()) == (writes ? 1 : 0));
    CHECK(account.holds(log));
    account.truncate(log, 60000);
    account.push(log, 10);
    CHECK(account.holds(log));
    if (!writes) continue;
    log.sync();
    CHECK(account.holds(reopened(dir.path(), log, calls)));
    CHECK(log.parts().size() == 2);

    account.push(log, 70000);
    calls.play({{io::Kind::tokens, io::Op::write}, FaultyCalls::Fault::error, ENOSPC, 0, true});
    try {
      account.push(log, 70000);
    } catch (const io::DiskFullError&) {
      // the block that was still waiting to be written has failed already: none of these were taken
    }
    CHECK_THROWS_AS(log.sync(), io::DiskFullError);
    CHECK_THROWS_AS(log.sync(), io::DiskFullError);
    CHECK(account.holds(log));
    calls.heal();
    log.sync();
    CHECK(account.holds(reopened(dir.path(), log, calls)));
  }
}
