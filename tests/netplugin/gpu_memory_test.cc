// GPU memory through the plugin, by address and by dma-buf descriptor, over a stand-in libfabric
// and GPUs of a stand-in for CUDA.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string>

#include "netplugin/harness.h"
#include "transport/window/device/cuda_api.h"
#include "transport/window/device/gpu.h"

#ifdef RW_STAND_IN_LIBFABRIC

namespace ropewalk::netplugin::testing {
namespace {

using transport::window::CudaApi;
using transport::window::CurrentContext;
using transport::window::DeviceBuffer;
using transport::window::Gpu;

class GpuMemory : public PluginTest {
 protected:
  GpuMemory() {
    use("ofi");
    setenv("ROPEWALK_OFI_PROVIDER", "tcp;ofi_rxm", 1);
    setenv("ROPEWALK_OFI_LIBRARY", RW_STAND_IN_LIBFABRIC, 1);
    setenv("ROPEWALK_CUDA_LIBRARY", RW_STAND_IN_CUDA, 1);
    void* library = dlopen(RW_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    table_ = static_cast<const abi::NetV12*>(dlsym(library, "ncclNetPlugin_v12"));
    dlclose(library);  // the fixture holds it
    fabric_ = dlopen(RW_STAND_IN_LIBFABRIC, RTLD_NOW | RTLD_LOCAL);
    // NCCL sets NCCL_NET_GDR_LEVEL for itself from what the plugin says.
    unsetenv("NCCL_NET_GDR_LEVEL");
  }
  ~GpuMemory() override {
    for (const char* name :
         {"ROPEWALK_OFI_PROVIDER", "ROPEWALK_OFI_LIBRARY", "ROPEWALK_CUDA_LIBRARY"}) {
      unsetenv(name);
    }
    configure("");
  }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  void configure(const char* text) const {
    reinterpret_cast<void (*)(const char*)>(dlsym(fabric_, "stand_in_libfabric_configure"))(text);
  }
  [[nodiscard]] long count(const char* name) const {
    return reinterpret_cast<long (*)(const char*)>(dlsym(fabric_, "stand_in_libfabric_count"))(
        name);
  }
  [[nodiscard]] static int descriptor_of(const Gpu& gpu, const DeviceBuffer& memory,
                                         std::size_t bytes) {
    const CurrentContext current(gpu.cuda(), gpu.context());
    int descriptor = -1;
    EXPECT_EQ(gpu.cuda().range_handle(&descriptor, memory.data(), bytes, 1, 0), 0);
    return descriptor;
  }

  const abi::NetV12* table_ = nullptr;
  void* fabric_ = nullptr;
};

TEST_F(GpuMemory, KindsAsTheVersionHasThem) {
  const auto kinds = [this](int version) {
    Net net(library_.api(version));
    Stated stated;
    check(net.api->properties(0, &stated), "getProperties");
    return stated.ptr_support;
  };
  setenv("ROPEWALK_OFI_GPU_MEMORY", "off", 1);
  EXPECT_EQ(kinds(12), 1);
  unsetenv("ROPEWALK_OFI_GPU_MEMORY");
  EXPECT_EQ(kinds(12), 7);
  EXPECT_EQ(kinds(6), 7);
  EXPECT_EQ(kinds(5), 3);
}

TEST_F(GpuMemory, ByDescriptorAndByAddress) {
  constexpr std::size_t kBytes = 1 << 20;
  CudaApi cuda(RW_STAND_IN_CUDA);
  Gpu gpu(cuda, 0);
  for (const char* fabric : {"", "address=22", "dma_buf=22", "version=1.18"}) {
    SCOPED_TRACE(fabric);
    configure(fabric);
    Net net(library_.api(12));
    Loop loop(net);
    const DeviceBuffer from(gpu, kBytes, DeviceBuffer::From::kAllocator);
    const DeviceBuffer to(gpu, kBytes, DeviceBuffer::From::kAllocator);
    void* from_memory = nullptr;
    void* to_memory = nullptr;
    // As NCCL, which closes its descriptor at once.
    const int descriptor = descriptor_of(gpu, from, kBytes);
    check(table_->reg_mr_dma_buf(loop.sender, from.pointer(), kBytes, abi::kCudaPointer, 0,
                                 descriptor, &from_memory),
          "regMrDmaBuf");
    close(descriptor);
    check(net.api->register_memory(loop.receiver, to.pointer(), kBytes, abi::kCudaPointer,
                                   &to_memory),
          "regMr");
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{8192}, kBytes}) {
      const Bytes out = numbered(bytes, bytes);
      gpu.fill(from.data(), out.data(), bytes);
      Transfer receive;
      Transfer send;
      poll_until(
          [&] {
            if (receive.request == nullptr) {
              check(net.api->irecv(loop.receiver, {{to.pointer(), bytes, 0, to_memory}},
                                   &receive.request),
                    "irecv");
            }
            if (send.request == nullptr) {
              check(net.api->isend(loop.sender, {from.pointer(), bytes, 0, from_memory},
                                   &send.request),
                    "isend");
            }
            const bool sent = send.test(*net.api);
            return receive.test(*net.api) && sent;
          },
          "message");
      Transfer flush;
      const long flushed = count("flush");
      check(net.api->iflush(loop.receiver, {to.pointer(), bytes, 0, to_memory}, &flush.request),
            "iflush");
      ASSERT_NE(flush.request, nullptr);
      poll_until([&] { return flush.test(*net.api); }, "flush");
      EXPECT_EQ(count("flush"), flushed + 1);
      Bytes in(bytes);
      gpu.fetch(in.data(), to.data(), bytes);
      EXPECT_EQ(in, out);
    }
    check(net.api->deregister(loop.sender, from_memory), "deregMr");
    check(net.api->deregister(loop.receiver, to_memory), "deregMr");
  }
}

TEST_F(GpuMemory, WrongDescriptorsAreRefused) {
  CudaApi cuda(RW_STAND_IN_CUDA);
  Gpu gpu(cuda, 0);
  Net net(library_.api(12));
  Loop loop(net);
  const DeviceBuffer memory(gpu, 4096, DeviceBuffer::From::kAllocator);
  void* made = nullptr;
  EXPECT_EQ(
      table_->reg_mr_dma_buf(loop.sender, memory.pointer(), 4096, abi::kCudaPointer, 0, -1, &made),
      abi::kInvalidArgument);
  EXPECT_EQ(
      table_->reg_mr_dma_buf(loop.sender, memory.pointer(), 4096, abi::kHostPointer, 0, 0, &made),
      abi::kInvalidArgument);
  EXPECT_EQ(table_->reg_mr_dma_buf(nullptr, memory.pointer(), 4096, abi::kCudaPointer, 0, 0, &made),
            abi::kInvalidArgument);
  EXPECT_EQ(made, nullptr);
  take_lines();
  exchange(loop, 1000, 1000, 1);
}

// Of a transport that has no use for descriptors.
TEST_F(GpuMemory, HostMemoryOnlyRefusesDescriptors) {
  use("tcp");
  Net net(library_.api(12));
  Loop loop(net);
  std::array<char, 8> data{};
  void* made = nullptr;
  EXPECT_EQ(table_->reg_mr_dma_buf(loop.sender, data.data(), 8, abi::kCudaPointer, 0, 0, &made),
            abi::kInvalidArgument);
  take_lines();
  exchange(loop, 1000, 1000, 1);
}

}  // namespace
}  // namespace ropewalk::netplugin::testing

#endif
