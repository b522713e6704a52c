// Calls that the program interrupts while they wait for other ranks.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/test_support.h"
#include "comm/communicator.h"
#include "comm/group.h"
#include "core/error.h"
#include "core/interrupt.h"

namespace ropewalk::comm {
namespace {

using bootstrap::error_of;
using TestClock = std::chrono::steady_clock;

// As a person's Ctrl-C, 0.1 s after a call began to wait.
class Impatient {
 public:
  Impatient() {
    set_interrupt_check([](void*) { return 1; }, nullptr);
  }
  ~Impatient() { set_interrupt_check(nullptr, nullptr); }
  Impatient(const Impatient&) = delete;
  Impatient& operator=(const Impatient&) = delete;
};

CollectiveCall all_reduce(std::vector<float>& data) {
  CollectiveCall call;
  call.input = data.data();
  call.output = data.data();
  call.count = data.size();
  return call;
}

class Interrupted : public ::testing::Test {
 protected:
  Interrupted() {
    runtime_.set("TUNE", "0", "test");
    runtime_.set("TIMEOUT", "60", "test");
  }
  ~Interrupted() override { EXPECT_LT(TestClock::now() - begin_, std::chrono::seconds(30)); }

  // `waits` is rank 0; rank 1 joins, takes no part, and reports the error that it got.
  std::string told_to_the_other(const std::function<void(Communicator&)>& waits) {
    const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
    std::string told;
    std::thread other([&] {
      const std::unique_ptr<Communicator> comm = Communicator::join(id, 1, 2, runtime_);
      while (!comm->failure().broken()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      told = comm->failure().error().what();
    });
    const std::unique_ptr<Communicator> comm = Communicator::join(id, 0, 2, runtime_);
    waits(*comm);
    other.join();
    return told;
  }

  Runtime runtime_;
  TestClock::time_point begin_ = TestClock::now();
};

TEST_F(Interrupted, AnOperationBreaksTheCommunicatorAndNotifiesTheOthers) {
  std::vector<float> data(4, 1.0F);
  const std::string told = told_to_the_other([&](Communicator& comm) {
    const auto [code, text] = error_of([&] {
      const Impatient here;
      comm.run(all_reduce(data));
    });
    EXPECT_EQ(code, Errc::kInterrupted);
    EXPECT_NE(text.find("rank 0 was interrupted by its program while it waited for rank 1"),
              std::string::npos)
        << text;
    EXPECT_EQ(error_of([&] { comm.run(all_reduce(data)); }), std::pair(code, text));
  });
  EXPECT_NE(told.find("rank 0 was interrupted"), std::string::npos) << told;
}

TEST_F(Interrupted, WhoOnlyLooksGoesOn) {
  std::vector<float> data(4, 1.0F);
  std::vector<float> other(4, 2.0F);
  std::atomic<int> looks{0};
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
  std::thread late([&] {
    const std::unique_ptr<Communicator> comm = Communicator::join(id, 1, 2, runtime_);
    while (looks < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    comm->run(all_reduce(other));
    comm->finalize();
  });
  const std::unique_ptr<Communicator> comm = Communicator::join(id, 0, 2, runtime_);
  const auto look = [](void* user) {
    ++*static_cast<std::atomic<int>*>(user);
    return 0;
  };
  set_interrupt_check(look, &looks);
  comm->run(all_reduce(data));
  set_interrupt_check(nullptr, nullptr);
  comm->finalize();
  late.join();
  EXPECT_EQ(data, std::vector<float>(4, 3.0F));
}

TEST_F(Interrupted, AWaitForARequestLeavesTheOperation) {
  std::vector<float> data(4, 1.0F);
  std::vector<float> other(4, 2.0F);
  std::atomic<bool> interrupted_once{false};
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
  std::thread late([&] {
    const std::unique_ptr<Communicator> comm = Communicator::join(id, 1, 2, runtime_);
    while (!interrupted_once) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    comm->run(all_reduce(other));
    comm->finalize();
  });
  const std::unique_ptr<Communicator> comm = Communicator::join(id, 0, 2, runtime_);
  Request request;
  const std::shared_ptr<Request> shared(&request, [](Request*) {});
  comm->start(all_reduce(data), shared);
  const auto wait = [&] {
    const Impatient here;
    request.wait(std::chrono::microseconds(-1));
  };
  EXPECT_EQ(error_of(wait).first, Errc::kInterrupted);
  interrupted_once = true;
  EXPECT_TRUE(request.wait(std::chrono::microseconds(-1)));
  EXPECT_FALSE(request.error().has_value());
  comm->finalize();
  late.join();
  EXPECT_EQ(data, std::vector<float>(4, 3.0F));
}

TEST_F(Interrupted, WaitingForAStartedOperationEndsIt) {
  std::vector<float> data(4, 1.0F);
  const auto request = std::make_shared<Request>();
  const std::string told = told_to_the_other([&](Communicator& comm) {
    comm.start(all_reduce(data), request);
    const auto finish = [&] {
      const Impatient here;
      comm.finalize();
    };
    EXPECT_EQ(error_of(finish).first, Errc::kInterrupted);
    EXPECT_TRUE(request->wait(std::chrono::seconds(10)));
    EXPECT_TRUE(request->error().has_value());
  });
  EXPECT_NE(told.find("rank 0 was interrupted"), std::string::npos) << told;
}

TEST_F(Interrupted, Split) {
  const std::string told = told_to_the_other([](Communicator& comm) {
    const auto split = [&] {
      const Impatient here;
      (void)comm.split(0, 0);
    };
    EXPECT_EQ(error_of(split).first, Errc::kInterrupted);
  });
  EXPECT_NE(told.find("interrupted by the program"), std::string::npos) << told;
}

TEST_F(Interrupted, Joining) {
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
  const Impatient here;
  const auto [code, text] = error_of([&] { Communicator::join(id, 0, 2, runtime_); });
  EXPECT_EQ(code, Errc::kInterrupted);
  EXPECT_NE(text.find("rank 0"), std::string::npos) << text;
}

// The group's joins are in threads of their own.
TEST_F(Interrupted, JoiningInAGroup) {
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
  std::array<std::unique_ptr<Communicator>, 2> joined;
  Group group;
  group.start();
  for (int rank = 0; rank < 2; ++rank) {
    group.add_join([&, rank] {
      joined.at(static_cast<std::size_t>(rank)) = Communicator::join(id, rank, 3, runtime_);
    });
  }
  const Impatient here;
  EXPECT_EQ(error_of([&] { group.end(); }).first, Errc::kInterrupted);
}

// Several communicators of one thread wait together.
TEST_F(Interrupted, AGroupOfOperations) {
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
  std::array<std::unique_ptr<Communicator>, 3> ranks;
  Group group;
  group.start();
  for (int rank = 0; rank < 3; ++rank) {
    group.add_join([&, rank] {
      ranks.at(static_cast<std::size_t>(rank)) = Communicator::join(id, rank, 3, runtime_);
    });
  }
  group.end();
  std::array<std::vector<float>, 2> data{std::vector<float>(4), std::vector<float>(4)};
  group.start();
  group.add(*ranks[0], all_reduce(data[0]), nullptr);
  group.add(*ranks[1], all_reduce(data[1]), nullptr);
  const auto end = [&] {
    const Impatient here;
    group.end();
  };
  EXPECT_EQ(error_of(end).first, Errc::kInterrupted);
  EXPECT_TRUE(ranks[0]->failure().broken());
  EXPECT_TRUE(ranks[1]->failure().broken());
}

}  // namespace
}  // namespace ropewalk::comm
