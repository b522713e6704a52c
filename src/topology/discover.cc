#include "topology/discover.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <memory>

#include "core/error.h"
#include "core/mutex.h"
#include "topology/hwloc_xml.h"
#include "topology/nvml.h"
#include "topology/scan.h"
#include "topology/sysfs.h"

namespace ropewalk::topology {
namespace {

// hwloc is opened at run time, and asked for its XML alone: no header, no structure of its own.
// Prototypes and values are of hwloc 2 (hwloc.h, hwloc/export.h).
constexpr int kKeepAll = 0;
constexpr unsigned long kIncludeDisallowed = 1;

struct CloseLibrary {
  void operator()(void* handle) const noexcept { dlclose(handle); }
};

class Hwloc {
 public:
  explicit Hwloc(const std::string& library) {
    // hwloc needs it, and would look for it in the system's folders only; the wheel has it beside
    // this library. Never closed: it is only there to be found.
    dlopen("libudev.so.1", RTLD_LAZY | RTLD_LOCAL);
    handle_.reset(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL));
    if (!handle_) throw Error(Errc::kSystem, "{} is not there", library);
    load(version_, "hwloc_get_api_version");
    load(init_, "hwloc_topology_init");
    load(set_flags_, "hwloc_topology_set_flags");
    load(keep_io_, "hwloc_topology_set_io_types_filter");
    load(load_, "hwloc_topology_load");
    load(export_, "hwloc_topology_export_xmlbuffer");
    load(free_, "hwloc_free_xmlbuffer");
    load(destroy_, "hwloc_topology_destroy");
    if (version_() >> 16 != 2) throw Error(Errc::kSystem, "{} is not of hwloc 2", library);
  }

  std::string xml() {
    void* topology = nullptr;
    if (init_(&topology) != 0) throw Error(Errc::kSystem, "hwloc_topology_init failed");
    const auto destroy = [this](void* made) { destroy_(made); };
    const std::unique_ptr<void, decltype(destroy)> owned(topology, destroy);
    char* buffer = nullptr;
    int length = 0;
    if (set_flags_(topology, kIncludeDisallowed) != 0 || keep_io_(topology, kKeepAll) != 0 ||
        load_(topology) != 0 || export_(topology, &buffer, &length, 0) != 0) {
      throw Error(Errc::kSystem, "hwloc could not look at this host");
    }
    const auto free_buffer = [&](char* made) { free_(topology, made); };
    const std::unique_ptr<char, decltype(free_buffer)> text(buffer, free_buffer);
    return std::string(text.get());
  }

 private:
  template <typename Function>
  void load(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(handle_.get(), name));
    if (function == nullptr) throw Error(Errc::kSystem, "hwloc has no {}", name);
  }

  std::unique_ptr<void, CloseLibrary> handle_;
  unsigned int (*version_)() = nullptr;
  int (*init_)(void**) = nullptr;
  int (*set_flags_)(void*, unsigned long) = nullptr;
  int (*keep_io_)(void*, int) = nullptr;
  int (*load_)(void*) = nullptr;
  int (*export_)(void*, char**, int*, unsigned long) = nullptr;
  void (*free_)(void*, char*) = nullptr;
  void (*destroy_)(void*) = nullptr;
};

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "host";
  return name.data();
}

}  // namespace

Topology discover(const DiscoverOptions& options) {
  // libudev, which hwloc uses, sets itself up at its first call, by any thread.
  static Mutex one_at_a_time;
  const Lock lock(one_at_a_time);
  Scan scan;
  try {
    scan = scan_hwloc_xml(Hwloc(options.hwloc_library).xml(), "this host");
    add_sysfs(scan, options.root);
  } catch (const Error& error) {
    scan = scan_sysfs(options.root);
    scan.notes.push_back(fmt::format("by sysfs alone: {}", error.what()));
  }
  add_nvml(scan, options.nvml_library);
  for (const ScannedDevice& device : scan.devices) {
    if (device.vendor == "1002" && device.kind == NodeKind::kGpu) {
      scan.notes.push_back("xGMI links of AMD GPUs are not looked for");
      break;
    }
  }
  scan.name = host_name();
  return assemble(std::move(scan));
}

}  // namespace ropewalk::topology
