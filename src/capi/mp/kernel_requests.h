// Requests that kernels start, and that kernels wait for.
//
// Both sides poll words in memory that both reach: a kernel writes a word to start a request, the
// host another one when the request has ended, and the kernel a third one when it has seen that.
// What a request's words must show is a number that no other request has, so that a descriptor that
// is used late, or twice, starts nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "capi/mp/kernel_memory.h"
#include "capi/mp/request.h"
#include "ropewalk/compat/mp.h"

namespace ropewalk::mp {

/// Of one request. The kernel's and the host's are in lines of their own.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
struct alignas(64) KernelWords {
  std::uint64_t start = 0;     ///< by the kernel: the request's number starts it
  std::uint32_t counted = 0;   ///< by the kernel, before `start`; nobody reads it
  std::uint32_t consumed = 0;  ///< by the kernel: it has seen `ended`
  /// By the host: the request's number when it is complete, and that plus 1 when it failed.
  alignas(64) std::uint32_t ended = 0;
};

/// Threads: one at a time, besides the kernels.
class KernelRequests {
 public:
  /// Waits of kernels last `timeout_ns` at most; 0: for ever.
  KernelRequests(KernelMemory& memory, std::uint64_t timeout_ns)
      : memory_(memory), timeout_ns_(timeout_ns) {}

  /// A kernel starts it. Those of one peer begin in the order of these calls.
  /// @pre it is prepared. @throws Failure; nothing was done
  mp_kernel_send_t start_by_kernel(mp_request& request);
  /// Allocates what waiting for it needs. @throws Failure
  void provide(mp_request& request);
  /// A kernel waits for it. @throws Failure; nothing was done
  mp_kernel_wait_t wait_by_kernel(mp_request& request);
  /// What ends waits of kernels that are for no request.
  const mp_kernel_control_t* control();

  /// Whether nothing is awaited from kernels.
  [[nodiscard]] bool idle() const noexcept { return to_start_.empty() && watched_.empty(); }
  /// Whether a kernel may wait for what no request tells of.
  [[nodiscard]] bool may_wait() const noexcept { return control_ != nullptr; }
  /// Does what can be done. `post` starts a request. @return whether anything moved. @throws
  /// Failure
  bool poll(const std::function<void(mp_request&)>& post);
  /// The communicator is broken, or ends: so do the waits of kernels, and what has not started.
  void fail(const std::string& text);
  /// The request is released. @pre no kernel is to start it or waits for it
  void forget(mp_request& request);

 private:
  KernelWords& words_of(mp_request& request);
  void add_words();

  KernelMemory& memory_;
  std::uint64_t timeout_ns_;
  mp_kernel_control_t* control_ = nullptr;
  // Those that were returned last are taken last, so that a descriptor that is used too late meets
  // words of a live request as rarely as can be.
  std::deque<KernelWords*> free_;
  std::uint32_t last_number_ = 0;
  std::map<int, std::deque<mp_request*>> to_start_;  // by peer; no empty one
  std::vector<mp_request*> watched_;
};

}  // namespace ropewalk::mp
