#include "transport/registry.h"

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "transport/window/driver.h"

namespace ropewalk::transport {
namespace {

Config with_net(std::string_view name) {
  Config config;
  config.set("NET", name, "test");
  return config;
}

TEST(Registry, TheSettingNetNamesAnyProvider) {
  for (const std::string_view name : compiled_providers()) {
    EXPECT_EQ(chosen_provider(with_net(name)).name, name);
  }
}

TEST(Registry, AnotherNameIsRefusedWithThoseThatThereAre) {
  try {
    (void)chosen_provider(with_net("pigeons"));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with("setting ROPEWALK_NET (test): \"pigeons\" is not one of")) << text;
    for (const std::string_view name : compiled_providers()) {
      EXPECT_NE(text.find(name), std::string::npos) << text;
    }
  }
}

TEST(Registry, ProvidersMayWishForLongPieces) {
  EXPECT_EQ(chosen_provider(with_net("tcp")).piece_bytes, 0);
#ifdef RW_HAVE_OFI
  EXPECT_EQ(chosen_provider(with_net("ofi")).piece_bytes, 512 << 10);
#endif
}

// The best first where the choice is left open.
TEST(Registry, WindowDriversAreThoseOfTheProvidersThatHaveThem) {
  const auto names = [](std::string_view net) {
    std::string all;
    for (const auto& driver : make_window_drivers(with_net(net))) all += driver->name() + " ";
    return all;
  };
  EXPECT_EQ(names("shm"), "shm ");
  EXPECT_EQ(names("sisci"), "sisci ");
  EXPECT_EQ(names("auto"), "shm sisci ");
  EXPECT_EQ(names("tcp"), "");
}

TEST(Registry, ProcessesOfAHostAreJoined) {
  const auto made = make_transport(process_provider().name, Config());
  EXPECT_EQ(made->num_devices(), 1);
}

}  // namespace
}  // namespace ropewalk::transport
