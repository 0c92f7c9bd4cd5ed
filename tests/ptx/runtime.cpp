// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime's entry points that the kernels, their tests and nvcc's own host code call, over
// the interpreter.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "decode.hpp"
#include "device_state.hpp"

namespace {

using ptx::Allocation;
using ptx::Fault;
using ptx::FaultKind;
using ptx::Memory;
using ptx::state;

cudaError_t last_error = cudaSuccess;

cudaError_t said(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}
/// Every call of a device that is lost says so.
cudaError_t lost() { return static_cast<cudaError_t>(state().lost); }

cudaError_t error_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::launch:
      return cudaErrorInvalidConfiguration;
    case FaultKind::out_of_bounds:
      return cudaErrorIllegalAddress;
    case FaultKind::misaligned:
      return cudaErrorMisalignedAddress;
    case FaultKind::unknown:
      return cudaErrorIllegalInstruction;
    default:
      return cudaErrorLaunchFailure;
  }
}

/// Remembers a fault. What only the launch refused leaves the device sound.
cudaError_t fail(const Fault& fault) {
  if (state().is_loud) std::fprintf(stderr, "ptx: %s\n", fault.what());
  state().faults.push_back(fault);
  const cudaError_t error = error_of(fault.kind);
  if (fault.kind != FaultKind::launch) state().lost = error;
  return said(error);
}

// ---- programs in the executable -----------------------------------------------------------------

/// As nvcc lays it out: a header of 16 bytes, then images, each with a header of its own. Read off
/// its files; kind 1 is PTX.
struct FatHeader {
  std::uint32_t magic;
  std::uint16_t version, header_bytes;
  std::uint64_t bytes;
};
struct ImageHeader {
  std::uint16_t kind, version;
  std::uint32_t header_bytes;
  std::uint64_t bytes;
  std::uint32_t compressed_bytes, options, minor_major, architecture;
};
constexpr std::uint32_t kFatMagic = 0xba55ed50;

struct FatBinary {
  std::map<int, std::string_view> texts;  // by architecture, "80"
  std::map<int, std::unique_ptr<ptx::LoadedModule>> modules;
};

std::map<int, std::string_view> texts_of(const unsigned char* data) {
  FatHeader header;
  std::memcpy(&header, data, sizeof header);
  if (header.magic != kFatMagic)
    throw Fault(FaultKind::launch, "the program's device code is in a form that is not known");
  std::map<int, std::string_view> texts;
  const unsigned char* at = data + header.header_bytes;
  const unsigned char* const end = at + header.bytes;
  while (at < end) {
    ImageHeader image;
    std::memcpy(&image, at, sizeof image);
    if (image.kind == 1) {
      const std::string_view text(reinterpret_cast<const char*>(at + image.header_bytes),
                                  image.bytes);
      if (text.find(".version") == std::string_view::npos)
        throw Fault(FaultKind::launch, "the program's PTX is compressed: --no-compress");
      texts[static_cast<int>(image.architecture)] = text;
    }
    at += image.header_bytes + image.bytes;
  }
  return texts;
}

struct Kernel {
  FatBinary* binary;
  std::string name;
  std::uint64_t allowed_dynamic = 0;  // 0: not set
};

std::map<const void*, Kernel>& kernels() {
  static std::map<const void*, Kernel> all;
  return all;
}

/// Null if nothing in the program runs on the architecture.
ptx::LoadedModule* module_of(FatBinary& binary) {
  const ptx::Architecture a = state().architecture;
  const int wanted = 10 * a.major + a.minor;
  const auto after = binary.texts.upper_bound(wanted);
  if (after == binary.texts.begin()) return nullptr;
  const auto [architecture, text] = *std::prev(after);
  // what is made for sm_90a runs there and nowhere else
  const std::string own = ".target sm_" + std::to_string(architecture) + "a";
  if (architecture != wanted && text.find(own) != std::string_view::npos) return nullptr;
  auto& module = binary.modules[architecture];
  if (!module) module = std::make_unique<ptx::LoadedModule>(std::string(text));
  return module.get();
}

/// \throws Fault, TextError
const ptx::Program* program_of(const Kernel& kernel) {
  ptx::LoadedModule* const module = module_of(*kernel.binary);
  return module && module->module().functions.contains(kernel.name) ? &module->program(kernel.name)
                                                                    : nullptr;
}

std::uint64_t allowed(const Kernel& kernel, const ptx::Program& program) {
  const std::uint64_t without = 48 << 10,
                      of_static = static_cast<std::uint64_t>(program.static_bytes);
  return kernel.allowed_dynamic > 0 ? kernel.allowed_dynamic
                                    : without - std::min(without, of_static);
}

}  // namespace

// ---- streams, events, graphs --------------------------------------------------------------------

struct CUgraph_st {
  std::vector<std::function<void()>> work;
};
struct CUgraphExec_st {
  CUgraph_st graph;
};
struct CUstream_st {
  std::shared_ptr<CUgraph_st> capture;  // what records its work, or null
  bool began = false;                   // the capture began here
};
struct CUevent_st {
  std::shared_ptr<CUgraph_st> capture;
  std::chrono::steady_clock::time_point at;
};

namespace {

std::set<CUstream_st*>& streams() {
  static std::set<CUstream_st*> all;
  return all;
}
CUstream_st default_stream;

/// Null if there is no such stream.
CUstream_st* stream_of(cudaStream_t stream) {
  if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
    return &default_stream;
  return streams().contains(stream) ? stream : nullptr;
}

/// Does `work` now or records it.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  if (state().lost != 0) return said(lost());
  CUstream_st* const s = stream_of(stream);
  if (!s) return said(cudaErrorInvalidResourceHandle);
  if (s->capture) {
    s->capture->work.push_back(std::move(work));
    return cudaSuccess;
  }
  try {
    work();
  } catch (const Fault& fault) {
    return fail(fault);
  } catch (const ptx::TextError& error) {
    return fail(Fault(FaultKind::unknown, error.what()));
  }
  return cudaSuccess;
}

/// The device memory of [p, p + size), or null if it is the host's own. Faults where it is both.
Allocation* range(const void* p, std::size_t size) {
  const auto at = reinterpret_cast<std::uint64_t>(p);
  Allocation* const a = Memory::instance().find(at);
  if (!a) return nullptr;
  if (size > a->size - (at - reinterpret_cast<std::uint64_t>(a->data)))
    throw Fault(FaultKind::out_of_bounds, "a copy or fill of " + std::to_string(size) +
                                              " bytes runs over the end of an allocation of " +
                                              std::to_string(a->size));
  return a;
}
unsigned char* set_of(Allocation* a, const void* p) {
  return a && a->set ? a->set.get() + (static_cast<const unsigned char*>(p) - a->data) : nullptr;
}

void copy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
  if (size == 0) return;
  Allocation *const a = range(to, size), *const b = range(from, size);
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if ((to_device && !a) || (from_device && !b))
    throw Fault(FaultKind::out_of_bounds, "a copy from or to memory that is not the device's");
  std::memmove(to, from, size);
  unsigned char* const to_set = set_of(a, to);
  const unsigned char* const from_set = set_of(b, from);
  if (to_set && from_set)
    std::memmove(to_set, from_set, size);
  else if (to_set)
    std::memset(to_set, 1, size);
}

void fill(void* to, int value, std::size_t size) {
  if (size == 0) return;
  Allocation* const a = range(to, size);
  if (!a) throw Fault(FaultKind::out_of_bounds, "a fill of memory that is not the device's");
  std::memset(to, value, size);
  if (unsigned char* const set = set_of(a, to)) std::memset(set, 1, size);
}

cudaError_t launch(const void* function, dim3 grid, dim3 block, void** args, std::size_t dynamic,
                   cudaStream_t stream, bool is_early = false) {
  if (state().lost != 0) return said(lost());
  const auto found = kernels().find(function);
  if (found == kernels().end()) return said(cudaErrorInvalidDeviceFunction);
  const Kernel& kernel = found->second;
  try {
    const ptx::Program* const program = program_of(kernel);
    if (!program) return said(cudaErrorNoKernelImageForDevice);
    const ptx::Dim g{grid.x, grid.y, grid.z}, b{block.x, block.y, block.z};
    ptx::check_launch(*program, g, b, dynamic, allowed(kernel, *program));
    std::vector<unsigned char> params(static_cast<std::size_t>(program->param_bytes));
    for (std::size_t p = 0; p < program->param_offsets.size(); ++p)
      std::memcpy(params.data() + program->param_offsets[p], args[p],
                  static_cast<std::size_t>(program->param_sizes[p]));
    return enqueue(stream, [program, g, b, dynamic, is_early, params = std::move(params)] {
      ptx::run_kernel(*program, g, b, static_cast<std::uint32_t>(dynamic), params, is_early);
    });
  } catch (const Fault& fault) {
    return fail(fault);
  } catch (const ptx::TextError& error) {
    return fail(Fault(FaultKind::unknown, error.what()));
  }
}

struct Configuration {
  dim3 grid, block;
  std::size_t dynamic;
  cudaStream_t stream;
};
std::optional<Configuration> configuration;

}  // namespace

extern "C" {

// ---- what nvcc's host code calls ----------------------------------------------------------------

void** __cudaRegisterFatBinary(void* wrapper) {
  struct Wrapper {
    int magic, version;
    const unsigned char* data;
    void* others;
  };
  auto* const binary = new FatBinary;  // for as long as the program runs
  try {
    binary->texts = texts_of(static_cast<const Wrapper*>(wrapper)->data);
  } catch (const Fault& fault) {
    fail(fault);
  }
  return reinterpret_cast<void**>(binary);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void** binary, const char* function, char*, const char* name, int,
                            uint3*, uint3*, dim3*, dim3*, int*) {
  kernels()[function] = {reinterpret_cast<FatBinary*>(binary), name};
}
/// The host reaches no variable of a module: there is no cudaMemcpyToSymbol here.
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t dynamic, CUstream_st* stream) {
  configuration = {grid, block, dynamic, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* dynamic, void* stream) {
  if (!configuration) return said(cudaErrorMissingConfiguration);
  *grid = configuration->grid;
  *block = configuration->block;
  *dynamic = configuration->dynamic;
  *static_cast<cudaStream_t*>(stream) = configuration->stream;
  configuration.reset();
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                               size_t dynamic, cudaStream_t stream) {
  return launch(kernel, grid, block, args, dynamic, stream);
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** args,
                             size_t dynamic, cudaStream_t stream) {
  return launch(function, grid, block, args, dynamic, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** args) {
  bool is_early = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& a = config->attrs[i];
    if (a.id != cudaLaunchAttributeProgrammaticStreamSerialization)
      return said(cudaErrorNotSupported);
    is_early = a.val.programmaticStreamSerializationAllowed != 0;
  }
  if (is_early && state().architecture.major < 9) return said(cudaErrorNotSupported);
  return launch(function, config->gridDim, config->blockDim, args, config->dynamicSmemBytes,
                config->stream, is_early);
}

// ---- memory -------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** pointer, size_t size) {
  if (state().lost != 0) return said(lost());
  *pointer = nullptr;
  if (size == 0) return cudaSuccess;
  Allocation* const a = Memory::instance().allocate(size, false);
  if (!a) return said(cudaErrorMemoryAllocation);
  *pointer = a->data;
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  return !pointer || Memory::instance().release(pointer) ? cudaSuccess
                                                         : said(cudaErrorInvalidValue);
}
cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned) {
  if (state().lost != 0) return said(lost());
  Allocation* const a = Memory::instance().allocate(size, true);
  if (!a) return said(cudaErrorMemoryAllocation);
  *pointer = a->data;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) { return cudaFree(pointer); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = Memory::instance().capacity();
  *free = *total - Memory::instance().device_bytes();
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return enqueue(stream, [=] { copy(to, from, size, kind); });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, size, kind, nullptr);
}
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* sizes,
                                 size_t count, cudaMemcpyAttributes*, size_t*, size_t,
                                 cudaStream_t stream) {
  if (stream_of(stream) == &default_stream) return said(cudaErrorInvalidValue);
  const std::vector<void*> t(to, to + count);
  const std::vector<const void*> f(from, from + count);
  const std::vector<size_t> n(sizes, sizes + count);
  return enqueue(stream, [t, f, n] {
    for (size_t i = 0; i < n.size(); ++i) copy(t[i], f[i], n[i], cudaMemcpyDefault);
  });
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (size_t r = 0; r < height; ++r)
      copy(static_cast<char*>(to) + r * to_pitch, static_cast<const char*>(from) + r * from_pitch,
           width, kind);
  });
}
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t size, cudaStream_t stream) {
  return enqueue(stream, [=] { fill(pointer, value, size); });
}
cudaError_t cudaMemset(void* pointer, int value, size_t size) {
  return cudaMemsetAsync(pointer, value, size, nullptr);
}

// ---- streams, events, graphs --------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = *streams().insert(new CUstream_st).first;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (streams().erase(stream) == 0) return said(cudaErrorInvalidResourceHandle);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  CUstream_st* const s = stream_of(stream);
  if (!s) return said(cudaErrorInvalidResourceHandle);
  if (s->capture) return said(cudaErrorStreamCaptureUnsupported);
  return said(lost());
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  CUstream_st* const s = stream_of(stream);
  if (!s) return said(cudaErrorInvalidResourceHandle);
  *status = s->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  CUstream_st* const s = stream_of(stream);
  if (!s) return said(cudaErrorInvalidResourceHandle);
  if (s == &default_stream) return said(cudaErrorStreamCaptureUnsupported);
  if (s->capture) return said(cudaErrorIllegalState);
  s->capture = std::make_shared<CUgraph_st>();
  s->began = true;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  CUstream_st* const s = stream_of(stream);
  *graph = nullptr;
  if (!s || !s->capture || !s->began) return said(cudaErrorIllegalState);
  *graph = new CUgraph_st(*s->capture);
  s->began = false;
  const auto capture = s->capture;
  for (CUstream_st* other : streams())
    if (other->capture == capture) other->capture.reset();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  *executable = new CUgraphExec_st{*graph};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return enqueue(stream, [executable] {
    for (const auto& work : executable->graph.work) work();
  });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  CUstream_st* const s = stream_of(stream);
  if (!s) return said(cudaErrorInvalidResourceHandle);
  event->capture = s->capture;
  event->at = std::chrono::steady_clock::now();
  return said(lost());
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  CUstream_st* const s = stream_of(stream);
  if (!s) return said(cudaErrorInvalidResourceHandle);
  if (event->capture && !s->capture) s->capture = event->capture;  // it forks off the capture
  return said(lost());
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return said(event->capture ? cudaErrorCapturedEvent : lost());
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return said(event->capture ? cudaErrorCapturedEvent : lost());
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->at - begin->at).count();
  return cudaSuccess;
}

// ---- the device ---------------------------------------------------------------------------------

cudaError_t cudaDeviceSynchronize() { return said(lost()); }
cudaError_t cudaGetLastError() { return std::exchange(last_error, lost()); }
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : said(cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0) return said(cudaErrorInvalidDevice);
  const ptx::Architecture a = state().architecture;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = a.multiprocessors;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = a.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = a.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = a.shared_of_block;
      break;
    default:
      return said(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return said(cudaErrorInvalidDevice);
  *properties = {};
  const ptx::Architecture a = state().architecture;
  std::snprintf(properties->name, sizeof properties->name, "PTX interpreter, %d.%d", a.major,
                a.minor);
  properties->totalGlobalMem = Memory::instance().capacity();
  properties->major = a.major;
  properties->minor = a.minor;
  properties->multiProcessorCount = a.multiprocessors;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  const auto found = kernels().find(function);
  if (found == kernels().end()) return said(cudaErrorInvalidDeviceFunction);
  try {
    const ptx::Program* const program = program_of(found->second);
    if (!program) return said(cudaErrorNoKernelImageForDevice);
    *attributes = {};
    attributes->sharedSizeBytes = static_cast<size_t>(program->static_bytes);
    attributes->localSizeBytes = static_cast<size_t>(program->local_bytes);
    attributes->maxThreadsPerBlock = program->max_threads;
    attributes->ptxVersion = std::stoi(module_of(*found->second.binary)->module().target.substr(3));
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(allowed(found->second, *program));
    return cudaSuccess;
  } catch (const Fault& fault) {
    return fail(fault);
  } catch (const ptx::TextError& error) {
    return fail(Fault(FaultKind::unknown, error.what()));
  }
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0)
    return said(cudaErrorInvalidValue);
  cudaFuncAttributes attributes;
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, function)) return error;
  if (static_cast<std::uint64_t>(value) + attributes.sharedSizeBytes >
      static_cast<std::uint64_t>(state().architecture.shared_of_block))
    return said(cudaErrorInvalidValue);
  kernels().at(function).allowed_dynamic = static_cast<std::uint64_t>(value);
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "an error of the interpreted device";
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
}
