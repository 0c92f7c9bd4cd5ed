// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Read and write heads (EpMAN 3.1, 3.5): linear maps that are learnt, of what is asked and
/// of what an event holds, so that the two compare by what they have to do with each other.
/// `episodic train-lora --reader` trains them beside an adapter. Torch-free.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "episodic/memory/sequence_memory.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/recall/recall_hook.hpp"
#include "episodic/session/event_reader.hpp"

namespace episodic {

/// The heads of every layer of a memory, over its key space: the read head R takes the mean
/// fixed-position query of all heads, the write head W an event's representative vector. The
/// event's relevance is max(0, cosine(R query, W event)). With both the identity that is the
/// KeyReader, where training begins.
struct ReaderHeads {
  std::int64_t layers = 0;  ///< of the memory
  std::int64_t width = 0;   ///< of query and representative: query heads * channels of a head
  std::int64_t out = 0;     ///< of what is compared
  /// Row-major [layers, out, width].
  std::vector<float> read, write;
  /// MemoryIdentity::weights of the model that they were trained with, without its adapter.
  std::string model;

  /// Heads that change nothing: out = width. \throws ConfigError for a number below 1
  static ReaderHeads identity(std::int64_t layers, std::int64_t width);

  /// R query of one layer, in float64 sums. \param query [width] \return [out]
  /// \throws DataError for another width or layer
  std::vector<float> read_vector(std::int64_t layer, std::span<const float> query) const;
  /// W event, likewise. \param event [width] \return [out]
  std::vector<float> write_vector(std::int64_t layer, std::span<const float> event) const;

  /// Name of the file beside an adapter.
  static constexpr const char* kFile = "reader_heads.safetensors";
  /// Writes DIR/reader_heads.safetensors, which appears whole or not at all.
  /// \throws DataError if a number is not finite; FileError
  void save(const std::filesystem::path& dir) const;
  /// \throws FileError naming the file and what is wrong with it: missing, damaged, of another
  ///   kind, not finite
  static ReaderHeads load(const std::filesystem::path& dir);
};

/// How much events have to do with what is asked, by trained heads. Writes an event when it first
/// meets it, and anew where the memory went back and closed another event of that number. One
/// thread at a time.
class HeadReader final : public EventReader {
 public:
  /// \param heads not null \param memory whose hook it serves; must outlive it
  /// \throws ConfigError where layers or width are others than the memory's, and for a memory that
  ///   recalls by heads (`scope`, `recall_groups`)
  HeadReader(std::shared_ptr<const ReaderHeads> heads, const SequenceMemory& memory);
  void score(const RecalledEvents& recalled, std::span<float> scores) const override;

  /// Relevance of one event in a layer, in [0, 1]. \param query [width]
  float score(std::int64_t layer, std::span<const float> query, EventId event) const;

 private:
  struct Written {
    std::uint64_t event = 0;    ///< checksum of the representative vector
    std::vector<float> vector;  ///< [out]; empty: not written
  };

  /// \param read R query
  float relevance(std::int64_t layer, std::span<const float> read, EventId event) const;

  std::shared_ptr<const ReaderHeads> heads_;
  const SequenceMemory& memory_;
  mutable std::vector<std::vector<Written>> written_;  // by layer and event
};

/// The heads beside an adapter, checked against the model that they are to read for.
/// \param dir that `episodic train-lora --reader` made
/// \throws FileError as ReaderHeads::load; ConfigError for heads of another model
ReaderHeads load_reader_heads(const std::filesystem::path& dir, const OpenModel& model);

}  // namespace episodic
