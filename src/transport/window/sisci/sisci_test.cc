// The driver of PCIe bridges on the software libsisci: what it states, which paths it takes, and
// what it does about each thing that goes wrong.
//
// Every test runs in a process of its own, since the library is initialized once in each.
#include "transport/window/sisci/sisci.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/testing/in_child.h"
#include "transport/registry.h"
#include "transport/window/sisci/adapter.h"
#include "transport/window/sisci/path.h"
#include "transport/window/sisci/testing/ends.h"
#include "transport/window/sisci/testing/fabric.h"
#include "transport/window/sisci/trial.h"

namespace ropewalk::transport::window::sisci {
namespace {

using testing::alone;
using testing::Ends;
using testing::kLarge;
using testing::words_of;

// ---- what it states ------------------------------------------------------------------------

TEST(SisciAdapter, DecodesPciAddresses) {
  EXPECT_EQ(pci_address(0x1700), "0000:17:00.0");
  EXPECT_EQ(pci_address(0xc1fb), "0000:c1:1f.3");
}

TEST(SisciAdapter, KnowsTheSpeedOfLanes) {
  EXPECT_NEAR(lanes_mbps(8, 3), 63'015, 1);
  EXPECT_NEAR(lanes_mbps(16, 4), 252'062, 1);
  EXPECT_NEAR(lanes_mbps(8, 1), 16'000, 1);
  EXPECT_GT(lanes_mbps(0, 0), 0);
}

TEST(SisciHandle, IsParsedAndOthersAreRefused) {
  ListenerAddress address;
  address.node = 12;
  address.interrupt = 77;
  address.secret[3] = std::byte{9};
  const Handle handle = encode(address);
  const std::optional<ListenerAddress> read = decode_listener_address(handle);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->node, 12U);
  EXPECT_EQ(read->interrupt, 77U);
  EXPECT_EQ(read->secret, address.secret);
  for (std::size_t i = 60; i < handle.size(); ++i) EXPECT_EQ(handle[i], std::byte{0});
  EXPECT_FALSE(decode_listener_address(Handle{}));
}

TEST(SisciGreeting, ChangedBytesAreNone) {
  Greeting greeting = make_greeting(4, 5, 6, {});
  EXPECT_TRUE(is_greeting(greeting));
  greeting.segment ^= 1;
  EXPECT_FALSE(is_greeting(greeting));
}

TEST(SisciTrial, PatternsDependOnSeedAndMethod) {
  std::vector<std::byte> page(kTrialPage);
  fill_pattern(page, 5, kFromPlain);
  EXPECT_TRUE(is_pattern(page, 5, kFromPlain));
  EXPECT_FALSE(is_pattern(page, 6, kFromPlain));
  EXPECT_FALSE(is_pattern(page, 5, kFromRegistered));
  page[4000] ^= std::byte{1};
  EXPECT_FALSE(is_pattern(page, 5, kFromPlain));
}

TEST(Sisci, StatesAdaptersWithTheirLinks) {
  alone("adapters 3\nnode 0 0 8\nnode 0 2 34\nlink_width 16\nlink_generation 4\nlink_down 0 1\n",
        [](const SoftwareFabric& fabric) {
          Ends ends(fabric);
          CHECK_THAT(ends.transport().num_devices() == 2);
          const DeviceProperties first = ends.transport().properties(0);
          const DeviceProperties last = ends.transport().properties(1);
          CHECK_THAT(first.name == "sisci0" && last.name == "sisci2");
          CHECK_THAT(first.speed_mbps > 250'000 && first.guid != last.guid);
          CHECK_THAT((first.guid & 0xffffffff) == 8 && (last.guid & 0xffffffff) == 34);
          EXPECT_WORDS(ends.text(), "adapter 1 (node 260) has no link: it is not used");
        });
}

TEST(Sisci, AnAdapterIsAsFastAsItsSlowestLink) {
  const auto speed = [](const char* settings, double wanted) {
    alone(settings, [wanted](const SoftwareFabric& fabric) {
      Ends ends(fabric);
      CHECK_THAT(ends.transport().num_devices() == 1);
      CHECK_THAT(std::abs(ends.transport().properties(0).speed_mbps / wanted - 1) < 0.01);
    });
  };
  const double lane = 8000.0 * 128 / 130;
  speed("links 4\nlink_width 4\n", 4 * lane);
  speed("links 4\nlink_width 4\nwidth_of_link 2 1\n", lane);
  speed("links 2\nlink_width 4\nwidth_of_link 0 8\n", 4 * lane);
  // One that is down is no part of the chain.
  speed("links 2\nlink_width 4\nwidth_of_link 0 0\n", 4 * lane);
}

TEST(Sisci, AbsenceIsNoError) {
  alone("", [](const SoftwareFabric& fabric) {
    Ends ends(fabric, {{"SISCI_LIBRARY", "libno-such-sisci.so"}});
    CHECK_THAT(ends.transport().num_devices() == 0);
    EXPECT_WORDS(ends.text(), "no devices: libno-such-sisci.so was not found");
    EXPECT_WORDS(words_of([&] { (void)ends.transport().listen(0); }, Errc::kInvalidArgument),
                 "device 0 of 0");
  });
  alone("", [](const SoftwareFabric& fabric) {
    Ends ends(fabric, {{"SISCI_LIBRARY", "libc.so.6"}});
    CHECK_THAT(ends.transport().num_devices() == 0);
    EXPECT_WORDS(ends.text(), "it has no function SCIInitialize");
  });
  alone("driver no\n", [](const SoftwareFabric& fabric) {
    Ends ends(fabric);
    CHECK_THAT(ends.transport().num_devices() == 0);
    EXPECT_WORDS(ends.text(), "is the driver of the adapters loaded?");
  });
}

// ---- paths ---------------------------------------------------------------------------------

TEST(Sisci, WritesRegisteredMemoryDirectly) {
  alone("", [](const SoftwareFabric& fabric) {
    Ends ends(fabric);
    ends.connect();
    CHECK_THAT(ends.exchange_all());
    CHECK_THAT(ends.exchange_all(false));
    EXPECT_WORDS(ends.text(), "registered memory is written directly\n");
  });
}

TEST(Sisci, GoesThroughWindowsWhenTheIommuIsBroken) {
  alone("iommu broken\n", [](const SoftwareFabric& fabric) {
    Ends ends(fabric);
    ends.connect();
    CHECK_THAT(ends.exchange_all());
    EXPECT_WORDS(ends.text(),
                 "DMA into registered memory of this end reports success but moves no data: the "
                 "IOMMU is off or broken");
  });
}

TEST(Sisci, GoesThroughWindowsWhenThereIsNoIommu) {
  alone("iommu absent\n", [](const SoftwareFabric& fabric) {
    Ends ends(fabric);
    ends.connect();
    CHECK_THAT(ends.exchange_all());
    EXPECT_WORDS(ends.text(),
                 "memory cannot be registered: SCIRegisterSegmentMemory: Not "
                 "supported (0x40000922), as without an IOMMU");
  });
}

TEST(Sisci, CopiesByTheCpuWhenDmaMovesNothing) {
  alone("lose_transfer 1\nlose_all_transfers yes\n", [](const SoftwareFabric& fabric) {
    Ends ends(fabric);
    ends.connect();
    CHECK_THAT(ends.exchange_all());
    EXPECT_WORDS(ends.text(),
                 "DMA into its window reported success but moved no data; "
                 "the CPU copies instead");
  });
}

TEST(Sisci, CopiesByTheCpuWithoutTransfersFromMemory) {
  alone("transfer_from_memory no\n", [](const SoftwareFabric& fabric) {
    Ends ends(fabric);
    ends.connect();
    CHECK_THAT(ends.exchange_all());
    EXPECT_WORDS(ends.text(), "DMA into its window cannot start: Not supported");
  });
}

TEST(Sisci, CopiesByTheCpuWithoutQueues) {
  alone("max_dma_queues 2\n", [](const SoftwareFabric& fabric) {
    Ends ends(fabric);
    ends.connect();
    CHECK_THAT(ends.exchange_all());
    EXPECT_WORDS(ends.text(), "a connection has 2 of 4 DMA queues");
    Ends more(fabric);
    more.connect();
    CHECK_THAT(more.exchange_all());
    EXPECT_WORDS(ends.text(),
                 "a connection has 0 of 4 DMA queues: Out of hardware resources "
                 "(0x40000906); the CPU copies instead");
  });
}

TEST(Sisci, RepeatsFailedTransfersByTheCpu) {
  // Three transfers are trials; then the window's fail one by one.
  alone("iommu absent\nfail_transfer 5\n", [](const SoftwareFabric& fabric) {
    Ends ends(fabric);
    ends.connect();
    CHECK_THAT(ends.exchange_all());
    EXPECT_WORDS(ends.text(), "the transfer ended in an error; the CPU copies again");
  });
}

TEST(Sisci, ChecksumsFindALostTransfer) {
  for (const char* iommu : {"iommu absent\n", "iommu working\n"}) {
    alone(std::string(iommu) + "lose_transfer 9\n", [](const SoftwareFabric& fabric) {
      Ends ends(fabric, {{"VERIFY", "all"}});
      ends.connect();
      const std::string words = words_of(
          [&] {
            for (int i = 0; i < 10; ++i) CHECK_THAT(ends.exchange(kLarge));
          },
          Errc::kPeerLost);
      EXPECT_WORDS(words, "wrong checksum");
    });
  }
}

TEST(Sisci, WindowsMayBeInPieces) {
  alone("max_contiguous 65536\n", [](const SoftwareFabric& fabric) {
    Ends ends(fabric, {{"SISCI_PIO_BYTES", "1"}});
    ends.connect();
    CHECK_THAT(ends.exchange_all());
    CHECK_THAT(ends.exchange_all(false));
    EXPECT_WORDS(ends.text(), " segments");
  });
}

TEST(Sisci, StoresMayBeDelayedAndTorn) {
  for (const char* fault : {"", "torn_flush 7\n"}) {
    alone(std::string("delayed_stores yes\n") + fault, [](const SoftwareFabric& fabric) {
      Ends ends(fabric);
      ends.connect();
      CHECK_THAT(ends.exchange_all());
    });
  }
}

TEST(Sisci, LostStoresAreNoticed) {
  alone("delayed_stores yes\nlost_flush 40\n", [](const SoftwareFabric& fabric) {
    Ends ends(fabric, {{"VERIFY", "all"}});
    const std::string words = words_of(
        [&] {
          ends.connect();
          for (int i = 0; i < 1000; ++i) CHECK_THAT(ends.exchange(8));
        },
        Errc::kPeerLost);
    CHECK_THAT(words.find("lost") != std::string::npos);
  });
}

// Stores that nobody flushes stay with the CPU. An end that fails says so while it is still there,
// one that closes before its segment is gone.
TEST(Sisci, DelayedStoresReportThatAnEndHasClosed) {
  const std::string held = "delayed_stores yes\nstore_delay_ms 600000\n";
  alone(held + "iommu absent\nlose_transfer 9\n", [](const SoftwareFabric& fabric) {
    Ends ends(fabric, {{"VERIFY", "all"}});
    ends.connect();
    const std::vector<char> out(kLarge, 'x');
    std::vector<char> in(kLarge);
    const ReceiveBuffer buffer{in.data(), in.size(), 0, nullptr};
    std::unique_ptr<Request> send;
    const auto keep_sending = [&] {
      if (!send) {
        send = ends.sender->send(out.data(), out.size(), 0, nullptr);
      } else if (send->test()) {
        send.reset();
      }
    };
    std::unique_ptr<Request> receive;
    const auto keep_receiving = [&] {
      if (!receive || receive->test()) receive = ends.receiver->receive({&buffer, 1});
    };
    EXPECT_WORDS(words_of(
                     [&] {
                       Ends::until([&] {
                         keep_sending();
                         keep_receiving();
                         return false;
                       });
                     },
                     Errc::kPeerLost),
                 "wrong checksum");
    EXPECT_WORDS(words_of(
                     [&] {
                       Ends::until([&] {
                         keep_sending();
                         return false;
                       });
                     },
                     Errc::kPeerLost),
                 "it closed the connection");
  });
  alone(held, [](const SoftwareFabric& fabric) {
    Ends ends(fabric);
    ends.connect();
    CHECK_THAT(ends.exchange(8));
    char in = 0;
    const ReceiveBuffer buffer{&in, 1, 0, nullptr};
    const auto receive = ends.receiver->receive({&buffer, 1});
    ends.sender.reset();
    EXPECT_WORDS(words_of([&] { Ends::until([&] { return receive->test().has_value(); }); },
                          Errc::kPeerLost),
                 "it closed the connection");
  });
}

TEST(Sisci, SlowLinksOnlyTakeTime) {
  alone("megabytes_per_second 200\nlatency_us 300\n", [](const SoftwareFabric& fabric) {
    Ends ends(fabric);
    ends.connect();
    CHECK_THAT(ends.exchange_all());
  });
}

// ---- what is exhausted ---------------------------------------------------------------------

// The connecting end has taken the only one. The accepting end says why, and both hear of it.
TEST(Sisci, ExhaustedSegmentsAreNamed) {
  alone("max_segments 1\n", [](const SoftwareFabric& fabric) {
    Ends ends(fabric);
    const auto listener = ends.transport().listen(0);
    const auto sender = ends.transport().connect(0, listener->handle())->poll();
    const std::string words = words_of(
        [&] {
          Ends::until([&] {
            CHECK_THAT(listener->accept() == nullptr);
            return sender->send("x", 1, 0, nullptr) != nullptr;
          });
        },
        Errc::kPeerLost);
    EXPECT_WORDS(words, "the accepting end refused or could not connect back");
    EXPECT_WORDS(ends.text(),
                 "a connection could not be made: sisci: adapter 0: no segment for a "
                 "window of");
  });
}

TEST(Sisci, ContiguousMemoryThatIsTooSmallIsNamed) {
  alone("max_contiguous 4096\n", [](const SoftwareFabric& fabric) {
    Ends ends(fabric);
    const auto listener = ends.transport().listen(0);
    EXPECT_WORDS(
        words_of([&] { (void)ends.transport().connect(0, listener->handle()); }, Errc::kSystem),
        "not in pieces either: Out of operating system resources");
  });
}

TEST(Sisci, ManyConnectionsAndRegistrations) {
  alone("", [](const SoftwareFabric& fabric) {
    Ends ends(fabric, {{"SISCI_QUEUES", "1"}});
    const auto listener = ends.transport().listen(0);
    std::vector<std::unique_ptr<SendConnection>> senders;
    std::vector<std::unique_ptr<ReceiveConnection>> receivers;
    std::vector<char> memory(400 * 8192);
    std::vector<std::unique_ptr<Registration>> registrations;
    for (std::size_t i = 0; i < 300; ++i) {
      const auto connector = ends.transport().connect(0, listener->handle());
      senders.push_back(connector->poll());
      Ends::until([&] {
        if (auto receiver = listener->accept()) receivers.push_back(std::move(receiver));
        return receivers.size() == i + 1;
      });
      registrations.push_back(
          receivers[i]->register_memory(&memory[i * 8192], 8192, MemoryKind::kHost));
    }
    for (std::size_t i = 0; i < senders.size(); i += 37) {
      ends.sender = std::move(senders[i]);
      ends.receiver = std::move(receivers[i]);
      CHECK_THAT(ends.exchange(100'000));
    }
  });
}

// ---- peers and links -----------------------------------------------------------------------

TEST(Sisci, TwoPeersForOneHandle) {
  alone("", [](const SoftwareFabric& fabric) {
    Ends ends(fabric);
    const auto listener = ends.transport().listen(0);
    const auto a = ends.transport().connect(0, listener->handle())->poll();
    const auto b = ends.transport().connect(0, listener->handle())->poll();
    std::vector<std::unique_ptr<ReceiveConnection>> receivers;
    Ends::until([&] {
      if (auto receiver = listener->accept()) receivers.push_back(std::move(receiver));
      return receivers.size() == 2;
    });
    // Each receiver hears one sender, and not the other.
    std::vector<char> in(2);
    std::vector<std::unique_ptr<Request>> receives;
    for (std::size_t i = 0; i < 2; ++i) {
      const ReceiveBuffer buffer{&in[i], 1, 0, nullptr};
      receives.push_back(receivers[i]->receive({&buffer, 1}));
    }
    std::unique_ptr<Request> from_a;
    std::unique_ptr<Request> from_b;
    Ends::until([&] {
      if (!from_a) from_a = a->send("a", 1, 0, nullptr);
      if (!from_b) from_b = b->send("b", 1, 0, nullptr);
      const bool first = receives[0]->test().has_value();
      return receives[1]->test() && first;
    });
    CHECK_THAT(in[0] + in[1] == 'a' + 'b');
  });
}

TEST(Sisci, ALinkThatGoesDownLosesThePeer) {
  alone("", [](const SoftwareFabric& fabric) {
    Ends ends(fabric, {{"PEER_LOSS_TIME", "100ms"}});
    ends.connect();
    CHECK_THAT(ends.exchange_all());
    fabric.write("link_down 0 0\n");
    const std::string words = words_of(
        [&] {
          for (;;) CHECK_THAT(ends.exchange(kLarge));
        },
        Errc::kPeerLost);
    CHECK_THAT(!words.empty());
    // New ones say it too, and work again when it is back.
    ends.sender.reset();
    ends.receiver.reset();
    fabric.write("\n");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ends.connect();
    CHECK_THAT(ends.exchange_all());
  });
}

TEST(Sisci, AnIdleConnectionSurvivesAShortLossOfTheLink) {
  alone("", [](const SoftwareFabric& fabric) {
    Ends ends(fabric, {{"PEER_LOSS_TIME", "20s"}});
    ends.connect();
    CHECK_THAT(ends.exchange_all());
    fabric.write("link_down 0 0\n");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    fabric.write("\n");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    CHECK_THAT(ends.exchange_all());
  });
}

// Two hosts: this process and its child have different node ids, and memory of their own.
TEST(Sisci, JoinsTwoHosts) {
  alone("", [](const SoftwareFabric& fabric) {
    int sockets[2];
    CHECK_THAT(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    const pid_t child = fork();
    if (child == 0) {
      setenv("SOFTWARE_SISCI_HOST", "3", 1);
      Ends ends(fabric);
      Handle handle{};
      CHECK_THAT(read(sockets[1], handle.data(), handle.size()) ==
                 static_cast<ssize_t>(handle.size()));
      const auto sender = ends.transport().connect(0, handle)->poll();
      std::vector<char> out(kLarge, 'x');
      const auto memory = sender->register_memory(out.data(), out.size(), MemoryKind::kHost);
      for (int i = 0; i < 5; ++i) {
        std::unique_ptr<Request> send;
        Ends::until([&] {
          if (!send) send = sender->send(out.data(), out.size(), 0, memory.get());
          return send && send->test();
        });
      }
      char done = 0;
      _exit(read(sockets[1], &done, 1) == 1 ? 0 : 1);
    }
    Ends ends(fabric);
    const auto listener = ends.transport().listen(0);
    CHECK_THAT(write(sockets[0], listener->handle().data(), kHandleBytes) == kHandleBytes);
    Ends::until([&] { return (ends.receiver = listener->accept()) != nullptr; });
    std::vector<char> in(kLarge);
    const auto memory = ends.receiver->register_memory(in.data(), in.size(), MemoryKind::kHost);
    for (int i = 0; i < 5; ++i) {
      std::fill(in.begin(), in.end(), 0);
      const ReceiveBuffer buffer{in.data(), in.size(), 0, memory.get()};
      const auto receive = ends.receiver->receive({&buffer, 1});
      Ends::until([&] { return receive->test().has_value(); });
      CHECK_THAT(in == std::vector<char>(kLarge, 'x'));
    }
    CHECK_THAT(write(sockets[0], "d", 1) == 1);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK_THAT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_WORDS(ends.text(), "to node 16: registered memory is written directly\n");
  });
}

// Nothing is left in the folder of names when all processes were killed.
TEST(Sisci, KilledProcessesLeaveNothing) {
  const SoftwareFabric fabric;
  const auto names = [] {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      if (entry.path().filename().string().find("sisci") != std::string::npos) {
        found.push_back(entry.path().filename().string());
      }
    }
    return found;
  };
  const std::vector<std::string> before = names();
  EXPECT_EQ(ropewalk::testing::in_child([&] {
              Ends ends(fabric);
              ends.connect();
              CHECK_THAT(ends.exchange_all());
              raise(SIGKILL);
              return 0;
            }),
            128 + SIGKILL);
  EXPECT_EQ(names(), before);
  // The next process finds a fabric with no segments of the dead one: as many as there may be.
  fabric.write("max_segments 12\n");
  EXPECT_EQ(ropewalk::testing::in_child([&] {
              Ends ends(fabric);
              ends.connect();
              CHECK_THAT(ends.exchange_all());
              return 0;
            }),
            0);
}

}  // namespace
}  // namespace ropewalk::transport::window::sisci
