// Schedules run by the code of CUDA blocks on threads of the host, over links in the host's memory.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/shared_memory.h"
#include "executor/block/channel_cut.h"
#include "executor/block/host_block.h"
#include "executor/block/pack.h"
#include "executor/block/run.h"
#include "executor/program.h"
#include "schedule/check.h"
#include "schedule/lags.h"
#include "schedule/layout.h"
#include "schedule/pattern.h"

namespace ropewalk::executor::testing {

inline constexpr std::uint32_t kGranule = 4;
inline constexpr unsigned kThreads = 4;  // two of them move data

struct Case {
  schedule::Schedule schedule;
  Protocol protocol = Protocol::kSimple;
  std::size_t count = 0;
  DataType type = DataType::kFloat32;
  RedOp op = RedOp::kSum;
  FifoShape shape{4, 4, 1920};
  int other_channels = 0;  // the last ones, whose links have another shape
  FifoShape other_shape{};
  std::size_t chunk = 16;
  bool by_address = false;
  bool elsewhere = false;  // the other ranks see a rank's buffers at other addresses
  bool in_place = false;
  std::size_t misaligned = 0;  // bytes
  unsigned late = kThreads;    // the thread of each block that is behind the others
};

// What `blocks` blocks of a launch have noted must be of this launch, in order, and between these
// times of the clock.
inline void expect_times(const LaunchStamps& stamps, std::size_t blocks, std::uint64_t before,
                         std::uint64_t after) {
  for (std::size_t b = 0; b < blocks; ++b) {
    for (std::size_t word = 2 * b; word < 2 * b + 2; ++word) {
      EXPECT_EQ(stamps.words[word] >> LaunchStamps::kTimeBits, stamps.launch);
    }
    const std::uint64_t begin = stamps.words[2 * b] & LaunchStamps::kTimeMask;
    const std::uint64_t end = stamps.words[2 * b + 1] & LaunchStamps::kTimeMask;
    EXPECT_GE(begin, before & LaunchStamps::kTimeMask);
    EXPECT_GE(end, begin);
    EXPECT_LE(end, after & LaunchStamps::kTimeMask);
  }
}

// A block of which one thread may be late: after the prologue, and after it waited for some others.
class TestBlock : public HostBlock {
 public:
  TestBlock(HostBlockShared& shared, unsigned thread, const LaunchArgs& args, bool late)
      : HostBlock(shared, thread, args.links, &args.call.tag), late_(late) {}
  void prologue() const { be_late(std::chrono::milliseconds(5)); }
  void sync_some(std::uint32_t id, unsigned threads) {
    HostBlock::sync_some(id, threads);
    be_late(std::chrono::microseconds(200));
  }
  void wait_word(const std::uint32_t* word, std::uint32_t value) const {
    HostBlock::wait_word(word, value);
    be_late(std::chrono::microseconds(200));
  }

 private:
  void be_late(std::chrono::microseconds time) const {
    if (late_) std::this_thread::sleep_for(time);
  }
  bool late_;
};

// Memory mapped at two addresses: the owner's, and that of the other ranks.
class TwiceMapped {
 public:
  explicit TwiceMapped(std::size_t bytes)
      : own_(SharedMemory::create(bytes, ShmBacking::kMemfd)),
        elsewhere_(SharedMemory::map(FileDescriptor(::dup(own_.fd())), bytes)) {}
  [[nodiscard]] std::byte* data() const noexcept { return own_.data(); }
  [[nodiscard]] std::int64_t shift() const noexcept { return elsewhere_.data() - own_.data(); }
  [[nodiscard]] bool holds(const std::byte* address) const noexcept {
    return address >= own_.data() && address < own_.data() + own_.size();
  }
  [[nodiscard]] bool shows(std::uint64_t address) const noexcept {
    return holds(reinterpret_cast<const std::byte*>(address - static_cast<std::uint64_t>(shift())));
  }

 private:
  SharedMemory own_;
  SharedMemory elsewhere_;
};

inline PackedPrograms pack_for(Protocol protocol, const std::vector<Program>& programs,
                               BlockEnds& ends) {
  return protocol == Protocol::kSimple ? pack(programs, ends) : pack_flagged(programs, ends);
}

// The windows and ends of all ranks, as a GPU's memory holds them.
class Machine {
 public:
  Machine(int ranks, int channels, Protocol protocol, const FifoShape& shape)
      : Machine(ranks, protocol, std::vector(static_cast<std::size_t>(channels), shape)) {}
  // With a shape for each channel's links.
  Machine(int ranks, Protocol protocol, const std::vector<FifoShape>& shapes)
      : ranks_(static_cast<std::size_t>(ranks)), sends_(ranks_), receives_(ranks_) {
    const auto n = shapes.size() * ranks_;
    for (std::size_t r = 0; r < ranks_; ++r) {
      sends_[r].resize(n);
      receives_[r].resize(n);
      sent_.emplace_back(n);
      received_.emplace_back(n);
    }
    boards_.assign(ranks_, std::vector<CallTag>(ranks_ * kBoardTags));
    addresses_.resize(ranks_);
    for (std::size_t r = 0; r < ranks_; ++r) {
      for (auto& board : boards_) addresses_[r].push_back(board.data() + r * kBoardTags);
    }
    for (std::size_t c = 0; c < shapes.size(); ++c) {
      const FifoShape& shape = shapes[c];
      const std::size_t bytes = (link_bytes(protocol, shape) + 127) / 128 * 128;
      for (std::size_t from = 0; from < ranks_; ++from) {
        for (std::size_t to = 0; to < ranks_; ++to) {
          links_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(128, bytes)));
          std::memset(links_.back().get(), 0, bytes);
          counters_.push_back(std::make_unique<std::uint64_t>(0));
          SendEnd& send = sends_[from][c * ranks_ + to];
          send.memory = links_.back().get();
          send.consumed_at = counters_.back().get();
          send.shape = shape;
          send.peer = static_cast<int>(to);
          send.in_process = true;
          send.kept = &sent_[from][c * ranks_ + to];
          ReceiveEnd& receive = receives_[to][c * ranks_ + from];
          receive.memory = send.memory;
          receive.consumed_at = counters_.back().get();
          receive.shape = shape;
          receive.peer = static_cast<int>(from);
          receive.kept = &received_[to][c * ranks_ + from];
        }
      }
    }
  }
  // Gives the links of a rank its boards.
  void lend_boards(LaunchLinks& links) {
    links.board = boards_[links.rank].data();
    links.boards = addresses_[links.rank].data();
  }
  // Of the chunks that were given by address and are still described in a link of protocol simple.
  [[nodiscard]] std::vector<std::uint64_t> given_addresses() const {
    std::vector<std::uint64_t> found;
    for (const std::vector<SendEnd>& ends : sends_) {
      for (const SendEnd& end : ends) {
        for (std::uint64_t chunk = 1; chunk <= end.shape.headers; ++chunk) {
          const SlotHeader& header = *end.header(chunk);
          if (header.sequence != 0 && header.kind == SlotKind::kAddress) {
            found.push_back(header.address);
          }
        }
      }
    }
    return found;
  }
  // The ends of one rank.
  class Ends final : public BlockEnds {
   public:
    Ends(Machine& machine, int rank) : machine_(machine), rank_(static_cast<std::size_t>(rank)) {}
    SendEnd send_end(int channel, int peer) override {
      return machine_.sends_[rank_][index(channel, peer)];
    }
    ReceiveEnd receive_end(int channel, int peer) override {
      return machine_.receives_[rank_][index(channel, peer)];
    }

   private:
    [[nodiscard]] std::size_t index(int channel, int peer) const {
      return static_cast<std::size_t>(channel) * machine_.ranks_ + static_cast<std::size_t>(peer);
    }
    Machine& machine_;
    std::size_t rank_;
  };

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::size_t ranks_;
  std::vector<std::unique_ptr<std::byte, Free>> links_;
  std::vector<std::unique_ptr<std::uint64_t>> counters_;
  std::vector<std::vector<SendEnd>> sends_;
  std::vector<std::vector<ReceiveEnd>> receives_;
  std::vector<std::vector<SendCounters>> sent_;
  std::vector<std::vector<ReceiveCounters>> received_;
  std::vector<std::vector<CallTag>> boards_;      // [rank][peer * kBoardTags + call]
  std::vector<std::vector<CallTag*>> addresses_;  // [rank][peer]: where the peer has its tags
};

// With the kernel that such a launch has, where it is compiled: protocol simple has one, and that
// of many sources is compiled `if_many`.
template <Protocol kProtocol, typename Element, RedOp kOp, bool kIfMany, typename Block>
void run_as_launched(Block& block, const LaunchArgs& args, std::uint32_t channel,
                     std::byte* memory) {
  if (kProtocol == Protocol::kSimple || kind_of(args) == KernelKind::kNotes) {
    run_channel<kProtocol, Element, kOp, KernelKind::kNotes>(block, args, channel, memory);
  } else if constexpr (kProtocol != Protocol::kSimple) {
    if constexpr (kIfMany) {
      if (kind_of(args) == KernelKind::kManySources) {
        run_channel<kProtocol, Element, kOp, KernelKind::kManySources>(block, args, channel,
                                                                       memory);
        return;
      }
    }
    run_channel<kProtocol, Element, kOp, KernelKind::kLeast>(block, args, channel, memory);
  }
}

// What compiles the kernels of these protocols alone; each takes a third of a second. Only where
// they are several, that of many sources is among them.
template <Protocol... kProtocols>
struct Compiled {};
using AllProtocols = Compiled<Protocol::kSimple, Protocol::kLl, Protocol::kLl128>;

// What one thread of a block does.
using BlockFunction = void (*)(TestBlock&, const LaunchArgs&, Protocol, std::uint32_t channel,
                               std::byte* memory);
template <typename Element, RedOp kOp, Protocol... kProtocols>
constexpr BlockFunction function_of(Compiled<kProtocols...> /*protocols*/) {
  return [](TestBlock& block, const LaunchArgs& args, Protocol protocol, std::uint32_t channel,
            std::byte* memory) {
    const auto runs = [&]<Protocol kProtocol>() {
      if (protocol != kProtocol) return false;
      constexpr bool kIfMany = sizeof...(kProtocols) > 1;
      run_as_launched<kProtocol, Element, kOp, kIfMany>(block, args, channel, memory);
      return true;
    };
    const bool ran = (runs.template operator()<kProtocols>() || ...);
    EXPECT_TRUE(ran) << "this test compiles no kernel of its protocol";
  };
}

inline void start_block(const LaunchArgs& args, const Case& test, BlockFunction function,
                        std::uint32_t channel, std::vector<std::thread>& threads,
                        std::vector<std::unique_ptr<HostBlockShared>>& blocks,
                        std::vector<std::vector<Pack>>& shared) {
  blocks.push_back(std::make_unique<HostBlockShared>(kThreads));
  shared.emplace_back(shared_bytes(args, test.protocol) / sizeof(Pack) + 1);
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&args, &test, function, channel, t, group = blocks.back().get(),
                          memory = reinterpret_cast<std::byte*>(shared.back().data())] {
      TestBlock block(*group, t, args, t == test.late);
      function(block, args, test.protocol, channel, memory);
    });
  }
}

template <typename Element, RedOp kOp>
void run_block(const LaunchArgs& args, const Case& test, std::uint32_t channel,
               std::vector<std::thread>& threads,
               std::vector<std::unique_ptr<HostBlockShared>>& blocks,
               std::vector<std::vector<Pack>>& shared) {
  start_block(args, test, function_of<Element, kOp>(AllProtocols{}), channel, threads, blocks,
              shared);
}

inline LaunchArgs make_args(const Case& test, const PackedPrograms& programs, Machine& machine,
                            int rank, Control& control) {
  const schedule::Schedule& s = test.schedule;
  LaunchArgs args{};
  args.call.count = test.count;
  args.call.type = test.type;
  args.call.element_bytes = size_of(test.type);
  args.call.op = test.op;
  args.call.address_bytes = test.by_address ? 1 : ~std::size_t{0};
  const auto up = [](std::size_t a, std::size_t b) { return (a + b - 1) / b; };
  const ChannelCut cut = cut_channels(s, test.count, kGranule);
  args.share = cut.share;
  args.part_length = cut.part_length;
  args.chunk_length = test.chunk;
  args.rounds = static_cast<std::uint32_t>(up(args.part_length, test.chunk));
  args.seen_in_process = true;
  args.links.num_ranks = static_cast<std::uint32_t>(s.num_ranks);
  args.program_bytes = programs.stride;
  args.room = programs.room;
  args.waits_together = programs.room.max_sources > kFewSources;
  if (test.protocol != Protocol::kSimple) {
    const std::size_t whole = test.protocol == Protocol::kLl ? 8 : 8 * kLineWords;
    args.chunk_stride = static_cast<std::uint32_t>(
        flagged_bytes(test.protocol, up(test.chunk * args.call.element_bytes, whole) * whole));
    args.slot_stride =
        static_cast<std::uint32_t>(flagged_bytes(test.protocol, test.shape.slot_bytes));
    EXPECT_LE(args.chunk_stride * programs.max_chunks, args.slot_stride);
  }
  args.programs = programs.bytes.data();
  args.links.control = &control;
  args.links.timeout_ns = 60'000'000'000;
  args.links.rank = static_cast<std::uint32_t>(rank);
  machine.lend_boards(args.links);
  return args;
}

// Runs the case twice over the same links and returns the wrong elements over all ranks. Counts the
// chunks that it finds given by address to ranks elsewhere.
inline std::uint64_t run_case(const Case& test, BlockFunction function, std::size_t* given) {
  const schedule::Schedule& s = test.schedule;
  const schedule::CheckReport report = schedule::check(s);
  EXPECT_TRUE(report.accepted);
  if (!report.accepted) return 1;
  const schedule::TestPattern pattern(s.collective, test.type, test.op, s.num_ranks, s.root,
                                      test.count);
  std::vector<FifoShape> shapes(static_cast<std::size_t>(s.num_channels()), test.shape);
  std::fill_n(shapes.rbegin(), test.other_channels, test.other_shape);
  Machine machine(s.num_ranks, test.protocol, shapes);
  const ChannelCut cut = cut_channels(s, test.count, kGranule);
  const std::size_t unit = test.count * size_of(test.type);
  const auto n = static_cast<std::size_t>(s.num_ranks);
  std::vector<PackedPrograms> programs(n);
  std::vector<std::vector<std::byte>> inputs(n);
  std::vector<std::vector<std::byte>> outputs(n);
  std::vector<TwiceMapped> mapped_inputs;
  std::vector<TwiceMapped> mapped_outputs;
  Control control;
  for (int r = 0; r < s.num_ranks; ++r) {
    std::vector<Program> lists;
    for (int c = 0; c < s.num_channels(); ++c) {
      lists.push_back(make_program(s, report, r, c));
      const auto lags = schedule::find_lags(s, c, test.shape.slots);
      set_lags(lists.back(), lags[static_cast<std::size_t>(r)]);
    }
    Machine::Ends ends(machine, r);
    programs[static_cast<std::size_t>(r)] = pack_for(test.protocol, lists, ends);
    const auto units = [&](int k) { return unit * static_cast<std::size_t>(k) + 64; };
    inputs[static_cast<std::size_t>(r)].resize(
        units(schedule::input_units(s.collective, s.num_ranks, s.root, r)));
    outputs[static_cast<std::size_t>(r)].resize(
        units(schedule::output_units(s.collective, s.num_ranks, s.root, r)));
    if (test.elsewhere) {
      mapped_inputs.emplace_back(inputs[static_cast<std::size_t>(r)].size());
      mapped_outputs.emplace_back(outputs[static_cast<std::size_t>(r)].size());
    }
  }
  std::uint64_t wrong = 0;
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<LaunchArgs> args(n);
    std::vector<std::byte*> results(n);
    std::vector<std::vector<std::uint64_t>> times(n);
    const std::uint64_t before = HostBlock::clock_ns();
    std::vector<std::thread> threads;
    std::vector<std::unique_ptr<HostBlockShared>> blocks;
    std::vector<std::vector<Pack>> shared;
    for (int r = 0; r < s.num_ranks; ++r) {
      const auto i = static_cast<std::size_t>(r);
      args[i] = make_args(test, programs[i], machine, r, control);
      if (!cut.begins.empty()) args[i].begins = cut.begins.data();
      Call& call = args[i].call;
      std::byte* input =
          (test.elsewhere ? mapped_inputs[i].data() : inputs[i].data()) + test.misaligned;
      std::byte* output =
          (test.elsewhere ? mapped_outputs[i].data() : outputs[i].data()) + test.misaligned;
      if (test.in_place) {
        const int offset = *schedule::in_place_input_offset(s.collective, r);
        if (outputs[i].size() >= inputs[i].size()) {
          input = output + unit * static_cast<std::size_t>(outputs[i].size() > inputs[i].size()
                                                               ? std::max(0, offset)
                                                               : 0);
        } else {
          output = input + unit * static_cast<std::size_t>(std::max(0, -offset));
        }
        call.in_place = true;
      } else {
        std::memset(output, 0x5a, outputs[i].size() - 64);
      }
      pattern.fill_input(r, input);
      call.input = input;
      call.output = results[i] = output;
      args[i].output_bytes = unit * static_cast<std::size_t>(schedule::output_units(
                                        s.collective, s.num_ranks, s.root, r));
      if (test.op == RedOp::kPreMulSum) {
        call.scaled = true;
        call.scalar = pattern.scalar(r);
      }
      if (test.elsewhere) {
        const auto shift_of = [&](const std::byte* address) {
          return (mapped_inputs[i].holds(address) ? mapped_inputs : mapped_outputs)[i].shift();
        };
        args[i].seen_in_process = false;
        for (std::size_t peer = 0; peer < std::min(std::size_t{kMaxSeen}, n); ++peer) {
          args[i].seen[args[i].num_seen++] = {static_cast<int>(peer),
                                              {shift_of(input), shift_of(output)}};
        }
      }
      call.tag.call = static_cast<std::uint32_t>(turn);
      times[i].resize(2 * static_cast<std::size_t>(s.num_channels()));
      args[i].links.stamps = {times[i].data(), static_cast<std::uint16_t>(turn + 1)};
    }
    for (std::size_t r = 0; r < n; ++r) {
      for (int c = 0; c < s.num_channels(); ++c) {
        start_block(args[r], test, function, static_cast<std::uint32_t>(c), threads, blocks,
                    shared);
      }
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(control.abort, 0U) << "stopped for reason " << control.stop.reason;
    for (int r = 0; r < s.num_ranks; ++r) {
      wrong += pattern.count_wrong(r, results[static_cast<std::size_t>(r)]);
      expect_times(args[static_cast<std::size_t>(r)].links.stamps,
                   static_cast<std::size_t>(s.num_channels()), before, HostBlock::clock_ns());
    }
  }
  if (test.elsewhere) {
    for (const std::uint64_t address : machine.given_addresses()) {
      ++*given;
      const auto shows = [&](const TwiceMapped& memory) { return memory.shows(address); };
      if (std::none_of(mapped_inputs.begin(), mapped_inputs.end(), shows) &&
          std::none_of(mapped_outputs.begin(), mapped_outputs.end(), shows)) {
        ADD_FAILURE() << "an address that its reader does not see";
      }
    }
  }
  return wrong;
}

template <typename Element, RedOp kOp, typename Protocols = AllProtocols>
std::uint64_t run(const Case& test, std::size_t* given = nullptr) {
  return run_case(test, function_of<Element, kOp>(Protocols{}), given);
}

inline std::string describe(const Case& test) {
  const schedule::Schedule& s = test.schedule;
  return fmt::format("{} {} ranks {} root {} channels {} count {} {}{}{}", name(s.collective),
                     s.algorithm, s.num_ranks, s.root, s.num_channels(), test.count,
                     name(test.protocol), test.by_address ? " by address" : "",
                     test.in_place ? " in place" : "");
}

}  // namespace ropewalk::executor::testing
