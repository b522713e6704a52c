#include "transport/window/device/segment_registration.h"

#include <cstddef>
#include <span>

#include "core/error.h"

namespace ropewalk::transport::window {
namespace {

// A GPU's primary context, retained. Outlives the Gpu that it is of, and the CudaApi.
class RetainedContext {
 public:
  RetainedContext(const CudaApi& cuda, CuDevice device) : cuda_(cuda), device_(device) {
    cuda_.check(cuda_.primary_retain(&context_, device), "cuDevicePrimaryCtxRetain");
  }
  ~RetainedContext() { cuda_.warn(cuda_.primary_release(device_), "cuDevicePrimaryCtxRelease"); }
  RetainedContext(const RetainedContext&) = delete;
  RetainedContext& operator=(const RetainedContext&) = delete;
  [[nodiscard]] const CudaApi& cuda() const noexcept { return cuda_; }
  [[nodiscard]] CuContext get() const noexcept { return context_; }

 private:
  const CudaApi cuda_;
  const CuDevice device_;
  CuContext context_ = nullptr;
};

// What the users of a mapping have together.
class SharedRegistration final : public SharedMemory::Attachment {
 public:
  SharedRegistration(Gpu& gpu, std::span<std::byte> memory)
      : context_(gpu.cuda(), gpu.device()), address_(memory.data()) {
    const CudaApi& cuda = context_.cuda();
    const CurrentContext current(cuda, context_.get());
    // Portable: registered for the contexts of all users.
    cuda.check(cuda.host_register(memory.data(), memory.size(), kCuHostPortable | kCuHostDeviceMap),
               "cuMemHostRegister");
  }
  ~SharedRegistration() override {
    const CudaApi& cuda = context_.cuda();
    try {
      const CurrentContext current(cuda, context_.get());
      cuda.warn(cuda.host_unregister(address_), "cuMemHostUnregister");
    } catch (const Error&) {
      // CUDA has ended before this did.
    }
  }
  SharedRegistration(const SharedRegistration&) = delete;
  SharedRegistration& operator=(const SharedRegistration&) = delete;

 private:
  const RetainedContext context_;
  std::byte* const address_;
};

}  // namespace

SegmentRegistration::SegmentRegistration(Gpu& gpu, const SharedMemory& segment) {
  const CudaApi& cuda = gpu.cuda();
  // Another driver knows nothing of what this one has registered.
  const auto* const driver = reinterpret_cast<const void*>(cuda.host_register);
  registration_ = segment.attach_once(driver, [&](std::span<std::byte> memory) {
    return std::make_unique<SharedRegistration>(gpu, memory);
  });
  const CurrentContext current(cuda, gpu.context());
  cuda.check(cuda.host_pointer(&on_device_, segment.data(), 0), "cuMemHostGetDevicePointer");
}

}  // namespace ropewalk::transport::window
