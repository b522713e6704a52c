// Stands in for a libpsm2 of a host with an Omni-Path adapter: it says that there is one, with an
// active port, and is the libpsm2 of this machine over shared memory. What it is to be like is told
// by RW_ADAPTER_LIBPSM2, as a comma list:
//
//   no_init    psm2_init fails, as without access to the adapter's device
//   inactive   its port has no link
//   no_open    endpoints cannot be opened
//   damage     what is sent in messages of more than 64 bytes comes with a changed byte
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "transport/messaging/psm2/abi.h"
#include "transport/messaging/psm2/interception.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

namespace abi = ropewalk::transport::psm2::abi;

constexpr abi::Error kNoDevice = 21;  // PSM2_EP_NO_DEVICE
constexpr abi::Error kNoInit = 6;     // PSM2_INIT_NOT_INIT

bool is(const char* fault) {
  const char* const text = std::getenv("RW_ADAPTER_LIBPSM2");
  return text != nullptr && std::strstr(text, fault) != nullptr;
}

// libpsm2 counts adapters by their devices before it looks at anything else.
int stat_of_one_adapter(const char* path, struct stat* result) {
  if (std::string_view(path) == "/dev/hfi1_0") {
    std::memset(result, 0, sizeof *result);
    return 0;
  }
  return stat(path, result);
}

void* library() {
  static void* const opened = [] {
    setenv("PSM2_DEVICES", "self,shm", 1);
    setenv("HFI_SYSFS_PATH", "/sys/class", 1);
    setenv("PSM2_ADDR_FMT", "1", 1);
    void* const handle = dlopen("libpsm2.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == nullptr) {
      std::fprintf(stderr, "stand-in libpsm2: %s\n", dlerror());
      std::abort();
    }
    ropewalk::transport::psm2::intercept(handle, "stat",
                                         reinterpret_cast<void*>(&stat_of_one_adapter));
    return handle;
  }();
  return opened;
}

template <typename Function>
Function real(const char* name) {
  void* const found = dlsym(library(), name);
  if (found == nullptr) {
    std::fprintf(stderr, "stand-in libpsm2: no %s\n", name);
    std::abort();
  }
  return reinterpret_cast<Function>(found);
}

// What is sent instead of a message that is to be damaged; libpsm2 may read it until the end.
const void* damaged(const void* data, std::uint32_t bytes) {
  if (bytes <= 64 || !is("damage")) return data;
  auto* const copy = static_cast<char*>(std::malloc(bytes));
  std::memcpy(copy, data, bytes);
  copy[bytes / 2] ^= 1;
  return copy;
}

}  // namespace

EXPORT abi::Error psm2_error_register_handler(abi::Endpoint* endpoint, abi::ErrorHandler handler) {
  return real<abi::RegisterHandler>("psm2_error_register_handler")(endpoint, handler);
}
EXPORT abi::Error psm2_init(int* major, int* minor) {
  return is("no_init") ? kNoInit : real<abi::Init>("psm2_init")(major, minor);
}
EXPORT const char* psm2_error_get_string(abi::Error error) {
  return real<abi::ErrorString>("psm2_error_get_string")(error);
}
EXPORT std::uint64_t psm2_get_capability_mask(std::uint64_t wanted) {
  return real<abi::Capabilities>("psm2_get_capability_mask")(wanted);
}
EXPORT abi::Error psm2_ep_num_devunits(std::uint32_t* count) {
  *count = 1;
  return abi::kOk;
}
EXPORT abi::Error psm2_info_query(int kind, void* out, std::size_t count,
                                  abi::QueryArgument* arguments) {
  if (kind == abi::kQueryPorts || kind == abi::kQueryPortStatus) {
    const std::uint32_t value = kind == abi::kQueryPortStatus && is("inactive") ? 0 : 1;
    std::memcpy(out, &value, sizeof value);
    return abi::kOk;
  }
  return real<abi::Query>("psm2_info_query")(kind, out, count, arguments);
}
EXPORT abi::Error psm2_ep_open_opts_get_defaults(abi::OpenOptions* options) {
  return real<abi::OpenDefaults>("psm2_ep_open_opts_get_defaults")(options);
}
EXPORT abi::Error psm2_ep_open(const std::uint8_t* key, const abi::OpenOptions* options,
                               abi::Endpoint** endpoint, abi::EndpointId* id) {
  if (is("no_open")) return kNoDevice;
  abi::OpenOptions plain{};
  psm2_ep_open_opts_get_defaults(&plain);
  plain.affinity = options->affinity;
  // Over shared memory the endpoints of a host differ by their keys.
  abi::JobKey own{};
  std::memcpy(own.data(), key, own.size());
  static std::uint16_t next = 0;
  const auto number = static_cast<std::uint32_t>(getpid()) << 8U | next++;
  std::memcpy(own.data(), &number, sizeof number);
  return real<abi::EndpointOpen>("psm2_ep_open")(own.data(), &plain, endpoint, id);
}
EXPORT abi::Error psm2_ep_connect(abi::Endpoint* endpoint, int count, const abi::EndpointId* ids,
                                  const int* mask, abi::Error* errors, abi::Address** addresses,
                                  std::int64_t timeout_ns) {
  return real<abi::EndpointConnect>("psm2_ep_connect")(endpoint, count, ids, mask, errors,
                                                       addresses, timeout_ns);
}
EXPORT abi::Error psm2_ep_epid_share_memory(abi::Endpoint* endpoint, abi::EndpointId id,
                                            std::uint32_t* shares) {
  return real<abi::SharesMemory>("psm2_ep_epid_share_memory")(endpoint, id, shares);
}
EXPORT abi::Error psm2_mq_init(abi::Endpoint* endpoint, std::uint64_t order, const void* options,
                               int count, abi::Queue** queue) {
  return real<abi::QueueInit>("psm2_mq_init")(endpoint, order, options, count, queue);
}
EXPORT abi::Error psm2_mq_send2(abi::Queue* queue, abi::Address* to, std::uint32_t flags,
                                const abi::Tag* tag, const void* data, std::uint32_t bytes) {
  return real<abi::Send>("psm2_mq_send2")(queue, to, flags, tag, damaged(data, bytes), bytes);
}
EXPORT abi::Error psm2_mq_isend2(abi::Queue* queue, abi::Address* to, std::uint32_t flags,
                                 const abi::Tag* tag, const void* data, std::uint32_t bytes,
                                 void* context, abi::QueueRequest** request) {
  return real<abi::StartSend>("psm2_mq_isend2")(queue, to, flags, tag, damaged(data, bytes), bytes,
                                                context, request);
}
EXPORT abi::Error psm2_mq_irecv2(abi::Queue* queue, abi::Address* from, const abi::Tag* tag,
                                 const abi::Tag* mask, std::uint32_t flags, void* data,
                                 std::uint32_t bytes, void* context, abi::QueueRequest** request) {
  return real<abi::StartReceive>("psm2_mq_irecv2")(queue, from, tag, mask, flags, data, bytes,
                                                   context, request);
}
EXPORT abi::Error psm2_mq_test2(abi::QueueRequest** request, abi::Status* status) {
  return real<abi::Test>("psm2_mq_test2")(request, status);
}
EXPORT abi::Error psm2_mq_iprobe2(abi::Queue* queue, abi::Address* from, const abi::Tag* tag,
                                  const abi::Tag* mask, abi::Status* status) {
  return real<abi::Probe>("psm2_mq_iprobe2")(queue, from, tag, mask, status);
}
EXPORT abi::Error psm2_mq_cancel(abi::QueueRequest** request) {
  return real<abi::Cancel>("psm2_mq_cancel")(request);
}
EXPORT abi::Error psm2_poll(abi::Endpoint* endpoint) {
  return real<abi::Poll>("psm2_poll")(endpoint);
}
