#include "comm/agreed_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <latch>
#include <mutex>
#include <numeric>
#include <ostream>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/explain.h"
#include "comm/group.h"
#include "comm/request.h"
#include "comm/testing/ranks.h"
#include "core/testing/share.h"

namespace ropewalk::comm {
namespace {

using testing::quiet;
using testing::with_ranks;

constexpr std::size_t kChunkedCount = std::size_t{3} << 17U;  // 1.5 MiB of float32

CollectiveCall call_of(Collective collective, int ranks, const std::vector<float>& input,
                       std::vector<float>& output) {
  CollectiveCall call;
  call.collective = collective;
  call.input = input.data();
  call.output = output.data();
  const bool blocks = collective != Collective::kAllReduce;
  call.count = blocks ? kChunkedCount / static_cast<std::size_t>(ranks) : kChunkedCount;
  return call;
}

// Sums of these depend on the order of the ranks.
std::vector<float> values(int rank, std::size_t count = kChunkedCount) {
  std::vector<float> all(count);
  for (std::size_t i = 0; i < count; ++i) {
    all[i] = std::sin(static_cast<float>(i % 9973 + static_cast<std::size_t>(rank) * 7919)) * 1e3F;
  }
  return all;
}

void adapting(Runtime& runtime) {
  quiet(runtime);
  runtime.set("ADAPT_CHUNKS", "1", "test");
}

struct Links {
  std::string name;
  std::vector<std::pair<std::string, std::string>> settings;
};

class AgreedChunksOver : public ::testing::TestWithParam<Links> {};

// The results of many calls, each with the chunks that its communicator comes to, are the bits of
// the fixed choice, and all ranks have the same chunk in each call, whichever of them come late.
TEST_P(AgreedChunksOver, ResultsAreThoseOfTheFixedChunk) {
  constexpr int kRanks = 3;
  // Under a sanitizer as many as it takes to try a second chunk.
  const int calls = ropewalk::testing::share() > 1 ? 12 : 30;
  const std::vector<Collective> operations = {Collective::kAllReduce, Collective::kAllGather,
                                              Collective::kReduceScatter, Collective::kAllToAll};
  std::vector<std::vector<std::vector<float>>> fixed(kRanks);
  for (const char* adapt : {"0", "1"}) {
    Runtime runtime;
    quiet(runtime);
    for (const auto& [setting, value] : GetParam().settings) runtime.set(setting, value, "test");
    runtime.set("ADAPT_CHUNKS", adapt, "test");
    std::mutex mutex;
    // By operation and call: the ranks' chunks for the call after it.
    std::vector<std::vector<std::set<std::size_t>>> chunks(
        operations.size(), std::vector<std::set<std::size_t>>(static_cast<std::size_t>(calls)));
    std::atomic<int> done{0};
    with_ranks(kRanks, runtime, [&](Communicator& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      const std::vector<float> input = values(comm.rank());
      std::minstd_rand dice(static_cast<unsigned>(rank) + 1);
      for (std::size_t o = 0; o < operations.size(); ++o) {
        const Collective collective = operations[o];
        for (int n = 0; n < (*adapt == '0' ? 1 : calls); ++n) {
          std::vector<float> output(kChunkedCount);
          if (dice() % 4 == 0)
            std::this_thread::sleep_for(std::chrono::microseconds(dice() % 2000));
          CollectiveCall call = call_of(collective, comm.size(), input, output);
          if (collective == Collective::kAllReduce && n % 3 == 1) {
            output = input;
            call.input = output.data();
          }
          comm.run(call);
          if (*adapt == '0') {
            fixed[rank].push_back(std::move(output));
            EXPECT_FALSE(comm.explain(call).chunks->tuned);
            continue;
          }
          ASSERT_EQ(
              std::memcmp(output.data(), fixed[rank][o].data(), kChunkedCount * sizeof(float)), 0)
              << name(collective) << ", call " << n << " of rank " << rank;
          const auto report = comm.explain(call).chunks;
          ASSERT_TRUE(report.has_value() && report->tuned) << name(collective);
          EXPECT_EQ(report->decides, comm.rank() == 0);
          const std::lock_guard lock(mutex);
          chunks[o][static_cast<std::size_t>(n)].insert(report->bytes);
        }
      }
      // Leaving is not what is tested: a rank that leaves may close a connection over TCP on which
      // a slower one still receives.
      ++done;
      for (int waits = 0; done < kRanks && waits < 10000; ++waits) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    if (HasFailure()) return;
    if (*adapt == '0') continue;
    for (std::size_t o = 0; o < operations.size(); ++o) {
      std::set<std::size_t> tried;
      for (const std::set<std::size_t>& of_ranks : chunks[o]) {
        EXPECT_EQ(of_ranks.size(), 1U) << name(operations[o]);
        tried.insert(of_ranks.begin(), of_ranks.end());
      }
      EXPECT_GT(tried.size(), 1U) << name(operations[o]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, AgreedChunksOver,
    ::testing::Values(Links{"by_address", {}}, Links{"ring", {{"ALGORITHM", "ring"}}},
                      Links{"channels", {{"ALGORITHM", "ring"}, {"CHANNELS", "2"}}},
                      Links{"network", {{"LINKS", "network"}, {"NET", "tcp"}}},
                      Links{"plan",
                            {{"TOPOLOGY", "dgx1v"},
                             {"PLANNING", "wait"},
                             {"ALGORITHM", "all_reduce=plan-packed,all_gather=plan-packed"}}}),
    [](const auto& links) { return links.param.name; });

// Requests and groups run by tasks of other threads, and of several communicators in one.
TEST(AgreedChunks, ServeRequestsAndGroups) {
  Runtime runtime;
  adapting(runtime);
  runtime.set("LINKS", "network", "test");
  with_ranks(2, runtime, [&](Communicator& comm) {
    const std::vector<float> input(kChunkedCount, static_cast<float>(comm.rank() + 1));
    for (int round = 0; round < 8; ++round) {
      std::vector<std::vector<float>> outputs(4, std::vector<float>(kChunkedCount));
      std::vector<std::shared_ptr<Request>> requests;
      for (std::vector<float>& output : outputs) {
        requests.push_back(std::make_shared<Request>());
        comm.start(call_of(Collective::kAllReduce, 2, input, output), requests.back());
      }
      std::vector<float> last(kChunkedCount);
      comm.run(call_of(Collective::kAllReduce, 2, input, last));
      std::vector<std::unique_ptr<Task>> tasks;
      std::vector<std::vector<float>> grouped(2, std::vector<float>(kChunkedCount));
      for (std::vector<float>& output : grouped) {
        tasks.push_back(comm.make_task(call_of(Collective::kAllReduce, 2, input, output)));
      }
      std::vector<Communicator::Work> work(1);
      work[0].comm = &comm;
      work[0].tasks = std::move(tasks);
      Communicator::run_together(std::move(work));
      outputs.push_back(last);
      outputs.insert(outputs.end(), grouped.begin(), grouped.end());
      for (const std::vector<float>& output : outputs) {
        ASSERT_EQ(output, std::vector<float>(kChunkedCount, 3));
      }
    }
  });
}

// What one rank looks at alone, and shapes that meet in the cache of calls, change nothing.
TEST(AgreedChunks, OutliveTheCallCache) {
  Runtime runtime;
  adapting(runtime);
  with_ranks(2, runtime, [&](Communicator& comm) {
    const std::vector<float> input(2 * kChunkedCount, 1);
    std::vector<float> output(2 * kChunkedCount);
    for (int n = 0; n < 30; ++n) {
      for (std::size_t longer = 0; longer < 70; longer += 23) {
        CollectiveCall call = call_of(Collective::kAllReduce, 2, input, output);
        call.count += longer * 64;
        if (comm.rank() == 1) (void)explain(comm, Collective::kAllReduce, 2 << 20, 0);
        comm.run(call);
        ASSERT_EQ(output[call.count - 1], 2);
      }
    }
  });
}

// Among more no rank's data reaches all others.
TEST(AgreedChunks, AnExchangeOfTwoRanksIsTuned) {
  const int calls = ropewalk::testing::share() > 1 ? 12 : 30;
  for (const int ranks : {2, 3}) {
    Runtime runtime;
    adapting(runtime);
    std::mutex mutex;
    std::vector<std::set<std::size_t>> chunks(static_cast<std::size_t>(calls));
    with_ranks(ranks, runtime, [&](Communicator& comm) {
      const std::vector<float> input = values(comm.rank());
      const std::vector<float> expected = values((comm.rank() + ranks - 1) % ranks);
      for (std::set<std::size_t>& of_ranks : chunks) {
        std::vector<float> output(kChunkedCount);
        CollectiveCall call = call_of(Collective::kSendRecv, 1, input, output);
        comm.run(call);
        ASSERT_EQ(output, expected);
        const ChunkReport report = comm.explain(call).chunks.value();
        EXPECT_EQ(report.tuned, ranks == 2);
        EXPECT_EQ(report.decides, ranks == 2 && comm.rank() == 0);
        const std::lock_guard lock(mutex);
        of_ranks.insert(report.bytes);
      }
    });
    std::set<std::size_t> tried;
    for (const std::set<std::size_t>& of_ranks : chunks) {
      EXPECT_EQ(of_ranks.size(), 1U);
      tried.insert(of_ranks.begin(), of_ranks.end());
    }
    EXPECT_EQ(tried.size() > 1, ranks == 2);
  }
}

TEST(AgreedChunks, ShortCallsAreLeftAlone) {
  Runtime runtime;
  adapting(runtime);
  with_ranks(2, runtime, [&](Communicator& comm) {
    const std::vector<float> input(kChunkedCount, 1);
    std::vector<float> output(kChunkedCount);
    for (const Collective collective : {Collective::kAllReduce, Collective::kBroadcast}) {
      CollectiveCall call = call_of(collective, 2, input, output);
      call.count = 1 << 12;
      comm.run(call);
      EXPECT_FALSE(comm.explain(call).chunks->tuned) << name(collective);
    }
  });
}

// ---- operations with a root ----------------------------------------------------------------

// A call of `collective` among `ranks`, with a buffer of all blocks on one side of those that have
// blocks.
CollectiveCall rooted_call(Collective collective, int ranks, int root, std::size_t longest,
                           const std::vector<float>& input, std::vector<float>& output) {
  CollectiveCall call;
  call.collective = collective;
  call.root = root;
  call.input = input.data();
  call.output = output.data();
  const bool blocks = collective == Collective::kGather || collective == Collective::kScatter;
  call.count = blocks ? longest / static_cast<std::size_t>(ranks) : longest;
  return call;
}

// What rank `rank` has in its output.
std::vector<float> rooted_result(const CollectiveCall& call, int ranks, int rank) {
  const auto n = static_cast<std::size_t>(ranks);
  const auto input_of = [&](int of, std::size_t count) { return values(of, count); };
  switch (call.collective) {
    case Collective::kBroadcast: return input_of(call.root, call.count);
    case Collective::kScatter: {
      const std::vector<float> all = input_of(call.root, n * call.count);
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(call.count) * rank;
      return {begin, begin + static_cast<std::ptrdiff_t>(call.count)};
    }
    case Collective::kGather: {
      std::vector<float> all;
      for (int r = 0; r < ranks && rank == call.root; ++r) {
        const std::vector<float> block = input_of(r, call.count);
        all.insert(all.end(), block.begin(), block.end());
      }
      return all;
    }
    default: {  // a maximum, which is the same bits in any order
      std::vector<float> most;
      for (int r = 0; r < ranks && rank == call.root; ++r) {
        const std::vector<float> one = input_of(r, call.count);
        most.resize(one.size(), one.empty() ? 0 : one.front());
        for (std::size_t i = 0; i < one.size(); ++i) {
          most[i] = r == 0 ? one[i] : std::max(most[i], one[i]);
        }
      }
      return most;
    }
  }
}

struct Program {
  std::string name;
  int ranks;
  std::vector<std::pair<std::string, std::string>> settings;
};

void PrintTo(const Program& program, std::ostream* out) { *out << program.name; }

class RootedChunks : public ::testing::TestWithParam<Program> {};

// A random program: operations with changing roots and sizes, some without a root in between, ranks
// that come late. Results are right, and in each call all ranks have the same chunk.
TEST_P(RootedChunks, RandomProgramsHaveRightResultsAndEqualChunks) {
  const int ranks = GetParam().ranks;
  const bool all = ropewalk::testing::share() == 1;
  const std::size_t calls = all ? 900 : 24;
  Runtime runtime;
  adapting(runtime);
  for (const auto& [setting, value] : GetParam().settings) runtime.set(setting, value, "test");
  struct Call {
    Collective collective;
    int root;
    std::size_t longest;
  };
  // Few shapes, so that each is called often enough to be searched.
  std::minstd_rand dice(17);
  std::vector<Call> shapes;
  for (const Collective collective :
       {Collective::kBroadcast, Collective::kReduce, Collective::kGather, Collective::kScatter}) {
    for (int r = 0; r < (all ? 2 : 1); ++r) {
      shapes.push_back({collective, (r + static_cast<int>(shapes.size())) % ranks,
                        kChunkedCount + 960 * shapes.size()});
    }
  }
  shapes.push_back({Collective::kAllReduce, 0, kChunkedCount});
  shapes.push_back({Collective::kBroadcast, 0, 1000});  // short
  // Each once, then runs of one shape, and single calls.
  std::vector<std::size_t> program(shapes.size());
  std::iota(program.begin(), program.end(), 0);
  while (program.size() < calls) {
    const std::size_t shape = dice() % shapes.size();
    program.insert(program.end(), dice() % 3 == 0 ? (all ? 24 : 4) : 1 + dice() % 2, shape);
  }
  std::mutex mutex;
  std::vector<std::set<std::size_t>> chunks(program.size());
  std::vector<std::set<std::size_t>> tried(shapes.size());
  std::vector<std::set<int>> deciders(shapes.size());
  std::vector<char> tuned(shapes.size());
  std::atomic<int> done{0};
  with_ranks(ranks, runtime, [&](Communicator& comm) {
    const std::size_t most = kChunkedCount + 960 * shapes.size();
    const std::vector<float> input = values(comm.rank(), most);
    std::vector<float> output(most);
    std::minstd_rand own(static_cast<unsigned>(comm.rank()) + 1);
    std::vector<std::vector<float>> expected(shapes.size());
    for (std::size_t n = 0; n < program.size(); ++n) {
      const Call& shape = shapes[program[n]];
      if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 2000));
      CollectiveCall call =
          rooted_call(shape.collective, comm.size(), shape.root, shape.longest, input, output);
      if (has_root(shape.collective)) {
        call.op = RedOp::kMax;
        std::vector<float>& right = expected[program[n]];
        if (right.empty()) right = rooted_result(call, comm.size(), comm.rank());
        if (n % 5 == 0) std::ranges::fill(output, -1.0F);
        comm.run(call);
        if (n % 5 == 0) {
          // Nothing where this rank receives nothing.
          ASSERT_TRUE(std::ranges::equal(right, std::span(output).first(right.size())))
              << name(shape.collective) << ", root " << shape.root << ", call " << n << " of rank "
              << comm.rank();
        }
      } else {
        comm.run(call);
      }
      const auto report = comm.explain(call).chunks;
      ASSERT_TRUE(report.has_value());
      const std::lock_guard lock(mutex);
      chunks[n].insert(report->bytes);
      tried[program[n]].insert(report->bytes);
      if (report->tuned) tuned[program[n]] = 1;
      if (report->decides) deciders[program[n]].insert(comm.rank());
    }
    ++done;
    for (int waits = 0; done < ranks && waits < 10000; ++waits) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  if (HasFailure()) return;
  for (std::size_t n = 0; n < program.size(); ++n) {
    EXPECT_EQ(chunks[n].size(), 1U) << "call " << n << ", shape " << program[n];
  }
  int changed = 0;
  for (std::size_t s = 0; s < shapes.size(); ++s) {
    const Call& shape = shapes[s];
    const std::string what = std::string(name(shape.collective)) + " of root " +
                             std::to_string(shape.root) + ", shape " + std::to_string(s);
    EXPECT_EQ(deciders[s].size(), tuned[s] != 0 ? 1U : 0U) << what;
    changed += tried[s].size() > 1 ? 1 : 0;
    if (shape.longest < kChunkedCount) {
      EXPECT_EQ(tuned[s], 0) << what;
    } else if (shape.collective == Collective::kBroadcast ||
               shape.collective == Collective::kScatter) {
      EXPECT_EQ(deciders[s], std::set<int>{shape.root}) << what;
    } else if (ranks == 2 && shape.collective != Collective::kAllReduce) {
      EXPECT_EQ(deciders[s], std::set<int>{1 - shape.root}) << what;
    }
  }
  if (all) {
    EXPECT_GT(changed, 3);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, RootedChunks,
    ::testing::Values(
        Program{"two", 2, {}}, Program{"staged", 2, {{"SINGLE_COPY", "off"}}},
        Program{"four", 4, {}},
        Program{"chain", 4, {{"ALGORITHM", "chain"}, {"SINGLE_COPY", "off"}}},
        Program{"trees", 3, {{"ALGORITHM", "double_binary_tree"}, {"SINGLE_COPY", "off"}}},
        Program{"network", 3, {{"LINKS", "network"}, {"NET", "tcp"}, {"ALGORITHM", "chain"}}}),
    [](const auto& program) { return program.param.name; });

// The root of a reduce hears of its trees' leaves, and they of nobody.
TEST(RootedChunksOf, ReducesByTreesAndDirectGathersAreLeftAlone) {
  Runtime runtime;
  adapting(runtime);
  runtime.set("ALGORITHM", "reduce=binary_tree,gather=direct", "test");
  with_ranks(4, runtime, [&](Communicator& comm) {
    const std::vector<float> input = values(comm.rank());
    std::vector<float> output(kChunkedCount);
    for (const Collective collective : {Collective::kReduce, Collective::kGather}) {
      const CollectiveCall call = rooted_call(collective, 4, 1, kChunkedCount, input, output);
      for (int n = 0; n < 3; ++n) comm.run(call);
      EXPECT_FALSE(comm.explain(call).chunks->tuned) << name(collective);
    }
  });
}

TEST(RootedChunksOf, EachRootSearchesForItself) {
  Runtime runtime;
  adapting(runtime);
  runtime.set("SINGLE_COPY", "off", "test");
  with_ranks(3, runtime, [&](Communicator& comm) {
    const std::vector<float> input = values(comm.rank());
    std::vector<float> output(kChunkedCount);
    const auto call = [&](int root) {
      return rooted_call(Collective::kBroadcast, 3, root, kChunkedCount, input, output);
    };
    for (int n = 0; n < 4; ++n) {
      for (int root = 0; root < 3; ++root) comm.run(call(root));
    }
    for (int root = 0; root < 3; ++root) {
      const auto report = comm.explain(call(root)).chunks;
      EXPECT_TRUE(report->tuned);
      EXPECT_EQ(report->decides, comm.rank() == root);
    }
  });
}

TEST(AgreedChunks, WithoutTagsThereAreNone) {
  Runtime runtime;
  adapting(runtime);
  runtime.set("CHECK_CALLS", "0", "test");
  with_ranks(2, runtime, [&](Communicator& comm) {
    const std::vector<float> input(kChunkedCount, 1);
    std::vector<float> output(kChunkedCount);
    const CollectiveCall call = call_of(Collective::kAllReduce, 2, input, output);
    for (int n = 0; n < 4; ++n) comm.run(call);
    EXPECT_FALSE(comm.explain(call).chunks->tuned);
  });
}

TEST(AgreedChunks, RecordsAndExplainTellOfThem) {
  Runtime runtime;
  adapting(runtime);
  with_ranks(2, runtime, [&](Communicator& comm) {
    const std::vector<float> input(kChunkedCount, 1);
    std::vector<float> output(kChunkedCount);
    const CollectiveCall call = call_of(Collective::kAllReduce, 2, input, output);
    for (int n = 0; n < 8; ++n) comm.run(call);
    const std::vector<trace::CallRecords::Record> records = comm.records().read();
    ASSERT_EQ(records.size(), 8U);
    for (const trace::CallRecords::Record& record : records) {
      EXPECT_GE(record.chunk_bytes, 4096U);
      EXPECT_FALSE(record.algorithm.empty());
    }
    const std::string text =
        explain(comm, Collective::kAllReduce, kChunkedCount * sizeof(float), 0);
    EXPECT_NE(text.find(comm.rank() == 0 ? R"("state":"measuring")" : R"("state":"follows")"),
              std::string::npos)
        << text;
  });
}

// The communicators search each for its own, the smaller one with another rank that decides.
TEST(AgreedChunks, AShrunkCommunicatorBeginsAnewAndTheFormerGoesOn) {
  Runtime runtime;
  adapting(runtime);
  with_ranks(3, runtime, [&](Communicator& comm) {
    const std::vector<float> input(kChunkedCount, 1);
    std::vector<float> output(kChunkedCount);
    const auto calls = [&](Communicator& of) {
      const CollectiveCall call = call_of(Collective::kAllReduce, of.size(), input, output);
      for (int n = 0; n < 7; ++n) {
        of.run(call);
        ASSERT_EQ(output, std::vector<float>(kChunkedCount, static_cast<float>(of.size())));
      }
      const auto chunks = of.explain(call).chunks;
      EXPECT_TRUE(chunks->tuned);
      EXPECT_EQ(chunks->decides, of.rank() == 0);
    };
    calls(comm);
    if (comm.rank() > 0) {
      const std::unique_ptr<Communicator> smaller = comm.shrink({0});
      for (int n = 0; n < 4; ++n) calls(*smaller);
      smaller->finalize();
    }
    calls(comm);
  });
}

TEST(AgreedChunks, AnAbortInTheMiddleOfACallIsToldToAll) {
  Runtime runtime;
  adapting(runtime);
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
  std::vector<std::string> errors(3);
  std::latch ran(3);  // an abort also ends a call whose other ranks are done
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> comm = Communicator::join(id, r, 3, runtime);
      const std::vector<float> input(kChunkedCount, 1);
      std::vector<float> output(kChunkedCount);
      const CollectiveCall call = call_of(Collective::kAllReduce, 3, input, output);
      for (int n = 0; n < 6; ++n) comm->run(call);
      ran.arrive_and_wait();
      if (r == 1) {
        comm->abort("the test ends it");
        return;
      }
      try {
        comm->run(call);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int r : {0, 2}) {
    EXPECT_NE(errors[static_cast<std::size_t>(r)].find("the test ends it"), std::string::npos)
        << errors[static_cast<std::size_t>(r)];
  }
}

// A rank that is called otherwise is told so, notes or not.
TEST(AgreedChunks, AnotherCallIsStillToldByItsFields) {
  Runtime runtime;
  adapting(runtime);
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> comm = Communicator::join(id, r, 2, runtime);
      const std::vector<float> input(kChunkedCount, 1);
      std::vector<float> output(kChunkedCount);
      CollectiveCall call = call_of(Collective::kAllReduce, 2, input, output);
      for (int n = 0; n < 5; ++n) comm->run(call);
      if (r == 1) call.op = RedOp::kMax;
      try {
        comm->run(call);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string both = errors[0] + errors[1];
  EXPECT_NE(both.find("all_reduce of 393216 float32"), std::string::npos) << both;
  EXPECT_EQ(both.find("note"), std::string::npos) << both;
}

}  // namespace
}  // namespace ropewalk::comm
