// The adapters that libpsm2 can use: one device for each active port.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/messaging/psm2/library.h"

namespace ropewalk::transport::psm2 {

struct Device {
  std::string name;  ///< "hfi1_0"; "psm2_shm" for shared memory alone
  int unit = -1;
  int port = 0;
  std::string pci_path;
  std::uint64_t guid = 0;
  std::string fabric;  ///< the subnet's prefix
  double speed_mbps = 0;
  double latency_us = 0;
};

struct Listing {
  std::vector<Device> devices;
  std::string why_none;
};
Listing find_devices(const Library& library);

/// Whether the system knows an adapter of the kind, which needs no library.
bool has_adapter();

}  // namespace ropewalk::transport::psm2
