// For tests: launches of a rank's program whose blocks are host threads, over links of any kind.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "executor/block/testing/case.h"
#include "link/flagged_network_link.h"
#include "schedule/lags.h"

namespace ropewalk::comm::testing {

/// A rank with its links.
class BlockHost : public executor::BlockEnds {
 public:
  [[nodiscard]] virtual executor::Control& control() = 0;
  /// Where tags are left and found.
  virtual void lend_tags(executor::LaunchLinks& links) = 0;
};

// A rank's program, and what a launch of it needs.
class BlockLaunch {
 public:
  /// @param slots of the host's links of protocol simple
  BlockLaunch(const executor::testing::Case& test, int rank, BlockHost& host, std::uint32_t slots)
      : test_(test) {
    const schedule::Schedule& s = test.schedule;
    const schedule::CheckReport report = schedule::check(s);
    std::vector<executor::Program> lists;
    for (int c = 0; c < s.num_channels(); ++c) {
      lists.push_back(executor::make_program(s, report, rank, c));
      if (test.protocol != executor::Protocol::kSimple) continue;
      const auto lags = schedule::find_lags(s, c, slots);
      executor::set_lags(lists.back(), lags[static_cast<std::size_t>(rank)]);
    }
    programs = executor::testing::pack_for(test.protocol, lists, host);
    const auto up = [](std::size_t a, std::size_t b) { return (a + b - 1) / b; };
    args.call.count = test.count;
    args.call.type = test.type;
    args.call.element_bytes = size_of(test.type);
    args.call.address_bytes = ~std::size_t{0};
    args.share = up(test.count, static_cast<std::size_t>(s.num_channels()));
    args.part_length = up(args.share, static_cast<std::size_t>(s.parts));
    args.chunk_length = test.chunk;
    args.rounds = static_cast<std::uint32_t>(up(args.part_length, test.chunk));
    args.program_bytes = programs.stride;
    args.room = programs.room;
    args.programs = programs.bytes.data();
    if (test.protocol == executor::Protocol::kLl) {
      args.slot_stride = static_cast<std::uint32_t>(
          executor::flagged_bytes(test.protocol, link::kFlaggedSlotBytes));
      args.chunk_stride = static_cast<std::uint32_t>(
          executor::flagged_bytes(test.protocol, test.chunk * args.call.element_bytes));
      RW_ASSERT(args.chunk_stride * programs.max_chunks <= args.slot_stride);
    }
    host.lend_tags(args.links);
    args.links.control = &host.control();
    args.links.timeout_ns = 60'000'000'000;
    args.links.num_ranks = static_cast<std::uint32_t>(s.num_ranks);
    args.links.rank = static_cast<std::uint32_t>(rank);
  }
  void run() {
    std::vector<std::thread> threads;
    std::vector<std::unique_ptr<executor::HostBlockShared>> blocks;
    std::vector<std::vector<executor::Pack>> shared;
    for (int c = 0; c < test_.schedule.num_channels(); ++c) {
      executor::testing::run_block<executor::ElementOf<DataType::kFloat32>, RedOp::kSum>(
          args, test_, static_cast<std::uint32_t>(c), threads, blocks, shared);
    }
    for (std::thread& thread : threads) thread.join();
  }

  /// Buffers of the calls from now on.
  void use(float* input, float* output) {
    args.call.input = reinterpret_cast<std::byte*>(input);
    args.call.output = reinterpret_cast<std::byte*>(output);
  }

  executor::PackedPrograms programs;
  executor::LaunchArgs args{};

 private:
  const executor::testing::Case& test_;
};

/// Makes `calls` all-reduces by `rank`, one after another, whose results are to be right.
inline void expect_right_calls(BlockLaunch& launch, const schedule::TestPattern& pattern, int rank,
                               std::size_t count, std::uint32_t calls, const char* name) {
  std::vector<float> input(count);
  std::vector<float> output(count);
  launch.use(input.data(), output.data());
  for (std::uint32_t call = 1; call <= calls; ++call) {
    pattern.fill_input(rank, reinterpret_cast<std::byte*>(input.data()));
    std::ranges::fill(output, -1.0F);
    launch.args.call.tag.call = call;
    launch.run();
    EXPECT_EQ(pattern.count_wrong(rank, reinterpret_cast<std::byte*>(output.data())), 0U)
        << name << ", call " << call;
  }
}

}  // namespace ropewalk::comm::testing
