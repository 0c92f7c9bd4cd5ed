// SPDX-License-Identifier: Apache-2.0
// The input is a segment file; which events lie where in it is known.
#include <algorithm>
#include <cstring>
#include <span>

#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "episodic/store/disk_store.hpp"
#include "folder.hpp"

using namespace episodic;

namespace {

constexpr std::size_t kPage = 4096, kLine = 64;
const StoreShape kShape{2, 1, 4, DType::float32};

DiskStoreOptions options(const fuzz::Folder& folder, bool keep) {
  DiskStoreOptions o;
  o.dir = folder.path();
  o.keep = keep;
  o.max_block = 5;
  o.lease_tokens = 10;
  o.host_bytes = least_host_bytes(kShape, o.max_block, o.lease_tokens);
  o.engine = ReadEngine::threads;
  o.read_depth = 1;  // one thread: most of an input's time went into making them
  o.direct = DirectIo::off;
  return o;
}

struct Files {
  fuzz::Folder folder;
  StoreImage image;
  std::string name, good;

  Files() {
    const auto store = make_disk_store(kShape, options(folder, true));
    const std::vector<TokenRange> ranges{{0, 3}, {3, 8}, {8, 10}};
    store->append(ranges);
    std::vector<float> rows(64);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i) * 0.25f;
    for (EventId e = 0; e < 3; ++e)
      for (std::int64_t l = 0; l < kShape.n_lanes; ++l)
        store->write(e, l, RingView{rows.data(), rows.data() + 7, 10, 40, 4});
    image = store->sync();
    store->committed(image);
    name = segment_name(image.segments[0].id);
    good = folder.read(name);
  }
};

Files& files() {
  static Files files;
  return files;
}

/// Headers whose checksums are right, so that what they say is believed.
void put_checksums(std::string& file) {
  const auto sum = [&](std::size_t at, std::size_t n, std::uint64_t seed) {
    return checksum(std::as_bytes(std::span(file.data() + at, n)), seed);
  };
  const auto put = [&](std::size_t at, std::uint64_t value) {
    std::memcpy(file.data() + at, &value, sizeof value);
  };
  if (file.size() < kPage) return;
  put(kPage - 8, sum(0, kPage - 8, 0));
  for (const StoreImage::Event& e : files().image.events) {
    const auto payload = static_cast<std::size_t>(block_bytes(kShape, e.range.size()));
    const std::size_t stride = kLine + (payload + kLine - 1) / kLine * kLine;
    for (std::int64_t l = 0; l < kShape.n_lanes; ++l) {
      const std::size_t at =
          static_cast<std::size_t>(e.offset) + static_cast<std::size_t>(l) * stride;
      if (at + stride > file.size()) continue;
      put(at + kLine - 8, sum(at + kLine, stride - kLine, sum(at, kLine - 8, 0)));
    }
  }
}

void use(const std::string& file) {
  Files& f = files();
  f.folder.write(f.name, file);
  verify_segments(kShape, f.folder.path(), f.image, io::system_calls(), [](auto&, auto&) {});
  try {
    const auto store = open_disk_store(kShape, options(f.folder, false), f.image);
    std::vector<KvSegment> segments;
    for (EventId e = 0; e < 3; ++e)
      for (std::int64_t l = 0; l < kShape.n_lanes; ++l) {
        store->acquire(l, std::vector<EventId>{e}, segments);
        fuzz::require(
            segments.size() == 1 &&
                segments[0].length == f.image.events[static_cast<std::size_t>(e)].range.size(),
            "an event comes back as long as it was");
        store->release(l);
      }
  } catch (const Error& e) {
    fuzz::require(std::string_view(e.what()).size() < 2000, "a message is short");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string file = fuzz::with_id({reinterpret_cast<const char*>(data), size}, fuzz::kSegmentId,
                                   files().image.segments[0].id);
  // what the checksums stop needs no steering: test_store changes every byte of such a file
  if (size % 8 == 0) use(file);
  put_checksums(file);
  use(file);
  return 0;
}

namespace fuzz {

std::vector<std::string> seeds() {
  return {with_id(files().good, files().image.segments[0].id, kSegmentId)};
}
void repair(std::string&) {}

}  // namespace fuzz
