// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Batches: one launch for several calls of a launcher, each of a sequence of its own. Beside a
/// launcher x(params, stream) stands
///
///     cudaError_t x_batch(const XParams* params, std::int64_t n_sequences, cudaStream_t stream);
///     const char* invalid_field(const XParams* params, std::int64_t n_sequences);
///
/// `params` is an array on the host, read before the call returns. Results are the bits of
/// n_sequences calls of x, in launches that take up to kMostInLongLaunch of them; x itself is the
/// batch of one. What sequences share, such as dtype and sizes of heads, each x_batch says; lengths
/// are each one's own. What one sequence writes no other may read or write: outputs, workspaces and
/// counters of arrival are each one's own. All calls are checked before the first launch;
/// n_sequences == 0 does nothing. As x, x_batch neither allocates nor waits, and may be captured.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "fields.hpp"

namespace episodic::kernels {

/// Sequences of one launch with few of them: their parameters are given to the kernel by value, and
/// each launch copies room for so many.
inline constexpr std::int64_t kMostInLaunch = 8;
/// Sequences of one launch of more calls than that, at most; less where parameters are many.
inline constexpr std::int64_t kMostInLongLaunch = 64;

/// What a kernel's parameters may take, in bytes: from the first on, and since CUDA 12.1 from
/// compute capability 7.0 on.
inline constexpr std::size_t kMostParameterBytes = 4096;
inline constexpr std::size_t kMostLongParameterBytes = 32'764;

/// What a kernel is given: the arguments of n <= kMost sequences.
template <class Args, std::int64_t kMost = kMostInLaunch>
struct Batch {
  static constexpr std::int64_t kRoom = kMost;
  Args of[kMost];
  int n = 0;
};
/// How a kernel takes a batch: by value on a device. The emulator's threads would each copy it, a
/// third of its time, so there they read the launch's one.
#if defined(EPISODIC_EMULATED_CUDA)
template <class T>
using KernelArgument = const T&;
#else
template <class T>
using KernelArgument = const T;
#endif
/// Of a batch's type, or of a reference to one: the kernel's kMost.
template <class T>
inline constexpr std::int64_t kRoomOf = std::decay_t<T>::kRoom;

/// Sequences with such arguments in a launch of many.
template <class Args>
constexpr std::int64_t most_in_long_launch() {
  constexpr auto fit =
      static_cast<std::int64_t>((kMostLongParameterBytes - sizeof(std::int64_t)) / sizeof(Args));
  return fit < kMostInLongLaunch ? fit : kMostInLongLaunch;
}

template <std::int64_t kMost = kMostInLaunch, class Args>
Batch<Args, kMost> batch_of_one(const Args& args) {
  Batch<Args, kMost> batch;
  batch.of[0] = args;
  batch.n = 1;
  return batch;
}

/// What is wrong with the calls of a batch: of the first such call, what check(call) says, then
/// what alike(call, first call) does.
template <class Params, class Check, class Alike>
FieldError check_batch(const Params* params, std::int64_t n_sequences, const Check& check,
                       const Alike& alike) {
  if (n_sequences < 0) return {"n_sequences", cudaErrorInvalidValue};
  if (n_sequences > 0 && !params) return {"params", cudaErrorInvalidValue};
  for (std::int64_t i = 0; i < n_sequences; ++i) {
    if (const FieldError wrong = check(params[i])) return wrong;
    if (const FieldError wrong = alike(params[i], params[0])) return wrong;
  }
  return {};
}

/// The same of calls that need share nothing.
template <class Params, class Check>
FieldError check_batch(const Params* params, std::int64_t n_sequences, const Check& check) {
  return check_batch(params, n_sequences, check,
                     [](const Params&, const Params&) { return FieldError{}; });
}

template <class Args, std::int64_t kMost, class MakeArgs, class Launch>
cudaError_t launch_in_groups(std::int64_t n_sequences, const MakeArgs& make_args,
                             const Launch& launch) {
  Batch<Args, kMost> batch;
  for (std::int64_t i = 0; i < n_sequences; ++i) {
    if (make_args(i, batch.of[batch.n])) ++batch.n;
    const bool is_last = i + 1 == n_sequences;
    if (batch.n == 0 || (batch.n < kMost && !is_last)) continue;
    if (const cudaError_t error = launch(batch)) return error;
    batch.n = 0;
  }
  return cudaSuccess;
}

/// launch(batch) for as many calls at a time as a batch holds: kMost, or of more calls
/// most_in_long_launch. So few calls, such as those of one sequence, have few parameters.
/// \param make_args(i, args) of call i; false: it has nothing to do here
template <class Args, std::int64_t kMost = kMostInLaunch, class MakeArgs, class Launch>
cudaError_t launch_in_batches(std::int64_t n_sequences, const MakeArgs& make_args,
                              const Launch& launch) {
  constexpr std::int64_t kMany = most_in_long_launch<Args>();
  static_assert(sizeof(Batch<Args, kMost>) <= kMostParameterBytes);
  static_assert(sizeof(Batch<Args, kMany>) <= kMostLongParameterBytes && kMany > kMost);
  return n_sequences <= kMost ? launch_in_groups<Args, kMost>(n_sequences, make_args, launch)
                              : launch_in_groups<Args, kMany>(n_sequences, make_args, launch);
}

/// make_args for kernels that are given a call's parameters themselves, of all calls.
template <class Params>
auto call_of(const Params* params) {
  return [params](std::int64_t i, Params& args) {
    args = params[i];
    return true;
  };
}
/// The same, of calls with some tokens.
template <class Params>
auto call_with_tokens_of(const Params* params) {
  return [params](std::int64_t i, Params& args) {
    args = params[i];
    return args.n > 0;
  };
}

/// The same, of calls that may have closed events, in some layers.
template <class Params>
auto call_with_events_of(const Params* params) {
  return [params](std::int64_t i, Params& args) {
    args = params[i];
    return args.events.max_count > 0 && args.n_layers > 0;
  };
}

/// The largest of of_sequence(args) over a batch.
template <class Args, std::int64_t kMost, class OfSequence>
auto largest(const Batch<Args, kMost>& batch, const OfSequence& of_sequence) {
  auto most = of_sequence(batch.of[0]);
  for (int i = 1; i < batch.n; ++i) {
    const auto other = of_sequence(batch.of[i]);
    if (other > most) most = other;
  }
  return most;
}

/// Whether one sequence of a batch is as asked for.
template <class Args, std::int64_t kMost, class OfSequence>
bool any_of(const Batch<Args, kMost>& batch, const OfSequence& is) {
  return largest(batch, [&](const Args& a) { return is(a) ? 1 : 0; }) != 0;
}

}  // namespace episodic::kernels

/// For functions that return a FieldError, as EPISODIC_FIELD: a field that all sequences of a batch
/// share.
#define EPISODIC_FIELD_SHARED(params, first, field) \
  EPISODIC_FIELD(params, field, (params).field == (first).field)
