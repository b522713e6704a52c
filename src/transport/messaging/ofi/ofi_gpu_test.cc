// GPU memory over libfabric, on stand-ins for libfabric (tests/stand_ins/libfabric.cc) and CUDA:
// what each refusal, failure and lie leads to. The contract suite (contract_test.cc) has the rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/testing/in_child.h"
#include "transport/messaging/ofi/ofi.h"
#include "transport/messaging/ofi/testing/stand_in.h"
#include "transport/messaging/ofi/wire.h"
#include "transport/messaging/testing/gpu_connection.h"
#include "transport/window/device/exported_memory.h"
#include "transport/window/device/gpu_memory.h"

#ifdef RW_STAND_IN_LIBFABRIC

namespace ropewalk::transport::ofi {
namespace {

using ropewalk::testing::message_of;
using ropewalk::transport::messaging::testing::GuardedBuffer;
using ropewalk::transport::messaging::testing::Memory;
using ropewalk::transport::messaging::testing::numbered;
using ::testing::HasSubstr;
using ::testing::Not;
using Settings = std::vector<std::pair<const char*, std::string>>;
using Sizes = std::vector<std::size_t>;

constexpr unsigned kHostAlone = static_cast<unsigned>(MemoryKind::kHost);
constexpr unsigned kWithGpus = kHostAlone | static_cast<unsigned>(MemoryKind::kCuda);
constexpr unsigned kWithDmaBuf = kWithGpus | static_cast<unsigned>(MemoryKind::kDmaBuf);

class OfiGpu : public ::testing::Test, protected messaging::testing::GpuConnection {
 protected:
  OfiGpu() { cuda_.configure(""); }
  ~OfiGpu() override {
    close();
    fabric_.configure("");
    cuda_.configure("");
  }
  OfiGpu(const OfiGpu&) = delete;
  OfiGpu& operator=(const OfiGpu&) = delete;
  // @param fabric what the stand-in is like
  void open(const std::string& fabric = "", const Settings& settings = {}) {
    close();
    fabric_.configure(fabric);
    Config config = over_stand_ins();
    for (const auto& [name, value] : settings) config.set(name, value, "test");
    transport_ = make_transport(config);
    ASSERT_EQ(transport_->num_devices(), 1);
  }
  void connect(const std::string& fabric = "", const Settings& settings = {}) {
    open(fabric, settings);
    GpuConnection::connect(std::move(transport_));
  }
  [[nodiscard]] std::string why_not() const { return summary(*transport_).gpu_memory.at(0); }

  Hearing hearing_;
  StandInFabric fabric_;
  window::testing::StandIn cuda_;
};

// ---- what a device claims ----------------------------------------------------------------------

TEST_F(OfiGpu, IsTakenWhereCudaIsForbidden) {
  const long forbidden = fabric_.count("cuda_forbidden");
  open();
  EXPECT_EQ(kinds(), kWithDmaBuf);
  EXPECT_EQ(fabric_.count("cuda_forbidden"), forbidden + 1);
  EXPECT_EQ(lines_with("GPU memory is taken"), 1);
}

TEST_F(OfiGpu, NoContextIsMadeForATrial) {
  const long before = fabric_.count("address");
  open();
  EXPECT_EQ(fabric_.count("address"), before);
  EXPECT_EQ(cuda_.ranges(), 0);
}

TEST_F(OfiGpu, EachGpuInUseIsTried) {
  (void)gpus();
  const long before = fabric_.count("address");
  open();
  EXPECT_EQ(kinds(), kWithDmaBuf);
  EXPECT_EQ(fabric_.count("address"), before + 2);
  EXPECT_EQ(fabric_.count("open"), 0);
}

// Also where each connection has an endpoint of its own.
TEST_F(OfiGpu, AGpuIsTriedOnceForEachDevice) {
  const long before = fabric_.count("address");
  connect("", {{"OFI_ENDPOINTS", "separate"}});
  const auto from = source(4096);
  EXPECT_EQ(fabric_.count("address"), before + 2);
  const auto to =
      std::make_unique<GuardedBuffer>(gpus().gpus.at(0), 4096, Memory::kAllocator, *receiver_);
  EXPECT_EQ(fabric_.count("address"), before + 3);
  EXPECT_TRUE(exchange(*from, *to, 4096));
}

TEST_F(OfiGpu, ThePromiseNotToCallCudaDecides) {
  constexpr const char* kUnsupported = "cuda_option=95";
  open(kUnsupported);
  EXPECT_EQ(kinds(), kHostAlone);
  EXPECT_THAT(why_not(), HasSubstr("FI_OPT_CUDA_API_PERMITTED=false: Operation not supported"));
  EXPECT_EQ(lines_with("host memory only"), 1);
  // Libfabric was built without CUDA.
  open("cuda_option=22");
  EXPECT_EQ(kinds(), kHostAlone);
  // Another way than the NIC's is no matter, if CUDA is not called.
  open("p2p_option=95");
  EXPECT_EQ(kinds(), kWithDmaBuf);
  // A provider that knows no promise, but moves nothing without its NIC.
  open("cuda_option=92");
  EXPECT_EQ(kinds(), kWithDmaBuf);
  open("cuda_option=92,p2p_option=92");
  EXPECT_EQ(kinds(), kHostAlone);
  EXPECT_THAT(why_not(), HasSubstr("FI_OPT_FI_HMEM_P2P=required: Protocol not available"));
}

TEST_F(OfiGpu, OlderLibfabric) {
  open("version=1.17");
  EXPECT_EQ(kinds(), kWithGpus);
  open("version=1.17,p2p_option=92");
  EXPECT_EQ(kinds(), kHostAlone);
  EXPECT_THAT(why_not(), HasSubstr("libfabric 1.17 has no such option"));
  connect("version=1.17,address=22");
  const std::string words = message_of([&] { (void)source(100); }, Errc::kSystem);
  EXPECT_THAT(words, HasSubstr("by dma-buf: libfabric 1.17 cannot, 1.20 and later can"));
}

TEST_F(OfiGpu, WhyItIsNotTaken) {
  open("no_hmem");
  EXPECT_EQ(kinds(), kHostAlone);
  EXPECT_THAT(why_not(), HasSubstr("it does not offer GPU memory (FI_HMEM): fi_getinfo: No data"));
  open("no_read");
  EXPECT_EQ(kinds(), kHostAlone);
  EXPECT_THAT(why_not(), HasSubstr("without RMA reads"));
  open("domain=12");
  EXPECT_EQ(kinds(), kHostAlone);
  EXPECT_THAT(why_not(), HasSubstr("fi_domain"));
  open("", {{"OFI_GPU_MEMORY", "off"}});
  EXPECT_EQ(kinds(), kHostAlone);
  EXPECT_THAT(why_not(), HasSubstr("OFI_GPU_MEMORY=off"));
  open("", {{"CUDA_LIBRARY", "libnone.so"}});
  EXPECT_EQ(kinds(), kHostAlone);
  EXPECT_THAT(why_not(), HasSubstr("no CUDA"));
  cuda_.configure("lazy");
  open("", {{"VERIFY", "all"}});
  EXPECT_EQ(kinds(), kHostAlone);
  EXPECT_THAT(why_not(), HasSubstr("CUDA_MODULE_LOADING=EAGER"));
  open();
  EXPECT_EQ(kinds(), kWithDmaBuf);
}

TEST_F(OfiGpu, HostMemoryGoesWhereGpuMemoryDoesNot) {
  (void)gpus();
  for (const char* fabric :
       {"no_hmem", "domain=12", "cuda_option=95", "lose", "address=22,dma_buf=22"}) {
    SCOPED_TRACE(fabric);
    connect(fabric);
    EXPECT_EQ(kinds(), kHostAlone);
    for (const std::size_t bytes : Sizes{0, 1, kEagerBytes, kEagerBytes + 1, 500'000})
      EXPECT_TRUE(exchange_host(bytes));
    EXPECT_THAT(message_of([&] { (void)source(100); }, Errc::kInvalidArgument),
                HasSubstr("takes host memory only: "));
  }
}

// ---- a provider that lies -----------------------------------------------------------------------

TEST_F(OfiGpu, AFailedPatternOfAGpuInUseMeansHostMemoryOnly) {
  (void)gpus();
  open("lose");
  EXPECT_EQ(kinds(), kHostAlone);
  EXPECT_THAT(why_not(), HasSubstr("an RMA write to it reports success, but the pattern is not in "
                                   "the GPU's memory"));
  EXPECT_EQ(lines_with("host memory only"), 1);
  EXPECT_EQ(fabric_.count("open"), 0);
}

TEST_F(OfiGpu, AFailedPatternOfAnotherGpuRefusesItsMemory) {
  connect();
  EXPECT_EQ(kinds(), kWithDmaBuf);
  fabric_.configure("lose");
  for (int round = 0; round < 2; ++round) {
    EXPECT_THAT(message_of([&] { (void)source(100); }, Errc::kSystem),
                ::testing::AllOf(HasSubstr("memory of GPU 0"), HasSubstr("OFI_GPU_MEMORY=off")));
  }
  EXPECT_TRUE(exchange_host(100'000));
  // The other is tried for itself.
  fabric_.configure("");
  EXPECT_NO_THROW((void)target(100));
  EXPECT_THROW((void)source(100), Error);
}

TEST_F(OfiGpu, AFailureOfEachOperationOfATrialIsNamed) {
  (void)gpus();
  open("fail_read=5");
  EXPECT_EQ(kinds(), kHostAlone);
  EXPECT_THAT(why_not(), HasSubstr("an RMA read of it: fi_read: Input/output error"));
  open("fail_copy=5");
  EXPECT_EQ(kinds(), kHostAlone);
  EXPECT_THAT(why_not(), HasSubstr("an RMA read into it: fi_read: Input/output error"));
  // Asked for by VERIFY.
  open("lose", {{"VERIFY", "off"}});
  EXPECT_EQ(kinds(), kWithDmaBuf);
}

// ---- registration -------------------------------------------------------------------------------

TEST_F(OfiGpu, RefusedByAddressItIsRegisteredByDmaBuf) {
  const long before = fabric_.count("dma_buf");
  connect("address=22");
  const auto from = source(300'000);
  const auto to = target(300'000, Memory::kVirtual);
  // One of each GPU's trial, and these.
  EXPECT_EQ(fabric_.count("dma_buf"), before + 4);
  EXPECT_EQ(lines_with("is registered by dma-buf"), 2);
  for (const std::size_t bytes : Sizes{1, 8192, 300'000}) EXPECT_TRUE(exchange(*from, *to, bytes));
}

// The provider takes the address, and moves nothing.
TEST_F(OfiGpu, WrongByAddressItIsRegisteredByDmaBuf) {
  (void)gpus();
  connect("lose_address");
  EXPECT_EQ(kinds(), kWithDmaBuf);
  const auto from = source(300'000);
  const auto to = target(300'000);
  for (const std::size_t bytes : Sizes{1, 8192, 300'000}) EXPECT_TRUE(exchange(*from, *to, bytes));
}

// A descriptor that is given is worth no more than what comes of it.
TEST_F(OfiGpu, WrongByDmaBufItIsRegisteredByAddress) {
  connect("lose_dma_buf");
  window::Gpu& gpu = gpus().gpus.at(0);
  constexpr std::size_t kBytes = 100'000;
  const window::DeviceBuffer memory(gpu, 1 << 20, window::DeviceBuffer::From::kAllocator);
  const window::ExportedMemory exported(
      window::find_gpu_memory(gpus().gpus, memory.pointer(), kBytes));
  const DmaBuf given = exported.buffer();
  const auto from = sender_->register_dma_buf(memory.pointer(), kBytes, given);
  EXPECT_EQ(lines_with("is registered by address; by dma-buf: an RMA write to it reports"), 1);
  const std::vector<char> out = numbered(kBytes, 4);
  gpu.fill(memory.data(), out.data(), kBytes);
  std::vector<char> in(kBytes);
  move(memory.pointer(), from.get(), in.data(), nullptr, kBytes, true);
  EXPECT_EQ(in, out);
}

TEST_F(OfiGpu, RefusedBothWaysTheErrorNamesBoth) {
  connect("address=22,dma_buf=95");
  const std::string words = message_of([&] { (void)source(100); }, Errc::kSystem);
  EXPECT_THAT(words, HasSubstr("by address: fi_mr_regattr: Invalid argument"));
  EXPECT_THAT(words, HasSubstr("by dma-buf: fi_mr_regattr: Operation not supported"));
  EXPECT_TRUE(exchange_host(100'000));
}

TEST_F(OfiGpu, WithoutADescriptorOfCudaTheErrorSaysSo) {
  connect("address=22");
  cuda_.configure("refuse=cuMemGetHandleForAddressRange:801");
  EXPECT_THAT(message_of([&] { (void)source(100); }, Errc::kSystem),
              HasSubstr("by dma-buf: cuMemGetHandleForAddressRange: CUDA_ERROR_STAND_IN"));
}

TEST_F(OfiGpu, ADescriptorThatIsGivenIsUsed) {
  for (const bool refused : {false, true}) {
    connect(refused ? "dma_buf=22" : "");
    window::Gpu& gpu = gpus().gpus.at(0);
    constexpr std::size_t kBytes = 100'000;
    constexpr std::size_t kInto = 4096 + 123;
    window::DeviceBuffer memory(gpu, 1 << 20, window::DeviceBuffer::From::kAllocator);
    std::byte* const data = static_cast<std::byte*>(memory.pointer()) + kInto;
    const window::ExportedMemory exported(window::find_gpu_memory(gpus().gpus, data, kBytes));
    const DmaBuf given = exported.buffer();
    EXPECT_EQ(given.offset, 123U);
    const long by_dma_buf = fabric_.count("dma_buf");
    const long by_address = fabric_.count("address");
    const auto from = sender_->register_dma_buf(data, kBytes, given);
    EXPECT_EQ(from->kind(), MemoryKind::kCuda);
    // With a trial of that way; that by address was made when the transport was, once the GPU was
    // in use.
    EXPECT_EQ(fabric_.count("dma_buf"), by_dma_buf + (refused ? 0 : 2));
    EXPECT_EQ(fabric_.count("address"), by_address + (refused ? 1 : 0));
    const std::vector<char> out = numbered(kBytes, 4);
    gpu.fill(reinterpret_cast<window::CuPointer>(data), out.data(), kBytes);
    std::vector<char> in(kBytes);
    move(data, from.get(), in.data(), nullptr, kBytes, true);
    EXPECT_EQ(in, out);
  }
}

TEST_F(OfiGpu, RegistrationsAreCountedAndReleased) {
  connect();
  const auto from = source(100'000);
  const auto to = target(100'000);
  const long open_before = fabric_.count("open");
  {
    // The same memory again, and a part of it.
    std::vector<std::unique_ptr<Registration>> again;
    for (int i = 0; i < 3; ++i) {
      again.push_back(sender_->register_memory(from->data(), 100'000, MemoryKind::kCuda));
      again.push_back(receiver_->register_memory(to->data(), 50'000, MemoryKind::kCuda));
    }
    EXPECT_EQ(fabric_.count("open"), open_before + 6);
    const std::vector<char> out = numbered(50'000, 9);
    from->fill(out.data(), out.size());
    // The part in use moves.
    const auto last = sender_->register_memory(from->data(), 50'000, MemoryKind::kCuda);
    const auto into = receiver_->register_memory(to->data(), 50'000, MemoryKind::kCuda);
    move(from->data(), last.get(), to->data(), into.get(), out.size(), true);
    std::vector<char> in(out.size());
    to->fetch(in.data(), in.size());
    EXPECT_EQ(in, out);
  }
  EXPECT_EQ(fabric_.count("open"), open_before);
  EXPECT_TRUE(exchange(*from, *to, 100'000));
}

TEST_F(OfiGpu, MemoryMayBeFreedBeforeItsRegistrationEnds) {
  connect();
  window::Gpu& gpu = gpus().gpus.at(0);
  constexpr std::size_t kBytes = 1 << 20;
  auto freed =
      std::make_unique<window::DeviceBuffer>(gpu, kBytes, window::DeviceBuffer::From::kAllocator);
  void* const data = freed->pointer();
  auto stale = sender_->register_memory(data, kBytes, MemoryKind::kCuda);
  const long open_now = fabric_.count("open");
  freed.reset();
  // A NIC sends what was there; nothing of what is elsewhere.
  std::vector<char> in(kBytes, 'x');
  move(data, stale.get(), in.data(), nullptr, kBytes, true);
  EXPECT_EQ(in, std::vector<char>(kBytes, 0));
  EXPECT_THAT(message_of([&] { (void)sender_->register_memory(data, kBytes, MemoryKind::kCuda); },
                         Errc::kInvalidArgument),
              HasSubstr("this is not GPU memory"));
  // New memory, at the same address or not, is what messages from it are read from.
  const window::DeviceBuffer fresh(gpu, kBytes, window::DeviceBuffer::From::kAllocator);
  const std::vector<char> out = numbered(kBytes, 2);
  gpu.fill(fresh.data(), out.data(), kBytes);
  const auto registered = sender_->register_memory(fresh.pointer(), kBytes, MemoryKind::kCuda);
  move(fresh.pointer(), registered.get(), in.data(), nullptr, kBytes, true);
  EXPECT_EQ(in, out);
  stale.reset();
  EXPECT_EQ(fabric_.count("open"), open_now);
}

TEST_F(OfiGpu, WhatIsNoGpuMemoryIsRefused) {
  connect();
  std::vector<char> host(100);
  EXPECT_THAT(
      message_of([&] { (void)sender_->register_memory(host.data(), 100, MemoryKind::kCuda); },
                 Errc::kInvalidArgument),
      HasSubstr("this is not GPU memory"));
  EXPECT_THAT(message_of([&] { (void)receiver_->register_memory(nullptr, 100, MemoryKind::kCuda); },
                         Errc::kInvalidArgument),
              HasSubstr("null pointer"));
  EXPECT_THROW((void)sender_->register_memory(host.data(), 100, MemoryKind::kDmaBuf), Error);
}

TEST_F(OfiGpu, OutsideOfTheRegistrationIsRefused) {
  connect();
  const auto from = source(4096);
  const auto to = target(4096);
  const auto part = sender_->register_memory(from->data(), 100, MemoryKind::kCuda);
  const auto room = receiver_->register_memory(to->data(), 100, MemoryKind::kCuda);
  (void)message_of([&] { (void)sender_->send(from->data(), 101, 0, part.get()); },
                   Errc::kInvalidArgument);
  (void)message_of([&] { (void)sender_->send(from->data() - 1, 10, 0, part.get()); },
                   Errc::kInvalidArgument);
  const ReceiveBuffer beyond{to->data() + 50, 51, 0, room.get()};
  (void)message_of([&] { (void)receiver_->receive({&beyond, 1}); }, Errc::kInvalidArgument);
  EXPECT_TRUE(exchange(*from, *to, 4096));
}

// ---- messages -----------------------------------------------------------------------------------

struct MessagePath {
  const char* label;
  const char* fabric;
  Settings settings;
};

class OfiGpuPaths : public OfiGpu, public ::testing::WithParamInterface<MessagePath> {};

// No call has GPU memory without its registration, and the CPU touches none: it would end here.
TEST_P(OfiGpuPaths, AllSizesBothOrdersAllKinds) {
  const long refused = fabric_.count("refused");
  connect(GetParam().fabric, GetParam().settings);
  const auto from = source(200'000, Memory::kVirtual);
  const auto to = target(200'000);
  for (const std::size_t bytes :
       Sizes{0, 1, 8, 1000, kEagerBytes, kEagerBytes + 1, 65'543, 200'000}) {
    for (const bool receive_first : {true, false}) {
      SCOPED_TRACE(fmt::format("{} bytes, {}", bytes, receive_first));
      EXPECT_TRUE(exchange(*from, *to, bytes, receive_first));
      EXPECT_TRUE(exchange_to_gpu(*to, bytes, receive_first));
      EXPECT_TRUE(exchange_from_gpu(*from, bytes, receive_first));
      EXPECT_TRUE(exchange_host(bytes));
    }
  }
  EXPECT_EQ(fabric_.count("refused"), refused);
}

INSTANTIATE_TEST_SUITE_P(
    , OfiGpuPaths,
    ::testing::Values(MessagePath{"Written", "", {}},
                      MessagePath{"Tagged", "", {{"OFI_LARGE", "tagged"}}},
                      MessagePath{"RegisteredHostMemory", "local", {}},
                      MessagePath{"TaggedRegisteredHostMemory", "local", {{"OFI_LARGE", "tagged"}}},
                      MessagePath{"Checksums", "", {{"VERIFY", "all"}}},
                      MessagePath{"Unverified", "", {{"VERIFY", "off"}}},
                      MessagePath{"Separate", "", {{"OFI_ENDPOINTS", "separate"}}},
                      MessagePath{"DmaBuf", "address=22", {}}),
    [](const auto& tried) { return tried.param.label; });

// A small message waits in the sender: nothing of it may be read before.
TEST_F(OfiGpu, SmallMessagesWaitForTheirReceives) {
  connect();
  const auto from = source(100);
  const std::vector<char> out = numbered(100, 1);
  from->fill(out.data(), out.size());
  std::unique_ptr<Request> send;
  until([&] {
    return (send = sender_->send(from->data(), 100, 5, from->registration())) != nullptr;
  });
  for (int i = 0; i < 1000; ++i) ASSERT_FALSE(send->test());
  EXPECT_THAT(sender_->describe(), HasSubstr("the receive of a message of 100 bytes (tag 5)"));
  std::vector<char> in(100);
  const ReceiveBuffer buffer{in.data(), 100, 5, nullptr};
  const auto receive = receiver_->receive({&buffer, 1});
  until([&] {
    const bool received = receive->test().has_value();
    return send->test() && received;
  });
  EXPECT_EQ(in, out);
}

TEST_F(OfiGpu, SmallHostMessagesGetIntoGpuMemoryThroughTheNic) {
  connect();
  const auto to = target(100);
  const long before = fabric_.count("copy");
  const std::vector<char> out = numbered(100, 1);
  // Refused for some time.
  fabric_.configure("busy=30");
  move(out.data(), nullptr, to->data(), to->registration(), 100, true);
  EXPECT_EQ(fabric_.count("copy"), before + 1);
  std::vector<char> in(100);
  to->fetch(in.data(), 100);
  EXPECT_EQ(in, out);
  fabric_.configure("fail_copy=5");
  const std::string words =
      message_of([&] { move(out.data(), nullptr, to->data(), to->registration(), 100, true); },
                 Errc::kPeerLost);
  EXPECT_THAT(words, HasSubstr("fi_read: Input/output error"));
}

TEST_F(OfiGpu, ManySmallHostMessagesKeepTheirOrder) {
  connect();
  const auto to = target(4096);
  constexpr std::size_t kMessages = 24;
  fabric_.configure("busy=40");
  std::vector<std::unique_ptr<Request>> requests;
  std::vector<std::vector<char>> out;
  for (std::size_t i = 0; i < kMessages; ++i) out.push_back(numbered(64, i));
  for (std::size_t i = 0; i < kMessages; ++i) {
    until([&] {
      auto send = sender_->send(out[i].data(), 64, 1, nullptr);
      if (send) requests.push_back(std::move(send));
      return requests.size() == i + 1;
    });
  }
  for (std::size_t i = 0; i < kMessages; ++i) {
    const ReceiveBuffer buffer{to->data() + 64 * i, 64, 1, to->registration()};
    until([&] {
      auto receive = receiver_->receive({&buffer, 1});
      if (receive) requests.push_back(std::move(receive));
      return requests.size() == kMessages + i + 1;
    });
  }
  until([&] {
    bool all = true;
    for (const auto& request : requests) all = request->test() && all;
    return all;
  });
  std::vector<char> in(64 * kMessages);
  to->fetch(in.data(), in.size());
  for (std::size_t i = 0; i < kMessages; ++i) {
    EXPECT_TRUE(std::equal(out[i].begin(), out[i].end(), in.begin() + static_cast<long>(64 * i)));
  }
}

TEST_F(OfiGpu, TooLongForGpuMemoryBreaksByName) {
  for (const std::size_t bytes : Sizes{100, 100'000}) {
    connect();
    const auto from = source(100'000);
    const auto to = target(100'000);
    const ReceiveBuffer buffer{to->data(), bytes - 1, 0, to->registration()};
    const auto receive = receiver_->receive({&buffer, 1});
    EXPECT_THAT(
        message_of(
            [&] {
              std::unique_ptr<Request> send;
              until([&] {
                (void)receive->test();
                if (!send) send = sender_->send(from->data(), bytes, 0, from->registration());
                if (send) (void)send->test();
                return false;
              });
            },
            Errc::kInvalidUsage),
        HasSubstr(fmt::format("a message of {} bytes (tag 0) came for a receive of {} bytes", bytes,
                              bytes - 1)));
  }
}

// What was received stays as it is once its request was given up.
TEST_F(OfiGpu, MemoryOfACancelledReceiveStaysUnchanged) {
  connect("", {{"OFI_ENDPOINTS", "separate"}});
  constexpr std::size_t kBytes = 1 << 20;
  const auto from = source(kBytes);
  auto to = target(kBytes);
  const std::vector<char> before = numbered(kBytes, 1);
  const std::vector<char> out = numbered(kBytes, 2);
  to->fill(before.data(), kBytes);
  from->fill(out.data(), kBytes);
  const ReceiveBuffer buffer{to->data(), kBytes, 0, to->registration()};
  auto receive = receiver_->receive({&buffer, 1});
  (void)receive->test();
  receive.reset();
  EXPECT_THROW(until([&] {
                 (void)sender_->send(from->data(), kBytes, 0, from->registration());
                 return false;
               }),
               Error);
  std::vector<char> now(kBytes);
  to->fetch(now.data(), kBytes);
  EXPECT_EQ(now, before);
}

// ---- flush --------------------------------------------------------------------------------------

TEST_F(OfiGpu, AFlushReadsEachGpuOnce) {
  connect();
  const auto first = target(4096);
  const auto second = target(4096);
  std::vector<char> host(100);
  const std::array<ReceiveBuffer, 4> buffers{{{host.data(), 100, 0, nullptr},
                                              {first->data(), 0, 0, first->registration()},
                                              {first->data(), 100, 0, first->registration()},
                                              {second->data(), 3, 0, second->registration()}}};
  const long before = fabric_.count("flush");
  fabric_.configure("busy=10");
  const auto flush = receiver_->flush(buffers);
  until([&] { return flush->test().has_value(); });
  EXPECT_EQ(flush->sizes().size(), buffers.size());
  EXPECT_EQ(fabric_.count("flush"), before + 1);
  const auto none = receiver_->flush(std::span(buffers).first(2));
  EXPECT_TRUE(none->test());
  EXPECT_EQ(fabric_.count("flush"), before + 1);
  // Given up at once.
  receiver_->flush(buffers).reset();
  auto begun = receiver_->flush(buffers);
  (void)begun->test();
  begun.reset();
  const auto from = source(4096);
  EXPECT_TRUE(exchange(*from, *first, 4096));
}

TEST_F(OfiGpu, AFlushThatFailsBreaksByName) {
  connect();
  const auto to = target(4096);
  const ReceiveBuffer buffer{to->data(), 100, 0, to->registration()};
  fabric_.configure("fail_read=5");
  const auto flush = receiver_->flush({&buffer, 1});
  EXPECT_THAT(
      message_of([&] { until([&] { return flush->test().has_value(); }); }, Errc::kPeerLost),
      HasSubstr("flushing GPU memory: fi_read: Input/output error"));
}

// A wrong sum is seen, also where the CPU does not see the data.
class OfiGpuChecksums : public OfiGpu, public ::testing::WithParamInterface<const char*> {};

TEST_P(OfiGpuChecksums, OfGpuMemoryAreCompared) {
  connect("", {{"VERIFY", "all"}, {"OFI_LARGE", GetParam()}});
  const auto from = source(100'000);
  auto to = target(100'000);
  EXPECT_TRUE(exchange(*from, *to, 100'000));
  const std::vector<char> other = numbered(100'000, 77);
  from->fill(other.data(), other.size());
  // What comes into it from now on is lost.
  fabric_.configure("lose");
  const auto lost = receiver_->register_memory(to->data(), 100'000, MemoryKind::kCuda);
  EXPECT_THAT(
      message_of(
          [&] { move(from->data(), from->registration(), to->data(), lost.get(), 100'000, true); },
          Errc::kPeerLost),
      HasSubstr("a message of 100000 bytes arrived with a wrong checksum"));
}

INSTANTIATE_TEST_SUITE_P(LongMessages, OfiGpuChecksums, ::testing::Values("auto", "tagged"),
                         [](const auto& large) { return std::string(large.param); });

// ---- diagnosis ----------------------------------------------------------------------------------

TEST_F(OfiGpu, DiagnosisTriesEachGpu) {
  open("address=22");
  messaging::GpuTrials trials = try_gpu_memory(*transport_, 0);
  EXPECT_TRUE(trials.taken);
  EXPECT_TRUE(trials.right);
  EXPECT_EQ(trials.words, "GPU 0 (Stand-in 0): by dma-buf; GPU 1 (Stand-in 1): by dma-buf");
  open("lose");
  trials = try_gpu_memory(*transport_, 0);
  EXPECT_TRUE(trials.taken);
  EXPECT_FALSE(trials.right);
  EXPECT_THAT(trials.words, HasSubstr("GPU 1: memory of GPU 1 (Stand-in 1) cannot be registered"));
  open("no_hmem");
  trials = try_gpu_memory(*transport_, 0);
  EXPECT_FALSE(trials.taken);
  EXPECT_THAT(trials.words, HasSubstr("it does not offer GPU memory"));
}

}  // namespace
}  // namespace ropewalk::transport::ofi

#endif
