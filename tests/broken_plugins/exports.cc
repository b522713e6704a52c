// The tables of the plugin. RW_ONLY_VERSION leaves all but one away.
#include <algorithm>
#include <array>
#include <cstddef>

#include "faults.h"
#include "netplugin/abi/properties.h"
#include "netplugin/abi/tables.h"
#include "plugin.h"

namespace broken {
namespace {

constexpr std::size_t kMostParts = 64;

template <int kVersion>
constexpr std::size_t kHandle = kVersion == 4 ? abi::kShortHandleBytes : abi::kHandleBytes;

template <typename Properties>
abi::Result get_properties(int device, Properties* out) {
  Device found{};
  if (const abi::Result result = describe(device, &found); result != abi::kSuccess) return result;
  if (found.write_name) out->name = found.name;
  out->pci_path = found.pci_path;
  out->guid = static_cast<std::uint64_t>(device) + 1;
  out->ptr_support = found.ptr_support;
  if (found.write_speed) out->speed = found.speed;
  out->port = 1;
  out->max_comms = 65'536;
  if constexpr (requires { out->max_recvs; }) {
    out->latency = 1;
    out->max_recvs = found.max_recvs;
  }
  if constexpr (requires { out->net_device_type; }) {
    out->net_device_type = 0;
    out->net_device_version = 0;
  }
  if constexpr (requires { out->reg_is_global; }) out->reg_is_global = found.reg_is_global;
  if constexpr (requires { out->members; }) {
    out->force_flush = 0;
    out->members.count = found.members;
    std::copy_n(found.member, found.members, out->members.devices);
    out->max_p2p_bytes = found.max_bytes;
    out->max_coll_bytes = found.max_bytes;
  }
  if constexpr (requires { out->max_multi_request_size; }) {
    if (!fault("no-multi-request")) out->max_multi_request_size = 1;
  }
  if constexpr (requires { out->rail_id; }) {
    out->rail_id = -1;
    out->plane_id = -1;
  }
  return abi::kSuccess;
}

abi::Result receive(void* comm, int n, void** data, const auto* sizes, const int* tags,
                    void** mhandles, void** request) {
  std::array<std::size_t, kMostParts> bytes{};
  std::copy_n(sizes, n, bytes.begin());
  return irecv(comm, n, data, bytes.data(), tags, mhandles, request);
}

// One overload for each form that a member has had; assignment picks by type.
template <int kVersion>
struct Member {
  static abi::Result start(abi::Logger logger) { return init(nullptr, logger); }
  static abi::Result start(abi::Logger logger, abi::ProfilerCallback) {
    return init(nullptr, logger);
  }
  static abi::Result start(void** context, std::uint64_t, abi::CommConfig*, abi::Logger logger,
                           abi::ProfilerCallback) {
    return init(context, logger);
  }
  static abi::Result listen_on(int device, void* handle, void** comm) {
    return listen(nullptr, device, handle, kHandle<kVersion>, comm);
  }
  static abi::Result listen_on(void* context, int device, void* handle, void** comm) {
    return listen(context, device, handle, kHandle<kVersion>, comm);
  }
  static abi::Result connect_to(int, void* handle, void** comm) {
    return connect(nullptr, handle, comm, kVersion == 4);
  }
  static abi::Result connect_to(int, void* handle, void** comm, abi::DeviceHandle** device_handle) {
    fill_device_handle(device_handle);
    return connect(nullptr, handle, comm, false);
  }
  static abi::Result connect_to(int, abi::CommConfig* config, void* handle, void** comm,
                                abi::DeviceHandle** device_handle) {
    if (fault("null-config")) config->traffic_class = 0;
    fill_device_handle(device_handle);
    return connect(nullptr, handle, comm, false);
  }
  static abi::Result connect_to(void* context, int, void* handle, void** comm,
                                abi::DeviceHandle** device_handle) {
    fill_device_handle(device_handle);
    return connect(context, handle, comm, false);
  }
  static abi::Result accept_from(void* listen_comm, void** comm) {
    return accept(listen_comm, comm, kVersion == 4);
  }
  static abi::Result accept_from(void* listen_comm, void** comm,
                                 abi::DeviceHandle** device_handle) {
    fill_device_handle(device_handle);
    return accept(listen_comm, comm, false);
  }
  static abi::Result register_memory(void* comm, void* data, int size, int type, void** mhandle) {
    return reg_mr(comm, data, static_cast<std::size_t>(size), type, mhandle);
  }
  static abi::Result register_memory(void* comm, void* data, std::size_t size, int type,
                                     void** mhandle) {
    return reg_mr(comm, data, size, type, mhandle);
  }
  static abi::Result send(void* comm, void* data, int size, void* mhandle, void** request) {
    return isend(comm, data, static_cast<std::size_t>(size), 0, mhandle, request);
  }
  static abi::Result send(void* comm, void* data, int size, int tag, void* mhandle,
                          void** request) {
    return isend(comm, data, static_cast<std::size_t>(size), tag, mhandle, request);
  }
  static abi::Result send(void* comm, void* data, std::size_t size, int tag, void* mhandle,
                          void** request) {
    return isend(comm, data, size, tag, mhandle, request);
  }
  static abi::Result send(void* comm, void* data, std::size_t size, int tag, void* mhandle,
                          void* /*profiler*/, void** request) {
    return isend(comm, data, size, tag, mhandle, request);
  }
  static abi::Result take(void* comm, void* data, int size, void* mhandle, void** request) {
    const int tag = 0;
    return receive(comm, 1, &data, &size, &tag, &mhandle, request);
  }
  static abi::Result take(void* comm, int n, void** data, int* sizes, int* tags, void** mhandles,
                          void** request) {
    return receive(comm, n, data, sizes, tags, mhandles, request);
  }
  static abi::Result take(void* comm, int n, void** data, std::size_t* sizes, int* tags,
                          void** mhandles, void** request) {
    return receive(comm, n, data, sizes, tags, mhandles, request);
  }
  static abi::Result take(void* comm, int n, void** data, std::size_t* sizes, int* tags,
                          void** mhandles, void** /*profiler*/, void** request) {
    return receive(comm, n, data, sizes, tags, mhandles, request);
  }
  static abi::Result flush(void* comm, void* data, int, void*, void** request) {
    return iflush(comm, 1, &data, request);
  }
  static abi::Result flush(void* comm, int n, void** data, int*, void**, void** request) {
    return iflush(comm, n, data, request);
  }
  template <typename Members>
  static abi::Result merge(int* device, Members* members) {
    return make_virtual_device(device, members->devices, members->count);
  }
};

template <int kVersion, typename Net>
Net table() {
  using M = Member<kVersion>;
  Net net{};
  net.name = fault("name") ? nullptr : "broken";
  net.init = &M::start;
  net.devices = &devices;
  net.get_properties = &get_properties;
  net.listen = &M::listen_on;
  net.connect = &M::connect_to;
  net.accept = &M::accept_from;
  net.reg_mr = &M::register_memory;
  net.dereg_mr = &dereg_mr;
  net.isend = &M::send;
  net.irecv = &M::take;
  net.iflush = fault("members") ? nullptr : static_cast<decltype(net.iflush)>(&M::flush);
  net.test = &test;
  net.close_send = &close_send;
  net.close_recv = &close_recv;
  net.close_listen = &close_listen;
  if constexpr (requires { net.irecv_consumed; }) {
    if (fault("irecv-consumed")) net.irecv_consumed = &irecv_consumed;
  }
  if constexpr (requires { net.make_virtual_device; }) {
    net.make_virtual_device = &M::merge;
  }
  if constexpr (requires { net.finalize; }) {
    net.finalize = &finalize;
    net.set_net_attributes = [](void* context, abi::NetAttributes*) {
      return set_net_attributes(context);
    };
  }
  return net;
}

}  // namespace
}  // namespace broken

#define RW_EXPORT(version)                                                                \
  extern "C" {                                                                            \
  __attribute__((                                                                         \
      visibility("default"))) extern broken::abi::NetV##version ncclNetPlugin_v##version; \
  broken::abi::NetV##version ncclNetPlugin_v##version =                                   \
      broken::table<version, broken::abi::NetV##version>();                               \
  }

#ifdef RW_ONLY_VERSION
#define RW_EXPORT_ONE(version) RW_EXPORT(version)
RW_EXPORT_ONE(RW_ONLY_VERSION)
#else
RW_EXPORT(4)
RW_EXPORT(5)
RW_EXPORT(6)
RW_EXPORT(7)
RW_EXPORT(8)
RW_EXPORT(9)
RW_EXPORT(10)
RW_EXPORT(11)
RW_EXPORT(12)
#endif
