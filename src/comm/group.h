// Calls that are started together: sends and receives that wait for each other, collectives of
// several communicators in one thread, several ranks that join in one thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/enqueue_threads.h"

namespace ropewalk::comm {

/// The open group of a thread. Groups nest; the outermost end() runs everything.
///
/// Within a group a communicator's sends and receives all make progress at once, before its
/// collectives, which run in order.
class Group {
 public:
  static Group& of_thread();

  [[nodiscard]] bool open() const noexcept { return depth_ > 0; }
  /// of_thread().open(), for who asks at each call.
  [[nodiscard]] static bool open_in_thread() noexcept {
    const Group* here = of_this_thread_;
    return here != nullptr && here->open();
  }
  void start() noexcept { ++depth_; }

  /// Adds a validated call. Without `request` the outermost end() waits for it.
  /// @throws Error kInvalidArgument as Communicator::run
  void add(Communicator& comm, const CollectiveCall& call, std::shared_ptr<Request> request);
  void add(Communicator& comm, const PointToPointCall& call, std::shared_ptr<Request> request);
  /// Adds a call on GPU memory; end() enqueues it on `stream`, sends and receives of one stream and
  /// communicator together.
  void add_on_stream(Communicator& comm, const CollectiveCall& call, DeviceStream stream);
  void add_on_stream(Communicator& comm, const PointToPointCall& call, DeviceStream stream);
  /// Adds something that waits for other ranks, as joining does; end() runs all of a group at once,
  /// each in a thread of its own. Those of one communicator, where there is one, run in order.
  void add_join(std::function<void()> join, const Communicator* comm = nullptr);

  /// @throws Error kInvalidUsage without start(); the first error of any call of the group
  void end();
  /// Ends the group, and all that it is nested in, without running anything.
  void discard() noexcept;

 private:
  struct Entry {
    Communicator* comm = nullptr;
    std::vector<PointToPointCall> sends_and_receives;
    std::vector<std::shared_ptr<Request>> requests;  // of those that have one
    struct Collective {
      std::unique_ptr<Task> task;
      std::shared_ptr<Request> request;
    };
    std::vector<Collective> collectives;
    bool blocking = false;
  };
  struct Joins {
    const Communicator* comm = nullptr;
    std::vector<std::function<void()>> in_order;
  };
  Entry& entry(Communicator& comm);
  void run_joins();
  void enqueue();
  // For several GPUs at the same time, each one's calls in their order.
  // @return false where they must be enqueued one after the other, by this thread
  bool enqueue_by_threads();

  struct OnDevice {
    Communicator* comm = nullptr;
    DeviceStream stream = nullptr;
    std::vector<PointToPointCall> sends_and_receives;  // or
    CollectiveCall collective;

    void enqueue() const;
  };

  int depth_ = 0;
  static constinit thread_local const Group* of_this_thread_;  // null until it is asked for
  std::vector<Entry> entries_;
  std::vector<OnDevice> on_device_;
  std::vector<int> devices_;  // of these calls, each once
  EnqueueThreads threads_;
  std::vector<Joins> joins_;
};

}  // namespace ropewalk::comm
