// Windows of communicators whose ranks are threads of this process: one suite over all kinds of
// windows and links.
#include "comm/testing/windows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <latch>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/testing/networks.h"
#include "comm/testing/ranks.h"
#include "core/error.h"
#include "core/testing/pattern.h"
#include "core/testing/seeds.h"
#include "core/testing/share.h"
#include "message/messenger.h"

namespace ropewalk::comm {
namespace {

using message::Batch;
using message::OperationKind;
using message::OperationSpec;
using message::Refused;
using message::Window;
using message::WindowSpec;
using testing::pattern;
using testing::quiet;
using testing::refusal_of;
using testing::with_ranks;
using Bytes = std::vector<std::byte>;

constexpr std::chrono::seconds kLong{60};

// What a window's memory is, and what is between the ranks.
struct Kind {
  std::string name;
  bool registers = false;
  std::string net = {};  // of networks(); "": shared memory
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

std::vector<Kind> kinds() {
  std::vector<Kind> all = {{"allocated"}, {"registered", true}};
  for (const testing::Network& network : testing::networks()) {
    const std::string name(network.name);
    all.push_back({"over_" + name, false, name});
    // Where the memory lies decides in the messenger, which is the same over all of them.
    if (name == "tcp" || name == "ofi") all.push_back({"registered_over_" + name, true, name});
  }
  return all;
}

// One rank's end of a window.
class End {
 public:
  End(Communicator& comm, const Kind& kind, std::size_t bytes, int slots = 1)
      : comm_(comm), memory_(kind.registers ? bytes : 0) {
    WindowSpec spec;
    spec.registers = kind.registers;
    spec.memory = memory_.data();
    spec.bytes = bytes;
    spec.slots = slots;
    window_ = &comm.create_window(spec);
  }

  [[nodiscard]] OperationSpec put(int peer, std::size_t offset, const Bytes& source) const {
    OperationSpec spec = of(OperationKind::kPut, peer);
    spec.offset = offset;
    spec.bytes = source.size();
    spec.source = source.data();
    return spec;
  }
  [[nodiscard]] OperationSpec get(int peer, std::size_t offset, Bytes& destination) const {
    OperationSpec spec = of(OperationKind::kGet, peer);
    spec.offset = offset;
    spec.bytes = destination.size();
    spec.destination = destination.data();
    return spec;
  }
  [[nodiscard]] OperationSpec signal(int peer, int slot = 0, std::uint64_t count = 1) const {
    OperationSpec spec = of(OperationKind::kSignal, peer);
    spec.slot = slot;
    spec.count = count;
    return spec;
  }
  [[nodiscard]] OperationSpec wait(int peer, int slot = 0, std::uint64_t count = 1) const {
    OperationSpec spec = signal(peer, slot, count);
    spec.kind = OperationKind::kWaitSignal;
    return spec;
  }
  [[nodiscard]] OperationSpec flush(int peer) const { return of(OperationKind::kFlush, peer); }

  void run(const OperationSpec& spec) { comm_.run(spec); }
  std::shared_ptr<Request> start(const OperationSpec& spec) {
    auto request = std::make_shared<Request>();
    comm_.start(spec, request);
    return request;
  }
  [[nodiscard]] std::byte* data() const { return window_->own().data; }
  [[nodiscard]] Window& window() const { return *window_; }
  void free() { comm_.free_window(*window_); }

 private:
  [[nodiscard]] OperationSpec of(OperationKind kind, int peer) const {
    OperationSpec spec;
    spec.kind = kind;
    spec.window = window_;
    spec.peer = peer;
    return spec;
  }

  Communicator& comm_;
  Bytes memory_;
  Window* window_;
};

class WindowContract : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    quiet(runtime_);
    if (!GetParam().net.empty()) testing::use_network(runtime_, GetParam().net);
  }
  void ranks(int size, const std::function<void(Communicator&)>& body) {
    with_ranks(size, runtime_, body);
  }
  Runtime runtime_;
};

TEST_P(WindowContract, ASignalPublishesThePutsBeforeIt) {
  ranks(3, [&](Communicator& comm) {
    constexpr std::size_t kMost = (std::size_t{1} << 20) + 3;
    End end(comm, GetParam(), kMost);
    const int next = (comm.rank() + 1) % 3;
    const int previous = (comm.rank() + 2) % 3;
    int turn = 0;
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{96}, std::size_t{97},
          std::size_t{4096}, std::size_t{16} << 10U, (std::size_t{128} << 10U) - 1,
          std::size_t{128} << 10U, (std::size_t{128} << 10U) + 1, kMost}) {
      ++turn;
      const Bytes source = pattern(bytes, comm.rank(), turn);
      end.run(end.put(next, kMost - bytes, source));
      end.run(end.signal(next));
      end.run(end.wait(previous));
      const Bytes expected = pattern(bytes, previous, turn);
      ASSERT_TRUE(bytes == 0 ||
                  std::memcmp(end.data() + (kMost - bytes), expected.data(), bytes) == 0)
          << bytes;
      // The next turn overwrites it.
      comm.barrier();
    }
    end.free();
  });
}

TEST_P(WindowContract, AGetSeesWhatIsThereAndThisRanksOwnPuts) {
  ranks(2, [&](Communicator& comm) {
    constexpr std::size_t kBytes = 300'001;
    End end(comm, GetParam(), kBytes);
    const int peer = 1 - comm.rank();
    const Bytes mine = pattern(kBytes, comm.rank(), 1);
    std::memcpy(end.data(), mine.data(), kBytes);
    comm.barrier();
    Bytes seen(kBytes);
    end.run(end.get(peer, 0, seen));
    EXPECT_EQ(seen, pattern(kBytes, peer, 1));
    Bytes few(5);
    end.run(end.get(peer, kBytes - 5, few));
    EXPECT_TRUE(std::equal(few.begin(), few.end(), seen.end() - 5));
    Bytes none;
    end.run(end.get(peer, kBytes, none));
    comm.barrier();
    const Bytes other = pattern(70'000, comm.rank(), 2);
    end.run(end.put(peer, 11, other));
    Bytes back(other.size());
    end.run(end.get(peer, 11, back));
    EXPECT_EQ(back, other);
    // With oneself.
    end.run(end.put(comm.rank(), 0, few));
    end.run(end.signal(comm.rank()));
    end.run(end.wait(comm.rank()));
    EXPECT_TRUE(std::equal(few.begin(), few.end(), end.data()));
    end.free();
  });
}

TEST_P(WindowContract, SizesMayDifferAndBeNothing) {
  ranks(3, [&](Communicator& comm) {
    const std::size_t bytes = static_cast<std::size_t>(comm.rank()) * 1000;
    End end(comm, GetParam(), bytes);
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(end.window().part(peer).bytes, static_cast<std::size_t>(peer) * 1000);
    }
    if (comm.rank() == 0) {
      end.run(end.put(2, 1000, pattern(1000, 0, 0)));
      end.run(end.signal(2));
      // That peer has signals alone.
    } else if (comm.rank() == 2) {
      end.run(end.wait(0));
      EXPECT_EQ(std::memcmp(end.data() + 1000, pattern(1000, 0, 0).data(), 1000), 0);
      end.run(end.signal(0));
    }
    if (comm.rank() == 0) end.run(end.wait(2));
    end.free();
  });
}

// Rank 1 is told by rank 2, who is told by a collective: not by the rank that put.
TEST_P(WindowContract, AFlushCompletesAtThePeer) {
  ranks(3, [&](Communicator& comm) {
    End end(comm, GetParam(), 200'000);
    for (int turn = 0; turn < 3; ++turn) {
      const Bytes source = pattern(150'000, 0, turn);
      if (comm.rank() == 0) {
        const auto request = end.start(end.put(1, 10, source));
        end.run(end.signal(1));
        if (turn == 1) {
          comm.flush(end.window());
        } else {
          end.run(end.flush(1));
        }
        ASSERT_TRUE(request->wait(std::chrono::microseconds(0)));
      }
      comm.barrier();
      if (comm.rank() == 1) {
        EXPECT_EQ(std::memcmp(end.data() + 10, source.data(), source.size()), 0);
        EXPECT_EQ(comm.arrived(end.window(), 0, 0), static_cast<std::uint64_t>(turn) + 1);
      }
      comm.barrier();
    }
    end.free();
  });
}

TEST_P(WindowContract, RequestsEnd) {
  ranks(2, [&](Communicator& comm) {
    constexpr std::size_t kBytes = 500'000;
    End end(comm, GetParam(), 2 * kBytes, 3);
    const int peer = 1 - comm.rank();
    const auto before = end.start(end.wait(peer, 2, 5));
    const Bytes a = pattern(kBytes, comm.rank(), 1);
    const Bytes b = pattern(kBytes, comm.rank(), 2);
    const auto first = end.start(end.put(peer, 0, a));
    const auto second = end.start(end.put(peer, kBytes, b));
    const auto told = end.start(end.signal(peer, 1));
    Bytes back(kBytes);
    const auto got = end.start(end.get(peer, kBytes, back));
    for (const auto& request : {first, second, told, got}) {
      ASSERT_TRUE(request->wait(kLong));
      EXPECT_FALSE(request->error().has_value());
    }
    EXPECT_EQ(back, b);
    end.run(end.wait(peer, 1));
    EXPECT_EQ(std::memcmp(end.data(), pattern(kBytes, peer, 1).data(), kBytes), 0);
    EXPECT_FALSE(before->wait(std::chrono::microseconds(0)));
    comm.barrier();
    end.run(end.signal(peer, 2, 4));
    end.run(end.signal(peer, 2, 1));
    ASSERT_TRUE(before->wait(kLong));
    EXPECT_FALSE(before->error().has_value());
    end.free();
  });
}

// The target is in no call of the library.
TEST_P(WindowContract, ARankThatComputesIsServed) {
  std::atomic<bool> done{false};
  ranks(2, [&](Communicator& comm) {
    End end(comm, GetParam(), 400'000);
    const Bytes source = pattern(400'000, 0, 0);
    comm.barrier();
    if (comm.rank() == 0) {
      end.run(end.put(1, 0, source));
      Bytes back(source.size());
      end.run(end.get(1, 0, back));
      EXPECT_EQ(back, source);
      end.run(end.flush(1));
      done = true;
    } else {
      while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_EQ(std::memcmp(end.data(), source.data(), source.size()), 0);
    }
    end.free();
  });
}

TEST_P(WindowContract, BatchesAreLaunchedAgainAndAgain) {
  ranks(3, [&](Communicator& comm) {
    End end(comm, GetParam(), 3 * 40'000, 2);
    const auto rank = static_cast<std::size_t>(comm.rank());
    Bytes source(40'000);
    Batch batch;
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == comm.rank()) continue;
      comm.add(batch, end.put(peer, rank * 40'000, source));
      comm.add(batch, end.signal(peer));
    }
    for (int peer = 0; peer < 3; ++peer) {
      if (peer != comm.rank()) comm.add(batch, end.wait(peer));
    }
    EXPECT_EQ(batch.size(), 6U);
    for (int turn = 0; turn < 20; ++turn) {
      std::ranges::copy(pattern(source.size(), comm.rank(), turn), source.begin());
      if (turn % 2 == 0) {
        comm.run(batch);
      } else {
        const auto request = std::make_shared<Request>();
        comm.start(batch, request);
        ASSERT_TRUE(request->wait(kLong));
        EXPECT_FALSE(request->error().has_value());
      }
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == comm.rank()) continue;
        const Bytes expected = pattern(source.size(), peer, turn);
        ASSERT_EQ(std::memcmp(end.data() + static_cast<std::size_t>(peer) * 40'000, expected.data(),
                              expected.size()),
                  0)
            << turn;
      }
      comm.barrier();
    }
    end.free();
  });
}

TEST_P(WindowContract, ABatchIsNotLaunchedTwiceAtOnce) {
  ranks(2, [&](Communicator& comm) {
    End end(comm, GetParam(), 8, 2);
    const int peer = 1 - comm.rank();
    Batch batch;
    comm.add(batch, end.wait(peer));
    comm.add(batch, end.signal(peer, 1));
    const auto request = std::make_shared<Request>();
    comm.start(batch, request);
    EXPECT_EQ(refusal_of([&] { comm.run(batch); }).first, Errc::kInvalidUsage);
    EXPECT_EQ(refusal_of([&] { comm.add(batch, end.signal(peer)); }).first, Errc::kInvalidUsage);
    EXPECT_EQ(refusal_of([&] { end.free(); }).first, Errc::kInvalidUsage);
    comm.barrier();
    // What comes after the wait is held back, what is called meanwhile is not.
    EXPECT_EQ(comm.arrived(end.window(), peer, 1), 0U);
    comm.barrier();
    end.run(end.signal(peer));
    end.run(end.wait(peer, 1));
    ASSERT_TRUE(request->wait(kLong));
    EXPECT_FALSE(request->error().has_value());
    EXPECT_FALSE(batch.running());
    end.free();
  });
}

// One of them makes progress for all.
TEST_P(WindowContract, SeveralThreadsWaitForRequests) {
  constexpr int kWaiters = 4;
  ranks(2, [&](Communicator& comm) {
    End end(comm, GetParam(), 8, kWaiters);
    const int peer = 1 - comm.rank();
    std::vector<std::shared_ptr<Request>> requests;
    for (int slot = 0; slot < kWaiters; ++slot) requests.push_back(end.start(end.wait(peer, slot)));
    EXPECT_FALSE(requests.front()->wait(std::chrono::milliseconds(2)));
    std::vector<std::thread> threads;
    for (const auto& request : requests) {
      threads.emplace_back([request] {
        EXPECT_TRUE(request->wait(kLong));
        EXPECT_FALSE(request->error().has_value());
      });
    }
    comm.barrier();
    for (int slot = kWaiters - 1; slot >= 0; --slot) end.run(end.signal(peer, slot));
    for (std::thread& thread : threads) thread.join();
    end.free();
  });
}

TEST_P(WindowContract, AThreadThatWaitsHearsOfTheEnd) {
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
  std::unique_ptr<Communicator> comm = Communicator::join(id, 0, 1, runtime_);
  End end(*comm, GetParam(), 8);
  const std::shared_ptr<Request> request = end.start(end.wait(0));
  std::thread thread([request] {
    EXPECT_TRUE(request->wait(kLong));
    ASSERT_TRUE(request->error().has_value());
    EXPECT_EQ(request->error()->code(), Errc::kAborted) << request->error()->what();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it makes progress
  comm->abort("the test ends");
  comm.reset();
  thread.join();
}

TEST_P(WindowContract, WhatCannotBeRightIsRefused) {
  ranks(2, [&](Communicator& comm) {
    End end(comm, GetParam(), 100, 2);
    const Bytes source(60);
    Bytes destination(60);
    const auto code = [&](const OperationSpec& spec) { return refusal_of([&] { end.run(spec); }); };
    const std::pair<Errc, std::string> beyond = code(end.put(1, 41, source));
    EXPECT_EQ(beyond.first, Errc::kInvalidArgument);
    EXPECT_NE(beyond.second.find("put of 60 bytes to rank 1, window 1: offset 41"),
              std::string::npos)
        << beyond.second;
    EXPECT_EQ(code(end.get(0, 41, destination)).first, Errc::kInvalidArgument);
    EXPECT_EQ(code(end.put(1, ~std::size_t{0}, source)).first, Errc::kInvalidArgument);
    EXPECT_EQ(code(end.put(2, 0, source)).first, Errc::kInvalidArgument);
    EXPECT_EQ(code(end.put(-1, 0, source)).first, Errc::kInvalidArgument);
    OperationSpec null = end.put(1, 0, source);
    null.source = nullptr;
    EXPECT_EQ(code(null).first, Errc::kInvalidArgument);
    EXPECT_EQ(code(end.signal(1, 2)).first, Errc::kInvalidArgument);
    EXPECT_EQ(code(end.signal(1, -1)).first, Errc::kInvalidArgument);
    EXPECT_EQ(code(end.signal(1, 0, 0)).first, Errc::kInvalidArgument);
    EXPECT_EQ(code(end.wait(1, 0, Window::kMostSignals + 1)).first, Errc::kInvalidArgument);
    Batch batch;
    EXPECT_EQ(refusal_of([&] { comm.add(batch, end.put(1, 41, source)); }).first,
              Errc::kInvalidArgument);
    EXPECT_EQ(refusal_of([&] { (void)end.start(end.put(1, 41, source)); }).first,
              Errc::kInvalidArgument);
    // All is as before.
    const int peer = 1 - comm.rank();
    end.run(end.put(peer, 40, source));
    end.run(end.signal(peer, 1));
    end.run(end.wait(peer, 1));
    end.free();
    EXPECT_EQ(code(end.put(1, 0, source)).first, Errc::kInvalidUsage);
    EXPECT_EQ(refusal_of([&] { end.free(); }).first, Errc::kInvalidUsage);
    comm.barrier();
  });
}

TEST_P(WindowContract, CountersEndBeforeTheyOverflow) {
  ranks(2, [&](Communicator& comm) {
    End end(comm, GetParam(), 0);
    const int peer = 1 - comm.rank();
    end.run(end.signal(peer, 0, Window::kMostSignals - 1));
    end.run(end.wait(peer, 0, Window::kMostSignals - 1));
    EXPECT_EQ(refusal_of([&] { end.run(end.signal(peer, 0, 2)); }).first, Errc::kInvalidArgument);
    EXPECT_EQ(refusal_of([&] { end.run(end.wait(peer, 0, 2)); }).first, Errc::kInvalidArgument);
    end.run(end.signal(peer, 0, 1));
    end.run(end.wait(peer, 0, 1));
    EXPECT_EQ(comm.arrived(end.window(), peer, 0), Window::kMostSignals);
    end.free();
  });
}

TEST_P(WindowContract, ARankThatLeftIsNamedAndTheOthersGoOn) {
  std::atomic<int> ready{0};
  ranks(3, [&](Communicator& comm) {
    End end(comm, GetParam(), 100);
    const Bytes source(100);
    if (comm.rank() == 2) {
      end.run(end.signal(0));
      comm.finalize();
      while (ready < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    const int peer = 1 - comm.rank();
    // What it did before it left is there; what it did not do will not come.
    if (comm.rank() == 0) end.run(end.wait(2));
    const std::pair<Errc, std::string> waited = refusal_of([&] { end.run(end.wait(2)); });
    EXPECT_EQ(waited.first, Errc::kPeerLost) << waited.second;
    EXPECT_NE(waited.second.find("rank 2 left"), std::string::npos) << waited.second;
    EXPECT_EQ(refusal_of([&] { end.run(end.put(2, 0, source)); }).first, Errc::kPeerLost);
    EXPECT_EQ(refusal_of([&] { (void)end.start(end.signal(2)); }).first, Errc::kPeerLost);
    const auto request = end.start(end.wait(2));
    ASSERT_TRUE(request->wait(kLong));
    ASSERT_TRUE(request->error().has_value());
    EXPECT_EQ(request->error()->code(), Errc::kPeerLost);
    end.run(end.put(peer, 0, source));
    end.run(end.signal(peer));
    end.run(end.wait(peer));
    ++ready;
  });
}

TEST_P(WindowContract, AWaitEndsByItsDeadline) {
  std::atomic<int> ended{0};
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> comm = Communicator::join(id, r, 2, runtime_);
      End end(*comm, GetParam(), 8);
      comm->barrier();
      if (r == 0) comm->set_timeout(std::chrono::milliseconds(300));
      const auto request = end.start(end.wait(1 - r));
      try {
        end.run(end.wait(1 - r));
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), r == 0 ? Errc::kTimeout : Errc::kPeerLost) << error.what();
        const std::string named = r == 0 ? "wait for 1 signal(s) of rank 1" : "rank 0 aborted";
        EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
      }
      ASSERT_TRUE(request->wait(kLong));
      EXPECT_TRUE(request->error().has_value());
      ++ended;
      while (ended < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(WindowContract, AnAbortEndsAWait) {
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
  std::latch ready(2);  // an abort also ends a call whose other rank is done
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> comm = Communicator::join(id, r, 2, runtime_);
      End end(*comm, GetParam(), 1 << 20);
      comm->barrier();
      if (r == 1) {
        ready.arrive_and_wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        comm->abort("enough");
        return;
      }
      ready.arrive_and_wait();
      EXPECT_THROW(end.run(end.wait(1)), Error);
      EXPECT_THROW(end.run(end.put(1, 0, Bytes(1 << 20))), Error);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(WindowContract, WhatRanksGiveDifferentlyIsToldToAll) {
  ranks(2, [&](Communicator& comm) {
    const auto told = [&](const WindowSpec& spec) {
      return refusal_of([&] { (void)comm.create_window(spec); });
    };
    WindowSpec spec;
    spec.slots = comm.rank() + 1;
    EXPECT_EQ(told(spec), std::pair(Errc::kInvalidUsage,
                                    std::string("slots differ: rank 0 has 1, rank 1 has 2")));
    spec = {};
    spec.registers = comm.rank() == 1;
    spec.bytes = 10;
    EXPECT_EQ(told(spec),
              std::pair(Errc::kInvalidArgument, std::string("rank 1: memory: NULL, and 10 bytes")));
    spec = {};
    spec.slots = 0;
    EXPECT_EQ(told(spec).first, Errc::kInvalidArgument);
    spec = {};
    spec.bytes = comm.rank() == 0 ? message::kMostWindowBytes : 1;
    const std::pair<Errc, std::string> large = told(spec);
    EXPECT_EQ(large.first, Errc::kSystem);
    EXPECT_EQ(large.second.substr(0, 21), "rank 0: shared memory") << large.second;
    End end(comm, GetParam(), 8);
    end.run(end.signal(1 - comm.rank()));
    end.run(end.wait(1 - comm.rank()));
    end.free();
  });
}

TEST_P(WindowContract, SeveralWindowsAndCollectivesBesides) {
  ranks(2, [&](Communicator& comm) {
    End first(comm, GetParam(), 1000);
    End second(comm, GetParam(), 1000);
    const int peer = 1 - comm.rank();
    for (int turn = 0; turn < 20; ++turn) {
      first.run(first.put(peer, 0, pattern(1000, comm.rank(), turn)));
      first.run(first.signal(peer));
      second.run(second.put(peer, 0, pattern(1000, comm.rank(), turn + 100)));
      second.run(second.signal(peer));
      comm.barrier();
      second.run(second.wait(peer));
      first.run(first.wait(peer));
      ASSERT_EQ(std::memcmp(first.data(), pattern(1000, peer, turn).data(), 1000), 0);
      ASSERT_EQ(std::memcmp(second.data(), pattern(1000, peer, turn + 100).data(), 1000), 0);
      comm.barrier();
    }
    second.free();
    first.run(first.signal(peer));
    first.run(first.wait(peer));
    // The first ends with the communicator.
  });
}

// ---- random programs against a reference model --------------------------------------------

// Each rank owns a part of every other one's window, which it alone writes: so what must be where
// follows from its own program, in order. A round ends when everybody has waited for all signals
// that were meant for it, has compared, and has told so.
class RandomProgram {
 public:
  static constexpr std::size_t kRegion = 3000;
  static constexpr int kSlots = 3;  // the last one says that a round was looked at

  RandomProgram(Communicator& comm, End& end, unsigned seed)
      : comm_(comm), end_(end), n_(static_cast<std::size_t>(comm.size())), random_(seed) {
    model_.assign(n_, std::vector<Bytes>(n_, Bytes(kRegion)));
    for (std::size_t source = 0; source < n_; ++source) {
      std::memset(end_.data() + source * kRegion, 0, kRegion);
    }
    comm.barrier();
  }

  // All ranks make the programs of all, from the same random numbers, and run their own.
  void run_round() {
    std::vector<std::vector<std::array<std::uint64_t, 2>>> signals(
        n_, std::vector<std::array<std::uint64_t, 2>>(n_, {0, 0}));
    for (std::size_t source = 0; source < n_; ++source) run_rank(source, signals);
    const auto self = static_cast<std::size_t>(comm_.rank());
    for (std::size_t source = 0; source < n_; ++source) {
      for (int slot = 0; slot < 2; ++slot) {
        const std::uint64_t count = signals[source][self][static_cast<std::size_t>(slot)];
        if (count > 0) end_.run(end_.wait(static_cast<int>(source), slot, count));
      }
    }
    for (std::size_t source = 0; source < n_; ++source) {
      ASSERT_EQ(std::memcmp(end_.data() + source * kRegion, model_[source][self].data(), kRegion),
                0)
          << "from rank " << source;
    }
    for (int peer = 0; peer < comm_.size(); ++peer) end_.run(end_.signal(peer, 2));
    for (int peer = 0; peer < comm_.size(); ++peer) end_.run(end_.wait(peer, 2));
  }

 private:
  std::size_t any(std::size_t n) { return random_() % n; }

  void run_rank(std::size_t source,
                std::vector<std::vector<std::array<std::uint64_t, 2>>>& signals) {
    const bool mine = source == static_cast<std::size_t>(comm_.rank());
    std::deque<Bytes> buffers;
    std::vector<std::shared_ptr<Request>> requests;
    std::vector<std::pair<Bytes*, Bytes>> gets;
    Batch batch;
    const bool batched = any(4) == 0;
    const auto give = [&](const OperationSpec& spec, bool with_request) {
      if (batched) {
        comm_.add(batch, spec);
      } else if (with_request) {
        requests.push_back(end_.start(spec));
      } else {
        end_.run(spec);
      }
    };
    const std::size_t operations = 1 + any(8);
    for (std::size_t k = 0; k < operations; ++k) {
      const std::size_t target = any(n_);
      const int peer = static_cast<int>(target);
      const std::size_t bytes = std::array{any(9), any(200), any(kRegion)}[any(3)];
      const std::size_t offset = any(kRegion - bytes + 1);
      const bool with_request = any(2) == 0;
      Bytes& model = model_[source][target];
      switch (any(6)) {
        case 0:
        case 1:
        case 2: {
          const Bytes data =
              pattern(bytes, static_cast<int>(source), static_cast<int>(random_() % 1000));
          std::ranges::copy(data, model.begin() + static_cast<std::ptrdiff_t>(offset));
          if (mine)
            give(end_.put(peer, source * kRegion + offset, buffers.emplace_back(data)),
                 with_request);
          break;
        }
        case 3: {
          const std::uint64_t count = 1 + any(3);
          const int slot = static_cast<int>(any(2));
          signals[source][target][static_cast<std::size_t>(slot)] += count;
          if (mine) give(end_.signal(peer, slot, count), with_request);
          break;
        }
        case 4: {
          if (!mine) break;
          Bytes& seen = buffers.emplace_back(bytes);
          const auto from = model.begin() + static_cast<std::ptrdiff_t>(offset);
          gets.emplace_back(&seen, Bytes(from, from + static_cast<std::ptrdiff_t>(bytes)));
          // Until it has ended no put may change what it reads.
          give(end_.get(peer, source * kRegion + offset, seen), false);
          if (batched) give(end_.flush(peer), false);
          break;
        }
        default:
          if (mine) give(end_.flush(peer), with_request);
          break;
      }
    }
    // Whom it wrote to is told at the end.
    for (std::size_t target = 0; target < n_; ++target) {
      signals[source][target][0] += 1;
      if (mine) give(end_.signal(static_cast<int>(target), 0), false);
    }
    if (!mine) return;
    if (batched && any_own_ % 2 == 0) {
      comm_.run(batch);
    } else if (batched) {
      const auto request = std::make_shared<Request>();
      comm_.start(batch, request);
      requests.push_back(request);
    }
    ++any_own_;
    for (const auto& request : requests) {
      ASSERT_TRUE(request->wait(kLong));
      ASSERT_FALSE(request->error().has_value()) << request->error()->what();
    }
    for (const auto& [seen, expected] : gets) ASSERT_EQ(*seen, expected);
  }

  Communicator& comm_;
  End& end_;
  std::size_t n_;
  std::mt19937 random_;
  unsigned any_own_ = 0;
  std::vector<std::vector<Bytes>> model_;  // by source, then target: that source's region there
};

// Up to 10,000 programs, as many as there is time for; or those that were asked for.
TEST_P(WindowContract, RandomProgramsDoWhatAModelDoes) {
  constexpr unsigned kMost = 10'000;
  constexpr unsigned kLeast = 10;
  const std::chrono::milliseconds time{2000 / std::min(6, ropewalk::testing::share())};
  const std::optional<ropewalk::testing::Seeds> chosen = ropewalk::testing::chosen_seeds();
  const ropewalk::testing::Seeds seeds = chosen.value_or(ropewalk::testing::Seeds{0, kMost});
  for (const int size : {2, 3}) {
    std::atomic<unsigned> end_seed{seeds.end};
    const auto begin = std::chrono::steady_clock::now();
    ranks(size, [&](Communicator& comm) {
      End end(comm, GetParam(), RandomProgram::kRegion * static_cast<std::size_t>(size),
              RandomProgram::kSlots);
      for (unsigned seed = seeds.first;; ++seed) {
        const auto spent = std::chrono::steady_clock::now() - begin;
        if (!chosen.has_value() && comm.rank() == 0 && seed >= kLeast && spent > time) {
          end_seed = seed;
        }
        comm.barrier();
        if (seed >= end_seed) break;
        RandomProgram program(comm, end, seed);
        for (int round = 0; round < 2; ++round) {
          program.run_round();
          ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "seed " << seed;
        }
      }
      end.free();
    });
    std::printf("%d ranks: %u programs\n", size, end_seed.load() - seeds.first);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, WindowContract, ::testing::ValuesIn(kinds()),
                         [](const ::testing::TestParamInfo<Kind>& each) {
                           return each.param.name;
                         });

}  // namespace
}  // namespace ropewalk::comm
