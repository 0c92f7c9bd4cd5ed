// SPDX-License-Identifier: Apache-2.0
#include "kept_rows.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "cuda.hpp"

namespace episodic::device {
namespace {

/// Tokens whose rows are copied at once at least: a copy for each ring costs more than its bytes
/// where one token comes at a time.
constexpr std::int64_t kRowsAhead = 64;
/// Bytes between rows of a 2D copy: the runtime takes no more.
constexpr std::int64_t kMostPitch = std::numeric_limits<std::int32_t>::max();

const char* const kSaidOfRows = "rows that a snapshot needs";

/// Rows of one ring that lie side by side, of all heads.
struct Piece {
  std::byte* at;       // of the first head
  std::int64_t pitch;  // from head to head
  std::int64_t heads, bytes;
};

/// Between a piece and host memory, where the heads lie side by side.
void copy_piece(const Piece& piece, std::byte* host, bool back, cudaStream_t stream) {
  const auto kind = back ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
  const auto bytes = static_cast<std::size_t>(piece.bytes),
             pitch = static_cast<std::size_t>(piece.pitch);
  if (piece.pitch <= kMostPitch) {
    device::check(cudaMemcpy2DAsync(back ? piece.at : host, back ? pitch : bytes,
                                    back ? host : piece.at, back ? bytes : pitch, bytes,
                                    static_cast<std::size_t>(piece.heads), kind, stream),
                  kSaidOfRows);
    return;
  }
  for (std::int64_t head = 0; head < piece.heads; ++head) {
    std::byte *const at = piece.at + head * piece.pitch, *const copied = host + head * piece.bytes;
    device::check(cudaMemcpyAsync(back ? at : copied, back ? copied : at, bytes, kind, stream),
                  kSaidOfRows);
  }
}

}  // namespace

class KeptRows::Mark {
 public:
  explicit Mark(std::int64_t at_token)
      : tokens(at_token), kept_to(at_token), written_to(at_token) {}

  /// What tokens [first, end) overwrote, piece by piece.
  struct Part {
    std::int64_t first, end;
    std::vector<std::byte> rows;
  };

  const std::int64_t tokens;
  std::int64_t kept_to;     // what tokens before this one overwrite is in `parts`
  std::int64_t written_to;  // tokens before this one may have come since the rings were as here
  std::vector<Part> parts;
};

KeptRows::Overwriting KeptRows::overwriting(const Ring& ring, const Mark& mark, std::int64_t first,
                                            std::int64_t end) {
  // Token t takes the row of t - capacity, which the mark needs from its last ones on.
  const std::int64_t after_all = mark.tokens + ring.capacity;
  return {std::max({first, after_all - ring.needed_rows, ring.capacity}), std::min(end, after_all)};
}

/// f(piece) of each ring's rows that tokens [first, end) overwrite and the mark needs, in order.
template <class F>
void KeptRows::for_pieces(const Mark& mark, std::int64_t first, std::int64_t end, F&& f) const {
  for (const Ring& ring : rings_) {
    const Overwriting by = overwriting(ring, mark, first, end);
    for (std::int64_t t = by.first, next = t; t < by.end; t = next) {
      next = std::min(by.end, t + ring.capacity - t % ring.capacity);  // up to the ring's end
      f(Piece{ring.data + t % ring.capacity * ring.row_bytes, ring.capacity * ring.row_bytes,
              ring.heads, (next - t) * ring.row_bytes});
    }
  }
}

std::shared_ptr<KeptRows::Mark> KeptRows::mark(std::int64_t tokens) {
  std::erase_if(marks_, [](const std::weak_ptr<Mark>& m) { return m.expired(); });
  // All that are of use are of one sequence, so those of as many tokens are the same.
  for (const std::weak_ptr<Mark>& weak : marks_)
    if (std::shared_ptr<Mark> same = weak.lock(); same && same->tokens == tokens) return same;
  auto mark = std::make_shared<Mark>(tokens);
  marks_.push_back(mark);
  return mark;
}

/// Copies what tokens up to `end` overwrite of what the mark needs.
void KeptRows::keep(Mark& mark, std::int64_t end, cudaStream_t stream) const {
  const auto bytes_before = [&](std::int64_t to) {
    std::int64_t bytes = 0;
    for_pieces(mark, mark.kept_to, to, [&](const Piece& p) { bytes += p.heads * p.bytes; });
    return bytes;
  };
  if (bytes_before(end) > 0) {
    end = std::max(end, mark.kept_to + kRowsAhead);
    Mark::Part part{mark.kept_to, end, {}};
    part.rows.resize(static_cast<std::size_t>(bytes_before(end)));
    try {
      std::byte* to = part.rows.data();
      for_pieces(mark, part.first, part.end, [&](const Piece& piece) {
        copy_piece(piece, to, false, stream);
        to += piece.heads * piece.bytes;
      });
      device::check(cudaStreamSynchronize(stream), kSaidOfRows);
    } catch (...) {
      static_cast<void>(cudaStreamSynchronize(stream));  // what was enqueued writes to the part
      throw;
    }
    mark.parts.push_back(std::move(part));
  }
  mark.kept_to = end;
}

void KeptRows::before_step(std::int64_t tokens, std::int64_t n, cudaStream_t stream) {
  std::erase_if(marks_, [](const std::weak_ptr<Mark>& m) { return m.expired(); });
  for (const std::weak_ptr<Mark>& weak : marks_) {
    const std::shared_ptr<Mark> mark = weak.lock();
    if (!mark) continue;
    if (mark->kept_to < tokens + n) keep(*mark, tokens + n, stream);
    mark->written_to = std::max(mark->written_to, tokens + n);
  }
}

void KeptRows::restore(Mark& mark, cudaStream_t stream) {
  bool copied = false;
  for (Mark::Part& part : mark.parts) {
    if (part.first >= mark.written_to) continue;
    std::byte* from = part.rows.data();
    for_pieces(mark, part.first, part.end, [&](const Piece& piece) {
      copy_piece(piece, from, true, stream);
      from += piece.heads * piece.bytes;
    });
    copied = true;
  }
  if (copied) device::check(cudaStreamSynchronize(stream), kSaidOfRows);
  mark.written_to = mark.tokens;
  std::erase_if(marks_, [&](const std::weak_ptr<Mark>& weak) {
    const std::shared_ptr<Mark> other = weak.lock();
    return !other || other->tokens > mark.tokens;
  });
}

}  // namespace episodic::device
