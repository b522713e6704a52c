// What providers may demand of their user ("modes"): which of it this transport obeys.
#pragma once

#include <rdma/fabric.h>

#include <cstdint>
#include <string>

namespace ropewalk::transport::ofi {

/// fi_info::mode. To accept one is to obey it: an Operation begins with the provider's own memory.
inline constexpr std::uint64_t kModes = FI_CONTEXT | FI_CONTEXT2;

/// fi_domain_attr::mr_mode: how memory is registered and addressed. With FI_HMEM also FI_MR_HMEM.
inline constexpr int kRegistrationModes =
    FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;

/// All modes that a library can be asked for; of those that older programs know (FI_MR_BASIC,
/// FI_MR_SCALABLE) none, which exclude the others.
inline constexpr std::uint64_t kEveryMode = FI_CONTEXT | FI_CONTEXT2 | FI_MSG_PREFIX |
                                            FI_ASYNC_IOV | FI_RX_CQ_DATA | FI_LOCAL_MR |
                                            FI_RESTRICTED_COMP;
inline constexpr int kEveryRegistrationMode = kRegistrationModes | FI_MR_RAW | FI_MR_MMU_NOTIFY |
                                              FI_MR_RMA_EVENT | FI_MR_HMEM | FI_MR_COLLECTIVE;

/// The modes that `info` demands beyond those above, by libfabric's names: "FI_MR_RAW,
/// FI_MSG_PREFIX". Empty when it can be used.
std::string unmet_modes(const fi_info& info, bool gpu_memory);

}  // namespace ropewalk::transport::ofi
