// SPDX-License-Identifier: Apache-2.0
#include "calls.hpp"

#include <new>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/model/memory_settings.hpp"
#if EPISODIC_REDIS
#include "episodic/redis/redis_tier.hpp"
#endif

namespace episodic::c {
namespace {

thread_local std::string last_error;

constexpr std::pair<std::int32_t, const char*> kOwnCodes[] = {
    {EPISODIC_OK, "ok"},
    {EPISODIC_BAD_HANDLE, "bad_handle"},
    {EPISODIC_BUSY, "busy"},
    {EPISODIC_TOO_SMALL, "too_small"},
    {EPISODIC_NULL_ARGUMENT, "null_argument"},
    {EPISODIC_NO_MEMORY, "no_memory"},
    {EPISODIC_INTERNAL, "internal"},
};

/// Once, before any memory is opened: where one may lie.
void add_schemes() {
#if EPISODIC_REDIS
  static const bool added = (add_redis_scheme(), true);
  static_cast<void>(added);
#endif
}

}  // namespace

std::int32_t code_of_current(std::string& message) {
  try {
    throw;
  } catch (ApiError& e) {
    message = std::move(e.message);
    return e.code;
  } catch (const Error& e) {
    message = e.what();
    return static_cast<std::int32_t>(e.code());
  } catch (const std::bad_alloc&) {
    message = "out of memory";
    return EPISODIC_NO_MEMORY;
  } catch (const std::exception& e) {
    message = e.what();
    return EPISODIC_INTERNAL;
  } catch (...) {
    message = "an error of no known kind";
    return EPISODIC_INTERNAL;
  }
}

std::int32_t call(const std::function<void()>& body) noexcept {
  try {
    try {
      add_schemes();
      body();
      return EPISODIC_OK;
    } catch (...) {
      return code_of_current(last_error);
    }
  } catch (...) {  // no room for the message itself
    last_error.clear();
    return EPISODIC_NO_MEMORY;
  }
}

void require_count(std::size_t n, std::size_t element_bytes, const char* name) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 56;  // as of views
  if (n > kMostBytes / element_bytes)
    throw ApiError{EPISODIC_DATA, std::string(name) + ": a count of " + std::to_string(n) +
                                      ", more than any memory holds; was it negative?"};
}

void require_struct_size(std::size_t size, const char* name, std::size_t least) {
  constexpr std::size_t kMost = 1 << 16;  // of any version; more was never set
  if (size < least || size > kMost)
    throw ApiError{EPISODIC_CONFIG, std::string(name) + ": struct_size = " + std::to_string(size) +
                                        ", must be sizeof the struct"};
}

std::string_view text_of(const char* text, std::size_t length, const char* name) {
  if (length > 0) require(text, name);
  require_count(length, 1, name);
  return {text, length};
}

void copy_text(std::string_view text, char* to, std::size_t capacity, std::size_t* length) {
  if (length) *length = text.size();
  if (!to) return;
  require_count(capacity, 1, "capacity");
  if (capacity <= text.size())
    throw ApiError{EPISODIC_TOO_SMALL, "the buffer has " + std::to_string(capacity) +
                                           " bytes; the text takes " +
                                           std::to_string(text.size() + 1)};
  std::copy(text.begin(), text.end(), to);
  to[text.size()] = '\0';
}

void copy_events(const EventTable& events, std::int64_t first, episodic_range* to,
                 std::size_t capacity, std::size_t* n) {
  if (first < 0 || first > events.size())
    throw ApiError{EPISODIC_DATA, "first = " + std::to_string(first) + ": there are " +
                                      std::to_string(events.size()) + " events"};
  const auto left = static_cast<std::size_t>(events.size() - first);
  const std::size_t count = to ? std::min(left, capacity) : left;
  require_count(capacity, sizeof *to, "capacity");
  if (n) *n = count;
  if (!to) return;
  for (std::size_t i = 0; i < count; ++i) {
    const TokenRange& e = events[first + static_cast<std::int64_t>(i)];
    to[i] = {e.start, e.end};
  }
}

MemoryConfig settings_for(const std::filesystem::path& model, const ModelOptions& options,
                          const char* changes) {
  const MemoryConfig base = brings_memory_settings(model)
                                ? memory_config_of(model)
                                : default_memory(model_facts(model, options)).config;
  return changes ? change_memory_config(base, changes, "settings") : base;
}

ProgressCallback progress_of(episodic_progress progress, void* user) {
  if (!progress) return {};
  return [progress, user](std::int64_t done, std::int64_t total) {
    return progress(done, total, user) == 0;
  };
}

}  // namespace episodic::c

using namespace episodic::c;

extern "C" {

std::int32_t episodic_api_version(void) { return EPISODIC_API_VERSION; }
const char* episodic_version(void) { return EPISODIC_LIBRARY_VERSION; }
const char* episodic_last_error(void) { return last_error.c_str(); }

const char* episodic_code_name(std::int32_t code) {
  for (const auto& [own, name] : kOwnCodes)
    if (own == code) return name;
  return episodic::name_of(static_cast<episodic::ErrorCode>(code));
}

}  // extern "C"
