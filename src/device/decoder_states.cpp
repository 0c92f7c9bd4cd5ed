// SPDX-License-Identifier: Apache-2.0
// States of a DeviceDecoder: from a memory of the host and back to it, snapshots.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "decoder_impl.hpp"
#include "episodic/base/error.hpp"
#include "transfers.hpp"

namespace episodic {

std::vector<float> DeviceDecoder::Impl::read_last_logits() {
  std::vector<float> row;
  if (!stepped) return row;
  row.resize(static_cast<std::size_t>(config().vocab_size));
  device::check(cudaMemcpyAsync(row.data(), last_logits, row.size() * sizeof(float),
                                cudaMemcpyDeviceToHost, stream()),
                "copying logits");
  check_device();
  return row;
}

void DeviceDecoder::Impl::write_last_logits(const std::vector<float>& row) {
  stepped = !row.empty();
  if (row.empty()) return;
  device::check(cudaMemcpyAsync(last_logits, row.data(), row.size() * sizeof(float),
                                cudaMemcpyHostToDevice, stream()),
                "copying logits");
  device::check(cudaStreamSynchronize(stream()), "copying logits");
}

DeviceMemory& DeviceDecoder::attach_memory(EpisodicMemory& from, std::int64_t max_tokens) {
  Impl& m = *impl_;
  MemoryConfig config = from.config();
  // What neither tier above holds lies in the memory's own folder, in files without names.
  if (config.disk_dir.empty() && config.host_bytes > 0) config.disk_dir = from.folder().string();
  const std::vector<float>& last = from.last_logits();
  if (!last.empty() && static_cast<std::int64_t>(last.size()) != m.config().vocab_size)
    throw ConfigError(
        fmt::format("DeviceDecoder::attach_memory: the memory's last logits are {}, but the "
                    "model's vocabulary is "
                    "{}",
                    last.size(), m.config().vocab_size));
  if (m.steps->weights.heads().padded())
    throw ConfigError(fmt::format(
        "DeviceDecoder::attach_memory: heads of {} channels are padded to {} on the device, and no "
        "memory of the host is; run this {} model on the CPU, or with a memory of the device's own",
        m.config().head_dim, m.steps->weights.heads().head_dim(), m.config().model_type));
  const std::vector<std::int64_t> sliding = unserved_layers(m.config());
  for (const std::int64_t l : sliding)
    if (const int rope = m.config().layers[static_cast<std::size_t>(l)].rope;
        rope >= 0 && m.config().ropes[static_cast<std::size_t>(rope)].depends_on_length())
      throw ConfigError(fmt::format(
          "DeviceDecoder::attach_memory: the rotary table of this {} model's sliding layers "
          "follows the length of the context, which a device's does not; run it on the "
          "CPU",
          m.config().model_type));
  const device::CurrentDevice current(m.steps->device);
  DeviceMemory& memory = attach_memory(config, max_tokens, from.given_boundaries());
  try {
    if (!sliding.empty()) {
      auto windows = std::make_shared<device::SlidingWindows>(m.config(), sliding);
      from.keep_beside(windows);  // which takes over what was kept of them
      if (from.tokens() > 0) m.causal.write_windows(*windows, m.stream());
      m.windows = std::move(windows);
    }
    memory.load(from);
    m.write_last_logits(last);
  } catch (...) {
    m.forget_attention();  // half of it is of no use
    throw;
  }
  m.tokens = memory.tokens();
  m.generation = memory.generation();
  m.keeps_ids = true;
  return memory;
}

void DeviceDecoder::save(EpisodicMemory& to) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.steps->device);
  std::vector<device::SlidingWindows::Layer> windows;
  RecurrentState recurrent;
  if (m.windows) {
    windows = m.causal.read_windows(m.windows->layers(), m.tokens_now(), m.stream());
    recurrent = m.causal.read_recurrent(m.config(), m.tokens_now(), m.stream());
  }
  memory().save(to, m.ids_since, m.read_last_logits());
  if (m.windows) m.windows->set(m.tokens_now(), std::move(windows), std::move(recurrent));
  m.ids_since.clear();
}

DeviceDecoder DeviceDecoder::fork() {
  Impl& m = *impl_;
  DeviceDecoder other = share_weights();
  if (m.chunk == 0) return other;  // without attention yet
  const device::CurrentDevice current(m.steps->device);
  m.follow_memory();
  Impl& o = *other.impl_;
  if (m.memory) {
    o.forget_attention();
    o.attend_with(m.memory->fork());
  } else {
    m.check_device();
    other.attend_fully(m.max_tokens, m.chunk);
  }
  o.tokens = m.tokens_now();
  o.last_n = m.last_n;
  o.stepped = m.stepped;
  if (o.tokens == 0) return other;
  o.causal.copy(m.causal, m.stream());
  if (m.stepped) device::move(o.last_logits, m.last_logits, m.config().vocab_size, m.stream());
  device::move(o.surprise, m.surprise, m.last_n, m.stream());
  return other;
}

std::int64_t DeviceDecoder::fork_bytes(std::int64_t tokens) const {
  const Impl& m = *impl_;
  return m.buffer.bytes() + m.causal.bytes() + (m.memory ? m.memory->fork_bytes(tokens) : 0);
}

class DeviceDecoder::Snapshot {
 public:
  std::shared_ptr<const MemorySnapshot> memory;  // null without one
  std::shared_ptr<device::KeptRows::Mark> rows;  // of the layers beside it
  std::vector<std::byte> caches;                 // without a memory
  std::vector<float> matrices;                   // of recurrent heads, beside a memory
  std::int64_t tokens = 0, chunk = 0, max_tokens = 0;
  std::vector<float> last_logits;
};

std::shared_ptr<const DeviceDecoder::Snapshot> DeviceDecoder::snapshot() {
  Impl& m = *impl_;
  m.require_attention();
  const device::CurrentDevice current(m.steps->device);
  m.follow_memory();
  auto s = std::make_shared<Snapshot>();
  if (m.memory) {
    s->memory = m.memory->snapshot();
    s->rows = m.causal.kept_rows().mark(m.tokens_now());
    s->matrices = m.causal.recurrences().copy_matrices(m.tokens_now(), m.stream());
  } else {
    s->caches = m.causal.read(m.stream());
  }
  s->tokens = m.tokens_now();
  s->chunk = m.chunk;
  s->max_tokens = m.max_tokens;
  s->last_logits = m.read_last_logits();
  return s;
}

void DeviceDecoder::restore(const Snapshot& s) {
  Impl& m = *impl_;
  m.require_attention();
  const device::CurrentDevice current(m.steps->device);
  if (!s.memory != !m.memory || s.chunk != m.chunk || s.max_tokens != m.max_tokens)
    throw ConfigError("DeviceDecoder::restore: the snapshot was taken of another attention");
  const std::int64_t back = m.tokens_now() - s.tokens;
  if (m.memory) {
    m.memory->restore(*s.memory);  // which refuses a snapshot of later tokens
    m.causal.kept_rows().restore(*s.rows, m.stream());
    m.causal.recurrences().put_matrices(s.matrices, s.tokens, m.stream());
  } else {
    m.causal.write(s.caches, m.stream());
  }
  m.tokens = s.tokens;
  if (m.memory) m.generation = m.memory->generation();
  m.write_last_logits(s.last_logits);
  // Left are those between the host's memory and the snapshot; none, if that came before.
  const auto known = static_cast<std::int64_t>(m.ids_since.size());
  m.ids_since.resize(static_cast<std::size_t>(std::max<std::int64_t>(0, known - back)));
}

}  // namespace episodic
