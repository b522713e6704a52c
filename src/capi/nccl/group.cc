#include "capi/nccl/group.h"

#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "capi/nccl/handle.h"
#include "comm/group.h"
#include "core/library_thread.h"

namespace ropewalk::nccl {
namespace {

// The error that was reported to the job.
std::optional<Error> perform(const Job& job) noexcept {
  std::optional<Error> error;
  try {
    job.work();
    for (const std::function<void()>& work : job.more) work();
    if (job.done) job.done();
  } catch (const Error& thrown) {
    error = thrown;
  } catch (const std::exception& thrown) {
    error = Error(Errc::kInternal, std::string(thrown.what()));
  }
  if (error.has_value()) job.failed(*error);
  return error;
}

void start_thread(Job job) {
  std::thread([job = std::move(job)] {
    mark_library_thread();
    const std::optional<Error> error = perform(job);
    if (error.has_value()) report("a non-blocking call", error->what());
  }).detach();
}

}  // namespace

Group& Group::of_thread() {
  thread_local Group group;
  return group;
}

void Group::start() {
  if (depth_++ == 0) comm::Group::of_thread().start();
}

void Group::note(ncclResult_t result) noexcept {
  if (open() && first_error_ == ncclSuccess && result != ncclInProgress) first_error_ = result;
}

ncclResult_t Group::run(Job job) {
  if (open()) {
    jobs_.push_back(std::move(job));
    return ncclSuccess;
  }
  std::vector<Job> one;
  one.push_back(std::move(job));
  return run_jobs(std::move(one));
}

Job* Group::job_of(const Core& core) noexcept {
  for (Job& job : jobs_) {
    if (job.core == &core) return &job;
  }
  return nullptr;
}

ncclResult_t Group::run_jobs(std::vector<Job> jobs) {
  std::vector<Job> blocking;
  bool in_progress = false;
  for (Job& job : jobs) {
    if (job.blocking) {
      blocking.push_back(std::move(job));
    } else {
      start_thread(std::move(job));
      in_progress = true;
    }
  }
  std::vector<std::optional<Error>> errors(blocking.size());
  if (blocking.size() == 1) {
    errors.front() = perform(blocking.front());
  } else {
    std::vector<std::thread> threads;
    threads.reserve(blocking.size());
    for (std::size_t i = 0; i < blocking.size(); ++i) {
      threads.emplace_back([&errors, &blocking, i] {
        mark_library_thread();
        errors[i] = perform(blocking[i]);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (const std::optional<Error>& error : errors) {
    if (error.has_value()) throw *error;
  }
  return in_progress ? ncclInProgress : ncclSuccess;
}

void Group::clear() noexcept {
  const Error reason(Errc::kInvalidUsage, "the group that was to make it did not end well");
  for (const Job& job : std::exchange(jobs_, {})) job.failed(reason);
  one_sided_.clear();
  comm::Group::of_thread().discard();
}

ncclResult_t Group::end() {
  if (!open()) throw Error(Errc::kInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--depth_ > 0) return ncclSuccess;
  const ncclResult_t error = std::exchange(first_error_, ncclSuccess);
  if (error != ncclSuccess) {
    clear();
    return error;
  }
  ncclResult_t result = ncclSuccess;
  try {
    result = run_jobs(std::exchange(jobs_, {}));
    one_sided_.enqueue_puts();
  } catch (...) {
    clear();
    throw;
  }
  OneSidedCalls waits = std::exchange(one_sided_, {});
  comm::Group::of_thread().end();
  waits.enqueue_waits();
  return result;
}

ncclResult_t Group::forget() {
  if (!open()) throw Error(Errc::kInvalidUsage, "ncclGroupSimulateEnd without ncclGroupStart");
  if (--depth_ > 0) return ncclSuccess;
  const ncclResult_t error = std::exchange(first_error_, ncclSuccess);
  clear();
  return error;
}

ncclResult_t run_on(const std::shared_ptr<Core>& core, std::function<void()> work) {
  if (Job* job = Group::of_thread().job_of(*core)) {
    job->more.push_back(std::move(work));
    return ncclSuccess;
  }
  core->begin();
  Job job;
  job.blocking = core->blocking;
  job.work = std::move(work);
  job.done = [core] { core->end(nullptr); };
  // Whether it is broken, it says itself.
  job.failed = [core](const Error& /*error*/) { core->end(nullptr); };
  job.core = core.get();
  return Group::of_thread().run(std::move(job));
}

}  // namespace ropewalk::nccl
