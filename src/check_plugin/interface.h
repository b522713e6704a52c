// One version of the interface, called in the form that all versions share.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "check_plugin/plugin.h"

namespace ropewalk::check_plugin {

/// See Plugin for the functions. No call is noted here.
class Interface {
 public:
  Interface() = default;
  virtual ~Interface() = default;
  Interface(const Interface&) = delete;
  Interface& operator=(const Interface&) = delete;

  [[nodiscard]] virtual const char* name() const = 0;
  [[nodiscard]] virtual std::vector<std::string_view> missing_members() const = 0;
  [[nodiscard]] virtual bool has(Call call) const = 0;
  [[nodiscard]] virtual bool has_dma_buf() const = 0;
  [[nodiscard]] virtual std::size_t largest_message() const = 0;
  virtual abi::Result init(void** context, std::uint64_t comm_id, abi::Logger logger) = 0;
  virtual abi::Result finalize(void* context) = 0;
  virtual abi::Result devices(int* count) = 0;
  virtual abi::Result properties(int device, Properties& properties) = 0;
  virtual abi::Result listen(void* context, int device, void* handle, void** comm) = 0;
  virtual abi::Result connect(void* context, int device, abi::CommConfig* config, void* handle,
                              void** comm, abi::DeviceHandle** device_handle) = 0;
  virtual abi::Result accept(void* listen_comm, void** comm, abi::DeviceHandle** device_handle) = 0;
  virtual abi::Result reg_mr(void* comm, void* data, std::size_t bytes, int type,
                             void** mhandle) = 0;
  virtual abi::Result dereg_mr(void* comm, void* mhandle) = 0;
  virtual abi::Result isend(void* comm, const Part& part, void** request) = 0;
  virtual abi::Result irecv(void* comm, const std::vector<Part>& parts, void** request) = 0;
  virtual abi::Result iflush(void* comm, const std::vector<Part>& parts, void** request) = 0;
  virtual abi::Result test(void* request, int* done, int* sizes) = 0;
  virtual abi::Result close_send(void* comm) = 0;
  virtual abi::Result close_recv(void* comm) = 0;
  virtual abi::Result close_listen(void* comm) = 0;
  virtual abi::Result irecv_consumed(void* comm, int n, void* request) = 0;
  virtual abi::Result make_virtual_device(int* device, const std::vector<int>& members) = 0;
  virtual abi::Result set_net_attributes(void* context, abi::NetAttributes* attributes) = 0;
};

/// `table` is the object ncclNetPlugin_v<version> in the loaded library.
std::unique_ptr<Interface> make_interface(int version, void* table);

}  // namespace ropewalk::check_plugin
