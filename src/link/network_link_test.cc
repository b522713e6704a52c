// Links whose other end is gone, over TCP on loopback.
#include "link/network_link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/settings.h"
#include "transport/registry.h"

namespace ropewalk::link {
namespace {

using executor::SlotHeader;
using executor::SlotKind;
using std::chrono::milliseconds;

constexpr std::uint64_t kWord = 0x0123456789abcdef;

class LinkOverTcp : public ::testing::Test {
 protected:
  LinkOverTcp() {
    Config config;
    config.set("SOCKET_IFNAME", "=lo", "test");
    config.set("VERIFY", "off", "test");
    transport_ = transport::make_transport("tcp", config);
    executor::FifoShape shape;
    shape.headers = shape.slots = 4;
    shape.slot_bytes = 4096;
    sender_ = std::make_unique<NetworkSender>(shape, 1, host_fifo, false);
    receiver_ = std::make_unique<NetworkReceiver>(shape, 2, host_fifo, false);
    const auto listener = transport_->listen(0);
    const auto connector = transport_->connect(0, listener->handle());
    std::unique_ptr<transport::SendConnection> sends;
    std::unique_ptr<transport::ReceiveConnection> receives;
    until([&] {
      if (sends == nullptr) sends = connector->poll();
      if (receives == nullptr) receives = listener->accept();
      return sends != nullptr && receives != nullptr && sends->ready() && receives->ready();
    });
    sender_->use(std::move(sends));
    receiver_->use(std::move(receives));
  }

  template <typename Done>
  static void until(Done done) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done()) {
      if (std::chrono::steady_clock::now() > limit) throw std::runtime_error("hangs");
      std::this_thread::yield();
    }
  }

  void publish() {
    executor::SendEnd& end = sender_->end();
    SlotHeader& header = *end.header(end.published + 1);
    header.kind = SlotKind::kInline;
    header.bytes = sizeof kWord;
    std::memcpy(header.inline_data, &kWord, sizeof kWord);
    ++end.published;
    until([&] {
      (void)sender_->poll();
      return sender_->drained();
    });
  }

  // As a walker: looks, and takes the chunk if it is there.
  bool take() {
    executor::ReceiveEnd& end = receiver_->end();
    SlotHeader& header = *end.header(end.received + 1);
    if (std::atomic_ref(header.sequence).load(std::memory_order_acquire) != end.received + 1) {
      end.waited = true;
      return false;
    }
    std::uint64_t word = 0;
    std::memcpy(&word, header.inline_data, sizeof word);
    EXPECT_EQ(word, kWord);
    ++end.received;
    end.waited = false;
    return true;
  }

  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<NetworkSender> sender_;
  std::unique_ptr<NetworkReceiver> receiver_;
};

// The sender's rank has done its part and left; this one still waits for others.
TEST_F(LinkOverTcp, AnEndThatIsNotWaitedForMayBeGone) {
  EXPECT_FALSE(take());
  (void)receiver_->poll();  // posts receives ahead
  publish();
  publish();
  sender_.reset();
  std::this_thread::sleep_for(milliseconds(50));
  // Both chunks, and the end of the connection, are there at once.
  until([&] {
    (void)receiver_->poll();
    return take();
  });
  until([&] {
    (void)receiver_->poll();
    return take();
  });
  for (int turn = 0; turn < 1000; ++turn) EXPECT_NO_THROW((void)receiver_->poll());
  std::vector<pollfd> descriptors;
  EXPECT_TRUE(receiver_->add_descriptors(descriptors));
  EXPECT_TRUE(descriptors.empty());
  // Now one more is wanted, which will not come.
  EXPECT_FALSE(take());
  try {
    until([&] {
      (void)receiver_->poll();
      return false;
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kPeerLost);
    EXPECT_NE(std::string(error.what()).find("receiving from rank 2"), std::string::npos)
        << error.what();
  }
}

TEST_F(LinkOverTcp, AnEndThatIsWaitedForAndGoneIsAnError) {
  EXPECT_FALSE(take());
  sender_.reset();
  EXPECT_THROW(until([&] {
                 (void)receiver_->poll();
                 return false;
               }),
               Error);
}

}  // namespace
}  // namespace ropewalk::link
