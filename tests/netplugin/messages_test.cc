// Messages through every version of the network plugin's interface.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "netplugin/harness.h"

namespace ropewalk::netplugin::testing {
namespace {

class EveryVersion : public PluginTest, public ::testing::WithParamInterface<Setup> {
 protected:
  EveryVersion() { use(GetParam().net); }
  Net net() { return Net(library_.api(GetParam().version)); }
};

std::vector<Setup> setups() {
  std::vector<Setup> all;
  for (int version = abi::kOldestVersion; version <= abi::kNewestVersion; ++version) {
    for (const char* net : {"auto", "shm", "tcp"}) all.push_back({version, net});
  }
  return all;
}

TEST_P(EveryVersion, StatesItsDevices) {
  Net net(library_.api(GetParam().version));
  EXPECT_EQ(net.api->name(), "Ropewalk");
  int count = 0;
  check(net.api->devices(&count), "devices");
  ASSERT_GE(count, 1);
  std::vector<std::string> names;
  for (int device = 0; device < count; ++device) {
    Stated stated;
    check(net.api->properties(device, &stated), "getProperties");
    EXPECT_FALSE(stated.name.empty());
    EXPECT_EQ(stated.name.find('"'), std::string::npos);
    EXPECT_EQ(std::count(names.begin(), names.end(), stated.name), 0) << stated.name;
    names.push_back(stated.name);
    EXPECT_EQ(stated.ptr_support & kHost, kHost);
    EXPECT_GT(stated.speed, 0);
    EXPECT_GT(stated.max_comms, 0);
    EXPECT_GE(stated.max_recvs, 1);
    EXPECT_GE(stated.max_p2p_bytes, 1U);
    EXPECT_LE(stated.max_p2p_bytes, std::size_t{1} << 40);
  }
}

TEST_P(EveryVersion, MovesMessages) {
  Net net(library_.api(GetParam().version));
  Loop loop(net);
  for (const std::size_t bytes :
       {0UL, 1UL, 7UL, 8UL, 16UL, 120UL, 128UL, 4096UL, 65536UL, 614400UL, 1UL << 20}) {
    SCOPED_TRACE(bytes);
    exchange(loop, bytes, bytes, bytes + 1);
    exchange(loop, bytes, bytes + 1000, bytes + 2);
  }
  EXPECT_EQ(take_lines(), std::vector<std::string>());
}

TEST_P(EveryVersion, KeepsManyInFlight) {
  Net net(library_.api(GetParam().version));
  Loop loop(net);
  constexpr std::size_t kMessages = 200;
  constexpr std::size_t kBytes = 3000;
  constexpr std::size_t kInFlight = 32;
  Bytes out = numbered(kMessages * kBytes, 1);
  Bytes in(out.size());
  void* out_memory = net.register_memory(loop.sender, out.data(), out.size());
  void* in_memory = net.register_memory(loop.receiver, in.data(), in.size());
  std::vector<Transfer> sends(kMessages);
  std::vector<Transfer> receives(kMessages);
  std::size_t sent = 0;
  std::size_t posted = 0;
  std::size_t sends_done = 0;
  std::size_t receives_done = 0;
  poll_until(
      [&] {
        if (posted < kMessages && posted - receives_done < kInFlight) {
          check(net.api->irecv(loop.receiver, {{in.data() + posted * kBytes, kBytes, 0, in_memory}},
                               &receives[posted].request),
                "irecv");
          if (receives[posted].request != nullptr) ++posted;
        }
        if (sent < kMessages && sent - sends_done < kInFlight) {
          check(net.api->isend(loop.sender, {out.data() + sent * kBytes, kBytes, 0, out_memory},
                               &sends[sent].request),
                "isend");
          if (sends[sent].request != nullptr) ++sent;
        }
        // The oldest first, as NCCL does.
        if (sends_done < sent && sends[sends_done].test(*net.api)) ++sends_done;
        if (receives_done < posted && receives[receives_done].test(*net.api)) ++receives_done;
        return sends_done == kMessages && receives_done == kMessages;
      },
      "many messages");
  EXPECT_EQ(in, out);
}

TEST_P(EveryVersion, ListenerIsUsedAgain) {
  Net net(library_.api(GetParam().version));
  HandleBytes handle;
  void* listener = net.listen(handle);
  std::vector<void*> senders;
  std::vector<void*> receivers;
  for (int i = 0; i < 3; ++i) {
    senders.push_back(net.connect(handle));
    receivers.push_back(net.accept(listener));
  }
  check(net.api->close_listen(listener), "closeListen");
  for (void* comm : senders) EXPECT_EQ(net.api->close_send(comm), 0);
  for (void* comm : receivers) EXPECT_EQ(net.api->close_recv(comm), 0);
}

TEST_P(EveryVersion, ClosesWithRequestsPending) {
  Net net(library_.api(GetParam().version));
  for (const bool sender_first : {true, false}) {
    HandleBytes handle;
    void* listener = net.listen(handle);
    void* sender = net.connect(handle);
    void* receiver = net.accept(listener);
    Bytes out(1 << 20);
    Bytes in(1 << 20);
    void* out_memory = net.register_memory(sender, out.data(), out.size());
    void* in_memory = net.register_memory(receiver, in.data(), in.size());
    void* send = nullptr;
    void* receive = nullptr;
    poll_until(
        [&] {
          if (receive == nullptr) {
            check(net.api->irecv(receiver, {{in.data(), in.size(), 0, in_memory}}, &receive),
                  "irecv");
          }
          check(net.api->isend(sender, {out.data(), out.size(), 0, out_memory}, &send), "isend");
          if (send != nullptr) return true;
          int done = 0;  // the send may have to wait until the receiver has moved
          if (receive != nullptr) check(net.api->test(receive, &done, nullptr), "test");
          return false;
        },
        "a send");
    if (sender_first) {
      EXPECT_EQ(net.api->deregister(sender, out_memory), 0);
    }
    EXPECT_EQ(net.api->close_send(sender), 0);
    EXPECT_EQ(net.api->deregister(receiver, in_memory), 0);
    EXPECT_EQ(net.api->close_recv(receiver), 0);
    EXPECT_EQ(net.api->close_listen(listener), 0);
    // A closed connection is recognised.
    int done = 0;
    EXPECT_NE(net.api->test(send, &done, nullptr), 0);
    EXPECT_EQ(done, 0);
    EXPECT_NE(net.api->close_send(sender), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Versions, EveryVersion, ::testing::ValuesIn(setups()), case_name);

TEST_F(PluginTest, GroupsReceivesByTag) {
  Net net(library_.api(12));
  Loop loop(net);
  constexpr std::size_t kGroup = 8;
  Bytes out = numbered(kGroup * 100, 3);
  Bytes in(kGroup * 100);
  void* out_memory = net.register_memory(loop.sender, out.data(), out.size());
  void* in_memory = net.register_memory(loop.receiver, in.data(), in.size());
  std::vector<Message> messages;
  for (std::size_t i = 0; i < kGroup; ++i) {
    messages.push_back({in.data() + i * 100, 100, static_cast<int>(i), in_memory});
  }
  Transfer receive;
  std::vector<Transfer> sends(kGroup);
  poll_until(
      [&] {
        if (receive.request == nullptr) {
          check(net.api->irecv(loop.receiver, messages, &receive.request), "irecv");
        }
        bool all = receive.test(*net.api);
        for (std::size_t i = 0; i < kGroup; ++i) {
          const std::size_t which = (i * 3 + 1) % kGroup;  // in another order, with other sizes
          Transfer& send = sends[which];
          if (send.request == nullptr) {
            check(net.api->isend(
                      loop.sender,
                      {out.data() + which * 100, 100 - which, static_cast<int>(which), out_memory},
                      &send.request),
                  "isend");
          }
          all = send.test(*net.api) && all;
        }
        return all;
      },
      "a group");
  for (std::size_t i = 0; i < kGroup; ++i) {
    EXPECT_EQ(receive.sizes[i], static_cast<int>(100 - i));
    EXPECT_EQ(std::memcmp(in.data() + i * 100, out.data() + i * 100, 100 - i), 0);
  }
  EXPECT_EQ(receive.sizes[kGroup], 0);
}

// Several communicators, each with a progress thread and one that registers memory meanwhile.
TEST_F(PluginTest, ThreadsOfSeveralCommunicators) {
  constexpr int kCommunicators = 3;
  std::vector<std::thread> threads;
  std::atomic<int> failures = 0;
  for (int c = 0; c < kCommunicators; ++c) {
    threads.emplace_back([&, c] {
      try {
        Net net(library_.api(12));
        Loop loop(net);
        std::atomic<bool> stop = false;
        std::thread service([&] {
          Bytes memory(1 << 16);
          while (!stop) {
            void* mine = net.register_memory(loop.sender, memory.data(), memory.size());
            if (net.api->deregister(loop.sender, mine) != 0) ++failures;
            std::this_thread::yield();
          }
        });
        try {
          for (int i = 0; i < 100; ++i) {
            exchange(loop, static_cast<std::size_t>(i) * 300, 40'000,
                     static_cast<std::uint64_t>(c * 1000 + i));
          }
        } catch (...) {
          ++failures;
        }
        stop = true;
        service.join();
      } catch (...) {
        ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

}  // namespace
}  // namespace ropewalk::netplugin::testing
