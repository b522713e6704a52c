// Windows and the operations on them.
#include <ropewalk/messages.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "capi/guard.h"
#include "capi/handles.h"
#include "comm/communicator.h"
#include "comm/group.h"
#include "comm/request.h"
#include "message/batch.h"
#include "message/operation.h"
#include "message/window.h"

struct rwMessageWindow {
  ropewalk::comm::Communicator* comm = nullptr;
  ropewalk::message::Window* window = nullptr;
};

struct rwBatch {
  ropewalk::comm::Communicator* comm = nullptr;
  ropewalk::message::Batch batch;
};

namespace ropewalk::capi {
namespace {

using message::OperationKind;
using message::OperationSpec;

void require_no_request(rwRequest_t* request) {
  if (request == nullptr) return;
  throw Error(Errc::kInvalidUsage,
              "request: an operation on a stream is waited for by its stream; pass NULL");
}

rwMessageWindow& checked_window(rwMessageWindow_t window) {
  rwMessageWindow& given = checked(window, "window");
  given.comm->belonging().require_here("the communicator");
  if (in_interrupt_check()) {
    throw Error(Errc::kInvalidUsage,
                "window: not from within an interrupt check, or a signal's handler that it runs");
  }
  return given;
}

// With a part of `rank`.
const message::Window& open_window(rwMessageWindow_t window, int rank) {
  const message::Window& its = *checked_window(window).window;
  if (its.closed()) throw Error(Errc::kInvalidUsage, "window {} was freed", its.number());
  if (rank < 0 || rank >= its.size()) {
    throw Error(Errc::kInvalidArgument, "rank: {} is no rank of {}", rank, its.size());
  }
  return its;
}

void create(rwComm_t comm, const message::WindowSpec& spec, rwMessageWindow_t* window,
            int device = comm::Communicator::kHostMemory) {
  rwComm& handle = checked(comm, "comm");
  comm::Communicator* communicator = handle.comm.get();
  rwMessageWindow_t* out = &checked(window, "window");
  const auto work = [=, &handle] {
    auto made = std::make_shared<rwMessageWindow>();
    made->comm = communicator;
    made->window = &communicator->create_window(spec, device);
    handle.windows.push_back(made);
    *out = made.get();
  };
  comm::Group& group = comm::Group::of_thread();
  if (group.open()) {
    group.add_join(work, communicator);
  } else {
    work();
  }
}

void run(rwMessageWindow& window, const OperationSpec& spec, rwStream_t stream,
         rwRequest_t* request) {
  if (stream != nullptr) {
    require_no_request(request);
    window.comm->enqueue({&spec, 1}, stream);
    return;
  }
  if (request == nullptr) {
    window.comm->run(spec);
    return;
  }
  auto handle = std::make_unique<rwRequest>();
  handle->request = std::make_shared<comm::Request>();
  window.comm->start(spec, handle->request);
  *request = handle.release();
}

OperationSpec put_of(const void* source, std::size_t bytes, int peer, std::size_t offset,
                     const rwMessageWindow& window) {
  OperationSpec spec;
  spec.kind = OperationKind::kPut;
  spec.window = window.window;
  spec.peer = peer;
  spec.offset = offset;
  spec.bytes = bytes;
  spec.source = static_cast<const std::byte*>(source);
  return spec;
}

OperationSpec get_of(void* destination, std::size_t bytes, int peer, std::size_t offset,
                     const rwMessageWindow& window) {
  OperationSpec spec;
  spec.kind = OperationKind::kGet;
  spec.window = window.window;
  spec.peer = peer;
  spec.offset = offset;
  spec.bytes = bytes;
  spec.destination = static_cast<std::byte*>(destination);
  return spec;
}

OperationSpec signal_of(OperationKind kind, int peer, int slot, std::uint64_t count,
                        const rwMessageWindow& window) {
  OperationSpec spec;
  spec.kind = kind;
  spec.window = window.window;
  spec.peer = peer;
  spec.slot = slot;
  spec.count = count;
  return spec;
}

OperationSpec flush_of(int peer, const rwMessageWindow& window) {
  OperationSpec spec;
  spec.kind = OperationKind::kFlush;
  spec.window = window.window;
  spec.peer = peer;
  return spec;
}

void add(rwBatch_t batch, const rwMessageWindow& window, const OperationSpec& spec) {
  rwBatch& given = checked(batch, "batch");
  if (given.comm != window.comm) {
    throw Error(Errc::kInvalidArgument, "window: of another communicator than the batch's");
  }
  given.comm->add(given.batch, spec);
}

void queue_message(rwMessageWindow_t window, message::Messenger::Message message,
                   rwStream_t stream) {
  rwMessageWindow& given = checked_window(window);
  if (stream == nullptr) {
    throw Error(Errc::kInvalidUsage, "stream: NULL, and a queue's messages are sent by kernels");
  }
  message.window = given.window;
  given.comm->enqueue(message, stream);
}

}  // namespace
}  // namespace ropewalk::capi

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::capi;  // NOLINT

extern "C" {

RW_API rwResult_t rwWindowCreate(rwComm_t comm, size_t bytes, int slots,
                                 rwMessageWindow_t* window) {
  return guarded("rwWindowCreate", [&] {
    message::WindowSpec spec;
    spec.bytes = bytes;
    spec.slots = slots;
    create(comm, spec, window);
  });
}

RW_API rwResult_t rwWindowCreateOn(rwComm_t comm, int device, size_t bytes, int slots,
                                   rwMessageWindow_t* window) {
  return guarded("rwWindowCreateOn", [&] {
    message::WindowSpec spec;
    spec.bytes = bytes;
    spec.slots = slots;
    create(comm, spec, window, device);
  });
}

RW_API rwResult_t rwWindowCreateQueues(rwComm_t comm, int device, size_t bytes, int slots,
                                       rwMessageWindow_t* window) {
  return guarded("rwWindowCreateQueues", [&] {
    message::WindowSpec spec;
    spec.queue_bytes = bytes;
    spec.slots = slots;
    create(comm, spec, window, device);
  });
}

RW_API rwResult_t rwWindowRegister(rwComm_t comm, void* memory, size_t bytes, int slots,
                                   rwMessageWindow_t* window) {
  return guarded("rwWindowRegister", [&] {
    message::WindowSpec spec;
    spec.registers = true;
    spec.memory = memory;
    spec.bytes = bytes;
    spec.slots = slots;
    create(comm, spec, window);
  });
}

RW_API rwResult_t rwWindowFree(rwMessageWindow_t window) {
  return guarded("rwWindowFree", [&] {
    if (window == nullptr) return;
    rwMessageWindow& given = checked_window(window);
    comm::Communicator* communicator = given.comm;
    message::Window* its = given.window;
    comm::Group& group = comm::Group::of_thread();
    if (group.open()) {
      group.add_join([=] { communicator->free_window(*its); }, communicator);
    } else {
      communicator->free_window(*its);
    }
  });
}

RW_API rwResult_t rwWindowMemory(rwMessageWindow_t window, int rank, void** memory, size_t* bytes) {
  return guarded("rwWindowMemory", [&] {
    const message::Window& its = open_window(window, rank);
    const message::Part& part = its.part(rank);
    if (memory != nullptr) *memory = part.mapped ? part.data : nullptr;
    if (bytes != nullptr) *bytes = part.bytes;
  });
}

RW_API rwResult_t rwWindowDescriptor(rwMessageWindow_t window, int rank, int* fd, size_t* offset) {
  return guarded("rwWindowDescriptor", [&] {
    const message::Window& its = open_window(window, rank);
    int& out = checked(fd, "fd");
    std::size_t& begin = checked(offset, "offset");
    const auto location = its.location(rank).value_or(message::WindowMemory::Location{});
    out = location.fd;
    begin = location.offset;
  });
}

RW_API rwResult_t rwWindowDevice(rwMessageWindow_t window, rwDeviceWindow* device) {
  return guarded("rwWindowDevice", [&] {
    rwMessageWindow& given = checked_window(window);
    rwDeviceWindow& out = checked(device, "device");
    out = given.comm->device_window(*given.window);
  });
}

RW_API rwResult_t rwQueueSend(const void* source, size_t bytes, int peer, int slot,
                              rwMessageWindow_t window, rwStream_t stream) {
  return guarded("rwQueueSend", [&] {
    // A kernel reads it alone.
    queue_message(window, {nullptr, true, peer, slot, const_cast<void*>(source), bytes}, stream);
  });
}

RW_API rwResult_t rwQueueReceive(void* destination, size_t bytes, int peer, int slot,
                                 rwMessageWindow_t window, rwStream_t stream) {
  return guarded("rwQueueReceive", [&] {
    queue_message(window, {nullptr, false, peer, slot, destination, bytes}, stream);
  });
}

RW_API rwResult_t rwPut(const void* source, size_t bytes, int peer, size_t offset,
                        rwMessageWindow_t window, rwStream_t stream, rwRequest_t* request) {
  return guarded("rwPut", [&] {
    rwMessageWindow& given = checked_window(window);
    run(given, put_of(source, bytes, peer, offset, given), stream, request);
  });
}

RW_API rwResult_t rwGet(void* destination, size_t bytes, int peer, size_t offset,
                        rwMessageWindow_t window, rwStream_t stream, rwRequest_t* request) {
  return guarded("rwGet", [&] {
    rwMessageWindow& given = checked_window(window);
    run(given, get_of(destination, bytes, peer, offset, given), stream, request);
  });
}

RW_API rwResult_t rwSignal(int peer, int slot, uint64_t count, rwMessageWindow_t window,
                           rwStream_t stream, rwRequest_t* request) {
  return guarded("rwSignal", [&] {
    rwMessageWindow& given = checked_window(window);
    run(given, signal_of(OperationKind::kSignal, peer, slot, count, given), stream, request);
  });
}

RW_API rwResult_t rwPutSignal(const void* source, size_t bytes, int peer, size_t offset, int slot,
                              rwMessageWindow_t window, rwStream_t stream, rwRequest_t* request) {
  return guarded("rwPutSignal", [&] {
    rwMessageWindow& given = checked_window(window);
    const OperationSpec put = put_of(source, bytes, peer, offset, given);
    const OperationSpec signal = signal_of(OperationKind::kSignal, peer, slot, 1, given);
    if (stream != nullptr) {
      require_no_request(request);
      given.comm->enqueue(std::array{put, signal}, stream);
      return;
    }
    if (request == nullptr) {
      given.comm->run_both(put, signal);
      return;
    }
    auto handle = std::make_unique<rwRequest>();
    handle->request = std::make_shared<comm::Request>();
    given.comm->start_both(put, signal, handle->request);
    *request = handle.release();
  });
}

RW_API rwResult_t rwWaitSignal(int peer, int slot, uint64_t count, rwMessageWindow_t window,
                               rwStream_t stream, rwRequest_t* request) {
  return guarded("rwWaitSignal", [&] {
    rwMessageWindow& given = checked_window(window);
    run(given, signal_of(OperationKind::kWaitSignal, peer, slot, count, given), stream, request);
  });
}

RW_API rwResult_t rwSignalCount(int peer, int slot, rwMessageWindow_t window, uint64_t* count) {
  return guarded("rwSignalCount", [&] {
    rwMessageWindow& given = checked_window(window);
    checked(count, "count") = given.comm->arrived(*given.window, peer, slot);
  });
}

RW_API rwResult_t rwFlush(int peer, rwMessageWindow_t window, rwStream_t stream,
                          rwRequest_t* request) {
  return guarded("rwFlush", [&] {
    rwMessageWindow& given = checked_window(window);
    if (peer != RW_ALL_PEERS) {
      run(given, flush_of(peer, given), stream, request);
      return;
    }
    if (request != nullptr) {
      throw Error(Errc::kInvalidUsage, "request: a flush to all peers takes none");
    }
    if (stream != nullptr) {
      std::vector<OperationSpec> all;
      for (int rank = 0; rank < given.window->size(); ++rank) {
        all.push_back(flush_of(rank, given));
      }
      given.comm->enqueue(all, stream);
      return;
    }
    given.comm->flush(*given.window);
  });
}

RW_API rwResult_t rwBatchCreate(rwComm_t comm, rwBatch_t* batch) {
  return guarded("rwBatchCreate", [&] {
    rwComm& handle = checked(comm, "comm");
    rwBatch_t& out = checked(batch, "batch");
    auto made = std::make_unique<rwBatch>();
    made->comm = handle.comm.get();
    out = made.release();
  });
}

RW_API rwResult_t rwBatchFree(rwBatch_t batch) {
  return guarded("rwBatchFree", [&] {
    if (batch == nullptr) return;
    if (batch->batch.running()) {
      throw Error(Errc::kInvalidUsage,
                  "the batch was launched, and has not ended: wait for it before it is freed");
    }
    delete batch;
  });
}

RW_API rwResult_t rwBatchPut(rwBatch_t batch, const void* source, size_t bytes, int peer,
                             size_t offset, rwMessageWindow_t window) {
  return guarded("rwBatchPut", [&] {
    const rwMessageWindow& given = checked_window(window);
    add(batch, given, put_of(source, bytes, peer, offset, given));
  });
}

RW_API rwResult_t rwBatchGet(rwBatch_t batch, void* destination, size_t bytes, int peer,
                             size_t offset, rwMessageWindow_t window) {
  return guarded("rwBatchGet", [&] {
    const rwMessageWindow& given = checked_window(window);
    add(batch, given, get_of(destination, bytes, peer, offset, given));
  });
}

RW_API rwResult_t rwBatchSignal(rwBatch_t batch, int peer, int slot, uint64_t count,
                                rwMessageWindow_t window) {
  return guarded("rwBatchSignal", [&] {
    const rwMessageWindow& given = checked_window(window);
    add(batch, given, signal_of(OperationKind::kSignal, peer, slot, count, given));
  });
}

RW_API rwResult_t rwBatchWaitSignal(rwBatch_t batch, int peer, int slot, uint64_t count,
                                    rwMessageWindow_t window) {
  return guarded("rwBatchWaitSignal", [&] {
    const rwMessageWindow& given = checked_window(window);
    add(batch, given, signal_of(OperationKind::kWaitSignal, peer, slot, count, given));
  });
}

RW_API rwResult_t rwBatchFlush(rwBatch_t batch, int peer, rwMessageWindow_t window) {
  return guarded("rwBatchFlush", [&] {
    const rwMessageWindow& given = checked_window(window);
    add(batch, given, flush_of(peer, given));
  });
}

RW_API rwResult_t rwBatchArm(rwBatch_t batch, rwStream_t stream, rwDeviceTrigger* trigger) {
  return guarded("rwBatchArm", [&] {
    rwBatch& given = checked(batch, "batch");
    rwDeviceTrigger& out = checked(trigger, "trigger");
    if (stream == nullptr) throw Error(Errc::kInvalidArgument, "stream: NULL");
    const message::StreamCalls::Trigger made = given.comm->arm(given.batch, stream);
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    out = {reinterpret_cast<uint64_t*>(made.word), made.value};
  });
}

RW_API rwResult_t rwBatchDevice(rwBatch_t batch, rwDeviceBatch* device) {
  return guarded("rwBatchDevice", [&] {
    rwBatch& given = checked(batch, "batch");
    rwDeviceBatch& out = checked(device, "device");
    out = given.comm->device_batch(given.batch);
  });
}

RW_API rwResult_t rwBatchLaunch(rwBatch_t batch, rwStream_t stream, rwRequest_t* request) {
  return guarded("rwBatchLaunch", [&] {
    rwBatch& given = checked(batch, "batch");
    if (stream != nullptr) {
      require_no_request(request);
      given.comm->enqueue(given.batch, stream);
      return;
    }
    if (request == nullptr) {
      given.comm->run(given.batch);
      return;
    }
    auto handle = std::make_unique<rwRequest>();
    handle->request = std::make_shared<comm::Request>();
    given.comm->start(given.batch, handle->request);
    *request = handle.release();
  });
}

}  // extern "C"
