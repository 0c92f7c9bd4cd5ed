// SPDX-License-Identifier: Apache-2.0
// Memories that the ranks of a group keep, each in a folder of its own.
#include <array>
#include <string>

#include "episodic/session/model.hpp"
#include "episodic/session/sequence.hpp"
#include "episodic/session/session.hpp"
#include "support/test.hpp"
#include "tensor_parallel.hpp"

using namespace episodic;
using namespace tensor_parallel_test;
using episodic_test::message_of;
using episodic_test::run_ranks;
using episodic_test::try_ranks;
namespace fs = std::filesystem;

namespace {

MemoryConfig kept_config() {
  return parse_memory_config(
      R"({"n_init": 3, "n_local": 16, "n_mem": 16, "chunk": 10, "min_block": 2, "max_block": 6,
          "n_repr": 2, "gamma": 0.5, "refine": "modularity"})");
}

/// A rank's sequence over its part of the memory in a folder, which is made if it is not there.
struct Rank {
  std::shared_ptr<const Model> model;
  Sequence sequence;
  std::shared_ptr<EpisodicMemory> memory;

  Rank(const fs::path& dir, const fs::path& memories, const std::shared_ptr<Group>& group)
      : model(load_model(dir, options_of(group))), sequence(model) {
    KeptFolder folder;
    folder.dir = group ? folder_of_rank(memories, group->rank(), group->size()) : memories;
    memory = std::make_shared<EpisodicMemory>(holds_memory(folder.dir)
                                                  ? open_memory(*model, folder)
                                                  : create_memory(*model, folder, kept_config()));
    sequence.attach(memory);
  }
  static ModelOptions options_of(const std::shared_ptr<Group>& group) {
    ModelOptions options;
    options.group = group;
    return options;
  }
  void read(std::span<const std::int64_t> ids) { Session(sequence).prefill(ids); }
};

}  // namespace

TEST_CASE("tensor parallel: a kept memory goes on where it was committed") {
  const TempDir dir, kept;
  const TinyShape shape = divided_shape();
  TinyLlama(shape, 3).write(dir.path());
  const std::vector<std::int64_t> ids = random_ids(160, shape.vocab, 9);
  const auto text = std::span(ids);
  std::array<std::uint64_t, 2> expected{};
  run_ranks(2, [&](const std::shared_ptr<Group>& group) {
    Rank rank(dir.path(), kept / "whole", group);
    rank.read(text);
    expected[static_cast<std::size_t>(group->rank())] = rank.memory->digest();
  });
  CHECK(expected[0] != expected[1]);  // each has its own heads
  run_ranks(2, [&](const std::shared_ptr<Group>& group) {
    Rank rank(dir.path(), kept / "parts", group);
    rank.read(text.first(80));
    rank.sequence.commit();
  });
  run_ranks(2, [&](const std::shared_ptr<Group>& group) {
    Rank rank(dir.path(), kept / "parts", group);
    require(rank.memory->tokens() == 80, "other tokens");
    rank.read(text.subspan(80));
    require(rank.memory->digest() == expected[static_cast<std::size_t>(group->rank())],
            "another memory");
  });
  CHECK(verify_memory(kept / "parts" / "rank-1-of-2").damages.empty());
}

TEST_CASE("tensor parallel: a rank that ends leaves the memory at its last commit on all ranks") {
  const TempDir dir, kept;
  const TinyShape shape = divided_shape();
  TinyLlama(shape, 3).write(dir.path());
  const std::vector<std::int64_t> ids = random_ids(160, shape.vocab, 9);
  const auto text = std::span(ids);
  std::array<std::uint64_t, 2> expected{};
  run_ranks(2, [&](const std::shared_ptr<Group>& group) {
    Rank rank(dir.path(), kept / "whole", group);
    rank.read(text);
    expected[static_cast<std::size_t>(group->rank())] = rank.memory->digest();
  });
  const bool within_commit = GENERATE(false, true);
  const fs::path parts = kept / (within_commit ? "in-commit" : "in-chunk");
  const auto errors = try_ranks(
      2,
      [&](const std::shared_ptr<Group>& group) {
        Rank rank(dir.path(), parts, group);
        rank.read(text.first(60));
        rank.sequence.commit();
        rank.read(text.subspan(60, 40));
        if (group->rank() == 1) return;  // its end
        if (within_commit)
          rank.sequence.commit();  // done here, and never there
        else
          rank.read(text.subspan(100));
      },
      std::chrono::milliseconds(3000));
  CHECK_THAT(message_of(errors[0]), Catch::Matchers::Contains("rank 1 of 2 has sent nothing"));
  CHECK(message_of(errors[1]).empty());
  CHECK(MemoryManifest::read(parts / "rank-0-of-2").state.tokens == (within_commit ? 100 : 60));
  CHECK(MemoryManifest::read(parts / "rank-1-of-2").state.tokens == 60);
  run_ranks(2, [&](const std::shared_ptr<Group>& group) {
    Rank rank(dir.path(), parts, group);
    require(rank.memory->tokens() == 60, "other tokens");
    rank.read(text.subspan(60));
    rank.sequence.commit();
    require(rank.memory->digest() == expected[static_cast<std::size_t>(group->rank())],
            "another memory");
  });
}

TEST_CASE("tensor parallel: a memory of so many ranks is not opened by others") {
  const TempDir dir, kept;
  const TinyShape shape = divided_shape();
  TinyLlama(shape, 3).write(dir.path());
  const auto ids = random_ids(60, shape.vocab, 9);
  run_ranks(2, [&](const std::shared_ptr<Group>& group) {
    Rank rank(dir.path(), kept / "two", group);
    rank.read(ids);
    rank.sequence.commit();
  });
  for (const auto& error : try_ranks(4, [&](const std::shared_ptr<Group>& group) {
         Rank rank(dir.path(), kept / "two", group);
       }))
    CHECK_THAT(message_of(error),
               Catch::Matchers::Contains("is a memory of 2 ranks, not of 4; start 2 ranks"));
  CHECK_THROWS_WITH(MemoryManifest::read(kept / "two"),
                    Catch::Matchers::Contains("is a memory of 2 ranks, each with a folder in it"));
  CHECK_THROWS_WITH(Rank(dir.path(), kept / "two" / "rank-0-of-2", nullptr),
                    Catch::Matchers::Contains("divided among is 2, not 1"));
  Rank alone(dir.path(), kept / "one", nullptr);
  for (const auto& error : try_ranks(2, [&](const std::shared_ptr<Group>& group) {
         Rank rank(dir.path(), kept / "one", group);
       }))
    CHECK_THAT(message_of(error), Catch::Matchers::Contains("is the memory of one process"));
}
