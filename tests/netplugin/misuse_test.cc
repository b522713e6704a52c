// What NCCL or a stranger may do wrong: an error code and one logged line each time.
#include <dlfcn.h>

#include <initializer_list>

#include "netplugin/harness.h"

namespace ropewalk::netplugin::testing {
namespace {

class Misuse : public PluginTest {
 protected:
  // One logged line that has all the words, and the result.
  void expect_refused(int result, int wanted, std::initializer_list<const char*> words) {
    EXPECT_EQ(result, wanted);
    const std::vector<std::string> lines = take_lines();
    ASSERT_EQ(lines.size(), 1U) << ::testing::PrintToString(lines);
    EXPECT_TRUE(lines[0].starts_with("NET/Ropewalk : ")) << lines[0];
    for (const char* word : words) {
      EXPECT_NE(lines[0].find(word), std::string::npos) << lines[0] << " lacks " << word;
    }
  }
};

TEST_F(Misuse, OfHandles) {
  Net net(library_.api(12));
  HandleBytes handle;
  void* listener = net.listen(handle);
  void* comm = nullptr;
  for (const std::size_t place : {0UL, 5UL, 30UL, 60UL, 100UL}) {
    HandleBytes corrupt = handle;
    corrupt.bytes[place] ^= 1;
    expect_refused(net.api->connect(net.context, 0, corrupt.bytes.data(), &comm),
                   abi::kInvalidArgument, {"connect", "handle"});
    EXPECT_EQ(comm, nullptr);
  }
  HandleBytes foreign;
  expect_refused(net.api->connect(net.context, 0, foreign.bytes.data(), &comm),
                 abi::kInvalidArgument, {"connect", "handle"});
  foreign.bytes.fill(0);
  expect_refused(net.api->connect(net.context, 0, foreign.bytes.data(), &comm),
                 abi::kInvalidArgument, {"connect", "handle"});
  HandleBytes other_attempt = handle;
  other_attempt.bytes[120] = 9;
  expect_refused(net.api->connect(net.context, 0, other_attempt.bytes.data(), &comm),
                 abi::kInvalidArgument, {"connect", "attempt"});
  check(net.api->close_listen(listener), "closeListen");
  // Nobody listens any more.
  const int result = net.api->connect(net.context, 0, handle.bytes.data(), &comm);
  if (result == 0) {
    poll_until([&] { return net.api->connect(net.context, 0, handle.bytes.data(), &comm) != 0; },
               "connect to nobody");
  }
  EXPECT_EQ(take_lines().size(), 1U);
  EXPECT_EQ(comm, nullptr);
}

TEST_F(Misuse, OfDevices) {
  Net net(library_.api(12));
  HandleBytes handle;
  void* made = nullptr;
  Stated stated;
  expect_refused(net.api->properties(7, &stated), abi::kInvalidArgument, {"getProperties", "7"});
  expect_refused(net.api->properties(-1, &stated), abi::kInvalidArgument, {"-1"});
  expect_refused(net.api->listen(net.context, 7, handle.bytes.data(), &made), abi::kInvalidArgument,
                 {"listen", "device 7"});
  EXPECT_EQ(made, nullptr);
  expect_refused(net.api->connect(net.context, 7, handle.bytes.data(), &made),
                 abi::kInvalidArgument, {"connect", "device 7"});
}

TEST_F(Misuse, OfNullHandlesByEveryVersion) {
  for (int version = 4; version <= 12; ++version) {
    SCOPED_TRACE(version);
    Net net(library_.api(version));
    void* made = nullptr;
    expect_refused(net.api->listen(net.context, 0, nullptr, &made), abi::kInvalidArgument,
                   {"listen", "null pointer"});
    EXPECT_EQ(made, nullptr);
    expect_refused(net.api->connect(net.context, 0, nullptr, &made), abi::kInvalidArgument,
                   {"connect", "null pointer"});
    EXPECT_EQ(made, nullptr);
  }
}

TEST_F(Misuse, OfNullPointers) {
  const abi::NetV12* table = nullptr;
  {
    void* library = dlopen(RW_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr);
    table = static_cast<const abi::NetV12*>(dlsym(library, "ncclNetPlugin_v12"));
    dlclose(library);  // the fixture holds it
  }
  Net net(library_.api(12));
  Loop loop(net);
  EXPECT_EQ(table->get_device_mr, nullptr);
  EXPECT_EQ(table->irecv_consumed, nullptr);
  EXPECT_EQ(table->init(nullptr, 1, nullptr, logger, nullptr), abi::kInvalidArgument);
  EXPECT_EQ(table->devices(nullptr), abi::kInvalidArgument);
  EXPECT_EQ(table->get_properties(0, nullptr), abi::kInvalidArgument);
  void* made = nullptr;
  EXPECT_EQ(table->listen(net.context, 0, nullptr, &made), abi::kInvalidArgument);
  EXPECT_EQ(table->connect(net.context, 0, nullptr, &made, nullptr), abi::kInvalidArgument);
  EXPECT_EQ(table->accept(nullptr, &made, nullptr), abi::kInvalidArgument);
  std::array<char, 8> data{};
  EXPECT_EQ(table->reg_mr(nullptr, data.data(), 8, kHost, &made), abi::kInvalidArgument);
  EXPECT_EQ(table->reg_mr(loop.sender, nullptr, 8, kHost, &made), abi::kInvalidArgument);
  EXPECT_EQ(table->reg_mr(loop.sender, data.data(), 8, kHost, nullptr), abi::kInvalidArgument);
  EXPECT_EQ(table->isend(nullptr, data.data(), 8, 0, nullptr, nullptr, &made),
            abi::kInvalidArgument);
  EXPECT_EQ(table->isend(loop.sender, data.data(), 0, 0, nullptr, nullptr, nullptr),
            abi::kInvalidArgument);
  EXPECT_EQ(table->irecv(loop.receiver, 1, nullptr, nullptr, nullptr, nullptr, nullptr, &made),
            abi::kInvalidArgument);
  int done = 5;
  EXPECT_EQ(table->test(nullptr, &done, nullptr), abi::kInvalidArgument);
  EXPECT_EQ(done, 0);
  take_lines();
  EXPECT_EQ(table->dereg_mr(loop.sender, nullptr), abi::kSuccess);
  EXPECT_EQ(table->close_send(nullptr), abi::kSuccess);
  EXPECT_EQ(table->close_recv(nullptr), abi::kSuccess);
  EXPECT_EQ(table->close_listen(nullptr), abi::kSuccess);
  EXPECT_EQ(table->finalize(nullptr), abi::kSuccess);
  EXPECT_EQ(take_lines(), std::vector<std::string>());
}

TEST_F(Misuse, OfMemory) {
  Net net(library_.api(12));
  Loop loop(net);
  Loop other(net);
  Bytes data(1000);
  void* memory = net.register_memory(loop.sender, data.data(), data.size());
  void* receive_memory = net.register_memory(loop.receiver, data.data(), data.size());
  // Addresses that are not memory cannot be registered.
  void* none = nullptr;
  for (const std::size_t bytes : {~std::size_t{0}, std::size_t{1} << 63U}) {
    expect_refused(net.api->register_memory(loop.sender, data.data(), bytes, kHost, &none),
                   abi::kInvalidArgument, {"regMr", "not memory of this process"});
  }
  void* request = nullptr;
  const auto send = [&](void* at, std::size_t bytes, void* with) {
    return net.api->isend(loop.sender, {at, bytes, 0, with}, &request);
  };
  expect_refused(send(data.data(), 1001, memory), abi::kInvalidArgument,
                 {"isend", "1001 bytes", "1000 bytes registered"});
  EXPECT_EQ(request, nullptr);
  expect_refused(send(data.data() + 999, 2, memory), abi::kInvalidArgument, {"isend", "2 bytes"});
  expect_refused(send(data.data() - 1, 1, memory), abi::kInvalidArgument, {"isend"});
  expect_refused(send(data.data(), ~std::size_t{0}, memory), abi::kInvalidArgument, {"isend"});
  expect_refused(send(data.data(), 1, nullptr), abi::kInvalidArgument, {"not registered"});
  expect_refused(send(data.data(), 1, data.data()), abi::kInvalidArgument, {"not registered"});
  expect_refused(send(data.data(), 1, receive_memory), abi::kInvalidArgument, {"not registered"});
  expect_refused(net.api->irecv(loop.receiver, {{data.data(), 1001, 0, receive_memory}}, &request),
                 abi::kInvalidArgument, {"irecv", "1001 bytes"});
  expect_refused(net.api->irecv(loop.sender, {{data.data(), 10, 0, memory}}, &request),
                 abi::kInvalidArgument, {"does not receive"});
  expect_refused(net.api->isend(loop.receiver, {data.data(), 10, 0, receive_memory}, &request),
                 abi::kInvalidArgument, {"does not send"});
  expect_refused(
      net.api->irecv(loop.receiver, std::vector<Message>(9, {data.data(), 1, 0, receive_memory}),
                     &request),
      abi::kInvalidArgument, {"irecv", "9 messages"});
  expect_refused(net.api->register_memory(loop.sender, data.data(), 8, 99, &request),
                 abi::kInvalidArgument, {"regMr", "kind 99"});
  expect_refused(net.api->register_memory(loop.sender, data.data(), 8, abi::kCudaPointer, &request),
                 abi::kInvalidArgument, {"regMr"});
  expect_refused(net.api->deregister(other.sender, memory), abi::kInvalidArgument, {"deregMr"});
  check(net.api->deregister(loop.sender, memory), "deregMr");
  expect_refused(net.api->deregister(loop.sender, memory), abi::kInvalidArgument, {"deregMr"});
  expect_refused(send(data.data(), 1, memory), abi::kInvalidArgument, {"not registered"});
  // None of it has broken the connection.
  exchange(loop, 500, 500, 1);
}

TEST_F(Misuse, OfConnections) {
  Net net(library_.api(12));
  Loop loop(net);
  expect_refused(net.api->close_recv(loop.sender), abi::kInvalidArgument, {"closeRecv"});
  expect_refused(net.api->close_send(loop.receiver), abi::kInvalidArgument, {"closeSend"});
  expect_refused(net.api->close_listen(loop.sender), abi::kInvalidArgument, {"closeListen"});
  std::array<char, 64> foreign{};
  expect_refused(net.api->close_send(foreign.data()), abi::kInvalidArgument,
                 {"not an open connection"});
  void* made = nullptr;
  expect_refused(net.api->accept(foreign.data(), &made), abi::kInvalidArgument, {"accept"});
  expect_refused(net.api->finalize(foreign.data()), abi::kInvalidArgument, {"context"});
  expect_refused(net.api->listen(foreign.data(), 0, HandleBytes().bytes.data(), &made),
                 abi::kInvalidArgument, {"context"});
  int done = 0;
  for (const std::uint64_t number : {1UL, 2UL, 0x6000000000000000UL, ~0UL}) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): no address is meant
    expect_refused(net.api->test(reinterpret_cast<void*>(number), &done, nullptr),
                   abi::kInvalidArgument, {"test", "request"});
  }
  exchange(loop, 500, 500, 1);
}

TEST_F(Misuse, TooLongAMessageIsOneErrorAtBothEnds) {
  Net net(library_.api(12));
  Loop loop(net);
  exchange(loop, 8, 8, 1);
  Bytes data(1000);
  void* memory = net.register_memory(loop.sender, data.data(), data.size());
  void* receive_memory = net.register_memory(loop.receiver, data.data(), data.size());
  void* receive = nullptr;
  check(net.api->irecv(loop.receiver, {{data.data(), 10, 0, receive_memory}}, &receive), "irecv");
  void* send = nullptr;
  int result = 0;
  poll_until(
      [&] {
        result = net.api->isend(loop.sender, {data.data(), 11, 0, memory}, &send);
        return result != 0 || send != nullptr;
      },
      "a send that is too long");
  int done = 0;
  poll_until([&] { return net.api->test(receive, &done, nullptr) != 0; }, "a receive");
  EXPECT_EQ(done, 0);
  EXPECT_EQ(take_lines().size(), result == 0 ? 1U : 2U);
  // From now on the same error, and silence.
  EXPECT_NE(net.api->irecv(loop.receiver, {{data.data(), 10, 0, receive_memory}}, &receive), 0);
  EXPECT_NE(net.api->isend(loop.sender, {data.data(), 1, 0, memory}, &send), 0);
  EXPECT_TRUE(take_lines().empty());
}

TEST_F(Misuse, OfSettings) {
  const auto api = library_.api(12);
  void* context = nullptr;
  setenv("ROPEWALK_NET", "pigeons", 1);
  expect_refused(api->init(logger, &context), abi::kInvalidArgument,
                 {"init", "ROPEWALK_NET", "pigeons", "environment"});
  EXPECT_EQ(context, nullptr);
  EXPECT_EQ(api->finalize(context), 0);
  int count = 0;
  expect_refused(api->devices(&count), abi::kInvalidUsage, {"devices", "init"});
}

}  // namespace
}  // namespace ropewalk::netplugin::testing
