// Kernel-assisted single copy between processes: process_vm_readv and process_vm_writev.
//
// Whether it is permitted depends on user ids, Yama, seccomp filters, user and process-id
// namespaces; so it is found out by trying (ProcessProbe), never by guessing.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/guarded_write.h"

namespace ropewalk {

/// The record that a process publishes so that others can try to read its memory. Plain bytes.
struct ProbeAddress {
  std::int64_t pid = 0;
  std::uint64_t address = 0;
  std::array<std::byte, 32> pattern{};
};

/// A random pattern at a fixed address of this process. Must live until all peers have tried.
class ProcessProbe {
 public:
  ProcessProbe();
  [[nodiscard]] ProbeAddress address() const noexcept;

 private:
  std::array<std::byte, 32> pattern_;
};

/// Reads a peer's probe and compares.
/// @return empty when it works, else the reason in words ("process_vm_readv of process 123:
/// Operation not permitted", "wrong content: another process-id namespace")
std::string try_single_copy(const ProbeAddress& peer);

/// Whether all of it is memory of this process, with whatever access. True where that cannot be
/// seen.
bool is_mapped(const void* data, std::size_t bytes) noexcept;

/// Copies from another process.
/// @throws Error kPeerLost when the process has ended, kSystem else
void read_process(pid_t pid, void* destination, std::uint64_t source, std::size_t bytes);

/// Copies to another process while the guard holds.
/// @return false if the guard no longer holds; the rest is then not written, now or later
/// @throws Error kPeerLost when the process has ended, kSystem else
/// @pre can_guard_writes()
bool write_process(pid_t pid, std::uint64_t destination, const void* source, std::size_t bytes,
                   const WriteGuard& guard);

/// Whether all threads of a process are stopped (SIGSTOP) or have ended, so that none is inside a
/// system call. False if this is unknown.
bool is_stopped(pid_t pid);

}  // namespace ropewalk
