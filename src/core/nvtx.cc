#include "core/nvtx.h"

#ifdef RW_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>

#include <map>
#include <string>

#include "core/mutex.h"
#endif

namespace ropewalk::nvtx {
namespace detail {

#ifdef RW_HAVE_NVTX
namespace {

// Null where no tool takes it. NVTX loads the tool when its first function is called, which is
// here, as the library is loaded.
const nvtxDomainHandle_t kDomain = nvtxDomainCreateA("Ropewalk");

struct Names {
  Mutex mutex;
  std::map<std::string, nvtxStringHandle_t, std::less<>> handles RW_GUARDED_BY(mutex);
};

nvtxStringHandle_t handle_of(std::string_view name) {
  // Never destroyed: threads may run until the process ends.
  static Names& names = *new Names;
  const Lock lock(names.mutex);
  const auto known = names.handles.find(name);
  if (known != names.handles.end()) return known->second;
  const std::string text(name);
  return names.handles[text] = nvtxDomainRegisterStringA(kDomain, text.c_str());
}

}  // namespace

const bool kWanted = kDomain != nullptr;

void push(std::string_view name, std::uint64_t bytes) noexcept {
  nvtxEventAttributes_t event{};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  event.message.registered = handle_of(name);
  event.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  event.payload.ullValue = bytes;
  (void)nvtxDomainRangePushEx(kDomain, &event);
}

void pop() noexcept { (void)nvtxDomainRangePop(kDomain); }
#else
const bool kWanted = false;
void push(std::string_view /*name*/, std::uint64_t /*bytes*/) noexcept {}
void pop() noexcept {}
#endif

}  // namespace detail
}  // namespace ropewalk::nvtx
