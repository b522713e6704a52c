// Omni-Path through libpsm2.
#include <fmt/format.h>
#include <unistd.h>

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
#ifdef RW_HAVE_PSM2
#include "transport/messaging/psm2/psm2.h"
#endif

namespace ropewalk::diagnose::probe {

#ifdef RW_HAVE_PSM2

namespace {

namespace psm2 = transport::psm2;

Check library(const psm2::Summary& found) {
  Check check{.what = "library and adapters"};
  if (found.why_none.empty()) {
    check.found =
        fmt::format("{}{}", found.library,
                    found.shared_memory ? ", over shared memory alone (PSM2_DEVICE=shm)" : "");
    return check;
  }
  check.found =
      found.library.empty() ? found.why_none : fmt::format("{}: {}", found.library, found.why_none);
  check.outcome = found.adapter || found.shared_memory ? Outcome::kFailed : Outcome::kSkipped;
  if (check.outcome == Outcome::kFailed) {
    check.cause =
        "libpsm2 (Debian: libpsm2-2) is needed, or PSM2_LIBRARY names another file; adapters need "
        "the driver hfi1, a fabric manager, and an active port (opainfo)";
  }
  return check;
}

// Each process opens the adapter's own device.
Check permissions(const std::string& adapter) {
  const std::string file = "/dev/" + adapter.substr(0, adapter.find(':'));
  Check check{.what = "access to " + file};
  if (access(file.c_str(), R_OK | W_OK) == 0) {
    check.found = "this user may read and write it";
    return check;
  }
  check.outcome = Outcome::kFailed;
  check.found = "this user may not read and write it";
  check.cause =
      "the driver's udev rules give it to a group (40-psm.rules); a container needs "
      "--device " +
      file;
  return check;
}

}  // namespace

Checks omni_path() {
  Config config = comm::Runtime::process().config();
  config.set("FAULTY", "", "doctor");
  // Two endpoints: one that sends to itself tries nothing.
  config.set("PSM2_ENDPOINTS", "separate", "doctor");
  const std::unique_ptr<transport::Transport> over = transport::make_transport("psm2", config);
  const psm2::Summary& found = psm2::summary(*over);
  Checks checks = {library(found)};
  if (over->num_devices() == 0) return checks;
  checks.push_back(locked_memory(!found.shared_memory));
  for (int device = 0; device < over->num_devices(); ++device) {
    const transport::DeviceProperties properties = over->properties(device);
    if (!found.shared_memory) checks.push_back(permissions(properties.name));
    Check check = self_messages(
        *over, device, described(properties) + "; this host reaches itself",
        "what libpsm2 says of itself (PSM2_TRACEMASK=0x1c3); the log with DEBUG=INFO and "
        "DEBUG_SUBSYS=NET tells what was tried; PSM2_KASSIST_MODE=none where processes may not "
        "read each other's memory",
        "the endpoint makes no progress: files that killed processes left in /dev/shm "
        "(psm2_shm.*), or a full one");
    check.what = fmt::format("psm2 on {}", properties.name);
    checks.push_back(std::move(check));
    checks.push_back(gpu_messages(
        psm2::try_gpu_memory(*over, device), properties.name,
        "libpsm2 cannot copy this GPU's memory: the kernel module gdrdrv and libgdrapi (GDRCopy), "
        "a driver hfi1 that was built with GPUDirect (PSM2_GPUDIRECT=1); it takes one GPU a "
        "process; without PSM2_CUDA=1 messages go through host memory"));
  }
  return checks;
}

#else

Checks omni_path() {
  return {{.what = "library and adapters",
           .outcome = Outcome::kSkipped,
           .found = "this build has no transport psm2"}};
}

#endif

}  // namespace ropewalk::diagnose::probe
