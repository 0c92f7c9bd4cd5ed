// SPDX-License-Identifier: Apache-2.0
#pragma once
// A mixture of experts for rows of a step: the router chooses, rows go to their experts sorted by
// expert, and the results are summed.
//
// What it costs, of a layer with E experts of width W, k of them chosen, on rows of H numbers:
// - one row reads E H of the router and 3 k W H of the experts, whatever E is, in two loops over
//   threads: one of all gates and ups, one of all downs;
// - n rows take n (2 E H + 6 k W H) operations. Of the weights 3 W H are read for each expert that
//   any row chose, once for every kMixtureRows rows.
//
// What is promised of the bits: those of a row depend on the row, the weights and the class of rows
// (linear.hpp), and not on the rows beside it, on their number, or on the number of threads. An
// expert has as many rows as chose it, so nothing here may go by their count: every product names
// the class of its step's rows, `few` or `many`, even if it is of one row. The results of a row are
// summed in the order of its experts' numbers.

#include <cstdint>
#include <vector>

#include "base/aligned_buffer.hpp"
#include "episodic/model/hf_config.hpp"
#include "linear.hpp"

namespace episodic {

/// Rows that go through a mixture at once: bounds its buffers, and more would not read fewer bytes
/// for each row by much.
inline constexpr std::int64_t kMixtureRows = 512;

/// The weights of one mixture, where they lie.
struct MixtureWeights {
  Linear router;                        ///< [experts, hidden], of plain floats
  const float* choice_bias = nullptr;   ///< [experts], or null
  const float* expert_scale = nullptr;  ///< [experts], what results are multiplied by, or null
  std::vector<Linear> gate, up, down;   ///< of each expert
  Linear shared_gate, shared_up, shared_down, shared_router;  ///< if there are such
};

/// A choice of a row: an expert and its weight.
struct ChosenExpert {
  std::int64_t expert = 0;
  float weight = 0;
};

/// The chosen experts of one row, in the order of their numbers.
/// \param products of the router [spec.experts], written: their scores
/// \param to [spec.chosen], written
void choose_experts(const MixtureSpec& spec, const float* choice_bias, float* products,
                    ChosenExpert* to);

/// Computes mixtures. Its buffers are kept from step to step: nothing is allocated once they have
/// grown to the largest step.
class Mixture {
 public:
  /// y[i] = what the mixture makes of x[i]. \param x [n, hidden] \param y [n, hidden], may be x
  /// \param router_x [n, hidden], what the router reads; null: x
  void run(const MixtureSpec& spec, const MixtureWeights& weights, Activation activation,
           std::int64_t n, const float* x, float* y, RowClass rows,
           const float* router_x = nullptr);

 private:
  struct Call {
    const MixtureSpec& spec;
    const MixtureWeights& weights;
    Activation activation;
    std::int64_t n;
    const float *x, *router_x;
    RowClass rows;
    std::int64_t hidden;
  };
  void route(const Call& call);
  void sort_by_expert(const Call& call);
  void run_one_row(const Call& call);
  void run_experts(const Call& call);
  void run_expert(const Call& call, std::int64_t expert, bool parallel);
  void run_shared(const Call& call);
  void add_up(const Call& call, float* y) const;

  std::vector<ChosenExpert> chosen_;  // [n, k]
  std::vector<std::int64_t> begin_;   // [experts + 1]: where an expert's rows begin
  std::vector<std::int64_t> place_;   // [n, k]: of a choice among the sorted rows
  std::vector<std::int64_t> row_;     // [n k]: of the step, of each sorted row
  std::vector<std::int64_t> active_;  // experts that have rows
  std::vector<cpu::WeightProduct> products_;
  AlignedBuffer scores_;     // [n, experts]
  AlignedBuffer rows_;       // [n k, hidden]: sorted rows, and then what their experts make of them
  AlignedBuffer gate_;       // [n k, width]
  AlignedBuffer up_;         // [n k, width]
  AlignedBuffer shared_;     // [n, hidden]
  AlignedBuffer shared_in_;  // [2, n, shared width]: gate, up
  AlignedBuffer factor_;     // [n]: of the shared expert
};

}  // namespace episodic
