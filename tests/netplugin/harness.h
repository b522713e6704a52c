// What the tests of the network plugin have in common: a plugin in use, connections with oneself,
// and transfers that are polled as NCCL's progress thread polls them.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "netplugin/net_api.h"

namespace ropewalk::netplugin::testing {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::uint8_t>;

// Only ends a test that hangs; never a measure of speed.
inline constexpr auto kPatience = std::chrono::seconds(30);

inline constexpr int kHost = abi::kHostPointer;

/// @throws std::runtime_error with the logged lines, unless `result` is success
void check(int result, const char* call);

template <typename Step>
void poll_until(Step step, const char* what) {
  const Clock::time_point deadline = Clock::now() + kPatience;
  while (!step()) {
    if (Clock::now() > deadline) throw std::runtime_error(std::string("hangs: ") + what);
    std::this_thread::yield();
  }
}

Bytes numbered(std::size_t bytes, std::uint64_t seed);

// A handle with guards behind the bytes that this version's NCCL has.
struct HandleBytes {
  HandleBytes() { bytes.fill(0xa5); }
  std::array<std::uint8_t, 192> bytes{};
  void expect_guards(std::size_t used) const {
    for (std::size_t i = used; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], 0xa5) << i;
  }
};

// A plugin in use: initialised, and finalised at the end.
class Net {
 public:
  explicit Net(std::unique_ptr<NetApi> loaded) : api(std::move(loaded)) {
    check(api->init(logger, &context), "init");
  }
  ~Net() { EXPECT_EQ(api->finalize(context), 0); }
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;

  void* listen(HandleBytes& handle) {
    void* listener = nullptr;
    check(api->listen(context, 0, handle.bytes.data(), &listener), "listen");
    if (listener == nullptr) throw std::runtime_error("listen gave no listener");
    handle.expect_guards(api->handle_bytes());
    return listener;
  }
  void* connect(HandleBytes handle) {
    void* comm = nullptr;
    poll_until(
        [&] {
          check(api->connect(context, 0, handle.bytes.data(), &comm), "connect");
          return comm != nullptr;
        },
        "connect");
    return comm;
  }
  void* accept(void* listener) {
    void* comm = nullptr;
    poll_until(
        [&] {
          check(api->accept(listener, &comm), "accept");
          return comm != nullptr;
        },
        "accept");
    return comm;
  }
  void* register_memory(void* comm, void* data, std::size_t bytes) {
    void* memory = nullptr;
    check(api->register_memory(comm, data, bytes, kHost, &memory), "regMr");
    return memory;
  }

  std::unique_ptr<NetApi> api;
  void* context = nullptr;
};

// A connection of a process with itself.
struct Loop {
  explicit Loop(Net& from) : net(from) {
    HandleBytes handle;
    void* listener = net.listen(handle);
    sender = net.connect(handle);  // to its end before accept
    receiver = net.accept(listener);
    check(net.api->close_listen(listener), "closeListen");
  }
  ~Loop() {
    EXPECT_EQ(net.api->close_recv(receiver), 0);
    EXPECT_EQ(net.api->close_send(sender), 0);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  Net& net;
  void* sender = nullptr;
  void* receiver = nullptr;
};

// Sends and receives that one thread polls, as NCCL's progress thread does.
struct Transfer {
  void* request = nullptr;
  bool finished = false;
  std::array<int, 64> sizes{};

  bool test(NetApi& api) {
    if (request == nullptr || finished) return finished;
    int done = -1;
    check(api.test(request, &done, sizes.data()), "test");
    if (done != 0 && done != 1) throw std::runtime_error("test did not write `done`");
    finished = done == 1;
    return finished;
  }
};

/// One message through a connection; verifies it and the memory around it.
void exchange(Loop& loop, std::size_t bytes, std::size_t room, std::uint64_t seed);

/// A version of the interface, and the setting NET.
struct Setup {
  int version;
  std::string net;
};

std::ostream& operator<<(std::ostream& out, const Setup& setup);

std::string case_name(const ::testing::TestParamInfo<Setup>& tested);

class PluginTest : public ::testing::Test {
 protected:
  PluginTest() { use("auto"); }
  ~PluginTest() override {
    unsetenv("ROPEWALK_NET");
    unsetenv("ROPEWALK_SOCKET_IFNAME");
  }
  // From the next init on.
  static void use(const std::string& net) {
    setenv("ROPEWALK_NET", net.c_str(), 1);
    setenv("ROPEWALK_SOCKET_IFNAME", "=lo", 1);
    take_lines();
  }
  Library library_{RW_PLUGIN};
};

/// Entries of a folder, such as /proc/self/fd.
std::size_t count_entries(const char* folder);

}  // namespace ropewalk::netplugin::testing
