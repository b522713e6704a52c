// What libfabric has had since 1.17, whose headers suffice to compile: options, flags and the
// longer forms of structures (source: rdma/fi_endpoint.h, fi_domain.h and fi_eq.h of 1.18 to 2.0).
//
// A library takes a structure to be as long as it was in the version of the API that it is asked
// for (Library::api), so each that it reads or writes whole must be that long.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include <cstddef>
#include <cstdint>

namespace ropewalk::transport::ofi {

/// FI_OPT_CUDA_API_PERMITTED, a bool: whether an endpoint may call CUDA. In libfabric 1.18 and
/// later.
inline constexpr int kOptionCudaPermitted = 10;
inline constexpr std::uint32_t kCudaOptionSince = FI_VERSION(1, 18);

/// FI_MR_DMABUF: registration by a dma-buf descriptor. In libfabric 1.20 and later; older ones take
/// the descriptor's structure for an iovec.
inline constexpr std::uint64_t kRegisterDmaBuf = std::uint64_t{1} << 40;
inline constexpr std::uint32_t kDmaBufSince = FI_VERSION(1, 20);

/// fi_mr_dmabuf.
struct DmaBufRange {
  int descriptor = -1;
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
  void* base = nullptr;  ///< the address of the descriptor's begin
};
static_assert(sizeof(DmaBufRange) == 32 && offsetof(DmaBufRange, base) == 24);

/// fi_mr_attr of 2.0, the longest.
struct RegionAttributes {
  const void* memory = nullptr;  ///< iovecs, or one DmaBufRange with kRegisterDmaBuf
  std::size_t count = 1;
  std::uint64_t access = 0;
  std::uint64_t offset = 0;
  std::uint64_t key = 0;
  void* context = nullptr;
  std::size_t auth_key_bytes = 0;
  std::uint8_t* auth_key = nullptr;
  fi_hmem_iface kind = FI_HMEM_SYSTEM;
  union {
    std::uint64_t reserved = 0;
    int gpu;
  };
  void* kind_data = nullptr;   // 1.19
  std::size_t page_bytes = 0;  // 2.0, as all below
  const fid_mr* whole_region = nullptr;
  std::size_t parts = 0;

  [[nodiscard]] const fi_mr_attr* as_libfabric() const noexcept {
    return reinterpret_cast<const fi_mr_attr*>(this);
  }
};
static_assert(offsetof(RegionAttributes, access) == offsetof(fi_mr_attr, access));
static_assert(offsetof(RegionAttributes, key) == offsetof(fi_mr_attr, requested_key));
static_assert(offsetof(RegionAttributes, kind) == offsetof(fi_mr_attr, iface));
static_assert(offsetof(RegionAttributes, gpu) == offsetof(fi_mr_attr, device.cuda));
static_assert(sizeof(RegionAttributes) >= sizeof(fi_mr_attr));

/// fi_cq_err_entry of 1.20, which writes the sender's address behind that of 1.17.
struct QueueError {
  fi_cq_err_entry entry{};
  fi_addr_t source = 0;
};

}  // namespace ropewalk::transport::ofi
