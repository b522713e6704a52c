// The nine tables that NCCL looks for, and the thin functions between them and Plugin.
//
// Functions that are equal in several versions are written once. Each sets its outputs before
// anything can fail, and never throws.
#include "netplugin/abi/tables.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>
#include <cstdint>

#include "netplugin/abi/common.h"
#include "netplugin/abi/properties.h"
#include "netplugin/plugin.h"
#include "netplugin/report.h"

namespace ropewalk::netplugin {
namespace {

using abi::Result;

Plugin& plugin() noexcept { return Plugin::process(); }

// An output, which NCCL always gives; a null pointer is a caller's mistake.
template <typename T>
T& out(T* target) {
  if (target == nullptr) throw Error(Errc::kInvalidArgument, "a null pointer for the result");
  return *target;
}

// Writes the result of `make`. The output pointer is checked first, so that the new object cannot
// be lost.
template <typename T, typename Make>
void give(T* target, Make make) {
  T& output = out(target);
  output = make();
}

template <typename T>
void clear(T* target) noexcept {
  if (target != nullptr) *target = T{};
}

std::size_t length(int bytes) {
  if (bytes < 0) throw Error(Errc::kInvalidArgument, "a size of {} bytes", bytes);
  return static_cast<std::size_t>(bytes);
}
std::size_t length(std::size_t bytes) { return bytes; }

int clamp_to_int(double value) {
  return static_cast<int>(std::clamp(value, 0.0, static_cast<double>(INT_MAX)));
}
int clamp_to_int(std::size_t value) {
  return static_cast<int>(std::min(value, static_cast<std::size_t>(INT_MAX)));
}

// ---- init, finalize ------------------------------------------------------------------------

template <int kVersion>
Result init(abi::Logger logger) noexcept {
  return guarded("init", [&] { plugin().start(logger, kVersion); });
}

Result init_with_profiler(abi::Logger logger, abi::ProfilerCallback /*profiler*/) noexcept {
  return guarded("init", [&] { plugin().start(logger, 10); });
}

Result init_context(void** context, std::uint64_t comm_id, abi::CommConfig* /*config*/,
                    abi::Logger logger, abi::ProfilerCallback /*profiler*/) noexcept {
  // 2.28.3 to 2.29.3 finalize even what init refused.
  clear(context);
  return guarded("init",
                 [&] { give(context, [&] { return plugin().open_context(logger, comm_id); }); });
}

Result finalize(void* context) noexcept {
  return guarded("finalize", [&] { plugin().close_context(context); });
}

Result set_net_attributes(void* /*context*/, abi::NetAttributes* /*attributes*/) noexcept {
  return abi::kSuccess;  // hints, of which nothing here depends
}

// ---- devices -------------------------------------------------------------------------------

Result devices(int* count) noexcept {
  clear(count);
  return guarded("devices", [&] { give(count, [&] { return plugin().num_devices(); }); });
}

// @tparam kDescriptors whether the version has regMrDmaBuf
template <typename Properties, bool kDescriptors = true>
Result get_properties(int number, Properties* target) noexcept {
  return guarded("getProperties", [&] {
    Properties& p = out(target);
    p = {};
    const Device& device = plugin().device(number);
    const transport::DeviceProperties& from = device.properties;
    p.name = device.name.c_str();
    // Not const in the interface's older versions; NCCL only reads it.
    p.pci_path = from.pci_path.empty() ? nullptr : from.pci_path.c_str();
    // Devices with equal guid and port count as one port: those without a guid must differ.
    p.guid = from.guid != 0 ? from.guid : static_cast<std::uint64_t>(number) + 1;
    p.ptr_support =
        static_cast<int>(from.memory_kinds & (abi::kHostPointer | abi::kCudaPointer |
                                              (kDescriptors ? abi::kDmaBufPointer : 0)));
    p.speed = clamp_to_int(from.speed_mbps);
    p.port = from.port;
    p.max_comms = from.max_connections;
    if constexpr (requires { p.latency; }) {
      p.latency = static_cast<float>(from.latency_us);
      p.max_recvs = from.max_grouped_receives;
    }
    if constexpr (requires { p.members; }) {
      p.members.count = 1;
      p.members.devices[0] = number;
      p.max_p2p_bytes = std::min(from.max_message_bytes, abi::kLargestMessageLimit);
      p.max_coll_bytes = p.max_p2p_bytes;
    }
    if constexpr (requires { p.max_multi_request_size; }) p.max_multi_request_size = 1;
    if constexpr (requires { p.rail_id; }) {
      p.rail_id = abi::kUndefined;
      p.plane_id = abi::kUndefined;
    }
  });
}

// ---- connections ---------------------------------------------------------------------------

Result listen_with(void* context, int device, HandleSize size, void* handle,
                   void** listener) noexcept {
  clear(listener);
  return guarded("listen", [&] {
    out(static_cast<std::byte*>(handle));
    give(listener, [&] { return plugin().listen(context, device, size, handle); });
  });
}
Result listen_short(int device, void* handle, void** listener) noexcept {
  return listen_with(nullptr, device, HandleSize::kShort, handle, listener);
}
Result listen(int device, void* handle, void** listener) noexcept {
  return listen_with(nullptr, device, HandleSize::kFull, handle, listener);
}
Result listen_context(void* context, int device, void* handle, void** listener) noexcept {
  return listen_with(context, device, HandleSize::kFull, handle, listener);
}

Result connect_context(void* context, int device, void* handle, void** comm,
                       abi::DeviceHandle** device_handle) noexcept {
  clear(comm);
  clear(device_handle);
  return guarded("connect", [&] {
    out(static_cast<std::byte*>(handle));
    give(comm, [&] { return plugin().connect(context, device, HandleSize::kFull, handle); });
  });
}
Result connect_and_wait(int device, void* handle, void** comm) noexcept {
  clear(comm);
  return guarded("connect", [&] {
    out(static_cast<std::byte*>(handle));
    give(comm, [&] { return plugin().connect_or_wait(device, HandleSize::kShort, handle); });
  });
}
Result connect(int device, void* handle, void** comm) noexcept {
  return connect_context(nullptr, device, handle, comm, nullptr);
}
Result connect_device(int device, void* handle, void** comm,
                      abi::DeviceHandle** device_handle) noexcept {
  return connect_context(nullptr, device, handle, comm, device_handle);
}
Result connect_config(int device, abi::CommConfig* /*config*/, void* handle, void** comm,
                      abi::DeviceHandle** device_handle) noexcept {
  return connect_context(nullptr, device, handle, comm, device_handle);
}

Result accept_device(void* listener, void** comm, abi::DeviceHandle** device_handle) noexcept {
  clear(comm);
  clear(device_handle);
  return guarded("accept", [&] { give(comm, [&] { return plugin().accept(listener); }); });
}
Result accept(void* listener, void** comm) noexcept {
  return accept_device(listener, comm, nullptr);
}
Result accept_and_wait(void* listener, void** comm) noexcept {
  clear(comm);
  return guarded("accept", [&] { give(comm, [&] { return plugin().accept_or_wait(listener); }); });
}

Result close_send(void* comm) noexcept {
  return guarded("closeSend", [&] { plugin().close_comm(comm, true); });
}
Result close_recv(void* comm) noexcept {
  return guarded("closeRecv", [&] { plugin().close_comm(comm, false); });
}
Result close_listen(void* listener) noexcept {
  return guarded("closeListen", [&] { plugin().close_listener(listener); });
}

// ---- memory --------------------------------------------------------------------------------

template <typename Size>
Result reg_mr(void* comm, void* data, Size size, int type, void** memory) noexcept {
  clear(memory);
  return guarded("regMr", [&] {
    give(memory, [&] { return plugin().register_memory(comm, data, length(size), type); });
  });
}
Result reg_mr_dma_buf(void* comm, void* data, std::size_t size, int type, std::uint64_t offset,
                      int descriptor, void** memory) noexcept {
  clear(memory);
  return guarded("regMrDmaBuf", [&] {
    give(memory, [&] {
      return plugin().register_dma_buf(comm, data, size, type, {descriptor, offset});
    });
  });
}
Result dereg_mr(void* comm, void* memory) noexcept {
  return guarded("deregMr", [&] { plugin().deregister(comm, memory); });
}

// ---- messages ------------------------------------------------------------------------------

template <typename Size>
Result isend_tagged(void* comm, void* data, Size size, int tag, void* memory,
                    void** request) noexcept {
  clear(request);
  return guarded("isend", [&] {
    give(request, [&] {
      return plugin().comm(comm).send(
          {data, length(size), static_cast<std::uint32_t>(tag), memory});
    });
  });
}
Result isend_untagged(void* comm, void* data, int size, void* memory, void** request) noexcept {
  return isend_tagged(comm, data, size, 0, memory, request);
}
Result isend_profiled(void* comm, void* data, std::size_t size, int tag, void* memory,
                      void* /*profiler_handle*/, void** request) noexcept {
  return isend_tagged(comm, data, size, tag, memory, request);
}

// Fills `parts` from NCCL's arrays, of which `tags` may be null.
template <typename Size>
std::span<const Part> parts_of(std::array<Part, 8>& parts, int n, void** data, const Size* sizes,
                               const int* tags, void** memories) {
  if (n < 1 || n > static_cast<int>(parts.size())) {
    throw Error(Errc::kInvalidArgument, "{} messages in one call; 1 to {} are possible", n,
                parts.size());
  }
  if (data == nullptr || sizes == nullptr) {
    throw Error(Errc::kInvalidArgument, "a null pointer for addresses or sizes");
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    parts[i] = {data[i], length(sizes[i]),
                tags == nullptr ? 0U : static_cast<std::uint32_t>(tags[i]),
                memories == nullptr ? nullptr : memories[i]};
  }
  return std::span(parts).first(static_cast<std::size_t>(n));
}

template <typename Size>
Result irecv_grouped(void* comm, int n, void** data, Size* sizes, int* tags, void** memories,
                     void** request) noexcept {
  // On entry it may say that NCCL itself will see the data (abi::kOptionalCompletion): this plugin
  // reports completion all the same.
  clear(request);
  return guarded("irecv", [&] {
    std::array<Part, 8> parts;
    give(request, [&] {
      return plugin().comm(comm).receive(parts_of(parts, n, data, sizes, tags, memories));
    });
  });
}
Result irecv_single(void* comm, void* data, int size, void* memory, void** request) noexcept {
  return irecv_grouped(comm, 1, &data, &size, nullptr, &memory, request);
}
Result irecv_profiled(void* comm, int n, void** data, std::size_t* sizes, int* tags,
                      void** memories, void** /*profiler_handles*/, void** request) noexcept {
  return irecv_grouped(comm, n, data, sizes, tags, memories, request);
}

Result iflush_grouped(void* comm, int n, void** data, int* sizes, void** memories,
                      void** request) noexcept {
  clear(request);
  return guarded("iflush", [&] {
    std::array<Part, 8> parts;
    give(request, [&] {
      return plugin().comm(comm).flush(parts_of(parts, n, data, sizes, nullptr, memories));
    });
  });
}
Result iflush_single(void* comm, void* data, int size, void* memory, void** request) noexcept {
  return iflush_grouped(comm, 1, &data, &size, &memory, request);
}

Result test(void* request, int* done, int* sizes) noexcept {
  clear(done);
  return guarded("test", [&] {
    out(done);
    const Outcome outcome = plugin().comm_of(request).test(request);
    if (!outcome.done) return;
    *done = 1;
    if (sizes == nullptr) return;
    for (std::size_t i = 0; i < outcome.count; ++i) sizes[i] = clamp_to_int(outcome.bytes[i]);
  });
}

__attribute__((destructor)) void at_unload() {
  (void)guarded("unload", [] { plugin().release_at_unload(); });
}

}  // namespace

// The symbols that NCCL looks for. get_device_mr and irecv_consumed are for plugins that GPUs
// drive; nothing here gains by merging devices.
// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
extern "C" {
#define RW_TABLE __attribute__((visibility("default"))) extern const

RW_TABLE abi::NetV4 ncclNetPlugin_v4;
RW_TABLE abi::NetV5 ncclNetPlugin_v5;
RW_TABLE abi::NetV6 ncclNetPlugin_v6;
RW_TABLE abi::NetV7 ncclNetPlugin_v7;
RW_TABLE abi::NetV8 ncclNetPlugin_v8;
RW_TABLE abi::NetV9 ncclNetPlugin_v9;
RW_TABLE abi::NetV10 ncclNetPlugin_v10;
RW_TABLE abi::NetV11 ncclNetPlugin_v11;
RW_TABLE abi::NetV12 ncclNetPlugin_v12;

const abi::NetV4 ncclNetPlugin_v4 = {
    .name = kName,
    .init = init<4>,
    .devices = devices,
    .get_properties = get_properties<abi::PropertiesV4, false>,
    .listen = listen_short,
    .connect = connect_and_wait,
    .accept = accept_and_wait,
    .reg_mr = reg_mr<int>,
    .dereg_mr = dereg_mr,
    .isend = isend_untagged,
    .irecv = irecv_single,
    .iflush = iflush_single,
    .test = test,
    .close_send = close_send,
    .close_recv = close_recv,
    .close_listen = close_listen,
};

const abi::NetV5 ncclNetPlugin_v5 = {
    .name = kName,
    .init = init<5>,
    .devices = devices,
    .get_properties = get_properties<abi::PropertiesV5, false>,
    .listen = listen,
    .connect = connect,
    .accept = accept,
    .reg_mr = reg_mr<int>,
    .dereg_mr = dereg_mr,
    .isend = isend_tagged<int>,
    .irecv = irecv_grouped<int>,
    .iflush = iflush_grouped,
    .test = test,
    .close_send = close_send,
    .close_recv = close_recv,
    .close_listen = close_listen,
};

const abi::NetV6 ncclNetPlugin_v6 = {
    .name = kName,
    .init = init<6>,
    .devices = devices,
    .get_properties = get_properties<abi::PropertiesV6>,
    .listen = listen,
    .connect = connect,
    .accept = accept,
    .reg_mr = reg_mr<int>,
    .reg_mr_dma_buf = reg_mr_dma_buf,
    .dereg_mr = dereg_mr,
    .isend = isend_tagged<int>,
    .irecv = irecv_grouped<int>,
    .iflush = iflush_grouped,
    .test = test,
    .close_send = close_send,
    .close_recv = close_recv,
    .close_listen = close_listen,
};

const abi::NetV7 ncclNetPlugin_v7 = {
    .name = kName,
    .init = init<7>,
    .devices = devices,
    .get_properties = get_properties<abi::PropertiesV7>,
    .listen = listen,
    .connect = connect_device,
    .accept = accept_device,
    .reg_mr = reg_mr<int>,
    .reg_mr_dma_buf = reg_mr_dma_buf,
    .dereg_mr = dereg_mr,
    .isend = isend_tagged<int>,
    .irecv = irecv_grouped<int>,
    .iflush = iflush_grouped,
    .test = test,
    .close_send = close_send,
    .close_recv = close_recv,
    .close_listen = close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
};

const abi::NetV8 ncclNetPlugin_v8 = {
    .name = kName,
    .init = init<8>,
    .devices = devices,
    .get_properties = get_properties<abi::PropertiesV8>,
    .listen = listen,
    .connect = connect_device,
    .accept = accept_device,
    .reg_mr = reg_mr<std::size_t>,
    .reg_mr_dma_buf = reg_mr_dma_buf,
    .dereg_mr = dereg_mr,
    .isend = isend_tagged<int>,
    .irecv = irecv_grouped<int>,
    .iflush = iflush_grouped,
    .test = test,
    .close_send = close_send,
    .close_recv = close_recv,
    .close_listen = close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
};

const abi::NetV9 ncclNetPlugin_v9 = {
    .name = kName,
    .init = init<9>,
    .devices = devices,
    .get_properties = get_properties<abi::PropertiesV9>,
    .listen = listen,
    .connect = connect_device,
    .accept = accept_device,
    .reg_mr = reg_mr<std::size_t>,
    .reg_mr_dma_buf = reg_mr_dma_buf,
    .dereg_mr = dereg_mr,
    .isend = isend_tagged<std::size_t>,
    .irecv = irecv_grouped<std::size_t>,
    .iflush = iflush_grouped,
    .test = test,
    .close_send = close_send,
    .close_recv = close_recv,
    .close_listen = close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
    .make_virtual_device = nullptr,
};

const abi::NetV10 ncclNetPlugin_v10 = {
    .name = kName,
    .init = init_with_profiler,
    .devices = devices,
    .get_properties = get_properties<abi::PropertiesV10>,
    .listen = listen,
    .connect = connect_config,
    .accept = accept_device,
    .reg_mr = reg_mr<std::size_t>,
    .reg_mr_dma_buf = reg_mr_dma_buf,
    .dereg_mr = dereg_mr,
    .isend = isend_profiled,
    .irecv = irecv_profiled,
    .iflush = iflush_grouped,
    .test = test,
    .close_send = close_send,
    .close_recv = close_recv,
    .close_listen = close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
    .make_virtual_device = nullptr,
};

const abi::NetV11 ncclNetPlugin_v11 = {
    .name = kName,
    .init = init_context,
    .devices = devices,
    .get_properties = get_properties<abi::PropertiesV11>,
    .listen = listen_context,
    .connect = connect_context,
    .accept = accept_device,
    .reg_mr = reg_mr<std::size_t>,
    .reg_mr_dma_buf = reg_mr_dma_buf,
    .dereg_mr = dereg_mr,
    .isend = isend_profiled,
    .irecv = irecv_profiled,
    .iflush = iflush_grouped,
    .test = test,
    .close_send = close_send,
    .close_recv = close_recv,
    .close_listen = close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
    .make_virtual_device = nullptr,
    .finalize = finalize,
    .set_net_attributes = set_net_attributes,
};

const abi::NetV12 ncclNetPlugin_v12 = {
    .name = kName,
    .init = init_context,
    .devices = devices,
    .get_properties = get_properties<abi::PropertiesV12>,
    .listen = listen_context,
    .connect = connect_context,
    .accept = accept_device,
    .reg_mr = reg_mr<std::size_t>,
    .reg_mr_dma_buf = reg_mr_dma_buf,
    .dereg_mr = dereg_mr,
    .isend = isend_profiled,
    .irecv = irecv_profiled,
    .iflush = iflush_grouped,
    .test = test,
    .close_send = close_send,
    .close_recv = close_recv,
    .close_listen = close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
    .make_virtual_device = nullptr,
    .finalize = finalize,
    .set_net_attributes = set_net_attributes,
};

#undef RW_TABLE
}  // extern "C"
// NOLINTEND(readability-identifier-naming)

}  // namespace ropewalk::netplugin
