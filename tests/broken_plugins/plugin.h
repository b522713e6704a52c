// A network plugin over unix sockets, in one form for all versions; exports.cc has the tables.
//
// Small rather than quick. Everything that faults.h can break is in plugin.cc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "netplugin/abi/common.h"

namespace broken {

namespace abi = ropewalk::netplugin::abi;

struct Device {
  const char* name;
  bool write_name;
  const char* pci_path;
  int ptr_support;
  int reg_is_global;
  int speed;
  bool write_speed;
  std::size_t max_bytes;
  int max_recvs;
  int members;
  int member[2];
};

abi::Result init(void** context, abi::Logger logger);
abi::Result finalize(void* context);
abi::Result devices(int* count);
abi::Result describe(int device, Device* out);
/// `blocks`: version 4, whose connect and accept come to their end in one call.
abi::Result listen(void* context, int device, void* handle, std::size_t handle_bytes, void** comm);
abi::Result connect(void* context, void* handle, void** comm, bool blocks);
abi::Result accept(void* listen_comm, void** comm, bool blocks);
void fill_device_handle(abi::DeviceHandle** handle);
abi::Result reg_mr(void* comm, void* data, std::size_t bytes, int type, void** mhandle);
abi::Result dereg_mr(void* comm, void* mhandle);
abi::Result isend(void* comm, void* data, std::size_t bytes, int tag, void* mhandle,
                  void** request);
abi::Result irecv(void* comm, int n, void** data, const std::size_t* bytes, const int* tags,
                  void** mhandles, void** request);
abi::Result iflush(void* comm, int n, void** data, void** request);
abi::Result test(void* request, int* done, int* sizes);
abi::Result close_send(void* comm);
abi::Result close_recv(void* comm);
abi::Result close_listen(void* comm);
abi::Result irecv_consumed(void* comm, int n, void* request);
abi::Result make_virtual_device(int* device, const int* members, int count);
abi::Result set_net_attributes(void* context);

}  // namespace broken
