// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Handles of the C API: numbers that are looked up, so that one that was freed is refused, and
/// that two threads do not meet in.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "episodic/c/episodic.h"

namespace episodic::c {

/// A failure that no class of the library's errors stands for.
struct ApiError {
  episodic_code code;
  std::string message;
};

/// What a handle may stand for. `kKind` is for messages.
struct Object {
  virtual ~Object() = default;
  virtual const char* kind() const = 0;
  std::mutex in_use;
};

/// All objects that handles stand for. Numbers are never given again.
class Handles {
 public:
  static Handles& all() {
    static Handles handles;
    return handles;
  }

  template <class Handle>
  Handle add(std::shared_ptr<Object> object) {
    const std::lock_guard lock(mutex_);
    const std::uintptr_t number = next_;
    objects_.emplace(number, std::move(object));
    next_ += 2;  // odd: the address of nothing
    return reinterpret_cast<Handle>(number);
  }

  /// \throws ApiError for a handle of nothing, or of another kind
  template <class T>
  std::shared_ptr<T> find(const void* handle) {
    if (!handle) throw ApiError{EPISODIC_BAD_HANDLE, std::string("the ") + T::kKind + " is null"};
    std::shared_ptr<Object> object;
    {
      const std::lock_guard lock(mutex_);
      const auto at = objects_.find(reinterpret_cast<std::uintptr_t>(handle));
      if (at != objects_.end()) object = at->second;
    }
    if (!object)
      throw ApiError{EPISODIC_BAD_HANDLE,
                     std::string("the ") + T::kKind + " was freed, or is no handle"};
    if (auto found = std::dynamic_pointer_cast<T>(object)) return found;
    throw ApiError{EPISODIC_BAD_HANDLE, std::string("the handle is that of a ") + object->kind() +
                                            ", not of a " + T::kKind};
  }

  /// The object itself ends once no call uses it any more. \throws as find
  template <class T>
  void remove(const void* handle) {
    if (!handle) return;
    std::shared_ptr<Object> gone = find<T>(handle);  // ends behind the lock
    const std::lock_guard lock(mutex_);
    objects_.erase(reinterpret_cast<std::uintptr_t>(handle));
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::uintptr_t, std::shared_ptr<Object>> objects_;
  std::uintptr_t next_ = 1;
};

/// An object, held for the length of a call. \throws ApiError also where another call holds it
template <class T>
class Held {
 public:
  explicit Held(const void* handle)
      : object_(Handles::all().find<T>(handle)), lock_(object_->in_use, std::try_to_lock) {
    if (!lock_.owns_lock())
      throw ApiError{EPISODIC_BUSY, std::string("the ") + T::kKind +
                                        " is in use by another thread, or by the call that this "
                                        "callback is of; use one at a time"};
  }
  T* operator->() const { return object_.get(); }
  T& operator*() const { return *object_; }

 private:
  std::shared_ptr<T> object_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace episodic::c
