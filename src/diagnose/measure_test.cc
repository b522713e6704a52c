// Measurements whose threads drive several ranks each.
#include "diagnose/measure.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/group.h"
#include "core/error.h"
#include "diagnose/driven_ranks.h"

namespace ropewalk::diagnose {
namespace {

using Ranks = std::vector<comm::Communicator*>;

// Communicators of one job, in this process.
class Job {
 public:
  explicit Job(int size) : comms_(static_cast<std::size_t>(size)) {
    runtime_.set("TUNE", "0", "test");  // no measuring, no files
    runtime_.set("TIMEOUT", "60", "test");
    const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
    at_once([&](std::size_t i) {
      comms_[i] = comm::Communicator::join(id, static_cast<int>(i), size, runtime_);
    });
  }
  ~Job() {
    at_once([&](std::size_t i) { comms_[i]->finalize(); });
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  comm::Communicator& rank(std::size_t i) { return *comms_[i]; }
  // Cuts the ranks into as many for each thread, and runs `body` in all threads.
  template <typename Result>
  std::vector<Result> in_threads(std::vector<std::size_t> ranks_each,
                                 const std::function<Result(const Ranks&)>& body) {
    std::vector<std::future<Result>> threads;
    std::size_t next = 0;
    for (const std::size_t count : ranks_each) {
      Ranks ranks;
      for (std::size_t i = 0; i < count; ++i) ranks.push_back(comms_[next++].get());
      threads.push_back(std::async(std::launch::async, [&body, ranks] { return body(ranks); }));
    }
    std::vector<Result> results;
    for (std::future<Result>& thread : threads) results.push_back(thread.get());
    return results;
  }

 private:
  void at_once(const std::function<void(std::size_t)>& body) {
    comm::Group group;
    group.start();
    for (std::size_t i = 0; i < comms_.size(); ++i) group.add_join([&body, i] { body(i); });
    group.end();
  }

  comm::Runtime runtime_;
  std::vector<std::unique_ptr<comm::Communicator>> comms_;
};

// How threads share two, three and four ranks: all in one, evenly, unevenly.
const std::vector<std::vector<std::size_t>> kShares{{2}, {3}, {2, 2}, {3, 1}, {1, 1, 2}};

Job job_of(const std::vector<std::size_t>& share) {
  std::size_t size = 0;
  for (const std::size_t count : share) size += count;
  return Job(static_cast<int>(size));
}

std::optional<Errc> error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.code();
  }
  return std::nullopt;
}

TEST(Measure, EveryCollectiveOverSeveralRanksOfAThread) {
  for (const std::vector<std::size_t>& share : kShares) {
    Job job = job_of(share);
    job.in_threads<bool>(share, [](const Ranks& ranks) {
      for (int c = 0; c < kNumCollectives; ++c) {
        for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{30'011}}) {
          for (const bool in_place : {false, true}) {
            MeasureSpec spec;
            spec.collective = static_cast<Collective>(c);
            if (in_place && (spec.collective == Collective::kAllToAll ||
                             spec.collective == Collective::kSendRecv)) {
              continue;  // they have no such form
            }
            spec.count = count;
            spec.in_place = in_place;
            spec.iterations = 2;
            spec.warmup = 1;
            spec.root = has_root(spec.collective) ? -1 : 0;
            spec.region = count == 1 ? 4096 : 0;
            const MeasureResult result = measure(ranks, spec);
            EXPECT_EQ(result.wrong, 0U) << name(spec.collective) << " of " << count << " over "
                                        << ranks.front()->size() << " ranks";
            EXPECT_FALSE(result.algorithm.empty());
          }
        }
      }
      return true;
    });
  }
}

// The kernel clears new pages: for short messages that took longer than the measurement.
TEST(Measure, ALaterMeasurementOfAThreadTakesTheSamePages) {
  const auto faults = [] {
    rusage usage{};
    EXPECT_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
    return usage.ru_minflt;
  };
  Job job(2);
  job.in_threads<bool>({1, 1}, [&](const Ranks& ranks) {
    MeasureSpec spec;
    spec.count = 2;
    spec.region = std::size_t{16} << 20;
    const long begin = faults();
    EXPECT_EQ(measure(ranks, spec).wrong, 0U);
    const long first = faults() - begin;
    spec.count = 3;
    spec.in_place = true;
    EXPECT_EQ(measure(ranks, spec).wrong, 0U);
    EXPECT_LT(faults() - begin - first, first / 4) << "of " << first;
    return true;
  });
}

// The buffers of successive calls of a rank, until they repeat.
using Buffers = std::vector<std::pair<const std::byte*, const std::byte*>>;

Buffers buffers_of(MeasuredRank& rank) {
  Buffers buffers;
  const auto buffer = [&] {
    const comm::CollectiveCall& call = rank.call(0);
    return std::pair(static_cast<const std::byte*>(call.input),
                     static_cast<const std::byte*>(call.output));
  };
  do {
    buffers.push_back(buffer());
    rank.advance();
  } while (buffer() != buffers.front() && buffers.size() < 1000);
  return buffers;
}

TEST(Measure, OperationsTakeOtherMemoryWithinARegion) {
  Job job(2);
  job.in_threads<bool>({2}, [](const Ranks& ranks) {
    MeasureSpec spec;
    spec.collective = Collective::kAllGather;
    spec.count = 25;  // 100 bytes of a rank: a result of 200, in four lines
    spec.region = 1100;
    DrivenRanks driven(ranks);
    driven.prepare(spec);
    driven.leave();
    for (const auto& rank : driven.all()) {
      const Buffers buffers = buffers_of(*rank);
      EXPECT_EQ(buffers.size(), 4U);
      for (std::size_t i = 1; i < buffers.size(); ++i) {
        EXPECT_EQ(buffers[i].first - buffers[i - 1].first, 256);
        EXPECT_EQ(buffers[i].second - buffers[i - 1].second, 256);
      }
    }
    return true;
  });
}

TEST(Measure, WithoutARegionAllOperationsTakeTheSameMemory) {
  Job job(2);
  job.in_threads<bool>({2}, [](const Ranks& ranks) {
    for (const std::size_t region : std::initializer_list<std::size_t>{0, 63, 64}) {
      MeasureSpec spec;
      spec.count = 16;
      spec.region = region;
      spec.in_place = true;
      DrivenRanks driven(ranks);
      driven.prepare(spec);
      driven.leave();
      EXPECT_EQ(buffers_of(driven.first()).size(), 1U);
    }
    return true;
  });
}

TEST(Measure, LongBuffersOfLittleMemory) {
  Job job(3);
  job.in_threads<bool>({1, 2}, [](const Ranks& ranks) {
    MeasureSpec spec;
    spec.period = std::size_t{64} << 10;
    spec.iterations = 2;
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce}) {
      // Eight periods; less than one; and no whole number of them, which is not repeated.
      for (const std::size_t bytes : {8 * spec.period, spec.period / 2, 3 * spec.period + 4}) {
        spec.collective = collective;
        spec.root = has_root(collective) ? 2 : 0;
        spec.count = bytes / 4;
        EXPECT_EQ(measure(ranks, spec).wrong, 0U) << name(collective) << " of " << bytes;
      }
    }
    return true;
  });
}

TEST(Measure, WhatRepeatsIsVerifiedToo) {
  Job job(2);
  job.in_threads<bool>({1, 1}, [](const Ranks& ranks) {
    MeasureSpec spec;
    spec.period = std::size_t{64} << 10;
    spec.count = spec.period;  // four periods
    MeasuredRank rank(*ranks.front(), spec);
    rank.spoil(0);
    const std::uint64_t shown = ranks.front()->rank() == 0 ? 4 : 1;
    EXPECT_EQ(rank.count_wrong(0), shown * spec.period / 4);
    return true;
  });
}

TEST(Measure, RefusesPeriodsOfOtherOperations) {
  Job job(2);
  job.in_threads<bool>({2}, [](const Ranks& ranks) {
    MeasureSpec spec;
    spec.count = 1;
    spec.period = std::size_t{64} << 10;
    spec.in_place = true;
    EXPECT_EQ(error_of([&] { measure(ranks, spec); }), Errc::kInvalidArgument);
    spec.in_place = false;
    spec.collective = Collective::kAllGather;
    EXPECT_EQ(error_of([&] { measure(ranks, spec); }), Errc::kInvalidArgument);
    spec.collective = Collective::kAllReduce;
    spec.period = 4096;
    EXPECT_EQ(error_of([&] { measure(ranks, spec); }), Errc::kInvalidArgument);
    return true;
  });
}

// All ranks of one thread wait for all of another, however many each has.
TEST(DrivenRanks, ABarrierWaitsForTheRanksOfOtherThreads) {
  for (const std::vector<std::size_t>& share :
       std::vector<std::vector<std::size_t>>{{1, 1}, {1, 2}, {2, 2}}) {
    Job job = job_of(share);
    std::atomic<bool> late_came{false};
    job.in_threads<bool>(share, [&](const Ranks& ranks) {
      DrivenRanks driven(ranks);
      driven.prepare({});
      if (ranks.front()->rank() != 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        late_came = true;
      }
      driven.barrier();
      EXPECT_TRUE(late_came);
      driven.leave();
      return true;
    });
  }
}

TEST(Measure, AllThreadsGetOneResult) {
  Job job(5);
  const auto results = job.in_threads<MeasureResult>({2, 3}, [](const Ranks& ranks) {
    MeasureSpec spec;
    spec.count = 1000;
    spec.op = RedOp::kPreMulSum;
    spec.iterations = 7;
    spec.operations = 3;
    spec.check = 2;
    spec.per_iteration = true;
    return measure(ranks, spec);
  });
  for (const MeasureResult& result : results) {
    EXPECT_EQ(result.wrong, 0U);
    EXPECT_EQ(result.iteration_seconds.size(), 7U);
    EXPECT_EQ(result.seconds_avg, results.front().seconds_avg);
    EXPECT_EQ(result.seconds_rank0, results.front().seconds_rank0);
    EXPECT_LE(result.seconds_min, result.seconds_rank0);
    EXPECT_GE(result.seconds_max, result.seconds_rank0);
  }
  // The ranks of a thread have its time: two of five have rank 0's.
  const double others = (results[0].seconds_min == results[0].seconds_rank0)
                            ? results[0].seconds_max
                            : results[0].seconds_min;
  EXPECT_NEAR(results[0].seconds_avg, (2 * results[0].seconds_rank0 + 3 * others) / 5, 1e-9);
}

TEST(Measure, BarriersOfSeveralRanks) {
  Job job(3);
  for (const MeasureBarrier barrier : {MeasureBarrier::kOperation, MeasureBarrier::kIteration}) {
    job.in_threads<bool>({3}, [barrier](const Ranks& ranks) {
      MeasureSpec spec;
      spec.count = 10;
      spec.iterations = 5;
      spec.operations = 2;
      spec.barrier = barrier;
      EXPECT_EQ(measure(ranks, spec).wrong, 0U);
      return true;
    });
  }
}

TEST(Measure, AnErrorChangesNothing) {
  Job job(3);
  Job other(4);
  MeasureSpec spec;
  spec.count = 100;
  const auto all = Ranks{&job.rank(0), &job.rank(1), &job.rank(2)};
  const auto refused = [&](const Ranks& ranks, const MeasureSpec& asked) {
    return error_of([&] { measure(ranks, asked); }) == Errc::kInvalidArgument;
  };
  EXPECT_TRUE(refused({}, spec));
  EXPECT_TRUE(refused({&job.rank(0), &job.rank(1), &job.rank(1)}, spec));
  EXPECT_TRUE(refused({&job.rank(0), &other.rank(1)}, spec));
  MeasureSpec wrong = spec;
  wrong.iterations = 0;
  EXPECT_TRUE(refused(all, wrong));
  wrong = spec;
  wrong.root = 3;
  EXPECT_TRUE(refused(all, wrong));
  wrong = spec;
  wrong.collective = Collective::kAllToAll;
  wrong.in_place = true;
  EXPECT_TRUE(refused(all, wrong));
  EXPECT_EQ(measure(all, spec).wrong, 0U);
}

TEST(Measure, GraphsAreForGpus) {
  Job job(2);
  const Ranks all{&job.rank(0), &job.rank(1)};
  MeasureSpec spec;
  spec.graphs = 1;
  EXPECT_EQ(error_of([&] { measure(all, spec); }), Errc::kInvalidUsage);
  EXPECT_TRUE(job.rank(0).failure().broken());
  EXPECT_TRUE(job.rank(1).failure().broken());
}

// Two threads of two ranks each measure until something breaks. What each of them ended with.
std::vector<std::optional<Errc>> measured_without_end(Job& job) {
  return job.in_threads<std::optional<Errc>>({2, 2}, [](const Ranks& ranks) {
    return error_of([&] {
      MeasureSpec spec;
      spec.count = 1000;
      spec.iterations = 1'000'000'000;
      measure(ranks, spec);
    });
  });
}

TEST(Measure, ARankThatIsBrokenEndsAllOfItsThreadAndTheOthers) {
  Job job(4);
  const auto begin = std::chrono::steady_clock::now();
  job.rank(1).abort("as the test wants it");
  const auto errors = measured_without_end(job);
  // By its own error or that of the other rank, whichever is noticed first.
  for (const std::optional<Errc>& error : errors) EXPECT_TRUE(error.has_value());
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(job.rank(i).failure().broken()) << i;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(Measure, ARankThatBreaksInTheLoopEndsAllOfItsThreadAndTheOthers) {
  Job job(4);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    job.rank(3).abort("as the test wants it");
  });
  const auto errors = measured_without_end(job);
  later.join();
  for (const std::optional<Errc>& error : errors) EXPECT_TRUE(error.has_value());
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(job.rank(i).failure().broken()) << i;
}

}  // namespace
}  // namespace ropewalk::diagnose
