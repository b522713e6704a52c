// Sizes and offsets of the interface's structs, as NCCL compiles them.
#include "netplugin/abi/common.h"
#include "netplugin/abi/properties.h"
#include "netplugin/abi/tables.h"
#include "netplugin/abi/tuner.h"

namespace ropewalk::netplugin::abi {
namespace {

#define RW_AT(type, member, offset) static_assert(offsetof(type, member) == (offset))
#define RW_WORD(type, member, number) \
  static_assert(offsetof(type, member) == std::size_t{8} * (number))

static_assert(sizeof(Result) == sizeof(int));

// ---- helper structs ------------------------------------------------------------------------

static_assert(sizeof(VirtualDeviceV9) == 20 && alignof(VirtualDeviceV9) == 4);
static_assert(sizeof(VirtualDeviceV12) == 36 && alignof(VirtualDeviceV12) == 4);
RW_AT(VirtualDeviceV9, devices, 4);
RW_AT(VirtualDeviceV12, devices, 4);
static_assert(sizeof(CommConfig) == 4);
static_assert(sizeof(DeviceHandle) == 32 && alignof(DeviceHandle) == 8);
RW_AT(DeviceHandle, type, 0);
RW_AT(DeviceHandle, version, 4);
RW_AT(DeviceHandle, handle, 8);
RW_AT(DeviceHandle, size, 16);
RW_AT(DeviceHandle, needs_proxy_progress, 24);
static_assert(sizeof(CommAttributes) == 16);
static_assert(sizeof(NetAttributes) == 44 && alignof(NetAttributes) == 4);
RW_AT(NetAttributes, send, 0);
RW_AT(NetAttributes, receive, 16);
RW_AT(NetAttributes, operations, 32);
RW_AT(NetAttributes, algorithms, 36);
RW_AT(NetAttributes, protocols, 40);

// ---- properties ----------------------------------------------------------------------------

#define RW_COMMON_PROPERTIES(type) \
  RW_AT(type, name, 0);            \
  RW_AT(type, pci_path, 8);        \
  RW_AT(type, guid, 16);           \
  RW_AT(type, ptr_support, 24);    \
  static_assert(alignof(type) == 8)

static_assert(sizeof(PropertiesV4) == 40);
RW_COMMON_PROPERTIES(PropertiesV4);
RW_AT(PropertiesV4, speed, 28);
RW_AT(PropertiesV4, port, 32);
RW_AT(PropertiesV4, max_comms, 36);

static_assert(sizeof(PropertiesV5) == 48 && sizeof(PropertiesV6) == 48);
RW_COMMON_PROPERTIES(PropertiesV5);
RW_AT(PropertiesV5, speed, 28);
RW_AT(PropertiesV5, port, 32);
RW_AT(PropertiesV5, latency, 36);
RW_AT(PropertiesV5, max_comms, 40);
RW_AT(PropertiesV5, max_recvs, 44);

static_assert(sizeof(PropertiesV7) == 56);
RW_COMMON_PROPERTIES(PropertiesV7);
RW_AT(PropertiesV7, speed, 28);
RW_AT(PropertiesV7, port, 32);
RW_AT(PropertiesV7, latency, 36);
RW_AT(PropertiesV7, max_comms, 40);
RW_AT(PropertiesV7, max_recvs, 44);
RW_AT(PropertiesV7, net_device_type, 48);
RW_AT(PropertiesV7, net_device_version, 52);

static_assert(sizeof(PropertiesV8) == 64);
RW_COMMON_PROPERTIES(PropertiesV8);
RW_AT(PropertiesV8, reg_is_global, 28);
RW_AT(PropertiesV8, speed, 32);
RW_AT(PropertiesV8, port, 36);
RW_AT(PropertiesV8, latency, 40);
RW_AT(PropertiesV8, max_comms, 44);
RW_AT(PropertiesV8, max_recvs, 48);
RW_AT(PropertiesV8, net_device_type, 52);
RW_AT(PropertiesV8, net_device_version, 56);

#define RW_PROPERTIES_FROM_V9(type)    \
  RW_COMMON_PROPERTIES(type);          \
  RW_AT(type, reg_is_global, 28);      \
  RW_AT(type, force_flush, 32);        \
  RW_AT(type, speed, 36);              \
  RW_AT(type, port, 40);               \
  RW_AT(type, latency, 44);            \
  RW_AT(type, max_comms, 48);          \
  RW_AT(type, max_recvs, 52);          \
  RW_AT(type, net_device_type, 56);    \
  RW_AT(type, net_device_version, 60); \
  RW_AT(type, members, 64)

static_assert(sizeof(PropertiesV9) == 104 && sizeof(PropertiesV10) == 104);
RW_PROPERTIES_FROM_V9(PropertiesV9);
RW_AT(PropertiesV9, max_p2p_bytes, 88);
RW_AT(PropertiesV9, max_coll_bytes, 96);

static_assert(sizeof(PropertiesV11) == 112);
RW_PROPERTIES_FROM_V9(PropertiesV11);
RW_AT(PropertiesV11, max_p2p_bytes, 88);
RW_AT(PropertiesV11, max_coll_bytes, 96);
RW_AT(PropertiesV11, max_multi_request_size, 104);

static_assert(sizeof(PropertiesV12) == 128);
RW_PROPERTIES_FROM_V9(PropertiesV12);
RW_AT(PropertiesV12, max_p2p_bytes, 104);
RW_AT(PropertiesV12, max_coll_bytes, 112);
RW_AT(PropertiesV12, max_multi_request_size, 120);
RW_AT(PropertiesV12, rail_id, 124);
RW_AT(PropertiesV12, plane_id, 126);

// ---- tables --------------------------------------------------------------------------------

#define RW_FIRST_WORDS(type)        \
  RW_WORD(type, name, 0);           \
  RW_WORD(type, init, 1);           \
  RW_WORD(type, devices, 2);        \
  RW_WORD(type, get_properties, 3); \
  RW_WORD(type, listen, 4);         \
  RW_WORD(type, connect, 5);        \
  RW_WORD(type, accept, 6);         \
  RW_WORD(type, reg_mr, 7)

#define RW_LAST_WORDS(type, first)        \
  RW_WORD(type, dereg_mr, first);         \
  RW_WORD(type, isend, (first) + 1);      \
  RW_WORD(type, irecv, (first) + 2);      \
  RW_WORD(type, iflush, (first) + 3);     \
  RW_WORD(type, test, (first) + 4);       \
  RW_WORD(type, close_send, (first) + 5); \
  RW_WORD(type, close_recv, (first) + 6); \
  RW_WORD(type, close_listen, (first) + 7)

static_assert(sizeof(NetV4) == 128);
RW_FIRST_WORDS(NetV4);
RW_LAST_WORDS(NetV4, 8);

static_assert(sizeof(NetV5) == 128);
RW_FIRST_WORDS(NetV5);
RW_LAST_WORDS(NetV5, 8);

static_assert(sizeof(NetV6) == 136);
RW_FIRST_WORDS(NetV6);
RW_WORD(NetV6, reg_mr_dma_buf, 8);
RW_LAST_WORDS(NetV6, 9);

#define RW_WORDS_FROM_V7(type)      \
  RW_FIRST_WORDS(type);             \
  RW_WORD(type, reg_mr_dma_buf, 8); \
  RW_LAST_WORDS(type, 9);           \
  RW_WORD(type, get_device_mr, 17); \
  RW_WORD(type, irecv_consumed, 18)

static_assert(sizeof(NetV7) == 152);
RW_WORDS_FROM_V7(NetV7);
static_assert(sizeof(NetV8) == 152);
RW_WORDS_FROM_V7(NetV8);

static_assert(sizeof(NetV9) == 160);
RW_WORDS_FROM_V7(NetV9);
RW_WORD(NetV9, make_virtual_device, 19);
static_assert(sizeof(NetV10) == 160);
RW_WORDS_FROM_V7(NetV10);
RW_WORD(NetV10, make_virtual_device, 19);

static_assert(sizeof(NetV11) == 176);
RW_WORDS_FROM_V7(NetV11);
RW_WORD(NetV11, make_virtual_device, 19);
RW_WORD(NetV11, finalize, 20);
RW_WORD(NetV11, set_net_attributes, 21);
static_assert(sizeof(NetV12) == 176);
RW_WORDS_FROM_V7(NetV12);
RW_WORD(NetV12, make_virtual_device, 19);
RW_WORD(NetV12, finalize, 20);
RW_WORD(NetV12, set_net_attributes, 21);

// ---- tuner -----------------------------------------------------------------------------------

#define RW_TUNER_WORDS(type) \
  RW_WORD(type, name, 0);    \
  RW_WORD(type, init, 1);    \
  RW_WORD(type, get_coll_info, 2)

static_assert(sizeof(TunerV3) == 32 && sizeof(TunerV4) == 32 && sizeof(TunerV5) == 32);
RW_TUNER_WORDS(TunerV3);
RW_WORD(TunerV3, destroy, 3);
RW_TUNER_WORDS(TunerV4);
RW_WORD(TunerV4, destroy, 3);
RW_TUNER_WORDS(TunerV5);
RW_WORD(TunerV5, finalize, 3);
static_assert(sizeof(TunerV6) == 40);
RW_TUNER_WORDS(TunerV6);
RW_WORD(TunerV6, finalize, 3);
RW_WORD(TunerV6, get_chunk_size, 4);

}  // namespace
}  // namespace ropewalk::netplugin::abi
