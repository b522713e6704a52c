// Unique ids and communicators.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/unique_id.h"
#include "capi/nccl/config.h"
#include "capi/nccl/group.h"
#include "capi/nccl/guard.h"
#include "capi/nccl/handle.h"
#include "comm/device_memory.h"
#include "comm/runtime.h"
#include "core/log.h"

namespace ropewalk::nccl {
namespace {

using bootstrap::UniqueId;
using comm::Communicator;
using comm::Runtime;
using Make = std::function<std::unique_ptr<Communicator>()>;

static_assert(sizeof(ncclUniqueId) == sizeof(UniqueId));

UniqueId from_c(const ncclUniqueId& id) {
  UniqueId bytes;
  std::memcpy(bytes.data(), id.internal, bytes.size());
  return bytes;
}

void require_devices() {
  const std::string reason = comm::why_no_device();
  if (!reason.empty()) throw Error(Errc::kCuda, "{}", reason);
}

void require_rank(int rank, int size) {
  if (size < 1) throw Error(Errc::kInvalidArgument, "nranks: {} is not positive", size);
  if (rank < 0 || rank >= size) {
    throw Error(Errc::kInvalidArgument, "rank: {} is outside 0 to {}", rank, size - 1);
  }
}

// A communicator without signals is whole: the calls that need them say why there are none.
void open_signals(OneSided& one_sided) {
  try {
    one_sided.open();
  } catch (const message::Refused& refused) {
    log::info(log::kAll, "there are no signals (ncclPutSignal): {}", refused.what());
  }
}

// Writes a new handle to `out` and starts making its communicator; `parent` is busy meanwhile.
ncclResult_t make_into(ncclComm_t* out, int device, const CommConfig& config, Make make,
                       std::shared_ptr<Core> parent = nullptr) {
  const bool blocking = config.blocking;
  if (parent != nullptr) parent->begin();
  auto core = std::make_shared<Core>(device, config);
  auto handle = std::make_unique<ncclComm>(core);
  Job job;
  job.blocking = blocking;
  job.work = [core, parent, make = std::move(make)] {
    std::unique_ptr<Communicator> made = make();
    std::unique_ptr<OneSided> one_sided;
    if (made != nullptr) {
      made->attach_device(core->device, core->config.blocks);
      one_sided = std::make_unique<OneSided>(*made, core->device, core->config.signals);
      if (core->config.eager_signals) open_signals(*one_sided);
    }
    core->end(std::move(made), std::move(one_sided));
    if (parent != nullptr) parent->end(nullptr);
  };
  job.failed = [core, parent = std::move(parent), blocking, out,
                raw = handle.get()](const Error& error) {
    core->fail(error);
    // The parent says by itself whether it is broken.
    if (parent != nullptr) parent->end(nullptr);
    if (blocking) {
      *out = nullptr;
      delete raw;
    }
  };
  *out = handle.release();
  return Group::of_thread().run(std::move(job));
}

ncclResult_t init(ncclComm_t* out, int size, const ncclUniqueId& id, int rank, int device,
                  const CommConfig& config) {
  checked(out, "comm");
  require_rank(rank, size);
  const UniqueId bytes = from_c(id);
  return make_into(out, device, config, [bytes, rank, size] {
    if (rank == 0) log_version();
    return Communicator::join(bytes, rank, size, Runtime::process());
  });
}

ncclResult_t init_here(ncclComm_t* out, int size, const ncclUniqueId& id, int rank,
                       const ncclConfig_t* config) {
  const CommConfig read = read_config(config, {});
  checked(out, "comm");
  require_rank(rank, size);
  require_devices();
  return init(out, size, id, rank, comm::current_device(), read);
}

ncclUniqueId make_id() {
  Runtime& runtime = Runtime::process();
  const UniqueId made = bootstrap::make_unique_id(runtime.config(), runtime.context());
  ncclUniqueId id;
  std::memcpy(id.internal, made.data(), made.size());
  return id;
}

ncclResult_t init_all(ncclComm_t* comms, int count, const int* devices) {
  checked(comms, "comm");
  if (count < 1) throw Error(Errc::kInvalidArgument, "ndev: {} is not positive", count);
  require_devices();
  const int there = comm::device_count();
  std::vector<int> chosen;
  for (int rank = 0; rank < count; ++rank) {
    const int device = devices == nullptr ? rank : devices[rank];
    if (device < 0 || device >= there) {
      throw Error(Errc::kInvalidArgument, "devlist: rank {} is to have GPU {}, and there are {}",
                  rank, device, there);
    }
    if (std::find(chosen.begin(), chosen.end(), device) != chosen.end()) {
      throw Error(Errc::kInvalidUsage, "devlist: GPU {} is named twice", device);
    }
    chosen.push_back(device);
  }
  const ncclUniqueId id = make_id();
  Group& group = Group::of_thread();
  group.start();
  for (int rank = 0; rank < count; ++rank) {
    init(comms + rank, count, id, rank, chosen[static_cast<std::size_t>(rank)], {});
  }
  try {
    return group.end();
  } catch (...) {
    // All or none.
    for (int rank = 0; rank < count; ++rank) delete std::exchange(comms[rank], nullptr);
    throw;
  }
}

ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                   const ncclConfig_t* config) {
  checked(newcomm, "newcomm");
  if (color < 0 && color != kNcclNoColor) {
    throw Error(Errc::kInvalidArgument, "color: {} is negative", color);
  }
  Core& parent = usable(comm);
  const CommConfig read = read_config(config, parent.config);
  Communicator* whole = parent.comm.get();
  if (color != kNcclNoColor) {
    return make_into(
        newcomm, parent.device, read, [whole, color, key] { return whole->split(color, key); },
        comm->core);
  }
  // No communicator for this rank, which takes part in the parting all the same.
  *newcomm = nullptr;
  return run_on(comm->core, [core = comm->core, key] { core->comm->split(kNcclNoColor, key); });
}

ncclResult_t shrink(ncclComm_t comm, const int* excluded, int num_excluded, ncclComm_t* newcomm,
                    const ncclConfig_t* config) {
  checked(newcomm, "newcomm");
  Core& parent = usable(comm);
  Communicator* whole = parent.comm.get();
  if (num_excluded < 1) {
    throw Error(Errc::kInvalidArgument, "excludeRanksCount: {} is not positive", num_excluded);
  }
  checked(excluded, "excludeRanksList");
  std::set<int> out;
  for (int i = 0; i < num_excluded; ++i) {
    if (excluded[i] < 0 || excluded[i] >= whole->size()) {
      throw Error(Errc::kInvalidArgument, "excludeRanksList: {} is outside 0 to {}", excluded[i],
                  whole->size() - 1);
    }
    out.insert(excluded[i]);
  }
  if (out.contains(whole->rank())) {
    throw Error(Errc::kInvalidArgument, "excludeRanksList: holds the calling rank, {}",
                whole->rank());
  }
  const CommConfig read = read_config(config, parent.config);
  return make_into(
      newcomm, parent.device, read, [whole, out] { return whole->shrink(out); }, comm->core);
}

// Existing ranks give their communicator and no rank, one of them the id; new ranks give the id and
// their rank.
ncclResult_t grow(ncclComm_t comm, int size, const ncclUniqueId* id, int rank, ncclComm_t* newcomm,
                  const ncclConfig_t* config) {
  checked(newcomm, "newcomm");
  if (comm == nullptr) return init_here(newcomm, size, checked(id, "uniqueId"), rank, config);
  if (rank != -1) {
    throw Error(Errc::kInvalidArgument,
                "rank: {}, and -1 is for a rank that is in the communicator already", rank);
  }
  Core& parent = usable(comm);
  const CommConfig read = read_config(config, parent.config);
  std::optional<UniqueId> given;
  if (id != nullptr) given = from_c(*id);
  return make_into(
      newcomm, parent.device, read,
      [whole = parent.comm.get(), given, size] { return whole->grow(given, size); }, comm->core);
}

// Waits for a thread that still works for a handle that is about to go.
void wait_until_idle(Core& core) {
  while (core.state.load(std::memory_order_acquire) == Core::State::kBusy) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

ncclResult_t finalize(ncclComm_t comm) {
  usable(comm);
  return run_on(comm->core, [core = comm->core] { core->comm->finalize(); });
}

// A forked child has no part in the communicator, and cannot free its copy: that waits for threads.
bool of_another_process(ncclComm_t comm) {
  return comm->mark == ncclComm::kMark && comm->core->belonging.elsewhere();
}

void destroy(ncclComm_t comm) {
  if (comm == nullptr || of_another_process(comm)) return;
  wait_until_idle(core_of(comm));
  const std::unique_ptr<ncclComm> owned(comm);
  if (comm->core->comm != nullptr) comm->core->comm->finalize();
}

// Ends all running operations, on this rank and on the others, which are notified.
void give_up(Core& core, const char* reason) {
  // A thread that is joining holds the core, and finds this when it is done.
  core.abandoned = true;
  if (core.comm != nullptr) core.comm->abort(reason);
}

void abort(ncclComm_t comm) {
  if (comm == nullptr || of_another_process(comm)) return;
  core_of(comm);
  const std::unique_ptr<ncclComm> owned(comm);
  const std::lock_guard lock(comm->core->mutex);
  give_up(*comm->core, "ncclCommAbort was called");
}

void revoke(ncclComm_t comm, int flags) {
  Core& core = core_of(comm);
  if (flags != kNcclRevokeDefault) {
    throw Error(Errc::kInvalidArgument, "revokeFlags: {} is not 0", flags);
  }
  const std::lock_guard lock(core.mutex);
  if (core.revoked.exchange(true)) return;
  give_up(core, "ncclCommRevoke was called");
}

ncclResult_t async_error(ncclComm_t comm) {
  Core& core = core_of(comm);
  switch (core.state.load(std::memory_order_acquire)) {
    case Core::State::kBusy: return ncclInProgress;
    case Core::State::kFailed: {
      const std::lock_guard lock(core.mutex);
      return to_nccl(core.error->code());
    }
    case Core::State::kReady: break;
  }
  if (core.comm == nullptr) return ncclSuccess;
  // No operation runs any more, and how each ended is known.
  if (core.revoked.load(std::memory_order_acquire)) return ncclSuccess;
  core.comm->look_at_device();
  const bootstrap::FailureState& failure = core.comm->failure();
  return failure.broken() ? to_nccl(failure.error().code()) : ncclSuccess;
}

}  // namespace
}  // namespace ropewalk::nccl

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::nccl;  // NOLINT

RW_NCCL_API(ncclResult_t, ncclGetUniqueId, ncclUniqueId* id) {
  return guarded("ncclGetUniqueId", [&] { checked(id, "uniqueId") = make_id(); });
}

RW_NCCL_API(ncclResult_t, ncclCommInitRank, ncclComm_t* comm, int nranks, ncclUniqueId id,
            int rank) {
  return guarded("ncclCommInitRank", [&] { return init_here(comm, nranks, id, rank, nullptr); });
}

RW_NCCL_API(ncclResult_t, ncclCommInitRankConfig, ncclComm_t* comm, int nranks, ncclUniqueId id,
            int rank, ncclConfig_t* config) {
  return guarded("ncclCommInitRankConfig",
                 [&] { return init_here(comm, nranks, id, rank, config); });
}

// One id is enough: all ranks meet at the first one.
RW_NCCL_API(ncclResult_t, ncclCommInitRankScalable, ncclComm_t* comm, int nranks, int rank,
            int num_ids, ncclUniqueId* ids, ncclConfig_t* config) {
  return guarded("ncclCommInitRankScalable", [&] {
    if (num_ids < 1 || num_ids > nranks) {
      throw Error(Errc::kInvalidArgument, "nId: {} is outside 1 to {}", num_ids, nranks);
    }
    return init_here(comm, nranks, checked(ids, "commIds"), rank, config);
  });
}

RW_NCCL_API(ncclResult_t, ncclCommInitAll, ncclComm_t* comms, int num_devices, const int* devices) {
  return guarded("ncclCommInitAll", [&] { return init_all(comms, num_devices, devices); });
}

RW_NCCL_API(ncclResult_t, ncclCommSplit, ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
            ncclConfig_t* config) {
  return guarded("ncclCommSplit", [&] { return split(comm, color, key, newcomm, config); });
}

// NCCL_SHRINK_ABORT as NCCL_SHRINK_DEFAULT: a communicator that has lost a rank cannot be shrunk.
RW_NCCL_API(ncclResult_t, ncclCommShrink, ncclComm_t comm, int* excluded, int num_excluded,
            ncclComm_t* newcomm, ncclConfig_t* config, int flags) {
  return guarded("ncclCommShrink", [&] {
    if (flags != kNcclShrinkDefault && flags != kNcclShrinkAbort) {
      throw Error(Errc::kInvalidArgument, "shrinkFlags: {} is neither 0 nor 1", flags);
    }
    return shrink(comm, excluded, num_excluded, newcomm, config);
  });
}

RW_NCCL_API(ncclResult_t, ncclCommGetUniqueId, ncclComm_t comm, ncclUniqueId* id) {
  return guarded("ncclCommGetUniqueId", [&] {
    usable(comm);
    checked(id, "uniqueId") = make_id();
  });
}

RW_NCCL_API(ncclResult_t, ncclCommGrow, ncclComm_t comm, int nranks, const ncclUniqueId* id,
            int rank, ncclComm_t* newcomm, ncclConfig_t* config) {
  return guarded("ncclCommGrow", [&] { return grow(comm, nranks, id, rank, newcomm, config); });
}

// Not only here: the other ranks' calls end too, since they wait for this one. They revoke it as
// well for the same state.
RW_NCCL_API(ncclResult_t, ncclCommRevoke, ncclComm_t comm, int flags) {
  return guarded("ncclCommRevoke", [&] { revoke(comm, flags); });
}

RW_NCCL_API(ncclResult_t, ncclCommFinalize, ncclComm_t comm) {
  return guarded("ncclCommFinalize", [&] { return finalize(comm); });
}

RW_NCCL_API(ncclResult_t, ncclCommDestroy, ncclComm_t comm) {
  return guarded("ncclCommDestroy", [&] { destroy(comm); });
}

RW_NCCL_API(ncclResult_t, ncclCommAbort, ncclComm_t comm) {
  return guarded("ncclCommAbort", [&] { abort(comm); });
}

RW_NCCL_API(ncclResult_t, ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t* error) {
  return guarded("ncclCommGetAsyncError",
                 [&] { checked(error, "asyncError") = async_error(comm); });
}

RW_NCCL_API(ncclResult_t, ncclCommCount, const ncclComm_t comm, int* count) {
  return guarded("ncclCommCount", [&] { checked(count, "count") = ready(comm).comm->size(); });
}

RW_NCCL_API(ncclResult_t, ncclCommCuDevice, const ncclComm_t comm, int* device) {
  return guarded("ncclCommCuDevice", [&] { checked(device, "device") = ready(comm).device; });
}

RW_NCCL_API(ncclResult_t, ncclCommUserRank, const ncclComm_t comm, int* rank) {
  return guarded("ncclCommUserRank", [&] { checked(rank, "rank") = ready(comm).comm->rank(); });
}
