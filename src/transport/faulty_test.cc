#include "transport/faulty.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/settings.h"
#include "transport/registry.h"

namespace ropewalk::transport {
namespace {

using Clock = std::chrono::steady_clock;

TEST(Faults, AreParsed) {
  const Faults faults = parse_faults("delay=2ms,reorder=0.1,fail=0.01,drop=1,seed=7");
  EXPECT_EQ(faults.delay, std::chrono::milliseconds(2));
  EXPECT_EQ(faults.reorder, 0.1);
  EXPECT_EQ(faults.fail, 0.01);
  EXPECT_EQ(faults.drop, 1);
  EXPECT_EQ(faults.seed, 7U);
  for (const char* bad : {"fail", "fail=", "fail=2", "fail=-1", "fail=nan", "fail=0.1x", "speed=1",
                          "delay=soon", "seed=x"}) {
    EXPECT_THROW(parse_faults(bad), Error) << bad;
  }
}

struct Message {
  std::unique_ptr<Request> receive;
  std::unique_ptr<Request> send;
  char in = 0;
};

// Sends `count` bytes over one connection; what became of each: '.' received and sent, 'd' never
// finished, 'f' failed. `order` is the order in which receives were reported finished.
struct Outcome {
  std::string arrivals;
  std::vector<std::size_t> order;
};

Outcome run(const std::string& faults, std::size_t count) {
  Config config;
  config.set("FAULTY", faults, "test");
  const auto transport = make_transport("shm", config);
  const auto listener = transport->listen(0);
  const auto connector = transport->connect(0, listener->handle());
  std::unique_ptr<SendConnection> sender;
  std::unique_ptr<ReceiveConnection> receiver;
  while (!sender || !receiver) {
    if (!sender) sender = connector->poll();
    if (!receiver) receiver = listener->accept();
  }
  Outcome outcome;
  std::vector<Message> messages(count);
  std::vector<bool> done(count, false);
  try {
    for (Message& message : messages) {
      const ReceiveBuffer buffer{&message.in, 1, 0, nullptr};
      message.receive = receiver->receive({&buffer, 1});
      if (!message.receive) throw std::runtime_error("too many requests");
      while (!message.send) {
        message.send = sender->send("x", 1, 0, nullptr);
        if (!message.send) (void)message.receive->test();
      }
    }
    // Long enough for messages that arrive, bounded for messages that were dropped.
    const auto enough = Clock::now() + std::chrono::milliseconds(50);
    while (outcome.order.size() < count && Clock::now() < enough) {
      for (std::size_t i = 0; i < count; ++i) {
        if (!done[i] && messages[i].receive->test()) {
          done[i] = true;
          outcome.order.push_back(i);
        }
      }
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kPeerLost);
    outcome.arrivals = "f";
  }
  if (outcome.arrivals.empty()) {
    for (const bool arrived : done) outcome.arrivals += arrived ? '.' : 'd';
  }
  return outcome;
}

TEST(Faulty, NoFaultsChangeNothing) {
  const Outcome outcome = run("seed=1", 20);
  EXPECT_EQ(outcome.arrivals, std::string(20, '.'));
  EXPECT_TRUE(std::is_sorted(outcome.order.begin(), outcome.order.end()));
}

TEST(Faulty, DropsNeverFinishAndDependOnTheSeed) {
  const Outcome outcome = run("drop=0.3,seed=5", 30);
  EXPECT_NE(outcome.arrivals.find('d'), std::string::npos);
  EXPECT_NE(outcome.arrivals.find('.'), std::string::npos);
  EXPECT_EQ(outcome.arrivals, run("drop=0.3,seed=5", 30).arrivals);
  EXPECT_NE(outcome.arrivals, run("drop=0.3,seed=6", 30).arrivals);
}

TEST(Faulty, ReorderedRequestsFinishLater) {
  const Outcome outcome = run("reorder=0.5,seed=2", 30);
  EXPECT_EQ(outcome.arrivals, std::string(30, '.'));
  EXPECT_FALSE(std::is_sorted(outcome.order.begin(), outcome.order.end()));
}

TEST(Faulty, FailuresAreLostPeersAndStay) {
  EXPECT_EQ(run("fail=0.2,seed=2", 30).arrivals, "f");
  EXPECT_EQ(run("fail=1", 1).arrivals, "f");
}

}  // namespace
}  // namespace ropewalk::transport
