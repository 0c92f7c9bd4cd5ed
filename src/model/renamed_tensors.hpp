// SPDX-License-Identifier: Apache-2.0
#pragma once
// A checkpoint whose tensors have other names than a model of its kind saves them by: under a
// prefix of a wrapper's, or with a tied embedding stored as the head. Torch-free.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "episodic/model/tensor_source.hpp"

namespace episodic {

class RenamedTensors final : public TensorSource {
 public:
  /// \param names what each tensor of `base` is to be called, by its name there; empty: it is left
  ///        out
  RenamedTensors(std::shared_ptr<const TensorSource> base,
                 const std::map<std::string, std::string>& names)
      : base_(std::move(base)) {
    for (const StoredTensor* view : base_->tensors()) {
      const auto found = names.find(view->name);
      Renamed renamed{*view, view->name};
      if (found != names.end()) renamed.view.name = found->second;
      if (renamed.view.name.empty()) continue;
      std::string name = renamed.view.name;
      tensors_.emplace(std::move(name), std::move(renamed));
    }
  }

  const StoredTensor* find(std::string_view name) const override {
    const auto it = tensors_.find(name);
    return it == tensors_.end() ? nullptr : &it->second.view;
  }

  std::vector<const StoredTensor*> tensors() const override {
    std::vector<const StoredTensor*> all;
    for (const auto& [name, renamed] : tensors_) all.push_back(&renamed.view);
    return all;
  }

  std::filesystem::path file_of(std::string_view name) const override {
    const auto it = tensors_.find(name);
    return base_->file_of(it == tensors_.end() ? name : std::string_view(it->second.stored_as));
  }

 private:
  struct Renamed {
    StoredTensor view;
    std::string stored_as;
  };
  std::shared_ptr<const TensorSource> base_;
  std::map<std::string, Renamed, std::less<>> tensors_;
};

/// The same tensors by the names that Hugging Face's decoders have, where all of them have one
/// prefix of another kind ("language_model.model.", "base_model.model.model.", none) and so it is
/// plain which is which. Of a model that sees, what sees is left out.
/// \param note one line if they were renamed
/// \return the tensors as they are if they have their usual names, or none that are understood
std::shared_ptr<const TensorSource> with_usual_names(std::shared_ptr<const TensorSource> tensors,
                                                     bool sees, std::string& note);

}  // namespace episodic
