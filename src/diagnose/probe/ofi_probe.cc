// Fabrics through libfabric.
#include <memory>
#include <string>

#include "comm/runtime.h"
#include "core/error.h"
#include "core/settings.h"
#include "diagnose/probe/gpu_messages.h"
#include "diagnose/probe/locked_memory.h"
#include "diagnose/probe/probe.h"
#include "diagnose/probe/self_messages.h"
#include "transport/registry.h"
#include "transport/transport.h"
#ifdef RW_HAVE_OFI
#include "transport/messaging/ofi/ofi.h"
#endif

namespace ropewalk::diagnose::probe {

#ifdef RW_HAVE_OFI

namespace {

namespace ofi = transport::ofi;

Check library(const ofi::Summary& found) {
  Check check{.what = "library and provider"};
  if (!found.provider.empty()) {
    check.found =
        fmt::format("{}, {}; long messages by {}", found.library, found.provider, found.large);
    return check;
  }
  const bool absent = found.why_none.find("cannot open shared object file") != std::string::npos;
  check.outcome = absent ? Outcome::kSkipped : Outcome::kFailed;
  check.found =
      found.library.empty() ? found.why_none : fmt::format("{}: {}", found.library, found.why_none);
  if (absent) return check;
  check.cause = found.library.empty()
                    ? "that file is no libfabric of 1.17 or later: look at OFI_LIBRARY"
                    : "no provider fits: look at FI_PROVIDER, OFI_PROVIDER and SOCKET_IFNAME; "
                      "FI_LOG_LEVEL=info makes libfabric say why";
  return check;
}

}  // namespace

Checks fabrics() {
  Config config = comm::Runtime::process().config();
  config.set("FAULTY", "", "doctor");
  const std::unique_ptr<transport::Transport> over = transport::make_transport("ofi", config);
  const ofi::Summary& found = ofi::summary(*over);
  Checks checks = {library(found)};
  if (found.provider.empty()) return checks;
  checks.push_back(locked_memory(found.rdma));
  for (int device = 0; device < over->num_devices(); ++device) {
    const transport::DeviceProperties properties = over->properties(device);
    Check check = self_messages(
        *over, device, described(properties) + "; this host reaches itself",
        "the provider's own requirements (fi_info -p, FI_LOG_LEVEL=warn); the log with DEBUG=INFO "
        "and DEBUG_SUBSYS=NET tells what was tried",
        "the provider cannot reach this host from itself, or a firewall drops what it sends");
    check.what = fmt::format("{} on {}", found.provider, properties.name);
    checks.push_back(std::move(check));
    checks.push_back(gpu_messages(
        ofi::try_gpu_memory(*over, device), properties.name,
        "the adapter does not reach the GPU's memory: nvidia-peermem, or the driver's dma-buf, the "
        "IOMMU, PCIe access control services; OFI_GPU_MEMORY=off leaves it out"));
  }
  return checks;
}

#else

Checks fabrics() {
  return {{.what = "library and provider",
           .outcome = Outcome::kSkipped,
           .found = "this build has no transport ofi (it was made without libfabric's headers)"}};
}

#endif

}  // namespace ropewalk::diagnose::probe
