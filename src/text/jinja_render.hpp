// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a template prints.

#include <string>

#include "episodic/text/chat_template.hpp"
#include "jinja_syntax.hpp"

namespace episodic::text::jinja {

/// Names that every template finds, which no variable may take.
bool is_global(std::string_view name);

/// \param globals names that the template finds, made with the same budget
/// \throws DataError, beginning with the line where there is one: unknown filters, tests, methods
///         and functions by name, what the template itself raises, and templates that take more
///         than the budget
RenderedPrompt render(const Block& block, Named globals, Budget& budget);

}  // namespace episodic::text::jinja
