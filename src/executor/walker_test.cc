// Runs every compiled schedule on threads over FIFOs in plain memory.
#include "executor/walker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/testing/share.h"
#include "executor/host/host_team.h"
#include "executor/host/short_walk.h"
#include "executor/program.h"
#include "schedule/check.h"
#include "schedule/compile.h"
#include "schedule/from_plan.h"
#include "schedule/lags.h"
#include "schedule/layout.h"
#include "schedule/pattern.h"
#include "schedule/testing/hosts.h"
#include "schedule/testing/random_plans.h"

namespace ropewalk::executor {
namespace {

constexpr std::size_t kGranule = 4;

// All links of a group, by (channel, source, destination).
class Fabric {
 public:
  explicit Fabric(FifoShape shape, bool by_address) : shape_(shape), by_address_(by_address) {}

  SendEnd make_send(int channel, int source, int destination) {
    SendEnd end;
    end.lie_in(memory(channel, source, destination), shape_);
    end.peer = destination;
    end.address_allowed = by_address_;
    return end;
  }
  ReceiveEnd make_receive(int channel, int source, int destination) {
    ReceiveEnd end;
    end.lie_in(memory(channel, source, destination), shape_);
    end.peer = source;
    return end;
  }

 private:
  std::byte* memory(int channel, int source, int destination) {
    auto& window = links_[{channel, source, destination}];
    if (window == nullptr) {
      window.reset(
          static_cast<std::byte*>(std::aligned_alloc(64, (shape_.bytes() + 63) / 64 * 64)));
      std::memset(window.get(), 0, shape_.bytes());
    }
    return window.get();
  }
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  FifoShape shape_;
  bool by_address_;
  std::map<std::tuple<int, int, int>, std::unique_ptr<std::byte, Free>> links_;
};

struct Rank {
  std::unique_ptr<HostTeam> team;
  std::vector<Program> programs;
  std::vector<std::unique_ptr<SendEnd>> sends;
  std::vector<std::unique_ptr<ReceiveEnd>> receives;
  std::vector<Strand> strands;
  std::vector<std::byte> input;
  std::vector<std::byte> output;
};

// Which ranks walk by a list (host/short_walk.h) where their calls can.
enum class Lists : std::uint8_t { kNone, kAll, kEvenRanks, kUntilTheFirstWait };

struct WalkCase {
  schedule::Schedule schedule;
  std::size_t count = 0;
  DataType type = DataType::kFloat32;
  RedOp op = RedOp::kSum;
  FifoShape shape{4, 2, 256};
  std::size_t chunk = 16;
  bool by_address = false;
  bool in_place = false;
  bool lags = false;
  Lists lists = Lists::kNone;
  std::atomic<int>* listed = nullptr;  // counts the walks that were
};

// Runs the case twice over the same links and returns the wrong elements over all ranks.
std::uint64_t run(const WalkCase& test) {
  const schedule::Schedule& s = test.schedule;
  const schedule::CheckReport report = schedule::check(s);
  EXPECT_TRUE(report.accepted) << (report.defects.empty() ? "" : report.defects.front());
  if (!report.accepted) return 1;
  Fabric fabric(test.shape, test.by_address);
  const schedule::TestPattern pattern(s.collective, test.type, test.op, s.num_ranks, s.root,
                                      test.count);
  const std::size_t element = size_of(test.type);
  const std::size_t unit = test.count * element;
  std::vector<Rank> ranks(static_cast<std::size_t>(s.num_ranks));
  for (int r = 0; r < s.num_ranks; ++r) {
    Rank& rank = ranks[static_cast<std::size_t>(r)];
    rank.team = std::make_unique<HostTeam>(r);
    for (int c = 0; c < s.num_channels(); ++c) {
      rank.programs.push_back(make_program(s, report, r, c));
      if (!test.lags) continue;
      const auto lags = schedule::find_lags(s, c, HostTeam::certain_slots(test.shape.slots));
      set_lags(rank.programs.back(), lags[static_cast<std::size_t>(r)]);
    }
    for (const Program& program : rank.programs) {
      Strand strand;
      strand.program = &program;
      for (const int peer : program.send_peers) {
        rank.sends.push_back(std::make_unique<SendEnd>(fabric.make_send(program.channel, r, peer)));
        strand.sends.push_back(rank.sends.back().get());
      }
      for (const int peer : program.receive_peers) {
        rank.receives.push_back(
            std::make_unique<ReceiveEnd>(fabric.make_receive(program.channel, peer, r)));
        strand.receives.push_back(rank.receives.back().get());
      }
      strand.sources.resize(program.max_operands);
      strand.destinations.resize(program.max_sends + 1);
      for (const StepRecord& step : program.steps) {
        strand.last_lag = std::max(strand.last_lag, step.lag);
      }
      rank.strands.push_back(std::move(strand));
    }
    const auto units = [&](int n) { return unit * static_cast<std::size_t>(n); };
    rank.input.resize(units(schedule::input_units(s.collective, s.num_ranks, s.root, r)) + 64);
    rank.output.resize(units(schedule::output_units(s.collective, s.num_ranks, s.root, r)) + 64);
  }
  std::uint64_t wrong = 0;
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<std::thread> threads;
    for (int r = 0; r < s.num_ranks; ++r) {
      threads.emplace_back([&, r] {
        Rank& rank = ranks[static_cast<std::size_t>(r)];
        Call call;
        call.input = rank.input.data();
        call.output = rank.output.data();
        if (test.in_place) {
          // The smaller buffer lies in the larger one.
          const int offset = *schedule::in_place_input_offset(s.collective, r);
          std::vector<std::byte>& whole =
              rank.output.size() >= rank.input.size() ? rank.output : rank.input;
          call.input = call.output = whole.data();
          if (rank.output.size() > rank.input.size() && offset > 0) {
            call.input += unit * static_cast<std::size_t>(offset);
          } else if (rank.input.size() > rank.output.size() && offset < 0) {
            call.output += unit * static_cast<std::size_t>(-offset);
          }
          call.in_place = true;
        }
        std::memset(call.output, 0x5a, rank.output.size() - 64);
        pattern.fill_input(r, const_cast<std::byte*>(call.input));
        call.count = test.count;
        call.type = test.type;
        call.element_bytes = element;
        call.op = test.op;
        if (test.op == RedOp::kPreMulSum) {
          call.scaled = true;
          call.scalar = pattern.scalar(r);
        }
        if (test.op == RedOp::kAvg) call.divisor = static_cast<std::uint32_t>(s.num_ranks);
        call.tag.call = static_cast<std::uint32_t>(turn);
        call.address_bytes = test.by_address ? 1 : ~std::size_t{0};
        for (std::size_t c = 0; c < rank.strands.size(); ++c) {
          Strand& strand = rank.strands[c];
          const schedule::Range range = schedule::channel_range(
              test.count, s.weight.data(), s.num_channels(), static_cast<int>(c), kGranule);
          strand.begin = range.begin;
          strand.length = range.count;
          strand.part_length = schedule::part_range({0, range.count}, s.parts, 0, kGranule).count;
          strand.chunk_length = test.chunk;
          strand.rounds = (strand.part_length + test.chunk - 1) / test.chunk;
          strand.turn = strand.step = 0;
        }
        HostTeam& team = *rank.team;
        ShortWalk list;
        const bool lists = test.lists != Lists::kNone && rank.strands.size() == 1 &&
                           (test.lists != Lists::kEvenRanks || r % 2 == 0);
        if (lists) {
          call.address_bytes = ~std::size_t{0};  // whatever the others do
          list.prepare(rank.strands[0], call);
          list.restart(call);
          if (list.usable()) ++*test.listed;
        }
        bool by_list = list.usable();
        std::vector<bool> done(rank.strands.size(), false);
        for (bool all = false; !all;) {
          all = true;
          for (std::size_t c = 0; c < rank.strands.size(); ++c) {
            if (!done[c]) {
              done[c] = by_list ? list.walk(team, rank.strands[c], call)
                                : walk(team, rank.strands[c], call);
            }
            all &= done[c];
          }
          if (test.lists == Lists::kUntilTheFirstWait) by_list = false;
          if (!all) std::this_thread::yield();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int r = 0; r < s.num_ranks; ++r) {
      Rank& rank = ranks[static_cast<std::size_t>(r)];
      const std::byte* output = rank.output.data();
      if (test.in_place && rank.input.size() > rank.output.size()) {
        const int offset = *schedule::in_place_input_offset(s.collective, r);
        output = rank.input.data() + unit * static_cast<std::size_t>(offset < 0 ? -offset : 0);
      }
      wrong += pattern.count_wrong(r, output);
    }
  }
  return wrong;
}

std::string describe(const schedule::Schedule& s, std::size_t count, bool by_address,
                     bool in_place) {
  return fmt::format("{} {} ranks {} root {} channels {} count {}{}{}", name(s.collective),
                     s.algorithm, s.num_ranks, s.root, s.num_channels(), count,
                     by_address ? " by address" : "", in_place ? " in place" : "");
}

// As many ranks, twice over, on as many hosts, dealt out.
schedule::Request on_hosts(schedule::Request request) {
  request.host_of_rank = schedule::testing::equal_hosts(request.num_ranks, 2, true);
  request.num_ranks *= 2;
  return request;
}

bool has_in_place_form(const schedule::Schedule& s) {
  return schedule::in_place_input_offset(s.collective, 0) && schedule::check(s).in_place;
}

TEST(Walker, RunsEveryScheduleRight) {
  ropewalk::testing::Share share;
  for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
    for (int c = 0; c < kNumCollectives; ++c) {
      for (const int ranks : {1, 2, 3, 5}) {
        const auto collective = static_cast<Collective>(c);
        for (const int channels : {1, 2}) {
          schedule::Request request{collective, ranks, has_root(collective) ? ranks - 1 : 0,
                                    channels};
          if (!algorithm.needs.empty()) request = on_hosts(request);
          if (!algorithm.supports(request)) continue;
          WalkCase test;
          test.schedule = schedule::compile(algorithm.name, request);
          for (const std::size_t count : {std::size_t{1}, std::size_t{7}, std::size_t{150}}) {
            test.count = count;
            for (const bool by_address : {false, true}) {
              test.by_address = by_address;
              for (const bool in_place : {false, true}) {
                if (in_place && !has_in_place_form(test.schedule)) continue;
                if (!share.next()) continue;
                test.in_place = in_place;
                ASSERT_EQ(run(test), 0U) << describe(test.schedule, count, by_address, in_place);
              }
            }
          }
        }
      }
    }
  }
}

// By a list, by the walker after a list, and ranks of both kinds together, which may send addresses
// to each other.
TEST(Walker, ShortCallsByAListAreTheSame) {
  ropewalk::testing::Share share;
  std::atomic<int> listed{0};
  for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
    if (!algorithm.needs.empty()) continue;
    for (int c = 0; c < kNumCollectives; ++c) {
      const auto collective = static_cast<Collective>(c);
      for (const int ranks : {1, 2, 3, 5}) {
        const schedule::Request request{collective, ranks, has_root(collective) ? ranks - 1 : 0, 1};
        if (!algorithm.supports(request)) continue;
        WalkCase test;
        test.listed = &listed;
        test.schedule = schedule::compile(algorithm.name, request);
        test.shape = {.headers = 16, .slots = 4, .slot_bytes = 4096};
        test.chunk = 1024;
        for (const auto& [type, op] :
             {std::pair(DataType::kFloat32, RedOp::kSum), std::pair(DataType::kInt32, RedOp::kAvg),
              std::pair(DataType::kFloat32, RedOp::kPreMulSum),
              std::pair(DataType::kBfloat16, RedOp::kSum),
              std::pair(DataType::kInt8, RedOp::kMax)}) {
          if (!reduces(collective) && type != DataType::kInt8) continue;
          test.type = type;
          test.op = op;
          for (const std::size_t count : {1U, 3U, 24U, 25U, 700U}) {
            test.count = count;
            for (const Lists lists : {Lists::kAll, Lists::kEvenRanks, Lists::kUntilTheFirstWait}) {
              test.lists = lists;
              for (const bool in_place : {false, true}) {
                if (in_place && !has_in_place_form(test.schedule)) continue;
                if (!share.next()) continue;
                test.in_place = in_place;
                test.by_address = lists == Lists::kEvenRanks && !in_place;
                ASSERT_EQ(run(test), 0U)
                    << describe(test.schedule, count, test.by_address, in_place) << " "
                    << name(type) << " " << name(op) << " " << static_cast<int>(lists);
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(listed, 100);
}

// Chunks of all kinds of slots follow each other over one link.
TEST(Walker, ShortAndLongChunksShareALink) {
  for (const char* algorithm : {"ring", "binary_tree"}) {
    for (const Collective collective : {Collective::kAllReduce, Collective::kBroadcast}) {
      WalkCase test;
      test.schedule = schedule::compile(algorithm, {collective, 3, 0, 1});
      test.shape = {.headers = 16,
                    .slots = 2,
                    .slot_bytes = 256,
                    .short_slots = 8,
                    .short_bytes = 192,
                    .short_stride = 256};
      for (const std::size_t chunk : {20U, 30U, 48U, 64U}) {
        for (const std::size_t count : {25U, 64U, 500U, 1111U}) {
          test.chunk = chunk;
          test.count = count;
          ASSERT_EQ(run(test), 0U) << describe(test.schedule, count, false, false) << chunk;
        }
      }
    }
  }
}

// A step's data lies once, in the slot of one of its links, whatever slots its readers have left.
TEST(Walker, SeveralReadersShareASlot) {
  std::atomic<int> listed{0};
  for (const auto& [algorithm, collective] :
       {std::pair("direct", Collective::kBroadcast), std::pair("one_shot", Collective::kAllGather),
        std::pair("one_shot", Collective::kAllReduce),
        std::pair("binary_tree", Collective::kAllReduce),
        std::pair("double_binary_tree", Collective::kBroadcast)}) {
    for (const int ranks : {3, 4, 7}) {
      WalkCase test;
      test.schedule = schedule::compile(algorithm, {collective, ranks, 0, 1});
      test.listed = &listed;
      for (const std::uint32_t slots : {2U, 4U}) {
        test.shape = {.headers = 16,
                      .slots = slots,
                      .slot_bytes = 2048,
                      .short_slots = 8,
                      .short_bytes = 1024,
                      .short_stride = 1024};
        for (const std::size_t chunk : {100U, 200U, 512U}) {  // of 400, 800 and 2048 bytes
          test.chunk = chunk;
          for (const std::size_t count : {chunk, 7 * chunk + 130, 40 * chunk + 3}) {
            test.count = count;
            for (const Lists lists : {Lists::kNone, Lists::kEvenRanks}) {
              test.lists = lists;
              ASSERT_EQ(run(test), 0U)
                  << describe(test.schedule, count, false, false) << " chunks of " << chunk;
            }
          }
        }
      }
    }
  }
}

// Each rank is a thread: no rank touches memory that another one may still read or has not written
// yet.
TEST(Walker, RunsPlansRightWhoseStepsLag) {
  ropewalk::testing::Share share;
  schedule::testing::for_every_plan([&](const plan::Plan& plan) {
    if (plan.num_ranks() > 6) return;
    WalkCase test;
    test.schedule = schedule::from_plan(plan, schedule::Pipelining::kByLags).schedule;
    test.lags = true;
    for (const std::uint32_t slots : {4U, 8U}) {
      test.shape = {slots, slots, 256};
      for (const bool by_address : {false, true}) {
        for (const bool in_place : {false, true}) {
          if (!share.next()) continue;
          test.by_address = by_address;
          test.in_place = in_place;
          test.count = 40U * plan.trees.size() + 3;
          test.chunk = 8;
          ASSERT_EQ(run(test), 0U) << describe(test.schedule, test.count, by_address, in_place);
        }
      }
    }
  });
}

bool all_by_address(const schedule::Schedule& s) {
  const bool in_place = schedule::in_place_input_offset(s.collective, 0).has_value();
  const schedule::CheckReport report = schedule::check(s);
  for (const auto& rank : report.direct) {
    for (const auto& channel : rank) {
      for (const auto& step : channel) {
        for (const schedule::DirectSend& send : step) {
          if (!send.out_of_place || (in_place && !send.in_place)) return false;
        }
      }
    }
  }
  return true;
}

TEST(Walker, ChunksLargerThanSlotsWhereAllGoesByAddress) {
  int schedules = 0;
  for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
    for (int c = 0; c < kNumCollectives; ++c) {
      for (const int ranks : {2, 4, 5}) {
        const schedule::Request request{static_cast<Collective>(c), ranks, 0, 1};
        if (!algorithm.supports(request)) continue;
        WalkCase test;
        test.schedule = schedule::compile(algorithm.name, request);
        if (!all_by_address(test.schedule)) continue;
        ++schedules;
        test.by_address = true;
        test.count = 1000;
        test.chunk = 300;  // 1200 bytes, slots have 256
        ASSERT_EQ(run(test), 0U) << describe(test.schedule, test.count, true, false);
      }
    }
  }
  EXPECT_GT(schedules, 20);
}

TEST(Walker, NeverOverrunsASlot) {
  WalkCase test;
  test.schedule = schedule::compile("ring", {Collective::kBroadcast, 2, 0, 1});
  test.count = 1000;
  test.chunk = 300;
  const schedule::CheckReport report = schedule::check(test.schedule);
  Fabric fabric(test.shape, false);
  const Program program = make_program(test.schedule, report, 0, 0);
  SendEnd send = fabric.make_send(0, 0, 1);
  Strand strand;
  strand.program = &program;
  strand.sends = {&send};
  strand.sources.resize(program.max_operands);
  strand.destinations.resize(program.max_sends + 1);
  strand.length = strand.part_length = test.count;
  strand.chunk_length = test.chunk;
  strand.rounds = 4;
  std::vector<float> data(test.count, 1.0F);
  Call call;
  call.input = reinterpret_cast<std::byte*>(data.data());
  call.output = reinterpret_cast<std::byte*>(data.data());
  call.count = test.count;
  HostTeam team(0);
  EXPECT_THROW((void)walk(team, strand, call), Error);
}

TEST(Walker, AppliesScalarOnceAndDivisorAtTheEnd) {
  for (const char* algorithm : {"ring", "one_shot", "two_shot", "recursive_doubling"}) {
    WalkCase test;
    test.schedule = schedule::compile(algorithm, {Collective::kAllReduce, 3, 0, 1});
    test.count = 41;
    test.op = RedOp::kPreMulSum;
    for (const bool by_address : {false, true}) {
      test.by_address = by_address;
      EXPECT_EQ(run(test), 0U) << algorithm;
    }
  }
}

TEST(Walker, NamesADifferentCall) {
  Fabric fabric({4, 2, 256}, false);
  const schedule::Schedule s = schedule::compile("one_shot", {Collective::kAllReduce, 2, 0, 1});
  const schedule::CheckReport report = schedule::check(s);
  ASSERT_TRUE(report.accepted);
  std::string text;
  std::vector<float> data(4, 1.0F);
  for (int r = 0; r < 2; ++r) {
    const Program program = make_program(s, report, r, 0);
    SendEnd send = fabric.make_send(0, r, 1 - r);
    ReceiveEnd receive = fabric.make_receive(0, 1 - r, r);
    Strand strand;
    strand.program = &program;
    strand.sends = {&send};
    strand.receives = {&receive};
    strand.sources.resize(program.max_operands);
    strand.destinations.resize(program.max_sends + 1);
    strand.length = strand.part_length = strand.chunk_length = 4;
    strand.rounds = 1;
    Call call;
    call.input = reinterpret_cast<std::byte*>(data.data());
    call.output = reinterpret_cast<std::byte*>(data.data());
    call.count = 4;
    call.tag.count = r == 0 ? 4 : 8;
    HostTeam team(r);
    try {
      (void)walk(team, strand, call);
    } catch (const Error& error) {
      text = error.what();
      EXPECT_EQ(error.code(), Errc::kInvalidUsage);
    }
  }
  EXPECT_NE(text.find("(count)"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 0"), std::string::npos) << text;
}

}  // namespace
}  // namespace ropewalk::executor
