// Shared memory between processes of this host.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <new>

#include "core/error.h"
#include "core/process_memory.h"
#include "core/shared_memory.h"
#include "core/units.h"
#include "diagnose/probe/probe.h"

namespace ropewalk::diagnose::probe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBytes = std::size_t{64} << 20;
// Less than this is used up by the buffers of a few GPUs.
constexpr std::size_t kRoomInDevShm = std::size_t{1} << 30;
constexpr std::chrono::seconds kLimit{10};
constexpr int kRoundTrips = 2000;

constexpr const char* kDevShmTooSmall =
    "containers get 64 MB unless told otherwise: docker run --shm-size=8g (or --ipc=host); in "
    "Kubernetes mount an emptyDir with medium Memory at /dev/shm";

// A child that ends with its parent; `body` gives its exit status.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : pid_(fork()) {
    if (pid_ < 0) throw system_error(errno, "starting a process");
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      int status = 99;
      try {
        status = body();
      } catch (const std::exception&) {
        // The status says that it failed; the reason is found by the parent's own attempt.
      }
      _exit(status);
    }
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

 private:
  pid_t pid_;
};

// What two processes of a check share beside the memory that is tried.
struct Board {
  std::atomic<int> stage{0};
  std::atomic<std::uint32_t> ball{0};
  ProbeAddress address;
  std::array<char, 256> reason{};
};

bool reaches(const std::atomic<int>& stage, int wanted) {
  const Clock::time_point begin = Clock::now();
  while (stage.load() < wanted) {
    if (Clock::now() - begin > kLimit) return false;
    sched_yield();
  }
  return true;
}

std::byte pattern(std::size_t i) { return static_cast<std::byte>(i * 131 + (i >> 8) + 17); }

Check backing(ShmBacking from, const char* what) {
  Check check{.what = what};
  try {
    SharedMemory memory = SharedMemory::create(kBytes, from);
    memory.reserve(0, kBytes);
    check.found = fmt::format("{} taken", format_bytes(kBytes));
  } catch (const Error& error) {
    check.outcome = Outcome::kFailed;
    check.found = error.what();
    check.cause =
        from == ShmBacking::kDevShm
            ? kDevShmTooSmall
            : "the memory limit of this container or user (cgroup, ulimit) is too low, or "
              "a seccomp filter forbids memfd_create";
  }
  return check;
}

Check dev_shm() {
  struct statvfs space {};
  struct stat entry {};
  if (statvfs("/dev/shm", &space) != 0 || stat("/dev/shm", &entry) != 0) {
    return {.what = "/dev/shm",
            .outcome = Outcome::kFailed,
            .found = std::strerror(errno),
            .cause = "no memory file system is mounted there: mount -t tmpfs tmpfs /dev/shm"};
  }
  const std::size_t total = std::size_t{space.f_blocks} * space.f_frsize;
  const std::size_t free = std::size_t{space.f_bavail} * space.f_frsize;
  Check check = backing(ShmBacking::kDevShm, "/dev/shm");
  const auto mode = entry.st_mode & 07777U;
  const std::string sizes =
      fmt::format("{} with {} free, mode {:o}", format_bytes(total), format_bytes(free), mode);
  if (check.outcome == Outcome::kFailed) {
    check.found = fmt::format("{}; {}", check.found, sizes);
    if (access("/dev/shm", W_OK) != 0) check.cause = "not writable: chmod 1777 /dev/shm";
    return check;
  }
  check.found = sizes;
  if (free < kRoomInDevShm) {
    check.outcome = Outcome::kDegraded;
    check.cause = kDevShmTooSmall;
  } else if ((mode & 0777U) != 0777U || (mode & 01000U) == 0) {
    check.outcome = Outcome::kDegraded;
    check.cause =
        "processes of other users cannot use it, or can remove each other's files: chmod "
        "1777 /dev/shm";
  }
  return check;
}

Check between_processes() {
  Check check{.what = "memory shared by two processes"};
  SharedMemory memory = SharedMemory::create(kBytes, ShmBacking::kAuto);
  SharedMemory board_memory = SharedMemory::create(sizeof(Board), ShmBacking::kAuto);
  memory.reserve(0, kBytes);
  board_memory.reserve(0, sizeof(Board));
  auto& board = *new (board_memory.data()) Board;
  const Child child([&] {
    for (std::size_t i = 0; i < kBytes; ++i) memory.data()[i] = pattern(i);
    board.stage.store(1);
    for (std::uint32_t i = 1; i <= kRoundTrips; ++i) {
      while (board.ball.load(std::memory_order_acquire) != 2 * i - 1) sched_yield();
      board.ball.store(2 * i, std::memory_order_release);
    }
    return 0;
  });
  if (!reaches(board.stage, 1)) {
    check.outcome = Outcome::kFailed;
    check.found = "the other process did not write in 10 s";
    check.cause = "it was stopped or killed: the kernel's log tells of a lack of memory";
    return check;
  }
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < kBytes; ++i) wrong += memory.data()[i] == pattern(i) ? 0 : 1;
  if (wrong != 0) {
    check.outcome = Outcome::kFailed;
    check.found = fmt::format("{} of {} bytes differ from what the other wrote", wrong, kBytes);
    check.cause = "faulty memory, or a kernel that does not share it";
    return check;
  }
  const Clock::time_point trips = Clock::now();
  for (std::uint32_t i = 1; i <= kRoundTrips; ++i) {
    board.ball.store(2 * i - 1, std::memory_order_release);
    while (board.ball.load(std::memory_order_acquire) != 2 * i) {
      if (Clock::now() - trips > kLimit) {
        check.outcome = Outcome::kFailed;
        check.found = "the other process stopped answering";
        return check;
      }
      sched_yield();
    }
  }
  check.latency_us = seconds_since(trips) / kRoundTrips / 2 * 1e6;
  std::vector<std::byte> copy(kBytes);
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    const Clock::time_point begin = Clock::now();
    std::memcpy(copy.data(), memory.data(), kBytes);
    best = std::max(best, static_cast<double>(kBytes) / seconds_since(begin) / 1e9);
  }
  check.gbps = best;
  check.found = fmt::format("{} written by one, read by the other", format_bytes(kBytes));
  return check;
}

std::string first_line(const char* file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::string status_of_self(const std::string& field) {
  std::ifstream stream("/proc/self/status");
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(field)) return line.substr(line.find_first_not_of(" \t", field.size()));
  }
  return {};
}

// Why one process may not read another's memory, as far as the system reports it.
std::string why_no_copy() {
  const std::string scope = first_line("/proc/sys/kernel/yama/ptrace_scope");
  if (!scope.empty() && scope != "0") {
    return fmt::format(
        "kernel.yama.ptrace_scope is {}: sysctl kernel.yama.ptrace_scope=0, or give the processes "
        "CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)",
        scope);
  }
  if (status_of_self("Seccomp:") == "2") {
    return "a seccomp filter, as container runtimes set one: --cap-add SYS_PTRACE, or a profile "
           "that "
           "allows process_vm_readv";
  }
  return "the processes differ in user, user namespace or process-id namespace";
}

// Between siblings, as ranks are: a parent may read its child where siblings may not.
Check kernel_copy() {
  Check check{.what = "kernel-assisted copy"};
  SharedMemory board_memory = SharedMemory::create(sizeof(Board), ShmBacking::kAuto);
  board_memory.reserve(0, sizeof(Board));
  auto& board = *new (board_memory.data()) Board;
  const Child owner([&] {
    const ProcessProbe probe;
    board.address = probe.address();
    board.stage.store(1);
    static_cast<void>(reaches(board.stage, 2));
    return 0;
  });
  const Child reader([&] {
    if (!reaches(board.stage, 1)) return 1;
    const std::string reason = try_single_copy(board.address);
    reason.copy(board.reason.data(), board.reason.size() - 1);
    board.stage.store(2);
    return 0;
  });
  if (!reaches(board.stage, 2)) {
    check.outcome = Outcome::kFailed;
    check.found = "the two processes did not answer in 10 s";
    if (board.stage.load() == 1) {
      check.found = "the process that was to copy ended, or stands still, in process_vm_readv";
      check.cause = why_no_copy();
    }
    return check;
  }
  if (board.reason[0] == '\0') {
    check.found = "one process reads another's memory (process_vm_readv)";
    return check;
  }
  check.outcome = Outcome::kDegraded;
  check.found = fmt::format("{}; long messages are copied twice", board.reason.data());
  check.cause = why_no_copy();
  return check;
}

Check descriptors() {
  constexpr rlim_t kEnough = 1024;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  Check check{.what = "open files", .found = fmt::format("at most {}", limit.rlim_cur)};
  if (limit.rlim_cur < kEnough) {
    check.outcome = Outcome::kDegraded;
    check.cause = fmt::format("many ranks need many connections: ulimit -n {}",
                              std::min<rlim_t>(limit.rlim_max, 65'536));
  }
  return check;
}

// A check that cannot even be made has failed.
Check guarded(const char* what, const std::function<Check()>& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return {.what = what, .outcome = Outcome::kFailed, .found = error.what()};
  }
}

}  // namespace

Checks shared_memory() {
  return {
      guarded("anonymous memory", [] { return backing(ShmBacking::kMemfd, "anonymous memory"); }),
      guarded("/dev/shm", dev_shm),
      guarded("memory shared by two processes", between_processes),
      guarded("kernel-assisted copy", kernel_copy),
      guarded("open files", descriptors),
  };
}

}  // namespace ropewalk::diagnose::probe
