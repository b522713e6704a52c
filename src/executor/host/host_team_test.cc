// A host thread and a gather's own block: the writer begins meanwhile.
#include "executor/host/host_team.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "core/error.h"
#include "core/process_memory.h"
#include "executor/host/shared_copy.h"
#include "executor/host/waiter.h"
#include "executor/program.h"
#include "schedule/check.h"
#include "schedule/checked.h"
#include "schedule/compile.h"

namespace ropewalk::executor {
namespace {

constexpr std::size_t kTeamBytes = (std::size_t{1} << 20U) + 4096;

// The root, with something to do once its own block is copied and before it receives.
class Root : public HostTeam {
 public:
  explicit Root(HostTeam& writer) : HostTeam(0), writer_(writer) {}

  void transfer(Strand& strand, const Call& call, const Transfer& transfer) {
    HostTeam::transfer(strand, call, transfer);
    if (transfers_++ > 0) return;
    if (gives_up) give_up_copy();
    if (meanwhile) {
      meanwhile();
    } else {
      helped = writer_.help();
    }
  }

  bool gives_up = false;
  std::function<void()> meanwhile;  // in place of the writer's help
  bool helped = false;

 private:
  HostTeam& writer_;
  int transfers_ = 0;
};

// A gather of two ranks in one thread, whose link goes between processes: the system lets a process
// do to itself what it does to others.
class HostTeamTest : public ::testing::Test {
 protected:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  HostTeamTest()
      : memory_(static_cast<std::byte*>(std::aligned_alloc(4096, kLinkBytes))),
        schedule_(schedule::compile("direct", {Collective::kGather, 2, 0, 1})),
        report_(schedule::check(schedule_)),
        root_program_(make_program(schedule_, report_, 0, 0)),
        other_program_(make_program(schedule_, report_, 1, 0)),
        own_(kTeamBytes, std::byte{1}),
        theirs_(kTeamBytes),
        output_(2 * kTeamBytes) {
    std::memset(memory_.get(), 0, kLinkBytes);
    send_.lie_in(memory_.get(), shape_);
    receive_.lie_in(memory_.get(), shape_);
    send_.process = receive_.process = getpid();
    send_.peer = 0;
    receive_.peer = 1;
    send_.address_allowed = true;
    for (std::size_t i = 0; i < kTeamBytes; ++i)
      theirs_[i] = static_cast<std::byte>(i * 7 + i / 4096);
  }

  void SetUp() override {
    ASSERT_LE(shape_.bytes(), kLinkBytes);
    const ProcessProbe probe;
    const std::string reason = try_single_copy(probe.address());
    if (!reason.empty()) GTEST_SKIP() << reason;
    if (!can_guard_writes()) GTEST_SKIP() << "writes cannot be guarded";
  }

  static Strand strand_of(const Program& program) {
    Strand strand;
    strand.program = &program;
    strand.sources.resize(program.max_operands);
    strand.destinations.resize(program.max_sends + 1);
    strand.length = strand.part_length = strand.chunk_length = kTeamBytes;
    strand.rounds = 1;
    return strand;
  }

  static Call call_of(const std::byte* input, std::byte* output) {
    Call call;
    call.input = input;
    call.output = output;
    call.count = kTeamBytes;
    call.type = DataType::kUint8;
    call.element_bytes = 1;
    call.address_bytes = 1;
    call.share_bytes = std::size_t{64} << 10U;
    return call;
  }

  // The other rank's part, as far as it goes without waiting: its block is offered.
  void offer() {
    Strand strand = strand_of(other_program_);
    strand.sends.push_back(&send_);
    EXPECT_FALSE(walk(writer_, strand, call_of(theirs_.data(), nullptr)));
  }

  bool gather(Root& root) {
    Strand strand = strand_of(root_program_);
    strand.receives.push_back(&receive_);
    return walk(root, strand, call_of(own_.data(), output_.data()));
  }

  void expect_right() {
    EXPECT_EQ(std::memcmp(output_.data(), own_.data(), kTeamBytes), 0);
    EXPECT_EQ(std::memcmp(output_.data() + kTeamBytes, theirs_.data(), kTeamBytes), 0);
  }

  static constexpr std::size_t kLinkBytes = std::size_t{1} << 20U;
  FifoShape shape_;
  std::unique_ptr<std::byte, Free> memory_;
  schedule::Schedule schedule_;
  schedule::CheckReport report_;
  Program root_program_;
  Program other_program_;
  SendEnd send_;
  ReceiveEnd receive_;
  std::vector<std::byte> own_;
  std::vector<std::byte> theirs_;
  std::vector<std::byte> output_;
  HostTeam writer_{1};
};

TEST_F(HostTeamTest, AWriterBeginsWhileTheReaderCopiesItsOwn) {
  offer();
  Root root(writer_);
  EXPECT_TRUE(gather(root));
  EXPECT_TRUE(root.helped);
  expect_right();
}

TEST_F(HostTeamTest, AnAbandonedCopyIsWrittenNoMore) {
  offer();
  Root root(writer_);
  root.gives_up = true;
  EXPECT_TRUE(gather(root));
  EXPECT_FALSE(root.helped);
  expect_right();
}

TEST_F(HostTeamTest, AWriterThatIsLateIsWaitedFor) {
  Root root(writer_);
  Strand strand = strand_of(root_program_);
  strand.receives.push_back(&receive_);
  const Call call = call_of(own_.data(), output_.data());
  EXPECT_FALSE(walk(root, strand, call));
  EXPECT_FALSE(root.helped);
  offer();
  EXPECT_TRUE(walk(root, strand, call));
  expect_right();
}

// A writer that has claimed a piece gives it up only after the reader has begun to wait.
class SlowWriter : public WaitHook {
 public:
  explicit SlowWriter(std::byte* memory)
      : desk_(reinterpret_cast<CopyDesk*>(memory + kLineBytes)) {}
  void claim() { --desk_->claims; }  // the last of the free pieces
  bool poll() override {
    polled = true;
    desk_->written = desk_->claims | 0xffff'ffffU;  // failed, for this chunk
    return true;
  }
  void stalled(std::chrono::nanoseconds /*since_progress*/) override {}
  bool polled = false;

 private:
  CopyDesk* desk_;
};

TEST_F(HostTeamTest, AWriterThatHasBegunIsWaitedFor) {
  offer();
  SlowWriter slow(memory_.get());
  Waiter waiter({}, slow);
  Root root(writer_);
  root.wait_with(&waiter);
  root.meanwhile = [&] { slow.claim(); };
  EXPECT_TRUE(gather(root));
  EXPECT_TRUE(slow.polled);
  expect_right();
}

// A chunk of the wrong size: nothing is written, and the step reports the sizes.
TEST_F(HostTeamTest, AChunkOfAnotherSizeIsNotPosted) {
  offer();
  send_.header(1)->bytes -= 4096;
  Root root(writer_);
  EXPECT_THROW(gather(root), Error);
  EXPECT_FALSE(root.helped);
}

TEST_F(HostTeamTest, NoSharingInsteadOfTheOwnBlock) {
  offer();
  Root root(writer_);
  Strand strand = strand_of(root_program_);
  strand.receives.push_back(&receive_);
  std::memcpy(output_.data(), own_.data(), kTeamBytes);
  Call call = call_of(output_.data(), output_.data());
  call.in_place = true;
  EXPECT_TRUE(walk(root, strand, call));
  expect_right();
}

// The middle rank of a chain, which takes a chunk and passes it on.
class PassingOn : public ::testing::Test {
 protected:
  PassingOn() : out_memory_(shape_.bytes()), in_memory_(shape_.bytes()) {
    strand_.program = &program_;
    strand_.sends.push_back(&out_);
    strand_.receives.push_back(&in_);
    strand_.sources.resize(program_.max_operands);
    strand_.destinations.resize(program_.max_sends + 1);
    strand_.length = strand_.part_length = strand_.chunk_length = output_.size() / 4;
    strand_.rounds = 1;
    out_.lie_in(out_memory_.data(), shape_);
    in_.lie_in(in_memory_.data(), shape_);
    call_.type = DataType::kFloat32;
    call_.element_bytes = 4;
    call_.count = output_.size() / 4;
    call_.output = output_.data();
    call_.address_bytes = output_.size() + 1;
  }

  static Program program() {
    const schedule::Checked checked =
        schedule::Checked::from(schedule::compile("chain", {Collective::kBroadcast, 3, 0, 1}));
    return make_program(checked.schedule(), checked.report(), 1, 0);
  }

  const FifoShape shape_{.headers = 8, .slots = 8, .slot_bytes = 8192};
  std::vector<std::byte> out_memory_;
  std::vector<std::byte> in_memory_;
  std::vector<std::byte> output_ = std::vector<std::byte>(8192);
  const Program program_ = program();
  SendEnd out_;
  ReceiveEnd in_;
  Strand strand_;
  Call call_;
  HostTeam team_{1};
};

TEST_F(PassingOn, AChunkThatIsWaitedForIsWantedInTheOutput) {
  EXPECT_FALSE(walk(team_, strand_, call_));
  EXPECT_EQ(in_.destination, output_.data());
  EXPECT_EQ(in_.destination_bytes, output_.size());
}

// Its destination must not be used for the chunk after it, which the link may hold already: it
// would overwrite the output, perhaps after the call's end.
TEST_F(PassingOn, AChunkThatWaitsForRoomIsWantedNowhere) {
  out_.published = shape_.slots;
  EXPECT_FALSE(walk(team_, strand_, call_));
  EXPECT_EQ(in_.destination, output_.data());
  SlotHeader* slot = in_.header(1);
  slot->kind = SlotKind::kStaged;
  slot->bytes = static_cast<std::uint32_t>(output_.size());
  slot->sequence = 1;
  EXPECT_FALSE(walk(team_, strand_, call_));
  EXPECT_EQ(in_.destination, nullptr);
}

}  // namespace
}  // namespace ropewalk::executor
