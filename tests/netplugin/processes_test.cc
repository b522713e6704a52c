// The network plugin between processes: messages, the death of either, another user.
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <set>
#include <string>

#include "core/testing/child_process.h"
#include "netplugin/harness.h"
#include "processes/shared_memory_names.h"

namespace ropewalk::netplugin::testing {
namespace {

using ropewalk::testing::Child;
using ropewalk::testing::read_all;
using ropewalk::testing::write_all;

class TwoProcesses : public PluginTest, public ::testing::WithParamInterface<Setup> {
 protected:
  TwoProcesses() { use(GetParam().net); }
};

// Sends `count` messages of growing size, or receives and verifies them.
void stream(Net& net, void* comm, bool sends, int count) {
  constexpr std::size_t kStep = 20'011;
  for (int i = 0; i < count; ++i) {
    const std::size_t bytes = static_cast<std::size_t>(i) * kStep;
    Bytes data = sends ? numbered(bytes + 1, static_cast<std::uint64_t>(i)) : Bytes(bytes + 1);
    void* memory = net.register_memory(comm, data.data(), data.size());
    Transfer transfer;
    poll_until(
        [&] {
          if (transfer.request == nullptr) {
            const Message message = {data.data(), bytes, 1, memory};
            check(sends ? net.api->isend(comm, message, &transfer.request)
                        : net.api->irecv(comm, {message}, &transfer.request),
                  "isend or irecv");
          }
          return transfer.test(*net.api);
        },
        "a message between processes");
    if (!sends) {
      const Bytes wanted = numbered(bytes + 1, static_cast<std::uint64_t>(i));
      if (bytes > 0 && std::memcmp(data.data(), wanted.data(), bytes) != 0) {
        throw std::runtime_error("wrong data");
      }
    }
    check(net.api->deregister(comm, memory), "deregMr");
  }
}

TEST_P(TwoProcesses, MoveMessagesInBothDirections) {
  constexpr int kCount = 40;
  Child child([&](int socket) {
    Net net(library_.api(GetParam().version));
    HandleBytes theirs;
    HandleBytes mine;
    read_all(socket, theirs.bytes.data(), theirs.bytes.size());
    void* listener = net.listen(mine);
    write_all(socket, mine.bytes.data(), mine.bytes.size());
    void* sender = net.connect(theirs);
    void* receiver = net.accept(listener);
    check(net.api->close_listen(listener), "closeListen");
    stream(net, sender, true, kCount);
    stream(net, receiver, false, kCount);
    check(net.api->close_send(sender), "closeSend");
    check(net.api->close_recv(receiver), "closeRecv");
    return 0;
  });
  Net net(library_.api(GetParam().version));
  HandleBytes mine;
  HandleBytes theirs;
  void* listener = net.listen(mine);
  write_all(child.socket(), mine.bytes.data(), mine.bytes.size());
  read_all(child.socket(), theirs.bytes.data(), theirs.bytes.size());
  void* sender = net.connect(theirs);
  void* receiver = net.accept(listener);
  check(net.api->close_listen(listener), "closeListen");
  stream(net, receiver, false, kCount);
  stream(net, sender, true, kCount);
  EXPECT_EQ(net.api->close_send(sender), 0);
  EXPECT_EQ(net.api->close_recv(receiver), 0);
  EXPECT_EQ(child.wait(), 0);
}

// After the other process was killed: an error in bounded time, closing succeeds, nothing is left.
void expect_loss(Net& net, void* comm, bool sends) {
  Bytes data(100'000);
  void* memory = net.register_memory(comm, data.data(), data.size());
  void* request = nullptr;
  int result = 0;
  poll_until(
      [&] {
        int done = 0;
        if (request == nullptr) {
          const Message message = {data.data(), data.size(), 1, memory};
          result = sends ? net.api->isend(comm, message, &request)
                         : net.api->irecv(comm, {message}, &request);
        } else {
          result = net.api->test(request, &done, nullptr);
          if (done == 1) request = nullptr;  // it had left before; the next one must fail
        }
        return result != 0;
      },
      "the loss of the peer");
  EXPECT_EQ(result, net.api->version() >= 6 ? abi::kRemoteError : abi::kSystemError);
  EXPECT_GE(take_lines().size(), 1U);
  EXPECT_EQ(net.api->deregister(comm, memory), 0);
  EXPECT_EQ(sends ? net.api->close_send(comm) : net.api->close_recv(comm), 0);
}

TEST_P(TwoProcesses, LoseTheReceiver) {
  for (const int messages : {-1, 0, 3}) {  // -1: before it accepts
    SCOPED_TRACE(messages);
    const std::set<std::string> before = ropewalk::testing::shared_memory_names();
    Child child([&](int socket) {
      Net net(library_.api(GetParam().version));
      HandleBytes mine;
      void* listener = net.listen(mine);
      write_all(socket, mine.bytes.data(), mine.bytes.size());
      if (messages >= 0) {
        void* receiver = net.accept(listener);
        stream(net, receiver, false, messages);
      }
      write_all(socket, "x", 1);
      return pause();
    });
    Net net(library_.api(GetParam().version));
    HandleBytes theirs;
    read_all(child.socket(), theirs.bytes.data(), theirs.bytes.size());
    void* sender = net.connect(theirs);
    if (messages > 0) stream(net, sender, true, messages);
    char x = 0;
    read_all(child.socket(), &x, 1);
    child.kill();
    expect_loss(net, sender, true);
    EXPECT_EQ(ropewalk::testing::new_shared_memory_names(before), std::set<std::string>{});
  }
}

TEST_P(TwoProcesses, LoseTheSender) {
  for (const int messages : {0, 3}) {
    SCOPED_TRACE(messages);
    Child child([&](int socket) {
      Net net(library_.api(GetParam().version));
      HandleBytes theirs;
      read_all(socket, theirs.bytes.data(), theirs.bytes.size());
      void* sender = net.connect(theirs);
      stream(net, sender, true, messages);
      write_all(socket, "x", 1);
      return pause();
    });
    Net net(library_.api(GetParam().version));
    HandleBytes mine;
    void* listener = net.listen(mine);
    write_all(child.socket(), mine.bytes.data(), mine.bytes.size());
    void* receiver = net.accept(listener);
    stream(net, receiver, false, messages);
    char x = 0;
    read_all(child.socket(), &x, 1);
    child.kill();
    expect_loss(net, receiver, false);
    EXPECT_EQ(net.api->close_listen(listener), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Ends, TwoProcesses,
                         ::testing::Values(Setup{4, "shm"}, Setup{4, "tcp"}, Setup{4, "auto"},
                                           Setup{5, "auto"}, Setup{8, "shm"}, Setup{12, "shm"},
                                           Setup{12, "tcp"}, Setup{12, "auto"}),
                         case_name);

TEST_F(PluginTest, AnotherUserCannotAttach) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  use("shm");
  Net net(library_.api(12));
  HandleBytes handle;
  void* listener = net.listen(handle);
  Child child([&](int /*socket*/) {
    constexpr uid_t kNobody = 65534;
    if (setresgid(kNobody, kNobody, kNobody) != 0 || setresuid(kNobody, kNobody, kNobody) != 0) {
      throw std::runtime_error("cannot become another user");
    }
    void* comm = nullptr;
    const int result = net.api->connect(net.context, 0, handle.bytes.data(), &comm);
    if (result == 0 || comm != nullptr) throw std::runtime_error("the connection was made");
    const std::vector<std::string> lines = take_lines();
    if (lines.size() != 1 || lines[0].find("another user") == std::string::npos) {
      throw std::runtime_error(::testing::PrintToString(lines));
    }
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  void* comm = nullptr;
  for (int i = 0; i < 100; ++i) {
    check(net.api->accept(listener, &comm), "accept");
    ASSERT_EQ(comm, nullptr);
  }
  // The rightful peer is served all the same.
  void* sender = net.connect(handle);
  comm = net.accept(listener);
  EXPECT_EQ(net.api->close_send(sender), 0);
  EXPECT_EQ(net.api->close_recv(comm), 0);
  EXPECT_EQ(net.api->close_listen(listener), 0);
}

TEST(PluginNames, RcclFindsTheSameLibrary) {
  std::string path = RW_PLUGIN;
  const std::size_t place = path.rfind("libnccl");
  path.replace(place, 7, "librccl");
  const Library library(path.c_str());
  EXPECT_EQ(library.api(12)->name(), "Ropewalk");
}

}  // namespace
}  // namespace ropewalk::netplugin::testing
