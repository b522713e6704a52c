// GPU memory over libpsm2, on stand-ins for a libpsm2 that was built with CUDA
// (tests/stand_ins/adapter_libpsm2.cc) and for CUDA: what is taken, what each refusal and lie leads
// to, and that messages arrive whole. Each test is a process, since libpsm2 is once in one.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/testing/in_child.h"
#include "transport/messaging/psm2/psm2.h"
#include "transport/messaging/testing/gpu_connection.h"
#include "transport/messaging/testing/stand_in.h"

namespace ropewalk::transport::psm2 {
namespace {

using ropewalk::testing::in_child;
using ropewalk::testing::message_of;
using ropewalk::transport::messaging::testing::GuardedBuffer;
using ropewalk::transport::messaging::testing::Hearing;
using ropewalk::transport::messaging::testing::lines_with;
using ropewalk::transport::messaging::testing::Memory;
using ropewalk::transport::messaging::testing::numbered;
using ropewalk::transport::messaging::testing::until;
using ::testing::HasSubstr;
using Settings = std::vector<std::pair<const char*, std::string>>;
using Sizes = std::vector<std::size_t>;

constexpr unsigned kHostAlone = static_cast<unsigned>(MemoryKind::kHost);
constexpr unsigned kWithGpus = kHostAlone | static_cast<unsigned>(MemoryKind::kCuda);

const Sizes kSizes = {0, 1, 8, 1000, 4096, 8192, 8193, 64 << 10, 1 << 20};

class OnStandIns : public messaging::testing::GpuConnection {
 public:
  OnStandIns() {
    setenv("PSM2_CUDA", "1", 1);
    cuda.configure("");
  }
  // @param like what the stand-in is like; what it was built with counts the first time
  void open(const std::string& like = "cuda", const Settings& settings = {}) {
    close();
    libpsm2.configure(like);
    Config config;
    config.set("SOCKET_IFNAME", "=lo", "test");
    config.set("PSM2_DEVICE", "shm", "test");
    config.set("PSM2_LIBRARY", RW_ADAPTER_LIBPSM2, "test");
    config.set("CUDA_LIBRARY", RW_STAND_IN_CUDA, "test");
    for (const auto& [name, value] : settings) config.set(name, value, "test");
    transport_ = make_transport(config);
    if (transport_->num_devices() != 1) throw std::runtime_error(transport_->why_no_devices());
  }
  void connect(const std::string& like = "cuda", const Settings& settings = {}) {
    open(like, settings);
    GpuConnection::connect(std::move(transport_));
  }
  [[nodiscard]] Transport& transport() { return *transport_; }
  [[nodiscard]] SendConnection& sender() { return *sender_; }
  [[nodiscard]] ReceiveConnection& receiver() { return *receiver_; }
  [[nodiscard]] std::string why_not() const { return summary(*transport_).gpu_memory.at(0); }

  // Messages of host memory pass, and registrations of GPU memory name what is missing.
  void expect_host_only(const std::string& why) {
    EXPECT_EQ(kinds(), kHostAlone);
    EXPECT_THAT(why_not(), HasSubstr(why));
    for (const std::size_t bytes : kSizes) EXPECT_TRUE(exchange_host(bytes));
    const std::string named = "psm2: psm2_shm takes host memory only: ";
    EXPECT_THAT(message_of([&] { (void)source(100); }, Errc::kInvalidArgument),
                ::testing::AllOf(HasSubstr(named), HasSubstr(why)));
    EXPECT_THAT(message_of([&] { (void)target(100); }, Errc::kInvalidArgument),
                ::testing::AllOf(HasSubstr(named), HasSubstr(why)));
    EXPECT_EQ(libpsm2.count("refused"), 0);
  }

  const messaging::testing::StandInFunctions libpsm2{RW_ADAPTER_LIBPSM2, "adapter_libpsm2_"};
  const window::testing::StandIn cuda;
};

void in_a_process(const std::function<void(OnStandIns&)>& body) {
  if (dlopen("libpsm2.so.2", RTLD_NOLOAD | RTLD_NOW) != nullptr) {
    GTEST_SKIP() << "another test of this process has used libpsm2";
  }
  EXPECT_EQ(in_child([&] {
              const Hearing hearing;
              OnStandIns tried;
              body(tried);
              return 0;
            }),
            0);
}

// ---- what a device claims -----------------------------------------------------------------------

TEST(Psm2Gpu, IsNotTakenUnasked) {
  in_a_process([](OnStandIns& tried) {
    unsetenv("PSM2_CUDA");
    tried.connect();
    tried.expect_host_only("PSM2_CUDA=1 is not in the environment");
    EXPECT_EQ(lines_with("psm2: psm2_shm (libpsm2 2.2): host memory only: PSM2_CUDA=1"), 1);
  });
}

TEST(Psm2Gpu, IsNotTakenByALibraryWithoutCuda) {
  in_a_process([](OnStandIns& tried) {
    tried.connect("");
    tried.expect_host_only("this libpsm2 was built without CUDA");
    EXPECT_EQ(lines_with("psm2: psm2_shm (libpsm2 2.2): host memory only: this libpsm2"), 1);
  });
}

TEST(Psm2Gpu, IsNotTakenWithoutCuda) {
  in_a_process([](OnStandIns& tried) {
    tried.connect("cuda", {{"CUDA_LIBRARY", "libnone.so"}});
    tried.expect_host_only("no CUDA");
    EXPECT_EQ(lines_with("host memory only: no CUDA"), 1);
  });
}

TEST(Psm2Gpu, NoContextIsMadeForATrial) {
  in_a_process([](OnStandIns& tried) {
    tried.open();
    EXPECT_EQ(tried.kinds(), kWithGpus);
    EXPECT_EQ(tried.why_not(), "taken");
    EXPECT_EQ(lines_with("psm2: psm2_shm (libpsm2 2.2): GPU memory is taken"), 1);
    EXPECT_EQ(tried.libpsm2.count("to"), 0);
    EXPECT_EQ(tried.cuda.ranges(), 0);
  });
}

// ---- trials -------------------------------------------------------------------------------------

TEST(Psm2Gpu, EachGpuInUseIsTriedOnce) {
  in_a_process([](OnStandIns& tried) {
    (void)tried.gpus();
    tried.open();
    EXPECT_EQ(tried.kinds(), kWithGpus);
    // A packet, a copied message and a rendezvous, of two GPUs.
    EXPECT_EQ(tried.libpsm2.count("to"), 6);
    EXPECT_EQ(tried.libpsm2.count("from"), 6);
    EXPECT_EQ(lines_with("patterns went to memory of GPU"), 2);
    EXPECT_EQ(tried.cuda.ranges(), 0);
    tried.connect();
    const long after = tried.libpsm2.count("to");
    (void)tried.source(100);
    (void)tried.target(100);
    EXPECT_EQ(tried.libpsm2.count("to"), after);
    EXPECT_EQ(tried.libpsm2.count("refused"), 0);
  });
}

TEST(Psm2Gpu, AGpuThatComesLaterIsTriedWithItsFirstMemory) {
  in_a_process([](OnStandIns& tried) {
    tried.connect();
    EXPECT_EQ(tried.libpsm2.count("to"), 0);
    const auto from = tried.source(4096);
    EXPECT_EQ(tried.libpsm2.count("to"), 3);
    const auto to = tried.target(4096);
    EXPECT_EQ(tried.libpsm2.count("to"), 6);
    EXPECT_TRUE(tried.exchange(*from, *to, 4096));
  });
}

struct FailingTrial {
  const char* label;
  const char* like;
  const char* why;
};

class Psm2GpuTrials : public ::testing::TestWithParam<FailingTrial> {};

TEST_P(Psm2GpuTrials, OneThatFailsMeansHostMemoryOnly) {
  in_a_process([](OnStandIns& tried) {
    (void)tried.gpus();
    tried.connect(GetParam().like);
    tried.expect_host_only(GetParam().why);
    EXPECT_EQ(lines_with("psm2: psm2_shm (libpsm2 2.2): host memory only: memory of GPU 0 "
                         "(Stand-in 0) does not pass "
                         "verification: "),
              1);
  });
}

// On a GPU that was not in use when the transport was made: the other one is tried for itself.
TEST_P(Psm2GpuTrials, OneThatFailsLaterRefusesThatGpu) {
  in_a_process([](OnStandIns& tried) {
    tried.connect();
    EXPECT_EQ(tried.kinds(), kWithGpus);
    tried.libpsm2.configure(GetParam().like);
    EXPECT_THAT(message_of([&] { (void)tried.source(100); }, Errc::kSystem),
                ::testing::AllOf(HasSubstr("memory of GPU 0"), HasSubstr(GetParam().why)));
    tried.libpsm2.configure("cuda");
    (void)message_of([&] { (void)tried.source(100); }, Errc::kSystem);  // as was found
    const auto to = tried.target(100'000);
    EXPECT_TRUE(tried.exchange_to_gpu(*to, 100'000));
    EXPECT_TRUE(tried.exchange_host(100'000));
  });
}

INSTANTIATE_TEST_SUITE_P(
    , Psm2GpuTrials,
    ::testing::Values(
        FailingTrial{"PacketsChangedTo", "cuda,damage_to=1",
                     "a message of 8 bytes to it reports success, but arrived changed"},
        FailingTrial{"CopiesChangedTo", "cuda,damage_to=9",
                     "a message of 8192 bytes to it reports success, but arrived changed"},
        FailingTrial{"LongChangedTo", "cuda,damage_to=10000",
                     "a message of 65543 bytes to it reports success, but arrived changed"},
        FailingTrial{"PacketsChangedFrom", "cuda,damage_from=1",
                     "a message of 8 bytes from it reports success, but arrived changed"},
        FailingTrial{"CopiesChangedFrom", "cuda,damage_from=9",
                     "a message of 8192 bytes from it reports success, but arrived changed"},
        FailingTrial{"LongChangedFrom", "cuda,damage_from=10000",
                     "a message of 65543 bytes from it reports success, but arrived changed"},
        FailingTrial{"NothingMoved", "cuda,lose_to", "8 bytes to it reports success"},
        FailingTrial{"RefusedTo", "cuda,fail_to", "a message of 8 bytes to it: psm2_mq_irecv2: "},
        FailingTrial{"RefusedFrom", "cuda,fail_from",
                     "a message of 8 bytes from it: psm2_mq_isend2: "},
        FailingTrial{"LongHangsTo", "cuda,hang_to=10000",
                     "a message of 65543 bytes to it does not end"},
        FailingTrial{"HangsTo", "cuda,hang_to=1", "a message of 8 bytes to it does not end"}),
    [](const auto& tried) { return tried.param.label; });

// Libpsm2 has the memory of a send that does not end.
TEST(Psm2Gpu, AnEndpointWhoseTrialDoesNotEndIsNotUsedAnyMore) {
  in_a_process([](OnStandIns& tried) {
    (void)tried.gpus();
    tried.connect("cuda,hang_from=1");
    tried.expect_host_only("a message of 8 bytes from it does not end");
    EXPECT_EQ(lines_with("an endpoint on psm2_shm is no longer used"), 1);
  });
}

TEST(Psm2Gpu, UnverifiedNothingIsTried) {
  in_a_process([](OnStandIns& tried) {
    (void)tried.gpus();
    tried.connect("cuda,damage_to=1", {{"VERIFY", "off"}});
    EXPECT_EQ(tried.kinds(), kWithGpus);
    EXPECT_EQ(tried.libpsm2.count("to"), 0);
    const auto to = tried.target(100);
    EXPECT_FALSE(tried.exchange_to_gpu(*to, 100));
  });
}

// ---- registration -------------------------------------------------------------------------------

TEST(Psm2Gpu, WhatIsNoGpuMemoryIsRefused) {
  in_a_process([](OnStandIns& tried) {
    tried.connect();
    std::vector<char> host(100);
    EXPECT_THAT(
        message_of(
            [&] { (void)tried.sender().register_memory(host.data(), 100, MemoryKind::kCuda); },
            Errc::kInvalidArgument),
        HasSubstr("this is not GPU memory"));
    EXPECT_THAT(
        message_of([&] { (void)tried.receiver().register_memory(nullptr, 100, MemoryKind::kCuda); },
                   Errc::kInvalidArgument),
        HasSubstr("null pointer"));
    EXPECT_THROW((void)tried.sender().register_memory(host.data(), 100, MemoryKind::kDmaBuf),
                 Error);
    EXPECT_TRUE(tried.exchange_host(100));
  });
}

TEST(Psm2Gpu, OutsideOfTheRegistrationIsRefused) {
  in_a_process([](OnStandIns& tried) {
    tried.connect();
    const auto from = tried.source(4096);
    const auto to = tried.target(4096);
    const auto part = tried.sender().register_memory(from->data(), 100, MemoryKind::kCuda);
    const auto room = tried.receiver().register_memory(to->data(), 100, MemoryKind::kCuda);
    (void)message_of([&] { (void)tried.sender().send(from->data(), 101, 0, part.get()); },
                     Errc::kInvalidArgument);
    (void)message_of([&] { (void)tried.sender().send(from->data() - 1, 10, 0, part.get()); },
                     Errc::kInvalidArgument);
    const ReceiveBuffer beyond{to->data() + 50, 51, 0, room.get()};
    (void)message_of([&] { (void)tried.receiver().receive({&beyond, 1}); }, Errc::kInvalidArgument);
    EXPECT_TRUE(tried.exchange(*from, *to, 4096));
    EXPECT_EQ(tried.libpsm2.count("refused"), 0);
  });
}

// ---- messages -----------------------------------------------------------------------------------

struct MessagePath {
  const char* label;
  Settings settings;
};

class Psm2GpuPaths : public ::testing::TestWithParam<MessagePath> {};

// No call has GPU memory without its flag, and the CPU touches none: it would end here.
TEST_P(Psm2GpuPaths, AllSizesBothOrdersAllKinds) {
  in_a_process([](OnStandIns& tried) {
    tried.connect("cuda", GetParam().settings);
    const auto from = tried.source(1 << 20, Memory::kVirtual);
    const auto to = tried.target(1 << 20);
    const long moved = tried.libpsm2.count("to");
    for (const std::size_t bytes : kSizes) {
      for (const bool receive_first : {true, false}) {
        SCOPED_TRACE(fmt::format("{} bytes, {}", bytes, receive_first));
        EXPECT_TRUE(tried.exchange_to_gpu(*to, bytes, receive_first));
        EXPECT_TRUE(tried.exchange_from_gpu(*from, bytes, receive_first));
        EXPECT_TRUE(tried.exchange(*from, *to, bytes, receive_first));
        EXPECT_TRUE(tried.exchange_host(bytes, receive_first));
      }
    }
    // All but the empty ones.
    EXPECT_EQ(tried.libpsm2.count("to"), moved + 4 * (static_cast<long>(kSizes.size()) - 1));
    EXPECT_EQ(tried.libpsm2.count("refused"), 0);
  });
}

TEST_P(Psm2GpuPaths, GroupedReceives) {
  in_a_process([](OnStandIns& tried) {
    tried.connect("cuda", GetParam().settings);
    constexpr std::size_t kRoom = 1 << 20;
    const auto from = tried.source(kRoom);
    const auto to = tried.target(kRoom);
    const Sizes sizes = {8, 4096, 64 << 10, 500'000, 0, 100};
    std::vector<char> host(100, 'x');
    std::vector<char> in(kRoom, 'x');
    const std::vector<char> out = numbered(kRoom, 5);
    for (const bool receive_first : {true, false}) {
      to->fill(in.data(), kRoom);
      from->fill(out.data(), kRoom);
      std::vector<ReceiveBuffer> buffers;
      std::size_t at = 0;
      for (std::size_t i = 0; i < sizes.size(); at += sizes[i++]) {
        buffers.push_back(
            {to->data() + at, sizes[i], static_cast<std::uint32_t>(i), to->registration()});
      }
      buffers.back().data = host.data();  // one of host memory among them
      buffers.back().registration = nullptr;
      std::unique_ptr<Request> receive;
      std::vector<std::unique_ptr<Request>> sends;
      const auto start = [&] {
        if (!receive) receive = tried.receiver().receive(buffers);
        return receive != nullptr;
      };
      if (receive_first) until(start);
      std::size_t sent = 0;
      at = 0;
      until([&] {
        auto send = tried.sender().send(from->data() + at, sizes[sent],
                                        static_cast<std::uint32_t>(sent), from->registration());
        if (send) {
          sends.push_back(std::move(send));
          at += sizes[sent++];
        }
        return sent == sizes.size();
      });
      until(start);
      until([&] {
        bool all = receive->test().has_value();
        for (const auto& send : sends) all = send->test().has_value() && all;
        return all;
      });
      EXPECT_EQ(Sizes(receive->sizes().begin(), receive->sizes().end()), sizes);
      std::vector<char> got(kRoom);
      to->fetch(got.data(), kRoom);
      const auto received = static_cast<long>(at - host.size());
      EXPECT_TRUE(std::equal(got.begin(), got.begin() + received, out.begin()));
      EXPECT_TRUE(std::equal(got.begin() + received, got.end(), in.begin() + received));
      EXPECT_TRUE(std::equal(host.begin(), host.end(), out.begin() + received));
    }
    EXPECT_EQ(tried.libpsm2.count("refused"), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(
    , Psm2GpuPaths,
    ::testing::Values(MessagePath{"Shared", {}}, MessagePath{"Checksums", {{"VERIFY", "all"}}},
                      MessagePath{"Unverified", {{"VERIFY", "off"}}},
                      MessagePath{"Separate", {{"PSM2_ENDPOINTS", "separate"}}},
                      MessagePath{"SeparateChecksums",
                                  {{"PSM2_ENDPOINTS", "separate"}, {"VERIFY", "all"}}}),
    [](const auto& tried) { return tried.param.label; });

// What was received stays as it is once its request was given up.
TEST(Psm2Gpu, MemoryOfACancelledReceiveStaysUnchanged) {
  in_a_process([](OnStandIns& tried) {
    constexpr std::size_t kBytes = 100'000;
    tried.connect("cuda", {{"PSM2_ENDPOINTS", "separate"}});
    const auto from = tried.source(kBytes);
    const auto to = tried.target(kBytes);
    const std::vector<char> before = numbered(kBytes, 1);
    to->fill(before.data(), kBytes);
    from->fill(numbered(kBytes, 2).data(), kBytes);
    const ReceiveBuffer buffer{to->data(), kBytes, 0, to->registration()};
    auto receive = tried.receiver().receive({&buffer, 1});
    (void)receive->test();
    receive.reset();
    EXPECT_THROW(until([&] {
                   (void)tried.sender().send(from->data(), kBytes, 0, from->registration());
                   return false;
                 }),
                 Error);
    std::vector<char> now(kBytes);
    to->fetch(now.data(), kBytes);
    EXPECT_EQ(now, before);
  });
}

// A call that libpsm2 refuses breaks the connection by name.
TEST(Psm2Gpu, AMessageThatIsRefusedBreaksByName) {
  in_a_process([](OnStandIns& tried) {
    tried.connect();
    const auto from = tried.source(100);
    tried.libpsm2.configure("cuda,fail_from");
    EXPECT_THAT(message_of([&] { (void)tried.exchange_from_gpu(*from, 100); }, Errc::kPeerLost),
                HasSubstr("psm2_mq_isend2: "));
  });
}

// ---- VERIFY=all ---------------------------------------------------------------------------------

// A wrong sum is seen, also where the CPU does not see the data.
TEST(Psm2Gpu, ChecksumsOfGpuMemoryAreCompared) {
  in_a_process([](OnStandIns& tried) {
    for (const char* like : {"cuda,damage_to=1", "cuda,damage_from=1", "cuda,lose_to"}) {
      for (const std::size_t bytes : Sizes{8, 100'000}) {
        SCOPED_TRACE(fmt::format("{}, {} bytes", like, bytes));
        tried.connect("cuda", {{"VERIFY", "all"}});
        EXPECT_TRUE(tried.transport().properties(0).gpu_memory_by_cuda);
        const auto from = tried.source(bytes);
        const auto to = tried.target(bytes);
        EXPECT_TRUE(tried.exchange(*from, *to, bytes));
        tried.libpsm2.configure(like);
        EXPECT_THAT(
            message_of([&] { (void)tried.exchange(*from, *to, bytes); }, Errc::kPeerLost),
            HasSubstr(fmt::format("a message of {} bytes arrived with a wrong checksum", bytes)));
      }
    }
  });
}

TEST(Psm2Gpu, ACopyForAChecksumThatFailsBreaksByName) {
  in_a_process([](OnStandIns& tried) {
    tried.connect("cuda", {{"VERIFY", "all"}});
    const auto from = tried.source(100);
    const auto to = tried.target(100);
    std::vector<char> host(100, 'h');
    tried.cuda.configure("refuse=cuMemcpyDtoHAsync_v2:700");
    EXPECT_THAT(
        message_of(
            [&] { tried.move(host.data(), nullptr, to->data(), to->registration(), 100, true); },
            Errc::kCuda),
        HasSubstr("psm2 connection with"));
    tried.cuda.configure("");
  });
}

TEST(Psm2Gpu, ChecksumsNeedKernelsThatAreLoaded) {
  in_a_process([](OnStandIns& tried) {
    tried.open();  // which asks the stand-in for the first time
    tried.cuda.configure("lazy");
    tried.connect("cuda", {{"VERIFY", "all"}});
    tried.expect_host_only("CUDA_MODULE_LOADING=EAGER");
    tried.open();
    EXPECT_EQ(tried.kinds(), kWithGpus);
    EXPECT_FALSE(tried.transport().properties(0).gpu_memory_by_cuda);
  });
}

// ---- diagnosis ----------------------------------------------------------------------------------

TEST(Psm2Gpu, DiagnosisTriesEachGpu) {
  in_a_process([](OnStandIns& tried) {
    tried.open();
    messaging::GpuTrials trials = try_gpu_memory(tried.transport(), 0);
    EXPECT_TRUE(trials.taken);
    EXPECT_TRUE(trials.right);
    EXPECT_EQ(trials.words, "GPU 0 (Stand-in 0): by GDRCopy; GPU 1 (Stand-in 1): by GDRCopy");
    (void)tried.gpus();
    tried.open("cuda,damage_to=1");
    trials = try_gpu_memory(tried.transport(), 0);
    EXPECT_FALSE(trials.taken);
    EXPECT_THAT(trials.words, HasSubstr("memory of GPU 0 (Stand-in 0) does not pass verification"));
  });
}

TEST(Psm2Gpu, DiagnosisNamesAGpuThatFails) {
  in_a_process([](OnStandIns& tried) {
    tried.open("cuda,damage_from=1");
    const messaging::GpuTrials trials = try_gpu_memory(tried.transport(), 0);
    EXPECT_TRUE(trials.taken);
    EXPECT_FALSE(trials.right);
    EXPECT_THAT(trials.words, HasSubstr("GPU 1: memory of GPU 1 (Stand-in 1) does not pass "
                                        "verification: a message of 8 bytes from it"));
  });
}

}  // namespace
}  // namespace ropewalk::transport::psm2
