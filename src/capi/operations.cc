// Collectives, sends and receives, operators.
#include <cstring>
#include <limits>

#include "capi/guard.h"
#include "capi/handles.h"
#include "comm/group.h"

namespace ropewalk::capi {
namespace {

using comm::CollectiveCall;
using comm::Group;
using comm::PointToPointCall;

static_assert(comm::MadeOperators::kFirst == rwNumOps);

static_assert(rwBool == kFirstCarriedType && rwByte == kEndOfCarriedTypes - 1);

DataType type_of(rwDataType_t type) {
  const auto number = static_cast<long>(type);
  if (number >= kFirstCarriedType && number < kEndOfCarriedTypes) {
    throw Error(Errc::kInvalidArgument, "type: {} has no pre-multiplied sum",
                name(static_cast<CarriedType>(number)));
  }
  if (number < 0 || number >= kNumDataTypes) {
    throw Error(Errc::kInvalidArgument, "type: {} is not a data type", number);
  }
  return static_cast<DataType>(number);
}

// What the call moves: `count` elements of `type`, or of what carries them.
template <typename Call>
void set_elements(Call& call, size_t count, rwDataType_t type) {
  call.count = count;
  if (type < kFirstCarriedType || type >= kEndOfCarriedTypes) {
    call.type = type_of(type);
    return;
  }
  call.carried = static_cast<CarriedType>(type);
  const Carrier carrier = carrier_of(call.carried);
  if (count > std::numeric_limits<size_t>::max() / carrier.per_element) {
    throw Error(Errc::kInvalidArgument, "count: {} {} exceed the address space", count,
                name(call.carried));
  }
  call.type = carrier.type;
  call.count = count * carrier.per_element;
}

void run(rwComm& comm, const CollectiveCall& call) { comm.comm->run(call); }
void run(rwComm& comm, const PointToPointCall& call) {
  comm.comm->run(std::vector<PointToPointCall>{call});
}

// Starts, or joins the open group.
template <typename Call>
[[gnu::noinline]] void start(rwComm& comm, const Call& call, rwStream_t stream,
                             rwRequest_t* request) {
  Group& group = Group::of_thread();
  if (stream != nullptr) {
    if (request != nullptr) {
      throw Error(Errc::kInvalidUsage,
                  "request: an operation on a stream is waited for by its stream; pass NULL");
    }
    if (group.open()) {
      group.add_on_stream(*comm.comm, call, stream);
    } else if constexpr (std::is_same_v<Call, PointToPointCall>) {
      comm.comm->enqueue(std::vector<PointToPointCall>{call}, stream);
    } else {
      comm.comm->enqueue(call, stream);
    }
    return;
  }
  if (request == nullptr) {
    group.add(*comm.comm, call, nullptr);
    return;
  }
  auto handle = std::make_unique<rwRequest>();
  handle->request = std::make_shared<comm::Request>();
  if (group.open()) {
    group.add(*comm.comm, call, handle->request);
  } else if constexpr (std::is_same_v<Call, PointToPointCall>) {
    comm.comm->start(std::vector<PointToPointCall>{call}, handle->request);
  } else {
    comm.comm->start(call, handle->request);
  }
  *request = handle.release();
}

// Runs now, starts, or joins the open group, as `request` and the group say.
template <typename Call>
void perform(rwComm& comm, const Call& call, rwStream_t stream, rwRequest_t* request) {
  if (stream == nullptr && request == nullptr && !Group::open_in_thread()) [[likely]] {
    run(comm, call);
  } else {
    start(comm, call, stream, request);
  }
}

CollectiveCall make(Collective collective, const void* input, void* output, size_t count,
                    rwDataType_t type, int root = 0) {
  CollectiveCall call;
  call.collective = collective;
  call.input = input;
  call.output = output;
  set_elements(call, count, type);
  call.root = root;
  return call;
}

}  // namespace
}  // namespace ropewalk::capi

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::capi;  // NOLINT

extern "C" {

RW_API rwResult_t rwRedOpCreatePreMulSum(rwRedOp_t* op, const void* scalar, rwDataType_t type,
                                         rwComm_t comm) {
  return guarded("rwRedOpCreatePreMulSum", [&] {
    checked(op, "op");
    if (scalar == nullptr) throw Error(Errc::kInvalidArgument, "scalar: NULL");
    rwComm& handle = checked(comm, "comm");
    comm::PreMulSum made{type_of(type)};
    std::memcpy(&made.scalar, scalar, size_of(made.type));
    *op = static_cast<rwRedOp_t>(handle.operators.add(made));
  });
}

RW_API rwResult_t rwRedOpDestroy(rwRedOp_t op, rwComm_t comm) {
  return guarded("rwRedOpDestroy",
                 [&] { checked(comm, "comm").operators.remove(static_cast<int>(op)); });
}

RW_API rwResult_t rwAllReduce(const void* sendbuf, void* recvbuf, size_t count, rwDataType_t type,
                              rwRedOp_t op, rwComm_t comm, rwStream_t stream,
                              rwRequest_t* request) {
  return guarded("rwAllReduce", [&] {
    rwComm& handle = checked_for_use(comm, "comm");
    CollectiveCall call = make(Collective::kAllReduce, sendbuf, recvbuf, count, type);
    handle.operators.set(call, static_cast<int>(op));
    perform(handle, call, stream, request);
  });
}

RW_API rwResult_t rwBroadcast(const void* sendbuf, void* recvbuf, size_t count, rwDataType_t type,
                              int root, rwComm_t comm, rwStream_t stream, rwRequest_t* request) {
  return guarded("rwBroadcast", [&] {
    perform(checked_for_use(comm, "comm"),
            make(Collective::kBroadcast, sendbuf, recvbuf, count, type, root), stream, request);
  });
}

RW_API rwResult_t rwReduce(const void* sendbuf, void* recvbuf, size_t count, rwDataType_t type,
                           rwRedOp_t op, int root, rwComm_t comm, rwStream_t stream,
                           rwRequest_t* request) {
  return guarded("rwReduce", [&] {
    rwComm& handle = checked_for_use(comm, "comm");
    CollectiveCall call = make(Collective::kReduce, sendbuf, recvbuf, count, type, root);
    handle.operators.set(call, static_cast<int>(op));
    perform(handle, call, stream, request);
  });
}

RW_API rwResult_t rwAllGather(const void* sendbuf, void* recvbuf, size_t sendcount,
                              rwDataType_t type, rwComm_t comm, rwStream_t stream,
                              rwRequest_t* request) {
  return guarded("rwAllGather", [&] {
    perform(checked_for_use(comm, "comm"),
            make(Collective::kAllGather, sendbuf, recvbuf, sendcount, type), stream, request);
  });
}

RW_API rwResult_t rwReduceScatter(const void* sendbuf, void* recvbuf, size_t recvcount,
                                  rwDataType_t type, rwRedOp_t op, rwComm_t comm, rwStream_t stream,
                                  rwRequest_t* request) {
  return guarded("rwReduceScatter", [&] {
    rwComm& handle = checked_for_use(comm, "comm");
    CollectiveCall call = make(Collective::kReduceScatter, sendbuf, recvbuf, recvcount, type);
    handle.operators.set(call, static_cast<int>(op));
    perform(handle, call, stream, request);
  });
}

RW_API rwResult_t rwAllToAll(const void* sendbuf, void* recvbuf, size_t count, rwDataType_t type,
                             rwComm_t comm, rwStream_t stream, rwRequest_t* request) {
  return guarded("rwAllToAll", [&] {
    perform(checked_for_use(comm, "comm"),
            make(Collective::kAllToAll, sendbuf, recvbuf, count, type), stream, request);
  });
}

RW_API rwResult_t rwGather(const void* sendbuf, void* recvbuf, size_t sendcount, rwDataType_t type,
                           int root, rwComm_t comm, rwStream_t stream, rwRequest_t* request) {
  return guarded("rwGather", [&] {
    perform(checked_for_use(comm, "comm"),
            make(Collective::kGather, sendbuf, recvbuf, sendcount, type, root), stream, request);
  });
}

RW_API rwResult_t rwScatter(const void* sendbuf, void* recvbuf, size_t recvcount, rwDataType_t type,
                            int root, rwComm_t comm, rwStream_t stream, rwRequest_t* request) {
  return guarded("rwScatter", [&] {
    perform(checked_for_use(comm, "comm"),
            make(Collective::kScatter, sendbuf, recvbuf, recvcount, type, root), stream, request);
  });
}

RW_API rwResult_t rwSendRecv(const void* sendbuf, void* recvbuf, size_t count, rwDataType_t type,
                             rwComm_t comm, rwStream_t stream, rwRequest_t* request) {
  return guarded("rwSendRecv", [&] {
    perform(checked_for_use(comm, "comm"),
            make(Collective::kSendRecv, sendbuf, recvbuf, count, type), stream, request);
  });
}

RW_API rwResult_t rwBarrier(rwComm_t comm) {
  return guarded("rwBarrier", [&] { checked_for_use(comm, "comm").comm->barrier(); });
}

RW_API rwResult_t rwSend(const void* sendbuf, size_t count, rwDataType_t type, int peer,
                         rwComm_t comm, rwStream_t stream, rwRequest_t* request) {
  return guarded("rwSend", [&] {
    PointToPointCall call;
    call.sends = true;
    call.input = sendbuf;
    set_elements(call, count, type);
    call.peer = peer;
    perform(checked_for_use(comm, "comm"), call, stream, request);
  });
}

RW_API rwResult_t rwRecv(void* recvbuf, size_t count, rwDataType_t type, int peer, rwComm_t comm,
                         rwStream_t stream, rwRequest_t* request) {
  return guarded("rwRecv", [&] {
    PointToPointCall call;
    call.output = recvbuf;
    set_elements(call, count, type);
    call.peer = peer;
    perform(checked_for_use(comm, "comm"), call, stream, request);
  });
}

}  // extern "C"
