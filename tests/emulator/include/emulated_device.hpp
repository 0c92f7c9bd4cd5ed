// SPDX-License-Identifier: Apache-2.0
#pragma once
// What device code may call, on the host. Collectives are template functions over `rendezvous`.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <tuple>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_runtime_api.h"

namespace emulator {

/// Whether the emulation itself is at work on this thread: what it allocates then is not the
/// program's (tests/device/device_allocations_test.cpp).
inline thread_local int own_work = 0;
struct OwnWork {
  OwnWork() { ++own_work; }
  ~OwnWork() { --own_work; }
  OwnWork(const OwnWork&) = delete;
  OwnWork& operator=(const OwnWork&) = delete;
};

struct ThreadIndex {
  uint3 thread, block;
  dim3 block_size, grid_size;
};
/// The running thread's; null between launches.
inline const ThreadIndex* current_index = nullptr;
inline const ThreadIndex& index() { return *current_index; }
inline unsigned lane() {
  const ThreadIndex& i = index();
  return (i.thread.x + i.block_size.x * (i.thread.y + i.block_size.y * i.thread.z)) % 32u;
}

/// Waits for all threads of the block that have not returned. \return sum of `votes` over them
int barrier(int votes);

inline constexpr std::size_t kLaneBytes = 64;
using LanePayload = std::array<unsigned char, kLaneBytes>;
/// Waits for all lanes of `mask`. \return the 32 lanes' payloads, valid until this lane's next but
/// one rendezvous
const LanePayload* rendezvous(unsigned mask, const void* payload, std::size_t bytes);

unsigned char* dynamic_shared();
/// The running block's variable that `place` stands for.
void* static_shared(const char* place, std::size_t bytes, std::size_t alignment);
template <class T>
T* static_shared(const char* place) {
  return static_cast<T*>(static_shared(place, sizeof(T), alignof(T)));
}
/// Queued until the thread waits for it.
void copy_async(void* to, const void* from, std::size_t bytes, bool valid);
void commit_copies();
void wait_copies(int groups_left);

/// A launch: runs `thread` for every thread of the grid, or records that where `stream` captures.
cudaError_t run(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes,
                cudaStream_t stream, std::function<void()> thread);
/// Hears of every launch of a kernel that takes these parameters, once its work was enqueued: done,
/// where streams do not overlap and nothing captures.
template <class... Params>
struct Listener {
  static inline std::function<void(const Params&...)> heard;
};
/// What it says, cudaGetLastError says as well.
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes,
            cudaStream_t stream, const Args&... args) {
  const OwnWork own;
  static_cast<void>(run(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, stream,
                        [kernel, values = std::tuple<std::decay_t<Params>...>(args...)] {
                          std::apply(kernel, values);
                        }));
  using Heard = Listener<std::decay_t<Params>...>;
  if (Heard::heard) Heard::heard(args...);
}

template <class T>
T lane_value(const LanePayload& payload) {
  T value;
  std::memcpy(&value, payload.data(), sizeof(T));
  return value;
}
template <class T>
T exchange(unsigned mask, T value, unsigned from) {
  static_assert(sizeof(T) <= kLaneBytes);
  return lane_value<T>(rendezvous(mask, &value, sizeof(T))[from & 31u]);
}

}  // namespace emulator

#define threadIdx (emulator::index().thread)
#define blockIdx (emulator::index().block)
#define blockDim (emulator::index().block_size)
#define gridDim (emulator::index().grid_size)

inline void __syncthreads() { emulator::barrier(0); }
inline int __syncthreads_count(int predicate) { return emulator::barrier(predicate != 0); }
inline int __syncthreads_or(int predicate) { return emulator::barrier(predicate != 0) != 0; }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  const int nothing = 0;
  emulator::rendezvous(mask, &nothing, sizeof(nothing));
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
  return emulator::exchange(mask, value, static_cast<unsigned>(from));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return emulator::exchange(mask, value, emulator::lane() ^ static_cast<unsigned>(lanes));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta) {
  const unsigned from = emulator::lane() + delta;
  return emulator::exchange(mask, value, from < 32 ? from : emulator::lane());
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta) {
  const unsigned lane = emulator::lane();
  return emulator::exchange(mask, value, lane >= delta ? lane - delta : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const int vote = predicate != 0;
  const emulator::LanePayload* lanes = emulator::rendezvous(mask, &vote, sizeof(vote));
  unsigned ballot = 0;
  for (unsigned i = 0; i < 32; ++i)
    if ((mask >> i & 1u) && emulator::lane_value<int>(lanes[i])) ballot |= 1u << i;
  return ballot;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}

inline void __threadfence() {}
inline void __threadfence_block() {}
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T, class U>
T atomicAdd(T* at, U value) {
  const T before = *at;
  *at = static_cast<T>(before + static_cast<T>(value));
  return before;
}
template <class T, class U>
T atomicMax(T* at, U value) {
  const T before = *at;
  if (static_cast<T>(value) > before) *at = static_cast<T>(value);
  return before;
}
template <class T, class U>
T atomicMin(T* at, U value) {
  const T before = *at;
  if (static_cast<T>(value) < before) *at = static_cast<T>(value);
  return before;
}
template <class T, class U>
T atomicExch(T* at, U value) {
  const T before = *at;
  *at = static_cast<T>(value);
  return before;
}
template <class T, class U>
T atomicOr(T* at, U value) {
  const T before = *at;
  *at = static_cast<T>(before | static_cast<T>(value));
  return before;
}
template <class T, class U, class V>
T atomicCAS(T* at, U expected, V value) {
  const T before = *at;
  if (before == static_cast<T>(expected)) *at = static_cast<T>(value);
  return before;
}

/// Each byte of the result is the one of (a, b), a first, that 3 bits of a nibble of c number.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned c) {
  const std::uint64_t both = std::uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<unsigned>(both >> (8 * (c >> (4 * i) & 7u)) & 255u) << (8 * i);
  return result;
}
/// To nearest, ties to even. \pre within int
inline int __float2int_rn(float x) { return static_cast<int>(std::lrintf(x)); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline unsigned __float_as_uint(float x) {
  unsigned u;
  std::memcpy(&u, &x, 4);
  return u;
}
inline float __uint_as_float(unsigned u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}
/// c + the products of four signed bytes.
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i)
    c += static_cast<std::int8_t>(static_cast<unsigned>(a) >> (8 * i) & 255u) *
         static_cast<std::int8_t>(static_cast<unsigned>(b) >> (8 * i) & 255u);
  return c;
}
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline void sincos(double x, double* s, double* c) {
  *s = std::sin(x);
  *c = std::cos(x);
}
using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;
