// Replaces src/message/cuda in a build without CUDA.
#include "core/error.h"
#include "message/device_kernels.h"
#include "message/puts_and_signals.h"

namespace ropewalk::message {
namespace {

constexpr const char* kWhy = "this build of Ropewalk has no kernels: nvcc was not found";

}  // namespace

std::optional<LoadedKernels> load_kernels(const transport::window::Gpu& /*gpu*/) { return {}; }

void launch(const LoadedKernels& /*kernels*/, const transport::window::Gpu& /*gpu*/,
            const DeviceCall& /*call*/, transport::window::CuStream /*stream*/) {
  throw Error(Errc::kInvalidUsage, "{}", kWhy);
}

void launch(const LoadedKernels& /*kernels*/, const transport::window::Gpu& /*gpu*/,
            std::span<const DeviceCopy> /*copies*/, transport::window::CuStream /*stream*/) {
  throw Error(Errc::kInvalidUsage, "{}", kWhy);
}

void launch(const LoadedKernels& /*kernels*/, const transport::window::Gpu& /*gpu*/,
            const rwDeviceBatch& /*batch*/, transport::window::CuStream /*stream*/) {
  throw Error(Errc::kInvalidUsage, "{}", kWhy);
}

void launch(const LoadedKernels& /*kernels*/, const transport::window::Gpu& /*gpu*/,
            const PutsAndSignals& /*call*/, transport::window::CuStream /*stream*/) {
  throw Error(Errc::kInvalidUsage, "{}", kWhy);
}

}  // namespace ropewalk::message
