// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model's tensors with some of them replaced by what was computed from them, or left out.
// Torch-free.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "episodic/model/tensor_source.hpp"

namespace episodic {

class ChangedTensors final : public TensorSource {
 public:
  explicit ChangedTensors(std::shared_ptr<const TensorSource> base) : base_(std::move(base)) {}

  /// Replaces or adds a tensor. \param bytes packed, as StoredTensor says
  void put(const std::string& name, TensorType type, std::vector<std::int64_t> shape,
           std::vector<std::byte> bytes) {
    Changed& c = changed_[name];
    c.bytes = std::move(bytes);
    c.view = {name, type, std::move(shape), c.bytes.data(),
              static_cast<std::int64_t>(c.bytes.size())};
  }

  /// The tensor is there no more, if it was.
  void leave_out(const std::string& name) { left_out_.insert(name); }

  const StoredTensor* find(std::string_view name) const override {
    if (left_out_.count(name) > 0) return nullptr;
    const auto it = changed_.find(name);
    return it == changed_.end() ? base_->find(name) : &it->second.view;
  }

  std::vector<const StoredTensor*> tensors() const override {
    std::map<std::string_view, const StoredTensor*> all;
    for (const StoredTensor* view : base_->tensors()) all[view->name] = view;
    for (const auto& [name, changed] : changed_) all[name] = &changed.view;
    std::vector<const StoredTensor*> in_order;
    for (const auto& [name, view] : all)
      if (left_out_.count(name) == 0) in_order.push_back(view);
    return in_order;
  }

  /// Of an added tensor the file that the others are listed in.
  std::filesystem::path file_of(std::string_view name) const override {
    return base_->file_of(name);
  }

 private:
  struct Changed {
    StoredTensor view;
    std::vector<std::byte> bytes;
  };
  std::shared_ptr<const TensorSource> base_;
  std::map<std::string, Changed, std::less<>> changed_;
  std::set<std::string, std::less<>> left_out_;
};

}  // namespace episodic
