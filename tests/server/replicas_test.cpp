// SPDX-License-Identifier: Apache-2.0
// Several servers over one tier: each goes on with what another one has kept.
#include "support/sampled.hpp"
#include "support/test.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <set>

#include "episodic/base/error.hpp"
#include "episodic/memory/kept_memory.hpp"
#include "episodic/store/tier_lease.hpp"
#include "house.hpp"
#include "support/memory_tier.hpp"

using namespace serving;

namespace replicas_test {

/// A tier in this process, by a scheme of its own. Each machine has a cache of its own.
class Tier {
 public:
  explicit Tier(const TempDir& dir) : dir_(dir.path()), tier_(std::make_shared<MemoryTier>()) {
    add_tier_scheme("replicas", [tier = tier_](const TierPlace&, io::Syscalls&) { return tier; });
  }
  MemoryTier& tier() { return *tier_; }
  std::shared_ptr<BlockTier> shared() { return tier_; }
  fs::path of_machine(const char* name) const {
    return fmt::format("replicas:all?cache={},lease_seconds=2", (dir_ / name).string());
  }
  /// What stands on the tier, by name.
  std::set<std::string> names() {
    const auto all = tier_->names();
    return {all.begin(), all.end()};
  }

 private:
  fs::path dir_;
  std::shared_ptr<MemoryTier> tier_;
};

std::string id_of(const json& object) { return object["id"]; }

}  // namespace replicas_test

using replicas_test::id_of;
using replicas_test::Tier;

TEST_CASE("replicas: any server goes on with any conversation") {
  const TempDir dir;
  make_chat_model(dir / "model");
  fs::create_directory(dir / "tier");
  const auto at = [&](const char* machine) {
    return fs::path(
        fmt::format("shared:{}?cache={}", (dir / "tier").string(), (dir / machine).string()));
  };
  SchedulerOptions limits;
  limits.parallel = 2;
  House one(dir / "model", at("one"), {}, limits), two(dir / "model", at("two"), {}, limits);
  NeverClosed open(one);
  const std::vector<std::string> says = {program::some_book(60) + "Who spoke?", "And then?",
                                         "Who was it?", "Where?"};
  std::vector<std::string> wanted;
  for (const std::string& say : says) wanted.push_back(open.say(say));

  // Responses: each turn on the other server.
  json last = one.respond({{"input", says[0]}});
  CHECK(text_of_response(last) == wanted[0]);
  const json first = last;
  for (std::size_t i = 1; i < says.size(); ++i) {
    const House& house = i % 2 == 0 ? one : two;
    last = house.respond(after(last, says[i]));
    CHECK(text_of_response(last) == wanted[i]);
    if (i == 1) two.restart();
  }
  CHECK(two.get("/v1/responses/" + id_of(last)) == last);
  CHECK(text_of_response(two.respond(after(first, says[1]))) == wanted[1]);  // a branch
  json unkept = after(first, says[1]);
  unkept["store"] = false;
  CHECK(text_of_response(two.respond(unkept)) == wanted[1]);

  // A conversation, which has one turn at a time whoever is asked.
  const std::string id = id_of(one.post("/v1/conversations", json::object()));
  const std::string path = "/v1/conversations/" + id;
  for (std::size_t i = 0; i < 3; ++i) {
    const House& house = i % 2 == 0 ? two : one;
    CHECK(text_of_response(house.respond({{"conversation", id}, {"input", says[i]}})) == wanted[i]);
  }
  const json items = one.get(path + "/items?order=asc&limit=100");
  CHECK(items["data"].size() == 6);
  CHECK(two.get(path + "/items?order=asc&limit=100") == items);
  Raw busy(one.running());
  busy.send(post_text(endless_turn(id), "", "/v1/responses"));
  REQUIRE(busy.receive("output_text.delta").find("200 OK") != std::string::npos);
  for (const auto& [status, error] :
       {two.ask("POST", "/v1/responses", {{"conversation", id}, {"input", "a"}}),
        two.ask("POST", path, {{"metadata", json::object()}}), two.ask("DELETE", path)}) {
    CHECK(status == 409);
    CHECK(error["error"]["code"] == "conversation_locked");
  }
  busy.leave();
  REQUIRE(comes([&] {
    return two.ask("POST", path, {{"metadata", {{"topic", "queens"}}}}).first == 200;
  }));
  CHECK(one.get(path)["metadata"]["topic"] == "queens");
  CHECK(one.get(path + "/items?order=asc&limit=100") == items);
  CHECK(text_of_response(one.respond({{"conversation", id}, {"input", says[3]}})) == wanted[3]);

  // Gone on one, gone on all; and nothing is left on the tier.
  CHECK(two.ask("DELETE", path).first == 200);
  CHECK(one.ask("GET", path).first == 404);
  CHECK(one.ask("DELETE", "/v1/responses/" + id_of(last)).first == 200);
  CHECK(two.ask("GET", "/v1/responses/" + id_of(last)).first == 404);
  CHECK(two.ask("POST", "/v1/responses", after(last, "a")).first == 404);
  for (const std::string& name : make_shared_folder(dir / "tier")->names()) {
    CHECK(name.find(id) == std::string::npos);
    CHECK(name.find(id_of(last)) == std::string::npos);
  }
}

TEST_CASE("replicas: memories by name are of all servers") {
  const TempDir dir;
  make_chat_model(dir / "model");
  Tier tier(dir);
  const House one(dir / "model", tier.of_machine("one")),
      two(dir / "model", tier.of_machine("two"));
  const std::string text = program::some_book(60);
  one.post("/v1/memories", {{"name", "book"}});
  CHECK(two.ask("POST", "/v1/memories", {{"name", "book"}}).first == 409);
  const json read = two.post("/v1/memories/book/read", {{"text", text}});
  CHECK(one.get("/v1/memories/book")["tokens"] == read["tokens"]);
  const json asked{{"memory", "book"}, {"prompt", "The"}, {"max_tokens", 6}};
  const std::string answer = one.post("/v1/completions", asked)["choices"][0]["text"];
  CHECK(two.post("/v1/completions", asked)["choices"][0]["text"] == answer);
  // What one reads into it stands behind the other's next answer.
  one.post("/v1/memories/book/read", {{"text", " The door was closed by the king."}});
  const json longer = two.get("/v1/memories/book");
  CHECK(longer["tokens"] > read["tokens"]);
  CHECK(two.post("/v1/completions", asked)["choices"][0]["text"] ==
        one.post("/v1/completions", asked)["choices"][0]["text"]);

  // One writer at a time.
  {
    const auto lease = TierLease::take(tier.shared(), "book", 30);
    REQUIRE(lease);
    for (const auto& [status, error] :
         {two.ask("POST", "/v1/memories/book/read", {{"text", "a"}}),
          two.ask("POST", "/v1/memories/book/forget", {{"tokens", {0, 9}}}),
          two.ask("DELETE", "/v1/memories/book")}) {
      INFO(error.dump());
      CHECK(status == 409);
      CHECK(error["error"]["code"] == "memory_locked");
    }
  }
  two.post("/v1/memories/book/fork", {{"name", "draft"}});
  CHECK(one.get("/v1/memories")["data"].size() == 2);
  CHECK(one.post("/v1/memories/draft/verify", json::object())["damages"].empty());
  // What conversations keep is no memory by name.
  one.respond({{"input", "The king"}, {"memory", "draft"}});
  CHECK(two.get("/v1/memories")["data"].size() == 2);
  for (const std::string& name : tier.names())
    if (name.starts_with("resp_")) CHECK(two.ask("GET", "/v1/memories/" + name).first == 400);
  CHECK(one.ask("DELETE", "/v1/memories/book").first == 200);
  CHECK(two.ask("GET", "/v1/memories/book").first == 404);
  CHECK(two.ask("POST", "/v1/completions", asked).first == 404);
  one.post("/v1/memories", {{"name", "book"}});  // the name is free again
  CHECK(two.get("/v1/memories/book")["tokens"] == 0);
}

TEST_CASE("replicas: what a killed server left goes, what another one is making stays") {
  const TempDir dir;
  make_chat_model(dir / "model");
  Tier tier(dir);
  House one(dir / "model", tier.of_machine("one"));
  const json kept = one.respond({{"input", "The king said"}});
  const std::string conversation = id_of(one.post("/v1/conversations", json::object()));
  one.respond({{"conversation", conversation}, {"input", "The king said"}, {"store", false}});
  const std::set<std::string> before = tier.names();
  const auto place = [&](const std::string& name) {
    return TierPlace::parse_tier(tier.of_machine("killed"))->with_name(name).path();
  };
  const std::string source = id_of(kept) + ".memory";
  const std::string dead = Conversations::new_id("resp") + ".memory";
  const std::string made = Conversations::new_id("resp");
  const std::string of_turn = conversation + "." + Conversations::new_id("memory");
  for (const std::string& name : {dead, made + ".memory", of_turn})
    fork_memory(place(source), place(name));
  std::set<std::string> expected = before;
  {
    const auto claim = TierLease::take(tier.shared(), made, 30);
    const auto turn = TierLease::take(tier.shared(), conversation, 30);
    const House risen(dir / "model", tier.of_machine("two"));
    expected.insert({made + ".memory", of_turn});
    CHECK(tier.names() == expected);
  }
  const House risen(dir / "model", tier.of_machine("two"));
  CHECK(tier.names() == before);
  CHECK(risen.get("/v1/responses/" + id_of(kept)) == kept);
  risen.respond(after(kept, "And"));
  risen.respond({{"conversation", conversation}, {"input", "And"}});
}

TEST_CASE("replicas: old responses go") {
  const TempDir dir;
  make_chat_model(dir / "model");
  Tier tier(dir);
  ConversationsOptions options;
  options.keep = std::chrono::seconds(1);
  House one(dir / "model", tier.of_machine("one"), options);
  const json old = one.respond({{"input", "The king said"}});
  const json used = one.respond({{"input", "The queen said"}});
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  Conversations beside(one.service(), {.keep = std::chrono::hours(24)});
  CHECK(beside.expire() == 0);
  Conversations kept(one.service(), {.keep = std::chrono::hours(1)});
  const auto turn = kept.begin({.previous = id_of(used), .store = false});
  one.restart();
  CHECK(one.ask("GET", "/v1/responses/" + id_of(old)).first == 404);
  CHECK(tier.names().empty());
  CHECK(turn->history().size() == 2);  // whose memory is open
}

TEST_CASE("replicas: whatever call of a tier fails, a turn is whole or leaves nothing") {
  const TempDir dir;
  make_chat_model(dir / "model");
  Tier tier(dir);
  House one(dir / "model", tier.of_machine("one"));
  const auto ask = [&](json body, bool fails) {
    body["max_output_tokens"] = 2;
    if (fails) return one.ask("POST", "/v1/responses", body);
    return std::pair{200, one.post("/v1/responses", body)};
  };
  const json first = ask({{"input", program::some_book(4) + "Who?"}}, false).second;
  const std::string wanted = text_of_response(ask(after(first, "And then?"), false).second);
  const bool behind = GENERATE(false, true);
  INFO((behind ? "the answer to an exchange is lost" : "a call fails"));
  // The call of this number fails; -1: none does.
  std::atomic<int> left = -1;
  tier.tier().watch = [&](MemoryTier::Call call) {
    if (behind && call != MemoryTier::Call::exchange) return;
    int now = left;
    while (now >= 0 && !left.compare_exchange_weak(now, now - 1)) {
    }
    if (now != 0) return;
    if (!behind) throw FileError("the tier refused this call");
    tier.tier().fail_behind_exchange = true;
  };
  int failed = 0, done_all_the_same = 0;
  bool reached = true;
  for (int n = 0; reached; n += behind ? 1 : episodic_test::all_or(1, 3)) {
    INFO(n);
    REQUIRE(n < 500);
    const std::string id = id_of(one.post("/v1/conversations", json::object()));
    const std::string items = "/v1/conversations/" + id + "/items";
    ask({{"conversation", id}, {"input", "The king"}, {"store", false}}, false);
    const json before = one.get(items);
    left = n;
    const auto branch = ask(after(first, "And then?"), true);
    reached = left.exchange(n) < 0;
    const auto turn = ask({{"conversation", id}, {"input", "And then?"}}, true);
    reached = left.exchange(-1) < 0 || reached;
    failed += (branch.first != 200) + (turn.first != 200);
    // Nothing is half there, and the next try goes on.
    CHECK(text_of_response(ask(after(first, "And then?"), false).second) == wanted);
    const json now = one.get(items);
    if (turn.first == 200) CHECK(now["data"].size() == 4);
    if (now != before) {
      CHECK(now["data"].size() == 4);
      done_all_the_same += turn.first != 200;
    }
    REQUIRE(comes([&] {
      return one.ask("POST", "/v1/responses",
                     {{"conversation", id}, {"input", "Where?"}, {"max_output_tokens", 2}})
                 .first == 200;
    }));
  }
  CHECK(failed > (behind ? 2 : episodic_test::all_or(20, 6)));
  if (behind) CHECK(done_all_the_same > 0);
  // What was left is found by the next server, once leases have run out.
  one.stop();
  tier.tier().watch = nullptr;
  tier.tier().expire();
  one.start();
  std::set<std::string> names = tier.names();
  for (const std::string& name : names) {
    const std::string id = name.substr(0, name.find('.'));
    INFO(name);
    CHECK(names.contains(id));
    CHECK(std::count_if(names.begin(), names.end(), [&](const std::string& other) {
            return other.starts_with(id + ".");
          }) == 1);
  }
}

TEST_CASE("replicas: a record that is damaged stops no server, says so, and can be removed") {
  const TempDir dir;
  make_chat_model(dir / "model");
  Tier tier(dir);
  House one(dir / "model", tier.of_machine("one"));
  const std::string response = id_of(one.respond({{"input", "The king said"}}));
  const std::string talk = id_of(one.post("/v1/conversations", json::object()));
  for (const std::string& id : {response, talk}) {
    BlockTier::Head head = tier.tier().head(id);
    head.bytes.back() ^= std::byte{1};
    REQUIRE(tier.tier().exchange(id, head.version, head.bytes));
  }
  one.restart();  // which looks for old ones
  for (const std::string& path : {"/v1/responses/" + response, "/v1/conversations/" + talk}) {
    const auto [status, error] = one.ask("GET", path);
    INFO(error.dump());
    CHECK(status == 500);
    CHECK(error["error"]["message"].get<std::string>().find("is damaged") != std::string::npos);
    CHECK(one.ask("DELETE", path).first == 200);
    CHECK(one.ask("GET", path).first == 404);
  }
  CHECK(tier.names().empty());
}

TEST_CASE("replicas: a tier that is away is one clear error, and the next try goes on") {
  const TempDir dir;
  make_chat_model(dir / "model");
  Tier tier(dir);
  const House one(dir / "model", tier.of_machine("one"));
  const json first = one.respond({{"input", "The king said"}});
  tier.tier().lost = true;
  const auto [status, error] = one.ask("POST", "/v1/responses", after(first, "And?"));
  INFO(error.dump());
  CHECK(status >= 500);
  CHECK(error["error"]["message"].get<std::string>().find("memory:tests") != std::string::npos);
  CHECK(one.ask("GET", "/health").first == 200);
  CHECK_THROWS_AS(House(dir / "model", tier.of_machine("two")), FileError);
  tier.tier().lost = false;
  one.respond(after(first, "And?"));
}
