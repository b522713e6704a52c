#include "transport/messaging/ofi/modes.h"

#include <fmt/format.h>
#include <rdma/fi_domain.h>

#include <array>
#include <span>

namespace ropewalk::transport::ofi {
namespace {

struct Name {
  std::uint64_t bit;
  const char* text;
};
constexpr std::array kNamesOfModes = {Name{FI_MSG_PREFIX, "FI_MSG_PREFIX"},
                                      Name{FI_ASYNC_IOV, "FI_ASYNC_IOV"},
                                      Name{FI_RX_CQ_DATA, "FI_RX_CQ_DATA"},
                                      Name{FI_LOCAL_MR, "FI_LOCAL_MR"},
                                      Name{FI_NOTIFY_FLAGS_ONLY, "FI_NOTIFY_FLAGS_ONLY"},
                                      Name{FI_RESTRICTED_COMP, "FI_RESTRICTED_COMP"},
                                      Name{FI_BUFFERED_RECV, "FI_BUFFERED_RECV"}};
constexpr std::array kNamesOfRegistrationModes = {Name{FI_MR_BASIC, "FI_MR_BASIC"},
                                                  Name{FI_MR_SCALABLE, "FI_MR_SCALABLE"},
                                                  Name{FI_MR_RAW, "FI_MR_RAW"},
                                                  Name{FI_MR_MMU_NOTIFY, "FI_MR_MMU_NOTIFY"},
                                                  Name{FI_MR_RMA_EVENT, "FI_MR_RMA_EVENT"},
                                                  Name{FI_MR_HMEM, "FI_MR_HMEM"},
                                                  Name{FI_MR_COLLECTIVE, "FI_MR_COLLECTIVE"}};

void append(std::string& all, const std::string& name) { all += all.empty() ? name : ", " + name; }

void append_names(std::string& all, std::uint64_t bits, std::span<const Name> names,
                  const char* kind) {
  for (const Name& name : names) {
    if ((bits & name.bit) != 0) append(all, name.text);
    bits &= ~name.bit;
  }
  if (bits != 0) append(all, fmt::format("{} {:#x}", kind, bits));  // of a later libfabric
}

}  // namespace

std::string unmet_modes(const fi_info& info, bool gpu_memory) {
  std::string all;
  if (info.domain_attr != nullptr) {
    const int obeyed = kRegistrationModes | (gpu_memory ? FI_MR_HMEM : 0);
    append_names(all, static_cast<std::uint64_t>(info.domain_attr->mr_mode & ~obeyed),
                 kNamesOfRegistrationModes, "registration mode");
  }
  // The older name of FI_MR_LOCAL.
  const bool local = info.domain_attr != nullptr && (info.domain_attr->mr_mode & FI_MR_LOCAL) != 0;
  append_names(all, info.mode & ~(kModes | (local ? FI_LOCAL_MR : 0)), kNamesOfModes, "mode");
  return all;
}

}  // namespace ropewalk::transport::ofi
