// Operators and operations.
#include <cstring>
#include <type_traits>
#include <vector>

#include "capi/nccl/config.h"
#include "capi/nccl/group.h"
#include "capi/nccl/guard.h"
#include "capi/nccl/handle.h"
#include "capi/nccl/types.h"
#include "comm/device_memory.h"
#include "comm/group.h"

namespace ropewalk::nccl {
namespace {

using comm::CollectiveCall;
using comm::PointToPointCall;

static_assert(comm::MadeOperators::kFirst == ncclNumOps);

// The operator may read its scalar on `stream`.
void set_operator(CollectiveCall& call, Core& core, ncclRedOp_t op, ncclStream_t stream) {
  const comm::PreMulSum* product = core.operators.set(call, static_cast<int>(op));
  if (product != nullptr && product->on_device != nullptr) {
    comm::read_in_order(&call.scalar, product->on_device, size_of(product->type), core.device,
                        stream);
  }
}

template <typename Call>
void perform(Core& core, const Call& call, ncclStream_t stream) {
  if (Group::of_thread().open()) {
    comm::Group::of_thread().add_on_stream(*core.comm, call, stream);
  } else if constexpr (std::is_same_v<Call, PointToPointCall>) {
    core.comm->enqueue(std::vector<PointToPointCall>{call}, stream);
  } else {
    core.comm->enqueue(call, stream);
  }
}

CollectiveCall make(Collective collective, const void* input, void* output, std::size_t count,
                    ncclDataType_t type, int root = 0) {
  CollectiveCall call;
  call.collective = collective;
  call.input = input;
  call.output = output;
  call.count = count;
  call.type = type_of(type);
  call.root = root;
  return call;
}

// What moves data only.
ncclResult_t moving(const char* entry, Collective collective, const void* input, void* output,
                    std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                    ncclStream_t stream, const ncclCollConfig_t* config = nullptr) noexcept {
  return guarded(entry, [&] {
    check_config(config);
    perform(usable(comm), make(collective, input, output, count, type, root), stream);
  });
}

ncclResult_t reducing(const char* entry, Collective collective, const void* input, void* output,
                      std::size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                      ncclComm_t comm, ncclStream_t stream,
                      const ncclCollConfig_t* config = nullptr) noexcept {
  return guarded(entry, [&] {
    check_config(config);
    Core& core = usable(comm);
    CollectiveCall call = make(collective, input, output, count, type, root);
    set_operator(call, core, op, stream);
    perform(core, call, stream);
  });
}

ncclResult_t send_or_receive(const char* entry, bool sends, const void* input, void* output,
                             std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                             ncclStream_t stream) noexcept {
  return guarded(entry, [&] {
    PointToPointCall call;
    call.sends = sends;
    call.input = input;
    call.output = output;
    call.count = count;
    call.type = type_of(type);
    call.peer = peer;
    perform(usable(comm), call, stream);
  });
}

}  // namespace
}  // namespace ropewalk::nccl

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::nccl;  // NOLINT

// A scalar on the device is read when an operation is enqueued, after what its stream holds; that
// waits for the stream, and cannot be captured.
RW_NCCL_API(ncclResult_t, ncclRedOpCreatePreMulSum, ncclRedOp_t* op, void* scalar,
            ncclDataType_t type, ncclScalarResidence_t residence, ncclComm_t comm) {
  return guarded("ncclRedOpCreatePreMulSum", [&] {
    checked(op, "op");
    if (scalar == nullptr) throw Error(Errc::kInvalidArgument, "scalar: NULL");
    Core& core = usable(comm);
    comm::PreMulSum made{type_of(type)};
    if (residence == ncclScalarHostImmediate) {
      std::memcpy(&made.scalar, scalar, size_of(made.type));
    } else if (residence == ncclScalarDevice) {
      made.on_device = scalar;
    } else {
      throw Error(Errc::kInvalidArgument, "residence: {} is none", static_cast<int>(residence));
    }
    *op = static_cast<ncclRedOp_t>(core.operators.add(made));
  });
}

RW_NCCL_API(ncclResult_t, ncclRedOpDestroy, ncclRedOp_t op, ncclComm_t comm) {
  return guarded("ncclRedOpDestroy", [&] { ready(comm).operators.remove(static_cast<int>(op)); });
}

RW_NCCL_API(ncclResult_t, ncclAllReduce, const void* sendbuf, void* recvbuf, std::size_t count,
            ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream) {
  return reducing("ncclAllReduce", Collective::kAllReduce, sendbuf, recvbuf, count, type, op, 0,
                  comm, stream);
}

RW_NCCL_API(ncclResult_t, ncclReduce, const void* sendbuf, void* recvbuf, std::size_t count,
            ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm, ncclStream_t stream) {
  return reducing("ncclReduce", Collective::kReduce, sendbuf, recvbuf, count, type, op, root, comm,
                  stream);
}

RW_NCCL_API(ncclResult_t, ncclReduceScatter, const void* sendbuf, void* recvbuf,
            std::size_t recvcount, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
            ncclStream_t stream) {
  return reducing("ncclReduceScatter", Collective::kReduceScatter, sendbuf, recvbuf, recvcount,
                  type, op, 0, comm, stream);
}

RW_NCCL_API(ncclResult_t, ncclBcast, void* buffer, std::size_t count, ncclDataType_t type, int root,
            ncclComm_t comm, ncclStream_t stream) {
  return moving("ncclBcast", Collective::kBroadcast, buffer, buffer, count, type, root, comm,
                stream);
}

RW_NCCL_API(ncclResult_t, ncclBroadcast, const void* sendbuf, void* recvbuf, std::size_t count,
            ncclDataType_t type, int root, ncclComm_t comm, ncclStream_t stream) {
  return moving("ncclBroadcast", Collective::kBroadcast, sendbuf, recvbuf, count, type, root, comm,
                stream);
}

RW_NCCL_API(ncclResult_t, ncclAllGather, const void* sendbuf, void* recvbuf, std::size_t sendcount,
            ncclDataType_t type, ncclComm_t comm, ncclStream_t stream) {
  return moving("ncclAllGather", Collective::kAllGather, sendbuf, recvbuf, sendcount, type, 0, comm,
                stream);
}

RW_NCCL_API(ncclResult_t, ncclAlltoAll, const void* sendbuf, void* recvbuf, std::size_t count,
            ncclDataType_t type, ncclComm_t comm, ncclStream_t stream) {
  return moving("ncclAlltoAll", Collective::kAllToAll, sendbuf, recvbuf, count, type, 0, comm,
                stream);
}

RW_NCCL_API(ncclResult_t, ncclGather, const void* sendbuf, void* recvbuf, std::size_t count,
            ncclDataType_t type, int root, ncclComm_t comm, ncclStream_t stream) {
  return moving("ncclGather", Collective::kGather, sendbuf, recvbuf, count, type, root, comm,
                stream);
}

RW_NCCL_API(ncclResult_t, ncclScatter, const void* sendbuf, void* recvbuf, std::size_t count,
            ncclDataType_t type, int root, ncclComm_t comm, ncclStream_t stream) {
  return moving("ncclScatter", Collective::kScatter, sendbuf, recvbuf, count, type, root, comm,
                stream);
}

RW_NCCL_API(ncclResult_t, ncclSend, const void* sendbuf, std::size_t count, ncclDataType_t type,
            int peer, ncclComm_t comm, ncclStream_t stream) {
  return send_or_receive("ncclSend", true, sendbuf, nullptr, count, type, peer, comm, stream);
}

RW_NCCL_API(ncclResult_t, ncclRecv, void* recvbuf, std::size_t count, ncclDataType_t type, int peer,
            ncclComm_t comm, ncclStream_t stream) {
  return send_or_receive("ncclRecv", false, nullptr, recvbuf, count, type, peer, comm, stream);
}

// ---- with wishes ------------------------------------------------------------------------

RW_NCCL_API(ncclResult_t, ncclAllReduceConfig, const void* sendbuf, void* recvbuf,
            std::size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
            ncclStream_t stream, const ncclCollConfig_t* config) {
  return reducing("ncclAllReduceConfig", Collective::kAllReduce, sendbuf, recvbuf, count, type, op,
                  0, comm, stream, config);
}

RW_NCCL_API(ncclResult_t, ncclReduceConfig, const void* sendbuf, void* recvbuf, std::size_t count,
            ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm, ncclStream_t stream,
            const ncclCollConfig_t* config) {
  return reducing("ncclReduceConfig", Collective::kReduce, sendbuf, recvbuf, count, type, op, root,
                  comm, stream, config);
}

RW_NCCL_API(ncclResult_t, ncclReduceScatterConfig, const void* sendbuf, void* recvbuf,
            std::size_t recvcount, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
            ncclStream_t stream, const ncclCollConfig_t* config) {
  return reducing("ncclReduceScatterConfig", Collective::kReduceScatter, sendbuf, recvbuf,
                  recvcount, type, op, 0, comm, stream, config);
}

RW_NCCL_API(ncclResult_t, ncclBroadcastConfig, const void* sendbuf, void* recvbuf,
            std::size_t count, ncclDataType_t type, int root, ncclComm_t comm, ncclStream_t stream,
            const ncclCollConfig_t* config) {
  return moving("ncclBroadcastConfig", Collective::kBroadcast, sendbuf, recvbuf, count, type, root,
                comm, stream, config);
}

RW_NCCL_API(ncclResult_t, ncclAllGatherConfig, const void* sendbuf, void* recvbuf,
            std::size_t sendcount, ncclDataType_t type, ncclComm_t comm, ncclStream_t stream,
            const ncclCollConfig_t* config) {
  return moving("ncclAllGatherConfig", Collective::kAllGather, sendbuf, recvbuf, sendcount, type, 0,
                comm, stream, config);
}

RW_NCCL_API(ncclResult_t, ncclAlltoAllConfig, const void* sendbuf, void* recvbuf, std::size_t count,
            ncclDataType_t type, ncclComm_t comm, ncclStream_t stream,
            const ncclCollConfig_t* config) {
  return moving("ncclAlltoAllConfig", Collective::kAllToAll, sendbuf, recvbuf, count, type, 0, comm,
                stream, config);
}

RW_NCCL_API(ncclResult_t, ncclGatherConfig, const void* sendbuf, void* recvbuf, std::size_t count,
            ncclDataType_t type, int root, ncclComm_t comm, ncclStream_t stream,
            const ncclCollConfig_t* config) {
  return moving("ncclGatherConfig", Collective::kGather, sendbuf, recvbuf, count, type, root, comm,
                stream, config);
}

RW_NCCL_API(ncclResult_t, ncclScatterConfig, const void* sendbuf, void* recvbuf, std::size_t count,
            ncclDataType_t type, int root, ncclComm_t comm, ncclStream_t stream,
            const ncclCollConfig_t* config) {
  return moving("ncclScatterConfig", Collective::kScatter, sendbuf, recvbuf, count, type, root,
                comm, stream, config);
}
