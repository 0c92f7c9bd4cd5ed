// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The "decoder" of tokenizer.json.

#include <functional>
#include <string>
#include <vector>

#include "growth.hpp"
#include "json_node.hpp"

namespace episodic::text {

/// Vocabulary entries -> text. Bytes that make no character stay bytes.
class Decoder {
 public:
  /// \throws FileError for a decoder that is not supported
  explicit Decoder(const JsonNode& node);

  std::string operator()(std::vector<std::string> tokens) const;

 private:
  void add(const JsonNode& node, int depth);
  std::vector<std::function<void(std::vector<std::string>&, const Growth&)>> steps_;
  std::string separator_;
};

}  // namespace episodic::text
