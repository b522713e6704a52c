// The adapters of this host, as the library describes them.
#pragma once

#include <string>
#include <vector>

#include "transport/window/sisci/api.h"

namespace ropewalk::transport::window::sisci {

struct Adapter {
  unsigned number = 0;
  unsigned node = 0;  ///< its id on the fabric
  unsigned serial = 0;
  bool link = false;     ///< operational
  std::string pci_path;  ///< in sysfs; empty when it is not known
  double speed_mbps = 0;
};

/// All of them, also those without a link.
std::vector<Adapter> find_adapters(const Library& library);

/// The address that a library's BDF value stands for, as sysfs writes it: "0000:17:00.0".
std::string pci_address(unsigned bdf);

/// Mbit/s of PCIe lanes of a generation, after their encoding; a guess for unknown generations.
double lanes_mbps(unsigned lanes, unsigned generation);

}  // namespace ropewalk::transport::window::sisci
