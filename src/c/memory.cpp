// SPDX-License-Identifier: Apache-2.0
// The C API's memories: for a caller's own attention.
#include <optional>

#include "calls.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/memory/kept_memory.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/session/kept_folder.hpp"
#include "objects.hpp"

namespace episodic::c {
namespace {

// Of version 1, for ever: these stay when a struct grows (tests/c/abi_v1.txt).
constexpr std::size_t kShapeLeast = 88, kViewLeast = 64, kInfoLeast = 56, kMemoryOptionsLeast = 56,
                      kDeviceOptionsLeast = 56;

MemoryShape shape_of(const episodic_shape* given) {
  const episodic_shape s = known_fields(given, "shape", {}, kShapeLeast);
  if (s.n_layers < 1 || s.n_layers > 65536)
    throw ConfigError("shape: n_layers = " + std::to_string(s.n_layers) +
                      ", must be in [1, 65536]");
  constexpr int64_t kMost = 1 << 20;  // check_shape's, before anything is made of it
  if (s.head_dim < 1 || s.head_dim > kMost)
    throw ConfigError("shape: head_dim = " + std::to_string(s.head_dim) + ", must be in [1, " +
                      std::to_string(kMost) + "]");
  if (s.rotary_dim < 0 || s.rotary_dim % 2 != 0 || s.rotary_dim > s.head_dim)
    throw ConfigError("shape: rotary_dim = " + std::to_string(s.rotary_dim) +
                      ", must be even and in [0, head_dim]");
  MemoryShape shape;
  shape.n_layers = s.n_layers;
  shape.n_heads = s.n_heads;
  shape.n_kv_heads = s.n_kv_heads;
  shape.head_dim = s.head_dim;
  RotaryTable rotary;
  if (s.rotary_dim > 0) {
    if (s.frequencies)
      rotary.inverse_frequency.assign(s.frequencies, s.frequencies + s.rotary_dim / 2);
    else
      rotary = plain_rotary(s.rotary_dim, s.rotary_theta);
    if (s.attention_factor != 0) rotary.attention_factor = s.attention_factor;
    rotary.pairs = s.interleaved ? RotaryPairs::interleaved : RotaryPairs::halves;
  }
  if (s.rotary_dim > 0 && s.scale == 0 && s.softcap == 0)
    shape.rotary = rotary;
  else
    shape.layers.assign(static_cast<std::size_t>(s.n_layers), {rotary, s.scale, s.softcap});
  return shape;
}

MemoryConfig settings_of(const char* settings) {
  return settings ? change_memory_config({}, settings, "settings") : MemoryConfig();
}

/// Of episodic_dtype. \throws DataError naming the argument
DType dtype_of(int32_t given, const char* name) {
  constexpr DType kTypes[] = {DType::float32, DType::bfloat16, DType::float16};
  if (given < 0 || given > 2)
    throw DataError(std::string(name) + ": dtype = " + std::to_string(given) +
                    ", must be one of episodic_dtype");
  return kTypes[given];
}

/// \param memory that is to take it
MutableTensorView view_of(const episodic_view* given, const char* name,
                          const SequenceMemory& memory) {
  const episodic_view v = known_fields(given, name, {}, kViewLeast);
  const DType dtype = dtype_of(v.dtype, name);
  if (reinterpret_cast<std::uintptr_t>(v.data) % size_of(dtype) != 0)
    throw DataError(std::string(name) + ": the address is no multiple of its elements' " +
                    std::to_string(size_of(dtype)) + " bytes");
  const TensorSizes sizes{v.n, v.heads, v.dim};
  // as each of them is checked against the step only later: packed rows without overflow
  int64_t row = 0;
  if (__builtin_mul_overflow(v.heads, v.dim, &row))
    throw DataError(std::string(name) + ": heads = " + std::to_string(v.heads) +
                    " and dim = " + std::to_string(v.dim) + " are more than any memory holds");
  MutableTensorView view(v.data, dtype, sizes, TensorStrides{row, v.dim});
  view.memory = memory.memory_kind();
  if (v.row_stride != 0 || v.head_stride != 0) view.strides = {v.row_stride, v.head_stride};
  view.rotary = v.rotated ? Rotary::after : Rotary::before;
  return view;
}

void require_open(const SequenceMemory& memory, std::size_t n) {
  if (const int64_t open = memory.open_tokens(); open == 0 || static_cast<int64_t>(n) != open)
    throw DataError("end_step: n = " + std::to_string(n) + ", the open step has " +
                    std::to_string(open) + " tokens");
}

/// Ends a step by `end`, which ends the memory's and may refuse it.
template <class End>
void end_step(MemoryObject& object, const End& end) {
  if (object.layers) object.layers->require_all_attended();
  end();
  if (object.layers) object.layers->ended();
}

/// A memory that is new, or the one in a folder.
EpisodicMemory memory_for(const episodic_memory_options& o, const ModelConfig& model) {
  KeptFolder at;
  if (o.folder) at.dir = o.folder;
  at.mode = o.writes ? OpenMode::write : OpenMode::read;
  const bool opens = o.folder && (!o.writes || holds_memory(at.dir));
  if (opens) {
    if (o.settings)
      throw ConfigError("settings: the memory is there, with those it was made with; give NULL");
    if (o.model) return open_memory(o.model, at);
    const MemoryShape shape = memory_shape(model);
    KeepOptions keep;
    keep.dir = at.dir;
    return EpisodicMemory::open(keep, at.mode, &shape);
  }
  const MemoryConfig config =
      o.model ? settings_for(o.model, {}, o.settings) : settings_of(o.settings);
  if (o.folder && o.model) return create_memory(o.model, at, config);
  const MemoryShape shape = memory_shape(model, config.n_local);
  require_host_room(config, shape);
  if (!o.folder) return EpisodicMemory(config, shape);
  KeepOptions keep;
  keep.dir = at.dir;
  return EpisodicMemory::create(keep, config, shape);
}

episodic_memory added(EpisodicMemory memory) {
  return Handles::all().add<episodic_memory>(std::make_shared<MemoryObject>(std::move(memory)));
}

}  // namespace
}  // namespace episodic::c

using namespace episodic;
using namespace episodic::c;

extern "C" {

int32_t episodic_memory_new(const char* settings, const episodic_shape* shape,
                            episodic_memory* memory) {
  return call([&] {
    require(memory, "memory");
    *memory = added(EpisodicMemory(settings_of(settings), shape_of(shape)));
  });
}

int32_t episodic_memory_create(const char* folder, const char* settings,
                               const episodic_shape* shape, episodic_memory* memory) {
  return call([&] {
    require(memory, "memory");
    KeepOptions keep;
    keep.dir = require(folder, "folder");
    *memory = added(EpisodicMemory::create(keep, settings_of(settings), shape_of(shape)));
  });
}

int32_t episodic_memory_open(const char* folder, int32_t writes, const episodic_shape* shape,
                             episodic_memory* memory) {
  return call([&] {
    require(memory, "memory");
    KeepOptions keep;
    keep.dir = require(folder, "folder");
    const MemoryShape expected = shape_of(shape);
    *memory =
        added(EpisodicMemory::open(keep, writes ? OpenMode::write : OpenMode::read, &expected));
  });
}

int32_t episodic_memory_make(const episodic_memory_options* options, episodic_memory* memory) {
  return call([&] {
    require(memory, "memory");
    const episodic_memory_options o = known_fields(options, "options", {}, kMemoryOptionsLeast);
    if (!o.model) require(o.shape, "options: shape");
    if (o.layers) require(o.shape, "options: shape");
    std::optional<ModelConfig> described;
    if (o.shape)
      described = described_model(known_fields(o.shape, "shape", {}, kShapeLeast), o.layers);
    const ModelConfig model = o.model ? load_model_config(o.model) : *described;
    if (o.model && described) require_same_model(model, *described, o.model);
    *memory = Handles::all().add<episodic_memory>(std::make_shared<MemoryObject>(
        memory_for(o, model), model, described ? *described : model));
  });
}

int32_t episodic_memory_on_device(const episodic_device_options* options, episodic_memory* memory) {
  return call([&] {
    require(memory, "memory");
    const episodic_device_options o = known_fields(options, "options", {}, kDeviceOptionsLeast);
    DeviceMemorySettings settings;
    settings.config = settings_of(o.settings);
    settings.shape = shape_of(require(o.shape, "options: shape"));
    settings.dtype = dtype_of(o.dtype, "options");
    settings.device = o.device_number;
    settings.max_tokens = o.max_tokens;
    settings.rotated = o.rotated != 0;
    settings.stream = o.stream;
    *memory = Handles::all().add<episodic_memory>(
        std::make_shared<MemoryObject>(memory_on_device(settings)));
  });
}

int32_t episodic_memory_use_stream(episodic_memory memory, void* stream) {
  return call([&] {
    const Held<MemoryObject> held(memory);
    if (!held->on_device)
      throw ConfigError("use_stream: the memory is on the host, where there are no streams");
    held->on_device->use_stream(stream);
  });
}

int32_t episodic_memory_free(episodic_memory memory) {
  return call([&] { Handles::all().remove<MemoryObject>(memory); });
}

int32_t episodic_memory_begin_step(episodic_memory memory, int64_t n, int32_t decodes) {
  return call([&] {
    const Held<MemoryObject> held(memory);
    const StepKind kind = decodes ? StepKind::decode : StepKind::prompt;
    if (held->layers)
      held->layers->begin_step(n, kind);
    else
      held->memory().begin_step(n, kind);
  });
}

int32_t episodic_memory_attend(episodic_memory memory, int64_t layer, const episodic_view* q,
                               const episodic_view* k, const episodic_view* v,
                               const episodic_view* out) {
  return call([&] {
    const Held<MemoryObject> held(memory);
    SequenceMemory& of = held->memory();
    const MutableTensorView queries = view_of(q, "q", of), keys = view_of(k, "k", of),
                            values = view_of(v, "v", of), to = view_of(out, "out", of);
    if (held->layers)
      held->layers->attend(layer, queries, keys, values, to);
    else
      of.attend(layer, queries, keys, values, to);
  });
}

int32_t episodic_memory_end_step(episodic_memory memory, const float* surprise, size_t n) {
  return call([&] {
    const Held<MemoryObject> held(memory);
    require_count(n, sizeof(float), "surprise");
    end_step(*held, [&] {
      SequenceMemory& of = held->memory();
      of.end_step(SurpriseView{surprise, static_cast<int64_t>(n), of.memory_kind()});
    });
  });
}

int32_t episodic_memory_end_step_logits(episodic_memory memory, const int64_t* ids, size_t n,
                                        const float* logits, int64_t vocab, int64_t row_stride) {
  return call([&] {
    const Held<MemoryObject> held(memory);
    require_open(held->memory(), n);
    require(ids, "ids");
    require(logits, "logits");
    if (vocab < 1 || row_stride < vocab)
      throw DataError("end_step: vocab = " + std::to_string(vocab) + " and row_stride = " +
                      std::to_string(row_stride) + ", must be 1 <= vocab <= row_stride");
    constexpr int64_t kMostFloats = int64_t{1} << 54;
    if (row_stride > kMostFloats / held->memory().open_tokens())
      throw DataError("end_step: row_stride = " + std::to_string(row_stride) +
                      ", the last row would lie beyond all memory");
    if (held->on_device) return held->on_device->end_step({ids, n}, logits, vocab, row_stride);
    end_step(*held, [&] { held->on_host("end_step").end_step(ids, logits, vocab, row_stride); });
  });
}

int32_t episodic_memory_end_step_ids(episodic_memory memory, const int64_t* ids, size_t n,
                                     const float* surprise, const float* last_logits,
                                     int64_t vocab) {
  return call([&] {
    const Held<MemoryObject> held(memory);
    EpisodicMemory& host = held->on_host("end_step_ids");
    require_open(host, n);
    require(ids, "ids");
    require(last_logits, "last_logits");
    if (vocab < 1)
      throw DataError("end_step: vocab = " + std::to_string(vocab) + ", must be at least 1");
    require_count(static_cast<std::size_t>(vocab), sizeof(float), "last_logits");
    const StepSurprise step{array_of(surprise, n - 1, "surprise"),
                            {last_logits, static_cast<std::size_t>(vocab)}};
    end_step(*held, [&] { host.end_step(ids, step); });
  });
}

int32_t episodic_memory_abandon_step(episodic_memory memory) {
  return call([&] {
    const Held<MemoryObject> held(memory);
    if (held->layers)
      held->layers->state().abandon_step();
    else
      held->memory().abandon_step();
  });
}

int32_t episodic_memory_ids(episodic_memory memory, episodic_range tokens, int64_t* ids,
                            size_t capacity, size_t* n) {
  return call([&] {
    const Held<MemoryObject> held(memory);
    EpisodicMemory& host = held->on_host("ids");
    if (tokens.start < 0 || tokens.end < tokens.start || tokens.end > host.tokens())
      throw DataError("ids: tokens " + std::to_string(tokens.start) + " to " +
                      std::to_string(tokens.end) + " are not within the memory's");
    copy_items<int64_t>(host.token_ids(tokens.start, tokens.end - tokens.start), ids, capacity, n);
  });
}

int32_t episodic_memory_reset(episodic_memory memory) {
  return call([&] {
    const Held<MemoryObject> held(memory);
    if (held->layers)
      held->layers->state().reset();
    else
      held->memory().reset();
  });
}

int32_t episodic_memory_get_info(episodic_memory memory, episodic_memory_info* info) {
  return call([&] {
    const Held<MemoryObject> held(memory);
    const SequenceMemory& m = held->checked();
    episodic_memory_info found{};
    found.tokens = m.tokens();
    found.events = m.events().size();
    found.lanes = held->on_device ? held->on_device->lanes() : held->on_host("lanes").lanes();
    found.chunk = m.config().chunk;
    found.open_tokens = m.open_tokens();
    found.kept = !held->on_device && held->on_host("kept").kept();
    write_known(info, found, "info", kInfoLeast);
  });
}

int32_t episodic_memory_events(episodic_memory memory, int64_t first, episodic_range* events,
                               size_t capacity, size_t* n) {
  return call([&] {
    const Held<MemoryObject> held(memory);
    copy_events(held->checked().events(), first, events, capacity, n);
  });
}

int32_t episodic_memory_recalled(episodic_memory memory, int64_t lane, int64_t* events,
                                 size_t capacity, size_t* n) {
  return call([&] {
    const LaneRecall lists = Held<MemoryObject>(memory)->checked().recall_lists(lane);
    std::vector<int64_t> all = lists.similarity;
    all.insert(all.end(), lists.contiguity.begin(), lists.contiguity.end());
    copy_items<int64_t>(all, events, capacity, n);
  });
}

int32_t episodic_memory_snapshot(episodic_memory memory, episodic_snapshot* snapshot) {
  return call([&] {
    require(snapshot, "snapshot");
    auto object = std::make_shared<SnapshotObject>();
    const Held<MemoryObject> held(memory);
    if (held->layers)
      object->of_layers = held->layers->state().snapshot();
    else
      object->of_memory = held->memory().snapshot();
    if (held->on_device) object->logits = held->on_device->logits();
    *snapshot = Handles::all().add<episodic_snapshot>(std::move(object));
  });
}

int32_t episodic_memory_restore(episodic_memory memory, episodic_snapshot snapshot) {
  return call([&] {
    const Held<MemoryObject> held(memory);
    const Held<SnapshotObject> of(snapshot);
    if (!of->of_memory && !of->of_layers)
      throw ConfigError("restore: the snapshot is of a sequence, not of a memory");
    if (!of->of_memory != !!held->layers)
      throw ConfigError("restore: the snapshot is of another memory");
    if (held->layers)
      held->layers->state().restore(*of->of_layers);
    else
      held->memory().restore(*of->of_memory);
    if (held->on_device) held->on_device->restore(of->logits);
  });
}

int32_t episodic_memory_fork(episodic_memory memory, episodic_memory* other) {
  return call([&] {
    require(other, "other");
    const Held<MemoryObject> held(memory);
    auto made = held->on_device
                    ? std::make_shared<MemoryObject>(held->on_device->fork())
                    : std::make_shared<MemoryObject>(EpisodicMemory(held->on_host("fork").share()));
    if (held->layers) made->layers = held->layers->over(made->on_host("fork"));
    *other = Handles::all().add<episodic_memory>(std::move(made));
  });
}

int32_t episodic_memory_commit(episodic_memory memory) {
  return call([&] { Held<MemoryObject>(memory)->memory().commit(); });
}

int32_t episodic_memory_forget(episodic_memory memory, episodic_range tokens, size_t* forgotten) {
  return call([&] {
    const auto gone =
        Held<MemoryObject>(memory)->memory().forget(TokenRange{tokens.start, tokens.end});
    if (forgotten) *forgotten = gone.size();
  });
}

int32_t episodic_memory_pin(episodic_memory memory, int64_t event, int32_t pinned) {
  return call([&] { Held<MemoryObject>(memory)->memory().pin(event, pinned != 0); });
}

int32_t episodic_folder_fork(const char* from, const char* to) {
  return call([&] { fork_memory(require(from, "from"), require(to, "to")); });
}

int32_t episodic_folder_verify(const char* folder, size_t* damages, char* report, size_t capacity,
                               size_t* length) {
  return call([&] {
    const VerifyReport found = verify_memory(require(folder, "folder"));
    if (damages) *damages = found.damages.size();
    std::string text;
    for (const VerifyReport::Damage& d : found.damages)
      text += d.file.string() + ": " + d.what + "\n";
    copy_text(text, report, capacity, length);
  });
}

}  // extern "C"
