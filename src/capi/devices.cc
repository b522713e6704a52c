// Communicators with GPUs.
#include <cstdint>
#include <string>

#include "capi/guard.h"
#include "capi/handles.h"
#include "comm/device_group.h"
#include "comm/group.h"
#include "comm/stream_mark.h"

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::capi;  // NOLINT

namespace {

void register_buffer(rwComm_t comm, void* buffer, std::size_t bytes, rwWindow_t* window,
                     bool symmetric) {
  comm::Communicator* communicator = checked(comm, "comm").comm.get();
  rwWindow_t* out = &checked(window, "window");
  const auto work = [=] {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a number as a handle
    *out =
        reinterpret_cast<rwWindow_t>(communicator->register_buffer(buffer, bytes, {}, symmetric));
  };
  comm::Group& group = comm::Group::of_thread();
  if (group.open()) {
    group.add_join(work, communicator);
  } else {
    work();
  }
}

}  // namespace

extern "C" {

RW_API rwResult_t rwCommAttachDevice(rwComm_t comm, int device) {
  return guarded("rwCommAttachDevice", [&] {
    comm::Communicator* communicator = checked(comm, "comm").comm.get();
    if (const std::string reason = comm::why_no_device(); !reason.empty()) {
      throw Error(Errc::kInvalidUsage, reason);
    }
    const int chosen = device < 0 ? comm::current_device() : device;
    comm::Group& group = comm::Group::of_thread();
    if (group.open()) {
      group.add_join([=] { communicator->attach_device(chosen); }, communicator);
    } else {
      communicator->attach_device(chosen);
    }
  });
}

RW_API rwResult_t rwCommWindowRegister(rwComm_t comm, void* buffer, size_t bytes,
                                       rwWindow_t* window) {
  return guarded("rwCommWindowRegister",
                 [&] { register_buffer(comm, buffer, bytes, window, false); });
}

RW_API rwResult_t rwCommWindowRegisterSymmetric(rwComm_t comm, void* buffer, size_t bytes,
                                                rwWindow_t* window) {
  return guarded("rwCommWindowRegisterSymmetric",
                 [&] { register_buffer(comm, buffer, bytes, window, true); });
}

RW_API rwResult_t rwCommWindowDeregister(rwComm_t comm, rwWindow_t window) {
  return guarded("rwCommWindowDeregister", [&] {
    checked(comm, "comm").comm->deregister_buffer(reinterpret_cast<std::uint64_t>(window));
  });
}

RW_API const char* rwWhyNoDevice(void) {
  thread_local std::string reason;
  try {
    reason = comm::why_no_device();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  return reason.c_str();  // NOLINT(clang-analyzer-cplusplus.InnerPointer): lives with the thread
}

RW_API rwResult_t rwDeviceCount(int* count) {
  return guarded("rwDeviceCount", [&] { checked(count, "count") = comm::device_count(); });
}

RW_API rwResult_t rwDeviceDescribe(int device, char** json) {
  return guarded("rwDeviceDescribe", [&] {
    char*& out = checked(json, "json");
    if (const std::string reason = comm::why_no_device(); !reason.empty()) {
      throw Error(Errc::kInvalidUsage, reason);
    }
    out = duplicate(comm::describe_device(device));
  });
}

RW_API rwResult_t rwCommDevice(rwComm_t comm, int* device) {
  return guarded("rwCommDevice", [&] {
    const comm::DeviceGroup* group = checked(comm, "comm").comm->device();
    checked(device, "device") = group == nullptr ? -1 : group->device();
  });
}

RW_API rwResult_t rwStreamMark(int device, rwStream_t stream, rwRequest_t* request) {
  return guarded("rwStreamMark", [&] {
    checked(request, "request");
    auto handle = std::make_unique<rwRequest>();
    handle->on_stream = comm::mark_stream(device, stream);
    *request = handle.release();
  });
}

RW_API rwResult_t rwCommDeviceMemory(rwComm_t comm, size_t* bytes) {
  return guarded("rwCommDeviceMemory", [&] {
    comm::DeviceGroup* device = checked(comm, "comm").comm->device();
    checked(bytes, "bytes") = device == nullptr ? 0 : device->memory_bytes();
  });
}

}  // extern "C"
