// Omni-Path through libpsm2, and in software its shared-memory device.
//
// One device for each active port (devices.h). Messages: connection.h. The connections of a device
// share endpoints, or with PSM2_ENDPOINTS=separate each has one of its own. Memory: host; and that
// of GPUs where libpsm2 was built with CUDA, PSM2_CUDA=1 lets it, and it moves patterns right
// (gpus.h).
//
// Safety: as the provider `tcp`, by whose handshake the side channel is made (messaging/meeting.h).
// Messages carry a number that the receiving end drew. The network itself is trusted.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/settings.h"
#include "transport/messaging/gpus.h"
#include "transport/provider.h"
#include "transport/transport.h"

namespace ropewalk::transport::psm2 {

/// A transport without devices where there is no usable libpsm2 or no adapter; why is logged.
/// @throws Error kInvalidArgument when SOCKET_IFNAME leaves no interface
std::unique_ptr<Transport> make_transport(const Config& config);

inline constexpr Provider kProvider{.name = "psm2", .make = make_transport};

/// The result of discovery when the transport was created.
struct Summary {
  std::string library;   ///< "libpsm2 2.2"; empty when it cannot be used
  std::string why_none;  ///< why there is no device
  bool shared_memory = false;
  bool adapter = false;  ///< the system knows an adapter, whether libpsm2 can use it or not
  std::vector<std::string> gpu_memory;  ///< of each device: "taken", or why not
};
[[nodiscard]] const Summary& summary(const Transport& psm2);

/// For diagnosis: tries memory of each GPU of this process, and makes a context on each for that.
[[nodiscard]] messaging::GpuTrials try_gpu_memory(Transport& psm2, int device);

/// For `auto`. Whether libpsm2 is worth loading: the system knows an adapter, and PSM2_DEVICE does
/// not ask for shared memory alone, which no two hosts have.
[[nodiscard]] bool worth_a_look(const Config& config);

}  // namespace ropewalk::transport::psm2
