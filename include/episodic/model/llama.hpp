// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The former name of `Decoder`, from when it knew one family.

#include "episodic/model/decoder.hpp"

namespace episodic {

using LlamaModel = Decoder;

}  // namespace episodic
