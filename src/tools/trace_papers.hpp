// SPDX-License-Identifier: Apache-2.0
#pragma once
// `episodic trace` for the cases without a model: segmentation from keys (hem), reweighted
// attention (epman), association and forgetting (memoria).

#include <filesystem>
#include <string>

#include "common.hpp"
#include "trace_parts.hpp"

namespace episodic::tools {

/// Runs a case whose inputs.safetensors lies beside it and writes trace.safetensors and trace.json.
/// \param parts that it is computed by
/// \return false for a kind that is none of these
/// \throws FileError naming the file and the key or tensor
bool trace_without_model(const std::string& kind, const Json& test,
                         const std::filesystem::path& case_file, const std::filesystem::path& out,
                         TraceParts& parts);

}  // namespace episodic::tools
