// The devices of libfabric that this transport can use: one for each NIC.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "transport/messaging/ofi/library.h"
#include "transport/messaging/tcp/interfaces.h"

namespace ropewalk::transport::ofi {

/// How a message that is too long to be sent unasked gets to its receiver.
enum class LargePath {
  kWriteInOrder,    ///< RMA write; a small message sent behind it stays behind it
  kWriteConfirmed,  ///< RMA write; the small message is sent when the data has been delivered
  kTagged,          ///< a tagged message, to a receive that is posted when it is asked for
};
std::string_view name(LargePath path) noexcept;

struct Device {
  std::shared_ptr<const fi_info> info;
  std::string name;      ///< "mlx5_0", "eth0", "shm"
  std::string provider;  ///< as libfabric names it: "verbs;ofi_rxm"
  std::string pci_path;
  std::uint64_t guid = 0;
  std::string fabric;
  double speed_mbps = 0;
  double latency_us = 0;
  bool sockets = false;    ///< of the system carry the data
  bool rdma = false;       ///< a NIC moves the data, not this host's sockets or memory
  tcp::Interface meeting;  ///< where its side channels listen
  LargePath large = LargePath::kTagged;
  /// A write tells the receiver itself that it is there, and which one it is, so that no message
  /// has to follow it. Used over sockets, where each message takes several system calls.
  bool writes_tell = false;
  bool gpu_memory = false;  ///< `info` has FI_HMEM
  std::string why_no_gpu_memory;
};

struct Selection {
  std::string_view provider;    ///< OFI_PROVIDER; empty: the best
  std::string_view interfaces;  ///< SOCKET_IFNAME
  std::string_view large;       ///< OFI_LARGE: auto, write or tagged
};

/// All devices of the provider that is selected. The best is the first that libfabric lists, since
/// it lists the fastest first, but a provider with a NIC of its own precedes those without.
/// Variables that libfabric itself reads (FI_PROVIDER and others) keep their effect.
struct Listing {
  std::vector<Device> devices;
  std::string why_none;
};
Listing find_devices(const Library& library, const Selection& selection);

/// The devices of one provider as it offers them with FI_HMEM: those that can also be read by RMA,
/// by which messages are flushed and small ones get into a GPU's memory. For a selection that
/// find_devices() has found something for, with that provider's whole name.
Listing find_gpu_devices(const Library& library, const Selection& selection);

}  // namespace ropewalk::transport::ofi
