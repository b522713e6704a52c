// The part of libpsm2's binary interface that this transport uses, version 2.2, as its public
// headers (psm2.h, psm2_mq.h) describe it. Declared here, so that the build needs none of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ropewalk::transport::psm2::abi {

using Error = int;
inline constexpr Error kOk = 0;
inline constexpr Error kNoProgress = 1;
inline constexpr Error kIncomplete = 60;  // PSM2_MQ_INCOMPLETE
inline constexpr Error kTruncated = 61;   // PSM2_MQ_TRUNCATION

inline constexpr int kMajor = 2;
inline constexpr int kMinor = 2;

struct Endpoint;      // psm2_ep
struct Address;       // psm2_epaddr
struct Queue;         // psm2_mq
struct QueueRequest;  // psm2_mq_req

using EndpointId = std::uint64_t;
using JobKey = std::array<std::uint8_t, 16>;

/// psm2_mq_tag_t: the first three words are matched.
struct alignas(16) Tag {
  std::array<std::uint32_t, 4> words{};
};
static_assert(sizeof(Tag) == 16);

/// psm2_mq_status2_t
struct Status {
  Address* peer;
  Tag tag;
  std::uint32_t sent_bytes;
  std::uint32_t received_bytes;
  Error error;
  void* context;
};
static_assert(sizeof(Status) == 64 && offsetof(Status, tag) == 16 &&
              offsetof(Status, sent_bytes) == 32 && offsetof(Status, context) == 48);

/// psm2_ep_open_opts
struct OpenOptions {
  std::int64_t timeout;
  int unit;
  int affinity;
  int shm_mbytes;
  int sendbufs_num;
  std::uint64_t network_pkey;
  int port;
  int outsl;
  std::uint64_t service_id;
  int path_res_type;
  int senddesc_num;
  int imm_size;
  int padding;
};
static_assert(sizeof(OpenOptions) == 64 && offsetof(OpenOptions, port) == 32);

/// psm2_info_query_arg_t
union QueryArgument {
  std::uint32_t unit;
  std::uint32_t port;
  std::size_t length;
  Queue* queue;
  Address* address;
};
static_assert(sizeof(QueryArgument) == 8);
inline constexpr int kQueryPorts = 1;
inline constexpr int kQueryPortStatus = 3;
inline constexpr int kQueryFreeContexts = 4;
inline constexpr int kQueryFeatures = 12;
inline constexpr std::uint32_t kFeatureCuda = 1;

inline constexpr std::uint32_t kFlagSync = 1;  // PSM2_MQ_FLAG_SENDSYNC
/// PSM2_MQ_FLAG_GDRCPY_ONLY: the library may not call CUDA to copy GPU memory.
inline constexpr std::uint32_t kFlagGdrCopyOnly = 2;

inline constexpr std::uint64_t kCapSeveralEndpoints = 1;  // PSM2_MULTI_EP_CAP

// Handlers for errors: those that libpsm2 calls fatal are returned, too.
using ErrorHandler = Error (*)(Endpoint*, Error, const char*, void*);

extern "C" {
using RegisterHandler = Error (*)(Endpoint*, ErrorHandler);
using Init = Error (*)(int* major, int* minor);
using ErrorString = const char* (*)(Error);
using Capabilities = std::uint64_t (*)(std::uint64_t);
using NumUnits = Error (*)(std::uint32_t*);
using OpenDefaults = Error (*)(OpenOptions*);
using EndpointOpen = Error (*)(const std::uint8_t* key, const OpenOptions*, Endpoint**,
                               EndpointId*);
using EndpointConnect = Error (*)(Endpoint*, int count, const EndpointId*, const int* mask,
                                  Error* errors, Address**, std::int64_t timeout_ns);
using SharesMemory = Error (*)(Endpoint*, EndpointId, std::uint32_t*);
using QueueInit = Error (*)(Endpoint*, std::uint64_t, const void*, int, Queue**);
using Send = Error (*)(Queue*, Address*, std::uint32_t flags, const Tag*, const void*,
                       std::uint32_t bytes);
using StartSend = Error (*)(Queue*, Address*, std::uint32_t flags, const Tag*, const void*,
                            std::uint32_t bytes, void* context, QueueRequest**);
using StartReceive = Error (*)(Queue*, Address*, const Tag*, const Tag* mask, std::uint32_t flags,
                               void*, std::uint32_t bytes, void* context, QueueRequest**);
using Test = Error (*)(QueueRequest**, Status*);
using Probe = Error (*)(Queue*, Address*, const Tag*, const Tag* mask, Status*);
using Cancel = Error (*)(QueueRequest**);
using Poll = Error (*)(Endpoint*);
using Query = Error (*)(int kind, void* out, std::size_t count, QueryArgument*);
}

}  // namespace ropewalk::transport::psm2::abi
