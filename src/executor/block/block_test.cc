// The code of CUDA blocks on threads of the host: every schedule by both protocols, by address and
// staged, and every reason to stop.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "core/shared_memory.h"
#include "core/testing/share.h"
#include "executor/block/host_block.h"
#include "executor/block/pack.h"
#include "executor/block/run.h"
#include "executor/block/testing/case.h"
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

using namespace testing;  // NOLINT: what all of it is about

TEST(Block, GivesAddressesAsTheReaderSeesThem) {
  std::map<std::string, std::size_t> given;
  for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
    for (int c = 0; c < kNumCollectives; ++c) {
      const auto collective = static_cast<Collective>(c);
      schedule::Request request{collective, 3, has_root(collective) ? 1 : 0, 2};
      if (!algorithm.needs.empty()) {
        request.num_ranks = 4;
        request.host_of_rank = {0, 1, 0, 1};
      }
      if (!algorithm.supports(request)) continue;
      Case test;
      test.schedule = schedule::compile(algorithm.name, request);
      test.count = 67;
      test.by_address = test.elsewhere = true;
      const bool in_place_form = schedule::in_place_input_offset(collective, 0).has_value() &&
                                 schedule::check(test.schedule).in_place;
      for (const bool in_place : {false, true}) {
        if (in_place && !in_place_form) continue;
        test.in_place = in_place;
        const std::uint64_t wrong = run<ElementOf<DataType::kFloat32>, RedOp::kSum>(
            test, &given[std::string(name(collective))]);
        ASSERT_EQ(wrong, 0U) << describe(test);
      }
    }
  }
  for (const auto& [collective, chunks] : given) EXPECT_GT(chunks, 0U) << collective;
}

TEST(Block, RunsEveryScheduleRight) {
  ropewalk::testing::Share share;
  using Float = ElementOf<DataType::kFloat32>;
  for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
    for (int c = 0; c < kNumCollectives; ++c) {
      for (const int ranks : {1, 2, 3}) {
        const auto collective = static_cast<Collective>(c);
        schedule::Request request{collective, ranks, has_root(collective) ? ranks - 1 : 0, 2};
        if (!algorithm.needs.empty()) {  // two on each of two or three hosts, dealt out
          request.host_of_rank = schedule::testing::equal_hosts(ranks, 2, true);
          request.num_ranks *= 2;
        }
        if (!algorithm.supports(request)) continue;
        Case test;
        test.schedule = schedule::compile(algorithm.name, request);
        const bool in_place_form = schedule::in_place_input_offset(collective, 0).has_value() &&
                                   schedule::check(test.schedule).in_place;
        for (const std::size_t count : {std::size_t{1}, std::size_t{67}}) {
          test.count = count;
          for (const bool in_place : {false, true}) {
            if (in_place && !in_place_form) continue;
            test.in_place = in_place;
            for (const auto& [protocol, by_address] :
                 {std::pair{Protocol::kLl, false}, std::pair{Protocol::kLl128, false},
                  std::pair{Protocol::kSimple, false}, std::pair{Protocol::kSimple, true}}) {
              if (!share.next()) continue;
              test.protocol = protocol;
              test.by_address = by_address;
              const std::uint64_t wrong = run<Float, RedOp::kSum>(test);
              ASSERT_EQ(wrong, 0U) << describe(test);
            }
          }
        }
      }
    }
  }
}

// A thread waits for four sources together.
TEST(Block, AddsMoreSourcesThanAreWaitedForTogether) {
  using Float = ElementOf<DataType::kFloat32>;
  for (const char* algorithm : {"one_shot", "direct"}) {
    const auto collective =
        algorithm == std::string("direct") ? Collective::kReduce : Collective::kAllReduce;
    for (const int ranks : {4, 5}) {
      Case test;
      test.schedule = schedule::compile(algorithm, {collective, ranks, 0, 1});
      for (const Protocol protocol : {Protocol::kLl, Protocol::kLl128}) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{67}, std::size_t{400}}) {
          test.protocol = protocol;
          test.count = count;
          const std::uint64_t wrong = run<Float, RedOp::kSum>(test);
          ASSERT_EQ(wrong, 0U) << describe(test);
        }
      }
    }
  }
}

// Steps of different parts may be reordered; those of one part keep their order.
TEST(Block, RunsPlansRight) {
  ropewalk::testing::Share share;
  schedule::testing::RandomPlans plans(11);
  for (const Collective collective : schedule::testing::kPlanned) {
    for (const int ranks : {2, 3, 4}) {
      const plan::Plan plan = plans.make(collective, ranks, 1, !has_root(collective), false);
      for (const auto pipelining :
           {schedule::Pipelining::kByParts, schedule::Pipelining::kByLags}) {
        Case test;
        test.schedule = schedule::from_plan(plan, pipelining).schedule;
        test.count = 150;
        test.shape = {16, 16, 1920};
        for (const bool by_address : {false, true}) {
          for (const bool in_place : {false, true}) {
            if (!share.next()) continue;
            test.by_address = by_address;
            test.in_place = in_place;
            const std::uint64_t wrong = run<ElementOf<DataType::kFloat32>, RedOp::kSum>(test);
            ASSERT_EQ(wrong, 0U) << describe(test);
          }
        }
      }
    }
  }
}

// As HYBRID has them: the last channels carry a share of their own, over links with other slots.
TEST(Block, RunsChannelsOfTwoClassesOfLinksRight) {
  ropewalk::testing::Share share;
  constexpr int kChannels = 4;
  for (const auto& [collective, algorithm] :
       {std::pair{Collective::kAllReduce, "ring"}, std::pair{Collective::kAllReduce, "two_shot"},
        std::pair{Collective::kAllGather, "ring"}, std::pair{Collective::kBroadcast, "chain"},
        std::pair{Collective::kBroadcast, "binary_tree"}}) {
    for (const int ranks : {2, 3}) {
      for (const std::vector<int>& weights :
           {std::vector{30, 30, 30, 10}, std::vector{5000, 5000, 1, 1}}) {
        for (const std::size_t count : {std::size_t{31}, std::size_t{503}}) {
          if (!share.next()) continue;
          Case test;
          test.schedule = schedule::compile(
              algorithm, {collective, ranks, has_root(collective) ? 1 : 0, kChannels});
          test.schedule.weight = weights;
          test.count = count;
          test.chunk = 32;
          test.other_channels = weights[2] == weights[1] ? 1 : 2;
          test.other_shape = {4, 8, 32 * sizeof(float)};
          test.in_place = count < 100;
          const std::uint64_t wrong = run<ElementOf<DataType::kFloat32>, RedOp::kSum>(test);
          ASSERT_EQ(wrong, 0U) << describe(test);
        }
      }
    }
  }
}

// No thread uses a link's counters before the thread that reads them has, or keeps them before all
// have ended.
TEST(Block, WaitsForItsLateThreads) {
  Case test;
  test.schedule = schedule::compile("ring", {Collective::kAllReduce, 3, 0, 1});
  test.count = 300;
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl, Protocol::kLl128}) {
    test.protocol = protocol;
    for (test.late = 0; test.late < kThreads; ++test.late) {
      const std::uint64_t wrong = run<ElementOf<DataType::kFloat32>, RedOp::kSum>(test);
      ASSERT_EQ(wrong, 0U) << describe(test) << ", thread " << test.late << " is late";
    }
  }
}

// An earlier launch may have gone on since the ends were copied.
TEST(Block, ReadsTheCountersAsTheLastLaunchHasKeptThem) {
  constexpr std::uint32_t kLinks = 6;  // more than threads
  std::vector<SendCounters> kept_sends(kLinks);
  std::vector<ReceiveCounters> kept_receives(kLinks);
  std::vector<SendEnd> sends(kLinks);
  std::vector<ReceiveEnd> receives(kLinks);
  for (std::uint32_t k = 0; k < kLinks; ++k) {
    kept_sends[k].published = 100 + k;
    kept_sends[k].consumed_seen = 200 + k;
    kept_sends[k].drain_to = 300 + k;
    kept_receives[k].received = 400 + k;
    sends[k].kept = &kept_sends[k];
    receives[k].kept = &kept_receives[k];
  }
  BlockStrand strand;
  strand.sends = sends.data();
  strand.receives = receives.data();
  strand.num_send_ends = strand.num_receive_ends = kLinks;
  const LaunchArgs args{};
  HostBlockShared shared(kThreads);
  for (unsigned t = 0; t < kThreads; ++t) {
    read_counters(HostBlock(shared, t, args.links), strand, args);
  }
  for (std::uint32_t k = 0; k < kLinks; ++k) {
    EXPECT_EQ(sends[k].published, 100 + k);
    EXPECT_EQ(sends[k].consumed_seen, 200 + k);
    EXPECT_EQ(sends[k].drain_to, 300 + k);
    EXPECT_EQ(receives[k].received, 400 + k);
  }
}

// Two ranks exchange `bytes`, over both channels, in two launches one after the other.
std::size_t exchange_wrong(Protocol protocol, std::size_t bytes, bool by_address) {
  Machine machine(2, 2, protocol, FifoShape{4, 4, 240});
  Control control;
  std::vector<std::vector<std::byte>> out(2);
  std::vector<std::vector<std::byte>> in(2);
  std::vector<TwiceMapped> mapped;
  std::vector<MessageArgs> args(2);
  std::vector<std::vector<SendEnd>> sends(2);
  std::vector<std::vector<ReceiveEnd>> receives(2);
  for (std::size_t r = 0; r < 2; ++r) {
    out[r].resize(bytes);
    in[r].resize(bytes);
    mapped.emplace_back(std::max<std::size_t>(bytes, 1));
    MessageArgs& a = args[r];
    Machine::Ends ends(machine, static_cast<int>(r));
    for (int c = 0; c < 2; ++c) {
      sends[r].push_back(ends.send_end(c, static_cast<int>(1 - r)));
      receives[r].push_back(ends.receive_end(c, static_cast<int>(1 - r)));
    }
    a.links.control = &control;
    a.links.timeout_ns = 60'000'000'000;
    a.links.num_ranks = 2;
    a.links.rank = static_cast<std::uint32_t>(r);
    a.address_bytes = by_address ? 1 : ~std::size_t{0};
    a.num_messages = 2;
    for (std::uint16_t m = 0; m < 2; ++m) {
      Message& message = a.messages[m];
      message.data = m == 0 ? in[r].data() : mapped[r].data();
      message.ends = m == 0 ? static_cast<const void*>(receives[r].data()) : sends[r].data();
      message.shift = mapped[r].shift();
      message.bytes = bytes;
      message.chunk_bytes = 200;
      message.peer = static_cast<int>(1 - r);
      message.first_block = static_cast<std::uint16_t>(2 * m);
      message.channels = 2;
      message.protocol = protocol;
      message.sends = message.visible = m == 1;
    }
  }
  std::size_t wrong = 0;
  for (std::size_t launch = 0; launch < 2; ++launch) {
    for (std::size_t r = 0; r < 2; ++r) {
      for (std::size_t i = 0; i < bytes; ++i) {
        out[r][i] = static_cast<std::byte>(i * 7 + i / 256 + r + 31 * launch);
      }
      std::copy(out[r].begin(), out[r].end(), mapped[r].data());
    }
    std::vector<std::thread> threads;
    std::vector<std::unique_ptr<HostBlockShared>> blocks;
    std::vector<std::unique_ptr<MessageShared>> shared;
    std::vector<std::vector<std::uint64_t>> times(2, std::vector<std::uint64_t>(8));
    const std::uint64_t before = HostBlock::clock_ns();
    for (std::size_t r = 0; r < 2; ++r) {
      args[r].links.stamps = {times[r].data(), static_cast<std::uint16_t>(launch + 1)};
      for (std::uint32_t b = 0; b < 4; ++b) {
        blocks.push_back(std::make_unique<HostBlockShared>(kThreads));
        shared.push_back(std::make_unique<MessageShared>());
        for (unsigned t = 0; t < kThreads; ++t) {
          threads.emplace_back(
              [&a = args[r], b, t, group = blocks.back().get(), memory = shared.back().get()] {
                HostBlock block(*group, t, a.links);
                kind_of(a) == KernelKind::kNotes
                    ? run_message<KernelKind::kNotes>(block, a, b, *memory)
                    : run_message<KernelKind::kLeast>(block, a, b, *memory);
              });
        }
      }
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(control.abort, 0U);
    for (std::size_t r = 0; r < 2; ++r) {
      wrong += in[r] == out[1 - r] ? 0 : 1;
      expect_times(args[r].links.stamps, 4, before, HostBlock::clock_ns());
    }
  }
  if (protocol != Protocol::kSimple) return wrong;
  for (const std::uint64_t address : machine.given_addresses()) {
    EXPECT_TRUE(mapped[0].shows(address) || mapped[1].shows(address));
  }
  return wrong;
}

TEST(Block, CarriesMessages) {
  for (const std::size_t bytes : std::initializer_list<std::size_t>{0, 1, 15, 16, 17, 1000, 4099}) {
    EXPECT_EQ(exchange_wrong(Protocol::kLl, bytes, false), 0U) << bytes;
    EXPECT_EQ(exchange_wrong(Protocol::kLl128, bytes, false), 0U) << bytes;
    EXPECT_EQ(exchange_wrong(Protocol::kSimple, bytes, false), 0U) << bytes;
    EXPECT_EQ(exchange_wrong(Protocol::kSimple, bytes, true), 0U) << bytes;
  }
}

// One rank of two, alone or with a peer that issued a different call.
// What it has noted is in `stamps`, if that is not null.
StopRecord stop_of(bool with_peer, std::uint64_t timeout_ns, bool abort,
                   Protocol protocol = Protocol::kSimple, std::uint64_t* stamps = nullptr) {
  using Float = ElementOf<DataType::kFloat32>;
  Case test;
  test.schedule = schedule::compile("two_shot", {Collective::kAllReduce, 2, 0, 1});
  test.count = 8;
  test.protocol = protocol;
  Machine machine(2, 1, test.protocol, test.shape);
  Control control;
  const schedule::CheckReport report = schedule::check(test.schedule);
  std::vector<float> buffers(4 * 64);
  std::vector<PackedPrograms> programs;
  std::vector<LaunchArgs> args;
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<HostBlockShared>> blocks;
  std::vector<std::vector<Pack>> shared;
  programs.reserve(2);
  args.reserve(2);
  for (int r = 0; r < (with_peer ? 2 : 1); ++r) {
    Machine::Ends ends(machine, r);
    programs.push_back(pack_for(test.protocol, {make_program(test.schedule, report, r, 0)}, ends));
    args.push_back(make_args(test, programs.back(), machine, r, control));
    args.back().call.input = reinterpret_cast<std::byte*>(buffers.data() + 128 * r);
    args.back().call.output = reinterpret_cast<std::byte*>(buffers.data() + 128 * r + 64);
    args.back().call.tag.root = static_cast<std::uint16_t>(r);
    args.back().call.tag.count = 8;
    if (protocol != Protocol::kSimple) {
      // The first rank has less to send than the second one waits for.
      args.back().call.count = r == 0 ? 8 : 60;
      args.back().share = args.back().part_length = args.back().chunk_length =
          args.back().call.count;
      args.back().chunk_stride = 512;
    }
    args.back().links.timeout_ns = timeout_ns;
    args.back().links.stamps = {r == 0 ? stamps : nullptr, 1};
    run_block<Float, RedOp::kSum>(args.back(), test, 0, threads, blocks, shared);
  }
  if (abort) std::atomic_ref(control.abort).store(1);
  for (std::thread& thread : threads) thread.join();
  return control.stop;
}

TEST(Block, StopsOnRequest) {
  EXPECT_EQ(stop_of(false, 0, true).reason, static_cast<std::uint32_t>(StopReason::kNone));
}

TEST(Block, StopsWhenTimeIsUp) {
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl, Protocol::kLl128}) {
    const StopRecord stop = stop_of(false, 1'000'000, false, protocol);
    EXPECT_EQ(stop.reason, static_cast<std::uint32_t>(StopReason::kTimeout));
    EXPECT_EQ(stop.own.count, 8U) << "in which call";
  }
}

TEST(Block, NotesThatItHasBegunButNotAnEndWhereItWasStopped) {
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl, Protocol::kLl128}) {
    std::vector<std::uint64_t> stamps(2);
    (void)stop_of(false, 1'000'000, false, protocol, stamps.data());
    EXPECT_NE(stamps[0], 0U);
    EXPECT_EQ(stamps[1], 0U);
  }
}

TEST(Block, NamesARankWithADifferentCall) {
  const StopRecord stop = stop_of(true, 0, false);
  EXPECT_EQ(stop.reason, static_cast<std::uint32_t>(StopReason::kMismatch));
  EXPECT_NE(stop.own.root, stop.theirs.root);
  EXPECT_EQ(stop.peer, stop.theirs.root);
}

TEST(Block, NamesItAlthoughDataCarriesNoTags) {
  for (const Protocol protocol : {Protocol::kLl, Protocol::kLl128}) {
    const StopRecord stop = stop_of(true, 0, false, protocol);
    EXPECT_EQ(stop.reason, static_cast<std::uint32_t>(StopReason::kMismatch));
    EXPECT_NE(stop.own.root, stop.theirs.root);
    EXPECT_EQ(stop.peer, stop.theirs.root);
  }
}

TEST(Block, PackingReturnsTheSizeThatProgramsNeed) {
  const auto room_of = [](Protocol protocol, int ranks) {
    const schedule::Schedule s =
        schedule::compile("two_shot", {Collective::kAllReduce, ranks, 0, 1});
    const schedule::CheckReport report = schedule::check(s);
    Machine machine(ranks, 1, protocol, FifoShape{4, 4, 1920});
    Machine::Ends ends(machine, 0);
    return pack_for(protocol, {make_program(s, report, 0, 0)}, ends).room;
  };
  // A rank alone copies its input, of which two_shot makes one part.
  EXPECT_EQ(room_of(Protocol::kSimple, 1).max_operands, 1U);
  EXPECT_EQ(room_of(Protocol::kSimple, 1).max_sends, 0U);
  // Of three parts one is combined from all ranks' and goes to both others.
  EXPECT_EQ(room_of(Protocol::kSimple, 3).max_operands, 3U);
  EXPECT_EQ(room_of(Protocol::kSimple, 3).max_sends, 2U);
  EXPECT_EQ(room_of(Protocol::kSimple, 3).max_steps, 0U);
  EXPECT_EQ(room_of(Protocol::kLl, 3).max_sends, 0U);
}

TEST(Block, PackingCountsTheChunksOfEachLink) {
  const schedule::Schedule s = schedule::compile("two_shot", {Collective::kAllReduce, 3, 0, 1});
  const schedule::CheckReport report = schedule::check(s);
  Machine machine(3, 1, Protocol::kLl, FifoShape{4, 4, 1920});
  Machine::Ends ends(machine, 0);
  const PackedPrograms packed = pack_flagged({make_program(s, report, 0, 0)}, ends);
  const auto* program = reinterpret_cast<const FlaggedProgram*>(packed.bytes.data());
  ASSERT_EQ(program->ends.num_send_ends, 2U);
  ASSERT_EQ(program->ends.num_receive_ends, 2U);
  EXPECT_EQ(packed.room.max_ends, 2U);
  for (int k = 0; k < 2; ++k) {
    EXPECT_NE(send_ends_of(program)[k].peer, 0);
    EXPECT_EQ(send_ends_of(program)[k].memory,
              ends.send_end(0, send_ends_of(program)[k].peer).memory);
    EXPECT_EQ(receive_ends_of(program)[k].kept,
              ends.receive_end(0, receive_ends_of(program)[k].peer).kept);
  }
  EXPECT_EQ(packed.max_chunks, 2U);  // a part to be reduced, and one that was
  std::map<std::pair<int, bool>, std::uint16_t> chunks;
  for (std::uint32_t j = 0; j < program->num_locations; ++j) {
    const FlaggedLocationRecord& location = program->locations()[j];
    if (location.end < 0) continue;
    const std::uint16_t expected = chunks[std::pair{location.end, location.sends}]++;
    EXPECT_EQ(location.chunk, expected);
    const FlaggedStepRecord& step = program->steps()[location.step];
    EXPECT_GE(j, step.first_location);
    EXPECT_LT(j, std::uint32_t{step.first_location} + step.num_sources + step.num_destinations);
  }
  EXPECT_EQ(chunks.size(), 4U);
}

}  // namespace
}  // namespace ropewalk::executor
