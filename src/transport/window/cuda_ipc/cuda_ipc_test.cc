// What cuda_ipc does when CUDA refuses, fails or lies, on a stand-in for its library; the contract
// suite (contract_test.cc) has the rest.
#include "transport/window/cuda_ipc/cuda_ipc.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/testing/in_child.h"
#include "transport/window/cuda_ipc/device_memory.h"
#include "transport/window/cuda_ipc/opened_memory.h"
#include "transport/window/device/testing/ipc_owner.h"
#include "transport/window/device/testing/on_device.h"
#include "transport/window/device/testing/stand_in.h"
#include "transport/window/shm/shm.h"

namespace ropewalk::transport::window {
namespace {

using ropewalk::testing::in_child;
using ropewalk::testing::message_of;
using testing::GuardedBuffer;
using testing::Memory;
using testing::numbered;
using testing::StandIn;
using testing::TestGpus;
using Clock = std::chrono::steady_clock;

constexpr auto kIpcPatience = std::chrono::seconds(30);
constexpr std::size_t kLarge = 9'000'001;

template <typename Condition>
void wait_for(const char* what, Condition condition) {
  const Clock::time_point deadline = Clock::now() + kIpcPatience;
  while (!condition()) {
    if (Clock::now() > deadline) throw std::runtime_error(std::string("hangs: ") + what);
    std::this_thread::yield();
  }
}

class CudaIpc : public ::testing::Test {
 protected:
  ~CudaIpc() override { stand_in_.configure(""); }
  void open(std::initializer_list<std::pair<const char*, const char*>> settings = {}) {
    Config config;
    config.set("CUDA_LIBRARY", RW_STAND_IN_CUDA, "test");
    for (const auto& [name, value] : settings) config.set(name, value, "test");
    close();
    transport_ = make_cuda_ipc_transport(config);
    const auto listener = transport_->listen(0);
    sender_ = transport_->connect(0, listener->handle())->poll();
    wait_for("accept", [&] { return (receiver_ = listener->accept()) != nullptr; });
  }
  void close() {
    sender_.reset();
    receiver_.reset();
    transport_.reset();
  }
  std::unique_ptr<GuardedBuffer> source(Memory memory, std::size_t bytes = kLarge) {
    return std::make_unique<GuardedBuffer>(gpus_.gpus.at(0), bytes, memory, *sender_);
  }
  std::unique_ptr<GuardedBuffer> destination(Memory memory, std::size_t bytes = kLarge) {
    return std::make_unique<GuardedBuffer>(gpus_.gpus.at(1), bytes, memory, *receiver_);
  }
  // A message from one to the other; both stay filled.
  // @return whether it came right
  bool exchange(GuardedBuffer& from, GuardedBuffer& to, std::size_t bytes,
                const char* faults = "") {
    const std::vector<char> out = numbered(bytes, ++messages_);
    std::vector<char> in(bytes, 'x');
    from.fill(out.data(), bytes);
    to.fill(in.data(), bytes);
    stand_in_.configure(faults);
    const ReceiveBuffer buffer{to.data(), bytes, 0, to.registration()};
    const auto receive = receiver_->receive({&buffer, 1});
    finish(from.data(), bytes, from.registration(), *receive);
    stand_in_.configure("");
    to.fetch(in.data(), bytes);
    return in == out;
  }
  void finish(const void* data, std::size_t bytes, Registration* registration, Request& receive) {
    std::unique_ptr<Request> send;
    bool sent = false;
    bool received = false;
    wait_for("message", [&] {
      if (!send) send = sender_->send(data, bytes, 0, registration);
      received = receive.test().has_value();
      sent = send && send->test();
      return sent && received;
    });
  }
  // Whether a copy that has a fault ends a connection of a child process with those words: the
  // stream stays broken.
  bool breaks(const std::string& gpus, const std::string& fault, const std::string& expected) {
    return in_child([&] {
             stand_in_.restart();
             setenv("RW_STAND_IN_CUDA", gpus.c_str(), 1);
             TestGpus own(RW_STAND_IN_CUDA);
             open({{"TIMEOUT", "200ms"}});
             GuardedBuffer from(own.gpus.at(0), kLarge, Memory::kVirtual, *sender_);
             GuardedBuffer to(own.gpus.at(1), kLarge, Memory::kVirtual, *receiver_);
             if (!exchange(from, to, 1000, gpus.c_str())) return 1;
             std::string words = "no error";
             try {
               exchange(from, to, kLarge, (gpus + fault).c_str());
             } catch (const Error& error) {
               words = error.what();
             }
             if (words.find(expected) != std::string::npos) return 0;
             fprintf(stderr, "%s\n", words.c_str());
             return 2;
           }) == 0;
  }
  // The same with faults, which break it.
  // @return the error's words
  std::string failure(Memory from, Memory to, const char* faults) {
    try {
      const auto a = source(from);
      const auto b = destination(to);
      exchange(*a, *b, kLarge, faults);
    } catch (const Error& error) {
      stand_in_.configure("");
      return error.what();
    }
    return "no error";
  }

  StandIn stand_in_;
  TestGpus gpus_{RW_STAND_IN_CUDA};
  std::size_t messages_ = 0;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<SendConnection> sender_;
  std::unique_ptr<ReceiveConnection> receiver_;
};

TEST_F(CudaIpc, StatesADeviceForEachGpu) {
  open();
  ASSERT_EQ(transport_->num_devices(), 2);
  const DeviceProperties first = transport_->properties(0);
  const DeviceProperties second = transport_->properties(1);
  EXPECT_NE(first.guid, second.guid);
  EXPECT_NE(first.name, second.name);
  EXPECT_NE(first.memory_kinds & static_cast<unsigned>(MemoryKind::kCuda), 0U);
}

// A transport over that library, which says why there is no GPU memory.
void expect_host_memory_only(const char* library, const char* reason) {
  Config config;
  config.set("CUDA_LIBRARY", library, "test");
  const auto transport = make_cuda_ipc_transport(config);
  EXPECT_EQ(transport->properties(0).memory_kinds, static_cast<unsigned>(MemoryKind::kHost));
  const auto listener = transport->listen(0);
  const auto sender = transport->connect(0, listener->handle())->poll();
  char byte = 0;
  const std::string words = message_of(
      [&] { (void)sender->register_memory(&byte, 1, MemoryKind::kCuda); }, Errc::kInvalidArgument);
  EXPECT_NE(words.find(reason), std::string::npos) << words;
}

TEST_F(CudaIpc, WithoutCudaTakesHostMemory) { expect_host_memory_only("libnone.so", "libnone.so"); }

TEST_F(CudaIpc, WhereKernelsAreLoadedLazilyTakesHostMemory) {
  stand_in_.configure("lazy");
  expect_host_memory_only(RW_STAND_IN_CUDA, "CUDA_MODULE_LOADING=EAGER");
}

// Opened memory is closed when the registration ends, while the connection exists.
TEST_F(CudaIpc, ClosesDeregisteredMemory) {
  open();
  // Everything that is made once is there after this.
  {
    const auto from = source(Memory::kVirtual);
    const auto to = destination(Memory::kAllocator);
    ASSERT_TRUE(exchange(*from, *to, kLarge));
  }
  const auto to = destination(Memory::kAllocator);
  std::unique_ptr<Request> idle;
  const ReceiveBuffer buffer{to->data(), 1, 7, to->registration()};
  idle = receiver_->receive({&buffer, 1});
  const auto poll = [&] { return !idle->test(); };
  // `to`, a pattern and the same opened, what it is copied to, and each GPU's own for first copies.
  constexpr int kKept = 6;
  wait_for("closing", [&] { return poll() && stand_in_.ranges() == kKept; });
  for (int i = 0; i < 3; ++i) {
    {
      const auto from = source(Memory::kVirtual);
      ASSERT_TRUE(exchange(*from, *to, 100'000));
      EXPECT_EQ(stand_in_.ranges(), kKept + 2);  // its memory, and the same opened
    }
    wait_for("closing", [&] { return poll() && stand_in_.ranges() == kKept; });
  }
}

TEST_F(CudaIpc, LeavesNothingOpen) {
  for (const Memory memory : {Memory::kVirtual, Memory::kAllocator}) {
    open();
    {
      const auto from = source(memory);
      const auto to = destination(memory);
      ASSERT_TRUE(exchange(*from, *to, kLarge));
      EXPECT_GT(stand_in_.ranges(), 2);
    }
    close();
    EXPECT_EQ(stand_in_.ranges(), 0);
  }
}

TEST_F(CudaIpc, MemoryOfSeveralAllocationsIsOne) {
  open();
  // Two allocations side by side, as expandable segments have them.
  Gpu& gpu = gpus_.gpus.at(0);
  const CurrentContext current(gpus_.cuda, gpu.context());
  CuAllocationProperties properties;
  properties.type = kCuAllocationPinned;
  properties.handle_types = kCuHandleFileDescriptor;
  properties.location = {kCuLocationDevice, 0};
  constexpr std::size_t kEach = std::size_t{2} << 20;
  CuPointer base = 0;
  ASSERT_EQ(gpus_.cuda.reserve_addresses(&base, 3 * kEach, 0, 0, 0), kCuSuccess);
  for (std::size_t i = 0; i < 3; ++i) {
    CuAllocation allocation = 0;
    ASSERT_EQ(gpus_.cuda.create_allocation(&allocation, kEach, &properties, 0), kCuSuccess);
    ASSERT_EQ(gpus_.cuda.map(base + i * kEach, kEach, 0, allocation, 0), kCuSuccess);
    ASSERT_EQ(gpus_.cuda.release_allocation(allocation), kCuSuccess);
  }
  const CuAccess access{properties.location, kCuAccessReadWrite};
  ASSERT_EQ(gpus_.cuda.set_access(base, 3 * kEach, &access, 1), kCuSuccess);
  const std::size_t bytes = 2 * kEach + 1000;
  void* data = reinterpret_cast<void*>(base + 500);
  {
    const auto registration = sender_->register_memory(data, bytes, MemoryKind::kCuda);
    const auto to = destination(Memory::kAllocator);
    const std::vector<char> out = numbered(bytes, 3);
    std::vector<char> in(bytes);
    gpu.fill(base + 500, out.data(), bytes);
    to->fill(in.data(), bytes);
    const ReceiveBuffer buffer{to->data(), bytes, 0, to->registration()};
    const auto receive = receiver_->receive({&buffer, 1});
    finish(data, bytes, registration.get(), *receive);
    to->fetch(in.data(), bytes);
    EXPECT_EQ(in, out);
    const std::string words =
        message_of([&] { (void)sender_->register_memory(data, 3 * kEach, MemoryKind::kCuda); },
                   Errc::kInvalidArgument);
    EXPECT_NE(words.find("are allocated"), std::string::npos) << words;
  }
  close();
  for (std::size_t i = 0; i < 3; ++i) gpus_.cuda.unmap(base + i * kEach, kEach);
  gpus_.cuda.free_addresses(base, 3 * kEach);
}

// ---- refused input -----------------------------------------------------------------------

TEST_F(CudaIpc, RefusesOtherThanGpuMemory) {
  open();
  std::vector<char> host(100);
  message_of([&] { (void)sender_->register_memory(host.data(), 100, MemoryKind::kCuda); },
             Errc::kInvalidArgument);
  message_of([&] { (void)sender_->register_memory(nullptr, 100, MemoryKind::kCuda); },
             Errc::kInvalidArgument);
  const auto buffer = source(Memory::kAllocator, 4096);
  message_of(
      [&] {
        (void)sender_->register_memory(buffer->data(), std::size_t{1} << 30, MemoryKind::kCuda);
      },
      Errc::kInvalidArgument);
}

TEST_F(CudaIpc, RefusesMessagesOutsideTheRegistration) {
  open();
  const auto from = source(Memory::kAllocator, 4096);
  const auto to = destination(Memory::kAllocator, 4096);
  const std::string words =
      message_of([&] { (void)sender_->send(from->data(), 8192, 0, from->registration()); },
                 Errc::kInvalidArgument);
  EXPECT_NE(words.find("8192 bytes"), std::string::npos) << words;
  for (std::byte* data : {to->data() + 4000, to->data() - 1000}) {
    const ReceiveBuffer buffer{data, 2000, 0, to->registration()};
    message_of([&] { (void)receiver_->receive({&buffer, 1}); }, Errc::kInvalidArgument);
  }
  EXPECT_TRUE(exchange(*from, *to, 4096));  // bad arguments end nothing
}

TEST_F(CudaIpc, HandlesAreItsOwn) {
  open();
  Config config;
  const auto shm = make_shm_transport(config);
  const auto host = shm->listen(0);
  const auto cuda = transport_->listen(0);
  message_of([&] { (void)transport_->connect(0, host->handle()); }, Errc::kInvalidArgument);
  message_of([&] { (void)shm->connect(0, cuda->handle()); }, Errc::kInvalidArgument);
}

// ---- faults --------------------------------------------------------------------------------

struct Fault {
  const char* name;
  Memory memory;
  const char* at_registration;
  const char* at_first_message;
};

class Replaced : public CudaIpc, public ::testing::WithParamInterface<Fault> {};

// Pulling fails at different points; messages still arrive.
TEST_P(Replaced, ByStaging) {
  for (const char* verify : {"connect", "all"}) {
    open({{"VERIFY", verify}});
    stand_in_.configure(GetParam().at_registration);
    const auto from = source(GetParam().memory);
    stand_in_.configure("");
    const auto to = destination(Memory::kAllocator);
    EXPECT_TRUE(exchange(*from, *to, kLarge, GetParam().at_first_message));
    EXPECT_TRUE(exchange(*from, *to, 10));
    // So do those from other memory of the kind.
    const auto another = source(GetParam().memory);
    EXPECT_TRUE(exchange(*another, *to, kLarge, GetParam().at_first_message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Faults, Replaced,
    ::testing::Values(
        Fault{"NothingMoves", Memory::kAllocator, "", "lose=dtod"},
        Fault{"NothingMovesVirtual", Memory::kVirtual, "", "lose=dtod"},
        Fault{"NoHandle", Memory::kAllocator, "refuse=cuIpcGetMemHandle:1", ""},
        Fault{"NoDescriptor", Memory::kVirtual, "refuse=cuMemExportToShareableHandle:800", ""},
        Fault{"NoImport", Memory::kVirtual, "", "refuse=cuMemImportFromShareableHandle:801"},
        Fault{"NoAddresses", Memory::kVirtual, "", "refuse=cuMemAddressReserve:2"},
        Fault{"NoMapping", Memory::kVirtual, "", "refuse=cuMemMap:2"},
        Fault{"NoPeerAccess", Memory::kVirtual, "", "no_peer"}),
    [](const auto& of) { return of.param.name; });

TEST_F(CudaIpc, PullsWhereStagingFails) {
  open();
  const auto from = source(Memory::kVirtual);
  const auto to = destination(Memory::kAllocator);
  EXPECT_TRUE(exchange(*from, *to, kLarge, "refuse=cuMemHostRegister_v2:800"));
  EXPECT_TRUE(exchange(*from, *to, 1));
}

TEST_F(CudaIpc, FailsByNameWhenNothingWorks) {
  for (const char* faults : {"lose=dtoh", "no_peer,refuse=cuMemHostRegister_v2:800"}) {
    open();
    const std::string words = failure(Memory::kVirtual, Memory::kAllocator, faults);
    EXPECT_NE(words.find("verification of device memory failed: staged: "), std::string::npos)
        << faults << ": " << words;
    EXPECT_NE(words.find("; pulled: "), std::string::npos) << faults << ": " << words;
  }
}

TEST_F(CudaIpc, FailsByNameWhereOnlyStagingIsPossible) {
  for (const char* faults : {"lose=htod", "refuse=cuMemcpyHtoDAsync_v2:1"}) {
    open();
    const auto to = destination(Memory::kAllocator);
    const std::vector<char> out(1000);
    stand_in_.configure(faults);
    const ReceiveBuffer buffer{to->data(), out.size(), 0, to->registration()};
    const auto receive = receiver_->receive({&buffer, 1});
    const std::string words =
        message_of([&] { finish(out.data(), out.size(), nullptr, *receive); }, Errc::kSystem);
    stand_in_.configure("");
    EXPECT_NE(words.find("verification of device memory failed: staged: "), std::string::npos)
        << faults << ": " << words;
  }
}

TEST_F(CudaIpc, WithoutVerificationNothingIsFound) {
  open({{"VERIFY", "off"}});
  const auto from = source(Memory::kVirtual);
  const auto to = destination(Memory::kAllocator);
  EXPECT_FALSE(exchange(*from, *to, kLarge, "lose=dtod"));  // this is what the setting gives up
}

TEST_F(CudaIpc, ChecksumsFindFaultsThatThePatternDidNot) {
  open({{"VERIFY", "all"}});
  {
    const auto from = source(Memory::kVirtual);
    const auto to = destination(Memory::kAllocator);
    ASSERT_TRUE(exchange(*from, *to, 1000));
  }
  const std::string words = failure(Memory::kVirtual, Memory::kAllocator, "lose=dtod");
  EXPECT_NE(words.find("wrong checksum"), std::string::npos) << words;
}

TEST_F(CudaIpc, ACopyThatFailsLaterEndsTheConnection) {
  for (const char* gpus : {"", "no_marks,"}) {
    EXPECT_TRUE(breaks(gpus, "fail=2", "CUDA_ERROR_ILLEGAL_ADDRESS")) << gpus;
  }
}

TEST_F(CudaIpc, ACopyThatStandsStillEndsTheConnection) {
  for (const char* gpus : {"", "no_marks,"}) {
    EXPECT_TRUE(breaks(gpus, "delay_us=1500000", "has not ended for 0.2 s")) << gpus;
  }
}

TEST_F(CudaIpc, CompletesByEventsToo) {
  const int status = in_child([&] {
    stand_in_.restart();
    setenv("RW_STAND_IN_CUDA", "no_marks,delay_us=50", 1);
    TestGpus gpus(RW_STAND_IN_CUDA);
    open();
    GuardedBuffer from(gpus.gpus.at(0), kLarge, Memory::kVirtual, *sender_);
    GuardedBuffer to(gpus.gpus.at(0), kLarge, Memory::kAllocator, *receiver_);
    for (const std::size_t bytes : {1UL, 100'000UL, kLarge}) {
      if (!exchange(from, to, bytes, "no_marks,delay_us=50")) return 1;
    }
    return 0;
  });
  EXPECT_EQ(status, 0);
}

TEST_F(CudaIpc, SlowCopiesEndBeforeTheirMemoryGoes) {
  for (const Memory memory : {Memory::kAllocator, Memory::kVirtual}) {
    open();
    auto from = source(memory);
    auto to = destination(memory);
    ASSERT_TRUE(exchange(*from, *to, kLarge));
    stand_in_.configure("delay_us=20000");
    const ReceiveBuffer buffer{to->data(), kLarge, 0, to->registration()};
    auto receive = receiver_->receive({&buffer, 1});
    std::unique_ptr<Request> send;
    while (!send) send = sender_->send(from->data(), kLarge, 0, from->registration());
    for (int i = 0; i < 3; ++i) {
      EXPECT_FALSE(receive->test());
      EXPECT_FALSE(send->test());
    }
    // Copies are in progress. The sanitizers detect any access after this.
    if (memory == Memory::kVirtual) {
      send.reset();
      from.reset();
      receive.reset();
      to.reset();
    } else {
      receive.reset();
      to.reset();
      send.reset();
      from.reset();
    }
    close();
    stand_in_.configure("");
  }
}

// ---- several processes ---------------------------------------------------------------------

// A sender in a child process: its messages are all letters 'm', from memory of the first GPU that
// it sees. The child ends when the socket does.
int send_from_child(int socket, const char* visible, Memory memory) {
  StandIn().restart();
  if (visible != nullptr) setenv("CUDA_VISIBLE_DEVICES", visible, 1);
  TestGpus gpus(RW_STAND_IN_CUDA);
  Config config;
  config.set("CUDA_LIBRARY", RW_STAND_IN_CUDA, "test");
  const auto transport = make_cuda_ipc_transport(config);
  Handle handle{};
  if (read(socket, handle.data(), handle.size()) != kHandleBytes) return 1;
  const auto sender = transport->connect(0, handle)->poll();
  GuardedBuffer buffer(gpus.gpus.at(0), kLarge, memory, *sender);
  const std::vector<char> out(kLarge, 'm');
  buffer.fill(out.data(), out.size());
  for (;;) {
    std::unique_ptr<Request> send;
    wait_for("receiver", [&] {
      if (!send) send = sender->send(buffer.data(), kLarge, 0, buffer.registration());
      return send && send->test();
    });
  }
}

class OtherProcess : public CudaIpc {
 protected:
  // Starts a child; this process receives from it.
  void start(const char* visible, Memory memory) {
    close();
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    child_ = fork();
    if (child_ == 0) {
      try {
        send_from_child(ends[1], visible, memory);
      } catch (const std::exception& error) {
        fprintf(stderr, "child: %s\n", error.what());
      }
      _exit(0);
    }
    ::close(ends[1]);
    Config config;
    config.set("CUDA_LIBRARY", RW_STAND_IN_CUDA, "test");
    transport_ = make_cuda_ipc_transport(config);
    const auto listener = transport_->listen(0);
    ASSERT_EQ(write(ends[0], listener->handle().data(), kHandleBytes), kHandleBytes);
    ::close(ends[0]);
    wait_for("accept", [&] { return (receiver_ = listener->accept()) != nullptr; });
  }
  ~OtherProcess() override {
    if (child_ > 0) end_child();
  }
  void end_child() {
    kill(child_, SIGKILL);
    waitpid(std::exchange(child_, -1), nullptr, 0);
  }
  bool receive_one(GuardedBuffer& to) {
    std::vector<char> in(kLarge, 'x');
    to.fill(in.data(), in.size());
    const ReceiveBuffer buffer{to.data(), kLarge, 0, to.registration()};
    const auto receive = receiver_->receive({&buffer, 1});
    wait_for("message", [&] { return receive->test().has_value(); });
    to.fetch(in.data(), in.size());
    return in == std::vector<char>(kLarge, 'm');
  }
  pid_t child_ = -1;
};

struct OtherCase {
  const char* name;
  Memory memory;
  int gpu;  // of this process
  const char* faults;
};

class OtherNumbers : public OtherProcess, public ::testing::WithParamInterface<OtherCase> {};

// The child's first GPU is the second one here: the messages come from there, and to either.
TEST_P(OtherNumbers, AndFaults) {
  start("1", GetParam().memory);
  const auto to = std::make_unique<GuardedBuffer>(gpus_.gpus.at(GetParam().gpu), kLarge,
                                                  Memory::kAllocator, *receiver_);
  stand_in_.configure(GetParam().faults);
  EXPECT_TRUE(receive_one(*to));
  EXPECT_TRUE(receive_one(*to));
  stand_in_.configure("");
}

INSTANTIATE_TEST_SUITE_P(
    Gpus, OtherNumbers,
    ::testing::Values(OtherCase{"OtherGpu", Memory::kAllocator, 0, ""},
                      OtherCase{"SameGpu", Memory::kAllocator, 1, ""},
                      OtherCase{"OtherGpuVirtual", Memory::kVirtual, 0, ""},
                      OtherCase{"SameGpuVirtual", Memory::kVirtual, 1, ""},
                      OtherCase{"CannotOpen", Memory::kAllocator, 0,
                                "refuse=cuIpcOpenMemHandle_v2:2"},
                      OtherCase{"NoPeerAccess", Memory::kAllocator, 0, "no_peer"},
                      OtherCase{"NothingMoves", Memory::kAllocator, 0, "lose=dtod"}),
    [](const auto& of) { return of.param.name; });

// What is opened is copied from at once, and that may fail.
TEST_F(CudaIpc, WhatFailsAfterItIsOpenIsClosed) {
  const testing::IpcOwner owner(1);
  const auto handles = [&] { return stand_in_.held().find(" 0 IPC handles") == std::string::npos; };
  OfferedMemory offer;
  offer.constant = true;
  offer.bytes = testing::IpcOwner::kBytes;
  offer.segments.resize(1);
  offer.segments[0].handle = owner.handle();
  gpus_.gpus.at(0).warm_up();
  stand_in_.configure("refuse=cuMemcpyDtoDAsync_v2:1");
  message_of([&] { const OpenedMemory none(gpus_.gpus, gpus_.gpus.at(0), offer, false); },
             Errc::kCuda);
  EXPECT_FALSE(handles()) << stand_in_.held();
  stand_in_.configure("");
  {
    // Two registrations in one allocation have two openings of one handle.
    stand_in_.configure("ipc_uncounted");
    const OpenedMemory first(gpus_.gpus, gpus_.gpus.at(0), offer, false);
    offer.offset = 1000;
    {
      const OpenedMemory second(gpus_.gpus, gpus_.gpus.at(0), offer, false);
      EXPECT_EQ(second.data(), first.data() + 1000);
    }
    std::vector<char> seen(testing::IpcOwner::kBytes);
    gpus_.gpus.at(0).fetch(seen.data(), first.data(), seen.size());
    EXPECT_EQ(seen, numbered(seen.size(), 0));
  }
  EXPECT_FALSE(handles()) << stand_in_.held();
}

class Killed : public OtherProcess, public ::testing::WithParamInterface<Memory> {};

TEST_P(Killed, ItsMemoryIsClosed) {
  start(nullptr, GetParam());
  auto to = destination(Memory::kAllocator);
  ASSERT_TRUE(receive_one(*to));
  end_child();
  message_of(
      [&] {
        for (;;) (void)receive_one(*to);
      },
      Errc::kPeerLost);
  to.reset();
  close();
  EXPECT_EQ(stand_in_.ranges(), 0);
}

INSTANTIATE_TEST_SUITE_P(Peers, Killed, ::testing::Values(Memory::kAllocator, Memory::kVirtual),
                         [](const auto& of) {
                           return of.param == Memory::kVirtual ? "Virtual" : "Allocator";
                         });

}  // namespace
}  // namespace ropewalk::transport::window
