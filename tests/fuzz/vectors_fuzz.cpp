// SPDX-License-Identifier: Apache-2.0
// The input is the list of vector files and slabs that a state holds, as long as its first two
// bytes say, and then a vector file.
#include <algorithm>
#include <cstring>
#include <span>

#include "episodic/base/bytes.hpp"
#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"
#include "episodic/recall/vector_tier.hpp"
#include "folder.hpp"

using namespace episodic;

namespace {

constexpr std::int64_t kWidth = 3;
constexpr std::size_t kFileHeader = 40, kBlockHeader = 72;

struct Files {
  fuzz::Folder folder;
  VectorImage image;
  std::string name, good, list;

  VectorTierOptions options(bool keep) const {
    VectorTierOptions o;
    o.dir = folder.path();
    o.keep = keep;
    return o;
  }
  Files() {
    const auto tier = make_vector_tier(kWidth, options(true));
    const std::vector<float> rows{1, 2, 3, 4, 5, 6};
    const std::vector<std::byte> codes(5, std::byte{7});
    tier->append(0, 2, rows.data(), codes);
    tier->append(1, 1, rows.data(), {});
    tier->append(0, 2, rows.data(), codes);
    image = tier->sync();
    tier->committed(image);
    name = vector_file_name(image.files[0].id);
    good = folder.read(name);
    ByteWriter w;
    image.save(w);
    list.assign(reinterpret_cast<const char*>(w.bytes().data()), w.bytes().size());
  }
};

Files& files() {
  static Files files;
  return files;
}

/// The headers' checksums made right, where the good file has its headers.
void put_checksums(std::string& file) {
  const auto put = [&](std::size_t at, std::size_t n) {
    if (at + n > file.size()) return;
    const std::uint64_t sum = checksum(std::as_bytes(std::span(file.data() + at, n - 8)));
    std::memcpy(file.data() + at + n - 8, &sum, sizeof sum);
  };
  put(0, kFileHeader);
  for (const VectorImage::Slab& s : files().image.slabs)
    put(static_cast<std::size_t>(s.offset), kBlockHeader);
}

void use(std::span<const std::byte> list, const std::string& file) {
  Files& f = files();
  f.folder.write(f.name, file);
  try {
    ByteReader from(list, "fuzz");
    const VectorImage image = VectorImage::load(from);
    verify_vectors(kWidth, f.folder.path(), image, io::system_calls(), [](auto&, auto&) {});
    const auto tier = open_vector_tier(kWidth, f.options(false), image);
    for (std::int64_t layer = 0; layer < 3; ++layer)
      for (std::int64_t slab = 0; slab < std::min<std::int64_t>(tier->slabs(layer), 4); ++slab) {
        const std::int64_t n = std::min<std::int64_t>(tier->rows(layer, slab), 100);
        std::vector<float> rows(static_cast<std::size_t>(n * kWidth));
        tier->codes(layer, slab);
        tier->read(layer, slab, 0, n, rows.data());
      }
  } catch (const Error& e) {
    fuzz::require(std::string_view(e.what()).size() < 2000, "a message is short");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string input = fuzz::with_id({reinterpret_cast<const char*>(data), size},
                                          fuzz::kVectorsId, files().image.files[0].id);
  const std::size_t length = std::min<std::size_t>(data[0] | data[1] << 8, size - 2);
  const std::vector<char> copy(input.begin() + 2,
                               input.begin() + 2 + static_cast<std::ptrdiff_t>(length));
  std::string file = input.substr(2 + length);
  use(std::as_bytes(std::span(copy)), file);
  put_checksums(file);
  use(std::as_bytes(std::span(copy)), file);
  return 0;
}

namespace fuzz {

std::vector<std::string> seeds() {
  const Files& f = files();
  const std::string length{static_cast<char>(f.list.size() & 255),
                           static_cast<char>(f.list.size() >> 8)};
  return {with_id(length + f.list + f.good, f.image.files[0].id, kVectorsId)};
}
void repair(std::string&) {}

}  // namespace fuzz
