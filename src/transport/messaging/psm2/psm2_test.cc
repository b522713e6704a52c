// Tests that only the PSM2 transport needs: a missing library and missing adapters, replaced
// functions of a library, files of killed processes, copies from a peer that has died.
#include "transport/messaging/psm2/psm2.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/testing/child_process.h"
#include "transport/messaging/abandoned_files.h"
#include "transport/messaging/psm2/connection.h"
#include "transport/messaging/psm2/devices.h"
#include "transport/messaging/psm2/interception.h"
#include "transport/messaging/psm2/shared_files.h"
#include "transport/messaging/testing/ending.h"
#include "transport/messaging/testing/stand_in.h"
#include "transport/registry.h"

namespace ropewalk::transport::psm2 {
namespace {

using ropewalk::testing::Child;
using ropewalk::testing::read_all;
using ropewalk::testing::write_all;
using ropewalk::transport::messaging::testing::connect_to_itself;
using ropewalk::transport::messaging::testing::until;

// libfabric's tests of the same program may load libpsm2 first.
[[maybe_unused]] const int kEnvironment = setenv("HFI_SYSFS_PATH", "/sys/class", 0);

Config over_shared_memory() {
  Config config;
  config.set("SOCKET_IFNAME", "=lo", "test");
  config.set("PSM2_DEVICE", "shm", "test");
  return config;
}

std::string why_none(const Config& config) {
  const auto transport = make_transport(config);
  EXPECT_EQ(transport->num_devices(), 0);
  try {
    (void)transport->listen(0);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kSystem);
    return error.what();
  }
  return {};
}

TEST(Psm2Library, AbsentIsNoDevice) {
  Config config = over_shared_memory();
  config.set("PSM2_LIBRARY", "/nonexistent/libpsm2.so.2", "test");
  EXPECT_NE(why_none(config).find("/nonexistent/libpsm2.so.2"), std::string::npos);
}

TEST(Psm2Library, NotALibraryIsNoDevice) {
  const std::string path = ::testing::TempDir() + "/libpsm2_text.so";
  std::ofstream(path) << "no library\n";
  Config config = over_shared_memory();
  config.set("PSM2_LIBRARY", path, "test");
  EXPECT_NE(why_none(config).find("libpsm2_text.so"), std::string::npos);
}

TEST(Psm2Library, WithoutItsFunctionsIsNoDevice) {
  Config config = over_shared_memory();
  config.set("PSM2_LIBRARY", "libm.so.6", "test");
  EXPECT_NE(why_none(config).find("it has no function psm2_"), std::string::npos);
}

TEST(Psm2Device, WithoutAdapterThereIsNone) {
  if (has_adapter()) GTEST_SKIP() << "this host has an adapter";
  Config config = over_shared_memory();
  config.set("PSM2_DEVICE", "adapters", "test");
  EXPECT_NE(why_none(config).find("no Omni-Path adapter"), std::string::npos);
  EXPECT_FALSE(worth_a_look(config));
}

TEST(Psm2Device, SharedMemoryIsNothingForAuto) { EXPECT_FALSE(worth_a_look(over_shared_memory())); }

// A setting that was meant for a test must not have processes of different hosts meet.
TEST(Psm2Device, SharedMemoryAloneMustBeRequested) {
  Child child([](int) {
    setenv("PSM2_DEVICES", "self,shm", 1);
    const Library::Found found = Library::open("libpsm2.so.2", false);
    return !found.library && found.why_not.find("leaves no adapter") != std::string::npos ? 0 : 1;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(Psm2Device, OneProcessHasOneKind) {
  const auto transport = make_transport(over_shared_memory());
  ASSERT_EQ(transport->num_devices(), 1);
  EXPECT_EQ(transport->properties(0).name, "psm2_shm");
  EXPECT_TRUE(summary(*transport).shared_memory);
  const Library::Found found = Library::open("libpsm2.so.2", false);
  EXPECT_FALSE(found.library);
  EXPECT_NE(found.why_not.find("already initialised"), std::string::npos);
}

TEST(Psm2Handle, OneOfTcpIsNone) {
  const auto tcp = transport::make_transport("tcp", over_shared_memory());
  const auto transport = make_transport(over_shared_memory());
  const auto listener = tcp->listen(0);
  EXPECT_THROW((void)transport->connect(0, listener->handle()), Error);
}

pid_t another_process() { return 4711; }

TEST(Psm2Interception, ReplacesCallsOfOneLibrary) {
  void* const library = dlopen(RW_CALLS_ANOTHER, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto asks = reinterpret_cast<pid_t (*)()>(dlsym(library, "who_is_the_parent"));
  ASSERT_NE(asks, nullptr);
  EXPECT_EQ(asks(), getppid());
  EXPECT_FALSE(intercept(library, "getpgid", reinterpret_cast<void*>(&another_process)));
  EXPECT_TRUE(intercept(library, "getppid", reinterpret_cast<void*>(&another_process)));
  EXPECT_EQ(asks(), 4711);
  EXPECT_NE(getppid(), 4711);
}

TEST(Psm2SharedFiles, OnlyThoseThatWereLeftAreRemoved) {
  // Ids of no endpoint.
  const std::string left = shared_file(0xfeed'0000'0001'0000 + static_cast<unsigned>(getpid()));
  const std::string held = shared_file(0xfeed'0000'0002'0000 + static_cast<unsigned>(getpid()));
  const std::string strange = shared_file(0xfeed'0000'0003'0000 + static_cast<unsigned>(getpid()));
  for (const std::string& path : {left, held, strange}) std::ofstream(path) << "x";
  messaging::claim_file(left).close();
  FileDescriptor lock = messaging::claim_file(held);
  ASSERT_TRUE(lock);
  EXPECT_GE(remove_abandoned_files(), 1);
  EXPECT_NE(access(left.c_str(), F_OK), 0);
  EXPECT_EQ(access(held.c_str(), F_OK), 0);
  EXPECT_EQ(access(strange.c_str(), F_OK), 0);  // another program's
  lock.close();
  remove_abandoned_files();
  EXPECT_NE(access(held.c_str(), F_OK), 0);
  unlink(strange.c_str());
}

// libpsm2 itself would end the process, since the message's memory no longer exists.
TEST(Psm2KilledPeer, ItsMessageInFlightIsAnError) {
  constexpr std::size_t kBytes = 1 << 20;
  Child child([](int socket) {
    const auto transport = make_transport(over_shared_memory());
    Handle handle{};
    read_all(socket, handle.data(), handle.size());
    const auto connector = transport->connect(0, handle);
    std::unique_ptr<SendConnection> sender;
    until([&] { return (sender = connector->poll()) != nullptr; });
    until([&] { return sender->ready(); });
    const std::vector<char> out(kBytes);
    std::unique_ptr<Request> send;
    until([&] { return (send = sender->send(out.data(), kBytes, 0, nullptr)) != nullptr; });
    write_all(socket, "s", 1);
    for (;;) pause();
    return 1;
  });
  const auto transport = make_transport(over_shared_memory());
  const auto listener = transport->listen(0);
  write_all(child.socket(), listener->handle().data(), kHandleBytes);
  std::unique_ptr<ReceiveConnection> receiver;
  until([&] { return (receiver = listener->accept()) != nullptr; });
  until([&] { return receiver->ready(); });
  char sent = 0;
  read_all(child.socket(), &sent, 1);
  child.kill();
  std::vector<char> in(kBytes);
  const ReceiveBuffer buffer{in.data(), in.size(), 0, nullptr};
  std::string words;
  try {
    auto receive = receiver->receive({&buffer, 1});
    until([&] { return receive->test().has_value(); });
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kPeerLost);
    words = error.what();
  }
  EXPECT_NE(words.find("process_vm_readv"), std::string::npos) << words;
}

// A thread of the other one judges the patterns of a receiver that goes.
TEST(Psm2Connections, MayEndUnverifiedWhileAnotherIsUsed) {
  const auto transport = make_transport(over_shared_memory());
  EXPECT_GT(messaging::testing::end_connections_beside_another(*transport, 200), 0);
}

// libpsm2 keeps what comes for nobody, until the process ends.
TEST(Psm2Unexpected, MessagesToAnEndThatHasEndedAreDropped) {
  constexpr int kConnections = 60;
  constexpr int kMessages = 40;
  const auto transport = make_transport(over_shared_memory());
  const std::vector<char> out(2000);
  std::size_t before = 0;
  for (int i = 0; i < kConnections; ++i) {
    if (i == kConnections / 6) before = mallinfo2().uordblks;
    std::unique_ptr<SendConnection> sender;
    std::unique_ptr<ReceiveConnection> receiver;
    connect_to_itself(*transport, sender, receiver);
    int sent = 0;
    until([&] {
      if (sender->send(out.data(), out.size(), 5, nullptr) != nullptr) ++sent;
      return sent == kMessages;
    });
    receiver.reset();
  }
  // 4 MB if they are kept.
  EXPECT_LT(mallinfo2().uordblks, before + (std::size_t{1} << 20U));
}

// More messages than a queue of libpsm2's takes, to an end that does not call.
TEST(Psm2FlowControl, ASenderNeverWaitsInsideTheLibrary) {
  Child child([](int socket) {
    const auto transport = make_transport(over_shared_memory());
    const auto listener = transport->listen(0);
    write_all(socket, listener->handle().data(), kHandleBytes);
    std::unique_ptr<ReceiveConnection> receiver;
    until([&] { return (receiver = listener->accept()) != nullptr; });
    until([&] { return receiver->ready(); });
    char go = 0;
    read_all(socket, &go, 1);
    std::vector<char> in(100);
    int wrong = 0;
    for (std::size_t i = 0; i < 3000; ++i) {
      const ReceiveBuffer buffer{in.data(), in.size(), 5, nullptr};
      std::unique_ptr<Request> receive;
      until([&] { return (receive = receiver->receive({&buffer, 1})) != nullptr; });
      until([&] { return receive->test().has_value(); });
      if (in[0] != static_cast<char>(i)) ++wrong;
    }
    read_all(socket, &go, 1);
    return wrong == 0 ? 0 : 1;
  });
  const auto transport = make_transport(over_shared_memory());
  Handle handle{};
  read_all(child.socket(), handle.data(), handle.size());
  const auto connector = transport->connect(0, handle);
  std::unique_ptr<SendConnection> sender;
  until([&] { return (sender = connector->poll()) != nullptr; });
  until([&] { return sender->ready(); });
  std::vector<char> out(100);
  std::size_t sent = 0;
  const auto send_next = [&] {
    out[0] = static_cast<char>(sent);
    const auto request = sender->send(out.data(), out.size(), 5, nullptr);
    if (request == nullptr) return false;
    EXPECT_TRUE(request->test());
    ++sent;
    return true;
  };
  for (int i = 0; i < 5000; ++i) (void)send_next();
  EXPECT_GT(sent, 0U);
  EXPECT_LT(sent, 1000U);
  EXPECT_FALSE(sender->describe().empty());
  write_all(child.socket(), "g", 1);
  until([&] {
    (void)send_next();
    return sent == 3000;
  });
  write_all(child.socket(), "d", 1);
  EXPECT_EQ(child.wait(), 0);
}

// Messages of a small window are asked for, and the receiver may never be called again.
TEST(Psm2FlowControl, ASmallWindowsSendsEndWhenTheirReceivesHave) {
  constexpr std::size_t kConnections = 24;  // from the 22nd on windows are the smallest
  // The first ones may still be seen by the thread that polls while connections are made.
  constexpr int kMessages = 10;
  Child child([](int socket) {
    const auto transport = make_transport(over_shared_memory());
    std::vector<std::unique_ptr<ReceiveConnection>> receivers(kConnections);
    for (auto& receiver : receivers) {
      const auto listener = transport->listen(0);
      write_all(socket, listener->handle().data(), kHandleBytes);
      until([&] { return (receiver = listener->accept()) != nullptr; });
      until([&] { return receiver->ready(); });
    }
    std::vector<char> in(100);
    for (auto& receiver : receivers) {
      for (int i = 0; i < kMessages; ++i) {
        const ReceiveBuffer buffer{in.data(), in.size(), 5, nullptr};
        const auto receive = receiver->receive({&buffer, 1});
        write_all(socket, "r", 1);
        until([&] { return receive->test().has_value(); });
        char ended = 0;
        read_all(socket, &ended, 1);  // and polls no more
      }
    }
    return 0;
  });
  const auto transport = make_transport(over_shared_memory());
  std::vector<std::unique_ptr<SendConnection>> senders(kConnections);
  for (auto& sender : senders) {
    Handle handle{};
    read_all(child.socket(), handle.data(), handle.size());
    const auto connector = transport->connect(0, handle);
    until([&] { return (sender = connector->poll()) != nullptr; });
    until([&] { return sender->ready(); });
  }
  const std::vector<char> out(100);
  std::unique_ptr<Request> send;
  for (auto& sender : senders) {
    for (int i = 0; i < kMessages; ++i) {
      char posted = 0;
      read_all(child.socket(), &posted, 1);
      until([&] { return (send = sender->send(out.data(), 100, 5, nullptr)) != nullptr; });
      until([&] { return send->test().has_value(); });
      write_all(child.socket(), "e", 1);
    }
  }
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace ropewalk::transport::psm2
