// SPDX-License-Identifier: Apache-2.0
#include "base/write_queue.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "support/faulty_calls.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
using io::WriteQueue;

TEST_CASE("write queue: everything lands where it belongs, whatever lies beside it") {
  std::mt19937 random(3);
  const auto draw = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (int trial = 0; trial < 60; ++trial) {
    const TempDir dir;
    const io::Directory folder(io::system_calls(), dir.path());
    std::vector<io::File> files;
    std::vector<std::vector<std::byte>> expected(2);
    for (const char* name : {"a", "b"}) files.push_back(folder.create(io::Kind::segment, name));
    // Neighbours, gaps and changes of file, as they come; now and then one out of order.
    std::vector<WriteQueue::Write> writes;
    for (int i = 0; i < 40; ++i) {
      const std::size_t f = draw(5) == 0 ? 1 : 0;
      expected[f].resize(expected[f].size() + (draw(3) == 0 ? draw(9) : 0));
      WriteQueue::Write w;
      w.file = &files[f];
      w.offset = static_cast<std::int64_t>(expected[f].size());
      for (std::size_t n = 1 + draw(12); n > 0; --n) {
        w.own.push_back(static_cast<std::byte>(1 + draw(255)));
        expected[f].push_back(w.own.back());
      }
      w.bytes = w.own;
      writes.push_back(std::move(w));
      if (i > 0 && draw(6) == 0) std::swap(writes[writes.size() - 1], writes[writes.size() - 2]);
    }
    std::vector<std::byte> gather(draw(4) * 16);
    std::size_t written = 0;
    {
      WriteQueue queue(0, gather, [&](const WriteQueue::Write&) { ++written; });
      WriteQueue::Lock lock = queue.lock();
      for (WriteQueue::Write& w : writes) {
        WriteQueue::Ready one;
        one.push_back(std::move(w));
        one.front().bytes = one.front().own;
        queue.push(lock, std::move(one));
      }
      queue.drain(lock);
      lock.unlock();
      queue.stop();
    }
    REQUIRE(written == 40);
    for (std::size_t f = 0; f < 2; ++f) {
      std::vector<std::byte> found(expected[f].size());
      if (!found.empty()) files[f].read(found, 0);
      REQUIRE(found == expected[f]);
      REQUIRE(files[f].size() == static_cast<std::int64_t>(found.size()));
    }
  }
}

TEST_CASE("write queue: what failed is tried again by the next call, not before it") {
  for (const bool drains : {false, true}) {
    FaultyCalls calls;
    const TempDir dir;
    const io::Directory folder(calls, dir.path());
    io::File file = folder.create(io::Kind::segment, "a");
    const std::vector<std::byte> bytes(10, std::byte{7});
    WriteQueue queue(0, {}, nullptr);
    const auto wait = [&] {
      WriteQueue::Lock lock = queue.lock();
      drains ? queue.drain(lock) : queue.progress(lock);
    };
    const io::Site site{io::Kind::segment, io::Op::write};
    calls.play({site, FaultyCalls::Fault::error, EIO, 0, true});
    {
      WriteQueue::Ready one(1);
      one.front().file = &file;
      one.front().bytes = bytes;
      queue.push(queue.lock(), std::move(one));
    }
    for (std::int64_t times = 1; times <= 3; ++times) {
      REQUIRE_THROWS_AS(wait(), FileError);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      REQUIRE(calls.calls(site) == times);
    }
    // The caller has made room: it hears nothing of what failed before.
    calls.heal();
    wait();
    queue.stop();
    REQUIRE(file.size() == 10);
  }
}
