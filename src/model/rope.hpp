// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rope settings of config.json, of either generation, as a `Rope`.

#include "episodic/model/rope.hpp"
#include "json_object.hpp"

namespace episodic {

/// A key of config.json that Hugging Face has not: the rows of q and k are in GGUF's order, the two
/// channels of a rotary pair side by side.
inline constexpr const char* kRopeInterleaved = "_rope_interleaved";

/// What a model says outside of its rope settings, and what the reference's class of it assumes.
struct RopeAround {
  std::int64_t head_dim = 0;
  std::int64_t max_positions = 0;  ///< 0 if not said
  double theta = 10000;            ///< where config.json states none
  /// Context of the first training where config.json states none beside the rope settings; it goes
  /// before one that is stated among them. 0: the class has no such default.
  std::int64_t original = 0;
  bool of_layer_type = false;  ///< the settings are of layers of one type: they stand alone
  bool partial = true;         ///< the class turns part of a head where it is told to
  double share = 1;            ///< the part where config.json says none
  bool interleaved = false;    ///< pairs lie side by side
};

/// \param config the model's keys \param parameters rope_parameters or rope_scaling, if there is
/// one \throws FileError naming the key
Rope read_rope(const JsonObject& config, const std::optional<JsonObject>& parameters,
               const RopeAround& around);

}  // namespace episodic
