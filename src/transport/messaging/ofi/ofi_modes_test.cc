// What providers of NICs demand and those in software do not, on a stand-in for one
// (tests/stand_ins/strict_libfabric.cc), which refuses each call that does not obey: modes of
// memory registration, each with each; modes that are not offered; and what NICs say of themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "core/error.h"
#include "core/testing/in_child.h"
#include "transport/messaging/ofi/ofi.h"
#include "transport/messaging/ofi/testing/stand_in.h"
#include "transport/window/device/gpu_memory.h"
#include "transport/window/device/testing/on_device.h"
#include "transport/window/device/testing/stand_in.h"

#ifdef RW_STAND_IN_LIBFABRIC

namespace ropewalk::transport::ofi {
namespace {

using ropewalk::testing::message_of;
using ::testing::HasSubstr;
using ::testing::Not;
using window::testing::GuardedBuffer;
using window::testing::Memory;
using window::testing::numbered;
using window::testing::TestGpus;

constexpr std::array kModeNames = {"local", "virtual", "allocated", "provider_key", "endpoint"};

std::string modes_of(unsigned bits) {
  std::string text;
  for (std::size_t i = 0; i < kModeNames.size(); ++i) {
    if ((bits >> i & 1U) == 0) continue;
    if (!text.empty()) text += ',';
    text += kModeNames[i];
  }
  return text;
}

class OfiModes : public ::testing::Test {
 protected:
  ~OfiModes() override {
    close();
    strict_.configure("");
    below_.configure("");
    cuda_.configure("");
  }
  OfiModes() { cuda_.configure(""); }
  OfiModes(const OfiModes&) = delete;
  OfiModes& operator=(const OfiModes&) = delete;

  // @param kind what the provider demands and has
  void open(const std::string& kind, Config config = over_stand_ins()) {
    close();
    strict_.configure(kind);
    config.set("OFI_LIBRARY", RW_STRICT_LIBFABRIC, "test");
    refused_ = strict_.count("refused");
    busy_ = strict_.count("busy");
    transport_ = make_transport(config);
  }
  void connect(int device = 0) { connect_to_itself(*transport_, sender_, receiver_, device); }
  void close() {
    sender_.reset();
    receiver_.reset();
    transport_.reset();
  }
  // Nothing was refused, and nothing is left.
  void check_all_closed() {
    close();
    EXPECT_EQ(strict_.count("refused"), refused_);
    EXPECT_EQ(strict_.count("busy"), busy_);
    EXPECT_EQ(strict_.count("regions"), 0);
    EXPECT_EQ(strict_.count("open_endpoints"), 0);
  }
  [[nodiscard]] std::string why_none() const { return summary(*transport_).why_none; }

  // Several messages at once, each from and to its own part of one buffer that may be registered.
  void exchange(std::size_t bytes, bool registered) {
    constexpr std::size_t kMessages = 5;
    constexpr std::size_t kGap = 24;
    const std::size_t stride = bytes + kGap;
    const std::vector<char> out = numbered(stride * kMessages, ++messages_);
    std::vector<char> in(out.size(), 'x');
    std::unique_ptr<Registration> from;
    std::unique_ptr<Registration> to;
    if (registered) {
      from = sender_->register_memory(const_cast<char*>(out.data()), out.size(), MemoryKind::kHost);
      to = receiver_->register_memory(in.data(), in.size(), MemoryKind::kHost);
    }
    std::vector<std::unique_ptr<Request>> receives(kMessages);
    std::vector<std::unique_ptr<Request>> sends(kMessages);
    until([&] {
      bool all = true;
      for (std::size_t i = 0; i < kMessages; ++i) {
        const std::size_t at = i * stride + kGap;
        const ReceiveBuffer buffer{in.data() + at, bytes, 3, to.get()};
        // They match in the order of their calls.
        if (!receives[i] && (i == 0 || receives[i - 1]))
          receives[i] = receiver_->receive({&buffer, 1});
        if (!sends[i] && (i == 0 || sends[i - 1])) {
          sends[i] = sender_->send(out.data() + at, bytes, 3, from.get());
        }
        const bool sent = sends[i] && sends[i]->test();
        all = receives[i] && receives[i]->test() && sent && all;
      }
      return all;
    });
    for (std::size_t i = 0; i < kMessages; ++i) {
      const auto at = static_cast<std::ptrdiff_t>(i * stride);
      const auto end = at + static_cast<std::ptrdiff_t>(kGap + bytes);
      EXPECT_TRUE(std::equal(in.begin() + at + kGap, in.begin() + end, out.begin() + at + kGap))
          << bytes << " bytes, message " << i;
      EXPECT_EQ(in[i * stride + kGap - 1], 'x');
    }
  }
  void exchange_all() {
    for (const std::size_t bytes : {std::size_t{5}, std::size_t{8000}, std::size_t{100'000}}) {
      exchange(bytes, false);
      exchange(bytes, true);
    }
  }

  Hearing hearing_;
  StrictFabric strict_;
  StandInFabric below_;
  window::testing::StandIn cuda_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<SendConnection> sender_;
  std::unique_ptr<ReceiveConnection> receiver_;
  std::size_t messages_ = 0;
  long refused_ = 0;
  long busy_ = 0;
};

// ---- registration, each mode with each ---------------------------------------------------------

class OfiEachMode : public OfiModes, public ::testing::WithParamInterface<unsigned> {};

TEST_P(OfiEachMode, WrittenMessages) {
  open(modes_of(GetParam()));
  ASSERT_EQ(transport_->num_devices(), 1) << why_none();
  connect();
  EXPECT_THAT(summary(*transport_).large, HasSubstr("RMA writes"));
  exchange_all();
  check_all_closed();
}

TEST_P(OfiEachMode, TaggedMessagesBetweenTwoEndpoints) {
  Config config = over_stand_ins();
  config.set("OFI_LARGE", "tagged", "test");
  config.set("OFI_ENDPOINTS", "separate", "test");
  open(modes_of(GetParam()), config);
  ASSERT_EQ(transport_->num_devices(), 1) << why_none();
  connect();
  exchange_all();
  check_all_closed();
}

INSTANTIATE_TEST_SUITE_P(Modes, OfiEachMode, ::testing::Range(0U, 1U << kModeNames.size()),
                         [](const auto& instance) {
                           std::string name = modes_of(instance.param);
                           std::replace(name.begin(), name.end(), ',', '_');
                           return name.empty() ? "none" : name;
                         });

// Memory of GPUs is written and read by other calls than host memory, also by an endpoint's own.
TEST_F(OfiModes, GpuMemory) {
  TestGpus gpus(RW_STAND_IN_CUDA);
  window::Gpu& gpu = gpus.gpus.at(0);
  (void)gpus.gpus.at(1);
  constexpr std::size_t kRoom = 200'000;
  for (const unsigned bits : {0U, 1U, 2U, 8U, 16U, 26U, 31U}) {
    for (const char* below : {"", "address=22"}) {  // then by dma-buf
      for (const char* large : {"auto", "tagged"}) {
        SCOPED_TRACE(fmt::format("{} {} {}", modes_of(bits), below, large));
        below_.configure(below);
        Config config = over_stand_ins();
        config.set("OFI_LARGE", large, "test");
        open(modes_of(bits), config);
        ASSERT_EQ(transport_->num_devices(), 1) << why_none();
        ASSERT_EQ(summary(*transport_).gpu_memory.at(0), "taken");
        connect();
        {
          GuardedBuffer from(gpu, kRoom, Memory::kVirtual, *sender_);
          GuardedBuffer to(gpu, kRoom, Memory::kVirtual, *receiver_);
          for (const std::size_t bytes : {std::size_t{10}, std::size_t{5000}, kRoom}) {
            for (const bool from_host : {false, true}) {
              const std::vector<char> out = numbered(bytes, ++messages_);
              std::vector<char> in(bytes, 'x');
              from.fill(out.data(), bytes);
              to.fill(in.data(), bytes);
              const ReceiveBuffer buffer{to.data(), bytes, 3, to.registration()};
              std::unique_ptr<Request> receive;
              std::unique_ptr<Request> send;
              until([&] {
                if (!receive) receive = receiver_->receive({&buffer, 1});
                if (!send && from_host) send = sender_->send(out.data(), bytes, 3, nullptr);
                if (!send) send = sender_->send(from.data(), bytes, 3, from.registration());
                const bool sent = send && send->test();
                return receive && receive->test() && sent;
              });
              const std::unique_ptr<Request> flush = receiver_->flush({&buffer, 1});
              until([&] { return flush->test().has_value(); });
              to.fetch(in.data(), bytes);
              EXPECT_EQ(in, out) << bytes << " bytes, from " << (from_host ? "host" : "GPU");
            }
          }
        }
        check_all_closed();
      }
    }
  }
}

// ---- keys --------------------------------------------------------------------------------------

TEST_F(OfiModes, FewKeysAreUsedAgain) {
  open("key_bytes=1");
  connect();
  std::vector<char> memory(4096);
  std::vector<std::unique_ptr<Registration>> kept;
  for (int i = 0; i < 100; ++i) {
    kept.push_back(receiver_->register_memory(memory.data(), memory.size(), MemoryKind::kHost));
  }
  for (int i = 0; i < 400; ++i) {
    EXPECT_NE(receiver_->register_memory(memory.data(), memory.size(), MemoryKind::kHost), nullptr);
  }
  exchange_all();
  kept.clear();
  check_all_closed();
}

TEST_F(OfiModes, AKeyThatIsTakenIsFollowedByTheNext) {
  open("busy_regions=3");
  connect();
  exchange(100'000, false);
  check_all_closed();
}

TEST_F(OfiModes, ARegistrationWithoutAnyFreeKeyIsAnError) {
  open("");
  connect();
  std::vector<char> memory(4096);
  strict_.configure("busy_regions=5000");
  const std::string words = message_of(
      [&] { (void)receiver_->register_memory(memory.data(), memory.size(), MemoryKind::kHost); },
      Errc::kSystem);
  EXPECT_THAT(words, HasSubstr("fi_mr_reg of 4096 bytes (provider tcp;ofi_rxm, lo)"));
  strict_.configure("");
  exchange_all();
  check_all_closed();
}

TEST_F(OfiModes, MemoryThatIsNotThereIsRefused) {
  open("allocated");
  connect();
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* const nowhere = reinterpret_cast<void*>(std::uintptr_t{64} << 10);
  EXPECT_THAT(message_of([&] { (void)receiver_->register_memory(nowhere, 100, MemoryKind::kHost); },
                         Errc::kSystem),
              HasSubstr("Bad address"));
  ++refused_;
  exchange_all();
  check_all_closed();
}

// ---- regions of an endpoint --------------------------------------------------------------------

TEST_F(OfiModes, ARegionThatCannotBeBoundIsClosed) {
  open("endpoint");
  connect();
  std::vector<char> memory(4096);
  const long before = strict_.count("regions");
  strict_.configure("endpoint,fail_bind=1");
  EXPECT_THAT(message_of(
                  [&] {
                    (void)receiver_->register_memory(memory.data(), memory.size(),
                                                     MemoryKind::kHost);
                  },
                  Errc::kSystem),
              HasSubstr("fi_mr_bind (provider tcp;ofi_rxm, lo): Invalid argument"));
  EXPECT_EQ(strict_.count("regions"), before);
  exchange_all();
  check_all_closed();
}

// A receive is given up and its sender does not say that it has stopped: the endpoint is closed,
// which ends what the provider may still write. It is so only if its regions are closed before.
TEST_F(OfiModes, AnEndpointThatIsGivenUpIsClosedWithTheRegionsThatItHas) {
  for (const char* modes : {"", "endpoint", "local,virtual,provider_key,endpoint"}) {
    SCOPED_TRACE(modes);
    Config config = over_stand_ins();
    config.set("OFI_ENDPOINTS", "separate", "test");
    open(modes, config);
    connect();
    std::vector<char> memory(100'000);
    std::vector<char> other(100'000);
    const auto registration =
        receiver_->register_memory(other.data(), other.size(), MemoryKind::kHost);
    const long endpoints = strict_.count("open_endpoints");
    const ReceiveBuffer buffer{memory.data(), memory.size(), 3, nullptr};
    std::unique_ptr<Request> receive;
    until([&] { return (receive = receiver_->receive({&buffer, 1})) != nullptr; });
    EXPECT_FALSE(receive->test());
    receive.reset();
    EXPECT_EQ(strict_.count("open_endpoints"), endpoints - 1);
    EXPECT_EQ(strict_.count("busy"), busy_);
    // Of a closed endpoint's regions nothing is used any more.
    EXPECT_THROW((void)receiver_->receive({&buffer, 1}), Error);
    EXPECT_THROW((void)receiver_->register_memory(other.data(), other.size(), MemoryKind::kHost),
                 Error);
  }
  check_all_closed();
}

// ---- what is not offered -----------------------------------------------------------------------

TEST_F(OfiModes, AProviderThatDemandsWhatIsNotOfferedIsRefusedByName) {
  const std::array<std::array<const char*, 2>, 6> cases = {{
      {"raw", "FI_MR_RAW"},
      {"mmu_notify", "FI_MR_MMU_NOTIFY"},
      {"rma_event", "FI_MR_RMA_EVENT"},
      {"prefix", "FI_MSG_PREFIX"},
      {"local,raw,endpoint,rma_event", "FI_MR_RAW, FI_MR_RMA_EVENT"},
      {"virtual,raw,prefix", "FI_MR_RAW, FI_MSG_PREFIX"},
  }};
  for (const auto& [kind, names] : cases) {
    // As libfabric's rules have it, and listed to who did not offer it.
    for (const char* listed : {"", ",unasked"}) {
      open(std::string(kind) + listed);
      EXPECT_EQ(transport_->num_devices(), 0) << kind;
      EXPECT_THAT(why_none(),
                  HasSubstr(fmt::format(
                      "tcp;ofi_rxm demands {}, which this transport does not offer", names)))
          << listed;
      EXPECT_THAT(message_of([&] { (void)transport_->listen(0); }, Errc::kSystem),
                  HasSubstr(names));
    }
  }
}

TEST_F(OfiModes, ContextsAreTheProviders) {
  open("contexts");
  ASSERT_EQ(transport_->num_devices(), 1) << why_none();
  connect();
  exchange_all();
  check_all_closed();
}

// ---- NICs --------------------------------------------------------------------------------------

// Addresses of devices of this machine, of whatever kind.
std::vector<std::string> pci_addresses() {
  std::vector<std::string> all;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/bus/pci/devices", none)) {
    all.push_back(entry.path().filename().string());
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::string pci_path(const std::string& address) {
  return std::filesystem::canonical("/sys/bus/pci/devices/" + address).string();
}

TEST_F(OfiModes, EachNicIsADeviceAsItDescribesItself) {
  const std::vector<std::string> pci = pci_addresses();
  if (pci.size() < 2) GTEST_SKIP() << "this machine has no two PCI devices to name";
  open(
      fmt::format("local,virtual,provider_key,nic=fast0/{}/200/0c:42:a1:00:00:5f,"
                  "nic=fast1/{}/100/fe80::c42:a1ff:fe00:5e",
                  pci[0], pci[1]));
  ASSERT_EQ(transport_->num_devices(), 2) << why_none();
  const DeviceProperties first = transport_->properties(0);
  EXPECT_EQ(first.name, "fast0");
  EXPECT_EQ(first.pci_path, pci_path(pci[0]));
  EXPECT_EQ(first.speed_mbps, 200'000);
  EXPECT_EQ(first.guid, 0x0c42'a100'005fU);
  EXPECT_LT(first.latency_us, 5);
  EXPECT_EQ(first.message_weight, 1);
  const DeviceProperties second = transport_->properties(1);
  EXPECT_EQ(second.name, "fast1");
  EXPECT_EQ(second.pci_path, pci_path(pci[1]));
  EXPECT_EQ(second.speed_mbps, 100'000);
  EXPECT_NE(second.guid, first.guid);
  EXPECT_TRUE(summary(*transport_).rdma);
  Config none_named = over_stand_ins();
  none_named.set("OFI_PROVIDER", "", "test");
  EXPECT_TRUE(better_than_tcp(*transport_, none_named));
  for (const int device : {0, 1}) {
    connect(device);
    exchange_all();
    sender_.reset();
    receiver_.reset();
  }
  check_all_closed();
}

TEST_F(OfiModes, ANicWhoseLinkIsDownIsNoDevice) {
  open("nic=up0/-/200/01,nic=down0/-/100/02/down");
  ASSERT_EQ(transport_->num_devices(), 1) << why_none();
  EXPECT_EQ(transport_->properties(0).name, "up0");
  open("nic=down0/-/100/02/down");
  EXPECT_EQ(transport_->num_devices(), 0);
  EXPECT_THAT(why_none(), HasSubstr("the link of down0 is down"));
}

// Sockets of this host, for example: nothing that `auto` should prefer to its own.
TEST_F(OfiModes, ANicWithoutABusIsNoneOfItsOwn) {
  open("nic=soft0/-/40/02");
  ASSERT_EQ(transport_->num_devices(), 1) << why_none();
  EXPECT_EQ(transport_->properties(0).speed_mbps, 40'000);
  EXPECT_EQ(transport_->properties(0).pci_path, "");
  EXPECT_FALSE(summary(*transport_).rdma);
  // A PCI address that this machine does not know is none.
  open("nic=gone0/ffff:ff:1f.7/40/02");
  ASSERT_EQ(transport_->num_devices(), 1) << why_none();
  EXPECT_EQ(transport_->properties(0).pci_path, "");
}

}  // namespace
}  // namespace ropewalk::transport::ofi

#endif  // RW_STAND_IN_LIBFABRIC
