#include "core/process_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "core/error.h"
#include "core/random.h"

namespace ropewalk {
namespace {

// The kernel moves at most 2 GiB less a page per call; whole GiB keep the pieces aligned.
constexpr std::size_t kLargestCopyBytes = std::size_t{1} << 30;

using CopyFunction = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                                 unsigned long);

// Copies all of it, or says which errno ended it; 0 is success.
int copy_all(CopyFunction copy, pid_t pid, void* local, std::uint64_t remote,
             std::size_t bytes) noexcept {
  auto* here = static_cast<std::byte*>(local);
  while (bytes > 0) {
    const std::size_t piece = std::min(bytes, kLargestCopyBytes);
    const iovec local_range{here, piece};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process
    const iovec remote_range{reinterpret_cast<void*>(remote), piece};
    const ssize_t moved = copy(pid, &local_range, 1, &remote_range, 1, 0);
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

void check(int saved_errno, const char* call, pid_t pid, std::size_t bytes) {
  if (saved_errno == 0) return;
  const std::string tried = fmt::format("{} of {} bytes, process {}", call, bytes, pid);
  if (saved_errno == ESRCH) throw Error(Errc::kPeerLost, "{}: the process is gone", tried);
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
  const int failure = copy_all(process_vm_readv, static_cast<pid_t>(peer.pid), seen.data(),
                               peer.address, seen.size());
  if (failure != 0) {
    return system_error(failure, fmt::format("process_vm_readv of process {}", peer.pid)).what();
  }
  // The same number may be another process here when the peer counts in another namespace.
  if (seen != peer.pattern) return "wrong content: another process-id namespace";
  return {};
}

void read_process(pid_t pid, void* destination, std::uint64_t source, std::size_t bytes) {
  check(copy_all(process_vm_readv, pid, destination, source, bytes), "process_vm_readv", pid,
        bytes);
}

void write_process(pid_t pid, std::uint64_t destination, const void* source, std::size_t bytes) {
  // process_vm_writev takes the local range as writable but only reads it.
  check(copy_all(process_vm_writev, pid, const_cast<void*>(source), destination, bytes),
        "process_vm_writev", pid, bytes);
}

}  // namespace ropewalk
