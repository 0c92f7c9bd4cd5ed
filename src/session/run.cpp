// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/run.hpp"

#include <fmt/format.h>

#include <unordered_map>
#include <utility>

#include "episodic/base/error.hpp"

namespace episodic {
namespace {

std::exception_ptr refusal(std::string what) {
  return std::make_exception_ptr(DataError("run: " + std::move(what)));
}

}  // namespace

std::string StepResult::message() const {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown error";
  }
}

void StepResult::require() const {
  if (error) std::rethrow_exception(error);
}

std::vector<StepResult> run(const Model& model, std::span<const SequenceInput> inputs) {
  std::vector<StepResult> results(inputs.size());
  std::vector<ExecutionStep> steps;
  std::vector<std::size_t> input_of;  // of each step
  std::unordered_map<const Sequence*, std::size_t> named;
  steps.reserve(inputs.size());
  input_of.reserve(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const SequenceInput& input = inputs[i];
    if (!input.sequence) {
      results[i].error = refusal("the input names no sequence");
    } else if (const auto [other, first] = named.try_emplace(input.sequence, i); !first) {
      results[i].error = refusal(fmt::format(
          "input {} names the same sequence; a sequence makes one step at a time", other->second));
    } else if (input.sequence->model_.get() != &model) {
      results[i].error = refusal("the sequence is of another model; make it of this one");
    } else {
      steps.push_back({input.sequence->execution_.get(), input.ids, input.kind});
      input_of.push_back(i);
    }
  }
  const std::vector<std::exception_ptr> errors = model.executor().run(steps);
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const SequenceInput& input = inputs[input_of[s]];
    StepResult& result = results[input_of[s]];
    result.error = errors[s];
    if (result.error) continue;
    input.sequence->stepped(input.ids);
    if (!input.wants_logits) continue;
    try {
      result.logits = input.sequence->logits();  // a device only now tells what went wrong there
    } catch (...) {
      result.error = std::current_exception();
    }
  }
  return results;
}

}  // namespace episodic
