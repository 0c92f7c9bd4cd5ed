// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a template prints.

#include <string>

#include "jinja_syntax.hpp"

namespace episodic::text::jinja {

/// \param globals names that the template finds
/// \throws DataError, beginning with the line where there is one: unknown filters, tests, methods
///         and functions by name, what the template itself raises, and templates that do not end
std::string render(const Block& block, Named globals);

}  // namespace episodic::text::jinja
