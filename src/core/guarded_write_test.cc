#include "core/guarded_write.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace ropewalk {
namespace {

/// The memory that a writing child and its parent share.
struct Shared {
  std::uint64_t word = 7;
  std::uint64_t target = 0;
  std::int64_t result = 0;
  int error = 0;
};

class GuardedWrite : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!can_guard_writes()) GTEST_SKIP() << "no restartable sequences";
    void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    shared_ = new (memory) Shared;
  }
  void TearDown() override {
    if (shared_ != nullptr) munmap(shared_, 4096);
  }

  /// Writes 42 into the target of this process.
  void write() const {
    std::uint64_t value = 42;
    const iovec local{&value, sizeof value};
    const iovec remote{&shared_->target, sizeof shared_->target};
    shared_->result = guarded_writev(getpid(), local, remote, {&shared_->word, 7});
    shared_->error = errno;
  }

  Shared* shared_ = nullptr;
};

TEST_F(GuardedWrite, WritesWhileTheWordIsThere) {
  write();
  if (shared_->result < 0 && shared_->error == EPERM) GTEST_SKIP() << "process_vm_writev: EPERM";
  EXPECT_EQ(shared_->result, 8);
  EXPECT_EQ(shared_->target, 42U);
}

TEST_F(GuardedWrite, WritesNothingOnceTheWordHasChanged) {
  shared_->word = 8;
  write();
  EXPECT_EQ(shared_->result, -1);
  EXPECT_EQ(shared_->error, ECANCELED);
  EXPECT_EQ(shared_->target, 0U);
}

#ifdef __x86_64__

/// Where the system is called: the last instruction of the restartable sequence.
std::uint64_t address_of_call() {
  const auto* code = reinterpret_cast<const unsigned char*>(&guarded_writev);
  for (int i = 0; i < 4096; ++i) {
    if (code[i] == 0x0f && code[i + 1] == 0x05) return reinterpret_cast<std::uint64_t>(code + i);
  }
  return 0;
}

/// A child that is stopped directly before the call. Goes on with let_go().
class StoppedBeforeCall {
 public:
  template <typename Body>
  explicit StoppedBeforeCall(Body&& body) : pid_(fork()) {
    if (pid_ == 0) {
      if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(3);
      raise(SIGSTOP);
      body();
      _exit(0);
    }
    int status = 0;
    if (waitpid(pid_, &status, 0) != pid_ || !WIFSTOPPED(status)) return;
    // A breakpoint replaces the call; then the call is restored, not yet executed.
    const std::uint64_t instruction = address_of_call();
    auto* address = reinterpret_cast<void*>(instruction);  // NOLINT(performance-no-int-to-ptr)
    const long code = ptrace(PTRACE_PEEKTEXT, pid_, address, nullptr);
    ptrace(PTRACE_POKETEXT, pid_, address, (code & ~0xffL) | 0xcc);
    ptrace(PTRACE_CONT, pid_, nullptr, nullptr);
    if (waitpid(pid_, &status, 0) != pid_ || !WIFSTOPPED(status)) return;
    ptrace(PTRACE_POKETEXT, pid_, address, code);
    user_regs_struct registers{};
    ptrace(PTRACE_GETREGS, pid_, nullptr, &registers);
    stopped_there_ = WSTOPSIG(status) == SIGTRAP && registers.rip == instruction + 1 &&
                     registers.rax == SYS_process_vm_writev;
    registers.rip = instruction;
    ptrace(PTRACE_SETREGS, pid_, nullptr, &registers);
  }
  ~StoppedBeforeCall() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  StoppedBeforeCall(const StoppedBeforeCall&) = delete;
  StoppedBeforeCall& operator=(const StoppedBeforeCall&) = delete;

  [[nodiscard]] bool stopped_there() const { return stopped_there_; }

  int let_go() {
    ptrace(PTRACE_DETACH, pid_, nullptr, nullptr);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;
  bool stopped_there_ = false;
};

TEST_F(GuardedWrite, AThreadStoppedBeforeItsCallChecksAgain) {
  StoppedBeforeCall child([&] { write(); });
  if (!child.stopped_there()) GTEST_SKIP() << "a child cannot be traced here";
  shared_->word = 8;  // whoever wanted the data has given up
  EXPECT_EQ(child.let_go(), 0);
  EXPECT_EQ(shared_->result, -1);
  EXPECT_EQ(shared_->error, ECANCELED);
  EXPECT_EQ(shared_->target, 0U);
}

TEST_F(GuardedWrite, AThreadStoppedBeforeItsCallGoesOnWhereNothingChanged) {
  StoppedBeforeCall child([&] { write(); });
  if (!child.stopped_there()) GTEST_SKIP() << "a child cannot be traced here";
  EXPECT_EQ(child.let_go(), 0);
  if (shared_->result < 0 && shared_->error == EPERM) GTEST_SKIP() << "process_vm_writev: EPERM";
  EXPECT_EQ(shared_->result, 8);
  EXPECT_EQ(shared_->target, 42U);
}

#endif

}  // namespace
}  // namespace ropewalk
