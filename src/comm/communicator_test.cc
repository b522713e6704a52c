// Communicators whose ranks are threads of this process.
#include "comm/communicator.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <latch>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/test_support.h"
#include "comm/group.h"
#include "comm/testing/ranks.h"
#include "core/error.h"
#include "core/testing/in_child.h"
#include "core/testing/sanitizers.h"
#include "core/testing/share.h"
#include "schedule/compile.h"
#include "schedule/layout.h"

namespace ropewalk::comm {
namespace {

using bootstrap::error_of;
using testing::quiet;
using testing::with_ranks;

CollectiveCall all_reduce(const std::vector<float>& in, std::vector<float>& out) {
  CollectiveCall call;
  call.input = in.data();
  call.output = out.data();
  call.count = in.size();
  return call;
}

// State that a communicator keeps between calls must not affect the next one.
TEST(Communicator, CallsThatDifferInOneThingFromTheLast) {
  Runtime runtime;
  quiet(runtime);
  with_ranks(2, runtime, [&](Communicator& comm) {
    std::vector<std::vector<float>> inputs(2, std::vector<float>(20'000));
    std::vector<std::vector<float>> outputs(2, std::vector<float>(20'000));
    std::minstd_rand random(11);  // alike on both ranks
    const auto any = [&](unsigned n) { return static_cast<std::size_t>(random() % n); };
    std::size_t buffer = 0;
    std::size_t output = 0;
    CollectiveCall call;
    call.count = 1;
    bool in_place = false;
    for (int turn = 0; turn < 600; ++turn) {
      switch (any(8)) {
        case 0: buffer = any(2); break;
        case 1: output = any(2); break;
        case 2: call.op = any(2) == 0 ? RedOp::kSum : RedOp::kMax; break;
        case 3: call.count = std::array<std::size_t, 4>{1, 7, 2000, 20'000}[any(4)]; break;
        case 4: in_place = any(2) == 0; break;
        case 5:
          call.collective = any(2) == 0 ? Collective::kAllReduce : Collective::kBroadcast;
          break;
        case 6: call.root = static_cast<int>(any(2)); break;
        default: break;  // the same once more
      }
      const auto value = [&](int rank) {
        return static_cast<float>((rank + 1) * 100 + turn + static_cast<int>(buffer) * 7);
      };
      std::fill(inputs[buffer].begin(), inputs[buffer].end(), value(comm.rank()));
      std::fill(outputs[output].begin(), outputs[output].end(), -1.0F);
      std::vector<float>& result = in_place ? inputs[buffer] : outputs[output];
      call.input = inputs[buffer].data();
      call.output = result.data();
      if (turn % 7 == 3) {
        Group::of_thread().start();
        Group::of_thread().add(comm, call, nullptr);
        Group::of_thread().end();
      } else if (turn > 400 && turn % 5 == 0) {
        const auto request = std::make_shared<Request>();
        comm.start(call, request);
        ASSERT_TRUE(request->wait(std::chrono::seconds(60)));
      } else {
        comm.run(call);
      }
      const float expected = call.collective == Collective::kBroadcast ? value(call.root)
                             : call.op == RedOp::kMax                  ? value(1)
                                                                       : value(0) + value(1);
      for (std::size_t i = 0; i < call.count; ++i) ASSERT_EQ(result[i], expected) << turn;
      if (call.count < result.size()) {
        ASSERT_EQ(result[call.count], in_place ? value(comm.rank()) : -1.0F) << turn;
      }
    }
  });
}

// A factor is part of a prepared call, in each kind of execution.
TEST(Communicator, PreMultipliedSumsThatDifferInTheFactorAlone) {
  Runtime runtime;
  quiet(runtime);
  with_ranks(2, runtime, [&](Communicator& comm) {
    for (const std::size_t count : {std::size_t{5}, std::size_t{30'000}}) {
      std::vector<float> in(count, 1.0F);
      std::vector<float> out(count);
      CollectiveCall call = all_reduce(in, out);
      call.op = RedOp::kPreMulSum;
      const auto expect_with = [&](float factor, const std::function<void()>& run) {
        // Another factor on each rank, as a mean by weights has.
        const float mine = factor + static_cast<float>(comm.rank());
        call.scalar = 0;
        std::memcpy(&call.scalar, &mine, sizeof mine);
        run();
        EXPECT_EQ(out, std::vector<float>(count, 2 * factor + 1)) << count << " by " << factor;
      };
      for (const float factor : {2.0F, 3.0F, 3.0F, 0.5F}) {
        expect_with(factor, [&] { comm.run(call); });
      }
      for (const float factor : {5.0F, 7.0F}) {
        expect_with(factor, [&] {
          Group::of_thread().start();
          Group::of_thread().add(comm, call, nullptr);
          Group::of_thread().end();
        });
      }
      for (const float factor : {9.0F, 11.0F}) {
        expect_with(factor, [&] {
          const auto request = std::make_shared<Request>();
          comm.start(call, request);
          ASSERT_TRUE(request->wait(std::chrono::seconds(60)));
        });
      }
    }
  });
}

TEST(Communicator, SplitsByColorAndKey) {
  Runtime runtime;
  quiet(runtime);
  with_ranks(5, runtime, [&](Communicator& comm) {
    const int color = comm.rank() == 4 ? -1 : comm.rank() % 2;
    const std::unique_ptr<Communicator> part = comm.split(color, -comm.rank());
    ASSERT_EQ(part == nullptr, comm.rank() == 4);
    if (part == nullptr) return;
    EXPECT_EQ(part->size(), 2);
    EXPECT_EQ(part->rank(), comm.rank() < 2 ? 1 : 0);  // higher key first
    std::vector<float> in(1, static_cast<float>(comm.rank()));
    std::vector<float> out(1);
    part->run(all_reduce(in, out));
    EXPECT_EQ(out[0], color == 0 ? 2.0F : 4.0F);
    part->finalize();
  });
}

TEST(Communicator, ShrinksToThoseThatAreNotExcluded) {
  Runtime runtime;
  quiet(runtime);
  with_ranks(4, runtime, [&](Communicator& comm) {
    const std::set<int> excluded = {0, 2};
    if (excluded.contains(comm.rank())) {
      const auto [code, text] = error_of([&] { comm.shrink(excluded); });
      EXPECT_EQ(code, Errc::kInvalidArgument) << text;
      return;
    }
    const std::unique_ptr<Communicator> rest = comm.shrink(excluded);
    EXPECT_EQ(rest->size(), 2);
    EXPECT_EQ(rest->rank(), comm.rank() / 2);  // in their order
    std::vector<float> in(1, static_cast<float>(comm.rank()));
    std::vector<float> out(1);
    rest->run(all_reduce(in, out));
    EXPECT_EQ(out[0], 1.0F + 3.0F);
    rest->finalize();
  });
}

TEST(Communicator, StartedOperationsRunInOrderAndOverlapWithTheCaller) {
  Runtime runtime;
  quiet(runtime);
  with_ranks(2, runtime, [&](Communicator& comm) {
    std::vector<std::vector<float>> data(20, std::vector<float>(100, 1.0F));
    std::vector<std::shared_ptr<Request>> requests;
    for (std::vector<float>& buffer : data) {
      requests.push_back(std::make_shared<Request>());
      comm.start(all_reduce(buffer, buffer), requests.back());
    }
    std::vector<float> last(1, 3.0F);
    comm.run(all_reduce(last, last));  // runs after all of them
    for (std::size_t i = 0; i < data.size(); ++i) {
      EXPECT_TRUE(requests[i]->wait(std::chrono::seconds(30)));
      EXPECT_FALSE(requests[i]->error().has_value());
      EXPECT_EQ(data[i], std::vector<float>(100, 2.0F));
    }
    EXPECT_EQ(last[0], 6.0F);
  });
}

TEST(Communicator, WaitWithTimeoutLeavesTheOperationRunning) {
  Runtime runtime;
  quiet(runtime);
  std::atomic<bool> waited{false};
  with_ranks(2, runtime, [&](Communicator& comm) {
    std::vector<float> data(4, 1.0F);
    auto request = std::make_shared<Request>();
    if (comm.rank() == 0) {
      comm.start(all_reduce(data, data), request);
      EXPECT_FALSE(request->wait(std::chrono::milliseconds(20)));
      waited = true;
    } else {
      while (!waited) std::this_thread::yield();
      comm.start(all_reduce(data, data), request);
    }
    EXPECT_TRUE(request->wait(std::chrono::microseconds(-1)));
    EXPECT_EQ(data[0], 2.0F);
  });
}

TEST(Communicator, GroupedExchangeAndRepeatedSendsToOnePeer) {
  Runtime runtime;
  quiet(runtime);
  with_ranks(3, runtime, [&](Communicator& comm) {
    const int next = (comm.rank() + 1) % 3;
    const int previous = (comm.rank() + 2) % 3;
    // Larger than the FIFO, so that no send can end before its receive has begun.
    const std::size_t count = 500'000;
    std::vector<int> first(count, comm.rank());
    std::vector<int> second(count, 10 + comm.rank());
    std::vector<int> got_first(count);
    std::vector<int> got_second(count);
    Group group;
    group.start();
    const auto add = [&](bool sends, std::vector<int>& data, int peer) {
      PointToPointCall call;
      call.sends = sends;
      call.input = data.data();
      call.output = data.data();
      call.count = data.size();
      call.type = DataType::kInt32;
      call.peer = peer;
      group.add(comm, call, nullptr);
    };
    add(true, first, next);
    add(true, second, next);
    add(false, got_first, previous);
    add(false, got_second, previous);
    group.end();
    EXPECT_EQ(got_first, std::vector<int>(count, previous));
    EXPECT_EQ(got_second, std::vector<int>(count, 10 + previous));
  });
}

TEST(Communicator, ManyRanksOfOneThreadInAGroup) {
  Runtime runtime;
  quiet(runtime);
  const int size = 4;
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
  std::vector<std::unique_ptr<Communicator>> comms(size);
  Group group;
  group.start();
  for (int r = 0; r < size; ++r) {
    group.add_join(
        [&, r] { comms[static_cast<std::size_t>(r)] = Communicator::join(id, r, size, runtime); });
  }
  group.end();
  std::vector<std::vector<float>> in(size);
  std::vector<std::vector<float>> out(size, std::vector<float>(70'000));
  for (int turn = 0; turn < 3; ++turn) {
    group.start();
    for (std::size_t r = 0; r < size; ++r) {
      in[r].assign(70'000, static_cast<float>(r + 1));
      group.add(*comms[r], all_reduce(in[r], out[r]), nullptr);
    }
    group.end();
    for (std::size_t r = 0; r < size; ++r) EXPECT_EQ(out[r], std::vector<float>(70'000, 10.0F));
  }
  for (auto& comm : comms) comm->finalize();
}

// Runs two ranks that were called differently; returns both errors.
std::vector<std::pair<Errc, std::string>> called_differently(
    const std::function<void(Communicator&)>& body) {
  Runtime runtime;
  quiet(runtime);
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
  std::vector<std::pair<Errc, std::string>> errors(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> comm = Communicator::join(id, r, 2, runtime);
      errors[static_cast<std::size_t>(r)] = error_of([&] { body(*comm); });
      comm->finalize();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

struct CallDifference {
  const char* field;
  void (*change)(CollectiveCall&);
};

TEST(Communicator, ReportsDifferentCallsByRankAndField) {
  const std::vector<CallDifference> differences = {
      {"count", [](CollectiveCall& call) { call.count = 3; }},
      {"type", [](CollectiveCall& call) { call.type = DataType::kInt32; }},
      {"operator", [](CollectiveCall& call) { call.op = RedOp::kMax; }},
      {"operation", [](CollectiveCall& call) { call.collective = Collective::kAllGather; }},
      {"operation", [](CollectiveCall& call) { call.collective = Collective::kBroadcast; }}};
  for (const CallDifference& difference : differences) {
    const auto errors = called_differently([&](Communicator& comm) {
      std::vector<float> in(8, 1.0F);
      std::vector<float> out(16);
      CollectiveCall call = all_reduce(in, out);
      if (comm.rank() == 1) difference.change(call);
      comm.run(call);
      comm.run(all_reduce(in, out));
    });
    // At least one rank sees the difference; the other is told of it.
    bool named = false;
    for (const auto& [code, text] : errors) {
      EXPECT_NE(text, "no error") << difference.field;
      named |= text.find(difference.field) != std::string::npos &&
               text.find("rank 0") != std::string::npos && text.find("rank 1") != std::string::npos;
    }
    EXPECT_TRUE(named) << difference.field << ": " << errors[0].second << " / " << errors[1].second;
  }
}

TEST(Communicator, CallsABarrierOne) {
  const auto errors = called_differently([](Communicator& comm) {
    std::vector<float> data(1, 1.0F);
    if (comm.rank() == 0) {
      comm.barrier();
    } else {
      comm.run(all_reduce(data, data));
    }
    comm.barrier();
  });
  bool named = false;
  for (const auto& [code, text] : errors) {
    named |= text.find("(operation): ") != std::string::npos &&
             text.find("call 1: barrier") != std::string::npos;
  }
  EXPECT_TRUE(named) << errors[0].second << " / " << errors[1].second;
}

// Runs `other` in a thread of its own while rank 0 is in a call that waits for rank 1.
std::pair<Errc, std::string> beside_a_call(const std::function<void(Communicator&)>& other) {
  Runtime runtime;
  quiet(runtime);
  std::pair<Errc, std::string> error;
  std::atomic<bool> refused{false};
  with_ranks(2, runtime, [&](Communicator& comm) {
    std::vector<float> data(8, 1.0F);
    if (comm.rank() == 1) {
      while (!refused) std::this_thread::yield();
      comm.run(all_reduce(data, data));
    } else {
      std::thread second([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        error = error_of([&] { other(comm); });
        refused = true;
      });
      comm.run(all_reduce(data, data));
      second.join();
    }
    EXPECT_EQ(data, std::vector<float>(8, 2.0F));
    comm.barrier();  // both are whole
  });
  return error;
}

TEST(Communicator, RefusesASecondThread) {
  float nothing = 0;
  const std::vector<std::function<void(Communicator&)>> uses = {
      [&](Communicator& comm) { comm.run(barrier_call(nothing)); },
      [](Communicator& comm) { comm.run(std::vector<PointToPointCall>{}); },
      [&](Communicator& comm) { comm.start(barrier_call(nothing), std::make_shared<Request>()); },
      [](Communicator& comm) { comm.start(std::vector<PointToPointCall>{}, nullptr); },
      [&](Communicator& comm) { (void)comm.make_task(barrier_call(nothing)); },
      [](Communicator& comm) { comm.barrier(); },
      [](Communicator& comm) { comm.split(0, 0); },
      [](Communicator& comm) { comm.shrink({1}); },
      [](Communicator& comm) { comm.attach_device(0); },
      [](Communicator& comm) { comm.forget_schedules(); },
      [](Communicator& comm) { comm.finalize(); }};
  for (const auto& use : uses) {
    const auto [code, text] = beside_a_call(use);
    EXPECT_EQ(code, Errc::kInvalidUsage) << text;
    EXPECT_NE(text.find("rank 0 is in a call on this communicator, by another thread"),
              std::string::npos)
        << text;
  }
}

// A communicator that is refused at a group's end has numbered tasks that do not run.
TEST(Communicator, ARefusedGroupBreaksItsCommunicators) {
  Runtime runtime;
  quiet(runtime);
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
  std::vector<std::unique_ptr<Communicator>> comms(2);
  std::thread joins([&] { comms[1] = Communicator::join(id, 1, 2, runtime); });
  comms[0] = Communicator::join(id, 0, 2, runtime);
  joins.join();
  std::vector<float> data(8, 1.0F);
  Group group;
  group.start();
  group.add(*comms[0], all_reduce(data, data), nullptr);
  group.add(*comms[1], all_reduce(data, data), nullptr);
  std::vector<float> got(8);
  PointToPointCall receive;
  receive.output = got.data();
  receive.count = got.size();
  receive.peer = 1;
  std::thread waits([&] { error_of([&] { comms[0]->run({receive}); }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(error_of([&] { group.end(); }).first, Errc::kInvalidUsage);
  waits.join();  // it is told
  for (auto& comm : comms) EXPECT_TRUE(comm->failure().broken());
}

TEST(Communicator, AForkedChildCannotUseIt) {
  Runtime runtime;
  quiet(runtime);
  with_ranks(2, runtime, [](Communicator& comm) {
    comm.barrier();
    const int status = ropewalk::testing::in_child([&] {
      const std::vector<std::function<void()>> uses = {
          [&] { comm.barrier(); }, [&] { comm.split(0, 0); }, [&] { comm.finalize(); },
          [&] { comm.abort("a child ends"); }};
      for (const auto& use : uses) {
        const auto [code, text] = error_of(use);
        EXPECT_EQ(code, Errc::kInvalidUsage) << text;
        EXPECT_NE(text.find("forked from it"), std::string::npos) << text;
      }
      return 0;
    });
    EXPECT_EQ(status, 0);
    comm.barrier();
  });
}

TEST(Communicator, AForkedChildMakesOnesOfItsOwn) {
  if (ropewalk::testing::kThreadSanitizer) {
    GTEST_SKIP() << "the thread sanitizer starts no threads in a child of a program with several";
  }
  Runtime& runtime = Runtime::process();
  quiet(runtime);
  const auto all_reduce_of_two = [](Communicator& comm) {
    std::vector<float> data(8, 1.0F);
    comm.run(all_reduce(data, data));
    EXPECT_EQ(data, std::vector<float>(8, 2.0F));
  };
  with_ranks(2, runtime, [&](Communicator& comm) {
    all_reduce_of_two(comm);
    if (comm.rank() == 0) {
      const int status = ropewalk::testing::in_child([&] {
        Runtime& own = Runtime::process();
        EXPECT_NE(&own, &runtime);
        EXPECT_NE(own.token(), runtime.token());
        EXPECT_EQ(own.config().duration(Setting::kTimeout), std::chrono::seconds(60));
        with_ranks(2, own, all_reduce_of_two);
        return 0;
      });
      EXPECT_EQ(status, 0);
    }
    all_reduce_of_two(comm);
  });
}

TEST(Communicator, ReportsADifferentRoot) {
  const auto errors = called_differently([](Communicator& comm) {
    std::vector<float> in(8, 1.0F);
    std::vector<float> out(8);
    CollectiveCall call = all_reduce(in, out);
    call.collective = Collective::kBroadcast;
    call.root = comm.rank();
    comm.run(call);                 // both send, nobody receives
    comm.run(all_reduce(in, out));  // here it shows
  });
  bool named = false;
  for (const auto& [code, text] : errors) named |= text.find("root") != std::string::npos;
  EXPECT_TRUE(named) << errors[0].second << " / " << errors[1].second;
}

// Without a further call: whoever leaves last finds what the other sent.
TEST(Communicator, ReportsADifferentRootWhenARankLeaves) {
  for (const Collective collective : {Collective::kBroadcast, Collective::kScatter}) {
    for (const int size : {2, 4}) {
      Runtime runtime;
      quiet(runtime);
      const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
      std::vector<std::pair<Errc, std::string>> errors(static_cast<std::size_t>(size));
      std::vector<std::thread> threads;
      for (int r = 0; r < size; ++r) {
        threads.emplace_back([&, r] {
          // A rank that left by the error may break others that are not yet done joining.
          errors[static_cast<std::size_t>(r)] = error_of([&] {
            const std::unique_ptr<Communicator> comm = Communicator::join(id, r, size, runtime);
            std::vector<float> in(8, 1.0F);
            std::vector<float> out(32);
            CollectiveCall call = all_reduce(out, in);
            call.count = 8;
            call.collective = collective;
            call.root = r == 1 ? 1 : 0;
            comm->run(call);
            comm->finalize();
          });
        });
      }
      for (std::thread& thread : threads) thread.join();
      bool named = false;
      for (const auto& [code, text] : errors) {
        named |= code == Errc::kInvalidUsage && text.find("(root)") != std::string::npos &&
                 text.find("rank 1 call 1") != std::string::npos;
      }
      EXPECT_TRUE(named) << name(collective) << " of " << size << ": " << errors[0].second << " / "
                         << errors[1].second;
    }
  }
}

TEST(Communicator, ReportsRootsThatMakeAllRanksReceive) {
  const auto errors = called_differently([](Communicator& comm) {
    std::vector<float> data(8, 1.0F);
    CollectiveCall call = all_reduce(data, data);
    call.collective = Collective::kBroadcast;
    call.root = 1 - comm.rank();
    comm.run(call);  // both wait for the other
  });
  bool named = false;
  for (const auto& [code, text] : errors) named |= text.find("(root)") != std::string::npos;
  EXPECT_TRUE(named) << errors[0].second << " / " << errors[1].second;
}

TEST(Communicator, RefusesBadArgumentsAndStaysWhole) {
  Runtime runtime;
  quiet(runtime);
  with_ranks(2, runtime, [&](Communicator& comm) {
    std::vector<float> data(8, 1.0F);
    const auto refused = [&](const char* word, const std::function<void(CollectiveCall&)>& spoil) {
      CollectiveCall call = all_reduce(data, data);
      spoil(call);
      const auto [code, text] = error_of([&] { comm.run(call); });
      EXPECT_EQ(code, Errc::kInvalidArgument) << word;
      EXPECT_NE(text.find(word), std::string::npos) << text;
    };
    refused("sendbuf", [](CollectiveCall& call) { call.input = nullptr; });
    refused("recvbuf", [](CollectiveCall& call) { call.output = nullptr; });
    refused("aligned", [&](CollectiveCall& call) {
      call.input = reinterpret_cast<const char*>(data.data()) + 1;
    });
    refused("overlap", [&](CollectiveCall& call) {
      call.output = data.data() + 1;
      call.count = 4;
    });
    refused("count", [](CollectiveCall& call) { call.count = ~std::size_t{0} / 2; });
    refused("root", [](CollectiveCall& call) {
      call.collective = Collective::kBroadcast;
      call.root = 2;
    });
    refused("in-place", [](CollectiveCall& call) { call.collective = Collective::kSendRecv; });
    PointToPointCall send;
    send.sends = true;
    send.input = data.data();
    send.count = 1;
    send.peer = -1;
    EXPECT_EQ(error_of([&] { comm.run({send}); }).first, Errc::kInvalidArgument);
    std::vector<float> out(8);
    comm.run(all_reduce(data, out));  // still whole
    EXPECT_EQ(out[7], 2.0F);
  });
}

TEST(Communicator, AbortEndsTheOthers) {
  Runtime runtime;
  quiet(runtime);
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
  std::latch ran(3);  // an abort also ends a call whose other ranks are done
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> comm = Communicator::join(id, r, 3, runtime);
      std::vector<float> data(4, 1.0F);
      comm->run(all_reduce(data, data));
      ran.arrive_and_wait();
      if (r == 1) {
        comm->abort("enough");
        return;
      }
      const auto [code, text] = error_of([&] { comm->run(all_reduce(data, data)); });
      EXPECT_EQ(code, Errc::kPeerLost);
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
      EXPECT_NE(text.find("enough"), std::string::npos) << text;
      // Every later call says the same.
      EXPECT_EQ(error_of([&] { comm->run(all_reduce(data, data)); }).second, text);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A message that would fit its link needs no wait in which the end is seen.
TEST(Communicator, AfterAnAbortNothingIsSent) {
  Runtime runtime;
  quiet(runtime);
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
  std::atomic<bool> received{false};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> comm = Communicator::join(id, r, 2, runtime);
      std::vector<int> data(4, r);
      PointToPointCall call;
      call.sends = r == 0;
      call.input = call.output = data.data();
      call.count = data.size();
      call.type = DataType::kInt32;
      call.peer = 1 - r;
      comm->run({call});
      if (r == 1) {
        EXPECT_EQ(data, std::vector<int>(4, 0));
        received = true;
        while (!done) std::this_thread::yield();
        return;
      }
      while (!received) std::this_thread::yield();
      comm->abort("enough");
      const auto [code, text] = error_of([&] { comm->run({call}); });
      EXPECT_EQ(code, Errc::kAborted);
      EXPECT_NE(text.find("enough"), std::string::npos) << text;
      EXPECT_EQ(error_of([&] { (void)comm->make_task({call}); }).second, text);
      done = true;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Ranks of one process read each other's buffers.
TEST(Communicator, BuffersMayBeFreedAfterAnError) {
  for (int turn = 0; turn < 10; ++turn) {
    Runtime runtime;
    quiet(runtime);
    constexpr int kRanks = 3;
    constexpr std::size_t kCount = std::size_t{1} << 20U;
    const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
    std::vector<std::thread> threads;
    for (int r = 0; r < kRanks; ++r) {
      threads.emplace_back([&, r] {
        const std::unique_ptr<Communicator> comm = Communicator::join(id, r, kRanks, runtime);
        std::thread later;
        if (r == turn % kRanks) {
          later = std::thread([&] {
            std::this_thread::sleep_for(std::chrono::microseconds(20'000 + 300 * turn));
            comm->abort("as the test wants it");
          });
        }
        {
          // Large enough that their pages go back to the system.
          std::vector<float> in(kCount, 1.0F);
          std::vector<float> out(kCount);
          const std::string words = error_of([&] {
                                      while (true) comm->run(all_reduce(in, out));
                                    }).second;
          EXPECT_NE(words.find("as the test wants it"), std::string::npos) << words;
        }
        if (later.joinable()) later.join();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(Communicator, AbortAndDestructionEndAnOperationOfAnotherThread) {
  Runtime runtime;
  quiet(runtime);
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
  std::thread other([&] {
    const std::unique_ptr<Communicator> comm = Communicator::join(id, 1, 2, runtime);
    std::vector<float> data(4, 1.0F);
    comm->run(all_reduce(data, data));
    // Takes no part in the second call; learns of the abort.
    while (!comm->failure().broken()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  std::unique_ptr<Communicator> comm = Communicator::join(id, 0, 2, runtime);
  std::vector<float> data(4, 1.0F);
  comm->run(all_reduce(data, data));
  std::atomic<bool> running{false};
  std::pair<Errc, std::string> error;
  std::thread user([&, raw = comm.get()] {
    running = true;
    error = error_of([&] { raw->run(all_reduce(data, data)); });
  });
  while (!running) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  comm->abort("enough");
  comm.reset();
  user.join();
  other.join();
  EXPECT_EQ(error.first, Errc::kAborted) << error.second;
}

TEST(Communicator, KnowsHowItsRanksShareTheProcessors) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);  // for the threads of the ranks, too
  Runtime runtime;
  quiet(runtime);
  with_ranks(3, runtime,
             [](Communicator& comm) { EXPECT_EQ(comm.facts().ranks_per_processor, 3); });
  EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

// How an operation of rank 0 ends to which rank 1 does not come, by the setting TIMEOUT and a
// timeout of the communicator's own.
std::pair<Errc, std::string> ends_without_rank_1(const char* setting,
                                                 std::optional<std::chrono::milliseconds> own) {
  Runtime runtime;
  quiet(runtime);
  runtime.set("TIMEOUT", setting, "test");
  std::atomic<bool> ended{false};
  std::pair<Errc, std::string> error;
  with_ranks(2, runtime, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    if (own.has_value()) comm.set_timeout(*own);
    std::vector<float> data(4, 1.0F);
    error = error_of([&] { comm.run(all_reduce(data, data)); });
    ended = true;
  });
  return error;
}

TEST(Communicator, TimesOutAfterItsOwnTimeoutWhereThatIsShorterThanTheSetting) {
  const auto [code, text] = ends_without_rank_1("1h", std::chrono::milliseconds(100));
  EXPECT_EQ(code, Errc::kTimeout) << text;
}

TEST(Communicator, TimesOutAfterTheSettingWhereThatIsShorterThanItsOwn) {
  const auto [code, text] = ends_without_rank_1("300ms", std::chrono::hours(1));
  EXPECT_EQ(code, Errc::kTimeout) << text;
}

TEST(Communicator, TimesOutNamingTheRankThatDidNotCome) {
  const auto [code, text] = ends_without_rank_1("500ms", std::nullopt);
  EXPECT_EQ(code, Errc::kTimeout) << text;
  EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
}

TEST(Communicator, ASplitThatTimesOutBreaksIt) {
  Runtime runtime;
  quiet(runtime);
  runtime.set("TIMEOUT", "1s", "test");
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
  std::thread other([&] {
    const std::unique_ptr<Communicator> comm = Communicator::join(id, 1, 2, runtime);
    while (!comm->failure().broken()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_NE(std::string(comm->failure().error().what()).find("rank 0"), std::string::npos);
  });
  const std::unique_ptr<Communicator> comm = Communicator::join(id, 0, 2, runtime);
  const auto split = [&] { (void)comm->split(0, 0); };
  EXPECT_EQ(error_of(split).first, Errc::kTimeout);
  std::vector<float> data(4, 1.0F);
  EXPECT_EQ(error_of([&] { comm->run(all_reduce(data, data)); }).first, Errc::kTimeout);
  other.join();
}

TEST(Communicator, LeavingWhileAnotherWaitsIsAnError) {
  Runtime runtime;
  quiet(runtime);
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> comm = Communicator::join(id, r, 2, runtime);
      if (r == 1) {
        comm->finalize();
        return;
      }
      std::vector<float> data(4, 1.0F);
      const auto [code, text] = error_of([&] { comm->run(all_reduce(data, data)); });
      EXPECT_EQ(code, Errc::kPeerLost);
      // Not by this rank's unanswered request: messages that it sent before may still be in flight.
      EXPECT_NE(text.find("rank 1 left the communicator while rank 0 waited for it in all_reduce"),
                std::string::npos)
          << text;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Group, TasksOfOneCommunicatorRunInOrder) {
  Runtime runtime;
  quiet(runtime);
  with_ranks(1, runtime, [&](Communicator& comm) {
    std::vector<int> order;
    std::atomic<bool> other{false};
    Group group;
    group.start();
    for (int i = 0; i < 3; ++i) {
      group.add_join(
          [&, i] {
            // Another one does not wait for these.
            while (!other) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            order.push_back(i);
          },
          &comm);
    }
    group.add_join([&] { other = true; });
    group.end();
    EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
  });
}

// Rank 1 comes to a group late: what rank 0's end() does not wait for is not done when it returns.
void end_group_before_the_other_comes(const std::function<void(Communicator&, Group&)>& add,
                                      const std::function<void(Communicator&)>& check) {
  Runtime runtime;
  quiet(runtime);
  std::atomic<bool> ending{false};
  std::atomic<bool> ended{false};
  with_ranks(2, runtime, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      while (!ending) std::this_thread::yield();
      const auto late = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
      while (!ended && std::chrono::steady_clock::now() < late) std::this_thread::yield();
    }
    Group group;
    group.start();
    add(comm, group);
    if (comm.rank() == 0) ending = true;
    group.end();
    check(comm);
    if (comm.rank() == 0) ended = true;
  });
}

// A call without a request makes the outermost end() wait, whatever comes before and after it.
TEST(Group, EndsWhenItsBlockingCallsAreDone) {
  for (std::size_t blocking = 0; blocking < 3; ++blocking) {
    std::array<std::array<std::vector<float>, 3>, 2> data;  // by rank and call
    std::array<std::array<std::shared_ptr<Request>, 3>, 2> requests;
    for (auto& of_rank : data) of_rank.fill(std::vector<float>(100, 1.0F));
    end_group_before_the_other_comes(
        [&](Communicator& comm, Group& group) {
          const auto self = static_cast<std::size_t>(comm.rank());
          for (std::size_t i = 0; i < 3; ++i) {
            if (i != blocking) requests[self][i] = std::make_shared<Request>();
            group.add(comm, all_reduce(data[self][i], data[self][i]), requests[self][i]);
          }
        },
        [&](Communicator& comm) {
          const auto self = static_cast<std::size_t>(comm.rank());
          EXPECT_EQ(data[self][blocking], std::vector<float>(100, 2.0F)) << "call " << blocking;
          for (std::size_t i = 0; i < 3; ++i) {
            if (i == blocking) continue;
            EXPECT_TRUE(requests[self][i]->wait(std::chrono::seconds(60)));
            EXPECT_EQ(data[self][i], std::vector<float>(100, 2.0F));
          }
        });
  }
}

TEST(Group, EndsWhenItsBlockingSendsAndReceivesAreDone) {
  for (const int blocking : {0, 1}) {
    std::array<std::vector<float>, 2> got = {std::vector<float>(100), std::vector<float>(100)};
    const std::vector<float> sent(100, 3.0F);
    const auto request = std::make_shared<Request>();
    end_group_before_the_other_comes(
        [&](Communicator& comm, Group& group) {
          for (int i = 0; i < 2; ++i) {
            PointToPointCall call;
            call.sends = comm.rank() == 1;
            call.input = sent.data();
            call.output = got[static_cast<std::size_t>(i)].data();
            call.count = 100;
            call.peer = 1 - comm.rank();
            group.add(comm, call, i == blocking || comm.rank() == 1 ? nullptr : request);
          }
        },
        [&](Communicator& comm) {
          if (comm.rank() == 1) return;
          EXPECT_EQ(got[static_cast<std::size_t>(blocking)], sent);
          EXPECT_TRUE(request->wait(std::chrono::seconds(60)));
        });
    EXPECT_EQ(got[0], sent);
    EXPECT_EQ(got[1], sent);
  }
}

TEST(Communicator, RegistersNothingWithoutAGpu) {
  Runtime runtime;
  quiet(runtime);
  with_ranks(2, runtime, [&](Communicator& comm) {
    std::vector<float> in(100, 1.0F);
    std::vector<float> out(100);
    const auto [code, text] = error_of([&] { comm.register_buffer(in.data(), 400); });
    EXPECT_EQ(code, Errc::kInvalidUsage);
    EXPECT_NE(text.find("has no GPU"), std::string::npos) << text;
    EXPECT_EQ(error_of([&] { comm.deregister_buffer(1); }).first, Errc::kInvalidUsage);
    comm.run(all_reduce(in, out));
    EXPECT_EQ(out.front(), 2.0F);
  });
}

}  // namespace
}  // namespace ropewalk::comm
