// NVIDIA's management library, found at run time: which GPUs there are, and their NVLinks.
#pragma once

#include <string>

#include "topology/scan.h"

namespace ropewalk::topology {

/// Adds what NVML tells of GPUs: index, name, compute capability, PCIe, active NVLinks.
///
/// GPUs that the scan has and NVML does not are taken out, with a note: this process cannot use
/// them. GPUs that only NVML sees are added, their PCIe position unknown. Without the library, or
/// where it fails, `scan` gets a note.
///
/// @param library what to open; "libnvidia-ml.so.1" but in tests
void add_nvml(Scan& scan, const std::string& library);

}  // namespace ropewalk::topology
