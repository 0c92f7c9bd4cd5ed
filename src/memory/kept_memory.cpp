// SPDX-License-Identifier: Apache-2.0
// What is kept of a memory, and how it comes back.
#include "episodic/memory/kept_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <system_error>

#include "base/config_difference.hpp"
#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "impl.hpp"

namespace episodic {
namespace {

namespace fs = std::filesystem;
using detail::LayerState;
using detail::MemoryDirectory;
using detail::TierImages;
using detail::TokenLog;

io::Syscalls& calls_of(const KeepOptions& keep) {
  return keep.calls ? *keep.calls : io::system_calls();
}

/// For a message.
std::string named(const MemoryIdentity& identity) {
  return identity.model.empty() ? "a model without a name"
                                : fmt::format("model '{}'", identity.model);
}

void check_identity(const fs::path& dir, const MemoryIdentity& made, const MemoryIdentity& now) {
  const auto compare = [&](const char* what, const std::string& then, const std::string& here) {
    if (then.empty() || here.empty() || then == here) return;
    throw ConfigError(fmt::format(
        "{}: this memory was made with {}; {} of {} given now differ ({} instead of {}): "
        "open it with the model it was made with, or ingest the text anew into another folder",
        dir.string(), named(made), what, named(now), here, then));
  };
  compare("the weights", made.weights, now.weights);
  compare("the tokenizer's files", made.tokenizer, now.tokenizer);
}

/// Refuses settings with which the windows of a sequence of so many tokens would be longer than the
/// rest of the state that they are to be read from, before there is room made for them.
void require_windows(const ByteReader& from, const MemoryConfig& config, const MemoryShape& shape,
                     DType dtype, std::int64_t tokens) {
  const auto rows = [&](std::int64_t all) {  // that a token has reached
    return from.version() < detail::kReachedRows ? all : std::min(all, tokens);
  };
  const std::int64_t ring = rows(ring_capacity(config)), sinks = rows(config.n_init);
  const std::int64_t needed =
      shape.n_layers * (2 * shape.n_kv_heads * shape.head_dim * (ring + sinks) * size_of(dtype) +
                        shape.n_heads * ring * size_of(DType::float32));
  if (needed > static_cast<std::int64_t>(from.left()))
    throw FileError(
        fmt::format("{}: holds {} bytes more, and windows of n_local = {}, n_init = {}, chunk = {} "
                    "and max_block = {} tokens take {}; the manifest's settings are not those that "
                    "it was written with: take the folder from a copy or a fork of it",
                    from.where(), from.left(), config.n_local, config.n_init, config.chunk,
                    config.max_block, needed));
}

/// What a state counts on, its manifest must too: the next writer removes what that does not name,
/// and cuts what is longer.
void check_named(const MemoryManifest& manifest, const TierImages& images, const TokenLog& ids,
                 const std::string& state) {
  std::map<std::string, std::int64_t> named;
  for (const MemoryManifest::FileEntry& f : manifest.files) named[f.name] = f.bytes;
  const auto check = [&](const std::string& name, std::int64_t bytes) {
    const auto at = named.find(name);
    if (at == named.end() || at->second < bytes)
      throw FileError(
          fmt::format("{}: counts on {} bytes of {}, of which the manifest names {}; the memory is "
                      "not whole: take the folder from a copy or a fork of it",
                      state, bytes, name, at == named.end() ? 0 : at->second));
  };
  for (const SegmentRef& s : images.store.segments) check(segment_name(s.id), s.bytes);
  for (const VectorImage::File& f : images.vectors.files) check(vector_file_name(f.id), f.bytes);
  for (const TokenLog::Part& p : ids.parts()) check(TokenLog::file_name(p.id), p.bytes);
}

}  // namespace

fs::path detail::scratch_folder() {
  std::error_code error;
  fs::path folder = fs::temp_directory_path(error);
  if (!error) return folder;
  const char* const named = std::getenv("TMPDIR");
  throw FileError(
      fmt::format("{}: is no folder for temporary files ({}); set TMPDIR to one that is there",
                  named ? printable(named) : "/tmp", error.message()));
}

void detail::TierImages::save(ByteWriter& to) const {
  vectors.save(to);
  store.save(to);
}

TierImages detail::TierImages::load(ByteReader& from) {
  TierImages images;
  images.vectors = VectorImage::load(from);
  images.store = StoreImage::load(from);
  return images;
}

void EpisodicMemory::Impl::save(ByteWriter& to, const TierImages& images,
                                const std::vector<std::uint8_t>& beside_now) const {
  // First what verify needs, and what the layers' indexes are loaded over.
  shape.save(to);
  images.save(to);
  ids.save(to);
  to.put_vector(given);
  time.state().save(to);
  time.save_events(to);
  for (const std::vector<EventId>& gone : forgotten) to.put_vector(gone);
  if (retention) retention->save(to);
  to.put(step_number);
  to.put(counters.tokens);
  to.put(counters.steps);
  to.put(counters.recalled_events);
  for (const LayerState& layer : bank.layers) {
    layer.save(to, time.tokens());
    for (const detail::Lane& lane : layer.lanes)
      if (lane.index) lane.index->save(to);
  }
  if (!beside_now.empty()) to.put_vector(beside_now);
}

std::vector<std::uint8_t> EpisodicMemory::Impl::saved_beside() const {
  if (time.tokens() == 0) return {};  // there is nothing to carry on
  const std::int64_t at = beside ? beside->tokens() : beside_at;
  if (!beside && beside_bytes.empty()) return {};
  if (at != time.tokens())
    throw DataError(fmt::format(
        "the memory stands at token {}, and what its model keeps beside it (sliding layers, "
        "recurrent states) at {}; "
        "{}",
        time.tokens(), at,
        beside ? "go back by the snapshots of the model's state, not of its memory"
               : "patch the memory into its model before it goes on"));
  if (!beside) return beside_bytes;
  ByteWriter to;
  beside->save(to);
  const std::vector<std::byte> bytes = to.take();
  const auto* first = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return {first, first + bytes.size()};
}

void EpisodicMemory::keep_beside(std::shared_ptr<BesideMemory> next) {
  Impl& m = impl();
  const detail::ThreadGuard::Inside guard(m.threads);
  m.check_idle("keep_beside");
  std::vector<std::uint8_t> bytes = m.saved_beside();
  if (next && m.time.tokens() > 0) {
    if (bytes.empty())
      throw DataError(fmt::format(
          "the memory holds {} tokens, and what this model keeps beside it (sliding "
          "layers, recurrent states) was not kept with them; start with an empty memory",
          m.time.tokens()));
    const std::string where =
        m.directory ? m.directory->dir().string() + ": beside the memory" : "beside the memory";
    ByteReader from(std::as_bytes(std::span<const std::uint8_t>(bytes)), where);
    next->load(from);
  }
  m.beside_bytes = next ? std::vector<std::uint8_t>() : std::move(bytes);
  m.beside_at = m.time.tokens();
  m.beside = std::move(next);
}

/// That timeline, store, indexes and recall lists tell of the same events.
void EpisodicMemory::Impl::check_tables(const StoreImage& store, const std::string& where) const {
  const auto refuse = [&](const std::string& what) {
    throw FileError(fmt::format("{}: {}; the file is damaged", where, what));
  };
  std::int64_t stored = 0;
  for (std::int64_t s = 0; s < time.scopes(); ++s) {
    if (!bank.recalling(s)) continue;
    const EventTable& events = time.events(s);
    stored += events.size();
    if (stored > static_cast<std::int64_t>(store.events.size())) break;
    for (EventId e = 0; e < events.size(); ++e) {
      const StoreImage::Event& kept = store.events[static_cast<std::size_t>(bank.stored(s, e))];
      if (kept.segment >= 0 && kept.range != events[e])
        refuse(fmt::format("event {} of scope {} is tokens {} to {}, and {} to {} are stored of it",
                           e, s, events[e].start, events[e].end, kept.range.start, kept.range.end));
      if ((kept.segment < 0) != is_forgotten(s, e))
        refuse(
            fmt::format("event {} of scope {} is forgotten in one table and not in another", e, s));
    }
  }
  if (stored != static_cast<std::int64_t>(store.events.size()))
    refuse(fmt::format("{} stored events for {}", store.events.size(), stored));
  for (const LayerState& layer : bank.layers)
    for (std::int64_t p = 0; p < layer.n_lanes(); ++p) {
      const detail::Lane& lane = layer.lane(p);
      for (EventId e = 0; lane.index && e < lane.index->size(); ++e)
        if (lane.index->forgotten(e) != is_forgotten(lane.scope, e))
          refuse(fmt::format("event {} of scope {} is forgotten in one table and not in another", e,
                             lane.scope));
      for (const EventId e : layer.recalled(p).recalled())
        if (is_forgotten(lane.scope, e))
          refuse(fmt::format("a recall list names event {}, which is forgotten", e));
    }
}

/// What follows the given boundaries, into a memory that was built with them.
void EpisodicMemory::Impl::load(ByteReader& from, const TierImages& images, DType windows) {
  Timeline::State state;
  state.load(from);
  time.load_events(from);
  try {
    time.resume(std::move(state));
  } catch (const DataError& e) {
    throw FileError(fmt::format("{}: {}; the file is damaged", from.where(), e.what()));
  }
  for (std::int64_t s = 0; s < time.scopes(); ++s) {
    if (time.events(s).pending_start() > std::max(time.tokens(), config.n_init))
      throw FileError(from.where() + ": its events reach past its tokens; the file is damaged");
    std::vector<EventId>& gone = forgotten[static_cast<std::size_t>(s)];
    gone = from.get_vector<EventId>();
    EventId last = -1;
    for (const EventId e : gone) {
      if (e <= last || e >= time.events(s).size())
        throw FileError(
            fmt::format("{}: its list of forgotten events names event {} of {} behind event {}; "
                        "the file is damaged",
                        from.where(), e, time.events(s).size(), last));
      last = e;
    }
  }
  if (time.scopes() > 1) {
    std::vector<LaneRange> lanes;
    for (const StoreImage::Event& event : images.store.events) lanes.push_back(event.lanes);
    bank.number(time, lanes, from.where());
  }
  if (retention) retention->load(from, time.events().size());
  step_number = from.get<std::int64_t>();
  counters.tokens = from.get<std::int64_t>();
  counters.steps = from.get<std::int64_t>();
  counters.recalled_events = from.get<std::int64_t>();
  for (const std::int64_t count :
       {step_number, counters.tokens, counters.steps, counters.recalled_events})
    if (count < 0 || count > kMostCounted)
      throw FileError(fmt::format("{}: a count of steps or tokens is {}; the file is damaged",
                                  from.where(), count));
  for (LayerState& layer : bank.layers) {
    layer.load(from, time.tokens(), time, windows);
    for (const detail::Lane& lane : layer.lanes) {
      if (!lane.index) continue;
      lane.index->load(from);
      if (const std::int64_t events = time.events(lane.scope).size(); lane.index->size() != events)
        throw FileError(fmt::format("{}: {} representatives for {} events; the file is damaged",
                                    from.where(), lane.index->size(), events));
    }
  }
  check_tables(images.store, from.where());
  if (ids.tokens() != time.tokens())
    throw FileError(fmt::format("{}: {} token ids for {} tokens; the file is damaged", from.where(),
                                ids.tokens(), time.tokens()));
  if (from.left() > 0) {
    beside_bytes = from.get_vector<std::uint8_t>();
    beside_at = time.tokens();
  }
  from.finish();
}

EpisodicMemory EpisodicMemory::create(const KeepOptions& keep, const MemoryConfig& config,
                                      const MemoryShape& shape, std::vector<std::int64_t> given) {
  auto impl = std::make_unique<Impl>();
  impl->configure(config, shape, std::move(given));
  impl->config.disk_dir.clear();
  impl->keep = keep;
  impl->use_tier(detail::TieredFolder::create(keep.dir, calls_of(keep)));
  const KeepOptions& at = impl->keep;
  impl->directory = MemoryDirectory::create(at.dir, calls_of(at));
  impl->ids = TokenLog(at.dir, calls_of(at), true);
  impl->build();
  EpisodicMemory memory(std::move(impl));
  memory.commit();
  return memory;
}

void EpisodicMemory::Impl::use_tier(std::shared_ptr<detail::TieredFolder> folder) {
  if (!folder) return;
  on_tier = std::move(folder);
  keep.dir = on_tier->dir();
  keep.calls = &on_tier->calls();
}

EpisodicMemory EpisodicMemory::open(const KeepOptions& given, OpenMode mode,
                                    const MemoryShape* shape, const MemoryConfig* budgets,
                                    std::int64_t at_token) {
  const std::shared_ptr<detail::TieredFolder> tier =
      detail::TieredFolder::open(given.dir, mode, calls_of(given));
  KeepOptions keep = given;
  if (tier) keep.dir = tier->dir(), keep.calls = &tier->calls();
  io::Syscalls& calls = calls_of(keep);
  // A writer may replace files between a reader's look at the manifest and its opening of them.
  for (int attempt = 0;; ++attempt) {
    MemoryDirectory directory = MemoryDirectory::open(keep.dir, mode, calls);
    const std::int64_t generation = directory.manifest().generation;
    try {
      auto impl = std::make_unique<Impl>();
      const MemoryManifest& manifest = directory.manifest();
      check_identity(keep.dir, manifest.identity, keep.identity);
      MemoryManifest::State state = manifest.state;
      if (at_token >= 0 && state.tokens > at_token) {
        state = {};
        for (const MemoryManifest::State& s : manifest.checkpoints)
          if (s.tokens <= at_token) state = s;
        if (state.file.empty())
          throw DataError(fmt::format(
              "{}: no state of at most {} tokens is kept; ingest the text anew up to there",
              keep.dir.string(), at_token));
      }
      const detail::StateFile file = detail::read_state(keep.dir, state, manifest.config, calls);
      ByteReader from(file.bytes, (keep.dir / state.file).string(), file.version);
      Impl& m = *impl;
      m.config = manifest.config;
      if (budgets) {
        if (!m.config.same_results(*budgets))
          throw ConfigError(fmt::format(
              "{}: the memory was made with other settings than those given now: {}. Only "
              "device_bytes, host_bytes, repr_bytes and disk_bytes may change: leave "
              "the settings out, or ingest the text anew into another folder",
              keep.dir.string(), difference(m.config, *budgets)));
        m.config.device_bytes = budgets->device_bytes;
        m.config.host_bytes = budgets->host_bytes;
        m.config.repr_bytes = budgets->repr_bytes;
        m.config.disk_bytes = budgets->disk_bytes;
      }
      m.shape = MemoryShape::load(from);
      try {
        check_shape(m.config, m.shape);
      } catch (const ConfigError& e) {
        throw ConfigError(fmt::format("{}: {}", (keep.dir / "manifest.json").string(), e.what()));
      }
      if (shape)
        if (const std::string what = difference(m.shape, *shape); !what.empty())
          throw ConfigError(fmt::format(
              "{}: this memory was made with {}, not with the one given now: {}; open it with the "
              "model it was made with",
              keep.dir.string(), named(manifest.identity), what));
      const TierImages images = TierImages::load(from);
      require_windows(from, m.config, m.shape, file.windows, state.tokens);
      m.keep = keep;
      m.use_tier(tier);
      m.mode = mode;
      // States between this one and the last tell of a sequence that is given up.
      if (state.file != manifest.state.file) m.gone_back_to = state.tokens;
      m.directory = std::move(directory);
      m.ids = TokenLog(keep.dir, calls, mode == OpenMode::write);
      m.ids.load(from);
      check_named(m.directory->manifest(), images, m.ids, from.where());
      m.given = from.get_vector<std::int64_t>();
      if (const StoreShape s = store_shape(m.config, m.shape); s.n_lanes > 0) {
        const fs::path scratch = mode == OpenMode::read ? detail::scratch_folder() : fs::path();
        detail::Tiers& tiers = m.bank.tiers;
        if (tier) tiers.calls = {tier, &calls};
        tiers.vectors = open_vector_tier(lane_shape(m.config, m.shape).width(m.shape.head_dim),
                                         m.vector_options(), images.vectors, scratch);
        std::unique_ptr<DiskStore> store =
            open_disk_store(s, m.disk_options(), images.store, scratch);
        tiers.disk = store.get();
        tiers.store = std::move(store);
      }
      m.build(m.make_lanes(m.bank.tiers.vectors.get()));
      m.load(from, images, file.windows);
      if (m.time.tokens() != state.tokens || m.counted_events() != state.events)
        throw FileError(fmt::format(
            "{}: says {} tokens and {} events of {}, which holds {} and {}; the memory is not "
            "whole: take the folder from a copy or a fork of it",
            (keep.dir / "manifest.json").string(), state.tokens, state.events, state.file,
            m.time.tokens(), m.counted_events()));
      if (mode == OpenMode::write) {
        m.directory->check_undisturbed();
        m.directory->remove_unnamed();
      }
      return EpisodicMemory(std::move(impl));
    } catch (const FileError&) {
      constexpr int kAttempts = 20;
      if (mode == OpenMode::write || attempt == kAttempts ||
          MemoryManifest::read(keep.dir, calls).generation == generation)
        throw;
    }
  }
}

void EpisodicMemory::commit() {
  Impl& m = impl();
  const detail::ThreadGuard::Inside guard(m.threads);
  require(Capability::commit);
  as_one(m.group.get(), [&] { m.commit(); });
}

std::string EpisodicMemory::Impl::not_kept(const char* what) const {
  if (directory) return {};
  if (base)
    return fmt::format(
        "{}: this memory goes on from a base of {} tokens, which has the folder if there is one; "
        "what it adds is kept nowhere. Read it with a memory that has a folder to itself",
        what, base->tokens());
  return fmt::format("{}: this memory is kept in no folder; make it with EpisodicMemory::create",
                     what);
}

void EpisodicMemory::Impl::check_kept(const char* what) const {
  if (const std::string why = not_kept(what); !why.empty()) throw ConfigError(why);
}

std::string EpisodicMemory::refusal(Capability capability) const {
  const Impl& m = impl();
  switch (capability) {
    case Capability::rewind:
      return m.directory ? std::string()
                         : m.not_kept("rewind") + "; a snapshot can be come back to";
    case Capability::commit:
      if (m.directory && m.mode == OpenMode::read)
        return fmt::format("commit: {} was opened to be read only; open it with OpenMode::write",
                           m.directory->dir().string());
      return m.not_kept("commit");
    case Capability::pin:
      return m.bank.tiers.disk ? ""
                               : "pin: the memory has no disk tier, where nothing ever leaves host "
                                 "memory; keep it in a folder or set disk_dir";
    default:
      return {};
  }
}

void EpisodicMemory::Impl::commit() {
  directory->check_undisturbed();  // before anything of the folder is written anew
  if (on_tier) on_tier->check_writer();
  open = false;  // a step that was refused (a full disk, say) is not part of it
  const std::vector<std::uint8_t> beside_now = saved_beside();
  if (retention) make_room();
  merge_files();
  TierImages images;
  const detail::Tiers& tiers = bank.tiers;
  if (tiers.disk) images.store = tiers.disk->sync();
  for (const LayerState& layer : bank.layers)
    for (const detail::Lane& lane : layer.lanes)
      if (lane.index) lane.index->finish_truncate();
  if (tiers.vectors) images.vectors = tiers.vectors->sync();
  ids.sync();
  ByteWriter state;
  save(state, images, beside_now);

  MemoryManifest next;
  const MemoryManifest& last = directory->manifest();
  next.identity = directory->has_manifest() ? last.identity : keep.identity;
  next.config = config;
  if (!drop_checkpoints) {
    next.checkpoints = last.checkpoints;
    if (directory->has_manifest()) next.checkpoints.push_back(last.state);
    std::erase_if(next.checkpoints, [&](const MemoryManifest::State& s) {
      return s.tokens >= time.tokens() || s.tokens > gone_back_to;
    });
    detail::thin_checkpoints(next.checkpoints, time.tokens(), keep.checkpoints, config.chunk);
    // A rank that ends within a commit leaves the others a commit further: they can go back to it.
    const MemoryManifest::State& before = last.state;
    const bool kept_before = std::any_of(next.checkpoints.begin(), next.checkpoints.end(),
                                         [&](const auto& s) { return s.file == before.file; });
    if (shape.ranks > 1 && directory->has_manifest() && !kept_before &&
        before.tokens < time.tokens() && before.tokens <= gone_back_to)
      next.checkpoints.push_back(before);
  }
  for (const SegmentRef& s : images.store.segments)
    next.files.push_back({segment_name(s.id), s.bytes});
  for (const VectorImage::File& f : images.vectors.files)
    next.files.push_back({vector_file_name(f.id), f.bytes});
  for (const TokenLog::Part& p : ids.parts())
    next.files.push_back({TokenLog::file_name(p.id), p.bytes});
  const bool shorter = gone_back_to < last.state.tokens;
  directory->commit(std::move(next), state.bytes(), time.tokens(), counted_events(),
                    drop_caches || shorter, shape.ranks > 1);
  drop_checkpoints = drop_caches = false;
  gone_back_to = kNever;
  if (tiers.disk) tiers.disk->committed(images.store);
  if (tiers.vectors) tiers.vectors->committed(images.vectors);
  if (on_tier) on_tier->publish(directory->manifest());
}

/// What retention gave up leaves the files too, where it is half of one or more: a kept memory
/// takes what its policy keeps, within a factor of two.
void EpisodicMemory::Impl::make_room() {
  forget_due();
  drop_checkpoints = true;  // earlier states name bytes that may go
  if (bank.tiers.disk) bank.tiers.disk->compact(detail::kDeadShare);
  bank.shrink();
}

/// Each run that writes begins new files. A memory that thousands of runs go on from would have as
/// many, to be opened each time, and linked for each fork.
void EpisodicMemory::Impl::merge_files() {
  bool merged = ids.merge_files(io::kMostFiles);
  const auto merge = [&](auto* tier) {
    if (auto* files = dynamic_cast<io::MergesFiles*>(tier))
      merged |= files->merge_files(io::kMostFiles);
  };
  merge(bank.tiers.disk);
  merge(bank.tiers.vectors.get());
  // they name the old files
  drop_checkpoints |= merged;
}

void EpisodicMemory::compact() {
  Impl& m = impl();
  const detail::ThreadGuard::Inside guard(m.threads);
  m.check_idle("compact");
  require(Capability::commit);
  m.directory->check_undisturbed();
  m.forget_due();
  // Earlier states name bytes that are about to go, and caches may hold something of them.
  m.drop_checkpoints = m.drop_caches = true;
  // every file that holds anything forgotten, however little
  constexpr double kAnything = std::numeric_limits<double>::min();
  if (m.bank.tiers.disk) m.bank.tiers.disk->compact(kAnything);
  for (LayerState& layer : m.bank.layers)
    for (detail::Lane& lane : layer.lanes)
      if (lane.index) lane.index->compact();
  if (m.bank.tiers.vectors) m.bank.tiers.vectors->compact(kAnything);
  const std::vector<bool> gone = m.forgotten_tokens(0, m.time.tokens());
  m.ids.rewrite([&](std::int64_t t) { return gone[static_cast<std::size_t>(t)]; });
  m.commit();
}

std::filesystem::path EpisodicMemory::folder() const {
  return impl().directory ? impl().directory->dir() : std::filesystem::path();
}

bool EpisodicMemory::kept() const { return impl().directory.has_value(); }

bool EpisodicMemory::writable() const { return kept() && impl().mode == OpenMode::write; }

std::int64_t EpisodicMemory::committed_tokens() const {
  impl().threads.check();
  if (impl().on_tier) return impl().on_tier->tokens();
  return impl().directory ? impl().directory->manifest().state.tokens : 0;
}

const MemoryManifest& EpisodicMemory::manifest() const {
  impl().threads.check();
  impl().check_kept("manifest");
  return impl().directory->manifest();
}

std::vector<std::int64_t> EpisodicMemory::token_ids(std::int64_t first, std::int64_t n) const {
  const Impl& m = impl();
  const detail::ThreadGuard::Inside guard(m.threads);
  m.check_kept("token_ids");
  std::vector<std::int64_t> out;
  for (const std::uint32_t id : m.ids.read(first, n))
    out.push_back(id == TokenLog::kUnknown ? -1 : static_cast<std::int64_t>(id));
  const std::vector<bool> gone = m.forgotten_tokens(first, n);
  for (std::size_t i = 0; i < out.size(); ++i)
    if (gone[i]) out[i] = -1;
  return out;
}

EventId EpisodicMemory::stored_event(EventId event, std::int64_t scope) const {
  impl().threads.check();
  impl().check_event(scope, event);
  return impl().bank.recalling(scope) ? impl().bank.stored(scope, event) : event;
}

const DiskStore* EpisodicMemory::disk_store() const {
  impl().threads.check();
  return impl().bank.tiers.disk;
}

}  // namespace episodic
