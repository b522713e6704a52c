#include "transport/window/device/cuda_api.h"

#include <dlfcn.h>

#include "core/error.h"
#include "core/log.h"

namespace ropewalk::transport::window {
namespace {

constexpr CuResult kCuDeinitialized = 4;

template <typename Function>
bool find(void* library, Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

CudaApi::CudaApi(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    throw Error(Errc::kCuda, "no CUDA: {}", reason != nullptr ? reason : library.c_str());
  }
  const auto need = [&](auto*& function, const char* name) {
    if (!find(handle, function, name)) {
      throw Error(Errc::kCuda, "no CUDA: {} lacks the function {}", library, name);
    }
  };
  need(init, "cuInit");
  need(error_name, "cuGetErrorName");
  need(error_string, "cuGetErrorString");
  need(device_count, "cuDeviceGetCount");
  need(device_get, "cuDeviceGet");
  need(device_name, "cuDeviceGetName");
  // The second version distinguishes slices of one GPU.
  if (!find(handle, device_uuid, "cuDeviceGetUuid_v2")) need(device_uuid, "cuDeviceGetUuid");
  need(device_attribute, "cuDeviceGetAttribute");
  need(primary_retain, "cuDevicePrimaryCtxRetain");
  need(primary_release, "cuDevicePrimaryCtxRelease_v2");
  need(context_current, "cuCtxGetCurrent");
  need(context_push, "cuCtxPushCurrent_v2");
  need(context_pop, "cuCtxPopCurrent_v2");
  need(enable_peer, "cuCtxEnablePeerAccess");
  need(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
  need(pointer_attribute, "cuPointerGetAttribute");
  need(address_range, "cuMemGetAddressRange_v2");
  need(allocate, "cuMemAlloc_v2");
  need(free, "cuMemFree_v2");
  need(host_allocate, "cuMemHostAlloc");
  need(host_free, "cuMemFreeHost");
  need(host_register, "cuMemHostRegister_v2");
  need(host_unregister, "cuMemHostUnregister");
  need(host_pointer, "cuMemHostGetDevicePointer_v2");
  need(copy_to_device, "cuMemcpyHtoDAsync_v2");
  need(copy_to_host, "cuMemcpyDtoHAsync_v2");
  need(copy_on_device, "cuMemcpyDtoDAsync_v2");
  need(copy_peer, "cuMemcpyPeerAsync");
  need(stream_priorities, "cuCtxGetStreamPriorityRange");
  need(stream_create, "cuStreamCreateWithPriority");
  need(stream_destroy, "cuStreamDestroy_v2");
  need(stream_query, "cuStreamQuery");
  need(event_create, "cuEventCreate");
  need(event_destroy, "cuEventDestroy_v2");
  need(event_record, "cuEventRecord");
  need(event_query, "cuEventQuery");
  need(ipc_export, "cuIpcGetMemHandle");
  need(ipc_open, "cuIpcOpenMemHandle_v2");
  need(ipc_close, "cuIpcCloseMemHandle");
  find(handle, stream_write64, "cuStreamWriteValue64_v2");
  find(handle, stream_batch, "cuStreamBatchMemOp_v2");
  find(handle, launch, "cuLaunchKernelEx");
  find(handle, stream_capturing, "cuStreamIsCapturing");
  find(handle, stream_context, "cuStreamGetCtx");
  find(handle, copy, "cuMemcpyAsync");
  find(handle, loading_mode, "cuModuleGetLoadingMode");
  find(handle, primary_state, "cuDevicePrimaryCtxGetState");
  find(handle, range_handle, "cuMemGetHandleForAddressRange");
  find(handle, set_pointer_attribute, "cuPointerSetAttribute");
  virtual_memory_ = find(handle, retain_allocation, "cuMemRetainAllocationHandle") &&
                    find(handle, release_allocation, "cuMemRelease") &&
                    find(handle, allocation_properties, "cuMemGetAllocationPropertiesFromHandle") &&
                    find(handle, export_allocation, "cuMemExportToShareableHandle") &&
                    find(handle, import_allocation, "cuMemImportFromShareableHandle") &&
                    find(handle, reserve_addresses, "cuMemAddressReserve") &&
                    find(handle, free_addresses, "cuMemAddressFree") &&
                    find(handle, map, "cuMemMap") && find(handle, unmap, "cuMemUnmap") &&
                    find(handle, set_access, "cuMemSetAccess") &&
                    find(handle, create_allocation, "cuMemCreate") &&
                    find(handle, granularity, "cuMemGetAllocationGranularity");
  check(init(0), "starting CUDA");
}

bool CudaApi::loads_lazily() const noexcept {
  int mode = 0;
  return loading_mode != nullptr && loading_mode(&mode) == kCuSuccess && mode == kCuLazyLoading;
}

std::string CudaApi::words(CuResult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  error_name(result, &name);
  error_string(result, &text);
  return fmt::format("{} ({})", name != nullptr ? name : fmt::format("error {}", result),
                     text != nullptr ? text : "unknown error");
}

void CudaApi::check(CuResult result, const char* tried) const {
  if (result != kCuSuccess) throw Error(Errc::kCuda, "{}: {}", tried, words(result));
}

void CudaApi::warn(CuResult result, const char* tried) const noexcept {
  if (result != kCuSuccess && result != kCuDeinitialized) {
    log::warn("{}: {}", tried, words(result));
  }
}

CurrentContext::CurrentContext(const CudaApi& cuda, CuContext context) : cuda_(cuda) {
  CuContext before = nullptr;
  cuda.check(cuda.context_current(&before), "cuCtxGetCurrent");
  if (before != context) {
    cuda.check(cuda.context_push(context), "cuCtxPushCurrent");
    pushed_ = true;
  }
  cuda.exchange_capture_mode(&capture_mode_);
}

CurrentContext::~CurrentContext() {
  cuda_.exchange_capture_mode(&capture_mode_);
  if (pushed_) {
    CuContext popped = nullptr;
    cuda_.context_pop(&popped);
  }
}

}  // namespace ropewalk::transport::window
