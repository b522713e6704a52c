// What `auto` does when a path that both ends began with is refused, on shared memory made to fail.
#include "transport/auto/auto.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/settings.h"
#include "transport/auto/ends.h"
#include "transport/auto/offers.h"
#include "transport/messaging/tcp/handshake.h"
#include "transport/registry.h"
#include "transport/window/device/testing/stand_in.h"
#include "transport/window/shm/rendezvous.h"
#include "transport/window/sisci/path.h"
#include "transport/window/sisci/testing/ends.h"

namespace ropewalk::transport::choosing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(30);

// Where shared memory fails.
enum class Fault {
  kNone,
  kListen,            // the listener cannot be made
  kConnect,           // the sender cannot even begin
  kSenderVerifies,    // the sending end finds the path bad
  kReceiverVerifies,  // the receiving end does
  kAccept,            // the receiving end cannot take the connection
};

Error refusal() { return Error(Errc::kSystem, "/dev/shm is full, on purpose"); }

class BadSender final : public SendConnection {
 public:
  explicit BadSender(std::unique_ptr<SendConnection> inner) : inner_(std::move(inner)) {}
  bool ready() override { throw refusal(); }
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override {
    return inner_->register_memory(data, bytes, kind);
  }
  std::unique_ptr<Request> send(const void*, std::size_t, std::uint32_t, Registration*) override {
    throw std::logic_error("a message over a path that was refused");
  }

 private:
  std::unique_ptr<SendConnection> inner_;
};

class BadReceiver final : public ReceiveConnection {
 public:
  explicit BadReceiver(std::unique_ptr<ReceiveConnection> inner) : inner_(std::move(inner)) {}
  bool ready() override { throw refusal(); }
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override {
    return inner_->register_memory(data, bytes, kind);
  }
  std::unique_ptr<Request> receive(std::span<const ReceiveBuffer>) override {
    throw std::logic_error("a receive over a path that was refused");
  }
  std::unique_ptr<Request> flush(std::span<const ReceiveBuffer> buffers) override {
    return inner_->flush(buffers);
  }

 private:
  std::unique_ptr<ReceiveConnection> inner_;
};

class BadShm final : public Transport {
 public:
  BadShm(const Config& config, Fault fault)
      : inner_(make_plain_transport("shm", config)), fault_(fault) {}
  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] int num_devices() const override { return 1; }
  [[nodiscard]] DeviceProperties properties(int device) const override {
    return inner_->properties(device);
  }
  // From the next accept or connect on.
  void fail_by(Fault fault) { fault_ = fault; }
  std::unique_ptr<Listener> listen(int device) override {
    class BadListener final : public Listener {
     public:
      BadListener(std::unique_ptr<Listener> inner, const Fault& fault)
          : inner_(std::move(inner)), fault_(fault) {}
      [[nodiscard]] const Handle& handle() const override { return inner_->handle(); }
      std::unique_ptr<ReceiveConnection> accept() override {
        auto made = inner_->accept();
        if (!made) return nullptr;
        if (fault_ == Fault::kAccept) throw refusal();
        if (fault_ == Fault::kReceiverVerifies) {
          return std::make_unique<BadReceiver>(std::move(made));
        }
        return made;
      }

     private:
      std::unique_ptr<Listener> inner_;
      const Fault& fault_;
    };
    if (fault_ == Fault::kListen) throw refusal();
    return std::make_unique<BadListener>(inner_->listen(device), fault_);
  }
  std::unique_ptr<Connector> connect(int device, const Handle& handle) override {
    class BadConnector final : public Connector {
     public:
      explicit BadConnector(std::unique_ptr<Connector> inner) : inner_(std::move(inner)) {}
      std::unique_ptr<SendConnection> poll() override {
        auto made = inner_->poll();
        return made ? std::make_unique<BadSender>(std::move(made)) : nullptr;
      }

     private:
      std::unique_ptr<Connector> inner_;
    };
    if (fault_ == Fault::kConnect) throw refusal();
    auto made = inner_->connect(device, handle);
    if (fault_ != Fault::kSenderVerifies) return made;
    return std::make_unique<BadConnector>(std::move(made));
  }

 private:
  std::unique_ptr<Transport> inner_;
  Fault fault_;
};

template <typename Step>
void poll_until(Step step, const char* what) {
  const Clock::time_point deadline = Clock::now() + kPatience;
  while (!step()) {
    if (Clock::now() > deadline) throw std::runtime_error(std::string("hangs: ") + what);
  }
}

class Choosing : public ::testing::TestWithParam<Fault> {
 protected:
  Choosing() {
    config_.set("SOCKET_IFNAME", "=lo", "test");
    shm_ = std::make_unique<BadShm>(config_, GetParam());
    tcp_ = make_plain_transport("tcp", config_);
    providers_ = {{PathKind::kShm, shm_.get(), 0}, {PathKind::kTcp, tcp_.get(), 0}};
  }

  // A connection, with memory registered at both ends before a path is decided on.
  void connect_and_exchange(const std::shared_ptr<Acceptors>& acceptors) {
    AutoSender sender(providers_, *decode_offers(acceptors->handle()));
    poll_until([&] { return sender.joined(); }, "joining");  // without an accept
    std::unique_ptr<AutoReceiver> receiver;
    std::array<char, 1000> out{};
    std::array<char, 1000> in{};
    std::memcpy(out.data(), "knot", 4);
    const auto out_memory = sender.register_memory(out.data(), out.size(), MemoryKind::kHost);
    std::unique_ptr<Registration> in_memory;
    std::unique_ptr<Request> send;
    std::unique_ptr<Request> receive;
    bool sent = false;
    bool received = false;
    poll_until(
        [&] {
          if (!receiver) {
            if (auto arrival = acceptors->take_new()) {
              receiver = std::make_unique<AutoReceiver>(acceptors, std::move(*arrival),
                                                        std::chrono::seconds(1));
              in_memory = receiver->register_memory(in.data(), in.size(), MemoryKind::kHost);
            }
          }
          if (receiver && !receive) {
            const ReceiveBuffer buffer{in.data(), in.size(), 4, in_memory.get()};
            receive = receiver->receive({&buffer, 1});
          }
          if (!send) send = sender.send(out.data(), out.size(), 4, out_memory.get());
          sent = sent || (send && send->test());
          received = received || (receive && receive->test());
          return sent && received;
        },
        "a message");
    EXPECT_EQ(in, out);
    EXPECT_FALSE(acceptors->take_new());  // each sender counts once
  }

  Config config_;
  std::unique_ptr<BadShm> shm_;
  std::unique_ptr<Transport> tcp_;
  std::vector<Provider> providers_;
};

TEST_P(Choosing, EndsOnAPathThatWorks) {
  const auto acceptors = std::make_shared<Acceptors>(providers_, 0);
  for (int i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    connect_and_exchange(acceptors);
  }
}

// An end that has decided on a path accepts no other: the next connection that replaces a failed
// one is a new one.
TEST_P(Choosing, ReplacesTheSecondConnectionOfAListenerWhereTheFirstWasRight) {
  const auto acceptors = std::make_shared<Acceptors>(providers_, 0);
  shm_->fail_by(Fault::kNone);
  connect_and_exchange(acceptors);
  shm_->fail_by(GetParam());
  for (int i = 0; i < 2; ++i) {
    SCOPED_TRACE(i);
    connect_and_exchange(acceptors);
  }
  shm_->fail_by(Fault::kNone);
  connect_and_exchange(acceptors);
}

TEST_P(Choosing, NeedsNoListenerAfterAccept) {
  auto acceptors = std::make_shared<Acceptors>(providers_, 0);
  AutoSender sender(providers_, *decode_offers(acceptors->handle()));
  std::unique_ptr<AutoReceiver> receiver;
  poll_until(
      [&] {
        (void)sender.joined();
        // A path that fails before it was accepted is only replaced when the sender goes on.
        if (GetParam() == Fault::kAccept) (void)sender.ready();
        if (auto arrival = acceptors->take_new()) {
          receiver = std::make_unique<AutoReceiver>(acceptors, std::move(*arrival),
                                                    std::chrono::seconds(1));
        }
        return receiver != nullptr;
      },
      "accept");
  acceptors.reset();
  poll_until(
      [&] {
        const bool ready = sender.ready();
        return receiver->ready() && ready;
      },
      "a path");
}

TEST_P(Choosing, GivesTheReasonWhenNoPathIsLeft) {
  providers_.pop_back();  // no TCP
  if (GetParam() == Fault::kNone) return;
  if (GetParam() == Fault::kListen) {
    EXPECT_THROW(Acceptors(providers_, 0), Error);
    return;
  }
  const auto acceptors = std::make_shared<Acceptors>(providers_, 0);
  std::string said;
  try {
    AutoSender sender(providers_, *decode_offers(acceptors->handle()));
    std::unique_ptr<AutoReceiver> receiver;
    poll_until(
        [&] {
          if (!receiver) {
            if (auto arrival = acceptors->take_new()) {
              receiver = std::make_unique<AutoReceiver>(acceptors, std::move(*arrival),
                                                        std::chrono::milliseconds(10));
            }
          } else if (GetParam() != Fault::kReceiverVerifies) {
            (void)receiver->ready();
          } else {
            try {
              (void)receiver->ready();
            } catch (const Error&) {
            }
          }
          (void)sender.ready();
          return false;
        },
        "the end");
  } catch (const Error& error) {
    said = error.what();
  }
  const bool told = said.find("/dev/shm is full") != std::string::npos;
  const bool closed = said.find("closed") != std::string::npos;
  EXPECT_TRUE(told || closed) << said;
}

INSTANTIATE_TEST_SUITE_P(Faults, Choosing,
                         ::testing::Values(Fault::kNone, Fault::kListen, Fault::kConnect,
                                           Fault::kSenderVerifies, Fault::kReceiverVerifies,
                                           Fault::kAccept));

// A bridge's connections may take GPU memory. Those of one host go over shared memory, which does
// not, and nobody knows which of both a connection will be when NCCL asks.
TEST(Auto, TakesMemoryThatAllOfItsPathsTake) {
  window::sisci::testing::alone(
      std::string("cuda_library ") + RW_STAND_IN_CUDA + "\n", [](const SoftwareFabric&) {
        const window::testing::StandIn stand_in;
        Config config;
        config.set("SOCKET_IFNAME", "=lo", "test");
        config.set("SISCI_LIBRARY", RW_SOFTWARE_SISCI, "test");
        config.set("CUDA_LIBRARY", RW_STAND_IN_CUDA, "test");
        const auto kinds = [&](const char* provider) {
          return make_transport(provider, config)->properties(0).memory_kinds;
        };
        constexpr auto kHost = static_cast<unsigned>(MemoryKind::kHost);
        constexpr auto kCuda = static_cast<unsigned>(MemoryKind::kCuda);
        CHECK_THAT(kinds("sisci") == (kHost | kCuda));
        CHECK_THAT(kinds("shm") == kHost);
        CHECK_THAT(kinds("auto") == kHost);
        CHECK_THAT(make_transport("auto", config)->num_devices() ==
                   make_transport("sisci", config)->num_devices());
      });
}

TEST(Offers, SurviveEncodingAndDecoding) {
  Handle one{};
  one[0] = std::byte{1};
  one[39] = std::byte{2};
  Handle other{};
  other[59] = std::byte{3};
  const Handle both = encode({{PathKind::kShm, one}, {PathKind::kTcp, other}});
  const auto offers = decode_offers(both);
  ASSERT_TRUE(offers);
  ASSERT_EQ(offers->size(), 2U);
  EXPECT_EQ((*offers)[0].kind, PathKind::kShm);
  EXPECT_EQ((*offers)[0].handle, one);
  EXPECT_EQ((*offers)[1].kind, PathKind::kTcp);
  EXPECT_EQ((*offers)[1].handle, other);

  // Where there is less room, the best path alone is left.
  const auto fewer = decode_offers(shortened(both, 60));
  ASSERT_TRUE(fewer);
  ASSERT_EQ(fewer->size(), 1U);
  EXPECT_EQ((*fewer)[0].handle, one);
  EXPECT_EQ(shortened(other, 60), other);
  EXPECT_THROW((void)shortened(other, 59), Error);
  EXPECT_THROW((void)shortened(both, 20), Error);
}

// The longest that each can be: where a bridge fails, the network must have been offered beside it.
TEST(Offers, OfAllProvidersFit) {
  window::ListenerAddress shm;
  shm.name.fill(std::byte{0xff});
  shm.secret.fill(std::byte{0xff});
  window::sisci::ListenerAddress sisci;
  sisci.node = sisci.interrupt = 0xffffffff;
  sisci.adapter = 15;
  sisci.secret.fill(std::byte{0xff});
  tcp::Target tcp;
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = 0xffff;
  address.sin6_scope_id = 255;
  std::memset(&address.sin6_addr, 0xff, sizeof address.sin6_addr);
  std::memcpy(&tcp.address.storage, &address, sizeof address);
  tcp.proof.fill(std::byte{0xff});
  tcp.reply.fill(std::byte{0xff});
  const std::vector<Offer> all = {{PathKind::kShm, encode(shm)},
                                  {PathKind::kSisci, encode(sisci)},
                                  {PathKind::kTcp, tcp::encode(tcp)}};
  const auto offers = decode_offers(encode(all));
  ASSERT_TRUE(offers);
  ASSERT_EQ(offers->size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ((*offers)[i].handle, all[i].handle);
}

TEST(Offers, OfOtherBytesThereAreNone) {
  Handle handle{};
  EXPECT_FALSE(decode_offers(handle));
  handle.fill(std::byte{0xff});
  EXPECT_FALSE(decode_offers(handle));
  handle = encode({{PathKind::kTcp, handle}});  // does not fit
  EXPECT_FALSE(decode_offers(handle));
}

}  // namespace
}  // namespace ropewalk::transport::choosing
