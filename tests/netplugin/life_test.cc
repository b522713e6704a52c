// What the network plugin leaves behind: after many connections, an aborted set-up, unloading.
#include <dlfcn.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "core/testing/in_child.h"
#include "core/testing/sanitizers.h"
#include "core/testing/share.h"
#include "netplugin/harness.h"
#include "processes/shared_memory_names.h"
#include "transport/window/sisci/testing/fabric.h"

namespace ropewalk::netplugin::testing {
namespace {

std::size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  return static_cast<std::size_t>(std::count(std::istreambuf_iterator<char>(maps), {}, '\n'));
}

struct Holdings {
  std::size_t descriptors = count_entries("/proc/self/fd");
  std::size_t threads = count_entries("/proc/self/task");
  std::set<std::string> shared_memory = ropewalk::testing::shared_memory_names();
  std::size_t maps = mappings();
  std::size_t heap = mallinfo2().uordblks;
};

TEST_F(PluginTest, AThousandConnectionsLeaveNothing) {
  for (const char* kind : {"shm", "tcp", "auto"}) {
    SCOPED_TRACE(kind);
    use(kind);
    Net net(library_.api(12));
    {
      Loop warm(net);
      exchange(warm, 100, 100, 1);
    }
    const Holdings before;
    for (int i = 0; i < 1000 / std::min(4, ropewalk::testing::share()); ++i) {
      Loop loop(net);
      exchange(loop, 100, 100, static_cast<std::uint64_t>(i));
    }
    const Holdings after;
    EXPECT_EQ(after.descriptors, before.descriptors);
    EXPECT_EQ(after.threads, before.threads);
    EXPECT_EQ(ropewalk::testing::new_shared_memory_names(before.shared_memory),
              std::set<std::string>{});
    EXPECT_LE(after.maps, before.maps + 8);  // of threads and the allocator, at times
    EXPECT_LE(after.heap, before.heap + (64 << 10));
  }
}

TEST_F(PluginTest, ManyConnectionsAtOnce) {
  Net net(library_.api(12));
  std::vector<std::unique_ptr<Loop>> loops;
  for (int i = 0; i < 100; ++i) loops.push_back(std::make_unique<Loop>(net));
  for (std::size_t i = 0; i < loops.size(); ++i) exchange(*loops[i], 1000 + i, 2000, i);
}

TEST_F(PluginTest, FinalizeClosesOpenConnections) {
  // Another communicator keeps the plugin alive.
  Net other(library_.api(12));
  const Holdings before;
  {
    Net net(library_.api(12));
    HandleBytes handle;
    void* listener = net.listen(handle);
    void* sender = net.connect(handle);
    ASSERT_NE(net.accept(listener), nullptr);
    Bytes data(10);
    net.register_memory(sender, data.data(), data.size());
  }
  EXPECT_EQ(Holdings().descriptors, before.descriptors);
  EXPECT_TRUE(take_lines().empty());
}

// It closes all objects of libsisci, and with them the library's own resources: its threads, and
// the file that software bridges share. SCITerminate would end it for others as well.
TEST(PluginLife, LeavesNothingOfPcieBridgesWhenUnloaded) {
  const transport::SoftwareFabric fabric;
  // The code of libsisci stays in a process.
  EXPECT_EQ(ropewalk::testing::in_child([&] {
              setenv("ROPEWALK_NET", "sisci", 1);
              setenv("ROPEWALK_SISCI_LIBRARY", RW_SOFTWARE_SISCI, 1);
              Holdings before;
              for (int round = 0; round < 24; ++round) {
                constexpr std::array kVersions = {4, 8, 11, 12};
                {
                  const Library library(RW_PLUGIN);
                  Net net(library.api(kVersions[static_cast<std::size_t>(round) % 4]));
                  Loop loop(net);
                  exchange(loop, 100'000, 100'000, 1);
                }
                const Holdings after;
                // The thread sanitizer adds a thread of its own.
                if (ropewalk::testing::kThreadSanitizer && round == 0) before = after;
                EXPECT_EQ(after.descriptors, before.descriptors) << "round " << round;
                EXPECT_EQ(after.threads, before.threads) << "round " << round;
                EXPECT_FALSE(std::filesystem::exists(fabric.file() + ".state"));
              }
              return 0;
            }),
            0);
}

TEST_F(PluginTest, SettingsAreReadAgainAfterTheLastFinalize) {
  for (const int version : {12, 8}) {
    const auto device_by = [&](const char* kind) {
      use(kind);
      const Net net(library_.api(version));
      Stated stated;
      EXPECT_EQ(net.api->properties(0, &stated), 0);
      return stated.name;
    };
    const std::string by_memory = device_by("shm");
    EXPECT_NE(device_by("tcp"), by_memory) << version;
    EXPECT_EQ(device_by("shm"), by_memory) << version;
  }
  // While a communicator is open, all have its transport.
  use("shm");
  const Net first(library_.api(12));
  use("tcp");
  const Net second(library_.api(12));
  Stated stated[2];
  EXPECT_EQ(first.api->properties(0, &stated[0]), 0);
  EXPECT_EQ(second.api->properties(0, &stated[1]), 0);
  EXPECT_EQ(stated[1].name, stated[0].name);
}

TEST(PluginLife, IsLoadedAndUnloadedAgainAndAgain) {
  setenv("ROPEWALK_NET", "auto", 1);
  std::vector<Holdings> seen;
  for (int round = 0; round < 4; ++round) {
    {
      const Library library(RW_PLUGIN);
      for (const int version : {4, 8, 11, 12}) {
        Net net(library.api(version));
        Loop loop(net);
        exchange(loop, 100'000, 100'000, 1);
      }
      {
        // An aborted set-up of a version without contexts.
        Net net(library.api(8));
        HandleBytes handle;
        net.listen(handle);
      }
    }
    seen.emplace_back();
  }
  unsetenv("ROPEWALK_NET");
  void* still = dlopen(RW_PLUGIN, RTLD_NOW | RTLD_NOLOAD);
  EXPECT_EQ(still, nullptr) << "the library is still loaded";
  EXPECT_EQ(seen.back().descriptors, seen.front().descriptors);
  EXPECT_EQ(seen.back().threads, seen.front().threads);
  // The thread sanitizer takes memory as it goes.
  if (!ropewalk::testing::kThreadSanitizer) {
    EXPECT_LE(seen.back().maps, seen.front().maps + 1);
  }
}

}  // namespace
}  // namespace ropewalk::netplugin::testing
