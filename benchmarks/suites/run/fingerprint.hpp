// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a run was made of, so that another file of the same name is told apart.

#include <filesystem>
#include <string>

namespace episodic::suites {

/// SHA-256 of a file's bytes, in hex, as `sha256sum` prints it. \throws FileError
std::string file_sha256(const std::filesystem::path& file);

/// Of a model (a directory or a GGUF file) or of an adapter's directory: SHA-256, in hex, of the
/// names and sizes of its configuration, tokenizer and weight files and of pieces of their bytes: a
/// weight file's first and last MiB and 64 pieces of 64 KiB between, so that a model of many GB
/// takes no time. \throws FileError
std::string sampled_sha256(const std::filesystem::path& model);

}  // namespace episodic::suites
