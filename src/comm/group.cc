#include "comm/group.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <thread>
#include <utility>

#include "bootstrap/bootstrap.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/library_thread.h"
#include "core/mutex.h"

namespace ropewalk::comm {

constinit thread_local const Group* Group::of_this_thread_ = nullptr;

Group& Group::of_thread() {
  thread_local Group group;
  of_this_thread_ = &group;
  return group;
}

Group::Entry& Group::entry(Communicator& comm) {
  for (Entry& known : entries_) {
    if (known.comm == &comm) return known;
  }
  entries_.emplace_back();
  entries_.back().comm = &comm;
  return entries_.back();
}

void Group::add(Communicator& comm, const CollectiveCall& call, std::shared_ptr<Request> request) {
  std::unique_ptr<Task> task = comm.make_task(call);
  Entry& queue = entry(comm);
  queue.blocking |= request == nullptr;
  queue.collectives.push_back({std::move(task), std::move(request)});
}

void Group::add(Communicator& comm, const PointToPointCall& call,
                std::shared_ptr<Request> request) {
  validate(call, comm.size());
  Entry& queue = entry(comm);
  queue.sends_and_receives.push_back(call);
  if (request == nullptr) {
    queue.blocking = true;
  } else {
    queue.requests.push_back(std::move(request));
  }
}

void Group::add_on_stream(Communicator& comm, const CollectiveCall& call, DeviceStream stream) {
  if (!exchanges_in_place(call)) validate(call, comm.rank(), comm.size());
  on_device_.push_back({&comm, stream, {}, call});
}

void Group::add_on_stream(Communicator& comm, const PointToPointCall& call, DeviceStream stream) {
  validate(call, comm.size());
  for (OnDevice& item : on_device_) {
    if (item.comm == &comm && item.stream == stream && !item.sends_and_receives.empty()) {
      item.sends_and_receives.push_back(call);
      return;
    }
  }
  on_device_.push_back({&comm, stream, {call}, {}});
}

void Group::OnDevice::enqueue() const {
  if (sends_and_receives.empty()) {
    comm->enqueue(collective, stream);
  } else {
    comm->enqueue(sends_and_receives, stream);
  }
}

void Group::enqueue() {
  if (on_device_.empty()) return;
  try {
    if (!enqueue_by_threads()) {
      for (const OnDevice& item : on_device_) item.enqueue();
    }
  } catch (...) {
    on_device_.clear();
    throw;
  }
  on_device_.clear();
}

bool Group::enqueue_by_threads() {
  devices_.clear();
  for (const OnDevice& item : on_device_) {
    if (!item.comm->helped_by_threads()) return false;
    const int device = item.comm->device_number();
    if (std::ranges::find(devices_, device) == devices_.end()) devices_.push_back(device);
  }
  if (devices_.size() < 2) return false;
  for (const OnDevice& item : on_device_) {
    if (!item.comm->device()->any_thread_enqueues(item.stream)) return false;
  }
  threads_.run(devices_.size(), [this](std::size_t part) {
    for (const OnDevice& item : on_device_) {
      if (item.comm->device_number() == devices_[part]) item.enqueue();
    }
  });
  return true;
}

void Group::add_join(std::function<void()> join, const Communicator* comm) {
  for (Joins& joins : joins_) {
    if (comm != nullptr && joins.comm == comm) {
      joins.in_order.push_back(std::move(join));
      return;
    }
  }
  joins_.push_back({comm, {std::move(join)}});
}

void Group::run_joins() {
  if (joins_.empty()) return;
  const std::vector<Joins> all = std::exchange(joins_, {});
  Mutex mutex;
  std::condition_variable changed;
  std::exception_ptr first;
  std::size_t running = all.size();
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (const Joins& joins : all) {
    threads.emplace_back([&, &in_order = joins.in_order] {
      mark_library_thread();
      const InterruptedBy caller(stop);
      std::exception_ptr thrown;
      try {
        for (const std::function<void()>& join : in_order) join();
      } catch (...) {
        thrown = std::current_exception();
      }
      const Lock lock(mutex);
      if (!first) first = thrown;
      if (--running == 0) changed.notify_one();
    });
  }
  {
    Lock lock(mutex);
    const auto done = [&running] { return running == 0; };
    // This thread calls the interrupt check; the others use its result.
    const auto ask = [&stop] { stop = stop || interrupted(); };
    lock.wait_until(changed, kNoDeadline, done, kInterruptPeriod, ask);
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
  if (stop) throw Error(Errc::kInterrupted, "joining: interrupted by the program");
}

void Group::discard() noexcept {
  depth_ = 0;
  entries_.clear();
  on_device_.clear();
  joins_.clear();
}

void Group::end() {
  if (depth_ == 0) throw Error(Errc::kInvalidUsage, "no group is open: rwGroupStart opens one");
  if (--depth_ > 0) return;
  std::vector<Entry> entries = std::exchange(entries_, {});
  run_joins();
  enqueue();

  // Communicators whose calls all have requests go to their workers; the others run here, together.
  std::vector<Communicator::Work> here;
  std::vector<std::shared_ptr<Request>> finished_here;
  for (Entry& item : entries) {
    std::vector<std::unique_ptr<Task>> tasks;
    std::vector<std::vector<std::shared_ptr<Request>>> requests;
    if (!item.sends_and_receives.empty()) {
      tasks.push_back(item.comm->make_task(std::move(item.sends_and_receives)));
      requests.push_back(std::move(item.requests));
    }
    for (Entry::Collective& collective : item.collectives) {
      tasks.push_back(std::move(collective.task));
      requests.emplace_back();
      if (collective.request != nullptr) requests.back().push_back(std::move(collective.request));
    }
    if (!item.blocking) {
      for (std::size_t t = 0; t < tasks.size(); ++t) {
        item.comm->start(std::move(tasks[t]), std::move(requests[t]));
      }
      continue;
    }
    for (const auto& of_task : requests) {
      finished_here.insert(finished_here.end(), of_task.begin(), of_task.end());
    }
    here.push_back({item.comm, std::move(tasks)});
  }
  if (here.empty()) return;
  try {
    Communicator::run_together(std::move(here));
  } catch (const Error& error) {
    for (const std::shared_ptr<Request>& request : finished_here) request->fail(error);
    throw;
  }
  for (const std::shared_ptr<Request>& request : finished_here) request->finish();
}

}  // namespace ropewalk::comm
