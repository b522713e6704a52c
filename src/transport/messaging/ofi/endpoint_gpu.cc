// GPU memory of an endpoint: the promise that is asked of the provider, and registration.
#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <string>

#include "core/error.h"
#include "core/log.h"
#include "transport/messaging/ofi/abi.h"
#include "transport/messaging/ofi/endpoint.h"
#include "transport/messaging/ofi/gpu_trial.h"
#include "transport/window/device/exported_memory.h"

namespace ropewalk::transport::ofi {

std::string_view name(Means means) noexcept {
  return means == Means::kAddress ? "by address" : "by dma-buf";
}

// The provider's promise not to call CUDA while messages move; or, where it knows no such promise,
// that the NIC alone moves GPU memory, so that there is nothing to call CUDA for.
void Endpoint::forbid_cuda(fid_ep* endpoint) {
  int cuda = -FI_ENOPROTOOPT;
  if (FI_VERSION_GE(library_->api(), kCudaOptionSince)) {
    const bool permitted = false;
    cuda = fi_setopt(&endpoint->fid, FI_OPT_ENDPOINT, kOptionCudaPermitted, &permitted,
                     sizeof permitted);
  }
  // Asked for in any case: a provider that has other ways has to take this one.
  const int required = FI_HMEM_P2P_REQUIRED;
  const int direct =
      fi_setopt(&endpoint->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &required, sizeof required);
  if (cuda == 0 || (cuda == -FI_ENOPROTOOPT && direct == 0)) return;
  throw Error(Errc::kSystem,
              "provider {} does not promise to leave CUDA alone: FI_OPT_CUDA_API_PERMITTED=false: "
              "{}; FI_OPT_FI_HMEM_P2P=required: {}",
              device_.provider,
              FI_VERSION_GE(library_->api(), kCudaOptionSince)
                  ? library_->words(cuda)
                  : fmt::format("libfabric {} has no such option", library_->version_text()),
              direct == 0 ? "accepted" : library_->words(direct));
}

int Endpoint::try_gpu_region(const window::GpuMemory& memory, std::uint64_t access,
                             const DmaBuf* by, Region& made) {
  RegionAttributes attributes;
  attributes.access = access;
  attributes.kind = FI_HMEM_CUDA;
  attributes.gpu = memory.gpu->ordinal();
  void* const data = reinterpret_cast<void*>(memory.data);  // NOLINT(performance-no-int-to-ptr)
  const std::size_t bytes = std::max<std::size_t>(memory.bytes, 1);
  const iovec range{data, bytes};
  DmaBufRange buffer;
  if (by != nullptr) {
    buffer.descriptor = by->descriptor;
    buffer.offset = by->offset;
    buffer.bytes = bytes;
    buffer.base = static_cast<std::byte*>(data) - by->offset;
    attributes.memory = &buffer;
  } else {
    attributes.memory = &range;
  }
  return try_region(
      [&](std::uint64_t key, fid_mr** region) {
        attributes.key = key;
        return fi_mr_regattr(domain_.get(), attributes.as_libfabric(),
                             by != nullptr ? kRegisterDmaBuf : 0, region);
      },
      made);
}

std::string Endpoint::register_by(Means means, const window::GpuMemory& memory,
                                  std::uint64_t access, const DmaBuf* given, Region& made) {
  made = Region();
  try {
    int error = 0;
    if (means == Means::kAddress) {
      error = try_gpu_region(memory, access, nullptr, made);
    } else {
      if (FI_VERSION_LT(library_->api(), kDmaBufSince)) {
        return fmt::format("libfabric {} cannot, 1.20 and later can", library_->version_text());
      }
      std::optional<window::ExportedMemory> exported;
      if (given == nullptr) exported.emplace(memory);
      const DmaBuf buffer = given != nullptr ? *given : exported->buffer();
      error = try_gpu_region(memory, access, &buffer, made);
    }
    if (error != 0) return fmt::format("fi_mr_regattr: {}", library_->words(error));
  } catch (const Error& error) {
    made.close();
    return error.what();
  }
  made.base = memory.data;
  made.bytes = memory.bytes;
  made.gpu = memory.gpu;
  return {};
}

std::string Endpoint::trial_of(window::Gpu& gpu, Means means) {
  if (!gpus_.verify) return {};
  const Lock lock(gpus_.known->mutex);
  std::optional<std::string>& wrong =
      gpus_.known->by_ordinal[gpu.ordinal()].wrong[static_cast<std::size_t>(means)];
  if (!wrong) {
    wrong = try_gpu(*this, gpu, means);
    if (wrong->empty()) {
      log::info(log::kNet,
                "ofi: {} on {}: patterns went to memory of {} and from it, registered {}",
                device_.provider, device_.name, gpu.name(), ofi::name(means));
    }
  }
  return *wrong;
}

Error Endpoint::no_registration(const std::string& what,
                                const std::array<std::string, 2>& words) const {
  return {Errc::kSystem,
          "{} cannot be registered (provider {}, {}): {}: {}; {}: {}; OFI_GPU_MEMORY=off has "
          "messages go through host memory",
          what,
          device_.provider,
          device_.name,
          ofi::name(Means::kAddress),
          words[0],
          ofi::name(Means::kDmaBuf),
          words[1]};
}

Region Endpoint::register_gpu_memory(const window::GpuMemory& memory, std::uint64_t access,
                                     const DmaBuf* given) {
  if (retired()) throw Error(Errc::kPeerLost, "{}", "ofi: the endpoint was closed");
  window::Gpu& gpu = *memory.gpu;
  const std::optional<Means> last = means_of(gpu);
  Means means = given != nullptr ? Means::kDmaBuf : last.value_or(Means::kAddress);
  std::array<std::string, 2> words;
  Region region;
  for (int attempt = 0; attempt < 2; ++attempt) {
    std::string& refused = words[static_cast<std::size_t>(means)];
    refused = trial_of(gpu, means);
    if (refused.empty()) refused = register_by(means, memory, access, given, region);
    if (refused.empty()) break;
    means = means == Means::kAddress ? Means::kDmaBuf : Means::kAddress;
  }
  if (region.mr == nullptr) {
    throw no_registration(fmt::format("{} bytes of memory of {}", memory.bytes, gpu.name()), words);
  }
  const Means other = means == Means::kAddress ? Means::kDmaBuf : Means::kAddress;
  const std::string& refused = words[static_cast<std::size_t>(other)];
  if (!last || (*last != means && !refused.empty())) {
    log::info(log::kNet, "ofi: {} on {}: memory of {} is registered {}{}", device_.provider,
              device_.name, gpu.name(), ofi::name(means),
              refused.empty() ? "" : fmt::format("; {}: {}", ofi::name(other), refused));
  }
  set_means(gpu, means);
  return region;
}

void Endpoint::check_gpu(window::Gpu& gpu) {
  std::array<std::string, 2> words;
  for (const Means means : {Means::kAddress, Means::kDmaBuf}) {
    std::string& wrong = words[static_cast<std::size_t>(means)];
    wrong = trial_of(gpu, means);
    if (!wrong.empty()) continue;
    // Registrations begin with what is known to be right.
    if (gpus_.verify) set_means(gpu, means);
    return;
  }
  throw no_registration("memory of " + gpu.name(), words);
}

std::optional<Means> Endpoint::means_of(const window::Gpu& gpu) const {
  const Lock lock(gpus_.known->mutex);
  const auto known = gpus_.known->by_ordinal.find(gpu.ordinal());
  return known == gpus_.known->by_ordinal.end() ? std::nullopt : known->second.last;
}

void Endpoint::set_means(const window::Gpu& gpu, Means means) {
  const Lock lock(gpus_.known->mutex);
  gpus_.known->by_ordinal[gpu.ordinal()].last = means;
}

}  // namespace ropewalk::transport::ofi
