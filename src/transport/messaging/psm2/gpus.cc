#include "transport/messaging/psm2/gpus.h"

#include "core/error.h"
#include "core/log.h"
#include "transport/messaging/psm2/gpu_trial.h"
#include "transport/messaging/verification.h"
#include "transport/simple_requests.h"

namespace ropewalk::transport::psm2 {

void Gpus::check(Endpoint& port, window::Gpu& gpu) {
  if (!verify_) return;
  const Lock lock(mutex_);
  const auto [known, first] = wrong_.try_emplace(gpu.ordinal());
  if (first) {
    known->second = try_gpu(port, gpu);
    if (known->second.empty()) {
      log::info(log::kNet, "psm2: {}: patterns went to memory of {} and from it", device_,
                gpu.name());
    }
  }
  if (known->second.empty()) return;
  throw Error(
      Errc::kSystem,
      "memory of {} does not pass verification: {}; without PSM2_CUDA=1 messages go through "
      "host memory",
      gpu.name(), known->second);
}

std::unique_ptr<Registration> Gpus::register_memory(Endpoint& port, void* data, std::size_t bytes,
                                                    MemoryKind kind) {
  if (kind != MemoryKind::kCuda) return HostRegistration::make(data, bytes, kind);
  if (!taken()) {
    throw Error(Errc::kInvalidArgument, "psm2: {} takes host memory only: {}", device_, why_not_);
  }
  window::GpuMemory memory = window::find_gpu_memory(cuda_->gpus, data, bytes);
  check(port, *memory.gpu);
  return std::make_unique<GpuRegistration>(std::move(memory));
}

const GpuRegistration* on_gpu(const Registration* registration) {
  if (registration == nullptr || registration->kind() != MemoryKind::kCuda) return nullptr;
  return dynamic_cast<const GpuRegistration*>(registration);
}

std::uint32_t flags_of(const Registration* registration) {
  return on_gpu(registration) != nullptr ? abi::kFlagGdrCopyOnly : 0;
}

void check_holds(const Registration* registration, const void* data, std::size_t bytes) {
  if (const GpuRegistration* const gpu = on_gpu(registration); gpu != nullptr) {
    gpu->memory.check_holds(data, bytes);
  }
}

std::uint64_t checksum_of(const Registration* registration, const void* data, std::size_t bytes) {
  const GpuRegistration* const gpu = on_gpu(registration);
  if (gpu == nullptr || bytes == 0) return messaging::wire_checksum(data, bytes);
  return messaging::gpu_checksum(*gpu->memory.gpu, data, bytes);
}

}  // namespace ropewalk::transport::psm2
