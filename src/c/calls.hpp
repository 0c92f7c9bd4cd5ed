// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the functions of the C API share: errors as codes, structs of several ages, copies into the
/// caller's memory.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/base/callbacks.hpp"
#include "episodic/c/episodic.h"
#include "episodic/model/open_model.hpp"
#include "episodic/timeline/event_table.hpp"
#include "handles.hpp"

namespace episodic::c {

/// Runs the body of a function: what it throws becomes a code and this thread's message.
std::int32_t call(const std::function<void()>& body) noexcept;
/// The exception being handled, as a code; its message goes to `message`.
std::int32_t code_of_current(std::string& message);

/// \throws ApiError naming the argument
template <class T>
T* require(T* argument, const char* name) {
  if (!argument)
    throw ApiError{EPISODIC_NULL_ARGUMENT, std::string(name) + ": is null; give an address"};
  return argument;
}
/// Most elements that an array can have: more is a negative number, or one that was never set.
/// \throws ApiError naming the argument
void require_count(std::size_t n, std::size_t element_bytes, const char* name);
/// A text of a length; null with a length of 0 is the empty text. \throws ApiError
std::string_view text_of(const char* text, std::size_t length, const char* name);
/// An array; null with a length of 0 is empty. \throws ApiError
template <class T>
std::span<T> array_of(T* items, std::size_t n, const char* name) {
  if (n > 0) require(items, name);
  require_count(n, sizeof(T), name);
  return {items, n};
}

/// \param least bytes of the first version \throws ApiError for a size that no version has
void require_struct_size(std::size_t size, const char* name, std::size_t least);
/// A struct as its caller knows it: the fields it has, the others as they are in `defaults`.
/// \param least bytes of the first version \throws ApiError
template <class T>
T known_fields(const T* given, const char* name, T defaults, std::size_t least) {
  require(given, name);
  const std::size_t size = given->struct_size;
  require_struct_size(size, name, least);
  std::memcpy(static_cast<void*>(&defaults), given, std::min(size, sizeof(T)));
  return defaults;
}
/// The other way: writes the fields that the caller knows, but for struct_size.
template <class T>
void write_known(T* to, const T& from, const char* name, std::size_t least) {
  const std::size_t size = known_fields(to, name, T{}, least).struct_size;
  std::memcpy(reinterpret_cast<char*>(to) + sizeof(size),
              reinterpret_cast<const char*>(&from) + sizeof(size),
              std::min(size, sizeof(T)) - sizeof(size));
}

/// The elements of an array of structs, which have another size for a caller of another version.
/// \throws ApiError
template <class T>
std::vector<T*> elements_of(T* first, std::size_t n, const char* name, std::size_t least) {
  std::vector<T*> elements;
  if (n == 0) return elements;
  const std::size_t stride = require(first, name)->struct_size;
  require_struct_size(stride, name, least);
  if (stride % alignof(T) != 0)
    throw ApiError{EPISODIC_CONFIG, std::string(name) + ": struct_size = " +
                                        std::to_string(stride) + ", must be sizeof the struct"};
  require_count(n, stride, name);
  for (std::size_t i = 0; i < n; ++i) {
    T* const element = reinterpret_cast<T*>(reinterpret_cast<char*>(first) + i * stride);
    if (element->struct_size != stride)
      throw ApiError{EPISODIC_CONFIG,
                     std::string(name) + ": struct_size = " + std::to_string(element->struct_size) +
                         " beside " + std::to_string(stride) + "; all must be sizeof the struct"};
    elements.push_back(element);
  }
  return elements;
}
/// Writes what became of an element: its code and message.
template <class T>
void tell(T& element, std::int32_t code, const std::string& message) {
  element.code = code;
  std::snprintf(element.message, sizeof element.message, "%s", message.c_str());
}

/// Copies a text with the NUL that ends it. \throws ApiError where it does not fit
void copy_text(std::string_view text, char* to, std::size_t capacity, std::size_t* length);
/// Copies whatever there is of one kind. \throws ApiError where it does not fit
template <class T>
void copy_items(std::span<const T> items, T* to, std::size_t capacity, std::size_t* n) {
  if (n) *n = items.size();
  if (!to) return;
  require_count(capacity, sizeof(T), "capacity");
  if (capacity < items.size())
    throw ApiError{EPISODIC_TOO_SMALL, "the buffer has room for " + std::to_string(capacity) +
                                           "; there are " + std::to_string(items.size())};
  std::copy(items.begin(), items.end(), to);
}
/// Copies the events from `first` on that fit.
void copy_events(const EventTable& events, std::int64_t first, episodic_range* to,
                 std::size_t capacity, std::size_t* n);

/// Settings of a new memory: the model's own, or what suits a model that brings none, with changes.
MemoryConfig settings_for(const std::filesystem::path& model, const ModelOptions& options,
                          const char* changes);

ProgressCallback progress_of(episodic_progress progress, void* user);

}  // namespace episodic::c
