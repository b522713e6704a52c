// Communicators, unique ids, groups and requests.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <span>
#include <thread>
#include <vector>

#include "bootstrap/launch.h"
#include "bootstrap/unique_id.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "comm/group.h"
#include "comm/runtime.h"
#include "core/interrupt.h"

namespace ropewalk::capi {
namespace {

using bootstrap::UniqueId;
using comm::Communicator;
using comm::Group;
using comm::Runtime;

static_assert(sizeof(rwUniqueId) == sizeof(UniqueId));

UniqueId from_c(const rwUniqueId& id) {
  UniqueId bytes;
  std::memcpy(bytes.data(), id.internal, bytes.size());
  return bytes;
}

void join_into(rwComm_t* out, const UniqueId& id, int rank, int size) {
  auto handle = std::make_unique<rwComm>();
  handle->comm = Communicator::join(id, rank, size, Runtime::process());
  *out = handle.release();
}

// Ranks `first` and those after it into `comms`, all or none.
void join_together(std::span<rwComm_t> comms, const UniqueId& id, int first, int size) {
  std::vector<rwComm_t> made(comms.size(), nullptr);
  Group group;
  group.start();
  for (rwComm_t& out : made) {
    group.add_join([&id, &out, rank = first++, size] { join_into(&out, id, rank, size); });
  }
  try {
    group.end();
  } catch (...) {
    for (const rwComm_t one : made) delete one;
    throw;
  }
  std::copy(made.begin(), made.end(), comms.begin());
}

// As many ranks of this process as there is room for, and of each of the launcher's others.
void join_by_launcher(std::span<rwComm_t> comms) {
  Runtime& runtime = Runtime::process();
  const Config config = runtime.config();
  const bootstrap::LaunchEnvironment environment = bootstrap::detect();
  const std::size_t each = comms.size();
  if (each > static_cast<std::size_t>(std::numeric_limits<int>::max() / environment.size)) {
    throw Error(Errc::kInvalidArgument, "nranks: {} in each of {} processes", each,
                environment.size);
  }
  // The rendezvous must stay open until all ranks of this process have joined.
  const bootstrap::Meeting meeting =
      bootstrap::rendezvous(environment, config, deadline_of(config), runtime.context());
  const int count = static_cast<int>(each);
  join_together(comms, meeting.id(), environment.rank * count, environment.size * count);
}

}  // namespace
}  // namespace ropewalk::capi

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::capi;  // NOLINT

extern "C" {

RW_API rwResult_t rwGetVersion(int* version) {
  return guarded("rwGetVersion", [&] { checked(version, "version") = RW_VERSION_CODE; });
}

RW_API const char* rwGetErrorString(rwResult_t result) {
  switch (result) {
    case rwSuccess: return "success";
    case rwUnhandledCudaError: return "CUDA error";
    case rwSystemError: return "system error";
    case rwInternalError: return "internal error";
    case rwInvalidArgument: return "invalid argument";
    case rwInvalidUsage: return "invalid usage";
    case rwRemoteError: return "another rank was lost";
    case rwInProgress: return "operation in progress";
    case rwTimeout: return "timeout";
    case rwInterrupted: return "interrupted";
  }
  return "unknown result";
}

RW_API const char* rwGetLastError(rwComm_t comm) {
  if (comm == nullptr || comm->comm == nullptr || comm->comm->belonging().elsewhere() ||
      !comm->comm->failure().broken()) {
    return last_error();
  }
  try {
    comm->last_error = comm->comm->failure().error().what();
    return comm->last_error.c_str();
  } catch (...) {
    return "";
  }
}

RW_API rwResult_t rwGetUniqueId(rwUniqueId* id) {
  return guarded("rwGetUniqueId", [&] {
    Runtime& runtime = Runtime::process();
    const UniqueId made = bootstrap::make_unique_id(runtime.config(), runtime.context());
    std::memcpy(checked(id, "id").internal, made.data(), made.size());
  });
}

RW_API rwResult_t rwCommInitRank(rwComm_t* comm, int nranks, rwUniqueId id, int rank) {
  return guarded("rwCommInitRank", [&] {
    rwComm_t* out = &checked(comm, "comm");
    const UniqueId bytes = from_c(id);
    if (Group::of_thread().open()) {
      Group::of_thread().add_join([=] { join_into(out, bytes, rank, nranks); });
    } else {
      join_into(out, bytes, rank, nranks);
    }
  });
}

RW_API rwResult_t rwCommInitEnv(rwComm_t* comm) {
  return guarded("rwCommInitEnv", [&] { join_by_launcher(std::span(&checked(comm, "comm"), 1)); });
}

RW_API rwResult_t rwCommInitEnvRanks(rwComm_t* comms, int nranks) {
  return guarded("rwCommInitEnvRanks", [&] {
    checked(comms, "comms");
    if (nranks < 1) throw Error(Errc::kInvalidArgument, "nranks: {} is not positive", nranks);
    join_by_launcher(std::span(comms, static_cast<std::size_t>(nranks)));
  });
}

RW_API rwResult_t rwCommInitAll(rwComm_t* comms, int nranks) {
  return guarded("rwCommInitAll", [&] {
    checked(comms, "comms");
    if (nranks < 1) throw Error(Errc::kInvalidArgument, "nranks: {} is not positive", nranks);
    Runtime& runtime = Runtime::process();
    const UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
    join_together(std::span(comms, static_cast<std::size_t>(nranks)), id, 0, nranks);
  });
}

RW_API rwResult_t rwCommSplit(rwComm_t comm, int color, int key, rwComm_t* newcomm) {
  return guarded("rwCommSplit", [&] {
    checked(newcomm, "newcomm");
    std::unique_ptr<Communicator> made = checked(comm, "comm").comm->split(color, key);
    *newcomm = nullptr;
    if (made != nullptr) {
      auto handle = std::make_unique<rwComm>();
      handle->comm = std::move(made);
      *newcomm = handle.release();
    }
  });
}

RW_API rwResult_t rwCommCount(rwComm_t comm, int* count) {
  return guarded("rwCommCount",
                 [&] { checked(count, "count") = checked(comm, "comm").comm->size(); });
}

RW_API rwResult_t rwCommUserRank(rwComm_t comm, int* rank) {
  return guarded("rwCommUserRank",
                 [&] { checked(rank, "rank") = checked(comm, "comm").comm->rank(); });
}

RW_API rwResult_t rwCommFinalize(rwComm_t comm) {
  return guarded("rwCommFinalize", [&] { checked(comm, "comm").comm->finalize(); });
}

RW_API rwResult_t rwCommDestroy(rwComm_t comm) {
  return guarded("rwCommDestroy", [&] {
    // In a forked child its threads are not there to be waited for: it stays as it is.
    if (comm == nullptr || comm->comm->belonging().elsewhere()) return;
    std::unique_ptr<rwComm> owned(&checked(comm, "comm"));
    try {
      owned->comm->finalize();
    } catch (const Error& error) {
      // Refused, since another thread uses it: it goes on.
      if (error.code() == Errc::kInvalidUsage && !comm->comm->failure().broken()) owned.release();
      throw;
    }
  });
}

RW_API rwResult_t rwCommAbort(rwComm_t comm) {
  return guarded("rwCommAbort", [&] {
    const std::unique_ptr<rwComm> owned(&checked(comm, "comm"));
    owned->comm->abort("rwCommAbort was called");
  });
}

RW_API rwResult_t rwCommGetAsyncError(rwComm_t comm, rwResult_t* error) {
  return guarded("rwCommGetAsyncError", [&] {
    checked(comm, "comm").comm->look_at_device();
    const bootstrap::FailureState& failure = comm->comm->failure();
    checked(error, "error") = failure.broken() ? to_result(failure.error().code()) : rwSuccess;
  });
}

RW_API rwResult_t rwCommSetTimeout(rwComm_t comm, int64_t timeout_us) {
  return guarded("rwCommSetTimeout", [&] {
    // A century: longer ones would overflow in nanoseconds.
    const std::chrono::microseconds limit(timeout_us < 0 ? -1 : timeout_us);
    checked(comm, "comm")
        .comm->set_timeout(std::min<std::chrono::microseconds>(limit, std::chrono::years(100)));
  });
}

RW_API rwResult_t rwGroupStart(void) {
  return guarded("rwGroupStart", [] { Group::of_thread().start(); });
}

RW_API rwResult_t rwGroupEnd(void) {
  return guarded("rwGroupEnd", [] { Group::of_thread().end(); });
}

RW_API rwResult_t rwSetInterruptCheck(int (*check)(void* user), void* user) {
  return guarded("rwSetInterruptCheck", [&] { set_interrupt_check(check, user); });
}

RW_API rwResult_t rwRequestWait(rwRequest_t request, int64_t timeout_us) {
  bool ended = false;
  const rwResult_t result = guarded("rwRequestWait", [&] {
    rwRequest& handle = checked(request, "request");
    handle.belonging.require_here("the request");
    if (handle.on_stream != nullptr) {
      ended = comm::wait(*handle.on_stream, std::chrono::microseconds(timeout_us));
      return;
    }
    ended = handle.request->wait(std::chrono::microseconds(timeout_us));
    if (!ended) return;
    if (const std::optional<Error> error = handle.request->error()) {
      handle.error = error->what();
      throw *error;
    }
  });
  return result == rwSuccess && !ended ? rwInProgress : result;
}

RW_API const char* rwRequestError(rwRequest_t request) {
  return request == nullptr ? "" : request->error.c_str();
}

RW_API rwResult_t rwRequestFree(rwRequest_t request) {
  return guarded("rwRequestFree", [&] {
    // A thread of the parent process may have been waiting for it at the fork, for ever here.
    if (request != nullptr && !request->belonging.elsewhere()) delete request;
  });
}

}  // extern "C"
