// Communicators with GPUs.
#include <string>

#include "capi/guard.h"
#include "capi/handles.h"
#include "comm/device_group.h"
#include "comm/group.h"

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::capi;  // NOLINT

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
      group.add_join([=] { communicator->attach_device(chosen); });
    } else {
      communicator->attach_device(chosen);
    }
  });
}

RW_API const char* rwWhyNoDevice(void) {
  thread_local std::string reason;
  try {
    reason = comm::why_no_device();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  return reason.c_str();
}

RW_API rwResult_t rwCommDeviceMemory(rwComm_t comm, size_t* bytes) {
  return guarded("rwCommDeviceMemory", [&] {
    comm::DeviceGroup* device = checked(comm, "comm").comm->device();
    checked(bytes, "bytes") = device == nullptr ? 0 : device->memory_bytes();
  });
}

}  // extern "C"
