// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of recall/index.hpp; how they become functions: base/inline.hpp.
//
// In place of src/recall/faiss_index.cpp in the header-only core, and where EPISODIC_FAISS is off.
#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/recall/index.hpp"

namespace EPISODIC_NAMESPACE {

EPISODIC_INLINE std::unique_ptr<RepresentativeIndex> make_faiss_index(
    const IndexShape& /*shape*/, std::int64_t /*exact_up_to*/) {
  throw NotBuiltError(
      "memory configuration: index = \"faiss\" is not in this build; build with EPISODIC_FAISS=ON, "
      "or use index = \"exact\"");
}

}  // namespace EPISODIC_NAMESPACE
