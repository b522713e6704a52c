// NCCL's groups, over comm/group.h.
//
// Additions: a group with a failed call starts nothing and ends with that call's error;
// communicators created in a group are created concurrently; non-blocking ones continue in threads
// of their own; one-sided calls have the order that one_sided.h says, the puts before the
// collectives, the waits behind them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "capi/nccl/guard.h"
#include "capi/nccl/one_sided.h"
#include "core/error.h"

namespace ropewalk::nccl {

struct Core;

/// Something that waits for other ranks: joining, splitting, registering, leaving.
struct Job {
  bool blocking = true;                      ///< else it runs in a thread of its own
  std::function<void()> work;                ///< throws what failed
  std::function<void(const Error&)> failed;  ///< after that, or when the group is given up
  const Core* core = nullptr;                ///< of run_on(), else null
  std::vector<std::function<void()>> more;   ///< what `core` does in the same group, after `work`
  std::function<void()> done;                ///< after all of it; or null
};

/// The group of a thread.
class Group {
 public:
  static Group& of_thread();

  [[nodiscard]] bool open() const noexcept { return depth_ > 0; }
  void start();
  /// Remembers the group's first error.
  void note(ncclResult_t result) noexcept;
  /// Runs the job now, or at the end of the open group.
  /// @return ncclInProgress when it goes on in a thread
  ncclResult_t run(Job job);
  /// The open group's job of a core that is busy with it; else nullptr.
  [[nodiscard]] Job* job_of(const Core& core) noexcept;
  /// Of the open group.
  [[nodiscard]] OneSidedCalls& one_sided() noexcept { return one_sided_; }
  ncclResult_t end();
  /// Ends the group and forgets its calls.
  ncclResult_t forget();

 private:
  ncclResult_t run_jobs(std::vector<Job> jobs);
  void clear() noexcept;

  int depth_ = 0;
  ncclResult_t first_error_ = ncclSuccess;
  std::vector<Job> jobs_;
  OneSidedCalls one_sided_;
};

/// Lets an existing communicator do something that waits for its other ranks, now or at the end of
/// the open group, and be busy meanwhile. Its tasks in one group run in order.
/// @return ncclInProgress if it continues in a thread
/// @throws Error as ready()
ncclResult_t run_on(const std::shared_ptr<Core>& core, std::function<void()> work);

}  // namespace ropewalk::nccl
