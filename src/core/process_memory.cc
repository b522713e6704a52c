#include "core/process_memory.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <span>
#include <system_error>

#include "core/error.h"
#include "core/random.h"

namespace ropewalk {
namespace {

// The kernel moves at most 2 GiB less a page per call; whole GiB keep the pieces aligned.
constexpr std::size_t kLargestCopyBytes = std::size_t{1} << 30;

// A guarded write checks the guard before each call; a call of this size takes a millisecond.
constexpr std::size_t kGuardedCopyBytes = std::size_t{4} << 20;

// Copies all of it by `copy(local, remote)`, in calls of at most `most`, or says which errno ended
// it; 0 is success.
template <typename Copy>
int copy_all(Copy&& copy, std::size_t most, void* local, std::uint64_t remote,
             std::size_t bytes) noexcept {
  auto* here = static_cast<std::byte*>(local);
  while (bytes > 0) {
    const std::size_t piece = std::min(bytes, most);
    const iovec local_range{here, piece};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process
    const iovec remote_range{reinterpret_cast<void*>(remote), piece};
    const ssize_t moved = copy(local_range, remote_range);
    if (moved < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    // Nothing moved and no error: the other side's range ends here.
    if (moved == 0) return EFAULT;
    here += moved;
    remote += static_cast<std::uint64_t>(moved);
    bytes -= static_cast<std::size_t>(moved);
  }
  return 0;
}

int read_all(pid_t pid, void* local, std::uint64_t remote, std::size_t bytes) noexcept {
  return copy_all([&](const iovec& here,
                      const iovec& there) { return process_vm_readv(pid, &here, 1, &there, 1, 0); },
                  kLargestCopyBytes, local, remote, bytes);
}

void check(int saved_errno, const char* call, pid_t pid, std::size_t bytes) {
  if (saved_errno == 0) return;
  const std::string tried = fmt::format("{} of {} bytes, process {}", call, bytes, pid);
  if (saved_errno == ESRCH) throw Error(Errc::kPeerLost, "{}: the process has ended", tried);
  throw system_error(saved_errno, tried);
}

}  // namespace

ProcessProbe::ProcessProbe() { fill_random(pattern_); }

ProbeAddress ProcessProbe::address() const noexcept {
  ProbeAddress address;
  address.pid = getpid();
  address.address = reinterpret_cast<std::uint64_t>(pattern_.data());
  address.pattern = pattern_;
  return address;
}

std::string try_single_copy(const ProbeAddress& peer) {
  std::array<std::byte, 32> seen{};
  const int failure =
      read_all(static_cast<pid_t>(peer.pid), seen.data(), peer.address, seen.size());
  if (failure != 0) {
    return system_error(failure, fmt::format("process_vm_readv of process {}", peer.pid)).what();
  }
  // The same number may be another process here when the peer counts in another namespace.
  if (seen != peer.pattern) return "wrong content: another process-id namespace";
  return {};
}

bool is_mapped(const void* data, std::size_t bytes) noexcept {
  if (bytes == 0) return true;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  if (bytes > std::numeric_limits<std::uintptr_t>::max() - begin) return false;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = begin & ~(page - 1);
  // Asynchronous, it writes nothing back: the system only checks the mapping.
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of this process
  return msync(reinterpret_cast<void*>(first), begin + bytes - first, MS_ASYNC) == 0 ||
         errno != ENOMEM;
}

void read_process(pid_t pid, void* destination, std::uint64_t source, std::size_t bytes) {
  check(read_all(pid, destination, source, bytes), "process_vm_readv", pid, bytes);
}

bool write_process(pid_t pid, std::uint64_t destination, const void* source, std::size_t bytes,
                   const WriteGuard& guard) {
  // process_vm_writev takes the local range as writable but only reads it.
  const int failure =
      copy_all([&](const iovec& here,
                   const iovec& there) { return guarded_writev(pid, here, there, guard); },
               kGuardedCopyBytes, const_cast<void*>(source), destination, bytes);
  if (failure == ECANCELED) return false;
  check(failure, "process_vm_writev", pid, bytes);
  return true;
}

bool is_stopped(pid_t pid) {
  if (kill(pid, 0) != 0 && errno == ESRCH) return true;
  std::error_code failure;
  std::filesystem::directory_iterator threads(fmt::format("/proc/{}/task", pid), failure);
  if (failure) return false;
  for (const std::filesystem::directory_entry& thread : threads) {
    std::ifstream file(thread.path() / "stat");
    std::string line;
    if (!std::getline(file, line)) return false;
    // "number (name) state ...": the name may hold anything, the state follows the last bracket.
    const std::size_t bracket = line.rfind(')');
    if (bracket == std::string::npos || bracket + 2 >= line.size()) return false;
    const char state = line[bracket + 2];
    if (state != 'T' && state != 'Z' && state != 'X') return false;
  }
  return true;
}

}  // namespace ropewalk
