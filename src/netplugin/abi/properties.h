// What getProperties fills in, version by version. Names are this project's; order, types and
// offsets are the interface's.
#pragma once

#include "netplugin/abi/common.h"

namespace ropewalk::netplugin::abi {

struct PropertiesV4 {
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int speed;  // Mbit/s
  int port;
  int max_comms;
};

struct PropertiesV5 {
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int speed;
  int port;
  float latency;  // us
  int max_comms;
  int max_recvs;
};
using PropertiesV6 = PropertiesV5;

struct PropertiesV7 {
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int net_device_type;
  int net_device_version;
};

struct PropertiesV8 {
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int net_device_type;
  int net_device_version;
};

struct PropertiesV9 {
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int net_device_type;
  int net_device_version;
  VirtualDeviceV9 members;
  std::size_t max_p2p_bytes;
  std::size_t max_coll_bytes;
};
using PropertiesV10 = PropertiesV9;

struct PropertiesV11 {
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int net_device_type;
  int net_device_version;
  VirtualDeviceV9 members;
  std::size_t max_p2p_bytes;
  std::size_t max_coll_bytes;
  int max_multi_request_size;
};

struct PropertiesV12 {
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int net_device_type;
  int net_device_version;
  VirtualDeviceV12 members;
  std::size_t max_p2p_bytes;
  std::size_t max_coll_bytes;
  int max_multi_request_size;
  std::int16_t rail_id;
  std::int16_t plane_id;
};

}  // namespace ropewalk::netplugin::abi
