// What NICs of a fabric say of themselves, in the plugin's list of devices.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "netplugin/harness.h"

#ifdef RW_STRICT_LIBFABRIC

namespace ropewalk::netplugin::testing {
namespace {

class FabricDevices : public PluginTest {
 protected:
  FabricDevices() : fabric_(dlopen(RW_STRICT_LIBFABRIC, RTLD_NOW | RTLD_LOCAL)) {
    use("ofi");
    setenv("ROPEWALK_OFI_PROVIDER", "tcp;ofi_rxm", 1);
    setenv("ROPEWALK_OFI_LIBRARY", RW_STRICT_LIBFABRIC, 1);
  }
  ~FabricDevices() override {
    unsetenv("ROPEWALK_OFI_PROVIDER");
    unsetenv("ROPEWALK_OFI_LIBRARY");
    configure("");
  }
  FabricDevices(const FabricDevices&) = delete;
  FabricDevices& operator=(const FabricDevices&) = delete;
  void configure(const std::string& text) const {
    reinterpret_cast<void (*)(const char*)>(dlsym(fabric_, "strict_libfabric_configure"))(
        text.c_str());
  }

  void* fabric_;
};

TEST_F(FabricDevices, EachNicWithPathSpeedAndGuid) {
  std::vector<std::string> pci;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/bus/pci/devices", none)) {
    pci.push_back(entry.path().string());
  }
  if (pci.size() < 2) GTEST_SKIP() << "this machine has no two PCI devices to name";
  std::sort(pci.begin(), pci.end());
  const auto address = [&](std::size_t i) {
    return std::filesystem::path(pci[i]).filename().string();
  };
  configure("local,virtual,provider_key,endpoint,nic=fast0/" + address(0) +
            "/200/0c:42:a1:00:00:5e,nic=fast1/" + address(1) + "/100/0c:42:a1:00:00:5f");
  for (const int version : {4, 8, 12}) {
    SCOPED_TRACE(version);
    Net net(library_.api(version));
    int count = 0;
    check(net.api->devices(&count), "devices");
    ASSERT_EQ(count, 2);
    for (const int device : {0, 1}) {
      Stated stated;
      check(net.api->properties(device, &stated), "getProperties");
      EXPECT_EQ(stated.name, device == 0 ? "fast0" : "fast1");
      ASSERT_NE(stated.pci_path, nullptr);
      EXPECT_EQ(stated.pci_path,
                std::filesystem::canonical(pci[static_cast<std::size_t>(device)]).string());
      EXPECT_EQ(stated.speed, device == 0 ? 200'000 : 100'000);
      EXPECT_EQ(stated.guid, device == 0 ? 0x0c42'a100'005eU : 0x0c42'a100'005fU);
    }
  }
}

}  // namespace
}  // namespace ropewalk::netplugin::testing

#endif  // RW_STRICT_LIBFABRIC
