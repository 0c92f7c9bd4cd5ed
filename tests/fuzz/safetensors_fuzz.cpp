// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <span>

#include "episodic/base/error.hpp"
#include "episodic/model/safetensors.hpp"
#include "tensors.hpp"

using namespace episodic;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::uint8_t> copy(data, data + size);  // exact size: sanitizers see overruns
  const auto bytes = std::as_bytes(std::span(copy));
  try {
    const SafetensorsContent content = parse_safetensors(bytes, "fuzz");
    fuzz::check_tensors(content.tensors, bytes);
  } catch (const Error&) {
  }
  return 0;
}

namespace fuzz {
namespace {

std::string file_of(const std::string& header, std::size_t data) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data, 'x');
}

}  // namespace

std::vector<std::string> seeds() {
  return {
      file_of("{}", 0),
      file_of(R"({"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}   )", 16),
      file_of(
          R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},)"
          R"("b":{"dtype":"I64","shape":[],"data_offsets":[6,14]},)"
          R"("c":{"dtype":"U8","shape":[0,7],"data_offsets":[14,14]}})",
          14),
  };
}

/// The header's length becomes what its last brace says.
void repair(std::string& input) {
  const auto end = input.rfind('}');
  if (end == std::string::npos || end < 8) return;
  const std::uint64_t length = end + 1 - 8;
  std::memcpy(input.data(), &length, 8);
}

}  // namespace fuzz
