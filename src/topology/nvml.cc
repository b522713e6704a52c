#include "topology/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>

namespace ropewalk::topology {
namespace {

// The functions of NVML that are used, as nvml.h of CUDA 12 declares them; their names carry the
// versions that fix these shapes.
using Device = void*;
struct PciInfo {
  std::array<char, 16> bus_id_legacy;
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pci_device_id;
  unsigned int pci_subsystem_id;
  std::array<char, 32> bus_id;
};
constexpr unsigned int kMaxNvlinks = 18;
constexpr unsigned int kRemoteIsSwitch = 2;
constexpr unsigned int kRemoteIsGpu = 0;

class Nvml {
 public:
  /// @param why_not set when the library cannot be used
  Nvml(const std::string& library, std::string& why_not)
      : handle_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      why_not = fmt::format("{} is not there", library);
      return;
    }
    load(init_, "nvmlInit_v2");
    load(shutdown_, "nvmlShutdown");
    load(error_string_, "nvmlErrorString");
    load(count_, "nvmlDeviceGetCount_v2");
    load(by_index_, "nvmlDeviceGetHandleByIndex_v2");
    load(pci_info_, "nvmlDeviceGetPciInfo_v3");
    load(name_, "nvmlDeviceGetName");
    load(capability_, "nvmlDeviceGetCudaComputeCapability");
    load(max_gen_, "nvmlDeviceGetMaxPcieLinkGeneration");
    load(max_width_, "nvmlDeviceGetMaxPcieLinkWidth");
    load(nvlink_state_, "nvmlDeviceGetNvLinkState");
    load(nvlink_remote_, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
    load(nvlink_remote_type_, "nvmlDeviceGetNvLinkRemoteDeviceType");
    if (init_ == nullptr || count_ == nullptr || by_index_ == nullptr || pci_info_ == nullptr) {
      why_not = fmt::format("{} lacks functions", library);
      return;
    }
    if (const int result = init_(); result != 0) {
      why_not = fmt::format(
          "NVML: {}", error_string_ != nullptr ? error_string_(result) : std::to_string(result));
      return;
    }
    ready_ = true;
  }
  ~Nvml() {
    if (ready_ && shutdown_ != nullptr) shutdown_();
    if (handle_ != nullptr) dlclose(handle_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  [[nodiscard]] bool ready() const noexcept { return ready_; }

  [[nodiscard]] std::vector<ScannedDevice> gpus() const {
    std::vector<ScannedDevice> found;
    unsigned int count = 0;
    if (count_(&count) != 0) return found;
    for (unsigned int i = 0; i < std::min(count, 1024U); ++i) {
      Device device = nullptr;
      PciInfo pci{};
      if (by_index_(i, &device) != 0 || pci_info_(device, &pci) != 0) continue;
      found.push_back(describe(device, pci, static_cast<int>(i)));
    }
    return found;
  }

 private:
  template <typename Function>
  void load(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(handle_, name));
  }

  static std::string text(const PciInfo& pci) {
    return std::string(pci.bus_id.data(), strnlen(pci.bus_id.data(), pci.bus_id.size()));
  }

  static std::size_t strnlen(const char* from, std::size_t most) {
    return static_cast<std::size_t>(std::find(from, from + most, '\0') - from);
  }

  ScannedDevice describe(Device device, const PciInfo& pci, int index) const {
    ScannedDevice gpu{.kind = NodeKind::kGpu, .vendor = "10de"};
    gpu.bus_id = normal_bus_id(text(pci));
    gpu.index = index;
    std::array<char, 96> name{};
    if (name_ != nullptr && name_(device, name.data(), name.size()) == 0) {
      gpu.model = std::string(name.data(), strnlen(name.data(), name.size()));
    }
    int major = 0;
    int minor = 0;
    if (capability_ != nullptr && capability_(device, &major, &minor) == 0) {
      gpu.compute_capability = major * 10 + minor;
    }
    unsigned int gen = 0;
    unsigned int width = 0;
    if (max_gen_ != nullptr && max_gen_(device, &gen) == 0 && gen < 16) {
      gpu.gen = static_cast<int>(gen);
    }
    if (max_width_ != nullptr && max_width_(device, &width) == 0 && width <= 64) {
      gpu.width = static_cast<int>(width);
    }
    for (unsigned int link = 0; link < kMaxNvlinks && nvlink_state_ != nullptr; ++link) {
      unsigned int active = 0;
      if (nvlink_state_(device, link, &active) == 0 && active == 1) {
        gpu.nvlinks.push_back(nvlink(device, link));
      }
    }
    return gpu;
  }

  ScannedDevice::Nvlink nvlink(Device device, unsigned int link) const {
    ScannedDevice::Nvlink found;
    PciInfo remote{};
    if (nvlink_remote_ != nullptr && nvlink_remote_(device, link, &remote) == 0) {
      found.remote = normal_bus_id(text(remote));
    }
    // Fabrics whose switches belong to another machine give addresses of zeros or ones.
    const std::string_view hidden = found.remote;
    if (hidden.starts_with("ffff") || hidden == "0000:00:00.0") found.remote.clear();
    unsigned int type = kRemoteIsGpu;
    const bool told =
        nvlink_remote_type_ != nullptr && nvlink_remote_type_(device, link, &type) == 0;
    found.to_switch = told ? type == kRemoteIsSwitch : found.remote.empty();
    if (found.remote.empty() && (!told || type != kRemoteIsGpu)) found.to_switch = true;
    return found;
  }

  void* handle_;
  bool ready_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  const char* (*error_string_)(int) = nullptr;
  int (*count_)(unsigned int*) = nullptr;
  int (*by_index_)(unsigned int, Device*) = nullptr;
  int (*pci_info_)(Device, PciInfo*) = nullptr;
  int (*name_)(Device, char*, unsigned int) = nullptr;
  int (*capability_)(Device, int*, int*) = nullptr;
  int (*max_gen_)(Device, unsigned int*) = nullptr;
  int (*max_width_)(Device, unsigned int*) = nullptr;
  int (*nvlink_state_)(Device, unsigned int, unsigned int*) = nullptr;
  int (*nvlink_remote_)(Device, unsigned int, PciInfo*) = nullptr;
  int (*nvlink_remote_type_)(Device, unsigned int, unsigned int*) = nullptr;
};

void merge(Scan& scan, ScannedDevice gpu) {
  const auto same =
      std::find_if(scan.devices.begin(), scan.devices.end(), [&](const ScannedDevice& other) {
        return other.kind == NodeKind::kGpu && other.bus_id == gpu.bus_id;
      });
  if (same == scan.devices.end()) {
    scan.notes.push_back(
        fmt::format("the PCIe position of GPU {} ({}) cannot be read", *gpu.index, gpu.bus_id));
    scan.devices.push_back(std::move(gpu));
    return;
  }
  same->index = gpu.index;
  if (!gpu.model.empty()) same->model = gpu.model;
  same->compute_capability = gpu.compute_capability;
  if (same->gen == 0) same->gen = gpu.gen;
  if (same->width == 0) same->width = gpu.width;
  same->nvlinks = std::move(gpu.nvlinks);
}

}  // namespace

void add_nvml(Scan& scan, const std::string& library) {
  std::string why_not;
  const Nvml nvml(library, why_not);
  const auto is_nvidia = [](const ScannedDevice& device) {
    return device.kind == NodeKind::kGpu && device.vendor == "10de";
  };
  if (!nvml.ready()) {
    // Worth a word only where there is a GPU that it would describe.
    if (std::any_of(scan.devices.begin(), scan.devices.end(), is_nvidia)) {
      scan.notes.push_back(fmt::format("NVLink cannot be read from NVML: {}", why_not));
    } else {
      scan.notes.push_back(fmt::format("no NVIDIA GPU was looked for: {}", why_not));
    }
    return;
  }
  std::vector<ScannedDevice> gpus = nvml.gpus();
  std::set<std::string> usable;
  for (const ScannedDevice& gpu : gpus) usable.insert(gpu.bus_id);
  std::erase_if(scan.devices, [&](const ScannedDevice& device) {
    if (!is_nvidia(device) || usable.contains(device.bus_id)) return false;
    scan.notes.push_back(fmt::format("GPU {} is on PCIe but not for this process", device.bus_id));
    return true;
  });
  for (ScannedDevice& gpu : gpus) merge(scan, std::move(gpu));
  scan.sources.push_back("NVML");
}

}  // namespace ropewalk::topology
