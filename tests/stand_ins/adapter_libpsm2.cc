// Stands in for a libpsm2 of a host with an Omni-Path adapter: it says that there is one, with an
// active port, and is the libpsm2 of this machine over shared memory. With `cuda` it is one that
// was built with CUDA: with PSM2_CUDA=1 it takes memory of the GPUs of the stand-in for CUDA
// (cuda.cc), whose memory the CPU cannot touch at its address, through a mapping of its own, as
// GDRCopy has one, and a copy in host memory. Only in calls with PSM2_MQ_FLAG_GDRCPY_ONLY, which
// take no other memory then; any other is refused.
//
// What it is to be like is told by RW_ADAPTER_LIBPSM2 when the library is first used, and by
// adapter_libpsm2_configure(), as a comma list:
//
//   no_init       psm2_init fails, as without access to the adapter's device
//   inactive      its port has no link
//   no_open       endpoints cannot be opened
//   damage        what is sent in messages of more than 64 bytes comes with a changed byte
//   cuda          it was built with CUDA
//   damage_to=N   messages into GPU memory of N bytes and more come there with a changed byte
//   damage_from=N those out of it leave so
//   lose_to       messages into GPU memory report success and move nothing
//   fail_to       receives into GPU memory are refused
//   fail_from     sends out of it are refused
//   hang_to=N     receives of N bytes and more into GPU memory meet no message
//   hang_from=N   sends of N bytes and more out of it arrive and do not end
//
// adapter_libpsm2_count(NAME) counts what was done: "refused" calls, which had the wrong memory for
// their flags, and "to" and "from" messages of GPU memory.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stand_in.h"
#include "transport/messaging/psm2/abi.h"
#include "transport/messaging/psm2/interception.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

namespace abi = ropewalk::transport::psm2::abi;

constexpr abi::Error kNoDevice = 21;  // PSM2_EP_NO_DEVICE
constexpr abi::Error kNoInit = 6;     // PSM2_INIT_NOT_INIT
constexpr abi::Error kParameter = 3;  // PSM2_PARAM_ERR
constexpr abi::Error kInternal = 8;   // PSM2_INTERNAL_ERR
constexpr std::uintptr_t kPage = 4096;

// A message that is sent from GPU memory, or received into it, by way of the host's.
struct Staged {
  std::vector<std::byte> host;
  std::byte* gpu = nullptr;  // where this process reaches it; of a receive
  void* mapped = nullptr;
  std::size_t mapped_bytes = 0;
  bool cancelled = false;
  bool hangs = false;

  Staged() = default;
  ~Staged() {
    if (mapped != nullptr) munmap(mapped, mapped_bytes);
  }
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;
};

struct State {
  std::mutex mutex;
  std::map<std::string, std::string> faults;
  std::map<std::string, long> counts;
  std::map<abi::QueueRequest*, std::unique_ptr<Staged>> staged;
};

void configure(State& of, const char* text) {
  const std::lock_guard lock(of.mutex);
  of.faults.clear();
  stand_in::for_each_entry(
      text == nullptr ? "" : text,
      [&](const std::string& name, const std::string& value) { of.faults[name] = value; });
}

// Never destroyed: libpsm2 has an exit handler.
State& state() {
  static State* const made = [] {
    auto* const first = new State;
    configure(*first, std::getenv("RW_ADAPTER_LIBPSM2"));
    return first;
  }();
  return *made;
}

bool is(const char* fault) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.faults.contains(fault);
}

// Whether a fault is one of messages of that length.
bool applies(const char* fault, std::size_t bytes) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto found = s.faults.find(fault);
  return found != s.faults.end() && bytes > 0 && bytes >= std::stoul(found->second);
}

void count(const char* name) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  ++s.counts[name];
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

// ---- memory of GPUs -----------------------------------------------------------------------------

struct Cuda {
  int (*attribute)(void*, int, std::uint64_t) = nullptr;
  int (*handle)(void*, std::uint64_t, std::size_t, int, unsigned long long) = nullptr;
};
const Cuda& cuda() {
  static const Cuda found = [] {
    void* const library = dlopen(RW_STAND_IN_CUDA, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::fprintf(stderr, "stand-in libpsm2: %s\n", dlerror());
      std::abort();
    }
    Cuda made;
    stand_in::find(library, made.attribute, "cuPointerGetAttribute");
    stand_in::find(library, made.handle, "cuMemGetHandleForAddressRange");
    return made;
  }();
  return found;
}

bool on_gpu(const void* data) {
  unsigned type = 0;
  constexpr int kMemoryType = 2;
  return cuda().attribute(&type, kMemoryType, reinterpret_cast<std::uint64_t>(data)) == 0 &&
         type == 2;
}

// Whether the memory of a call fits its flags. One that does not is counted.
bool fits(const void* data, std::uint32_t bytes, std::uint32_t flags) {
  const char* const asked = std::getenv("PSM2_CUDA");
  const bool takes = is("cuda") && asked != nullptr && std::string_view(asked) == "1";
  const bool flagged = (flags & abi::kFlagGdrCopyOnly) != 0;
  const bool gpu = bytes > 0 && on_gpu(data);
  if (flagged ? takes && (gpu || bytes == 0) : !gpu) return true;
  count("refused");
  return false;
}

// GPU memory of a message, mapped, and as much host memory. Null where CUDA does not let it.
std::unique_ptr<Staged> map(const void* data, std::size_t bytes) {
  auto made = std::make_unique<Staged>();
  made->host.resize(bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = address / kPage * kPage;
  const std::uintptr_t end = (address + bytes + kPage - 1) / kPage * kPage;
  int descriptor = -1;
  if (cuda().handle(&descriptor, begin, end - begin, 1, 0) != 0) return nullptr;
  // It stands where the range begins in its allocation.
  void* const mapped = mmap(nullptr, end - begin, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor,
                            lseek(descriptor, 0, SEEK_CUR));
  close(descriptor);
  if (mapped == MAP_FAILED) return nullptr;
  made->mapped = mapped;
  made->mapped_bytes = end - begin;
  made->gpu = static_cast<std::byte*>(mapped) + (address - begin);
  return made;
}

void keep(abi::QueueRequest* request, std::unique_ptr<Staged> staged) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.staged[request] = std::move(staged);
}

bool hangs(abi::QueueRequest* request) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto found = s.staged.find(request);
  return found != s.staged.end() && found->second->hangs;
}

std::unique_ptr<Staged> take(abi::QueueRequest* request) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto found = s.staged.find(request);
  if (found == s.staged.end()) return nullptr;
  std::unique_ptr<Staged> staged = std::move(found->second);
  s.staged.erase(found);
  return staged;
}

abi::Error send_from_gpu(abi::Queue* queue, abi::Address* to, std::uint32_t flags,
                         const abi::Tag* tag, const void* data, std::uint32_t bytes, void* context,
                         abi::QueueRequest** request) {
  std::unique_ptr<Staged> staged = is("fail_from") ? nullptr : map(data, bytes);
  if (staged == nullptr) return kInternal;
  std::memcpy(staged->host.data(), staged->gpu, bytes);
  if (applies("damage_from", bytes)) staged->host[bytes / 2] ^= std::byte{1};
  const abi::Error error = real<abi::StartSend>("psm2_mq_isend2")(
      queue, to, flags, tag, staged->host.data(), bytes, context, request);
  if (error != abi::kOk) return error;
  count("from");
  staged->gpu = nullptr;  // nothing comes there
  staged->hangs = applies("hang_from", bytes);
  keep(*request, std::move(staged));
  return abi::kOk;
}

abi::Error receive_to_gpu(abi::Queue* queue, abi::Address* from, const abi::Tag* tag,
                          const abi::Tag* mask, std::uint32_t flags, void* data,
                          std::uint32_t bytes, void* context, abi::QueueRequest** request) {
  std::unique_ptr<Staged> staged = is("fail_to") ? nullptr : map(data, bytes);
  if (staged == nullptr) return kInternal;
  abi::Tag met = *tag;
  if (applies("hang_to", bytes)) met.words[1] = ~met.words[1];
  const abi::Error error = real<abi::StartReceive>("psm2_mq_irecv2")(
      queue, from, &met, mask, flags, staged->host.data(), bytes, context, request);
  if (error != abi::kOk) return error;
  count("to");
  keep(*request, std::move(staged));
  return abi::kOk;
}

// What has come is put into the GPU's memory.
void put(Staged& staged, std::size_t bytes) {
  if (staged.gpu == nullptr || staged.cancelled || is("lose_to")) return;
  bytes = std::min(bytes, staged.host.size());
  if (applies("damage_to", bytes)) staged.host[bytes / 2] ^= std::byte{1};
  std::memcpy(staged.gpu, staged.host.data(), bytes);
}

}  // namespace

EXPORT void adapter_libpsm2_configure(const char* text) { configure(state(), text); }
EXPORT long adapter_libpsm2_count(const char* name) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.counts[name];
}

EXPORT abi::Error psm2_error_register_handler(abi::Endpoint* endpoint, abi::ErrorHandler handler) {
  return real<abi::RegisterHandler>("psm2_error_register_handler")(endpoint, handler);
}
EXPORT abi::Error psm2_init(int* major, int* minor) {
  // A build with CUDA has no other mode than libpsm2's own choice, cma-get. (In mode none a thread
  // that drives two endpoints waits inside psm2_poll for messages of more than 2 MiB for ever.)
  if (is("cuda")) unsetenv("PSM2_KASSIST_MODE");
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
  if (kind == abi::kQueryFeatures) {
    const std::uint32_t features = is("cuda") ? abi::kFeatureCuda : 0;
    std::memcpy(out, &features, sizeof features);
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
  if (!fits(data, bytes, flags)) return kParameter;
  if ((flags & abi::kFlagGdrCopyOnly) != 0) {  // which would wait for a copy
    count("refused");
    return kParameter;
  }
  return real<abi::Send>("psm2_mq_send2")(queue, to, flags, tag, damaged(data, bytes), bytes);
}
EXPORT abi::Error psm2_mq_isend2(abi::Queue* queue, abi::Address* to, std::uint32_t flags,
                                 const abi::Tag* tag, const void* data, std::uint32_t bytes,
                                 void* context, abi::QueueRequest** request) {
  if (!fits(data, bytes, flags)) return kParameter;
  const std::uint32_t plain = flags & ~abi::kFlagGdrCopyOnly;
  if (plain != flags && bytes > 0) {
    return send_from_gpu(queue, to, plain, tag, data, bytes, context, request);
  }
  return real<abi::StartSend>("psm2_mq_isend2")(queue, to, plain, tag, damaged(data, bytes), bytes,
                                                context, request);
}
EXPORT abi::Error psm2_mq_irecv2(abi::Queue* queue, abi::Address* from, const abi::Tag* tag,
                                 const abi::Tag* mask, std::uint32_t flags, void* data,
                                 std::uint32_t bytes, void* context, abi::QueueRequest** request) {
  if (!fits(data, bytes, flags)) return kParameter;
  const std::uint32_t plain = flags & ~abi::kFlagGdrCopyOnly;
  if (plain != flags && bytes > 0) {
    return receive_to_gpu(queue, from, tag, mask, plain, data, bytes, context, request);
  }
  return real<abi::StartReceive>("psm2_mq_irecv2")(queue, from, tag, mask, plain, data, bytes,
                                                   context, request);
}
EXPORT abi::Error psm2_mq_test2(abi::QueueRequest** request, abi::Status* status) {
  abi::QueueRequest* const tested = *request;
  if (hangs(tested)) return abi::kIncomplete;
  const abi::Error error = real<abi::Test>("psm2_mq_test2")(request, status);
  if (error == abi::kIncomplete) return error;
  const std::unique_ptr<Staged> staged = take(tested);
  if (staged != nullptr) put(*staged, status->received_bytes);
  return error;
}
EXPORT abi::Error psm2_mq_iprobe2(abi::Queue* queue, abi::Address* from, const abi::Tag* tag,
                                  const abi::Tag* mask, abi::Status* status) {
  return real<abi::Probe>("psm2_mq_iprobe2")(queue, from, tag, mask, status);
}
EXPORT abi::Error psm2_mq_cancel(abi::QueueRequest** request) {
  abi::QueueRequest* const cancelled = *request;
  const abi::Error error = real<abi::Cancel>("psm2_mq_cancel")(request);
  if (error != abi::kOk) return error;
  // Its test reports success.
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (const auto found = s.staged.find(cancelled); found != s.staged.end()) {
    found->second->cancelled = true;
  }
  return error;
}
EXPORT abi::Error psm2_poll(abi::Endpoint* endpoint) {
  return real<abi::Poll>("psm2_poll")(endpoint);
}
